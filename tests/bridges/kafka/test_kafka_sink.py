"""Rows as records of a real Kafka: what they become, where they go, and what is given up."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fastavro
import pytest
from aiokafka import ConsumerRecord

from bridges.kafka.batches import Partitions
from bridges.kafka.headers import to_message
from bridges.kafka.settings import KafkaActionSettings
from broker.core.client import Client
from broker.core.message import Message
from schema_validation.feature import SchemaValidationFeature
from tests.support.bridges import FAST, FAST_CONNECTOR, Bridges
from tests.support.kafka_server import Kafka
from tests.support.kafka_topic import Topic
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until

PUBLISHED_MS = 1_700_000_000_000
PROPERTIES: dict[str, Any] = {
    "Content-Type": "application/json",
    "Correlation-Data": bytes(range(256)) + b"x" * 44,
    "Response-Topic": "answers/grün",
    "Payload-Format-Indicator": 1,
    "User-Property": [("k", "2"), ("reply-to", "mine"), ("k", "1"), ("mqtt.qos", "9"), ("a", "ü")],
}


class Writing:
    """A connector ``plant`` and an action ``out`` to a topic."""

    def __init__(
        self, topic: Topic, bridges: Bridges, parameters: dict[str, Any], options: dict[str, Any]
    ) -> None:
        self.topic, self.bridges = topic, bridges
        SchemaValidationFeature(bridges.services)
        hosts = topic.kafka.bootstrap
        bridges.connectors.create(
            {
                "name": "plant",
                "type": "kafka",
                "bootstrap_hosts": hosts,
                "resource_opts": FAST_CONNECTOR,
            }
        )
        bridges.actions.create(
            {
                "name": "out",
                "type": "kafka",
                "connector": "plant",
                "parameters": {"topic": topic.name, **parameters},
                "resource_opts": {**FAST, **options},
            }
        )

    def put(self, row: dict[str, Any], **message: Any) -> None:
        """Hand a row over, with the message that it is from."""
        sink = self.bridges.services.endpoints.sinks.find("kafka:out")
        assert sink is not None
        client = Client("c1", username=message.pop("username", None))
        given = Message("in/1", b"payload", 1, False, client, PUBLISHED_MS * 1_000_000)
        for name, value in message.items():
            setattr(given, name, value)
        sink.write(row, given, self.bridges.settle)

    async def written(self, count: int = 1) -> list[ConsumerRecord]:
        """The records of the topic, once so many rows are confirmed."""
        await self.bridges.until_sent(count)
        return await self.topic.records()

    async def letters(self, count: int = 1) -> list[str]:
        """Why rows were given up."""
        await self.bridges.until(lambda: self.bridges.counts()["failed"] >= count)

        async def reasons() -> list[str]:
            shown = await self.bridges.actions.dead_letters("out", 100)
            return (
                [item["reason"] for item in shown["items"]] if len(shown["items"]) >= count else []
            )

        return await until(reasons, f"{count} dead letters")


@asynccontextmanager
async def writing(
    place: Topic, options: dict[str, Any] | None = None, **parameters: Any
) -> AsyncIterator[Writing]:
    bridges = Bridges()
    bridges.begin()
    try:
        yield Writing(place, bridges, parameters, options or {})
    finally:
        await bridges.end()


# Templates


@on_loop
async def test_a_record_is_the_row_as_json_under_the_clients_key_at_the_time_of_publishing(
    kafka: Kafka,
) -> None:
    topic = await Topic(kafka).make()
    async with writing(topic) as made:
        made.put({"clientid": "c1", "temp": 21.5})
        made.put({"temp": 22, "timestamp": PUBLISHED_MS - 1})
        made.put({"temp": 23, "timestamp": "yesterday"})
        first, second, third = await made.written(3)
    assert (first.key, first.value, first.timestamp) == (
        b"c1",
        b'{"clientid":"c1","temp":21.5}',
        PUBLISHED_MS,
    )
    assert (second.key, second.timestamp) == (None, PUBLISHED_MS - 1)
    assert third.timestamp == PUBLISHED_MS


@on_loop
async def test_what_the_row_lacks_is_null(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    async with writing(
        topic, {"worker_pool_size": 1}, message={"key": "${id}", "value": "${v}"}
    ) as made:
        made.put({"id": "a"})
        made.put({"id": "b", "v": ""})
        made.put({"v": "x"})
        made.put({})
        records = await made.written(4)
    assert [(one.key, one.value) for one in records] == [
        (b"a", None),
        (b"b", b""),
        (None, b"x"),
        (None, None),
    ]


@on_loop
async def test_each_row_names_its_topic_and_one_that_is_not_there_is_given_up_alone(
    kafka: Kafka,
) -> None:
    one, other = await Topic(kafka).make(), await Topic(kafka).make()
    async with writing(
        one, {"missing_target": "give_up"}, topic="${to}", message={"value": "${n}"}
    ) as made:
        for to, number in ((one.name, 1), ("t-not-there", 2), (other.name, 3), (one.name, 4)):
            made.put({"to": to, "n": number})
        made.put({"n": 5})
        reasons = await made.letters(2)
        assert [record.value for record in await made.written(3)] == [b"1", b"4"]
        assert [record.value for record in await other.records()] == [b"3"]
        made.bridges.assert_adds_up()
    assert sorted(reason.partition(";")[0] for reason in reasons) == [
        "the row has no 'to', which the topic needs",
        "there is no topic 't-not-there' in Kafka",
    ]


@on_loop
async def test_a_topic_is_made_where_that_is_allowed(kafka: Kafka) -> None:
    topic = Topic(kafka, partitions=5)
    async with writing(topic, allow_auto_topic_creation=True, new_topic_partitions=5) as made:
        made.put({"n": 1})
        [record] = await made.written()
        async with topic.admin() as admin:
            [found] = await admin.describe_topics([topic.name])
    assert record.value == b'{"n":1}'
    assert len(found["partitions"]) == 5


# Headers


@pytest.mark.statement("own:R8")
@on_loop
async def test_properties_of_a_message_come_back_as_they_were(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    async with writing(topic) as made:
        made.put({}, properties=PROPERTIES, qos=2, retain=True)
        [record] = await made.written()
    restored = to_message(
        record.headers, PUBLISHED_MS * 1_000_000, with_client=False, with_binary=False
    )
    assert restored is not None
    assert (restored.topic, restored.qos, restored.retain) == ("in/1", 2, True)
    assert restored.properties == PROPERTIES


@pytest.mark.statement("own:R9")
@on_loop
async def test_headers_have_names_that_consumers_know_or_may_ignore(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    properties = {**PROPERTIES, "Message-Expiry-Interval": 60}
    async with writing(topic, message={"value": "${v}"}) as made:
        made.put({"v": "as it is"}, properties=properties, username="u1")
        [record] = await made.written()
    assert record.value == b"as it is"
    assert record.headers == (
        ("mqtt.topic", b"in/1"),
        ("mqtt.clientid", b"c1"),
        ("mqtt.qos", b"1"),
        ("mqtt.retain", b"0"),
        ("mqtt.username", b"u1"),
        ("content-type", b"application/json"),
        ("correlation-id", PROPERTIES["Correlation-Data"]),
        ("reply-to", "answers/grün".encode()),
        ("mqtt.payload-format", b"1"),
        ("k", b"2"),
        ("mqtt.up.reply-to", b"mine"),
        ("k", b"1"),
        ("mqtt.up.mqtt.qos", b"9"),
        ("a", "ü".encode()),
        ("mqtt.expires-at", b"%d" % (PUBLISHED_MS + 60_000)),
    )


@pytest.mark.parametrize(
    ("headers", "mode", "expected"),
    [
        ({"a": "1", "b": 2, "c": None}, "none", (("a", b"1"),)),
        ({"a": "1", "b": 2, "c": [True]}, "json", (("a", b'"1"'), ("b", b"2"), ("c", b"[true]"))),
        (
            [{"key": "a", "value": "1"}, {"key": "a", "value": "2"}, 7],
            "none",
            (("a", b"1"), ("a", b"2")),
        ),
        ([{"key": "a", "value": {"b": 1}}, {"key": 7, "value": "x"}], "json", (("a", b'{"b":1}'),)),
        ("no headers", "none", ()),
    ],
    ids=["object", "object as JSON", "list", "list as JSON", "neither"],
)
def test_headers_come_from_the_row(
    kafka: Kafka, headers: Any, mode: str, expected: tuple[tuple[str, bytes], ...]
) -> None:
    @on_loop
    async def check() -> None:
        topic = await Topic(kafka).make()
        parameters: dict[str, Any] = {
            "kafka_headers": "${h}",
            "kafka_header_value_encode_mode": mode,
            "mqtt_headers": False,
        }
        async with writing(topic, **parameters) as made:
            made.put({"h": headers})
            [record] = await made.written()
        assert record.headers == expected

    check()


@on_loop
async def test_more_headers_are_templates_and_left_out_where_the_row_lacks_them(
    kafka: Kafka,
) -> None:
    topic = await Topic(kafka).make()
    more = [
        {"kafka_ext_header_key": "site-${site}", "kafka_ext_header_value": "${payload.room}"},
        {"kafka_ext_header_key": "who", "kafka_ext_header_value": "by ${clientid}"},
        {"kafka_ext_header_key": "gone", "kafka_ext_header_value": "${nothing}"},
    ]
    async with writing(topic, kafka_ext_headers=more, mqtt_headers=False) as made:
        made.put({"site": "a", "payload": {"room": "7"}, "clientid": "c1"})
        [record] = await made.written()
    assert record.headers == (("site-a", b"7"), ("who", b"by c1"))


# Partitions


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        ("", 9),
        ("a", 4),
        ("ab", 2),
        ("abc", 3),
        ("meter-7", 8),
        ("plant/line/4", 1),
        ("grün", 5),
        ("a-little-bit-longer-string", 11),
        ("0123456789012345678901234567890123456789", 6),
    ],
)
def test_a_key_goes_where_the_java_client_sends_it(key: str, partition: int) -> None:
    """The numbers are those of ``BuiltInPartitioner.partitionForKey`` of kafka-clients 4.2 for twelve partitions."""
    assert Partitions(range(12), "key_dispatch").pick(key.encode(), 0) == partition


@on_loop
async def test_the_partition_may_be_a_template(kafka: Kafka) -> None:
    topic = await Topic(kafka, partitions=3).make()
    async with writing(topic, partition="${p}", message={"value": "${n}"}) as made:
        for number, partition in enumerate((2, "0", 1, 7, "x")):
            made.put({"n": number, "p": partition})
        [reason] = await made.letters()
        records = await made.written(4)
    assert [(one.partition, one.value) for one in records if one.value != b"4"] == [
        (0, b"1"),
        (1, b"2"),
        (2, b"0"),
    ]
    assert reason == f"the topic '{topic.name}' has no partition 7"


@pytest.mark.parametrize(
    ("strategy", "fewest", "most"), [("sticky", 1, 1), ("random", 2, 8), ("key_dispatch", 8, 8)]
)
def test_a_batch_is_spread_as_the_strategy_says(
    kafka: Kafka, strategy: str, fewest: int, most: int
) -> None:
    @on_loop
    async def check() -> None:
        topic = await Topic(kafka, partitions=8).make()
        options = {"batch_time": "500ms", "worker_pool_size": 1}
        async with writing(
            topic, options, partition_strategy=strategy, message={"key": "${k}"}
        ) as made:
            for number in range(100):
                made.put({"k": f"k{number}"})
            records = await made.written(100)
        assert fewest <= len({one.partition for one in records}) <= most

    check()


# What goes over the wire


@pytest.mark.parametrize("compression", ["no_compression", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize(
    ("acks", "idempotence"), [("all_isr", True), ("leader_only", False), ("none", False)]
)
def test_batches_are_read_back_however_they_are_sent(
    kafka: Kafka, compression: str, acks: str, idempotence: bool
) -> None:
    @on_loop
    async def check() -> None:
        topic = await Topic(kafka).make()
        wire: dict[str, Any] = {
            "compression": compression,
            "required_acks": acks,
            "idempotence": idempotence,
        }
        async with writing(topic, **wire, message={"value": "${n}"}) as made:
            for number in range(500):
                made.put({"n": number})
            await made.bridges.until_sent(500)
            records = await topic.records()
            assert len(records) == 500 or acks == "none", "Kafka has what it has confirmed"

            async def all_there() -> list[ConsumerRecord]:
                found = await topic.records()
                return found if len(found) >= 500 else []

            records = await until(all_there)
        assert [int(one.value) for one in records] == list(range(500))

    check()


def test_idempotence_needs_all_replicas() -> None:
    with pytest.raises(ValueError, match="leader_only needs idempotence = false"):
        KafkaActionSettings(topic="t", required_acks="leader_only")


@on_loop
async def test_a_batch_that_is_too_large_for_the_topic_is_split(kafka: Kafka) -> None:
    topic = await Topic(kafka).make(max_message_bytes="2000")
    async with writing(topic, {"batch_time": "200ms"}, message={"value": "${v}"}) as made:
        for number in range(200):
            made.put({"v": f"{number:03}" + "x" * 47})
        records = await made.written(200)
    assert [int(one.value[:3]) for one in records] == list(range(200))


@pytest.mark.parametrize("idempotence", [True, False], ids=["idempotent", "plain"])
def test_a_record_that_is_too_large_is_given_up_alone_and_the_others_stay_in_order(
    kafka: Kafka, idempotence: bool
) -> None:
    @on_loop
    async def check() -> None:
        topic = await Topic(kafka).make(max_message_bytes="2000")
        parameters: dict[str, Any] = {"message": {"value": "${v}"}, "idempotence": idempotence}
        parameters["required_acks"] = "all_isr" if idempotence else "leader_only"
        async with writing(topic, {"batch_time": "200ms"}, **parameters) as made:
            for number in range(60):
                made.put({"v": f"{number:03}" + "x" * (3000 if number == 31 else 47)})
            [reason] = await made.letters()
            records = await made.written(59)
        assert [int(one.value[:3]) for one in records] == [
            number for number in range(60) if number != 31
        ]
        assert "larger than" in reason or "too large" in reason

    check()


@on_loop
async def test_a_record_beyond_max_batch_bytes_is_not_sent(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    async with writing(topic, max_batch_bytes="1KB", message={"value": "${v}"}) as made:
        made.put({"v": "x" * 2000})
        made.put({"v": "y"})
        assert (await made.letters())[
            0
        ] == "the record is larger than max_batch_bytes, which is 1024"
        assert [one.value for one in await made.written()] == [b"y"]


# Schemas

AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "id", "type": "string"}, {"name": "temp", "type": ["null", "double"]}],
}
JSON_SCHEMA = {"type": "object", "required": ["temp"], "properties": {"temp": {"type": "number"}}}
PROTO = 'syntax = "proto3"; message Other { int32 n = 1; } message Reading { string id = 1; double temp = 2; }'


@asynccontextmanager
async def by_schema(
    kafka: Kafka, kind: str, source: str, **encoding: Any
) -> AsyncIterator[tuple[Writing, int]]:
    """A sink whose values are written by a registered schema, and the schema's number."""
    topic = await Topic(kafka).make()
    bridges = Bridges()
    schemas = SchemaValidationFeature(bridges.services).schemas
    number = schemas.create({"name": "reading", "type": kind, "source": source})["id"]
    registered = bridges.services.schemas
    bridges.begin()
    try:
        made = Writing(topic, bridges, {"value_encoding": {"schema": "reading", **encoding}}, {})
        bridges.services.schemas = registered
        yield made, number
    finally:
        await bridges.end()


