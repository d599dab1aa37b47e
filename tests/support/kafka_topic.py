"""A topic of a real Kafka for one test: made, written to, read to its end, changed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from aiokafka.protocol.admin import CreateAclsRequest

from tests.support.kafka_server import Kafka
from tests.support.waiting import until

Headers = Sequence[tuple[str, bytes | None]]


READ, WRITE, DESCRIBE = 3, 4, 8
"""Operations that are granted, as numbers of Kafka's protocol."""
_TOPIC, _LITERAL, _ALLOW = 2, 3, 3
_OPEN_TRANSACTION_S = 10.0
"""After so long a transaction counts as left open."""


class Topic:
    """A topic of its own."""

    def __init__(
        self, kafka: Kafka, partitions: int = 1, *, copies: int = 1, name: str = ""
    ) -> None:
        self.kafka, self.name, self.partitions = kafka, name or f"t-{uuid.uuid4().hex}", partitions
        self._copies = copies

    async def make(self, **config: str) -> Topic:
        """Make it; ``config`` has underscores for dots."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        new = NewTopic(self.name, self.partitions, self._copies, topic_configs=named)

        async def is_made() -> bool:
            async with self.admin() as admin:
                return bool((await admin.create_topics([new])).topic_errors[0][1] == 0)

        await until(is_made, "a topic of this name, once the one that was deleted is gone")
        return self

    async def delete(self) -> None:
        """Delete it."""
        async with self.admin() as admin:
            await admin.delete_topics([self.name])

    async def make_anew(self) -> None:
        """Delete it and make it again."""
        await self.delete()
        await self.make()

    async def grant(self, user: str, operation: int) -> None:
        """Allow a user something with it, as ``DESCRIBE``; the cluster has ``settings=WITH_RIGHTS``."""
        asked = CreateAclsRequest(
            _TOPIC, self.name, _LITERAL, f"User:{user}", "*", operation, _ALLOW
        )
        async with self.admin() as admin:
            answer = await admin._send_request(asked)
        assert answer.creation_responses[0][0] == 0, answer

    async def send(
        self, *values: bytes | None, partition: int = 0, headers: Headers = (), **record: Any
    ) -> None:
        """Write records."""
        producer = AIOKafkaProducer(bootstrap_servers=self.kafka.bootstrap)
        await producer.start()
        try:
            sent = [
                await producer.send(
                    self.name, value, partition=partition, headers=list(headers), **record
                )
                for value in values
            ]
            await asyncio.gather(*sent)
        finally:
            await producer.stop()

    async def records(self, *, committed: bool = False) -> list[ConsumerRecord]:
        """All that is in it, by partition and offset; with ``committed`` what a read-committed consumer sees."""
        places = [TopicPartition(self.name, number) for number in range(self.partitions)]
        isolation = "read_committed" if committed else "read_uncommitted"
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap,
            auto_offset_reset="earliest",
            isolation_level=isolation,
            max_partition_fetch_bytes=16 << 20,
        )
        await consumer.start()
        found: list[ConsumerRecord] = []
        try:
            consumer.assign(places)
            ends = (
                await self._stable_ends(consumer, places)
                if committed
                else await consumer.end_offsets(places)
            )
            for place in places:
                while await consumer.position(place) < ends[place]:
                    found += (await consumer.getmany(place, timeout_ms=100)).get(place, [])
        finally:
            await consumer.stop()
        return found

    async def _stable_ends(
        self, consumer: AIOKafkaConsumer, places: list[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Ends for readers of committed records. Kafka confirms a commit before its partitions show it, so these are
        awaited; a transaction that stays open holds them back."""
        written = AIOKafkaConsumer(bootstrap_servers=self.kafka.bootstrap)
        await written.start()
        try:

            async def are_stable() -> bool:
                return bool(await consumer.end_offsets(places) == await written.end_offsets(places))

            with suppress(AssertionError):
                await until(are_stable, timeout_s=_OPEN_TRANSACTION_S)
            return dict(await consumer.end_offsets(places))
        finally:
            await written.stop()

    async def committed_offset(self, group: str) -> int | None:
        """Where a group stands in the first partition."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.kafka.bootstrap, group_id=group, enable_auto_commit=False
        )
        await consumer.start()
        try:
            offset: int | None = await consumer.committed(TopicPartition(self.name, 0))
            return offset
        finally:
            await consumer.stop()

    async def leader(self, partition: int = 0) -> int:
        """The node that leads a partition; waits until there is one."""

        async def leaders() -> list[int]:
            async with self.admin() as admin:
                [found] = await admin.describe_topics([self.name])
            return [
                one["leader"]
                for one in found["partitions"]
                if one["partition"] == partition and one["leader"] >= 0
            ]

        [leader] = await until(
            leaders, f"a leader of partition {partition}", tolerated=(KafkaError,)
        )
        return leader

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[AIOKafkaAdminClient]:
        """A client for what is to be administered."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self.kafka.bootstrap)
        await admin.start()
        try:
            yield admin
        finally:
            await admin.close()
