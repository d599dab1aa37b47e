"""Commit groups: what the loop appends is written by one thread, a group at a time.

While a group is being written the next one gathers, so groups grow with the load and an idle store answers at once: no
timer, no added latency. The loop and the thread meet twice a group: when it is handed over and when it is done.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final

from broker.core.errors import Unavailable
from broker.core.stream import Append, StreamRecord
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.storage.settings import StoreSettings
from broker.storage.store import Batch, Committed, LogShard, Store

_log = get_logger(__name__)

_RETRY_S: Final = 1.0

Done = Callable[[BaseException | None], None]
Listener = Callable[[int, list[StreamRecord], list[object]], None]

# The share of the bound below which a congested backlog counts as relieved.
_RELIEF: Final = 0.5
# Number of appends in a turn of the loop from which a group that gathered during a commit waits another turn for more:
# a commit costs as much as ten records. Single records, or all at once, wait for nothing.
_BUSY: Final = 8
# A group does not wait longer than this.
_GATHER_S: Final = 0.005
# With a pace, the time from the begin of a commit to that of the next one, as a multiple of their average duration: no
# message waits for the pace of a store that is quick.
_PACE: Final = 1.25
# The share of the latest group in the average time of a commit.
_AVERAGE_WEIGHT: Final = 0.05
_COMMIT_BOUNDS_S: Final = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    5.0,
)


@dataclass(slots=True)
class _Group:
    """Changes that are committed together, and the callers that wait for it."""

    batch: Batch = field(default_factory=Batch)
    tokens: dict[LogShard, list[object]] = field(default_factory=dict)
    waiting: list[Done] = field(default_factory=list)
    size_bytes: int = 0
    put_bytes: int = 0
    """Bytes of keys and values put, as they wait in memory; a key put twice counts twice."""

    @property
    def records(self) -> int:
        """Number of records so far."""
        return sum(map(len, self.batch.appends.values()))

    @property
    def waiting_bytes(self) -> int:
        """Bytes that the group holds in memory until it is committed."""
        return self.size_bytes + self.put_bytes

    def records_of(self, shard: LogShard) -> list[StreamRecord]:
        """List that gathers the records of a shard."""
        return self.batch.appends.setdefault(shard, [])


@dataclass(slots=True)
class _Result:
    """Result of a group's commit; times in seconds."""

    committed: Committed | None
    error: Exception | None
    took_s: float


class _Figures:
    """Metrics of the writer."""

    def __init__(self, metrics: Metrics) -> None:
        self._groups = metrics.counter("store_groups", "commit groups written")
        self._records = metrics.counter("store_records", "records committed")
        self._bytes = metrics.counter("store_bytes", "payload bytes committed")
        self._failed_groups = metrics.counter(
            "store_groups_failed", "commit groups that could not be written"
        )
        self._failed_records = metrics.counter(
            "store_records_failed", "records of groups that could not be written"
        )
        self._took = metrics.histogram(
            "store_commit_seconds",
            _COMMIT_BOUNDS_S,
            "duration of commits in seconds, with the sync to the disk",
        )
        self.average_s = 0.0
        metrics.gauge(
            "store_commit_average_seconds",
            lambda: self.average_s,
            "moving average of the duration of a commit in seconds",
        )

    def note(self, records: int, size_bytes: int, took_s: float, *, failed: bool) -> None:
        """Count one group."""
        self._took.note(took_s)
        self.average_s += (took_s - self.average_s) * (_AVERAGE_WEIGHT if self._groups.value else 1)
        if failed:
            self._failed_groups.value += 1
            self._failed_records.value += records
            return
        self._groups.value += 1
        self._records.value += records
        self._bytes.value += size_bytes


