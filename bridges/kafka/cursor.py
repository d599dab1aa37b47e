"""Up to where the rows of an action are in Kafka: a record in a compacted topic, part of the transaction that they are
part of. So what it says and what is there cannot come apart, whatever crashes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Self

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from bridges.kafka.client import KafkaConnector
from bridges.kafka.ending import end_consumer
from bridges.kafka.errors import meant
from bridges.resource.errors import ReconnectFirst
from broker.observe.log import get_logger

_log = get_logger(__name__)

COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "segment.bytes": "16777216",
    "min.cleanable.dirty.ratio": "0.1",
}
"""How a topic for cursors is made: one is written with each batch, and only the last of each action is read."""
_FIRST_LOOK: Final = 1000
"""Records from the end in which a cursor is looked for first; ten times as many each time it is not there."""
_READ_S: Final = 20.0
"""Longest wait for transactions of others that are open in the cursors' topic."""


class Cursor(msgspec.Struct, frozen=True):
    """Rows below ``next`` are in Kafka, without those ``left`` out."""

    run: str
    next: int
    left: tuple[int, ...] = ()

    def has(self, position: int) -> bool:
        """Whether a row is in Kafka."""
        return position < self.next and position not in self.left

    def after(self, run: str, sent: Iterable[int], not_sent: Iterable[int], settled: int) -> Cursor:
        """The cursor with a batch. ``settled`` says below which nobody asks any more."""
        now = set(sent)
        next = max((self.next, *(position + 1 for position in now)))
        left = {one for one in (*self.left, *not_sent) if settled <= one < next and one not in now}
        return Cursor(run, next, tuple(sorted(left)))

    def encode(self) -> bytes:
        """As it stands in the record."""
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """What ``encode`` wrote. Raises ``msgspec.MsgspecError``."""
        return msgspec.json.decode(data, type=cls)


async def read_cursor(connector: KafkaConnector, topic: str, key: bytes) -> Cursor | None:
    """The last committed cursor of that key; None where there is none.

    Raises:
        ReconnectFirst: it could not be read to the end.
    """
    place = TopicPartition(topic, 0)
    reach = connector.reach("cursor")
    ahead = AIOKafkaConsumer(**reach)
    consumer = AIOKafkaConsumer(**reach, isolation_level="read_committed")
    try:
        async with asyncio.timeout(_READ_S):
            await ahead.start()
            await consumer.start()
            ahead.assign([place])
            consumer.assign([place])
            # The end for who reads what is committed lies before the first open transaction, whoever's it is
            end = (await ahead.end_offsets([place]))[place]
            begin = (await ahead.beginning_offsets([place]))[place]
            look = _FIRST_LOOK
            while True:
                start = max(begin, end - look)
                found = await _last(consumer, place, start, end, key)
                if found is not None or start == begin:
                    return found
                look *= 10
    except TimeoutError:
        raise ReconnectFirst(f"the topic {topic!r} could not be read within {_READ_S:g} s") from None
    except KafkaError as error:
        raise meant(error, f"the topic {topic!r}") from error
    finally:
        await end_consumer(ahead)
        await end_consumer(consumer)


async def _last(consumer: Any, place: TopicPartition, start: int, end: int, key: bytes) -> Cursor | None:
    found: Cursor | None = None
    consumer.seek(place, start)
    while await consumer.position(place) < end:
        for record in (await consumer.getmany(place, timeout_ms=200)).get(place, []):
            if record.key == key:
                found = None if record.value is None else Cursor.decode(record.value)
    return found


def begun(found: Cursor | None, run: str, begin: int, action: str) -> Cursor:
    """The cursor to go on from.

    One of an earlier run that is ahead of what the buffer held at the start is of another time: the store was restored
    from a copy. Nothing can be said then of what is in Kafka.
    """
    if found is None:
        return Cursor(run, 0)
    if found.run != run and found.next > begin:
        _log.warning("kafka.cursor_ahead", action=action, cursor=found.next, buffer=begin)
        return Cursor(run, 0)
    return found
