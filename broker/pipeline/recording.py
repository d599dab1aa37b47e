"""Recordings: the way of one message through its stages, step by step, for traces and captures.

Recorders are part of topic plans. While there is none, plans have nothing of them, and messages pass one test. While
there is one, messages that it does not choose are counted down, one by one or as a run of packets; a chosen message
leaves the short way, and passes stages that note their times, and the message before and after.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol

import msgspec

from broker.core.action import Row
from broker.core.client import Client
from broker.core.message import Message
from broker.core.stage import GateCall, Outcome, RecordedTap, Refusal, TapCall, WaitingGateCall
from broker.core.tracing import TraceContext
from broker.routing.router import Watch

# Receivers of a recorded message that are noted one by one; the others are counted.
MAX_RECEIVERS: Final = 100
# Rows that a recorded rule made of one message.
MAX_ROWS: Final = 100
# Messages that wait for another process while they are recorded.
_MAX_WAITING: Final = 1000
# Longest wait until a packet is written to the socket of a receiver, in seconds.
_WRITE_S: Final = 1.0
_LOOK_S: Final = 0.005
# More messages than any broker takes: none is chosen by number.
_NEVER: Final = 1 << 62
_SYS: Final = "$SYS/"


class RecordedStep(msgspec.Struct, gc=False):
    """One stage of a recorded message: its type and name, the message before and after it, and its result.

    ``state`` is the result of a delivery: ``sent``, ``queued`` in memory or in the session log, or ``not_sent`` within
    a second. With ``is_cell`` it is to another cell, which has the receivers. ``rows`` are those that a rule made.
    """

    stage: str
    name: str
    start_ns: int
    end_ns: int
    before: Message | None = None
    after: Message | None = None
    refusal: Refusal | None = None
    error: str = ""
    rows: Sequence[Row] = ()
    state: str = ""
    is_cell: bool = False


class Recording:
    """A message on its way, and its steps so far.

    ``context`` is that of its root span where a trace is made of it, ``parent`` the span that caused it.
    """

    __slots__ = (
        "context",
        "entered",
        "is_further",
        "left_out",
        "message",
        "outcome",
        "parent",
        "start_ns",
        "steps",
        "takers",
    )

    def __init__(self, message: Message, takers: Sequence[Recorder]) -> None:
        self.message = message
        """The message at its arrival."""
        self.entered = message
        """The message that meets the stages."""
        self.takers = takers
        self.context: TraceContext | None = None
        self.parent: TraceContext | None = None
        now_ns = time.time_ns()
        # else it is replayed, or was delayed
        is_recent = 0 <= now_ns - message.received_ns < 10_000_000_000
        self.start_ns = message.received_ns if is_recent else now_ns
        self.steps: list[RecordedStep] = []
        self.outcome: Outcome | None = None
        self.left_out = 0
        """Receivers that are not among the steps."""
        self.is_further = False
        """True if another cell has recorded the message, and this one its deliveries."""

    @property
    def error(self) -> str:
        """Reason why the message was refused, or a stage failed; empty where all went well."""
        if self.outcome is not None and self.outcome.refusal is not None:
            return self.outcome.refusal.text or self.outcome.refusal.reason
        return next((step.error for step in self.steps if step.error), "")

    @property
    def end_ns(self) -> int:
        """When the last step was over."""
        return max([self.start_ns, *[step.end_ns for step in self.steps]])


class Recorder(Protocol):
    """Chooses messages, and takes their recordings. On the event loop."""

    def reads(self, topic: str) -> bool:
        """Return whether it may choose messages on a topic; asked once for each plan."""

    def chooses(self, message: Message, *, is_drawn: bool) -> bool:
        """Return whether it chooses a message. ``is_drawn`` is whether its number was drawn by ``ratio``."""

    def begins(self, recording: Recording) -> None:
        """A chosen message is about to meet its stages; may change ``entered``."""

    def ends(self, recording: Recording) -> None:
        """All is known of the message: it was delivered, its commit is over, or it was refused."""

    def follows(self, message: Message) -> TraceContext | None:
        """Context of a message whose stages another cell recorded, if the deliveries here belong to it."""

    def draws(self, topic: str) -> bool:
        """Return whether it may choose messages without properties on a topic that it reads."""

    def may_choose(self, client: Client) -> bool:
        """Return whether it may choose messages without properties of a client."""

    def has_room(self) -> bool:
        """Return whether its limits let it choose a message now."""

    def leaves_out(self, count: int) -> None:
        """Note that it had no room for a message whose turn it was, nor for those behind it, ``count`` in all."""

    def skip(self) -> int:
        """Draw how many messages without properties pass before it chooses one."""


class TopicRecorder:
    """The recorders that read a topic; topics with the same share one object.

    ``left`` is how many messages without properties pass before one is offered to them.
    """

    __slots__ = ("_drawing", "left", "recorders")

    def __init__(self, recorders: Sequence[Recorder], drawing: Sequence[Recorder]) -> None:
        self.recorders = recorders
        self._drawing = drawing
        """Recordings that choose messages without properties too."""
        self.left = self._draw()

    def begin(self, message: Message) -> Recording | None:
        """The recording of a message that any of them chooses; else it is counted."""
        is_drawn = self.left <= 0
        if is_drawn:
            self.left = self._draw()
        else:
            self.left -= 1
        takers = [
            recorder for recorder in self.recorders if recorder.chooses(message, is_drawn=is_drawn)
        ]
        if not takers:
            return None
        recording = Recording(message, takers)
        for taker in takers:
            taker.begins(recording)
        return recording

    def picks(self, client: Client, count: int) -> int:
        """Position of the first of ``count`` messages without properties that must be offered; -1 for none."""
        position = self.left
        if position >= count:
            self.left = position - count
            return -1
        self.left = 0
        choosing = [recorder for recorder in self._drawing if recorder.may_choose(client)]
        if not choosing:
            return -1
        for recorder in choosing:
            if recorder.has_room():
                return position
        for recorder in choosing:
            recorder.leaves_out(count - position)
        # a new draw is as good as the rest of the last: each message has the same chance, whatever came before
        self.left = self._draw()
        return -1

    def _draw(self) -> int:
        return min([recorder.skip() for recorder in self._drawing], default=_NEVER)


class RecordedWatch:
    """Chooses messages of routes that go the short way; shows them to the tails that are open as well."""

    __slots__ = ("__weakref__", "_shown_to", "is_shown", "recorder")

    def __init__(self, recorder: TopicRecorder, shown_to: Watch | None) -> None:
        self._shown_to = shown_to
        self.recorder = recorder
        """See ``broker.routing.router.Watch``."""
        self.is_shown = shown_to is not None
        """See ``broker.routing.router.Watch``."""

    def delivers(self, message: Message) -> None:
        """See ``broker.routing.router.Watch``."""
        if self._shown_to is not None:
            self._shown_to.delivers(message)

    def forwards(
        self, chunk: bytes, count: int, client: Client, now_ns: int, *, is_v5: bool
    ) -> None:
        """See ``broker.routing.router.Watch``."""
        if self._shown_to is not None:
            self._shown_to.forwards(chunk, count, client, now_ns, is_v5=is_v5)


class Recorders:
    """All recorders of a node. ``on_change`` is called when one comes or goes: plans must be made again."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._recorders: tuple[Recorder, ...] = ()
        self._by_recorders: dict[tuple[tuple[Recorder, ...], ...], TopicRecorder] = {}
        self._watches: dict[tuple[TopicRecorder, Watch | None], RecordedWatch] = {}
        self._waiting: dict[int, tuple[Message, Recording]] = {}

    @property
    def is_on(self) -> bool:
        """True if there is any recorder."""
        return bool(self._recorders)

    def add(self, recorder: Recorder) -> None:
        """Offer messages to a recorder from now on."""
        self._use((*self._recorders, recorder))

    def remove(self, recorder: Recorder) -> None:
        """Offer it no more; what it has chosen ends. May be called twice."""
        self._use(tuple(other for other in self._recorders if other is not recorder))

    def renew(self) -> None:
        """A recorder reads other topics than before."""
        self._use(self._recorders)

    def _use(self, recorders: tuple[Recorder, ...]) -> None:
        self._recorders = recorders
        self._by_recorders.clear()
        self._watches.clear()
        self._on_change()

    def of_topic(self, topic: str) -> TopicRecorder | None:
        """The recorders of a topic, or None."""
        if topic.startswith(_SYS):
            return None
        recorders = tuple(recorder for recorder in self._recorders if recorder.reads(topic))
        if not recorders:
            return None
        drawing = tuple(recorder for recorder in recorders if recorder.draws(topic))
        shared = self._by_recorders.get((recorders, drawing))
        if shared is None:
            shared = self._by_recorders[recorders, drawing] = TopicRecorder(recorders, drawing)
        return shared

    def follow(self, message: Message) -> Recording | None:
        """The recording of the deliveries here of a message that another cell recorded, or None."""
        for recorder in self._recorders:
            if (context := recorder.follows(message)) is not None:
                recording = Recording(message, (recorder,))
                recording.context = context
                recording.is_further = True
                return recording
        return None

    def watch(self, recorder: TopicRecorder, tails: Watch | None) -> RecordedWatch:
        """The watch of the routes of a topic without stages; one object for topics that are alike."""
        watch = self._watches.get((recorder, tails))
        if watch is None:
            watch = self._watches[recorder, tails] = RecordedWatch(recorder, tails)
        return watch

    def wait(self, message: Message, recording: Recording) -> None:
        """Keep the recording of a message whose gates wait for another process, until ``resume``."""
        if len(self._waiting) >= _MAX_WAITING:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[id(message)] = message, recording

    def resume(self, message: Message) -> Recording | None:
        """The recording of a message that waited."""
        return self._waiting.pop(id(message), (message, None))[1] if self._waiting else None


