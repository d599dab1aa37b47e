"""From a buffer to a sink: batches by count, bytes and age, over lanes that keep the order of each key.

One feeder takes rows from the buffer and deals them to lanes; a lane forms batches and has one on the way at a time
(more with a sink that keeps their order itself), retries included. An ``Outcomes`` gets the outcome of each row.
There is no task, timer or future per row.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from bridges.resource.contract import ALL_DONE, Answers, Sink
from bridges.resource.errors import (
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    TryAgain,
    understood,
)
from bridges.resource.sending.buffer import Buffer
from bridges.resource.sending.item import Item
from bridges.resource.tasks import Backoff
from broker.core.action import Row
from broker.core.clock import Clock
from broker.core.kinds import counted
from broker.core.message import Message
from broker.core.tracing import Span, Spans, new_context, sampled_context

_NO_KEY: Final[Hashable] = object()
# Rows taken from the buffer and not done, at most.
_DEEPEST: Final = 200_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits and order of sending; see ``bridges.resource.settings.options`` for each."""

    batch_size: int
    batch_time_s: float
    batch_bytes: int
    lanes: int
    window: int
    by_key: Callable[[Row, Message], Hashable] | None
    """The function that picks the lane; None for the next one in turn."""
    ttl_s: float
    request_timeout_s: float
    retry_s: float
    longest_pause_s: float
    max_retries: int | None
    waits_for_target: bool
    is_pipelined: bool = False
    with_positions: bool = False

    @property
    def depth(self) -> int:
        """Rows taken from the buffer and not done, at most: twice what may be on the way."""
        batches = 2 * (self.window if self.is_pipelined else self.lanes)
        return min(_DEEPEST, batches * self.batch_size)


class _Lane:
    """Rows of some keys in order, and an event for when enough of them have arrived."""

    __slots__ = ("arrived", "items", "wanted")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.arrived = asyncio.Event()
        self.wanted = 1
        """Number of rows that are waited for: waking a lane costs more than dealing a row."""

    async def holds(self, rows: int) -> None:
        """Wait until that many rows have arrived."""
        self.wanted = rows
        while len(self.items) < rows:
            self.arrived.clear()
            await self.arrived.wait()


@dataclass(slots=True)
class _Line:
    """The batches of one lane that are not done: how many of them must be sent again."""

    troubled: int = 0


class Outcomes(Protocol):
    """Receives the outcome of rows, and the state of the target. On the event loop."""

    async def usable(self, timeout_s: float) -> Sink | None:
        """The sink once it may be used; None when that takes longer than ``timeout_s``."""
        ...

    def succeeded(self, items: Sequence[Item]) -> None: ...

    def failed(self, items: Sequence[Item], error: BridgeError) -> None:
        """Report rows that are discarded, or whose record cannot be made."""
        ...

    def dropped(self, items: Sequence[Item], count: int, reason: str) -> None: ...

    def retrying(self, items: Sequence[Item], error: BridgeError) -> None:
        """Will be sent again; ``error`` is why."""
        ...

    def moved(self) -> None:
        """A batch is over."""
        ...

    def late(self, count: int) -> None:
        """An answer came for rows that are done."""
        ...


