"""Sealing: many small frames become one of 4 k to 64 k records.

A stream that takes 1,000 messages a second gets a frame every few milliseconds, and what is read later pays for each.
Runs of small neighbours are joined once they are worth it; readers see no difference. Frames stay near a megabyte,
because writing one holds the interpreter lock for about a millisecond a megabyte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from broker.core.lazy_module import LazyModule
from broker.storage.store import FrameEntry, LogShard, Store

if TYPE_CHECKING:
    from broker.storage import frames
else:
    frames = LazyModule("broker.storage.frames")

SMALL_RECORDS: Final = 4096
SMALL_BYTES: Final = 512 * 1024
"""A frame with fewer records and bytes than these is worth joining with its neighbours."""
MAX_RECORDS: Final = 65_536
MAX_BYTES: Final = 1024 * 1024
"""What a joined frame may hold."""
MAX_FRAMES: Final = 512
"""So many small frames are joined even when they hold little."""


class Run(NamedTuple):
    """Neighbouring frames to be joined: the offsets that they make up."""

    first_offset: int
    next_offset: int


class Sealer:
    """Joins frames of a store, a run at a time. Blocking; for the writer thread, between commits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sealed: dict[LogShard, int] = {}
        self._seen: dict[LogShard, int] = {}

    def seal(self, shard: LogShard) -> bool:
        """Join one run of the shard, if there is one worth it; whether there may be more."""
        held = self._store.range_of(shard)
        if self._seen.get(shard) == held.next_offset:
            return False
        run = self._next_run(shard, max(held.first_offset, self._sealed.get(shard, 0)))
        if run is None:
            self._seen[shard] = held.next_offset
            return False
        try:
            self._store.merge(shard, *run)
        except frames.CorruptFrame:
            self._sealed[shard] = run.next_offset  # left as it is; reported once
            raise
        return True

    def forget(self, log: int) -> None:
        """A log was dropped."""
        for known in (self._sealed, self._seen):
            for shard in [shard for shard in known if shard.log == log]:
                del known[shard]

    def _next_run(self, shard: LogShard, from_offset: int) -> Run | None:
        run: list[FrameEntry] = []
        size = 0
        for entry in self._store.directory(shard, from_offset):
            is_small = entry.records < SMALL_RECORDS and entry.size_bytes < SMALL_BYTES
            if run and not (is_small and _fits(run, size, entry)):
                if len(run) > 1:
                    return Run(run[0].first_offset, run[-1].next_offset)
                run, size = [], 0
            if is_small:
                run.append(entry)
                size += entry.size_bytes
                if _is_worth_it(run, size):
                    return Run(run[0].first_offset, entry.next_offset)
            else:
                self._sealed[shard] = entry.next_offset
        return None


def _fits(run: list[FrameEntry], size: int, entry: FrameEntry) -> bool:
    return size + entry.size_bytes <= MAX_BYTES and entry.next_offset - run[0].first_offset <= MAX_RECORDS


def _is_worth_it(run: list[FrameEntry], size: int) -> bool:
    records = run[-1].next_offset - run[0].first_offset
    return len(run) > 1 and (records >= SMALL_RECORDS or size >= SMALL_BYTES or len(run) >= MAX_FRAMES)
