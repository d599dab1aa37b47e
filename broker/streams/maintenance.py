"""Background work on streams: sealing, retention, forgetting removed ones. All on the writer thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from broker.core.clock import Clock
from broker.core.errors import SluiceError, Unavailable
from broker.core.lazy_module import LazyModule
from broker.observe.metrics import Metrics
from broker.storage.store import FrameEntry, LogShard, Store
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, Stream
from broker.streams.frame_sizes import MAX_FRAMES, SMALL_BYTES, SMALL_RECORDS, is_frame, is_small
from broker.streams.settings import UNREAD_ALARM, Retention, StreamSettings

T = TypeVar("T")
# Number of runs of frames of one shard that are joined before the next shard's turn.
_RUNS_A_TURN: Final = 32


class Maintenance:
    """Does the background work of all streams, one piece at a time between commits."""

    def __init__(
        self,
        catalogue: Catalogue,
        writer: Writer,
        settings: StreamSettings,
        clock: Clock,
        metrics: Metrics,
        ledger: TierLedger | None = None,
        unread_of: Callable[[str], Mapping[int, int]] = lambda _: {},
        alarms: Alarms | None = None,
    ) -> None:
        self._unread_of = unread_of
        self._alarms = alarms
        self._unread_alarms: set[str] = set()
        """Streams that have an alarm."""
        self._catalogue = catalogue
        self._writer = writer
        self._settings = settings
        self._clock = clock
        self._store = writer.store
        self._ledger = ledger
        self._sealer = Sealer(self._store)
        self._trimmed = metrics.counter("stream_records_trimmed", "records that retention forgot")
        self._joined = metrics.counter(
            "stream_frames_sealed", "runs of small frames joined into one"
        )
        self._failures = metrics.counter(
            "stream_maintenance_failed", "pieces of background work that failed"
        )
        self.is_sealing_put_off = False

    async def run(self) -> None:
        """Work until cancelled."""
        last_retention_s = float("-inf")
        while True:
            if not self.is_sealing_put_off:
                await self._guarded(self.seal_all)
            await self._guarded(self.drop_removed)
            now_s = self._clock.monotonic_s()
            if now_s - last_retention_s >= self._settings.retention_interval:
                last_retention_s = now_s
                await self._guarded(self.retain_all)
            await asyncio.sleep(self._settings.sealing_interval)

    async def seal_all(self) -> None:
        """Join what small frames are worth it, in every log."""
        for shard in self._store.shards():
            await self._guarded(functools.partial(self._seal, shard))

    async def retain_all(self) -> None:
        """Trim every stream to its retention.

        Records that its tier lacks or its tables have not read are trimmed only to keep to its bytes. Each tier learns
        which records its tables have not read.
        """
        now_us = self._clock.now_ns() // 1000
        for name in self._unread_alarms - {stream.name for stream in self._catalogue}:
            self._alert(name, 0, 1)
        for stream in self._catalogue:
            whole = stream.spec.retention
            lost = 0
            unread_bytes = 0
            share = Retention.model_construct(
                age=whole.age, bytes=whole.bytes // len(stream.shards)
            )
            unread = self._unread_of(stream.name)
            for shard in stream.shards:
                uploaded = self._uploaded(stream, shard)
                before = self._store.range_of(shard).first_offset
                unread_here = unread.get(shard.shard, uploaded)
                if stream.spec.tier is not None:  # what it has is read from there
                    unread_here = max(unread_here, uploaded)
                trim = functools.partial(
                    enforce, self._store, shard, share, now_us, min(uploaded, unread_here)
                )
                trimmed = await self._on_thread(trim)
                self._trimmed.value += trimmed
                lost += max(0, before + trimmed - max(before, uploaded))
                if shard.shard in unread:
                    count = functools.partial(bytes_from, self._store, shard, unread_here)
                    unread_bytes = max(unread_bytes, await self._on_thread(count))
            self._alert(stream.name, unread_bytes, share.bytes)
            if self._ledger is not None and stream.spec.tier is not None:
                self._ledger.look(stream, lost)
                part = await self._on_thread(
                    functools.partial(self._ledger.note_unread, stream, unread)
                )
                self._ledger.alert_unread(stream, part)

    def _alert(self, name: str, unread_bytes: int, share: int) -> None:
        """Raise or end the alarm of a stream of which a shard holds so many bytes that some table has not read."""
        if self._alarms is None:
            return
        is_full = unread_bytes > UNREAD_ALARM * share
        text = (
            f"stream {name!r}: records that its tables or replays have not read take "
            f"{100 * unread_bytes / share:.0f} % of retention.bytes; beyond it the oldest are deleted. Try: sluice "
            f"lake tables ls, or more retention.bytes."
        )
        self._alarms.set(f"stream_unread:{name}", is_full, text, stream=name, bytes=unread_bytes)
        (self._unread_alarms.add if is_full else self._unread_alarms.discard)(name)

    def _uploaded(self, stream: Stream, shard: LogShard) -> int:
        """The offset up to which age alone decides: the last where there is no tier."""
        if self._ledger is None or stream.spec.tier is None:
            return self._store.range_of(shard).next_offset
        return self._ledger.held(shard).next_offset

    async def drop_removed(self) -> None:
        """Forget the records of streams that were removed."""
        removed = self._catalogue.dropping()
        if removed:
            # records appended before the removal would bring the log back
            await self._writer.committed()
        for log in removed:
            await self._on_thread(functools.partial(self._drop, log))

    async def _seal(self, shard: LogShard) -> None:
        for _ in range(_RUNS_A_TURN):
            if not await self._on_thread(functools.partial(self._sealer.seal, shard)):
                break
            self._joined.value += 1

    def _drop(self, log: int) -> int:
        self._catalogue.drop(log)
        self._sealer.forget(log)
        return 0

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """A failing disk or a damaged frame must not end the work on the other streams."""
        try:
            await work()
        except SluiceError as error:
            self._failures.value += 1
            if not isinstance(error, Unavailable):  # a passing failure is counted only
                context = {"message": "background work on streams failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        results: list[T] = []

        def finish(error: BaseException | None) -> None:
            if done.cancelled():
                return
            if error is None:
                done.set_result(results[0])
            else:
                done.set_exception(error)

        self._writer.call(lambda: results.append(work()), finish)
        return await done


if TYPE_CHECKING:
    from broker.observe.alarms import Alarms
    from broker.storage import frames
    from broker.streams.tier.ledger import TierLedger
else:
    frames = LazyModule("broker.storage.frames")


LAST: Final = 2**63


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
        range_now = self._store.range_of(shard)
        if self._seen.get(shard) == range_now.next_offset:
            return False
        run = self._next_run(shard, max(range_now.first_offset, self._sealed.get(shard, 0)))
        if run is None:
            self._seen[shard] = range_now.next_offset
            return False
        try:
            self._store.merge(shard, *run)
        except frames.CorruptFrame:
            self._sealed[shard] = run.next_offset  # left as it is; reported once
            raise
        return True

    def forget(self, log: int) -> None:
        """A log was dropped."""
        for positions in (self._sealed, self._seen):
            for shard in [shard for shard in positions if shard.log == log]:
                del positions[shard]

    def _next_run(self, shard: LogShard, from_offset: int) -> Run | None:
        run: list[FrameEntry] = []
        size = 0
        for entry in self._store.directory(shard, from_offset):
            small = is_small(entry.records, entry.size_bytes)
            if run and not (small and _fits(run, size, entry)):
                if len(run) > 1:
                    return Run(run[0].first_offset, run[-1].next_offset)
                run = []
                size = 0
            if small:
                run.append(entry)
                size += entry.size_bytes
                if _is_worth_it(run, size):
                    return Run(run[0].first_offset, entry.next_offset)
            else:
                self._sealed[shard] = entry.next_offset
        return None


def _fits(run: list[FrameEntry], size: int, entry: FrameEntry) -> bool:
    return is_frame(entry.next_offset - run[0].first_offset, size + entry.size_bytes)


def _is_worth_it(run: list[FrameEntry], size: int) -> bool:
    records = run[-1].next_offset - run[0].first_offset
    return len(run) > 1 and (
        records >= SMALL_RECORDS or size >= SMALL_BYTES or len(run) >= MAX_FRAMES
    )


def bytes_from(store: Store, shard: LogShard, from_offset: int) -> int:
    """The size of a shard's frames from an offset on, before compression."""
    return sum(
        entry.size_bytes
        for entry in store.directory(shard, from_offset)
        if entry.next_offset > from_offset
    )


def trim_point(
    store: Store, shard: LogShard, retention: Retention, now_us: int, keep_from: int = LAST
) -> int:
    """The offset below which a shard's records may go.

    Args:
        store: where the shard is; only its directory is read.
        shard: the shard.
        retention: what to keep; ``bytes`` is this shard's share.
        now_us: the wall clock.
        keep_from: frames that end behind this offset go for the bytes only, whatever their age.
    """
    oldest_us = now_us - retention.age * 1_000_000
    excess_bytes = store.size_of(shard) - retention.bytes
    point = store.range_of(shard).first_offset
    for entry in store.directory(shard):
        is_old = entry.max_ts_us < oldest_us and entry.next_offset <= keep_from
        if not is_old and excess_bytes <= 0:
            break
        point = entry.next_offset
        excess_bytes -= entry.size_bytes
    return point


def enforce(
    store: Store, shard: LogShard, retention: Retention, now_us: int, keep_from: int = LAST
) -> int:
    """Trim a shard to its retention, see ``trim_point``; how many records went. Blocking; for the writer thread."""
    before = store.range_of(shard).first_offset
    point = trim_point(store, shard, retention, now_us, keep_from)
    if point > before:
        store.trim(shard, point)
    return point - before
