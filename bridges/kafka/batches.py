"""Batches of Kafka, each for one partition, made of records here: that is five times as fast as handing the producer
one record at a time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.partitioner import murmur2

from bridges.kafka.record import Record
from bridges.resource.errors import TryAgain


class Batch:
    """A batch of Kafka for one partition, and which of the records handed over are in it."""

    def __init__(self, producer: AIOKafkaProducer, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self._builder = producer.create_batch()
        self._append = self._builder._builder.append
        self.records: list[tuple[int, Record]] = []

    def add(self, at: int, record: Record) -> bool:
        """Put a record in; False when there is no room, and there is something in it."""
        # aiokafka's own ``append`` around this one takes longer than packing does
        records = self.records
        if (
            self._append(
                len(records), record.timestamp_ms, record.key, record.value, record.headers
            )
            is None
        ):
            return False
        records.append((at, record))
        return True

    def halves(self, producer: AIOKafkaProducer) -> list[Batch]:
        """Two batches of these records."""
        half = len(self.records) // 2
        return [self.copy(producer, self.records[:half]), self.copy(producer, self.records[half:])]

    def copy(self, producer: AIOKafkaProducer, records: Sequence[tuple[int, Record]]) -> Batch:
        """A batch for the same partition; one that was sent cannot be sent again."""
        batch = Batch(producer, self.topic, self.partition)
        for at, record in records:
            batch.add(at, record)
        return batch

    async def send(self, producer: AIOKafkaProducer) -> None:
        """Send it; raises what Kafka says."""
        self._builder._relative_offset = len(self.records)
        self._builder.close()
        # A topic it has seen without being asked for it, aiokafka forgets when it is asked for another: then it would
        # look for the leader in vain, without a pause, and nothing more is sent
        await producer.client.add_topic(self.topic)
        try:
            future = await producer.send_batch(self._builder, self.topic, partition=self.partition)
        except AssertionError:  # aiokafka's word for a partition that it has not heard of
            await producer.client.force_metadata_update()
            raise TryAgain(
                f"the topic {self.topic!r} has other partitions than a moment ago"
            ) from None
        await future


def first_of_each(batches: Sequence[Batch]) -> tuple[list[Batch], list[Batch]]:
    """The first batch of each partition, and the others: what follows one that must be split may not overtake it."""
    heads = list({(batch.topic, batch.partition): batch for batch in reversed(batches)}.values())
    return heads, [batch for batch in batches if batch not in heads]


class Packing:
    """Puts records of one topic into batches; new ones are added to ``all_batches`` in the order they are begun."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        topic: str,
        partitions: Partitions,
        all_batches: list[Batch],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = partitions
        self._all = all_batches
        self._sticky = partitions.sticky()
        self._open: dict[int, Batch] = {}
        self._of_key: dict[bytes | None, Batch] = {}
        """Batches that have room, by the keys whose records go there; empty where the key does not say where."""

    def put(self, at: int, record: Record) -> bool:
        """Put a record into a batch; False when the partition that it names is not there."""
        partition = record.partition
        key = record.key
        if (
            partition is None
            and (batch := self._of_key.get(key)) is not None
            and batch.add(at, record)
        ):
            return True
        if partition is None:
            partition = self._partitions.pick(key, self._sticky)
        elif partition not in self._partitions.numbers:
            return False
        batch = self._open.get(partition)
        if batch is None or not batch.add(at, record):
            self._of_key.clear()  # a smaller record of another key may not go before the one that had no room
            batch = self._open[partition] = Batch(self._producer, self._topic, partition)
            self._all.append(batch)
            batch.add(at, record)
        if record.partition is None and self._partitions.is_by_key:
            self._of_key[key] = batch
        return True


# Keys whose partition is remembered: hashing one takes some 10 µs in Python.
_KEPT: Final = 65_536


class Partitions:
    """The partitions of one topic. ``strategy`` is that of the settings."""

    def __init__(
        self,
        numbers: Sequence[int],
        strategy: str,
        choose: Callable[[Sequence[int]], int] = random.choice,
    ):
        self.numbers = sorted(numbers)
        self._strategy = strategy
        self._choose = choose
        self.is_by_key = strategy != "random"
        """True if records of one key, in one batch, go to one partition."""
        self._of_key: dict[bytes, int] = {}

    def pick(self, key: bytes | None, sticky: int) -> int:
        """For one record; ``sticky`` is what the batch stays with (``sticky()``)."""
        if self._strategy == "random":
            return self._choose(self.numbers)
        if key is None or self._strategy == "sticky":
            return sticky
        partition = self._of_key.get(key)
        if partition is None:
            if len(self._of_key) >= _KEPT:
                self._of_key.clear()
            partition = self._of_key[key] = self.numbers[
                (murmur2(key) & 0x7FFFFFFF) % len(self.numbers)
            ]
        return partition

    def sticky(self) -> int:
        """A partition for a whole batch."""
        return self._choose(self.numbers)