class Sender:
    """Empties a buffer. ``run`` works until cancelled; then everything that is not done is back in the buffer."""

    def __init__(
        self,
        buffer: Buffer,
        pace: Pace,
        outcomes: Outcomes,
        clock: Clock,
        name: str,
        spans: Spans,
        hide: Callable[[str], str],
    ) -> None:
        """``hide`` takes secrets out of the errors that spans show."""
        self._buffer = buffer
        self._name = name
        self._spans = spans
        self._hide = hide
        self._pace = pace
        self._outcomes = outcomes
        self._clock = clock
        self._lanes = [_Lane() for _ in range(pace.lanes)]
        self._room = asyncio.Event()
        self._window = asyncio.Semaphore(pace.window)
        self._next_lane = 0
        self._under_way: dict[asyncio.Timeout, float] = {}
        self.inflight = 0
        """Rows in requests that have no answer yet."""
        self._quiet = asyncio.Event()
        self._quiet.set()

    async def run(self) -> None:
        """See the class."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._pace.lanes):
                    tasks.create_task(self._work(number), name=f"bridge lane {number}")
                tasks.create_task(self._feed(), name="bridge feeder")
        finally:
            self._buffer.put_back()

    @property
    def slowest_s(self) -> float:
        """Seconds for which the oldest batch on the way has waited for its answer."""
        oldest = next(iter(self._under_way.values()), None)
        return 0.0 if oldest is None else self._clock.monotonic_s() - oldest

    async def halt(self) -> None:
        """Give up the requests that are on the way; returns when none is. Their rows are retried."""
        for timeout in self._under_way:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())
        await self._quiet.wait()

    # The feeder

    async def _feed(self) -> None:
        while True:
            room = self._pace.depth - self._buffer.taken
            if room <= 0 or self._buffer.is_ahead:
                self._room.clear()
                await self._room.wait()
                continue
            items = await self._buffer.take(room)
            self._deal(items)
            # lanes begin before the next pile, also where there is always more to take
            await asyncio.sleep(0)

    def _deal(self, items: Sequence[Item]) -> None:
        lanes = self._lanes
        if len(lanes) == 1:
            lanes[0].items.extend(items)
        else:
            self._deal_out(items)
        for lane in lanes:
            if len(lane.items) >= lane.wanted:
                lane.arrived.set()

    def _deal_out(self, items: Sequence[Item]) -> None:
        by_key = self._pace.by_key
        last = _NO_KEY
        lanes = [lane.items for lane in self._lanes]
        number = 0
        count = len(lanes)
        for item in items:
            if by_key is None:
                number = self._turn()
            elif (
                key := by_key(item.row, item.message)
            ) is not last:  # rows of one client most often come together
                last = key
                number = hash(key) % count
            lanes[number].append(item)

    def _turn(self) -> int:
        self._next_lane = (self._next_lane + 1) % len(self._lanes)
        return self._next_lane

    # A lane

    async def _work(self, number: int) -> None:
        if self._pace.is_pipelined and self._pace.window > 1:
            await self._work_pipelined(number)
        line = _Line()
        while True:
            await self._deliver(await self._batch(number), line)

    async def _work_pipelined(self, number: int) -> None:
        """Batches leave one behind the other without waiting; a retry waits until those before are done."""
        line = _Line()
        slots = asyncio.Semaphore(max(1, self._pace.window // self._pace.lanes))
        before: asyncio.Task[None] | None = None
        async with asyncio.TaskGroup() as tasks:
            while True:
                await slots.acquire()
                batch = await self._batch(number)
                before = tasks.create_task(
                    self._deliver(batch, line, before), name=f"bridge batch of lane {number}"
                )
                before.add_done_callback(lambda _: slots.release())

    async def _batch(self, number: int) -> list[Item]:
        """The next batch: as soon as it is full, or its first row has waited long enough."""
        lane = self._lanes[number]
        pace = self._pace
        await lane.holds(1)
        if pace.batch_time_s and len(lane.items) < pace.batch_size:
            with suppress(TimeoutError):
                async with asyncio.timeout(pace.batch_time_s):
                    await lane.holds(pace.batch_size)
        return _cut(lane.items, pace.batch_size, pace.batch_bytes)

    async def _deliver(
        self, batch: list[Item], line: _Line, before: asyncio.Task[None] | None = None
    ) -> None:
        """Send until every row is done."""
        pace = self._pace
        troubled = False
        backoff = Backoff(pace.retry_s, pace.longest_pause_s)
        try:
            while batch := self._living(batch):
                if line.troubled and before is not None and not before.done():
                    await asyncio.wait((before,))
                sink = await self._outcomes.usable(pace.longest_pause_s)
                if sink is None:
                    continue
                items, records = self._rendered(sink, self._living(batch))
                if not items:
                    break
                began_ns = self._clock.now_ns()
                answers, error = await self._sent(sink, items, records)
                if self._spans.is_on:
                    self._spans.export_late(self._spans_of(items, answers, error, began_ns))
                batch, cause = self._settle(items, answers, error)
                if cause is not None and not troubled:
                    line.troubled = line.troubled + 1
                    troubled = True
                if cause is not None and not isinstance(cause, ReconnectFirst):
                    # else it is the connection that is waited for
                    after_s = cause.after_s if isinstance(cause, TryAgain) else None
                    await asyncio.sleep(
                        backoff.pause_s() if after_s is None else min(after_s, pace.longest_pause_s)
                    )
        finally:
            line.troubled -= troubled
            self._room.set()
            self._outcomes.moved()

    def _living(self, batch: list[Item]) -> list[Item]:
        """The rows that are worth sending; the others are dropped as expired, unless they are done already."""
        eldest_s = self._clock.monotonic_s() - self._pace.ttl_s
        if not [item for item in batch if item.entered_s < eldest_s or item.is_done]:
            return batch
        old = [item for item in batch if item.entered_s < eldest_s and not item.is_done]
        if old:
            self._outcomes.dropped(old, len(old), "expired")
            self._buffer.done(old)
        return [item for item in batch if not item.is_done]

    def _rendered(self, sink: Sink, batch: list[Item]) -> tuple[list[Item], list[Any]]:
        """The records of a batch, with their items; a row that has none is discarded."""
        make = sink.record
        try:
            return batch, [make(item.row, item.message) for item in batch]
        except Exception:  # noqa: BLE001 - found out below which row it is
            pass
        items = []
        records = []
        for item in batch:
            try:
                record = make(item.row, item.message)
            except Exception as error:  # noqa: BLE001 - one row must not stop the others
                self._outcomes.failed((item,), _final(error))
                self._buffer.done((item,))
            else:
                items.append(item)
                records.append(record)
        return items, records

    async def _sent(
        self, sink: Sink, items: list[Item], records: Sequence[Any]
    ) -> tuple[Answers, BridgeError | None]:
        timeout_s = self._pace.request_timeout_s
        async with self._window, self._counted(timeout_s, len(items)) as timeout:
            try:
                async with timeout:
                    if self._pace.with_positions:
                        return await sink.send_at(records, [item.offset for item in items]), None
                    return await sink.send(records), None
            except Exception as error:  # noqa: BLE001 - whatever a connector raises is an answer
                if timeout.expired():
                    return None, ReconnectFirst(
                        f"no answer to {counted(len(records), 'record')} within {timeout_s:g} s"
                    )
                return None, understood(error)

    def _spans_of(
        self, items: Sequence[Item], answers: Answers, error: BridgeError | None, began_ns: int
    ) -> list[Span]:
        """For each row of a sampled message: its time in the buffer, and the attempt to send it."""
        now_ns = self._clock.now_ns()
        now_s = self._clock.monotonic_s()
        outcomes = (
            [error] * len(items)
            if error is not None or answers is ALL_DONE or answers is None
            else answers
        )
        spans = []
        for item, outcome in zip(items, outcomes, strict=False):
            parent = sampled_context(item.message)
            if parent is None:
                continue
            attributes = {"sluice.action": self._name, "sluice.attempt": item.attempts + 1}
            if not item.attempts:
                entered_ns = min(began_ns, now_ns - int((now_s - item.entered_s) * 1e9))
                name = f"buffer {self._name}"
                spans.append(
                    Span(
                        name,
                        new_context(parent),
                        parent,
                        entered_ns,
                        began_ns,
                        attributes=attributes,
                    )
                )
            attributes = {
                **attributes,
                "messaging.operation.type": "send",
                "messaging.operation.name": "write",
                "messaging.system": self._name.partition(":")[0],
                "messaging.batch.message_count": len(items),
            }
            problem = ""
            if outcome is not None:
                problem = self._hide(str(outcome))
                attributes["error.type"] = type(outcome).__name__
            context = new_context(parent)
            spans.append(
                Span(
                    f"write {self._name}",
                    context,
                    parent,
                    began_ns,
                    now_ns,
                    "producer",
                    attributes,
                    problem,
                )
            )
        return spans

    @asynccontextmanager
    async def _counted(self, timeout_s: float, rows: int) -> AsyncIterator[asyncio.Timeout]:
        """A request that is on the way, so that it can be aborted from outside."""
        timeout = asyncio.timeout(timeout_s)
        self._under_way[timeout] = self._clock.monotonic_s()
        self._quiet.clear()
        self.inflight += rows
        try:
            yield timeout
        finally:
            self.inflight -= rows
            del self._under_way[timeout]
            if not self._under_way:
                self._quiet.set()

    def _settle(
        self, items: list[Item], answers: Answers, error: BridgeError | None
    ) -> tuple[list[Item], BridgeError | None]:
        """Report the outcome of each; returns those to send again, and why."""
        if error is None and answers is ALL_DONE:
            self._succeeded(items)
            return [], None
        outcomes = [error] * len(items) if error is not None or answers is None else list(answers)
        if len(outcomes) != len(items):
            problem = NeverAgain(
                f"expected an answer for each of {counted(len(items), 'record')}, got {len(outcomes)}"
            )
            outcomes = [problem] * len(items)
        good = [item for item, answer in zip(items, outcomes, strict=True) if answer is None]
        if good:
            self._succeeded(good)
        again = []
        cause = None
        for item, answer in zip(items, outcomes, strict=True):
            if answer is None:
                continue
            item.attempts += 1
            if item.is_done:
                self._outcomes.late(1)
            elif self._may_try_again(item, answer):
                again.append(item)
                cause = cause or answer
            else:
                self._outcomes.failed((item,), answer)
                self._buffer.done((item,))
        if again and cause is not None:
            self._outcomes.retrying(again, cause)
        return again, cause

    def _succeeded(self, items: list[Item]) -> None:
        done = [item for item in items if item.is_done]
        living = [item for item in items if not item.is_done] if done else items
        if done:
            self._outcomes.late(len(done))
        self._outcomes.succeeded(living)
        self._buffer.done(living)
        self._room.set()

    def _may_try_again(self, item: Item, error: BridgeError) -> bool:
        if isinstance(error, NeverAgain):
            return False
        if isinstance(error, TargetMissing) and not self._pace.waits_for_target:
            return False
        return self._pace.max_retries is None or item.attempts <= self._pace.max_retries


def _cut(lane: deque[Item], most: int, most_bytes: int) -> list[Item]:
    """The first rows of a lane, up to a number and a size in bytes; at least one."""
    batch = _first(lane, most)
    if sum([item.size_bytes for item in batch]) <= most_bytes:
        return batch
    size_bytes = 0
    for count, item in enumerate(batch):
        size_bytes += item.size_bytes
        if count and size_bytes > most_bytes:
            lane.extendleft(reversed(batch[count:]))
            return batch[:count]
    return batch


def _first(lane: deque[Item], most: int) -> list[Item]:
    if len(lane) > most:
        popleft = lane.popleft
        return [popleft() for _ in range(most)]
    batch = list(lane)
    lane.clear()
    return batch


def _final(error: Exception) -> BridgeError:
    """The error for a row without a record."""
    cause = understood(error)
    return cause if isinstance(cause, NeverAgain) else NeverAgain(str(cause))
