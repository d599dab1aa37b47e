"""Records of Kafka as messages and as what rules read.

A record is acknowledged to Kafka after the commit that holds what it led to. Its partition and offset are kept in that
same commit, so that what comes again after a crash or a rebalance is left out, wherever Kafka believes the group to be.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from bridges.kafka.clients import end_consumer, lag_of
from bridges.kafka.cluster import KafkaCluster
from bridges.kafka.errors import meant
from bridges.kafka.headers import to_message
from bridges.kafka.settings import KafkaSourceSettings, PublishSettings, SchemaEncoding
from bridges.resource.contract import Context, Feed, Incoming, Lag, Source
from bridges.resource.templates import bytes_template, text_template
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import NotFound, PeerError
from broker.core.schema import SchemaError, SchemaLookup
from broker.core.topic import check_topic_name
from broker.observe.log import get_logger
from rules.sql.values import string

_log = get_logger(__name__)

_TIMESTAMP_TYPES: Final = {0: "create", 1: "append"}
# A source may be paused for a day before Kafka gives its partitions to others.
_LONGEST_PAUSE_MS: Final = 24 * 3600 * 1000
_STOP_S: Final = 2.0
# Interval in which Kafka is asked for the ends of partitions.
_ENDS_EVERY_S: Final = 5.0
_ENDS_TIMEOUT_S: Final = 10.0
# Interval of reports about records whose topic cannot be published on; rules have them all.
_REPORT_EVERY_S: Final = 60.0
_KEPT_TOPICS: Final = 16_384
Fetched = dict[TopicPartition, list[ConsumerRecord]]
Decode = Callable[[bytes], Any]


class KafkaSource(Source):
    """One consumer of a group."""

    def __init__(
        self, cluster: KafkaCluster, settings: KafkaSourceSettings, context: Context
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._context = context
        self._incoming = _Incoming(settings, context)
        self._group = settings.group_id or f"sluice-{context.name.partition(':')[2]}"
        self._ends: _Ends | None = None

    @property
    def lag(self) -> Lag | None:
        """See ``Source``."""
        return None if self._ends is None else self._ends.lag

    async def check(self) -> None:
        """Check that every topic exists."""
        for topic in self._settings.topics:
            await self._cluster.partitions(topic)

    async def run(self, feed: Feed) -> None:
        """Read until cancelled."""
        consumer = self._consumer()
        places = _Places()
        try:
            await consumer.start()
            self._ends = _Ends(consumer, self._context.services.node.clock)
            consumer.subscribe(
                self._settings.topics, listener=_Assigned(consumer, places, feed, self._settings)
            )
            await asyncio.gather(
                self._read(consumer, places, feed),
                self._commit_offsets(consumer, places),
                self._ends.ask(),
            )
        except KafkaError as error:
            raise meant(error, self._cluster.settings.bootstrap_hosts) from error
        finally:
            self._ends = None
            with suppress(Exception):
                async with asyncio.timeout(_STOP_S):
                    await places.commit(consumer)
            await end_consumer(consumer)

    async def _read(self, consumer: AIOKafkaConsumer, places: _Places, feed: Feed) -> None:
        wait_ms = int(self._settings.max_wait_time * 1000)
        at_most = self._settings.max_poll_records
        while True:
            await feed.ready()
            fetched = places.settled_only(
                consumer, await consumer.getmany(timeout_ms=wait_ms, max_records=at_most)
            )
            if not fetched:
                continue
            with_columns = feed.is_read
            records = [
                self._incoming.of(record, with_columns=with_columns)
                for batch in fetched.values()
                for record in batch
            ]
            await feed.deliver(records)
            places.done.update(
                (partition, batch[-1].offset + 1) for partition, batch in fetched.items()
            )

    async def _commit_offsets(self, consumer: AIOKafkaConsumer, places: _Places) -> None:
        """Commit the group's offsets to Kafka, for monitoring and for other members of the group."""
        while True:
            await asyncio.sleep(max(self._settings.commit_interval, 0.05))
            await places.commit(consumer)

    def _consumer(self) -> AIOKafkaConsumer:
        settings = self._settings
        return AIOKafkaConsumer(
            **self._cluster.reach(self._context.name.replace(":", "-")),
            group_id=self._group,
            enable_auto_commit=False,
            auto_offset_reset=settings.offset_reset_policy,
            isolation_level="read_committed",
            fetch_max_wait_ms=int(settings.max_wait_time * 1000),
            max_partition_fetch_bytes=settings.max_batch_bytes,
            max_poll_interval_ms=_LONGEST_PAUSE_MS,
            session_timeout_ms=int(settings.session_timeout * 1000),
            heartbeat_interval_ms=int(settings.session_timeout * 300),
        )


