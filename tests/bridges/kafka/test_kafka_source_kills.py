"""Records of Kafka in a stream of a whole broker, each exactly once: ``kill -9`` of the broker, leaders that move, and
records that nobody can read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer

from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.node import Node, eventually, running

PARTITIONS = 3
OPTS = {"health_check_interval": "1s", "reconnect_interval": "100ms"}

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with Kafka(tmp_path_factory.mktemp("kafka") / "cluster", brokers=2) as started:
        yield started


class Writing(threading.Thread):
    """Numbers into a topic, each once, until it is told to stop."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(name="writer of numbers")
        self._topic, self._goes_on = topic, True
        self.count = 0

    def stop(self) -> int:
        """How many there are."""
        self._goes_on = False
        self.join(60)
        return self.count

    def run(self) -> None:
        asyncio.run(self._write())

    async def _write(self) -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=self._topic.kafka.bootstrap, enable_idempotence=True
        ) as producer:
            while self._goes_on:
                value = b'{"n": %d}' % self.count
                await producer.send_and_wait(
                    self._topic.name, value, partition=self.count % PARTITIONS
                )
                self.count += 1


@contextmanager
def reading(directory: Path, topic: Topic) -> Iterator[Node]:
    """A broker whose rule puts what a source reads into the stream ``rows``."""
    with running(directory / "node", config="lake.run_spark = false\n") as node:
        hosts = topic.kafka.bootstrap
        node.call(
            "POST",
            "/connectors",
            {"name": "plant", "type": "kafka", "bootstrap_hosts": hosts, "resource_opts": OPTS},
        )
        parameters = {
            "topics": [topic.name],
            "group_id": topic.name,
            "offset_reset_policy": "earliest",
            "value_encoding": "json",
            "session_timeout": "6s",
            "max_wait_time": "100ms",
        }
        source = {"name": "in", "type": "kafka", "connector": "plant", "parameters": parameters}
        node.call("POST", "/sources", source)
        node.call("POST", "/streams", {"name": "rows"})
        rule = {
            "name": "all",
            "sql": 'SELECT value.n AS n, partition, error FROM "$bridges/kafka:in"',
            "actions": [{"type": "stream", "stream": "rows"}],
        }
        node.call("POST", "/rules", rule)
        yield node


def row_count(node: Node) -> int:
    shards = node.call("GET", "/streams/rows/positions")["shards"]
    return sum(int(shard["next_offset"]) for shard in shards)


def rows(node: Node) -> list[dict[str, Any]]:
    with node.client(follow_redirects=True) as api:
        answer = api.get("/streams/rows/records", params={"from": 0, "to": row_count(node)})
    payloads = pa.ipc.open_stream(answer.content).read_all()["payload"].to_pylist()
    return [json.loads(payload) for payload in payloads]


def assert_each_once_in_order(found: list[dict[str, Any]], count: int) -> None:
    assert sorted(row["n"] for row in found) == list(range(count))
    for partition in range(PARTITIONS):
        numbers = [row["n"] for row in found if row["partition"] == partition]
        assert numbers == sorted(numbers)


def test_each_record_is_in_the_stream_once_over_kills_of_the_broker(
    kafka: Kafka, tmp_path: Path
) -> None:
    topic = asyncio.run(Topic(kafka, PARTITIONS, copies=2).make())
    with reading(tmp_path, topic) as node:
        writing = Writing(topic)
        writing.start()
        for _ in range(3):
            before = row_count(node)
            eventually(lambda before=before: row_count(node) > before + 100)  # type: ignore[misc]
            node.kill()
            node.start()
        count = writing.stop()
        eventually(lambda: row_count(node) >= count)
        assert_each_once_in_order(rows(node), count)


def test_each_record_is_in_the_stream_once_when_leaders_move(kafka: Kafka, tmp_path: Path) -> None:
    topic = asyncio.run(Topic(kafka, PARTITIONS, copies=2).make())
    with reading(tmp_path, topic) as node:
        writing = Writing(topic)
        writing.start()
        eventually(lambda: row_count(node) > 100)
        leader = asyncio.run(topic.leader())
        [broker] = [one for one in kafka.nodes if one.number == leader]
        broker.process.kill()
        try:
            before = row_count(node)
            eventually(lambda: row_count(node) > before + 200)
            count = writing.stop()
            eventually(lambda: row_count(node) >= count)
        finally:
            broker.process.start()
        assert_each_once_in_order(rows(node), count)


def test_a_record_that_cannot_be_read_holds_up_no_others(kafka: Kafka, tmp_path: Path) -> None:
    topic = asyncio.run(Topic(kafka, PARTITIONS, copies=2).make())
    asyncio.run(topic.send(b'{"n": 0}', b"{", b"\xff\x00", None, b'{"n": 1}', key=b"k"))
    with reading(tmp_path, topic) as node:
        eventually(lambda: row_count(node) == 5)
        found = rows(node)
        assert [row.get("n") for row in found] == [0, None, None, None, 1]
        assert [bool(row.get("error")) for row in found] == [False, True, True, False, False]
