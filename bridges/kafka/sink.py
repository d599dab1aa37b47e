"""Rows as records of Kafka, a batch for each partition.

Records are packed into Kafka's own batches here, not handed to the producer one by one: that is five times as fast. The
framework's lanes keep the order of a key, the producer has one batch on the way to a partition at a time, and with
idempotence the broker refuses what would come out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.errors import OutOfOrderSequenceNumber

from bridges.kafka.client import KafkaConnector
from bridges.kafka.encoding import Encode, encoder
from bridges.kafka.ending import end_producer
from bridges.kafka.errors import meant
from bridges.kafka.headers import of_message
from bridges.kafka.partition import Partitions
from bridges.kafka.settings import KafkaActionSettings
from bridges.resource.contract import ALL_DONE, Answers, Context, Sink
from bridges.resource.errors import BridgeError, NeverAgain, ReconnectFirst, TargetMissing
from bridges.resource.templates import bytes_template, strict_template, value_template
from broker.core.action import Row
from broker.core.message import Message
from rules.sql.values import json_bytes

_ACKS: Final = {"all_isr": "all", "leader_only": 1, "none": 0}
_RECHECK_S: Final = 60.0
_OVERHEAD_BYTES: Final = 512
"""Of a batch and its request beside the records."""
_PATIENCE_S: Final = 3.0
"""A batch that takes longer has the cluster asked whether it is there, and it has as long to answer."""


class Record(NamedTuple):
    """One record to send; ``partition`` is None where the strategy decides."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Sequence[tuple[str, bytes]]


