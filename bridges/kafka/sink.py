"""Rows as records of Kafka, a batch for each partition.

Records are packed into Kafka's own batches here, not handed to the producer one by one: that is five times as fast. The
framework's lanes keep the order of a key, the producer has one batch on the way to a partition at a time, and with
idempotence the broker refuses what would come out of order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import OutOfOrderSequenceNumber
from aiokafka.structs import TopicPartition

from bridges.kafka.batches import Batch, Packing, Partitions, first_of_each
from bridges.kafka.clients import connect_side_by_side, end_producer
from bridges.kafka.cluster import KafkaCluster, TopicLayout
from bridges.kafka.errors import meant
from bridges.kafka.headers import of_position
from bridges.kafka.record import Record, Renderer
from bridges.kafka.settings import KafkaActionSettings
from bridges.resource.contract import ALL_DONE, Answers, Context, Sink
from bridges.resource.errors import (
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
)
from broker.core.action import Row
from broker.core.message import Message

# A producer asks for its number for as long as no one gives it one.
_START_S: Final = 8.0
_ACKS: Final = {"all_isr": "all", "leader_only": 1, "none": 0}
# Bytes of a batch and its request in addition to the records.
_OVERHEAD_BYTES: Final = 512
# A batch that takes longer has the cluster asked whether it is there.
_PATIENCE_S: Final = 1.0
# Longest wait for that answer.
_ANSWER_S: Final = 4.0
# Longest wait for one broker to take a connection.
_CONNECT_S: Final = 2.0


class _Held(Exception):
    """Batches that must be sent again later, with the error; those sent with them are in Kafka."""

    def __init__(self, error: BridgeError, batches: Sequence[Batch]) -> None:
        super().__init__(str(error))
        self.error = error
        self.batches = batches


class KafkaSink(Sink):
    """The records of one action, through a producer of its own."""

    def __init__(
        self, cluster: KafkaCluster, settings: KafkaActionSettings, context: Context
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._context = context
        self._producer: AIOKafkaProducer | None = None
        self._topics: dict[str, Partitions] = {}
        self._checked_s = 0.0
        self._holding: dict[object, str] = {}
        self._new_topic: TopicLayout | None = None
        if settings.allow_auto_topic_creation:
            self._new_topic = TopicLayout(
                settings.new_topic_partitions,
                settings.new_topic_replication_factor,
                settings.new_topic_config,
            )
        self._renderer = Renderer(settings, context.services.schemas)
        self._fixed_topic = self._renderer.fixed_topic
        self.record = self._renderer.record  # type: ignore[assignment,method-assign]  # a call less for each row

    async def open(self) -> None:
        """Start the producer; look whether the topic is there, where it is the same for all rows."""
        settings = self._settings
        compression = None if settings.compression == "no_compression" else settings.compression
        producer = AIOKafkaProducer(
            **self._cluster.reach(self._context.name.replace(":", "-")),
            **self._transactional(),
            acks=_ACKS[settings.required_acks],
            enable_idempotence=settings.idempotence,
            compression_type=compression,
            max_batch_size=settings.max_batch_bytes,
            max_request_size=settings.max_batch_bytes + _OVERHEAD_BYTES,
            linger_ms=0,
        )
        connect_side_by_side(producer.client)
        self._producer = producer
        self._topics.clear()
        try:
            async with asyncio.timeout(_START_S):
                await producer.start()
            await self.check()
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise meant(error, self._cluster.settings.bootstrap_hosts) from error
            raise

    def _transactional(self) -> dict[str, Any]:
        """Further arguments of the producer."""
        return {}

    async def close(self) -> None:
        """Stop the producer; what it still has is not waited for."""
        producer = self._producer
        self._producer = None
        if producer is not None:
            await end_producer(producer)

    async def check(self) -> None:
        """Check that the topic exists, if it is the same for all rows."""
        if self._fixed_topic is not None:
            await self._look_up(self._fixed_topic)

    async def permission(self) -> str:
        """Check that the topic may be written to, if it is the same for all rows."""
        topic = self._fixed_topic
        if topic is None:
            return "not checked: each row has its own topic"
        await self._cluster.check_write(topic, self._topics[topic].numbers[0])
        return f"the topic {topic!r} may be written to"

    def record(self, row: Row, message: Message) -> Record:
        """The record of a row."""
        return self._renderer.record(row, message)

    async def send(self, records: Sequence[Record]) -> Answers:
        """Send a batch; returns when the brokers have it."""
        if self._producer is None:
            raise ReconnectFirst("the producer is not started")
        self._forget_old_topics()
        answers: list[BridgeError | None] = [None] * len(records)
        batches = await self._packed(self._producer, enumerate(records), answers)
        while batches:
            heads, later = first_of_each(batches)
            try:
                batches = [*await self._sent(heads, answers), *later]
            except _Held as held:
                self._topics.clear()  # partitions may have moved, topics gone
                for batch in (*held.batches, *later):
                    for at, _ in batch.records:
                        answers[at] = held.error
                break
        return answers if any(answers) else ALL_DONE

    async def send_at(self, records: Sequence[Record], positions: Sequence[int]) -> Answers:
        """The same, with headers of their places."""
        self._put_positions(records, positions)
        return await self.send(records)

    def _put_positions(self, records: Sequence[Record], positions: Sequence[int]) -> None:
        place = self._context.place
        if place is not None and self._settings.position_headers:
            for record, position in zip(records, positions, strict=True):
                # others may have the same list
                record.headers = record.headers + of_position(place.id, position)

    async def _sent(
        self, batches: Sequence[Batch], answers: list[BridgeError | None]
    ) -> list[Batch]:
        """Send batches; returns those to send next, parts of batches that Kafka refused as a whole.

        Raises:
            _Held: some must be sent again later.
        """
        assert self._producer is not None
        results = await self._results(self._producer, batches)
        failed = [
            (batch, result)
            for batch, result in zip(batches, results, strict=True)
            if result is not None
        ]
        if not failed:
            return []
        errors = [(batch, meant(error, f"the topic {batch.topic!r}")) for batch, error in failed]
        if not any(isinstance(error, NeverAgain) for _, error in errors):
            batch, error = next(
                (failure for failure in errors if isinstance(failure[1], ReconnectFirst)), errors[0]
            )
            raise _Held(await self._cause(batch.topic, error), [failure for failure, _ in failed])
        # aiokafka has counted the refused batch, so that Kafka refuses what follows it by its number
        try:
            await self._renew()
        except BridgeError as gone:
            raise _Held(gone, [failure for failure, _ in failed]) from gone
        again: list[Batch] = []
        retried: BridgeError | None = None
        for (batch, error), (_, cause) in zip(errors, failed, strict=True):
            again += without_refused(self._producer, batch, error, answers)
            if not isinstance(error, NeverAgain) and not isinstance(
                cause, OutOfOrderSequenceNumber
            ):
                retried = retried or error
        if retried is not None:
            raise _Held(retried, again)
        return again

    async def _results(
        self, producer: AIOKafkaProducer, batches: Sequence[Batch]
    ) -> Sequence[BaseException | None]:
        """The error of each batch, or None."""
        doing = {asyncio.create_task(batch.send(producer)): batch for batch in batches}
        return await self._patiently(
            list(doing), lambda task: self._why_slow(producer, doing[task])
        )

    async def _patiently(
        self,
        doing: Sequence[asyncio.Task[None]],
        why_slow: Callable[[asyncio.Task[None]], Awaitable[str]] | None = None,
    ) -> Sequence[BaseException | None]:
        """The errors of tasks.

        aiokafka retries for as long as a request may take. In between, the cluster and what holds up the first task are
        checked, so that the state shows it sooner; where the cluster does not answer, that is the error of the rest.
        """
        gone: BridgeError | None = None
        me = object()
        try:
            while slow := (await asyncio.wait(doing, timeout=_PATIENCE_S))[1]:
                async with asyncio.timeout(_ANSWER_S):
                    await self._cluster.check()
                if why_slow is not None:
                    self._note_held_up(me, await why_slow(min(slow, key=doing.index)))
        except BridgeError as error:
            gone = error
        except TimeoutError:
            gone = ReconnectFirst(f"{self._cluster.settings.bootstrap_hosts}: no answer")
        finally:
            self._note_held_up(me, "")
            for task in doing:
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)
        return [
            gone or asyncio.CancelledError() if task.cancelled() else task.exception()
            for task in doing
        ]

    def _note_held_up(self, who: object, why: str) -> None:
        """Note the obstacle of a batch that waits; batches that come through say nothing about the others."""
        self._holding.pop(who, None)
        if why:
            self._holding[who] = why
        self.held_up = next(iter(self._holding.values()), "")

    async def _why_slow(self, producer: AIOKafkaProducer, batch: Batch) -> str:
        """The problem with the leader of a batch's partition, as far as can be seen; empty if it can be reached.

        Raises ``ReconnectFirst`` if it is no longer the leader, and aiokafka still waits for its answer.
        """
        place = f"partition {batch.partition} of {batch.topic!r}"
        cluster = producer.client.cluster
        number = cluster.leader_for_partition(TopicPartition(batch.topic, batch.partition))
        leader = cluster.broker_metadata(number)
        if leader is None:
            return f"{place} has no leader"
        try:
            async with asyncio.timeout(_CONNECT_S):
                await self._cluster.reached(leader.host, leader.port)
        except BridgeError as error:
            return f"broker {number}, the leader of {place}: {error}"
        except TimeoutError:
            if await self._cluster.leader(batch.topic, batch.partition) not in (number, None):
                raise ReconnectFirst(
                    f"{leader.host}:{leader.port}: no answer, and {place} has another leader"
                ) from None
            return f"broker {number}, the leader of {place}: {leader.host}:{leader.port}: no answer"
        return ""

    async def _cause(self, topic: str, error: BridgeError) -> BridgeError:
        """A producer that has no connection says that there is no topic: the cluster knows."""
        if not isinstance(error, TargetMissing):
            return error
        try:
            await self._cluster.partitions(topic)
        except BridgeError as cause:
            return cause
        return ReconnectFirst(
            f"{self._cluster.settings.bootstrap_hosts}: the producer has lost its brokers"
        )

    async def _renew(self) -> None:
        """A new producer, whose sequence numbers begin again; the present one has nothing on the way."""
        if self._settings.idempotence:
            await self._begin_anew()

    async def _begin_anew(self) -> AIOKafkaProducer:
        await self.close()
        await self.open()
        assert self._producer is not None
        return self._producer

    async def _packed(
        self,
        producer: AIOKafkaProducer,
        records: Iterable[tuple[int, Record]],
        answers: list[BridgeError | None],
    ) -> list[Batch]:
        packings: dict[str, Packing | BridgeError] = {}
        all_batches: list[Batch] = []
        largest = self._settings.max_batch_bytes
        for at, record in records:
            value = record.value
            topic = record.topic
            if value is not None and len(value) > largest:
                answers[at] = NeverAgain(
                    f"the record is larger than max_batch_bytes, which is {largest}"
                )
                continue
            packing = packings.get(topic)
            if packing is None:
                packing = packings[topic] = await self._packing(producer, topic, all_batches)
            if isinstance(packing, BridgeError):
                answers[at] = packing
            elif not packing.put(at, record):
                answers[at] = NeverAgain(f"the topic {topic!r} has no partition {record.partition}")
        return all_batches

    async def _packing(
        self, producer: AIOKafkaProducer, topic: str, all_batches: list[Batch]
    ) -> Packing | BridgeError:
        """The packing of a topic's records, or the error that the topic is missing or closed to us."""
        partitions = self._topics.get(topic)
        if partitions is None:
            try:
                partitions = await self._look_up(topic)
            except (TargetMissing, TargetUnusable) as error:
                if topic == self._fixed_topic:
                    raise
                return error
        return Packing(producer, topic, partitions, all_batches)

    async def _look_up(self, topic: str) -> Partitions:
        numbers = await self._cluster.partitions(topic, self._new_topic)
        topic_partitions = self._topics.get(topic)
        if topic_partitions is None or topic_partitions.numbers != sorted(numbers):
            topic_partitions = self._topics[topic] = Partitions(
                numbers, self._settings.partition_strategy
            )
        return topic_partitions

    def _forget_old_topics(self) -> None:
        """Partitions may be added while all goes well."""
        now_s = self._context.services.node.clock.monotonic_s()
        if now_s - self._checked_s > self._cluster.settings.metadata_max_age:
            self._checked_s = now_s
            self._topics.clear()


def without_refused(
    producer: AIOKafkaProducer,
    batch: Batch,
    error: BridgeError | None,
    answers: list[BridgeError | None],
) -> list[Batch]:
    """The batches that replace one: the same again, or its halves where Kafka refused it, since one record may be
    too large and not all; a record that was refused alone gets its answer."""
    if not isinstance(error, NeverAgain):
        return [batch.copy(producer, batch.records)]
    if len(batch.records) > 1:
        return batch.halves(producer)
    answers[batch.records[0][0]] = error
    return []