class _Ends:
    """The ends of a consumer's partitions. Kafka is asked for them, since a consumer that is paused fetches none."""

    def __init__(self, consumer: AIOKafkaConsumer, clock: Clock) -> None:
        self._consumer = consumer
        self._clock = clock
        self._offsets: dict[TopicPartition, int] = {}
        self._asked_s = 0.0
        self._asked_ns = 0

    async def ask(self) -> None:
        """Ask at an interval, until cancelled."""
        while True:
            assigned = self._consumer.assignment()
            try:
                async with asyncio.timeout(_ENDS_TIMEOUT_S):
                    self._offsets = await self._consumer.end_offsets(list(assigned))
                self._asked_s, self._asked_ns = self._clock.monotonic_s(), self._clock.now_ns()
            except (KafkaError, TimeoutError) as error:
                _log.debug("kafka.ends_not_known", reason=str(error))
            await asyncio.sleep(_ENDS_EVERY_S if assigned else _ENDS_EVERY_S / 10)

    @property
    def lag(self) -> Lag | None:
        """The records that the consumer has not given yet; None while Kafka does not answer."""
        if self._clock.monotonic_s() - self._asked_s > _ENDS_EVERY_S + _ENDS_TIMEOUT_S:
            return None
        records = lag_of(self._consumer, self._offsets)
        return None if records is None else Lag(records, self._asked_ns)


class _Places:
    """Up to where each partition is taken and committed here."""

    def __init__(self) -> None:
        self.done: dict[TopicPartition, int] = {}
        self.settled: set[TopicPartition] = set()
        """Partitions that are read from where they should be."""
        self._reported: dict[TopicPartition, int] = {}

    def settled_only(self, consumer: AIOKafkaConsumer, fetched: Fetched) -> Fetched:
        """Without partitions that came just now: aiokafka fetches while it is still being worked out where to begin."""
        if self.settled.issuperset(fetched):
            return fetched
        for place, batch in fetched.items():
            if place not in self.settled and place in consumer.assignment():
                consumer.seek(place, batch[0].offset)
        return {place: batch for place, batch in fetched.items() if place in self.settled}

    async def commit(self, consumer: AIOKafkaConsumer) -> None:
        """Commit what is new; during a rebalance, the next time."""
        assigned = consumer.assignment()
        new = {
            place: offset
            for place, offset in self.done.items()
            if place in assigned and self._reported.get(place) != offset
        }
        if not new:
            return
        try:
            await consumer.commit(new)
        except KafkaError as error:
            _log.debug("kafka.commit_later", reason=str(error))
        else:
            self._reported.update(new)


