"""A Kafka that is absent and comes later: what the default settings do with the rows meanwhile."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.end_to_end.test_bridge_buffers import publish
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.node import Node, eventually, running
from tests.support.processor import Stopwatch

DISCONNECTED = "action_disconnected:kafka:rows"
DROPPING = "action_dropping:kafka:rows"
TOLD_WITHIN_S = 10.0
"""Without what the broker waited for a processor."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with running(tmp_path / "data") as node:
        yield node


def define(node: Node, kafka: Kafka, topic: str, **options: Any) -> None:
    node.call(
        "POST",
        "/connectors",
        {"name": "plant", "type": "kafka", "bootstrap_hosts": kafka.bootstrap},
    )
    action = {"name": "rows", "type": "kafka", "connector": "plant", "parameters": {"topic": topic}}
    node.call("POST", "/actions", {**action, **({"resource_opts": options} if options else {})})
    rule = {"name": "all", "sql": 'SELECT payload.n AS n FROM "n/#"', "actions": ["kafka:rows"]}
    node.call("POST", "/rules", rule)


def metrics(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", "/actions/rows")["metrics"]
    return found


def alarms(node: Node) -> list[str]:
    found: list[str] = node.call("GET", "/status")["health"]["alarms"]
    return found


async def records(kafka: Kafka, topic: str) -> list[int]:
    partition = TopicPartition(topic, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        found: list[int] = []
        while len(found) < end:
            batch = await consumer.getmany(partition, timeout_ms=1000)
            found += [json.loads(record.value)["n"] for record in batch.get(partition, [])]
        return found
    finally:
        await consumer.stop()


def test_rows_wait_for_an_absent_kafka_and_arrive_when_it_comes(node: Node, tmp_path: Path) -> None:
    kafka = Kafka(tmp_path / "kafka")
    define(node, kafka, "rows")
    watch = Stopwatch(node.pid)
    publish(node, range(5))
    assert (metrics(node)["queuing"], metrics(node)["inflight"]) == (5, 0)
    eventually(lambda: DISCONNECTED in alarms(node), what="the alarm")
    assert watch.elapsed_s() < TOLD_WITHIN_S
    health = node.call("GET", "/status")["health"]
    assert health["says"] == "degraded: 1 alarm"
    node.kill()  # the rows are on disk
    node.start()
    assert (metrics(node)["queuing"], metrics(node)["inflight"]) == (5, 0)
    with kafka:
        asyncio.run(Topic(kafka, name="rows").make())
        eventually(lambda: metrics(node)["success"] == 5, what="rows confirmed")
        assert sorted(asyncio.run(records(kafka, "rows"))) == list(range(5))
        eventually(lambda: alarms(node) == [], what="the alarm is over")
    status = node.call("GET", "/status")
    assert status["ledger"]["lost_rows"] == 0
    assert status["lost_rows"] == {}


def test_a_full_buffer_is_an_alarm_and_stands_in_the_ledger(node: Node, tmp_path: Path) -> None:
    define(node, Kafka(tmp_path / "kafka"), "rows", max_buffer_records=3)
    publish(node, range(5))
    watch = Stopwatch(node.pid)
    eventually(lambda: {DISCONNECTED, DROPPING} <= set(alarms(node)), what="both alarms")
    assert watch.elapsed_s() < TOLD_WITHIN_S
    status = node.call("GET", "/status")
    assert status["ledger"]["lost_rows"] == 2
    assert status["lost_rows"] == {"queue_full": 2}
    assert status["ledger"]["residual"] == 0
    text = next(
        one["message"] for one in node.call("GET", "/alarms")["items"] if one["name"] == DROPPING
    )
    assert "2" in text
    assert "queue_full" in text
