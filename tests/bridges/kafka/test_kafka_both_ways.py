"""MQTT clients and a real Kafka on both sides of a whole broker: what comes from there passes every stage, and a
service behind Kafka answers where it was asked to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from broker.codec.packets import Connect, PubAck, Publish, SubscriptionRequest, Will
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.node import Node, eventually, running
from tests.support.waiting import within
from tests.support.wire import WireClient

CONFIG = """
lake.run_spark = false
schema_registry.schemas = [{ name = reading, type = json
  source = { type = object, required = [t], properties { t { type = number } } } }]
schema_validation.validations = [{ name = readings, topics = ["from/kafka"], strategy = all_pass, failure_action = drop
  checks = [{ type = json, schema = reading }] }]
"""
CORRELATION = bytes(range(256)) + b"more than Kafka's own fields would hold in other brokers"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def topics(kafka: Kafka) -> dict[str, Topic]:
    return {
        name: asyncio.run(Topic(kafka).make()) for name in ("rows", "asked", "answers", "readings")
    }


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, kafka: Kafka, topics: dict[str, Topic]
) -> Iterator[Node]:
    with running(tmp_path_factory.mktemp("node") / "data", config=CONFIG) as node:
        node.call(
            "POST",
            "/connectors",
            {"name": "plant", "type": "kafka", "bootstrap_hosts": kafka.bootstrap},
        )
        reads: dict[str, Any] = {
            "offset_reset_policy": "earliest",
            "max_wait_time": "100ms",
            "publish": {},
        }
        for name in ("answers", "readings"):
            parameters = {**reads, "topics": [topics[name].name], "group_id": name}
            spec = {"name": name, "type": "kafka", "connector": "plant", "parameters": parameters}
            node.call("POST", "/sources", spec)
        for name, message in (
            ("rows", {"key": "${clientid}", "value": "${payload}"}),
            ("asked", {}),
        ):
            parameters = {"topic": topics[name].name, "message": message}
            spec = {"name": name, "type": "kafka", "connector": "plant", "parameters": parameters}
            node.call("POST", "/actions", spec)
            sql = f"SELECT * FROM \"{name}/#\" WHERE topic <> '{name}/not'"
            node.call("POST", "/rules", {"name": name, "sql": sql, "actions": [f"kafka:{name}"]})
        eventually(
            lambda: (
                {one["status"] for one in node.call("GET", "/actions")["items"]} == {"connected"}
            )
        )
        yield node


async def connected(node: Node, client_id: str, **members: Any) -> WireClient:
    return await WireClient.connected(node.mqtt[1], Connect(client_id, 5, **members))


def test_each_publish_that_matches_is_one_record_with_its_key(
    node: Node, topics: dict[str, Topic]
) -> None:
    async def check() -> None:
        async with await connected(node, "press-7") as client:
            for number in range(1, 21):
                topic = "rows/not" if number % 4 == 0 else f"rows/{number}"
                client.send(Publish(topic, b"%d" % number, 1, packet_id=number))
                await client.expect(PubAck)

    asyncio.run(check())
    eventually(lambda: node.call("GET", "/actions/rows")["metrics"]["success"] == 15)
    records = asyncio.run(topics["rows"].records())
    assert [int(one.value) for one in records] == [number for number in range(1, 21) if number % 4]
    assert {one.key for one in records} == {b"press-7"}


def test_records_pass_every_stage_and_carry_the_identifiers_of_subscriptions(
    node: Node, topics: dict[str, Topic]
) -> None:
    async def check() -> None:
        async with await connected(node, "reader") as reader:
            await reader.subscribe(SubscriptionRequest("from/#", 1), identifier=7)
            headers = [("mqtt.topic", b"from/kafka")]
            await topics["readings"].send(
                b'{"t": 1}', b'{"t": "hot"}', b'{"t": 2}', headers=headers
            )
            got = [await reader.expect(Publish) for _ in range(2)]
        assert [one.payload for one in got] == [b'{"t": 1}', b'{"t": 2}']
        assert [one.properties["Subscription-Identifier"] for one in got] == [[7], [7]]

    asyncio.run(check())
    counted = node.call("GET", "/validations/readings/metrics")
    assert (counted["matched"], counted["succeeded"], counted["failed"]) == (3, 2, 1)
    eventually(lambda: node.call("GET", "/sources/readings")["metrics"]["refused"] == 1)


class Service(threading.Thread):
    """Answers each request in Kafka where its headers say, knowing nothing of MQTT but that."""

    def __init__(self, kafka: Kafka, asked: Topic, answers: Topic, count: int) -> None:
        super().__init__(name="service behind Kafka")
        self._where, self._asked, self._answers, self._count = (
            kafka.bootstrap,
            asked,
            answers,
            count,
        )

    def run(self) -> None:
        asyncio.run(within(self._serve(), DEADLINE_S))

    async def _serve(self) -> None:
        consumer = AIOKafkaConsumer(
            self._asked.name,
            bootstrap_servers=self._where,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with consumer, AIOKafkaProducer(bootstrap_servers=self._where) as producer:
            for _ in range(self._count):
                record = await consumer.getone()
                told = dict(record.headers)
                headers = [
                    ("mqtt.topic", told["reply-to"]),
                    ("correlation-id", told["correlation-id"]),
                ]
                await producer.send_and_wait(
                    self._answers.name, b"answer to " + told["mqtt.topic"], headers=headers
                )


def test_a_service_behind_kafka_answers_publishes_and_wills(
    kafka: Kafka, node: Node, topics: dict[str, Topic]
) -> None:
    service = Service(kafka, topics["asked"], topics["answers"], 2)
    service.start()
    asked = {"Response-Topic": "answers/press-7", "Correlation-Data": CORRELATION}

    async def check() -> None:
        async with await connected(node, "asker") as asker:
            await asker.subscribe(SubscriptionRequest("answers/press-7", 1))
            asker.send(Publish("asked/publish", b"", 1, packet_id=1, properties=asked))
            await asker.expect(PubAck)
            first = await asker.expect(Publish)
            dying = await connected(node, "dying", will=Will("asked/will", b"", 1, False, asked))
            dying.abort()
            second = await asker.expect(Publish)
        assert [one.payload for one in (first, second)] == [
            b"answer to asked/publish",
            b"answer to asked/will",
        ]
        assert {one.properties["Correlation-Data"] for one in (first, second)} == {CORRELATION}

    asyncio.run(check())
    service.join(DEADLINE_S)
    assert not service.is_alive()
