"""Reading streams inside the broker: positions, times, small bounded pieces. Large ranges are the range server's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from broker.core.lazy_module import LazyModule
from broker.core.stream import ShardRange, StreamHistory, StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.store import LogShard, Store
from broker.streams.catalogue import Catalogue
from broker.streams.other_cells import OtherCells
from broker.streams.tier.logs import Logs
from broker.streams.topic_index.pages import IndexPages

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")

# The most that one read here gives.
MAX_RECORDS: Final = 10_000
# Records among which one read here looks for topics: a tenth of a second.
MAX_LOOKED_THROUGH: Final = 200_000


@dataclass(frozen=True, slots=True)
class Extent:
    """Content of a stream: records, bytes before compression, and the times of its ends in microseconds."""

    ranges: tuple[ShardRange, ...]
    size_bytes: int
    oldest_us: int | None
    newest_us: int | None

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(
            shard_range.next_offset - shard_range.first_offset for shard_range in self.ranges
        )

    @property
    def appended(self) -> int:
        """Number of records ever appended."""
        return sum(shard_range.next_offset for shard_range in self.ranges)


class StreamReader(StreamHistory):
    """Reads by stream name, shard and offset."""

    def __init__(
        self,
        store: Store,
        catalogue: Catalogue,
        pages: IndexPages | None = None,
        logs: Logs | None = None,
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._pages = pages
        self._logs: Logs = store if logs is None else logs
        self.others: OtherCells | None = None
        """The shards in other cells, where this process answers for several."""

    def extent(self, name: str) -> Extent:
        """Content of the stream on this machine now.

        Raises:
            NotFound: there is no such stream.
        """
        stream = self._catalogue.get(name)
        ends = [self._ends(shard) for shard in stream.shards]
        return Extent(
            self.ranges(name),
            sum(self._store.size_of(shard) for shard in stream.shards),
            min((oldest for oldest, _ in ends if oldest is not None), default=None),
            max((newest for _, newest in ends if newest is not None), default=None),
        )

    def ranges(self, stream: str) -> tuple[ShardRange, ...]:
        """Range of each shard of the stream on this machine now.

        Raises:
            NotFound: there is no such stream.
        """
        return tuple(self._store.range_of(shard) for shard in self._catalogue.get(stream).shards)

    def readable(self, stream: str) -> tuple[ShardRange, ...]:
        """Readable range of each shard now, in its tier or on this machine.

        Raises:
            NotFound: there is no such stream.
        """
        return tuple(self._logs.range_of(shard) for shard in self._catalogue.get(stream).shards)

    def range_of(self, stream: str, shard: int) -> ShardRange:
        """Readable range of one shard now, in its tier or on this machine.

        Raises:
            NotFound: there is no such stream or shard.
        """
        return self._logs.range_of(self._catalogue.get(stream).shard(shard))

    def offset_at(self, stream: str, shard: int, ts_us: int) -> int:
        """The first offset whose record was published at or after a time, else the next offset. Where it is in a tier,
        this blocks for as long as the object store takes.

        Raises:
            NotFound: there is no such stream or shard.
            Unavailable: the object store does not answer.
        """
        return self._logs.offset_at(self._catalogue.get(stream).shard(shard), ts_us)

    def read(
        self, stream: str, shard: int, from_offset: int, limit: int
    ) -> list[tuple[int, StreamRecord]]:
        """At most ``limit``, and never more than ``MAX_RECORDS``, records on this machine from an offset on.

        Raises:
            NotFound: there is no such stream or shard.
        """
        place = self._catalogue.get(stream).shard(shard)
        return list(self._store.read(place, from_offset, min(limit, MAX_RECORDS)))

    def time_of(self, stream: str, shard: int, offset: int) -> int | None:
        """See ``StreamHistory``."""
        if self.others is not None and (told := self.others.unread(stream, shard)) is not None:
            unread, time_us = told
            return time_us if unread <= offset else None
        return super().time_of(stream, shard, offset)

    def records(
        self,
        stream: str,
        shard: int,
        from_offset: int,
        topic_filter: TopicFilter | None = None,
        limit: int = MAX_RECORDS,
    ) -> Iterator[tuple[int, StreamRecord | None]]:
        """The records from an offset on, one by one; what is read ahead of them is one frame of the store.

        With a filter, those whose topics it matches, out of the next ``MAX_LOOKED_THROUGH`` or so, not counting records
        that the topic index passes over. If there are further ones, the last is None, with the offset to resume from;
        with the index this may be so after ``limit``. What is in a tier takes as long as the object store.

        Raises:
            NotFound: there is no such stream or shard.
            Unavailable: the object store does not answer.
        """
        place = self._catalogue.get(stream).shard(shard)
        range_now = self._logs.range_of(place)
        looked_through = 0
        end = range_now.next_offset
        if self._pages is not None and topic_filter is not None:
            start = max(from_offset, range_now.first_offset)
            is_tiered = start < self._store.range_of(place).first_offset
            page = (self._pages.ask if is_tiered else self._pages.read)(
                place, start, end, topic_filter, limit
            )
            if page is not None:
                yield from page.found
                if page.next_offset < end:
                    yield page.next_offset, None
                return
        for batch in self._logs.read_arrow(place, from_offset, end):
            matching = batch if topic_filter is None else records.of_topics(batch, topic_filter)
            for row in range(matching.num_rows):
                yield from records.decode(matching.slice(row, 1))
            looked_through += batch.num_rows
            following = batch.column(0)[-1].as_py() + 1
            if (
                topic_filter is not None
                and looked_through >= MAX_LOOKED_THROUGH
                and following < end
            ):
                yield following, None
                return

    def read_arrow(self, name: str, shard: int, from_offset: int, to_offset: int) -> pa.Table:
        """The records in ``[from_offset, to_offset)`` that are on this machine, at most ``MAX_RECORDS``.

        Raises:
            NotFound: there is no such stream or shard.
        """
        place = self._catalogue.get(name).shard(shard)
        end = min(
            to_offset, max(from_offset, self._store.range_of(place).first_offset) + MAX_RECORDS
        )
        return pa.Table.from_batches(
            self._store.read_arrow(place, from_offset, end), records.SCHEMA
        )

    def _ends(self, shard: LogShard) -> tuple[int | None, int | None]:
        """The time of the oldest and newest record, as recorded in the frames at the ends."""
        range_now = self._store.range_of(shard)
        if range_now.first_offset == range_now.next_offset:
            return None, None
        oldest = next(self._store.directory(shard), None)
        newest = next(self._store.directory(shard, range_now.next_offset - 1), None)
        return (oldest.min_ts_us if oldest else None), (newest.max_ts_us if newest else None)
