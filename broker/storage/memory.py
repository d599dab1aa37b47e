"""A store that forgets when the process ends: for volatile nodes and for tests. A full implementation."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import pyarrow as pa

from broker.core.stream import ShardRange, StreamRecord
from broker.storage import records
from broker.storage.ordered_keys import OrderedKeys
from broker.storage.store import Batch, Committed, FrameEntry, KeyCursor, LogShard

# Size of a record in ``size_of`` in addition to its payload and topic.
_RECORD_OVERHEAD_BYTES = 64


@dataclass(slots=True)
class _Frame:
    """The records of one commit group; times are clamped to be at or after the epoch."""

    first_offset: int
    records: Sequence[StreamRecord]
    running_max_us: int

    @property
    def next_offset(self) -> int:
        return self.first_offset + len(self.records)

    def entry(self) -> FrameEntry:
        times = [record.ts_us for record in self.records]
        size = sum(
            len(record.payload) + len(record.topic) + _RECORD_OVERHEAD_BYTES
            for record in self.records
        )
        return FrameEntry(
            self.first_offset, self.next_offset, size, min(times), max(times), self.running_max_us
        )


@dataclass(slots=True)
class _Shard:
    frames: list[_Frame] = field(default_factory=list)
    next_offset: int = 0
    running_max_us: int = 0

    @property
    def first_offset(self) -> int:
        return self.frames[0].first_offset if self.frames else self.next_offset

    def frames_from(self, offset: int) -> list[_Frame]:
        position = bisect_right(self.frames, offset, key=lambda frame: frame.next_offset)
        return self.frames[position:]


class MemoryStore:
    """Implements ``broker.storage.store.Store``."""

    def __init__(self) -> None:
        self._shards: dict[LogShard, _Shard] = {}
        self._lock = threading.RLock()
        self._keys = OrderedKeys(self._lock)

    def commit(self, batch: Batch) -> Committed:
        with self._lock:
            firsts = {
                shard: self._append(shard, added) for shard, added in batch.appends.items() if added
            }
            for key, value in batch.puts.items():
                self._put(key, value)
            return Committed(firsts)

    def read(
        self, shard: LogShard, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        numbered: list[tuple[int, StreamRecord]] = []
        with self._lock:
            for frame in self._shard(shard).frames_from(from_offset):
                start = max(from_offset, frame.first_offset)
                piece = frame.records[start - frame.first_offset :][: limit - len(numbered)]
                numbered += enumerate(piece, start)
                if len(numbered) >= limit:
                    break
        return numbered

    def read_arrow(
        self, shard: LogShard, from_offset: int, to_offset: int
    ) -> Iterator[pa.RecordBatch]:
        with self._lock:
            frames = self._shard(shard).frames_from(from_offset)
        for frame in frames:
            start = max(from_offset, frame.first_offset)
            end = min(to_offset, frame.next_offset)
            if start >= end:
                return
            yield records.encode(
                start, frame.records[start - frame.first_offset : end - frame.first_offset]
            )

    def range_of(self, shard: LogShard) -> ShardRange:
        with self._lock:
            state = self._shard(shard)
            return ShardRange(shard.shard, state.first_offset, state.next_offset)

    def offset_at(self, shard: LogShard, ts_us: int) -> int:
        with self._lock:
            state = self._shard(shard)
            for frame in state.frames:
                if frame.running_max_us >= ts_us:
                    for position, record in enumerate(frame.records):
                        if record.ts_us >= ts_us:
                            return frame.first_offset + position
            return state.next_offset

    def shards(self) -> Sequence[LogShard]:
        with self._lock:
            return sorted(self._shards)

    def size_of(self, shard: LogShard) -> int:
        return sum(entry.size_bytes for entry in self.directory(shard))

    def directory(self, shard: LogShard, from_offset: int = 0) -> Iterator[FrameEntry]:
        with self._lock:
            frames = self._shard(shard).frames_from(from_offset)
        return (frame.entry() for frame in frames)

    def merge(self, shard: LogShard, first_offset: int, next_offset: int) -> None:
        with self._lock:
            frames = self._shard(shard).frames
            chosen = [
                f for f in frames if first_offset <= f.first_offset and f.next_offset <= next_offset
            ]
            if (
                not chosen
                or chosen[0].first_offset != first_offset
                or chosen[-1].next_offset != next_offset
            ):
                raise ValueError(
                    f"no frames of log {shard.log} make up offsets {first_offset} to {next_offset}"
                )
            position = frames.index(chosen[0])
            joined = [record for frame in chosen for record in frame.records]
            frames[position : position + len(chosen)] = [
                _Frame(first_offset, joined, chosen[-1].running_max_us)
            ]

    def trim(self, shard: LogShard, before_offset: int) -> None:
        with self._lock:
            state = self._shard(shard)
            state.frames = [frame for frame in state.frames if frame.next_offset > before_offset]

    def drop(self, log: int) -> None:
        with self._lock:
            self._shards = {
                shard: state for shard, state in self._shards.items() if shard.log != log
            }

    def get(self, key: bytes) -> bytes | None:
        return self._keys.get(key)

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            return iter(self._keys.under(prefix))

    def cursor(self, prefix: bytes) -> KeyCursor:
        return self._keys.cursor(prefix)

    def close(self) -> None:
        """Nothing to release."""

    def _append(self, shard: LogShard, added: Sequence[StreamRecord]) -> int:
        state = self._shards.setdefault(shard, _Shard())
        first = state.next_offset
        state.running_max_us = max(
            accumulate((r.ts_us for r in added), max, initial=state.running_max_us)
        )
        state.frames.append(_Frame(first, list(added), state.running_max_us))
        state.next_offset += len(added)
        return first

    def _shard(self, shard: LogShard) -> _Shard:
        return self._shards.get(shard) or _Shard()

    def _put(self, key: bytes, value: bytes | None) -> None:
        self._keys.put(key, value)