class Writer:
    """Group commit over a store. All methods are for the loop's thread; callbacks are called there too.

    ``appended`` grows with every record appended and every key put.
    """

    def __init__(
        self,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        settings: StoreSettings | None = None,
        metrics: Metrics | None = None,
        pace_s: float = 0.0,
    ) -> None:
        """``pace_s``: seconds from the begin of a commit to that of the next one, where a commit costs others more than
        its records do; less where commits take less."""
        self.store = store
        self._pace_s = pace_s
        self._next_s = 0.0
        """When the next commit may begin."""
        self.appended = 0
        self.failure: Exception | None = None
        """Reason why the latest group failed, None once a group was written again."""
        self._retry: asyncio.TimerHandle | None = None
        settings = settings or StoreSettings()
        self._loop = loop
        self._max_bytes = settings.max_backlog_bytes
        self._max_records = settings.max_backlog_records
        self._open = _Group()
        self._flying: _Group | None = None
        self._is_scheduled = self._is_congested = False
        self._seen = 0
        self._began_s = 0.0
        self._listeners: dict[int, list[Listener]] = {}
        self._hooks: list[Callable[[], None]] = []
        self._relief: list[Callable[[], None]] = []
        self._calls_open = 0
        self._idle: list[asyncio.Future[None]] = []
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._figures = _Figures(metrics or Metrics())
        if metrics is not None:
            metrics.gauge(
                "store_backlog_bytes",
                lambda: self._backlog()[0],
                "payload bytes and values that wait for their commit",
            )
            metrics.gauge(
                "store_backlog_records",
                lambda: self._backlog()[1],
                "records that wait for their commit",
            )
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)
        self._thread.start()

    def append(self, shard: LogShard, record: StreamRecord, token: object = None) -> None:
        """Add a record to the group that is gathering. ``token`` comes back to the log's listeners with it."""
        group = self._open
        group.records_of(shard).append(record)
        group.tokens.setdefault(shard, []).append(token)
        self.appended += 1
        group.size_bytes += len(record.payload)
        if not self._is_scheduled:
            self._schedule()

    def appender(self, shard: LogShard) -> Append:
        """``append`` without tokens, bound to a shard, so that nothing is looked up: 0.2 µs a record less."""
        group: _Group | None = None
        add: Append = list[StreamRecord]().append

        def append(record: StreamRecord) -> None:
            nonlocal group, add
            present = self._open
            if present is not group:
                group = present
                add = present.records_of(shard).append
            add(record)
            self.appended += 1
            present.size_bytes += len(record[2])
            if not self._is_scheduled:
                self._schedule()

        return append

    @property
    def is_congested(self) -> bool:
        """True if more waits for the disk than the settings allow: the sources of the writer then stop until the
        callback of ``on_relief``. Asked once a read, so it is worked out here and not with each record."""
        if not self._is_congested:
            size_bytes, records = self._backlog()
            self._is_congested = size_bytes > self._max_bytes or records > self._max_records
        return self._is_congested

    @property
    def backlog_bytes(self) -> int:
        """Bytes of payloads, keys and values that wait for their commit."""
        return self._backlog()[0]

    @property
    def backlog_records(self) -> int:
        """Records that wait for their commit."""
        return self._backlog()[1]

    @property
    def backlog_share(self) -> float:
        """The share of its bounds that the backlog has reached; may be read from any thread."""
        size_bytes, records = self._backlog()
        return max(size_bytes / self._max_bytes, records / self._max_records)

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a key, or delete it with None, in the group that is gathering; the last put of a key wins."""
        group = self._open
        group.batch.puts[key] = value
        group.put_bytes += len(key) + (0 if value is None else len(value))
        self.appended += 1
        if not self._is_scheduled:
            self._schedule()

    def touch(self) -> None:
        """Make a group although nothing is appended yet: a ``before_commit`` hook has state to put."""
        self.appended += 1
        if not self._is_scheduled:
            self._schedule()

    def when_committed(self, done: Done) -> None:
        """Call ``done`` with None once all appended so far is committed, or with the error that kept it from being."""
        if self._is_scheduled:
            self._open.waiting.append(done)
        elif self._flying is not None:
            self._flying.waiting.append(done)
        else:
            self._loop.call_soon(done, None)

    async def committed(self) -> None:
        """Wait until everything appended so far is committed. Raises the error of a commit that failed."""
        done: asyncio.Future[None] = self._loop.create_future()

        def tell(error: BaseException | None) -> None:
            if done.done():  # the waiter was cancelled
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        self.when_committed(tell)
        await done

    def listen(self, log: int, listener: Listener) -> None:
        """Call ``listener(first offset, records, tokens)`` after each commit that appended to the log, in order, once a
        shard. There are no tokens where the log is appended to by ``appender``."""
        self._listeners.setdefault(log, []).append(listener)

    def before_commit(self, hook: Callable[[], None]) -> None:
        """Call ``hook`` just before a group is sealed, so that owners put the state they have gathered into it."""
        self._hooks.append(hook)

    def on_relief(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` each time the backlog has fallen below half its bound after congestion."""
        self._relief.append(callback)

    def call(self, function: Callable[[], object], done: Done) -> None:
        """Run a blocking function on the writer thread between two groups, then ``done`` with its error or None. What
        it takes, commits wait: keep it to milliseconds."""
        self._calls_open += 1
        self._work.put(lambda: self._call(function, done))

    async def close(self) -> None:
        """Commit what is left, run the calls that wait, and end the thread. The store stays open."""
        if self._retry is not None:
            self._retry.cancel()
        while self._is_scheduled or self._flying is not None or self._calls_open:
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._seen, self._began_s = self.appended, self._loop.time()
        if self._flying is None:
            self._seal_in_turn()

    def _seal_in_turn(self) -> None:
        """Seal the group on the loop's next turn, or when the next commit may begin."""
        left_s = self._next_s - self._loop.time() if self._next_s else 0.0
        if left_s > 0:
            self._loop.call_later(left_s, self._seal)
        else:
            self._loop.call_soon(self._seal)

    def _seal_when_gathered(self) -> None:
        """Seal the group that gathered while another one was written, or later while each turn brings many."""
        if self._next_s and self._next_s > self._loop.time():
            self._seal_in_turn()
        elif self.appended - self._seen < _BUSY or self._loop.time() - self._began_s >= _GATHER_S:
            self._seal()
        else:
            self._seen = self.appended
            self._loop.call_soon(self._seal_when_gathered)

    def _seal(self) -> None:
        """Hand the gathered group to the thread, on the loop's next turn after its first record at the earliest."""
        for hook in self._hooks:
            hook()
        group = self._open
        self._open = _Group()
        self._is_scheduled = False
        self._flying = group
        if self._pace_s:
            pace_s = min(self._pace_s, self._figures.average_s * _PACE)
            self._next_s = self._loop.time() + pace_s
        self._work.put(lambda: self._commit(group))

    def _finish(self, group: _Group, result: _Result) -> None:
        """Hand over the next group first, so that the thread works while this one's callbacks are called."""
        self._flying = None
        if (result.error is None) is not (self.failure is None):
            self._log_change(result.error)
        self.failure = result.error
        self._figures.note(
            group.records, group.size_bytes, result.took_s, failed=result.error is not None
        )
        if self._is_scheduled:
            self._seal_when_gathered()
        if result.committed is not None:
            self._tell_listeners(group, result.committed)
        error = result.error
        for done in group.waiting:
            try:
                done(error)
            except Exception as failure:  # noqa: BLE001
                self._report(failure)
        self._check_relief()
        self._check_idle()

    def _log_change(self, error: Exception | None) -> None:
        """One line when writing begins to fail and one when it goes well again, not one a group."""
        if error is None:
            _log.info("store.writing_again")
        else:
            self._try_again_soon()
            _log.error(
                "store.cannot_write",
                reason=str(error),
                effect="QoS 1 and 2 publishes to keep are refused",
            )

    def _try_again_soon(self) -> None:
        """The next group repairs a failed store; readers wait for it too, and without publishes there is none."""
        self._retry = self._loop.call_later(_RETRY_S, self._try_again)

    def _try_again(self) -> None:
        if self.failure is not None:
            self.touch()
            self._try_again_soon()

    def _finish_call(self, done: Done, failure: BaseException | None) -> None:
        self._calls_open -= 1
        self._guarded(done, failure)
        self._check_idle()

    def _tell_listeners(self, group: _Group, committed: Committed) -> None:
        for shard, first_offset in committed.first_offsets.items():
            for listener in self._listeners.get(shard.log, ()):
                self._guarded(
                    listener, first_offset, group.batch.appends[shard], group.tokens.get(shard, [])
                )

    def _guarded(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            callback(*arguments)
        except Exception as error:  # noqa: BLE001
            self._report(error)

    def _report(self, error: Exception) -> None:
        """One callback that raised, as of a broken connection, must not keep the others from hearing of their commit;
        the loop's handler reports it."""
        context = {"message": "a callback of the store's writer failed", "exception": error}
        self._loop.call_exception_handler(context)

    def _check_relief(self) -> None:
        if not self._is_congested:
            return
        waiting_bytes, waiting_records = self._backlog()
        if (
            waiting_bytes <= self._max_bytes * _RELIEF
            and waiting_records <= self._max_records * _RELIEF
        ):
            self._is_congested = False
            for callback in self._relief:
                self._guarded(callback)

    def _check_idle(self) -> None:
        if not (self._is_scheduled or self._flying is not None or self._calls_open):
            idle = self._idle
            self._idle = []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)

    def _backlog(self) -> tuple[int, int]:
        """Bytes and records that wait, those being written among them."""
        flying = self._flying
        return (
            self._open.waiting_bytes + (flying.waiting_bytes if flying else 0),
            self._open.records + (flying.records if flying else 0),
        )

    # Methods below run on the writer thread.

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()

    def _commit(self, group: _Group) -> None:
        started_s = time.perf_counter()
        committed: Committed | None = None
        failure: Exception | None = None
        try:
            committed = self.store.commit(group.batch)
        except Unavailable as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - a group that cannot be written fails alone; the next may do
            failure = Unavailable(
                f"the store refused a group of {group.records} records: {error!r}"
            )
            failure.__cause__ = error
        self._answer(
            self._finish, group, _Result(committed, failure, time.perf_counter() - started_s)
        )

    def _call(self, function: Callable[[], object], done: Done) -> None:
        failure: BaseException | None = None
        try:
            function()
        except Exception as error:  # noqa: BLE001 - handed to the caller
            failure = error
        self._answer(self._finish_call, done, failure)

    def _answer(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):
            # the loop was closed without closing the writer: nothing waits for it
            self._loop.call_soon_threadsafe(function, *arguments)
