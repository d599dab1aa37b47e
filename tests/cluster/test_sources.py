"""Sources of a broker of two cells, as users run it: each record comes once, also over kills of the cell that reads."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from broker.core.cells import Place, cell_of_name
from tests.end_to_end.clients import Client
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.node import Node, eventually

OPTS = {"health_check_interval": "1s", "reconnect_interval": "100ms"}


def home_in(cell: int, count: int = 2) -> str:
    """A name of a connector whose sources run in that cell."""
    return next(
        name for name in (f"plant-{at}" for at in range(99)) if cell_of_name(name, count) == cell
    )


def client_in(cell: int, count: int = 2) -> str:
    place = Place(0, count, Path())
    return next(name for name in (f"s-{at}" for at in range(99)) if place.cell_of(name) == cell)


def read_by(node: Node, path: str = "/sources/in") -> dict[str, Any]:
    source: dict[str, Any] = node.call("GET", path)
    return source


def kill_cell(node: Node, cell: int) -> None:
    """Kill a cell, which may have been killed a moment ago and not be there again."""
    eventually(lambda: node.cell(cell)).send_signal(signal.SIGKILL)


class Readers:
    """A durable session in each cell, for what a rule makes of records."""

    def __init__(self, node: Node) -> None:
        self._clients = [
            Client(node, client_in(cell), is_clean=False, expiry_s=3600) for cell in (0, 1)
        ]
        for client in self._clients:
            client.subscribe("rows", 2)

    def expect(self, numbers: range) -> None:
        """Each session gets each number once."""
        for client in self._clients:
            got = [int(client.take().payload) for _ in numbers]
            assert sorted(got) == list(numbers)

    def are_quiet(self) -> None:
        for client in self._clients:
            assert client.messages.empty()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "node" / "data", config="lake.run_spark = false\n", workers=2)
    yield node
    if node.process is not None and node.process.poll() is None:
        node.stop()
    for cell in range(3):
        with suppress(OSError):
            node.cell(cell).kill()


def rule(node: Node, source: str, number: str) -> None:
    republish = {"type": "republish", "topic": "rows", "payload": number, "qos": 2}
    node.call("POST", "/rules", {"name": "all", "sql": source, "actions": [republish]})


def test_a_source_of_mqtt_runs_in_one_cell_and_moves_with_its_session(
    tmp_path: Path, node: Node
) -> None:
    remote = Node(tmp_path / "remote" / "data", config="lake.run_spark = false\n").start()
    try:
        node.start()
        name = home_in(1)
        server = f"{remote.mqtt[0]}:{remote.mqtt[1]}"
        connector = {
            "name": name, "type": "mqtt", "server": server, "clientid": "plant", "clean_start": False,
            "resource_opts": OPTS,
        }  # fmt: skip
        node.call("POST", "/connectors", connector)
        parameters = {"topic": "up/#", "qos": 2}
        source = {"name": "in", "type": "mqtt", "connector": name, "parameters": parameters}
        node.call("POST", "/sources", source)
        rule(node, 'SELECT payload AS n FROM "$bridges/mqtt:in"', "${n}")
        eventually(lambda: read_by(node)["status"] == "connected")
        assert read_by(node)["cell"] == 1
        [listed] = node.call("GET", "/sources")["items"]
        assert (listed["status"], listed["cell"]) == ("connected", 1)
        # one cell has the client identifier, and the other does not throw it out
        eventually(
            lambda: (
                sorted(row["clientid"] for row in remote.call("GET", "/clients")["items"])
                == ["plant", "plant-cell-0"]
            )
        )
        readers = Readers(node)
        with Client(remote, "sender") as sender:
            for number in range(40):
                sender.publish("up/a", str(number), 2)
                if number in (10, 25):
                    kill_cell(node, 1)
            eventually(lambda: read_by(node)["status"] == "connected", 120)
            [first, _] = readers._clients
            got = [int(first.take().payload) for _ in range(40)]
            assert sorted(got) == list(range(40))
            readers.close()
            # it goes on where it was with one cell more
            assert node.stop() == 0
            sender.publish("up/a", "40", 2)
            command = [
                sys.executable,
                "-m",
                "broker.cli.main",
                "cells",
                "resize",
                "3",
                "--data-dir",
            ]
            moved = subprocess.run(
                [*command, str(node.data_dir)], capture_output=True, text=True, check=False
            )
            assert moved.returncode == 0, moved.stderr
            node.workers = 3
            node.start()
            eventually(lambda: read_by(node)["status"] == "connected")
            assert read_by(node)["cell"] == cell_of_name(name, 3)
            sender.publish("up/a", "41", 2)
            again = Client(node, client_in(0), is_clean=False, expiry_s=3600)
            assert [int(again.take().payload) for _ in range(2)] == [40, 41]
            again.close()
    finally:
        remote.stop()


@pytest.mark.heavy
@pytest.mark.timeout(240)
def test_a_source_of_kafka_runs_in_one_cell(tmp_path: Path, node: Node) -> None:
    with Kafka(tmp_path / "kafka") as kafka:
        topic = asyncio.run(Topic(kafka, 3).make())
        node.start()
        name = home_in(1)
        hosts = kafka.bootstrap
        connector = {"name": name, "type": "kafka", "bootstrap_hosts": hosts, "resource_opts": OPTS}
        node.call("POST", "/connectors", connector)
        parameters = {
            "topics": [topic.name], "group_id": topic.name, "offset_reset_policy": "earliest",
            "session_timeout": "6s", "max_wait_time": "100ms",
        }  # fmt: skip
        source = {"name": "in", "type": "kafka", "connector": name, "parameters": parameters}
        node.call("POST", "/sources", source)
        rule(node, 'SELECT value AS n FROM "$bridges/kafka:in"', "${n}")
        readers = Readers(node)
        for turn in range(3):
            numbers = range(turn * 100, turn * 100 + 100)
            asyncio.run(topic.send(*(b"%d" % number for number in numbers)))
            if turn < 2:
                kill_cell(node, 1)
        [first, _] = readers._clients
        got = [int(first.take().payload) for _ in range(300)]
        assert sorted(got) == list(range(300))
        assert first.messages.empty()
        readers.close()