# -- stages that note what they do --


def recorded_gate(recording: Recording, name: str, gate: GateCall) -> GateCall:
    """A gate's call that adds a step."""

    def run(message: Message) -> Message | Refusal:
        step = _begin(recording, name, name, message)
        try:
            result = gate(message)
        except Exception as error:
            _fail(step, error)
            raise
        _end_gate(step, result)
        return result

    return run


def recorded_waiting_gate(
    recording: Recording, name: str, gate: WaitingGateCall
) -> WaitingGateCall:
    """The same for a gate that may wait."""

    async def run(message: Message) -> Message | Refusal:
        step = _begin(recording, name, name, message)
        try:
            result = await gate.call(message)
        except Exception as error:
            _fail(step, error)
            raise
        _end_gate(step, result)
        return result

    return WaitingGateCall(run)


def recorded_tap(
    recording: Recording, stage: str, tap: TapCall, parts: Sequence[tuple[str, RecordedTap]]
) -> TapCall:
    """A tap's call that adds a step, or one for each of its parts."""

    def run(message: Message) -> Refusal | None:
        step = _begin(recording, stage, stage, message)
        try:
            step.refusal = tap(message)
        except Exception as error:
            _fail(step, error)
            raise
        step.end_ns = time.time_ns()
        return step.refusal

    def run_parts(message: Message) -> Refusal | None:
        for name, call in parts:
            step = _begin(recording, stage, name, message)
            rows: list[Row] = []
            step.rows = rows
            step.refusal, step.error = call(message, partial(_note_row, rows))
            step.end_ns = time.time_ns()
            if step.refusal is not None:
                return step.refusal
        return None

    return run_parts if parts else run


