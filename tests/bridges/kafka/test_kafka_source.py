"""Records of a real Kafka as messages, once each, over crashes, rebalances and topics that are made anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import Any

import pytest

from broker.codec.encode import encode_packet
from broker.codec.packets import Publish
from broker.core.client import Client
from broker.core.message import Message
from broker.storage.memory import MemoryStore
from tests.support.bridges import FAST_CONNECTOR, Bridges
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until


def read(bridges: Bridges, topic: Topic, name: str = "in", **parameters: Any) -> None:
    """A source of the topic, from its start."""
    hosts = topic.kafka.bootstrap
    if not bridges.connectors.list():
        bridges.connectors.create(
            {
                "name": "plant",
                "type": "kafka",
                "bootstrap_hosts": hosts,
                "resource_opts": FAST_CONNECTOR,
            }
        )
    given = {
        "topics": [topic.name],
        "offset_reset_policy": "earliest",
        "max_wait_time": "100ms",
        "publish": {},
    }
    bridges.sources.create(
        {
            "name": name,
            "type": "kafka",
            "connector": "plant",
            "parameters": {
                **given,
                "group_id": f"g-{topic.name}",
                "commit_interval": "50ms",
                "session_timeout": "6s",
                **parameters,
            },
            "resource_opts": {"health_check_interval": "200ms"},
        }
    )


@asynccontextmanager
async def reading(topic: Topic, **parameters: Any) -> AsyncIterator[Bridges]:
    bridges = Bridges()
    bridges.begin()
    try:
        read(bridges, topic, **parameters)
        yield bridges
    finally:
        await bridges.end()


async def payloads(bridges: Bridges, count: int) -> list[bytes]:
    await bridges.until(lambda: len(bridges.published.messages) >= count, f"{count} messages")
    return [message.payload for message in bridges.published.messages]


async def only(bridges: Bridges) -> Message:
    await bridges.until(lambda: bridges.published.messages)
    return bridges.published.messages[0]


@on_loop
async def test_records_are_published_in_order_and_told_to_kafka_when_they_are_kept(
    kafka: Kafka,
) -> None:
    topic = await Topic(kafka).make()
    await topic.send(*(b"%d" % number for number in range(500)))
    async with reading(topic) as bridges:
        assert await payloads(bridges, 500) == [b"%d" % number for number in range(500)]
        assert {message.topic for message in bridges.published.messages} == {topic.name}

        async def are_committed() -> bool:
            return await topic.committed_offset(f"g-{topic.name}") == 500

        await until(are_committed)
        shown = bridges.sources.get("in")
        assert (shown["status"], shown["metrics"]["success"]) == ("connected", 500)


@on_loop
async def test_a_source_knows_how_many_records_it_has_not_read(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(*[b"%d" % number for number in range(7)])
    async with reading(topic) as bridges:

        def lag() -> Any:
            return bridges.sources.metrics("in")["lag_records"]

        await payloads(bridges, 7)
        await bridges.until(lambda: lag() == 0)
        bridges.sources.pause("in")
        sent = 7

        async def more() -> Any:
            nonlocal sent
            # the first ones may go to a read that had begun before the pause
            await topic.send(b"another")
            sent += 1
            return lag()

        await until(more)
        metrics = bridges.services.monitoring.metrics
        before = bridges.sources.metrics("in")["lag_as_of"]
        # the consumer fetches nothing more
        await topic.send(*[b"%d" % number for number in range(300)])
        sent += 300
        await bridges.until(lambda: lag() == sent - len(bridges.published.messages))
        assert lag() >= 300
        assert bridges.sources.metrics("in")["lag_as_of"] > before
        assert metrics.value("source_lag_records", source="kafka:in") == lag()
        bridges.sources.resume("in")
        await payloads(bridges, sent)
        await bridges.until(lambda: lag() == 0)
        await bridges.connectors.stop("plant")
        assert lag() is None
        assert bridges.sources.metrics("in")["lag_as_of"] is None
        assert isnan(metrics.value("source_lag_records", source="kafka:in"))


@on_loop
async def test_headers_become_the_properties_they_were(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    headers = [
        ("mqtt.topic", b"plant/7"),
        ("mqtt.clientid", b"c7"),
        ("mqtt.qos", b"2"),
        ("mqtt.retain", b"1"),
        ("content-type", b"application/json"),
        ("correlation-id", bytes(range(256)) + b"x" * 44),
        ("reply-to", b"answers/7"),
        ("mqtt.payload-format", b"1"),
        ("mqtt.expires-at", b"%d" % (int(datetime.now(UTC).timestamp()) * 1000 + 3_600_000)),
        ("mqtt.up.reply-to", b"mine"),
        ("k", b"v"),
        ("k", b"w"),
        ("raw", b"\xff\x00"),
    ]
    await topic.send(b"{}", headers=headers)
    async with reading(topic, publish={"retain": True, "client_properties": True}) as bridges:
        message = await only(bridges)
    assert (message.topic, message.payload, message.qos, message.retain) == (
        "plant/7",
        b"{}",
        1,
        True,
    )
    properties = dict(message.properties or {})
    assert 3500 < properties.pop("Message-Expiry-Interval") <= 3600
    assert properties == {
        "Content-Type": "application/json",
        "Correlation-Data": bytes(range(256)) + b"x" * 44,
        "Response-Topic": "answers/7",
        "Payload-Format-Indicator": 1,
        "User-Property": [
            ("mqtt.clientid", "c7"),
            ("reply-to", "mine"),
            ("k", "v"),
            ("k", "w"),
            ("raw;b64", "/wA="),
        ],
    }


@on_loop
async def test_the_time_of_the_publish_comes_along_where_it_is_wanted(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b"{}", headers=[("k", b"v")], timestamp_ms=1_700_000_000_123)
    async with reading(topic, publish={"time_property": True}) as bridges:
        message = await only(bridges)
    assert message.properties == {"User-Property": [("k", "v"), ("mqtt.ts", "1700000000123")]}


@pytest.mark.parametrize(
    ("name", "value", "left"),
    [
        ("mqtt.topic", None, {}),
        ("mqtt.expires-at", None, {"User-Property": [("mqtt.expires-at", "")]}),
        ("mqtt.expires-at", b"9" * 5000, {"User-Property": [("mqtt.expires-at", "9" * 5000)]}),
        ("correlation-id", None, {"Correlation-Data": b""}),
        ("k", None, {"User-Property": [("k", "")]}),
        ("correlation-id", b"c" * 65_536, {}),
        ("content-type", b"c" * 65_536, {}),
        ("k", b"v" * 65_536, {}),
        ("k", b"\xff" * 60_000, {}),
        ("n" * 65_536, b"v", {}),
        ("a\0b", b"v", {}),
    ],
    ids=[
        *(
            "null topic",
            "null expiry",
            "endless expiry",
            "null correlation",
            "null property",
            "long correlation",
        ),
        *(
            "long content type",
            "long property",
            "long binary",
            "long name",
            "null character in a name",
        ),
    ],
)
@on_loop
async def test_headers_that_no_property_can_hold_stop_nothing(
    kafka: Kafka, name: str, value: bytes | None, left: dict[str, Any]
) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b"odd", headers=[(name, value)])
    async with reading(topic, publish={"topic": "in"}) as bridges:
        message = await only(bridges)
        found = dict(message.properties or {})
        assert (message.payload, found) == (b"odd", left)
        assert encode_packet(Publish("in", b"odd", properties=found), 5)


@on_loop
async def test_templates_make_topic_and_payload(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b'{"site": "a", "temp": 21}', key=b"k1")
    publish = {"topic": "in/${value.site}/${key}", "payload": "${value.temp}", "qos": 0}
    async with reading(topic, value_encoding="json", publish=publish) as bridges:
        message = await only(bridges)
    assert (message.topic, message.payload, message.qos) == ("in/a/k1", b"21", 0)


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("encoding", "key", "value"),
    [("base64", "aw==", "/w=="), ("none", b"\xfe", b"\xff"), ("none", "k", "é")],
)
@on_loop
async def test_rules_read_what_comes_in_without_publishing_it(
    kafka: Kafka, encoding: str, key: str | bytes, value: str | bytes
) -> None:
    """What is not UTF-8 is bytes."""
    topic = await Topic(kafka).make()
    seen: list[dict[str, Any]] = []
    bridges = Bridges()
    bridges.services.messaging.events.want(frozenset(("$bridges/kafka:in",)))
    bridges.services.messaging.events.listen(
        lambda name, columns, about: seen.append(dict(columns))
    )
    bridges.begin()
    try:
        data, key_data = (b"\xff", b"k") if encoding == "base64" else (_bytes(value), _bytes(key))
        headers = [("h", b"\xfe"), ("h", b"2")]
        await topic.send(data, None, key=key_data, headers=headers, timestamp_ms=1_700_000_000_000)
        read(bridges, topic, key_encoding=encoding, value_encoding=encoding, publish=None)
        await bridges.until(lambda: len(seen) == 2)
    finally:
        await bridges.end()
    assert seen[0] == {
        "key": key,
        "value": value,
        "headers": {"h": "2"},
        "header_list": [{"key": "h", "value": b"\xfe"}, {"key": "h", "value": "2"}],
        "topic": topic.name,
        "partition": 0,
        "offset": 0,
        "ts": 1_700_000_000_000,
        "ts_type": "create",
    }
    assert seen[1]["value"] is None
    assert bridges.published.messages == []


@on_loop
async def test_a_value_that_cannot_be_decoded_is_told_and_passed_on_as_it_came(
    kafka: Kafka,
) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b"{", b"1")
    async with reading(topic, value_encoding="json") as bridges:
        assert await payloads(bridges, 2) == [b"{", b"1"]


@on_loop
async def test_a_service_behind_kafka_answers_where_it_was_asked_to(kafka: Kafka) -> None:
    requests, answers = await Topic(kafka).make(), await Topic(kafka).make()
    properties = {"Response-Topic": "answers/7", "Correlation-Data": b"\x00" * 300}
    async with reading(answers) as bridges:
        parameters = {"topic": requests.name}
        bridges.actions.create(
            {"name": "ask", "type": "kafka", "connector": "plant", "parameters": parameters}
        )
        sink = bridges.services.endpoints.sinks.find("kafka:ask")
        assert sink is not None
        sink.write({}, Message("ask", b"", 1, False, Client("c"), 0, properties), bridges.settle)
        await bridges.until_sent(1, action="ask")
        [request] = await requests.records()
        asked = dict(request.headers)
        told = [("mqtt.topic", asked["reply-to"]), ("correlation-id", asked["correlation-id"])]
        await answers.send(b"42", headers=told)
        message = await only(bridges)
    assert (message.topic, message.payload) == ("answers/7", b"42")
    assert dict(message.properties or {}) == {"Correlation-Data": b"\x00" * 300}


@on_loop
async def test_a_topic_that_is_none_holds_up_no_others(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b"wild", headers=[("mqtt.topic", b"a/#")])
    await topic.send(b"long", headers=[("mqtt.topic", b"x" * 70_000)])
    await topic.send(b"well", headers=[("mqtt.topic", b"a"), ("reply-to", b"answers/+")])
    async with reading(topic) as bridges:
        message = await only(bridges)
    assert (message.topic, message.payload) == ("a", b"well")
    assert dict(message.properties or {}) == {"User-Property": [("reply-to", "answers/+")]}


@on_loop
async def test_a_message_whose_life_is_over_is_not_published(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b"old", headers=[("mqtt.expires-at", b"1000")])
    await topic.send(b"new")
    async with reading(topic) as bridges:
        assert await payloads(bridges, 1) == [b"new"]


@on_loop
async def test_after_a_crash_records_are_taken_once(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(*(b"%d" % number for number in range(50)))
    store, sections = MemoryStore(), dict[str, Any]()
    first = Bridges(store=store, sections=sections)
    first.begin()
    read(first, topic, commit_interval="1h")  # Kafka is told nothing
    assert len(await payloads(first, 50)) == 50
    await first.until(lambda: first.sources.metrics("in")["success"] == 50)
    for running in first.feature.resources.supervisors.values():
        for task in asyncio.all_tasks():
            if running and task is not asyncio.current_task() and "kafka:in" in task.get_name():
                task.cancel()
    await first.crash()
    await topic.send(b"later")
    second = Bridges(store=store, sections=sections)
    second.begin()
    try:
        assert await payloads(second, 1) == [b"later"]
    finally:
        await second.end()


@on_loop
async def test_a_group_begins_where_it_is_told(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b"old", timestamp_ms=1_700_000_000_000)
    await topic.send(b"new", timestamp_ms=1_700_000_100_000)
    async with reading(topic, start_time="2023-11-14T22:14:00Z") as bridges:
        assert await payloads(bridges, 1) == [b"new"]


@on_loop
async def test_two_sources_of_a_group_share_the_partitions(kafka: Kafka) -> None:
    topic = await Topic(kafka, partitions=4).make()
    async with reading(topic) as bridges:
        await bridges.until(lambda: bridges.sources.get("in")["status"] == "connected")
        read(bridges, topic, name="too")
        for number in range(40):
            await topic.send(b"%d" % number, partition=number % 4)
        found = await payloads(bridges, 40)
        assert sorted(found, key=int) == [b"%d" % number for number in range(40)]


@on_loop
async def test_a_topic_that_is_made_anew_is_read_from_its_start(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    await topic.send(b"1", b"2", b"3")
    async with reading(topic) as bridges:
        await payloads(bridges, 3)
        bridges.sources.pause("in")
        await bridges.sources.stop("in")
        await topic.make_anew()
        await topic.send(b"4")
        bridges.sources.resume("in")
        await bridges.sources.start("in")
        assert await payloads(bridges, 4) == [b"1", b"2", b"3", b"4"]


@on_loop
async def test_a_topic_that_is_not_there_is_told_and_read_once_it_is(kafka: Kafka) -> None:
    topic = Topic(kafka)
    async with reading(topic) as bridges:
        await bridges.until(
            lambda: "unhealthy target" in bridges.sources.get("in")["status_reason"]
        )
        assert f"no topic '{topic.name}'" in bridges.sources.get("in")["status_reason"]
        await topic.make()
        await topic.send(b"1")
        assert await payloads(bridges, 1) == [b"1"]


@on_loop
async def test_a_source_goes_on_after_kafka_was_killed(tmp_path: Path) -> None:
    with Kafka(tmp_path / "own") as kafka:
        topic = await Topic(kafka).make()
        await topic.send(b"1")
        async with reading(topic) as bridges:
            await payloads(bridges, 1)
            await asyncio.to_thread(kafka.kill)
            await bridges.until(
                lambda: "connection refused" in bridges.connectors.get("plant")["status_reason"]
            )
            await asyncio.to_thread(kafka.start)
            await topic.send(b"2")
            assert await payloads(bridges, 2) == [b"1", b"2"]
