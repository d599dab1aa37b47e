"""Publish while the broker, the lake job's driver and a Python worker are killed with ``kill -9``: each once, and with
20,000 messages often."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import paho.mqtt.client as paho
import psutil
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.end_to_end import readings
from tests.end_to_end.meters import Meter, define, payload, reason
from tests.support.node import TOKEN, Node, eventually, running

OFTEN = ("broker", "worker", "driver", "broker", "worker", "broker", "driver")
RATE_PER_CLIENT_S = 60.0
SLOW_INTERVAL_S = 0.25


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("victims", "count"),
    [
        pytest.param(("worker", "broker", "driver"), 1_500, id="each once"),
        pytest.param(OFTEN, 5_000, id="often", marks=pytest.mark.heavy),
    ],
)
def test_every_acknowledged_message_is_in_the_table_exactly_once_however_often_processes_are_killed(
    tmp_path: Path, victims: Sequence[str], count: int
) -> None:
    with running(tmp_path / "node") as node:
        define(node)
        _first_row(node)
        meters = [
            Meter("v311-qos1", paho.MQTTv311, 1, count, node.mqtt[1]),
            Meter("v311-qos2", paho.MQTTv311, 2, count, node.mqtt[1]),
            Meter("v5-qos1", paho.MQTTv5, 1, count, node.mqtt[1]),
            Meter("v5-qos2", paho.MQTTv5, 2, count, node.mqtt[1]),
        ]
        killed = threading.Event()
        threads = [
            threading.Thread(target=_publish_all, args=(meter, killed), name=meter.name)
            for meter in meters
        ]
        for thread in threads:
            thread.start()
        try:
            _kill_at_random(node, victims)
        finally:
            killed.set()
        for thread in threads:
            thread.join()
        _caught_up(node)
        _assert_tables_hold_everything_once(node, meters)


def _first_row(node: Node) -> None:
    """Wait until Spark runs and has committed something, so that there are processes to kill."""
    meter = Meter("warm-up", paho.MQTTv5, 1, 1, node.mqtt[1])
    client = meter.connect()
    meter.publish(client, 0)
    meter.publish(client, 7)
    eventually(lambda: meter.settled == 2, what="the first two messages to be acknowledged")
    client.disconnect()
    client.loop_stop()
    eventually(
        lambda: _rows(node, "readings") and _rows(node, "rejected"), 120, what="the first rows"
    )


def _publish_all(meter: Meter, killed: threading.Event) -> None:
    """Publish at a steady rate, the last fifth slowly until all kills have happened, so that they hit live traffic."""
    client = meter.connect()
    for seq in range(meter.count):
        meter.publish(client, seq)
        if seq > meter.count * 4 // 5:
            killed.wait(SLOW_INTERVAL_S)
        elif seq % 20 == 19:
            threading.Event().wait(20 / RATE_PER_CLIENT_S)
    eventually(
        lambda: meter.settled == meter.count, 240, what=f"all acknowledgements of {meter.name}"
    )
    client.disconnect()
    client.loop_stop()


def _kill_at_random(node: Node, victims: Sequence[str]) -> None:
    """Kill one after the other, every few seconds."""
    chance = random.Random(20261121)
    for victim in victims:
        threading.Event().wait(chance.uniform(1.0, 4.0))
        if victim == "broker":
            node.kill()
            node.start()
        else:
            _kill_spark(node, victim)


def _kill_spark(node: Node, victim: str) -> None:
    """Kill the lake job's driver, or one of the Python workers that run its tasks."""
    word = {"driver": "bridges.spark.job", "worker": "pyspark.worker"}[victim]

    def kill() -> bool:
        found = [process for process in node.children() if word in _command(process)]
        if not found:
            return False
        # The eldest is the driver, not the guard it forks; the youngest worker one that runs tasks, not their parent.
        pick = min if victim == "driver" else max
        with suppress(psutil.NoSuchProcess):
            pick(found, key=lambda process: process.create_time()).send_signal(signal.SIGKILL)
            return True
        return False

    try:
        eventually(kill, 120, what=f"a {victim} to kill")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_what_spark_does(node)}") from None


def _what_spark_does(node: Node) -> str:
    """The job's processes, how the tables are doing and the end of the job's log."""
    family = "\n".join(f"{process.pid} {_command(process)[:200]}" for process in node.children())
    log = (node.data_dir / "logs" / "lake.log").read_text(errors="replace")
    return f"children:\n{family}\ntables: {node.call('GET', '/lake/tables')}\nlog:\n{log[-6000:]}"


def _command(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def _rows(node: Node, table: str) -> int:
    path = node.data_dir / "lake" / table
    return (
        int(DeltaTable(str(path)).to_pyarrow_dataset().count_rows())
        if DeltaTable.is_deltatable(str(path))
        else 0
    )


def _caught_up(node: Node) -> None:
    def lag() -> bool:
        for stream in ("readings", "rejected"):
            positions = node.call("GET", f"/streams/{stream}/positions")["shards"]
            written = sum(int(shard["next_offset"]) for shard in positions)
            if _rows(node, stream) + _rows(node, f"{stream}__dead_letters") < written:
                return False
        return True

    eventually(lag, 180, 1.0, what="the tables to hold what the streams hold")


def _assert_tables_hold_everything_once(node: Node, meters: list[Meter]) -> None:
    lake = node.data_dir / "lake"
    found, rejected, dead = (
        DeltaTable(str(lake / name)).to_pyarrow_table()
        for name in ("readings", "rejected", "readings__dead_letters")
    )
    for meter in meters:
        assert meter.acknowledged | meter.refused == set(range(meter.count))
        kinds = {seq: payload(seq)[0] for seq in range(meter.count)}
        valid, misfits = (
            [seq for seq, kind in kinds.items() if kind == wanted] for wanted in ("valid", "misfit")
        )
        rows = found.filter(pc.equal(found["client"], meter.name))
        assert set(rows["site"].to_pylist()) == {meter.name}
        expected = {seq: row for seq, row in readings.rows_of(valid).items() if seq >= 0}
        readings.check(rows, expected, also=("client", "site"))
        letters = dead.filter(pc.equal(dead["_client_id"], meter.name))
        assert readings.errors_of(letters) == {seq: reason(seq) for seq in misfits}, meter.name
        raw = rejected.filter(pc.equal(rejected["client"], meter.name))["raw"].to_pylist()
        assert Counter(raw) == Counter(
            _as_text(seq) for seq, kind in kinds.items() if kind == "invalid"
        )
    _audit(node, "readings")
    _audit(node, "rejected")


def _as_text(seq: int) -> str:
    """The payload of an invalid message in a column of text."""
    data = payload(seq)[1]
    try:
        return data.decode()
    except UnicodeDecodeError:
        return json.dumps({"$base64": base64.b64encode(data).decode()}, separators=(",", ":"))


def _audit(node: Node, table: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", "audit", table, "--url", node.url],
        env=os.environ | {"SLUICE_API_TOKEN": TOKEN}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
