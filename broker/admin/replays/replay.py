"""One replay: what it was asked, how far it is, and the work itself, in slices between which the loop has its turn.

Its progress is kept in the store in the commit group of the sent records: a record into a stream, a session or a buffer
on disk is sent once, also across a kill. What went to a connected client, or out of a buffer in memory, before a kill
may be sent again; ``targets`` marks it so that it can be recognised.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from broker.admin.replays.reading import MergedReading, ShardReading, Step
from broker.admin.replays.request import (
    ReplayProblem,
    ReplayState,
    StreamReplayReport,
    StreamReplayRequest,
)
from broker.admin.replays.targets import Full, Sending, Target
from broker.core import jsontext
from broker.core.action import Row
from broker.core.bucket import TokenBucket
from broker.core.clock import Clock
from broker.core.contributor import RowsOf
from broker.core.errors import SluiceError
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.stored import message_of
from broker.core.times import rfc3339, rfc3339_or_none
from broker.core.topic import TopicFilter
from broker.observe.log import get_logger
from broker.storage.collection import Collection
from broker.streams.catalogue import Stream
from broker.streams.tier.logs import Logs

_log = get_logger(__name__)

KIND: Final = "stream-replay"
# Longest work between two turns of the loop, but for one record's.
_SLICE_S: Final = 0.005
_SLICE_RECORDS: Final = 500
# Maximum burst, as time at the rate.
_BURST_S: Final = 0.05
# Maximum records whose rows an action has not confirmed.
_ON_THE_WAY: Final = 1_000
_RETRY_S: Final = 0.05
_DRAIN_S: Final = 5.0
_PROBLEMS: Final = 10


class NotStored(SluiceError):
    """The store did not take what was sent, nor how far the replay is."""


@dataclass(slots=True)
class Counts:
    """Outcomes of records, and of the messages or rows that were created from them."""

    expired: int = 0
    skipped: int = 0
    errors: int = 0
    sent: int = 0
    refused: int = 0
    failed: int = 0

    def add(self, other: Counts) -> None:
        """Add what another one counted."""
        for name in _COUNTED:
            setattr(self, name, getattr(self, name) + getattr(other, name))


_COUNTED: Final = [field.name for field in fields(Counts)]


@dataclass(eq=False)
class Progress:
    """A replay as it is stored: ``ranges`` are the first offset and the offset after the last of each shard,
    ``cursors`` the offset that is next. ``log`` is the stream's own, so that no other one of its name is read."""

    id: str
    stream: str
    log: int
    request: Spec
    started_ns: int
    ranges: dict[int, tuple[int, int]]
    cursors: dict[int, int]
    counts: Counts = field(default_factory=Counts)
    problems: list[ReplayProblem] = field(default_factory=list)
    state: ReplayState = "running"
    active_s: float = 0.0
    ended_ns: int | None = None
    error: str | None = None
    resumed: int = 0

    @property
    def total(self) -> int:
        """Records of all ranges."""
        return sum(end - start for start, end in self.ranges.values())

    @property
    def done(self) -> int:
        """Records that were processed and whose results are safe."""
        return sum(self.cursors[shard] - start for shard, (start, _) in self.ranges.items())

    def stored(self) -> bytes:
        """The progress as bytes."""
        members = asdict(self)
        shards = [
            [shard, start, end, self.cursors[shard]]
            for shard, (start, end) in members.pop("ranges").items()
        ]
        del members["cursors"]
        return jsontext.encode({**members, "shards": shards})

    @classmethod
    def of_stored(cls, data: bytes) -> Progress:
        """The progress from the bytes of ``stored``."""
        members: dict[str, Any] = jsontext.decode(data)
        shards = members.pop("shards")
        counts = Counts(**members.pop("counts"))
        ranges = {shard: (start, end) for shard, start, end, _ in shards}
        return cls(
            ranges=ranges,
            cursors={shard: at for shard, _, _, at in shards},
            counts=counts,
            **members,
        )

    def report(self) -> StreamReplayReport:
        """The results so far."""
        counts = self.counts
        return {
            "stream": self.stream, "to": self.request["to"], "records": self.done, "expired": counts.expired,
            "skipped": counts.skipped, "errors": counts.errors, "sent": counts.sent, "refused": counts.refused,
            "failed": counts.failed, "resumed": self.resumed, "problems": list(self.problems),
        }  # fmt: skip

    def view(self, active_s: float | None = None, waits_for: str = "") -> Spec:
        """The replay as a job (``broker.admin.jobs``). ``waits_for`` is why a running replay waits at the moment."""
        seconds = self.active_s if active_s is None else active_s
        rate = self.done / seconds if seconds > 0 and self.done else None
        left = self.total - self.done
        is_running = self.state == "running"
        return {
            "id": self.id,
            "kind": KIND,
            "name": self.stream,
            "state": self.state,
            "progress": {"done": self.done, "total": self.total, "unit": "records"},
            "rate": None if rate is None else round(rate),
            "eta_s": round(left / rate, 1) if rate and is_running else None,
            "started_at": rfc3339(self.started_ns),
            "ended_at": rfc3339_or_none(self.ended_ns),
            "error": self.error or (f"It waits: {waits_for}" if waits_for and is_running else None),
            "result_url": None,
        }


