"""Streams whose older records are in an S3 store: read back as published, by all ways, also after kills and outages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.fs as fs
import pytest

from pyspark_sluice.client import StreamClient
from tests.end_to_end.clients import Client
from tests.end_to_end.test_stream_files import sluice
from tests.support.failing_proxy import FailingProxy
from tests.support.node import TOKEN, Node, eventually, running
from tests.support.s3_server import KEYS, S3Server

CONFIG = """
overload.enable = false
stream_defaults {{ retention_interval = 200ms, sealing_interval = 100ms }}
lake.stores = [{{
  url = "s3://tiers", endpoint = "{endpoint}", region = "us-east-1"
  access_key_id = "${{env:SLUICE_SECRET_KEY}}", secret_access_key = "${{env:SLUICE_SECRET_SECRET}}"
}}]
"""
STREAM = {
    "name": "kept",
    "topics": ["n/#"],
    "shards": 2,
    "retention": {"age": "1s"},
    "tier": {"url": "s3://tiers/streams", "after": "1s"},
}
ENVIRON = {
    "SLUICE_SECRET_KEY": KEYS["access_key_id"],
    "SLUICE_SECRET_SECRET": KEYS["secret_access_key"],
}


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as running_store:
        running_store.make_bucket("tiers")
        yield running_store


@pytest.fixture
def proxy(s3: S3Server, tmp_path: Path) -> Iterator[FailingProxy]:
    with FailingProxy(s3.port, tmp_path) as running_proxy:
        yield running_proxy


@pytest.fixture
def node(proxy: FailingProxy, tmp_path: Path) -> Iterator[Node]:
    config = CONFIG.format(endpoint=proxy.endpoint)
    with running(tmp_path / "data", config=config, environ=ENVIRON) as started:
        started.call("POST", "/streams", STREAM)
        yield started


def payload(number: int) -> bytes:
    """Bytes that no text has, and of many sizes."""
    return b"\xff\x00%d" % number + b"x" * (number % 300)


def publish(node: Node, numbers: Sequence[int]) -> None:
    """Acknowledged messages of three clients, on ten topics."""
    for name in range(3):
        with Client(node, f"client-{name + 3}") as client:  # of both shards
            for number in numbers[name::3]:
                client.publish(
                    f"n/{number % 10}", payload(number), 1, UserProperty=[("n", str(number))]
                )


def state(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", "/streams/kept")
    return found


def local(node: Node) -> int:
    """How many records are in the data directory."""
    return int(state(node)["records"])


def tiered(node: Node) -> int:
    return sum(int(one["next_offset"]) for one in state(node)["tier_state"]["positions"])


def is_moved(node: Node, count: int) -> bool:
    """Whether so many records are in the tier and none in the data directory."""
    return tiered(node) == count and local(node) == 0


def read(node: Node, topic_filter: str | None = None) -> list[tuple[int, int, str, bytes]]:
    """All records, as Spark's workers read them: shard, offset, topic, payload."""
    client = StreamClient(node.url, TOKEN, "kept", 30)
    where = client.positions()
    found = []
    for shard in where.shards:
        for batch in client.read(where, shard.shard, shard.first, shard.next, topic_filter):
            columns = [batch.column(name).to_pylist() for name in ("offset", "topic", "payload")]
            found += [(shard.shard, *row) for row in zip(*columns, strict=True)]
    return found


def check_all(node: Node, count: int) -> None:
    """Every message once, in the order of its shard and of its client."""
    found = read(node)
    numbers = [number_of(body) for *_, body in found]
    assert sorted(numbers) == list(range(count))
    for shard in range(2):
        rows = [row for row in found if row[0] == shard]
        assert [offset for _, offset, *_ in rows] == list(range(len(rows)))
        for name in range(3):
            own = [n for n in (number_of(body) for *_, body in rows) if n % 3 == name]
            assert own == sorted(own)
    assert all(body == payload(number_of(body)) for *_, body in found)
    assert all(topic == f"n/{number_of(body) % 10}" for _, _, topic, body in found)


def number_of(body: bytes) -> int:
    return int(body[2:].rstrip(b"x"))


def objects(s3: S3Server, folder: str = "tiers/streams/kept") -> list[str]:
    selector = fs.FileSelector(folder, recursive=True, allow_not_found=True)
    return sorted(
        one.path for one in s3.files.get_file_info(selector) if one.type == fs.FileType.File
    )


def ranges_process(node: Node) -> int | None:
    for one in node.children():
        with suppress(psutil.Error):  # it is ending
            if "broker.streams.server" in one.cmdline():
                return int(one.pid)
    return None


def is_replaced(node: Node, pid: int) -> bool:
    return ranges_process(node) not in (None, pid)


def alarms(node: Node) -> list[str]:
    return [one["name"] for one in node.call("GET", "/alarms")["items"]]