@on_loop
async def test_avro_has_the_schemas_number_in_front(kafka: Kafka) -> None:
    async with by_schema(kafka, "avro", json.dumps(AVRO)) as (made, number):
        made.put({"id": "m7", "temp": 21.5})
        made.put({"id": "m7", "temp": "warm"})
        [record] = await made.written()
        [reason] = await made.letters()
    assert struct.unpack(">bI", record.value[:5]) == (0, number)
    found = fastavro.schemaless_reader(
        io.BytesIO(record.value[5:]), fastavro.parse_schema(AVRO), None
    )
    assert found == {"id": "m7", "temp": 21.5}
    assert "temp" in reason


@on_loop
async def test_json_schema_has_the_schemas_number_in_front(kafka: Kafka) -> None:
    async with by_schema(kafka, "json", json.dumps(JSON_SCHEMA)) as (made, number):
        made.put({"temp": 21.5})
        made.put({"temp": "warm"})
        [record] = await made.written()
        assert "temp" in (await made.letters())[0]
    assert struct.unpack(">bI", record.value[:5]) == (0, number)
    assert json.loads(record.value[5:]) == {"temp": 21.5}


@on_loop
async def test_protobuf_names_the_message_type_too(kafka: Kafka) -> None:
    async with by_schema(kafka, "protobuf", PROTO, message_type="Reading") as (made, number):
        made.put({"id": "m7", "temp": 21.5})
        [record] = await made.written()
    assert struct.unpack(">bI", record.value[:5]) == (0, number)
    assert record.value[5:7] == b"\x02\x02", "one index, which is 1, as zigzag varints"
    assert record.value[7:] == b"\x0a\x02m7\x11" + struct.pack("<d", 21.5)


@on_loop
async def test_a_schema_may_be_written_without_its_number(kafka: Kafka) -> None:
    async with by_schema(kafka, "avro", json.dumps(AVRO), wire_format="bare") as (made, _):
        made.put({"id": "m7", "temp": None})
        [record] = await made.written()
    assert record.value == b"\x04m7\x00"


@on_loop
async def test_a_schema_that_is_not_there_is_named(kafka: Kafka) -> None:
    topic = await Topic(kafka).make()
    async with writing(topic, value_encoding={"schema": "gone"}) as made:
        made.put({"n": 1})
        assert "'gone'" in (await made.letters())[0]
