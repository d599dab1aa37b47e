"""Streams as the range server reads them: what is on this machine, and before that what is in the tier."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

from broker.core.errors import NotFound, Unavailable
from broker.core.lazy_module import LazyModule
from broker.core.stream import ShardRange
from broker.storage.frames import Frame
from broker.storage.rocksdb.follower import Follower, FrameReader, RangeMissing
from broker.storage.store import LogShard
from broker.streams.tier import report
from broker.streams.tier.objects import ObjectMissing, TierStore, TierStores
from broker.streams.tier.report import Held, Segment
from broker.streams.tier.segment import (
    INDEX_GUESS,
    FramePlace,
    folder_of,
    index_length,
    name_of,
    unpack_frame,
    unpack_index,
)

if TYPE_CHECKING:
    from broker.storage import records
else:
    records = LazyModule("broker.storage.records")

# Bytes of neighbouring frames that are read at once.
_READ_BYTES: Final = 2 * 1024 * 1024
_CACHE_BYTES: Final = 16 * 1024 * 1024
# Memory of a frame's place.
_PLACE_BYTES: Final = 200
_T = TypeVar("_T")


class TieredReader(FrameReader):
    """Reads both."""

    def __init__(self, follower: Follower, stores: TierStores) -> None:
        super().__init__(time.sleep, time.monotonic)
        self._follower, self._stores, self._cache = follower, stores, _Cache(_CACHE_BYTES)

    def refresh(self) -> None:
        """See what was committed by now."""
        self._follower.refresh()

    def range_of(self, shard: LogShard) -> ShardRange:
        """The offsets that can be read; the broker records a segment before it trims the shard."""
        local = self._follower.range_of(shard)
        tiered = self._held(shard)
        first = tiered.first_offset if tiered.reaches(local.first_offset) else local.first_offset
        return ShardRange(shard.shard, first, local.next_offset)

    def frames(self, shard: LogShard, from_offset: int, to_offset: int) -> Iterator[Frame]:
        """See ``FrameReader``."""
        at = from_offset
        while at < to_offset:
            local = self._follower.range_of(shard)
            is_tiered = at < local.first_offset
            end = min(to_offset, local.first_offset) if is_tiered else to_offset
            frames_here = (
                self._tiered(shard, at, end) if is_tiered else self._follower.frames(shard, at, end)
            )
            try:
                for frame in frames_here:
                    yield frame
                    at = frame.next_offset
            except RangeMissing:
                if at >= self._follower.range_of(shard).first_offset or is_tiered:
                    raise  # else it was trimmed since, and is in the tier

    def offset_at(self, shard: LogShard, ts_us: int) -> int | None:
        """The first offset in the tier whose record's time is at or after the given one, None where it has none.

        Raises:
            Unavailable: the store does not answer.
        """
        self.refresh()  # without the newest segments it would be the first offset behind them
        first = self._held(shard).first_offset
        for _, value in self._follower.scan(
            report.segments_prefix(shard), report.segment_key(shard, first)
        ):
            segment = report.unpack_segment(value)
            if segment.running_max_us < ts_us:
                continue
            store, name = self._object(shard, segment)
            for place in self._index(store, name, segment):
                if place.running_max_us >= ts_us:
                    (frame,) = self._read(store, name, [place])
                    row = records.first_at(frame.batch(), ts_us)
                    if row is not None:
                        return place.first_offset + row
        return None

    def _tiered(self, shard: LogShard, from_offset: int, to_offset: int) -> Iterator[Frame]:
        at = from_offset
        while at < to_offset:
            segment = self._segment(shard, at)
            store, name = self._object(shard, segment)
            places = [
                place for place in self._index(store, name, segment) if at < place.next_offset
            ]
            for group in _groups([place for place in places if place.first_offset < to_offset]):
                try:
                    for frame in self._read(store, name, group):
                        yield frame
                        at = frame.next_offset
                except ObjectMissing as error:
                    self.refresh()
                    range_now = self.range_of(shard)
                    if at < range_now.first_offset:
                        raise RangeMissing(range_now) from error
                    raise

    def _segment(self, shard: LogShard, offset: int) -> Segment:
        """The segment that has an offset."""
        key = report.segment_key(shard, offset)
        for attempt in range(2):
            value = self._follower.last_before(report.segments_prefix(shard), key)
            segment = None if value is None else report.unpack_segment(value)
            if segment is not None and offset < segment.next_offset:
                return segment
            if attempt == 0:
                self.refresh()
        range_now = self.range_of(shard)
        if offset < range_now.first_offset:
            raise RangeMissing(range_now)
        raise Unavailable(
            f"no segment of the tier has offset {offset} of log {shard.log}, shard {shard.shard}"
        )

    def _object(self, shard: LogShard, segment: Segment) -> tuple[TierStore, str]:
        value = self._follower.get(report.wanted_key(shard.log))
        if value is None:
            raise NotFound("tier of log", str(shard.log))
        wanted = report.unpack_wanted(value)
        return self._stores.at(wanted.url), f"{folder_of(wanted, shard.shard)}/{name_of(segment)}"

    def _index(self, store: TierStore, name: str, segment: Segment) -> list[FramePlace]:
        def load() -> tuple[list[FramePlace], int]:
            end = store.read(name, max(0, segment.size_bytes - INDEX_GUESS), segment.size_bytes)
            if (length := index_length(end, name)) > len(end):
                end = store.read(name, segment.size_bytes - length, segment.size_bytes)
            places = unpack_index(end, name)
            return places, len(places) * _PLACE_BYTES

        return self._cache.get((name, -1), load)

    def _read(self, store: TierStore, name: str, group: list[FramePlace]) -> Iterator[Frame]:
        """Frames that are next to each other in an object."""
        start = group[0].position
        end = group[-1].position + group[-1].length

        def load() -> tuple[bytes, int]:
            return store.read(name, start, end), end - start

        content = self._cache.get((name, start, end), load)
        for place in group:
            at = place.position - start
            yield unpack_frame(content[at : at + place.length], place, name)

    def _held(self, shard: LogShard) -> Held:
        return report.unpack_held(self._follower.get(report.held_key(shard)))


def _groups(places: list[FramePlace]) -> Iterator[list[FramePlace]]:
    """The places, some at a time."""
    group: list[FramePlace] = []
    size = 0
    for place in places:
        if group and size + place.length > _READ_BYTES:
            yield group
            group = []
            size = 0
        group.append(place)
        size += place.length
    if group:
        yield group


class _Cache:
    """Most recently read values, up to a number of bytes; a larger one is not kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._held: OrderedDict[tuple[object, ...], tuple[object, int]] = OrderedDict()
        self._changing = threading.Lock()

    def get(self, key: tuple[object, ...], load: Callable[[], tuple[_T, int]]) -> _T:
        """Value of a key; loaded, with its size, if it is missing."""
        with self._changing:
            if entry := self._held.get(key):
                self._held.move_to_end(key)
                return entry[0]  # type: ignore[return-value]  # a key has values of one type
        value, size = load()
        with self._changing:
            if key not in self._held and size <= self._max_bytes // 2:
                self._held[key] = value, size
                self._bytes += size
            while self._bytes > self._max_bytes:
                self._bytes -= self._held.popitem(last=False)[1][1]
        return value
