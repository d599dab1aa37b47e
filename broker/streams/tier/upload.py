"""Uploads sealed segments of streams, and deletes expired ones: a thread of the range server.

What to do is in the key space of the store (``broker.streams.tier.report``), written by the broker. What is done is
told to the broker, which records it; until it shows there, it may be done again: an upload replaces nothing, and a
segment that a killed process has left behind is compared with the stream and then taken as uploaded.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from broker.core.errors import SluiceError, Unavailable
from broker.core.lazy_module import LazyModule
from broker.storage.rocksdb.follower import Follower, RangeMissing
from broker.storage.store import LogShard
from broker.streams.settled import Settled
from broker.streams.tier import report, segment
from broker.streams.tier.objects import TierStore, TierStores
from broker.streams.tier.report import (
    Expired,
    Held,
    Removed,
    Segment,
    TierReport,
    TierState,
    Uploaded,
    Wanted,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")

_STEP_S: Final = 0.5
# Interval of steps while no stream has a tier.
_IDLE_STEP_S: Final = 3.0
# Pause after a failure.
_PAUSE_S: Final = 5.0
# Interval of checks of a store that has nothing to do.
_CHECK_S: Final = 15.0
# Time limit for the broker to record a report.
_RECORD_S: Final = 10.0
_EXPIRE_S: Final = 5.0
_NO_OFFSET: Final = 2**63
# Maximum number of expired segments of a shard that are deleted at each check.
_EXPIRED_AT_ONCE: Final = 100


class OtherRecords(SluiceError):
    """The tier has other records under the offsets of the stream."""

    code = "tier_differs"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(
            f"the tier has {name}, {why}; the data directory may be an older copy. Try: move that object away, or "
            "create the stream again."
        )


@dataclass(slots=True)
class _Shard:
    """State of a shard: the last segment that was reported to the broker, and when; since when records wait;
    and whether there is nothing in the tier behind that."""

    told: Segment | None = None
    told_at_s: float = 0.0
    waits_since_s: float | None = None
    is_behind_clear: bool = False


@dataclass(slots=True)
class _Log:
    """State of the work on a log: the end of its pause, the last answer of its store, the last check for expired
    segments, what was reported."""

    paused_until_s: float = 0.0
    succeeded_at_s: float | None = None
    expired_at_s: float | None = None
    told: TierState | None = None


class Uploads:
    """Keeps tiers up with their streams."""

    def __init__(
        self,
        follower: Follower,
        stores: TierStores,
        tell: Callable[[TierReport], None],
        monotonic_s: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._follower = follower
        self._stores = stores
        self._tell = tell
        self._monotonic_s = monotonic_s
        self._now_s = now_s
        self._settled = Settled(monotonic_s)
        self._logs: dict[int, _Log] = {}
        self._shards: dict[LogShard, _Shard] = {}

    def run(self) -> None:
        """Work until the process ends."""
        while True:
            try:
                is_busy = self.step()
            except Exception as error:  # noqa: BLE001 - rocksdict raises nothing more exact; tried again
                print(f"range server: tiers: {error!r}", file=sys.stderr)
                is_busy = False
            if not is_busy:
                time.sleep(_STEP_S if self._logs else _IDLE_STEP_S)

    def step(self) -> bool:
        """Do what there is to do once: at most one segment a shard; whether there may be more."""
        self._follower.refresh()
        is_busy = False
        for key, value in list(self._follower.scan(report.WANTED)):
            log = int(key.removeprefix(report.WANTED))
            state = self._logs.setdefault(log, _Log())
            if self._monotonic_s() < state.paused_until_s:
                continue
            try:
                is_busy |= self._keep(log, state, report.unpack_wanted(value))
                self._report(log, state, None)
            except Exception as error:  # noqa: BLE001 - one tier must not stop the others
                state.paused_until_s = self._monotonic_s() + _PAUSE_S
                self._report(log, state, str(error) or repr(error))
        return is_busy

    def _keep(self, log: int, state: _Log, wanted: Wanted) -> bool:
        store = self._stores.at(wanted.url)
        shards = [LogShard(log, number) for number in wanted.numbers]
        if wanted.is_removed:
            self._remove(store, wanted, log)
            return False
        now_s = self._monotonic_s()
        if state.expired_at_s is None or now_s - state.expired_at_s >= _EXPIRE_S:
            state.expired_at_s = now_s
            for shard in shards:
                self._expire(store, wanted, shard)
        did = [self._extend(store, wanted, shard) for shard in shards]
        now_s = self._monotonic_s()
        if any(did) or state.succeeded_at_s is None or now_s - state.succeeded_at_s >= _CHECK_S:
            if not any(did):
                store.check()
            state.succeeded_at_s = now_s
        return any(did)

    def _extend(self, store: TierStore, wanted: Wanted, shard: LogShard) -> bool:
        """Upload a segment, if one is due; whether one was."""
        state = self._shards.setdefault(shard, _Shard())
        local = self._follower.range_of(shard)
        tiered = report.unpack_held(self._follower.get(report.held_key(shard)))
        if local.next_offset < tiered.next_offset:
            raise OtherRecords(
                f"offsets up to {tiered.next_offset}", f"and the stream ends at {local.next_offset}"
            )
        if state.told is not None and tiered.next_offset < state.told.next_offset:
            if self._monotonic_s() - state.told_at_s < _RECORD_S:
                tiered = tiered.with_segment(state.told)
            else:
                state.told = None
                state.is_behind_clear = False
        start = max(tiered.next_offset, local.first_offset)
        end = self._settled.offset(shard, local)
        if not self._is_due(wanted, shard, state, start, end):
            return False
        try:
            next_segment = self._made(store, wanted, shard, tiered, start, end)
        except RangeMissing:
            return False  # retention was faster; the next step sees it
        if next_segment is None:
            return False
        state.told, state.told_at_s, state.waits_since_s = next_segment, self._monotonic_s(), None
        self._tell(Uploaded(*shard, next_segment))
        return True

    def _is_due(self, wanted: Wanted, shard: LogShard, state: _Shard, start: int, end: int) -> bool:
        if end <= start:
            state.waits_since_s = None
            return False
        now_s = self._monotonic_s()
        if state.waits_since_s is None:
            state.waits_since_s = now_s
        if (end - start) * self._follower.average_bytes(shard) >= segment.SEGMENT_BYTES:
            return True
        return (now_s - state.waits_since_s) * 1_000_000 >= wanted.after_us

    def _made(
        self, store: TierStore, wanted: Wanted, shard: LogShard, held: Held, start: int, end: int
    ) -> Segment | None:
        """The segment that begins at the first offset due: there already, or uploaded now."""
        folder = segment.folder_of(wanted, shard.shard)
        state = self._shards[shard]
        if not state.is_behind_clear:
            left = self._left_behind(store, folder, start)
            if left is not None and left.first_offset == start:
                return left if self._is_same(store, folder, shard, left, end) else None
            state.is_behind_clear = left is None
            end = end if left is None else min(end, left.first_offset)
        built = segment.build(
            self._follower.frames(shard, start, end), start, end, held.running_max_us
        )
        name = f"{folder}/{segment.name_of(built.segment)}"
        store.put_new(name, built.content)
        if (size := store.size_of(name)) != len(built.content):
            raise Unavailable(
                f"the segment {name}: expected {len(built.content)} bytes in the store, got {size}"
            )
        return built.segment

    def _left_behind(self, store: TierStore, folder: str, start: int) -> Segment | None:
        """The first segment from an offset on that is in the store."""
        names = store.sizes(folder, f"{start:018d}")
        segments = (segment.parse_name(name, size) for name, size in names)
        return min(
            (candidate for candidate in segments if candidate is not None),
            key=lambda candidate: candidate.first_offset,
            default=None,
        )

    def _is_same(
        self, store: TierStore, folder: str, shard: LogShard, left: Segment, settled: int
    ) -> bool:
        """True if a segment has the records of the stream; False while the stream is not settled up to its end.

        Raises:
            OtherRecords: it has others.
        """
        name = f"{folder}/{segment.name_of(left)}"
        if settled < left.next_offset:
            if self._follower.range_of(shard).next_offset < left.next_offset:
                raise OtherRecords(name, f"and the stream ends at offset {settled}")
            return False
        content = store.read(name, 0, left.size_bytes)
        places = segment.unpack_index(content, name)
        pieces = (content[place.position : place.position + place.length] for place in places)
        theirs = [
            segment.unpack_frame(piece, place, name).batch()
            for piece, place in zip(pieces, places, strict=True)
        ]
        ours = self._follower.messages(shard, left.first_offset, left.next_offset)
        batches = [
            pa.ipc.read_record_batch(pa.py_buffer(message), records.SCHEMA) for message in ours
        ]
        if not pa.Table.from_batches(theirs).equals(pa.Table.from_batches(batches)):
            raise OtherRecords(name, "which has other records than the stream at these offsets")
        return True

    def _expire(self, store: TierStore, wanted: Wanted, shard: LogShard) -> None:
        """Delete segments that are older than the retention, oldest first; of those that a table has not read, what
        exceeds their share."""
        unread = self._follower.get(report.unread_key(shard.log))
        if wanted.retention_us is None or unread is None:
            return
        oldest_us = self._now_s() * 1_000_000 - wanted.retention_us
        keep_from = report.unpack_unread(unread).get(shard.shard, _NO_OFFSET)
        segments = (
            report.unpack_segment(value)
            for _, value in self._follower.scan(report.segments_prefix(shard))
        )
        expired = list(takewhile(lambda candidate: candidate.running_max_us < oldest_us, segments))
        excess = (
            sum(candidate.size_bytes for candidate in expired if candidate.next_offset > keep_from)
            - wanted.unread_bytes
        )
        folder = segment.folder_of(wanted, shard.shard)
        for candidate in expired[:_EXPIRED_AT_ONCE]:
            if candidate.next_offset > keep_from:
                if excess <= 0:
                    return
                excess -= candidate.size_bytes
            store.delete([f"{folder}/{segment.name_of(candidate)}"])
            self._tell(Expired(*shard, candidate))

    def _remove(self, store: TierStore, wanted: Wanted, log: int) -> None:
        """Delete all objects of a removed stream, recorded or not."""
        for number in wanted.numbers:
            folder = segment.folder_of(wanted, number)
            names = [f"{folder}/{name}" for name, _ in store.sizes(folder)]
            store.delete(names)
        self._tell(Removed(log))

    def _report(self, log: int, state: _Log, problem: str | None) -> None:
        """Tell the broker how the work went, where that is new."""
        succeeded_us = state.told.succeeded_us if state.told is not None else 0
        if problem is None and state.succeeded_at_s is not None:
            succeeded_us = int(
                (self._now_s() - (self._monotonic_s() - state.succeeded_at_s)) * 1_000_000
            )
        told = TierState(log, problem, succeeded_us)
        before = state.told
        if (
            before is None
            or before.problem != problem
            or succeeded_us - before.succeeded_us > _CHECK_S * 500_000
        ):
            if problem is not None and (before is None or before.problem != problem):
                print(f"range server: tier of log {log}: {problem}", file=sys.stderr)
            state.told = told
            self._tell(told)


def start(follower: Follower, stores: TierStores, tell: Callable[[TierReport], None]) -> None:
    """Upload from a thread."""
    threading.Thread(target=Uploads(follower, stores, tell).run, name="tiers", daemon=True).start()
