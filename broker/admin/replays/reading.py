"""The records of a stream's ranges in the order of their times, read a piece at a time in a thread."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.core.lazy_module import LazyModule
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.store import LogShard
from broker.streams.tier.logs import Logs

if TYPE_CHECKING:
    from broker.storage import records
else:
    records = LazyModule("broker.storage.records")

# Maximum records of a shard in one read.
_RECORDS: Final = 2_000
# Bytes after which a piece ends with its frame, which usually has 1 MiB.
_BYTES: Final = 4 * 1024 * 1024
# Records among which one piece looks for topics.
_LOOKED_THROUGH: Final = 65_536


@dataclass(slots=True)
class Piece:
    """Records of a shard that were asked for. All before ``following`` were checked, and ``expired`` of those no
    longer exist."""

    found: deque[tuple[int, StreamRecord]]
    following: int
    expired: int


def read_piece(
    logs: Logs, shard: LogShard, start: int, end: int, topic_filter: TopicFilter | None
) -> Piece:
    """The next records of ``[start, end)``. Blocks for milliseconds: for a thread.

    Raises:
        broker.core.errors.SluiceError: the store cannot be read.
    """
    stored = logs.range_of(shard)
    first = min(max(start, stored.first_offset), end)
    piece = Piece(deque(), first, first - start)
    if first >= stored.next_offset:  # lost with the power: the end was known before it was on disk
        piece.following = end
        piece.expired = end - start
        return piece
    most = _RECORDS if topic_filter is None else _LOOKED_THROUGH
    size = 0
    for batch in logs.read_arrow(shard, first, min(end, first + most)):
        wanted = batch if topic_filter is None else records.of_topics(batch, topic_filter)
        piece.found += records.decode(wanted)
        piece.following = batch.column(0)[-1].as_py() + 1
        size += wanted.nbytes
        if len(piece.found) >= _RECORDS or size >= _BYTES:
            break
    return piece


@dataclass(slots=True)
class ShardReading:
    """Progress in one shard: records up to ``position`` were handed out, up to ``following`` they were read."""

    shard: LogShard
    position: int
    end: int
    found: deque[tuple[int, StreamRecord]] = field(default_factory=deque)
    following: int = 0

    def __post_init__(self) -> None:
        self.following = self.position

    @property
    def is_read(self) -> bool:
        """True if nothing is left to read from the store."""
        return self.following >= self.end


class Step(NamedTuple):
    """A step in the reading of a shard, up to, not including, offset ``following``: a record at ``offset``, or none.
    Before or behind it ``expired`` records were gone, and ``skipped`` ones have other topics."""

    shard: int
    following: int
    expired: int
    skipped: int
    offset: int = -1
    record: StreamRecord | None = None


class MergedReading:
    """All ranges of a replay, merged by the records' times. Used on the event loop, which only ``fill`` leaves."""

    def __init__(
        self, logs: Logs, shards: list[ShardReading], topic_filter: TopicFilter | None
    ) -> None:
        self._logs = logs
        self._shards = shards
        self._filter = topic_filter

    @property
    def is_over(self) -> bool:
        """True if every record was handed out."""
        return all(shard.is_read and not shard.found for shard in self._shards)

    async def fill(self) -> list[Step]:
        """Read more of each shard that has no record in memory; the steps over those that are not handed out."""
        steps = []
        for reading in self._shards:
            if not reading.found and not reading.is_read:
                piece = await asyncio.to_thread(
                    read_piece,
                    self._logs,
                    reading.shard,
                    reading.following,
                    reading.end,
                    self._filter,
                )
                reading.found = piece.found
                reading.following = piece.following
                if piece.expired or not piece.found:
                    begin = reading.position
                    reading.position = reading.position + piece.expired
                    if not piece.found:
                        reading.position = piece.following
                    skipped = reading.position - begin - piece.expired
                    steps.append(
                        Step(reading.shard.shard, reading.position, piece.expired, skipped)
                    )
        return steps

    def next(self) -> Step | None:
        """The step to the earliest record in memory; None if a shard must be read first, or all are."""
        earliest: ShardReading | None = None
        for reading in self._shards:
            if not reading.found:
                if reading.is_read:
                    continue
                return None
            if earliest is None or reading.found[0][1].ts_us < earliest.found[0][1].ts_us:
                earliest = reading
        if earliest is None:
            return None
        offset, record = earliest.found.popleft()
        begin = earliest.position
        earliest.position = offset + 1 if earliest.found else earliest.following
        return Step(
            earliest.shard.shard,
            earliest.position,
            0,
            earliest.position - begin - 1,
            offset,
            record,
        )
