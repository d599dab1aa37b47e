"""Rows as records of Kafka, each once for consumers that read committed records.

Each batch is a transaction, in which the cursor of the action is written too: up to where its rows are in Kafka, a
record in a compacted topic. So what it says and what is there cannot come apart, whatever crashes. Whenever there is
doubt (a crash, a commit without an answer, a fenced producer) a new producer under the same transactional id ends
what the one before left open, one way or the other, and the cursor says how it ended: rows that it knows are
confirmed without being sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, InvalidTxnState, KafkaError, ProducerFenced

from bridges.kafka.batches import Batch, first_of_each
from bridges.kafka.clients import end_consumer
from bridges.kafka.cluster import KafkaCluster, TopicLayout
from bridges.kafka.errors import meant
from bridges.kafka.record import Record
from bridges.kafka.settings import KafkaActionSettings
from bridges.kafka.sink import KafkaSink, without_refused
from bridges.resource.contract import ALL_DONE, Answers, Context
from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
    TryAgain,
)
from bridges.resource.tasks import own_store
from broker.core.errors import SluiceError
from broker.observe.log import get_logger

_SHORTEST_MS: Final = 10_000
# Timeout of a transaction; until then consumers of committed records wait for it.
_LONGEST_MS: Final = 60_000
_NEEDS_DISK: Final = "exactly_once needs buffer_mode = disk"
_FENCED: Final = (ProducerFenced, InvalidProducerEpoch, InvalidTxnState)


class TransactionalSink(KafkaSink):
    """Writes each row once for consumers that read committed records."""

    def __init__(
        self, cluster: KafkaCluster, settings: KafkaActionSettings, context: Context
    ) -> None:
        super().__init__(cluster, settings, context)
        if context.place is None:
            raise BadSettings(_NEEDS_DISK)
        self._place = context.place
        name = settings.transactional_id or f"sluice-{context.name.partition(':')[2]}"
        self._id = f"{name}-{context.place.id}"
        self._cursor = Cursor("", 0)
        self._is_open = False
        """True while a transaction is open, or may be."""

    def _transactional(self) -> dict[str, Any]:
        timeout_ms = int(self._context.request_timeout_s * 2000)
        return {
            "transactional_id": self._id,
            "transaction_timeout_ms": min(max(timeout_ms, _SHORTEST_MS), _LONGEST_MS),
        }

    async def open(self) -> None:
        """Start the producer, which fences one that is still there; learn what is in Kafka."""
        await self._own_store()  # else the producer of the process that owns it would be fenced
        await super().open()
        topic = self._settings.cursor_topic
        try:
            await self._cluster.partitions(topic, TopicLayout(config=COMPACTED))
            cursor = await read_cursor(self._cluster, topic, self._id.encode())
            await self._own_store()  # else the cursor may be of another owner
        except BaseException:
            await self.close()
            raise
        self._cursor = begun(cursor, self._place.run, self._place.begin, self._context.name)
        self._is_open = False

    async def _begin_anew(self) -> AIOKafkaProducer:
        await self._own_store()
        return await super()._begin_anew()

    async def _own_store(self) -> None:
        try:
            await own_store(self._context.services.storage.values)
        except SluiceError as error:
            raise TryAgain(f"the store cannot be written: {error}") from error

    async def send(self, records: Sequence[Record]) -> Answers:
        """Rows without positions cannot be told from those sent before."""
        raise BadSettings(_NEEDS_DISK)

    async def send_at(self, records: Sequence[Record], positions: Sequence[int]) -> Answers:
        """Send what is not in Kafka yet, in one transaction with the cursor."""
        producer = self._producer
        if producer is None:
            raise ReconnectFirst("the producer is not started")
        if self._is_open:
            producer = await self._begin_anew()
        self._forget_old_topics()
        self._put_positions(records, positions)
        answers: list[BridgeError | None] = [None] * len(records)
        fresh = [
            (at, record) for at, record in enumerate(records) if not self._cursor.has(positions[at])
        ]
        batches = await self._packed(producer, fresh, answers)
        try:
            while batches:
                batches = await self._sent_once(batches, positions, answers)
        except BridgeError:
            self._topics.clear()
            raise
        return answers if any(answers) else ALL_DONE

    async def _sent_once(
        self, batches: list[Batch], positions: Sequence[int], answers: list[BridgeError | None]
    ) -> list[Batch]:
        """One transaction; returns the batches of the next if Kafka refused this one for its records."""
        producer = self._producer
        assert producer is not None
        sent = {positions[at] for batch in batches for at, _ in batch.records}
        others = [
            position
            for position in positions
            if position not in sent and not self._cursor.has(position)
        ]
        cursor = self._cursor.after(self._place.run, sent, others, self._place.settled())
        self._is_open = True
        try:
            await producer.begin_transaction()
        except Exception as error:
            raise TryAgain(f"the producer takes no transaction: {error}") from error
        failed = await self._failed(producer, [*batches, self._cursor_batch(producer, cursor)])
        if not failed:
            await self._commit(producer)
            self._cursor = cursor
            self._is_open = False
            return []
        errors = {id(batch): meant(error, f"the topic {batch.topic!r}") for batch, error in failed}
        if not any(isinstance(error, NeverAgain) for error in errors.values()):
            raise await self._why(failed[0][1], failed[0][0].topic)
        producer = await self._begin_anew()  # which ends the transaction
        again: list[Batch] = []
        for batch in batches:
            again += without_refused(producer, batch, errors.get(id(batch)), answers)
        return again

    async def _failed(
        self, producer: AIOKafkaProducer, batches: Sequence[Batch]
    ) -> list[tuple[Batch, BaseException]]:
        """Send batches, those of a partition one after the other, up to the first failure; returns what failed then."""
        while batches:
            heads, batches = first_of_each(batches)
            results = await self._results(producer, heads)
            if failed := [
                (head, error)
                for head, error in zip(heads, results, strict=True)
                if error is not None
            ]:
                return failed
        return []

    def _cursor_batch(self, producer: AIOKafkaProducer, cursor: Cursor) -> Batch:
        batch = Batch(producer, self._settings.cursor_topic, 0)
        now_ms = self._context.services.node.clock.now_ns() // 1_000_000
        batch.add(
            0,
            Record(self._settings.cursor_topic, 0, self._id.encode(), cursor.encode(), now_ms, []),
        )
        return batch

    async def _commit(self, producer: AIOKafkaProducer) -> None:
        [error] = await self._patiently([asyncio.create_task(producer.commit_transaction())])
        if error is not None:
            raise await self._why(error, self._settings.cursor_topic)

    async def _why(self, error: BaseException, topic: str) -> BridgeError:
        """The error for a transaction that did not end well; the next send starts a new producer."""
        if isinstance(error, _FENCED):
            return TryAgain(
                "another producer took over the transactional id; this one takes it back"
            )
        cause = await self._cause(topic, meant(error, f"the topic {topic!r}"))
        return (
            cause
            if isinstance(cause, (BadSettings, TargetMissing, TargetUnusable))
            else ReconnectFirst(str(cause))
        )


_log = get_logger(__name__)

# Configuration of a topic for cursors: one is written with each batch, and only the last of each action is read.
COMPACTED: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
# Records from the end that are searched for a cursor first; ten times as many each time it is not there.
_FIRST_LOOK: Final = 1000
# Longest wait for transactions of others that are open in the cursors' topic.
_READ_S: Final = 20.0


class Cursor(msgspec.Struct, frozen=True):
    """Rows below ``next`` are in Kafka, without those ``left`` out."""

    run: str
    next: int
    left: tuple[int, ...] = ()

    def has(self, position: int) -> bool:
        """True if a row is in Kafka."""
        return position < self.next and position not in self.left

    def after(self, run: str, sent: Iterable[int], not_sent: Iterable[int], settled: int) -> Cursor:
        """The cursor with a batch. Positions below ``settled`` are no longer asked for."""
        now = set(sent)
        next = max((self.next, *(position + 1 for position in now)))
        left = {row for row in (*self.left, *not_sent) if settled <= row < next and row not in now}
        return Cursor(run, next, tuple(sorted(left)))

    def encode(self) -> bytes:
        """The content of the record."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """The cursor of a record's content. Raises ``msgspec.MsgspecError``."""
        return msgspec.json.decode(data, type=cls)