class KafkaSink(Sink):
    """The records of one action, through a producer of its own."""

    def __init__(self, connector: KafkaConnector, settings: KafkaActionSettings, context: Context) -> None:
        self._connector, self._settings, self._context = connector, settings, context
        self._producer: AIOKafkaProducer | None = None
        self._topics: dict[str, Partitions] = {}
        self._checked_s = 0.0
        templates = settings.message
        self._fixed_topic = settings.topic if "${" not in settings.topic else None
        self._topic_of = strict_template(settings.topic, "the topic")
        self._key_of = bytes_template(templates.key) if templates.key else _none
        self._value_of: Encode = encoder(settings, context.services.schemas)
        self._time_of = value_template(templates.timestamp)
        self._partition_of = value_template(settings.partition) if settings.partition else None
        self._headers_of = value_template(settings.kafka_headers) if settings.kafka_headers else None
        self._more_headers = [
            (strict_template(one.kafka_ext_header_key, "a header's name"), value_template(one.kafka_ext_header_value))
            for one in settings.kafka_ext_headers
        ]
        self._is_json = settings.kafka_header_value_encode_mode == "json"

    async def open(self) -> None:
        """Start the producer; look whether the topic is there, where it is the same for all rows."""
        settings = self._settings
        compression = None if settings.compression == "no_compression" else settings.compression
        producer = AIOKafkaProducer(
            **self._connector.reach(self._context.name.replace(":", "-")),
            acks=_ACKS[settings.required_acks],
            enable_idempotence=settings.idempotence,
            compression_type=compression,
            max_batch_size=settings.max_batch_bytes,
            max_request_size=settings.max_batch_bytes + _OVERHEAD_BYTES,
            linger_ms=0,
        )
        self._producer = producer
        self._topics.clear()
        try:
            await producer.start()
            await self.check()
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise meant(error, self._connector.settings.bootstrap_hosts) from error
            raise

    async def close(self) -> None:
        """Stop the producer; what it still has is not waited for."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await end_producer(producer)

    async def check(self) -> None:
        """Whether the topic is there, where it is the same for all rows."""
        if self._fixed_topic is not None:
            await self._look_up(self._fixed_topic)

    def record(self, row: Row, message: Message) -> Record:
        """The record of a row."""
        timestamp = self._time_of(row)
        if type(timestamp) is not int or timestamp < 0:
            timestamp = message.received_ns // 1_000_000
        headers = of_message(message) if self._settings.mqtt_headers else []
        if self._headers_of is not None:
            headers += self._of_value(self._headers_of(row))
        for name_of, value_of in self._more_headers:
            value = self._header_value(value_of(row))
            if value is not None:
                headers.append((name_of(row), value))
        return Record(
            self._fixed_topic or self._topic_of(row),
            None if self._partition_of is None else _number(self._partition_of(row)),
            self._key_of(row),
            self._value_of(row),
            timestamp,
            headers,
        )

    async def send(self, records: Sequence[Record]) -> Answers:
        """Send a batch; returns when the brokers have it."""
        if self._producer is None:
            raise ReconnectFirst("the producer is not started")
        self._forget_old_topics()
        answers: list[BridgeError | None] = [None] * len(records)
        batches = await self._packed(self._producer, records, answers)
        try:
            while batches:
                # one for each partition at a time: what follows one that must be split may not overtake it
                heads = list({(one.topic, one.partition): one for one in reversed(batches)}.values())
                later = [one for one in batches if one not in heads]
                batches = [*await self._sent(heads, answers), *later]
        except BridgeError:
            self._topics.clear()  # partitions may have moved, topics gone
            raise
        return answers if any(answers) else ALL_DONE

    async def _sent(self, batches: Sequence[_Batch], answers: list[BridgeError | None]) -> list[_Batch]:
        """Send batches; gives those to send next, parts of what Kafka has refused as a whole."""
        assert self._producer is not None
        results = await self._results(self._producer, batches)
        failed = [(batch, result) for batch, result in zip(batches, results, strict=True) if result is not None]
        if not failed:
            return []
        known = [(batch, meant(error, f"the topic {batch.topic!r}")) for batch, error in failed]
        if not any(isinstance(error, NeverAgain) for _, error in known):
            raise await self._cause(known[0][0].topic, known[0][1])
        # aiokafka has counted the refused batch, so that Kafka refuses what follows it by its number
        await self._renew()
        again: list[_Batch] = []
        for (batch, error), (_, cause) in zip(known, failed, strict=True):
            if isinstance(error, NeverAgain) and len(batch.records) == 1:
                answers[batch.records[0][0]] = error
            elif isinstance(error, NeverAgain):
                again += batch.halves(self._producer)  # one record may be too large, not all
            elif isinstance(cause, OutOfOrderSequenceNumber):
                again.append(batch.copy(self._producer, batch.records))
            else:
                raise error
        return again

    async def _results(self, producer: AIOKafkaProducer, batches: Sequence[_Batch]) -> Sequence[BaseException | None]:
        """What became of each. aiokafka tries on for as long as a request may take; whether the cluster is there at all
        is asked for meanwhile, so that people learn of it sooner."""
        sending = [asyncio.create_task(batch.send(producer)) for batch in batches]
        try:
            while (await asyncio.wait(sending, timeout=_PATIENCE_S))[1]:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._connector.check()
        except TimeoutError:
            raise ReconnectFirst(f"{self._connector.settings.bootstrap_hosts}: no answer") from None
        finally:
            for task in sending:
                task.cancel()
            results = await asyncio.gather(*sending, return_exceptions=True)
        return results

    async def _cause(self, topic: str, error: BridgeError) -> BridgeError:
        """A producer that has no connection says that there is no topic: the cluster knows."""
        if not isinstance(error, TargetMissing):
            return error
        try:
            await self._connector.partitions(topic)
        except BridgeError as cause:
            return cause
        return ReconnectFirst(f"{self._connector.settings.bootstrap_hosts}: the producer has lost its brokers")

    async def _renew(self) -> None:
        """A producer that begins to count anew; the one there is has nothing on the way."""
        if self._settings.idempotence:
            await self.close()
            await self.open()

    async def _packed(
        self, producer: AIOKafkaProducer, records: Sequence[Record], answers: list[BridgeError | None]
    ) -> list[_Batch]:
        open_batches: dict[tuple[str, int], _Batch] = {}
        all_batches: list[_Batch] = []
        sticky: dict[str, int] = {}
        largest = self._settings.max_batch_bytes
        for at, record in enumerate(records):
            topic = record.topic
            if len(record.value or b"") > largest:
                answers[at] = NeverAgain(f"the record is larger than max_batch_bytes, which is {largest}")
                continue
            partitions = self._topics.get(topic)
            if partitions is None:
                try:
                    partitions = await self._look_up(topic)
                except TargetMissing as error:
                    if topic == self._fixed_topic:
                        raise
                    answers[at] = error
                    continue
            if topic not in sticky:
                sticky[topic] = partitions.sticky()
            partition = record.partition
            if partition is None:
                partition = partitions.pick(record.key, sticky[topic])
            elif partition not in partitions.numbers:
                answers[at] = NeverAgain(f"the topic {topic!r} has no partition {partition}")
                continue
            place = (topic, partition)
            batch = open_batches.get(place)
            if batch is None or not batch.add(at, record):
                batch = open_batches[place] = _Batch(producer, topic, partition)
                all_batches.append(batch)
                batch.add(at, record)
        return all_batches

    async def _look_up(self, topic: str) -> Partitions:
        new = self._settings if self._settings.allow_auto_topic_creation else None
        numbers = await self._connector.partitions(topic, new)
        known = self._topics.get(topic)
        if known is None or known.numbers != sorted(numbers):
            known = self._topics[topic] = Partitions(numbers, self._settings.partition_strategy)
        return known

    def _forget_old_topics(self) -> None:
        """Partitions may be added while all goes well."""
        now_s = self._context.services.clock.monotonic_s()
        if now_s - self._checked_s > _RECHECK_S:
            self._checked_s = now_s
            self._topics.clear()

    def _of_value(self, value: Any) -> list[tuple[str, bytes]]:
        if isinstance(value, dict):
            pairs = list(value.items())
        elif isinstance(value, list):
            pairs = [(item.get("key"), item.get("value")) for item in value if isinstance(item, dict)]
        else:
            return []
        found = [(name, self._header_value(value)) for name, value in pairs if isinstance(name, str)]
        return [(name, value) for name, value in found if value is not None]

    def _header_value(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if self._is_json:
            return json_bytes(value)
        if isinstance(value, str):
            return value.encode()
        return bytes(value) if isinstance(value, (bytes, bytearray)) else None


class _Batch:
    """A batch of Kafka for one partition, and which of the records handed over are in it."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self._builder = producer.create_batch()
        self.records: list[tuple[int, Record]] = []

    def add(self, at: int, record: Record) -> bool:
        """Put a record in; False when there is no room, and there is something in it."""
        found = self._builder.append(
            timestamp=record.timestamp_ms, key=record.key, value=record.value, headers=record.headers
        )
        if found is None:
            return False
        self.records.append((at, record))
        return True

    def halves(self, producer: AIOKafkaProducer) -> list[_Batch]:
        """Two batches of these records."""
        half = len(self.records) // 2
        return [self.copy(producer, self.records[:half]), self.copy(producer, self.records[half:])]

    def copy(self, producer: AIOKafkaProducer, records: Sequence[tuple[int, Record]]) -> _Batch:
        """A batch for the same partition; one that was sent cannot be sent again."""
        batch = _Batch(producer, self.topic, self.partition)
        for at, record in records:
            batch.add(at, record)
        return batch

    async def send(self, producer: AIOKafkaProducer) -> None:
        """Send it; raises what Kafka says."""
        self._builder.close()
        await (await producer.send_batch(self._builder, self.topic, partition=self.partition))


def key_of(settings: KafkaActionSettings) -> Callable[[Row, Message], Hashable]:
    """Records with one key stay in order; without a key those of one client."""
    if not settings.message.key:
        return lambda row, message: message.client.client_id
    of_row = bytes_template(settings.message.key)
    return lambda row, message: of_row(row) or message.client.client_id


def _none(_row: Row) -> None:
    return None


def _number(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError):
        return None