def _note_row(rows: list[Row], row: Row) -> None:
    if len(rows) < MAX_ROWS:
        rows.append(row)


def _begin(recording: Recording, stage: str, name: str, message: Message) -> RecordedStep:
    now_ns = time.time_ns()
    step = RecordedStep(stage, name, now_ns, now_ns, message)
    recording.steps.append(step)
    return step


def _fail(step: RecordedStep, error: Exception) -> None:
    step.end_ns = time.time_ns()
    step.error = f"{type(error).__name__}: {error}"


def _end_gate(step: RecordedStep, result: Message | Refusal) -> None:
    step.end_ns = time.time_ns()
    if isinstance(result, Refusal):
        step.refusal = result
        step.error = result.text or result.reason
        step.name = result.name
    else:
        step.after = result


class RecordedRoutes:
    """Routes whose ``deliver`` notes a step for each receiver."""

    def __init__(self, recording: Recording, routes: Any, ends: Endings) -> None:
        self._recording = recording
        self._routes = routes
        self._ends = ends

    def deliver(self, message: Message, topic: bytes | None = None) -> int:
        """Hand the message to every subscriber, and note which of them it was written to at once."""
        recording = self._recording
        routes = self._routes
        boxes = [
            (entry.subscriber, entry.subscriber.box)
            for entry in islice(routes.entries, MAX_RECEIVERS)
        ]
        before = [subscriber.messages_out for subscriber, _ in boxes]
        start_ns = time.time_ns()
        count: int = routes.deliver(message, topic)
        end_ns = time.time_ns()
        for (subscriber, box), messages_out in zip(boxes, before, strict=True):
            is_sent = box is not None and subscriber.messages_out != messages_out
            step = RecordedStep(
                "delivery",
                subscriber.name,
                start_ns,
                end_ns,
                message,
                state="sent" if is_sent else "queued",
                is_cell=subscriber.is_v5 is None,
            )
            recording.steps.append(step)
            if is_sent and box is not None:
                self._ends.await_write(box, step)
        for group in routes.groups[: MAX_RECEIVERS - len(boxes)]:
            recording.steps.append(
                RecordedStep("delivery", group.key, start_ns, end_ns, message, state="shared")
            )
        recording.left_out += max(0, len(routes.entries) + len(routes.groups) - MAX_RECEIVERS)
        return count