class Slot:
    """A step of the reading, until all that it led to is settled. Implements ``targets.Ledger``."""

    __slots__ = ("counts", "expected", "pending", "problems", "step")

    def __init__(self, step: Step, problems: list[ReplayProblem]) -> None:
        self.step = step
        self.problems = problems
        self.counts = Counts(expired=step.expired, skipped=step.skipped)
        self.pending = self.expected = 0

    def expect(self, rows: int) -> None:
        """See ``Ledger``."""
        self.pending += rows
        self.expected += rows

    def succeeded(self, rows: int) -> None:
        """See ``Settlement``."""
        self.pending -= rows
        self.counts.sent += rows

    def failed(self, row: Row, message: Message, error: Exception) -> None:
        """See ``Settlement``."""
        self.pending -= 1
        self.counts.failed += 1
        self.note(str(error))

    def refused(self, reason: str) -> None:
        """See ``Ledger``."""
        self.pending -= 1
        self.counts.refused += 1
        self.note(reason)

    def note(self, reason: str) -> None:
        """Keep a problem, if it is one of the first."""
        if len(self.problems) < _PROBLEMS:
            step = self.step
            self.problems.append(
                {"shard": step.shard, "offset": str(step.offset), "reason": reason[:500]}
            )


class Replay:
    """A replay at work in this process."""

    def __init__(
        self,
        progress: Progress,
        source: Stream,
        kept: Collection[str, bytes],
        logs: Logs,
        target: Target,
        rows_of: RowsOf | None,
        clock: Clock,
    ) -> None:
        self.progress = progress
        self._source = source
        self._clock = clock
        self._kept = kept
        self._writer = kept.writer
        self._target = target
        self._rows_of = rows_of
        request = StreamReplayRequest.model_validate(progress.request)
        shards = [
            ShardReading(source.shard(shard), progress.cursors[shard], end)
            for shard, (_, end) in progress.ranges.items()
        ]
        wanted = None if request.filter is None else TopicFilter.parse(request.filter)
        self._reading = MergedReading(logs, shards, wanted)
        rate = request.rate
        self._bucket = (
            None if rate is None else TokenBucket(rate, rate * _BURST_S, clock.monotonic_s())
        )
        self._slots: deque[Slot] = deque()
        self._stalled: Sending | None = None
        self._stored = b""
        self._may_go = asyncio.Event()
        self._may_go.set()
        self._is_cancelled = False
        self._since_s: float | None = clock.monotonic_s()
        self._waits_for = ""

    def pause(self) -> None:
        """Send nothing from the next slice on."""
        self._may_go.clear()
        self._stop_clock()
        self.progress.state = "paused"
        self._keep()

    def resume(self) -> None:
        """Send again."""
        self._since_s = self._clock.monotonic_s()
        self.progress.state = "running"
        self._keep()
        self._may_go.set()

    def cancel(self) -> None:
        """End after the slice at work."""
        self._is_cancelled = True
        self._may_go.set()

    def view(self) -> Spec:
        """The replay as a job."""
        running_s = 0.0 if self._since_s is None else self._clock.monotonic_s() - self._since_s
        return self.progress.view(self.progress.active_s + running_s, self._waits_for)

    async def run(self) -> None:
        """Work until it is over, as its state then says. When the task is cancelled, the next start continues."""
        progress = self.progress
        try:
            await self._work()
            await self._settled()
            progress.state = "cancelled" if self._is_cancelled else "done"
        except asyncio.CancelledError:
            await self._settled(_DRAIN_S)
            self._stop_clock()
            self._keep()
            raise
        except NotStored as error:
            self._go_back()
            progress.state, progress.error = "failed", str(error)
        except SluiceError as error:
            progress.state, progress.error = "failed", str(error)
        except Exception as error:  # noqa: BLE001  a replay must not end without a state
            _log.exception("replay.failed", replay=progress.id, stream=progress.stream)
            progress.state, progress.error = "failed", str(error) or type(error).__name__
        self._stop_clock()
        self._advance()
        progress.ended_ns = self._clock.now_ns()
        self._keep()

    async def _work(self) -> None:
        while not self._reading.is_over or self._stalled is not None:
            await self._may_go.wait()
            if self._is_cancelled:
                return
            await self._turn()
            self._slots += [
                Slot(step, self.progress.problems) for step in await self._reading.fill()
            ]
            if self._source.is_gone:
                raise SluiceError(f"stream {self.progress.stream!r} was deleted")
            waiting = self._slice()
            if waiting:
                await asyncio.gather(*waiting)
            await self._commit()

    async def _turn(self) -> None:
        """Wait until the rate, the store and the target permit more, and let other tasks of the loop run."""
        if self._waits_for or len(self._slots) >= _ON_THE_WAY:
            await asyncio.sleep(_RETRY_S)
        if self._bucket is not None:
            wait_s = self._bucket.wait_s(self._clock.monotonic_s(), 1)
            if wait_s > 0:
                await asyncio.sleep(max(wait_s, _BURST_S / 2))
        while self._writer.is_congested and not self._is_cancelled:
            self._waits_for = "the store has more to write than store.max_backlog_bytes permits"
            await asyncio.sleep(_RETRY_S)
        self._waits_for = ""

    def _slice(self) -> list[Awaitable[object]]:
        """Send some records; what must be waited for before they count as sent."""
        most = (
            float(_SLICE_RECORDS)
            if self._bucket is None
            else min(_SLICE_RECORDS, max(1.0, self._bucket.burst))
        )
        ends_s = time.perf_counter() + _SLICE_S
        rows = 0
        waiting: list[Awaitable[object]] = []
        while rows < most and len(self._slots) < _ON_THE_WAY and time.perf_counter() < ends_s:
            sending = self._stalled or self._next()
            if sending is None:
                break
            self._stalled = None
            before = sending.ledger.expected
            try:
                waiting += self._target.send(sending)
            except Full as full:
                self._stalled, self._waits_for = sending, str(full)
            rows += sending.ledger.expected - before
            if self._stalled is not None:
                break
        if self._bucket is not None:
            self._bucket.spend(rows, self._clock.monotonic_s())
        return waiting

    def _next(self) -> Sending | None:
        """The next record, with the rows that are made of it."""
        step = self._reading.next()
        if step is None or step.record is None:
            return None
        slot = Slot(step, self.progress.problems)
        self._slots.append(slot)
        sending = Sending(step.shard, step.offset, step.record, slot)
        if self._rows_of is not None:
            sending.message, sending.rows = message_of(step.record), deque()
            try:
                sending.rows.extend(self._rows_of(sending.message))
            except Exception as error:  # noqa: BLE001  whatever a rule raises is an error of that record
                slot.counts.errors += 1
                slot.note(str(error) or type(error).__name__)
            else:
                slot.counts.skipped += not sending.rows
        return sending

    async def _commit(self) -> None:
        """Store the sent records and the position of the replay, in one group if no wait was needed."""
        self._advance()
        if not self._keep():
            return
        try:
            await self._writer.committed()
        except SluiceError as error:
            raise NotStored(str(error)) from error

    def _advance(self) -> None:
        """Note the steps whose rows are all settled, in their order."""
        slots = self._slots
        while (
            slots
            and not slots[0].pending
            and (self._stalled is None or slots[0] is not self._stalled.ledger)
        ):
            slot = slots.popleft()
            self.progress.cursors[slot.step.shard] = slot.step.following
            self.progress.counts.add(slot.counts)

    def _keep(self) -> bool:
        """Put how far it is into the commit group that is gathering; false where that has not changed."""
        data = self.progress.stored()
        if data == self._stored:
            return False
        self._stored = data
        self._kept.put(self.progress.id, data)
        return True

    def _go_back(self) -> None:
        """Return to the position in the store: records sent since then are not stored."""
        self._slots.clear()
        if stored := self._kept.committed(self.progress.id):
            before = Progress.of_stored(stored)
            self.progress.cursors = before.cursors
            self.progress.counts = before.counts

    async def _settled(self, timeout_s: float | None = None) -> None:
        """Wait until the rows on their way are settled; no longer than that where it was cancelled."""
        self._advance()
        ends_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        while any(slot.pending for slot in self._slots):
            if self._is_cancelled and ends_s is None:
                ends_s = self._clock.monotonic_s() + _DRAIN_S
            if ends_s is not None and self._clock.monotonic_s() > ends_s:
                return
            await asyncio.sleep(_RETRY_S)
            self._advance()
            self._keep()

    def _stop_clock(self) -> None:
        if self._since_s is not None:
            self.progress.active_s = round(
                self.progress.active_s + self._clock.monotonic_s() - self._since_s, 3
            )
            self._since_s = None