def test_what_is_in_the_tier_is_read_as_it_was_published_by_all_ways(
    node: Node, s3: S3Server, tmp_path: Path
) -> None:
    publish(node, range(300))
    eventually(partial(is_moved, node, 300))
    publish(node, range(300, 600))
    eventually(partial(is_moved, node, 600))
    shown = state(node)
    assert shown["tier"] == {
        "url": "s3://tiers/streams",
        "after": "1s",
        "retention": "infinity",
        "unread_bytes": 10 * 1024**3,
    }
    assert shown["tier_state"]["state"] == "running"
    assert shown["tier_state"]["bytes"] == sum(
        s3.files.get_file_info(one).size for one in objects(s3)
    )
    assert [
        one["first_offset"] for one in node.call("GET", "/streams/kept/positions")["shards"]
    ] == ["0", "0"]
    check_all(node, 600)
    found = read(node)
    assert [row for row in found if row[2] == "n/7"] == read(node, "n/7")

    file = tmp_path / "kept.ndjson"
    assert "wrote 600 records" in sluice(node, "export", "kept", str(file))
    assert len(file.read_text().splitlines()) == 600

    for shard in range(2):
        rows = [row for row in found if row[0] == shard]
        page = node.call("GET", f"/streams/kept/records?shard={shard}&from=10&limit=20&raw=true")
        assert [one["offset"] for one in page["items"]] == [str(offset) for offset in range(10, 30)]
        assert page["total"] == len(rows)
        at = page["items"][5]["at"]
        begin = node.call("GET", f"/streams/kept/positions?at={at}")["shards"][shard]["at_offset"]
        timed = node.call("GET", f"/streams/kept/records?shard={shard}&from={at}&limit=1")["items"][
            0
        ]
        assert (timed["at"], timed["offset"]) == (at, begin)
        seven = node.call("GET", f"/streams/kept/records?shard={shard}&filter=n/7&limit=1000")
        assert [int(one["offset"]) for one in seven["items"]] == [
            row[1] for row in rows if row[2] == "n/7"
        ]
    assert "n/7" in sluice(node, "records", "kept", "--filter", "n/7", "--limit", "3")

    node.call("POST", "/streams", {"name": "copy", "topics": ["none"]})
    node.call("POST", "/streams/kept:replay", {"to": "stream:copy"})
    assert node.call("GET", "/streams/copy")["records"] == 600

    metrics = {
        one.split()[0]: one.split()[1]
        for one in _metrics(node)
        if one.startswith("sluice_stream_tier")
    }
    assert float(metrics["sluice_stream_tier_segments_uploaded_total"]) == len(objects(s3))
    refused = {**STREAM, "tier": {"url": "s3://tiers/other"}}
    assert "/tier/url" in json.dumps(node.call("PUT", "/streams/kept", refused, expect=422))
    for secret in KEYS.values():
        assert secret not in json.dumps(shown)
        assert secret not in node.log.read_text()

    node.kill()
    node.start()
    check_all(node, 600)
    node.call("DELETE", "/streams/kept")
    eventually(lambda: objects(s3) == [])


def test_while_the_store_is_away_nothing_is_lost_and_an_alarm_says_so(
    node: Node, proxy: FailingProxy
) -> None:
    publish(node, range(150))
    eventually(lambda: tiered(node) == 150)
    proxy.down()
    publish(node, range(150, 300))
    eventually(lambda: state(node)["tier_state"]["state"] == "failing", timeout_s=120)
    assert state(node)["tier_state"]["problem"].startswith(
        "the store of s3://tiers/streams does not answer"
    )
    assert "tier_failing:kept" in alarms(node)
    eventually(lambda: local(node) == 150)  # older than the retention, and kept
    with node.client() as client:
        answer = client.get("/streams/kept/records?limit=1")
    assert answer.status_code == 503
    assert "does not answer" in answer.text
    node.kill()
    node.start()
    assert local(node) == 150
    proxy.up()
    eventually(partial(is_moved, node, 300), timeout_s=120)
    assert state(node)["tier_state"]["state"] == "running"
    eventually(lambda: alarms(node) == [])
    check_all(node, 300)


def test_killed_in_the_middle_of_an_upload_it_goes_on_with_what_is_there(
    node: Node, proxy: FailingProxy, s3: S3Server
) -> None:
    count = 0
    for holds in ("before", "after"):
        held = proxy.fail(method="PUT", holds=holds, times=1)
        publish(node, range(count, count + 150))
        count += 150
        eventually(partial(proxy.met_by, held))
        before = eventually(partial(ranges_process, node))
        assert before is not None
        os.kill(before, signal.SIGKILL)
        proxy.heal(held)
        eventually(partial(is_replaced, node, before))
        eventually(partial(is_moved, node, count))
        check_all(node, count)
    held = proxy.fail(method="PUT", holds="after", times=1)
    publish(node, range(count, count + 150))
    eventually(lambda: proxy.met_by(held))
    node.kill()
    proxy.heal(held)
    node.start()
    eventually(partial(is_moved, node, count + 150))
    check_all(node, count + 150)
    epoch = state(node)["epoch"]
    for shard in range(2):
        names = [Path(one).name for one in objects(s3, f"tiers/streams/kept/{epoch}/{shard:04d}")]
        bounds = [(int(name[:18]), int(name[19:37]) + 1) for name in names]
        assert [start for start, _ in bounds] == [0, *(end for _, end in bounds[:-1])]


def _metrics(node: Node) -> list[str]:
    with node.client() as client:
        return client.get(f"{node.url}/metrics").text.splitlines()


@pytest.mark.spark
@pytest.mark.heavy
def test_spark_reads_tier_and_data_directory_as_one(node: Node) -> None:
    publish(node, range(600))
    eventually(partial(is_moved, node, 600))
    publish(node, range(600, 900))
    script = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").getOrCreate()
reader = spark.read.format("sluice").option("url", sys.argv[1]).option("token", sys.argv[2]).option("stream", "kept")
for row in reader.option("partitions", 3).load().select("shard", "offset", "topic", "payload").collect():
    print("row", row.shard, row.offset, row.topic, row.payload.hex())
"""
    command = [sys.executable, "-c", script, node.url, TOKEN]
    environ = os.environ | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=True
    )
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("row ")]
    rows = sorted(
        (int(shard), int(offset), topic, bytes.fromhex(body))
        for shard, offset, topic, body in lines
    )
    assert rows == sorted(read(node))
    assert sorted(number_of(row[3]) for row in rows) == list(range(900))