class Box(Protocol):
    """The bytes for one connection in a turn of the loop (``broker.session.outbox``)."""

    is_dirty: bool


class Endings:
    """Ends a recording once its packets are written and its commit is over.

    ``later`` calls a function after some seconds, or in the next turn of the loop for 0.
    """

    def __init__(
        self,
        recording: Recording,
        when_committed: Callable[[Callable[[BaseException | None], None]], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._recording = recording
        self._when_committed = when_committed
        self._later = later
        self._writes: list[tuple[Box, RecordedStep]] = []
        self._pending = 1
        self._deadline_ns = 0

    def await_write(self, box: Box, step: RecordedStep) -> None:
        """A step ends when the box is written."""
        self._writes.append((box, step))

    def end(self, outcome: Outcome, *, is_stored: bool) -> None:
        """The message has passed its stages."""
        recording = self._recording
        recording.outcome = outcome
        if is_stored:
            self._pending += 1
            now_ns = time.time_ns()
            step = RecordedStep("commit", "store", now_ns, now_ns)
            self._when_committed(partial(self._committed, step))
        if self._writes:
            self._pending += 1
            self._deadline_ns = time.time_ns() + int(_WRITE_S * 1e9)
            self._later(0, self._look)
        self._is_done()

    def _committed(self, step: RecordedStep, error: BaseException | None) -> None:
        step.end_ns = time.time_ns()
        if error is not None:
            step.error = f"the store did not take it: {error}"
        self._recording.steps.append(step)
        self._is_done()

    def _look(self) -> None:
        now_ns = time.time_ns()
        is_late = now_ns > self._deadline_ns
        left = []
        for box, step in self._writes:
            if box.is_dirty and not is_late:
                left.append((box, step))
                continue
            step.end_ns = now_ns
            if box.is_dirty:
                step.state = "not_sent"
        self._writes = left
        if left:
            self._later(_LOOK_S, self._look)
        else:
            self._is_done()

    def _is_done(self) -> None:
        self._pending -= 1
        if self._pending:
            return
        for taker in self._recording.takers:
            with suppress(Exception):
                taker.ends(self._recording)