class _Assigned(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    """Reaction to partitions that are assigned and revoked."""

    def __init__(
        self, consumer: AIOKafkaConsumer, places: _Places, feed: Feed, settings: KafkaSourceSettings
    ) -> None:
        self._consumer = consumer
        self._places = places
        self._feed = feed
        self._settings = settings

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        """Commit, so that other members continue from here."""
        await self._places.commit(self._consumer)
        for place in revoked:
            self._places.done.pop(place, None)
            self._places.settled.discard(place)

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        """Begin where the store says, or at a time; notice topics that were deleted and created again."""
        places = list(assigned)
        if not places:
            return
        ends = await self._consumer.end_offsets(places)
        for place in places:
            kept = self._feed.position_of(shard_of(place))
            if kept is not None and kept >= ends[place]:
                _log.warning(
                    "kafka.topic_began_anew",
                    topic=place.topic,
                    partition=place.partition,
                    kept=kept,
                )
                self._feed.begin_anew(shard_of(place))
                # Kafka forgets the group's offset in the deleted topic a little later: it may still be here, or gone.
                start = await self._consumer.beginning_offsets([place])
                self._consumer.seek(place, start[place])
            elif kept is not None:
                committed = await self._consumer.committed(place)
                if committed is None or committed <= kept:
                    self._consumer.seek(place, kept + 1)
            elif (
                self._settings.start_time is not None
                and await self._consumer.committed(place) is None
            ):
                await self._seek_time(
                    place, int(self._settings.start_time.timestamp() * 1000), ends[place]
                )
            self._places.settled.add(place)

    async def _seek_time(self, place: TopicPartition, time_ms: int, end: int) -> None:
        place_in_time = (await self._consumer.offsets_for_times({place: time_ms}))[place]
        self._consumer.seek(place, end if place_in_time is None else place_in_time.offset)


class _Incoming:
    """Makes of records what the framework takes."""

    def __init__(self, settings: KafkaSourceSettings, context: Context) -> None:
        self._settings = settings
        self._publish = settings.publish
        self._clock = context.services.node.clock
        self._decode = _decoder(settings, context.services.schemas)
        self._name = context.name
        self._reported_s = -_REPORT_EVERY_S
        self._good_topics: set[str] = set()
        count = context.services.monitoring.metrics.counter
        self._over = count(
            "source_expired",
            "records whose message's life was over; rules have them",
            source=context.name,
        )
        self._left_out = count(
            "source_headers_left_out",
            "headers that no property of MQTT can hold, or not wanted",
            source=context.name,
        )
        self._no_topic = count(
            "source_no_topic",
            "records that no message could be made of: their topic is none",
            source=context.name,
        )
        publish = settings.publish or PublishSettings()
        self._topic_of = text_template(publish.topic) if publish.topic else None
        self._payload_of = bytes_template(publish.payload) if publish.payload else None

    def of(self, record: ConsumerRecord, *, with_columns: bool) -> Incoming:
        """One record."""
        needs_columns = with_columns or self._topic_of is not None or self._payload_of is not None
        columns = self._columns(record) if needs_columns else {}
        place = TopicPartition(record.topic, record.partition)
        incoming = Incoming(columns, shard=shard_of(place), position=record.offset)
        if self._publish is not None:
            self._as_message(incoming, record, self._publish)
        return incoming

    def _as_message(
        self, incoming: Incoming, record: ConsumerRecord, publish: PublishSettings
    ) -> None:
        restored = to_message(
            record.headers,
            self._clock.now_ns(),
            with_client=publish.client_properties,
            with_binary=publish.binary_headers == "base64",
        )
        if restored is None:
            self._over.value += 1
            return
        self._left_out.value += restored.left_out
        topic = (
            self._topic_of(incoming.columns)
            if self._topic_of is not None
            else restored.topic or record.topic
        )
        if topic not in self._good_topics and not self._is_good(topic, record):
            return
        incoming.topic = topic
        incoming.payload = (
            record.value or b""
            if self._payload_of is None
            else self._payload_of(incoming.columns) or b""
        )
        incoming.qos = publish.qos if restored.qos is None else min(publish.qos, restored.qos)
        incoming.retain = publish.retain and restored.retain
        if publish.time_property:
            restored.properties.setdefault("User-Property", []).append(
                ("mqtt.ts", str(record.timestamp))
            )
        incoming.properties = restored.properties or None

    def _is_good(self, topic: str, record: ConsumerRecord) -> bool:
        try:
            check_topic_name(topic)
        except PeerError as error:
            self._no_topic.value += 1
            now_s = self._clock.monotonic_s()
            if now_s >= self._reported_s + _REPORT_EVERY_S:
                self._reported_s = now_s
                place = f"{record.topic}:{record.partition}:{record.offset}"
                _log.warning(
                    "kafka.record_not_published", source=self._name, record=place, reason=str(error)
                )
            return False
        if len(self._good_topics) >= _KEPT_TOPICS:
            self._good_topics.clear()
        self._good_topics.add(topic)
        return True

    def _columns(self, record: ConsumerRecord) -> dict[str, Any]:
        value, error = self._value(record.value)
        columns = {
            "key": _encoded(record.key, self._settings.key_encoding),
            "value": value,
            "headers": {name: string(value or b"") for name, value in record.headers},
            "header_list": [
                {"key": name, "value": string(value or b"")} for name, value in record.headers
            ],
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "ts": record.timestamp,
            "ts_type": _TIMESTAMP_TYPES.get(record.timestamp_type, "none"),
        }
        if error:
            columns["error"] = error
        return columns

    def _value(self, data: bytes | None) -> tuple[Any, str]:
        """The value, and why it could not be decoded."""
        if data is None:
            return None, ""
        try:
            return self._decode(data), ""
        except (SchemaError, NotFound, ValueError) as error:
            return None, str(error)


def shard_of(place: TopicPartition) -> str:
    """The shard under which positions are kept."""
    return f"{place.topic}:{place.partition}"


def _decoder(settings: KafkaSourceSettings, schemas: SchemaLookup) -> Decode:
    encoding = settings.value_encoding
    if isinstance(encoding, SchemaEncoding):
        return lambda data: _by_schema(encoding, schemas, data)
    if encoding == "json":
        return jsontext.decode
    return lambda data: _encoded(data, encoding)


def _by_schema(encoding: SchemaEncoding, schemas: SchemaLookup, data: bytes) -> Any:
    name = encoding.schema_name
    if encoding.wire_format == "confluent":
        return schemas.tagged(name).decode(data, encoding.message_type)
    return schemas.serde(name).decode(data, encoding.message_type)


def _encoded(data: bytes | None, encoding: str) -> str | bytes | None:
    if data is None:
        return None
    return b64encode(data).decode() if encoding == "base64" else string(data)