async def read_cursor(cluster: KafkaCluster, topic: str, key: bytes) -> Cursor | None:
    """The last committed cursor of that key, or None.

    Raises:
        ReconnectFirst: it could not be read to the end.
    """
    place = TopicPartition(topic, 0)
    reach = cluster.reach("cursor")
    ahead = AIOKafkaConsumer(**reach)
    consumer = AIOKafkaConsumer(**reach, isolation_level="read_committed")
    try:
        async with asyncio.timeout(_READ_S):
            await ahead.start()
            await consumer.start()
            ahead.assign([place])
            consumer.assign([place])
            # The end that consumers of committed records see lies before the first open transaction, no matter which
            end = (await ahead.end_offsets([place]))[place]
            begin = (await ahead.beginning_offsets([place]))[place]
            look = _FIRST_LOOK
            while True:
                start = max(begin, end - look)
                cursor = await _last(consumer, place, start, end, key)
                if cursor is not None or start == begin:
                    return cursor
                look *= 10
    except TimeoutError:
        raise ReconnectFirst(
            f"the topic {topic!r} could not be read within {_READ_S:g} s"
        ) from None
    except KafkaError as error:
        raise meant(error, f"the topic {topic!r}") from error
    finally:
        await end_consumer(ahead)
        await end_consumer(consumer)


async def _last(
    consumer: Any, place: TopicPartition, start: int, end: int, key: bytes
) -> Cursor | None:
    cursor: Cursor | None = None
    consumer.seek(place, start)
    while await consumer.position(place) < end:
        for record in (await consumer.getmany(place, timeout_ms=200)).get(place, []):
            if record.key == key:
                cursor = None if record.value is None else Cursor.decode(record.value)
    return cursor


def begun(cursor: Cursor | None, run: str, begin: int, action: str) -> Cursor:
    """The cursor to start from.

    One of an earlier run that is ahead of the buffer's position at the start is of another time: the store was restored
    from a copy. It says nothing then about the rows in Kafka.
    """
    if cursor is None:
        return Cursor(run, 0)
    if cursor.run != run and cursor.next > begin:
        _log.warning("kafka.cursor_ahead", action=action, cursor=cursor.next, buffer=begin)
        return Cursor(run, 0)
    return cursor
