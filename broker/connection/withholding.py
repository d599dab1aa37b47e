"""Publishers wait for the acknowledgement of messages that a slow subscriber has no room for: so nothing acknowledged
is lost.

A message for a connected subscriber whose queue is nearly full is queued all the same, and its PUBACK or PUBREC waits
until enough has left the queue for the message to be within the bound. A publisher has a limited number of messages
under way without an acknowledgement, so it sends no faster than the subscriber takes them. Publishers to others are not
affected, and the broker keeps reading from all of them: pings, acknowledgements, publishes to others. Only a publisher
that sends very much without waiting for acknowledgements is not read from, and never one that a full queue waits for:
it may be about to acknowledge what is in there.

This lasts as long as the subscriber acknowledges something within ``subscriber_ack_timeout``. Then the acknowledgements
leave, and its queue drops by its policy until it acknowledges again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from logging import getLogger
from typing import Final, Protocol

from broker.connection.acknowledgements import Held
from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.stalled import Stalled
from broker.core.errors import PeerError
from broker.core.kinds import counted
from broker.core.message import Message
from broker.core.receipt import Acknowledgement, FullQueue, Receipt, Withheld, Withholder
from broker.core.stage import Outcome, Refusal, Room

_log = getLogger(__name__)

SLOWING_ALARM: Final = "publishers_slowed"
SILENT_ALARM: Final = "subscriber_not_acknowledging"
_ALARM_S: Final = 10
# Maximum that one publisher may have under way before it is not read from.
_PAUSE_BYTES: Final = 1024 * 1024
# Memory of a message that is withheld, besides topic and payload.
_MESSAGE_BYTES: Final = 512
# Acknowledgements that leave in one turn of the loop when a subscriber is no longer waited for; and messages that
# its queue then drops.
_AT_ONCE: Final = 2000
_TOLD: Final = 10


class Subscriber(Protocol):
    """Subscriber that publishers wait for: a session, or a share group."""

    withheld: Withheld | None
    """Part of its queue that is not acknowledged to publishers, while it is full."""
    is_acknowledging: bool
    """False once it has acknowledged nothing for too long, until it does again."""

    @property
    def name(self) -> str:
        """Name that users know it by."""

    @property
    def slows_publishers(self) -> bool:
        """True if it is connected, its settings say so, and it acknowledges."""

    @property
    def ack_timeout_s(self) -> float:
        """Time within which it has to acknowledge something."""

    @property
    def progress(self) -> Hashable:
        """Changes with each acknowledgement."""

    @property
    def connections(self) -> Iterable[object]:
        """The connections that may acknowledge."""

    @property
    def is_unread(self) -> bool:
        """True if the broker does not read from them, so that it sees no acknowledgements."""

    @property
    def has_caught_up(self) -> bool:
        """True if little is in its queue."""

    def room(self, withheld: int, withheld_bytes: int) -> tuple[float, float]:
        """Messages and bytes of its queue that may still be acknowledged, given the amount that is not; there
        is room while both are above 0."""

    def trim(self, at_most: int) -> bool:
        """Drop by the queue's policy what is above its bound, a part; whether there is more."""


class _Turn:
    """The acknowledgement of one without a connection."""

    __slots__ = ("_refusal", "_waits", "has_come")

    def __init__(self, waits: int) -> None:
        self.has_come: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._waits = waits
        self._refusal: Refusal | None = None

    def __call__(self) -> None:
        """One subscriber has room."""
        self._waits -= 1
        if not self._waits and not self.has_come.done():
            self.has_come.set_result(self._refusal)

    def refuse(self, refusal: Refusal) -> None:
        """See ``broker.core.stage.Refusable``."""
        self._refusal = refusal


class _Watched:
    """A subscriber that is full, or silent: since when its publishers are slowed, and when it last acknowledged."""

    __slots__ = ("at_s", "mark", "since_s")

    def __init__(self, now_s: float, mark: Hashable) -> None:
        self.since_s = self.at_s = now_s
        self.mark = mark


class Withholding:
    """The acknowledgements of a node that wait for subscribers.

    A message with a receipt can wait: a client's of QoS 1 or 2, one of the API or of a source. Others, such as wills
    and what rules publish upon QoS 0, get the rest of the queue, up to its bound, and are dropped above it.
    """

    def __init__(self, context: Context, stalled: Stalled) -> None:
        self._context = context
        self._stalled = stalled
        self.full: dict[Subscriber, _Watched] = {}
        self._silent: dict[Subscriber, Hashable] = {}
        self._paused: set[Connection] = set()
        self._messages = self._bytes = 0
        self._numbers = itertools.count(1)
        self._most_bytes = context.settings.max_withheld_bytes
        self._due: dict[Subscriber, None] = {}
        metrics = context.metrics
        help = "acknowledgements to publishers that wait until subscribers have room"
        metrics.gauge("acknowledgements_withheld", lambda: self._messages, help)
        metrics.gauge(
            "withheld_bytes",
            lambda: self._bytes,
            "memory of the messages whose acknowledgements wait so",
        )
        metrics.gauge(
            "publishers_slowed",
            lambda: len(self._paused),
            "publishers not read from while theirs wait",
        )
        self._gave_up = metrics.counter(
            "subscribers_not_acknowledging",
            "times that a subscriber with a full queue acknowledged nothing in time",
        )

    # -- from subscribers --

    def queue_in_full(
        self, subscriber: Subscriber, size_bytes: int, receipt: Receipt | None
    ) -> bool:
        """A message is to wait for a subscriber that may not have more acknowledged ones; returns whether it may."""
        withheld = subscriber.withheld
        if withheld is None:
            withheld = self.fills(subscriber)
        return self.wait_for(withheld, size_bytes, receipt)

    def wait_for(self, queue: Withholder, size_bytes: int, receipt: Receipt | None) -> bool:
        """A message waits in a queue; returns whether its publisher waits for it."""
        if receipt is None or receipt.is_closed:
            return False
        if self._bytes > self._most_bytes and self._is_too_much(receipt):
            receipt.is_over = True
            return False
        receipt.wait_for(queue, size_bytes)
        return True

    @property
    def is_full(self) -> bool:
        """True if more than ``mqtt.max_withheld_bytes`` are withheld: further messages may be refused."""
        return self._bytes > self._most_bytes

    def let_go(self, acknowledgement: Acknowledgement, size_bytes: int) -> None:
        """Another cell lets an acknowledgement go."""
        self._messages -= 1
        self._bytes -= size_bytes + _MESSAGE_BYTES
        acknowledgement()

    def hold(self, acknowledgement: Acknowledgement, full_queues: Sequence[FullQueue]) -> None:
        """Call ``acknowledgement`` once for each of these full queues, when it has room."""
        self._add(acknowledgement, full_queues)

    def _is_too_much(self, receipt: Receipt) -> bool:
        return self._bytes > 2 * self._most_bytes or receipt.held_bytes > self._most_bytes

    def with_room(
        self, publish: Callable[[Message], Outcome], message: Message
    ) -> tuple[Outcome, Room | None]:
        """See ``broker.core.stage.WithRoom``."""
        receipt = message.receipt = message.receipt or Receipt()
        outcome = publish(message)
        receipt.close()
        if receipt.is_over:
            error = self.too_much()
            refusal = Refusal(
                "withholding", "withholding", "withheld_full", error.reason_code, str(error)
            )
            return Outcome(0, refusal), None
        if not outcome.full_queues:
            return outcome, None
        turn = _Turn(len(outcome.full_queues))
        self._add(turn, outcome.full_queues)
        return outcome, turn.has_come

    def fills(self, subscriber: Subscriber) -> Withheld:
        """A queue has no more room for acknowledged messages: the clients that must acknowledge are read from."""
        if subscriber.withheld is not None:
            return subscriber.withheld
        subscriber.withheld = Withheld()
        self.full[subscriber] = _Watched(self._context.now_s, subscriber.progress)
        if self._paused:
            for c in self._paused.intersection(subscriber.connections):
                self._go_on(c)
        return subscriber.withheld

    def drained(self, subscriber: Subscriber) -> None:
        """Something left a subscriber's queue, or it is no longer waited for: check it once in this turn of the
        loop, since acknowledgements come many at a time."""
        if not self._due:
            self._context.defer(self._look_at_due)
        self._due[subscriber] = None

    def _look_at_due(self) -> None:
        due = self._due
        self._due = {}
        for subscriber in due:
            self._look_at(subscriber)

    def _look_at(self, subscriber: Subscriber) -> None:
        withheld = subscriber.withheld
        if withheld is None:
            return
        if not subscriber.slows_publishers:
            self._end(subscriber)
            return
        messages, size_bytes = subscriber.room(len(withheld), withheld.size_bytes)
        while withheld and messages > 0 and size_bytes > 0:
            messages -= 1
            size_bytes -= self._let_go_oldest(withheld)
        if not withheld and subscriber.has_caught_up:
            self._end(subscriber)

    # -- from publishers --

    def too_much(self) -> PeerError:
        """Count a message that a full queue did not take, since too much is withheld; the error of its publisher."""
        text = "too many publishes wait for slow subscribers; see mqtt.max_withheld_bytes"
        return self._context.figures.over_limit("max_withheld_bytes", text)

    def withhold(
        self,
        c: Connection,
        packet: bytes,
        packet_id: int,
        full_queues: Sequence[FullQueue],
        *,
        commits: int,
    ) -> Held:
        """The acknowledgement as one that waits for full queues, a number of commits, and those before it."""
        size_bytes = _MESSAGE_BYTES
        for _, size in full_queues:
            size_bytes += size
        acknowledgement = c.answers.hold(
            c, packet, packet_id, size_bytes, commits + len(full_queues), self._resume
        )
        self._add(acknowledgement, full_queues)
        if c.answers.held_bytes > _PAUSE_BYTES or self._bytes > self._most_bytes:
            self._pause(c)
        return acknowledgement

    def hold_back(self, c: Connection, packet: bytes, waits: int) -> Held:
        """An answer to another packet than PUBLISH, which waits for several calls; acknowledgements wait behind it.
        Each SUBSCRIBE is answered, also one that a client of MQTT 3.1 sends again."""
        return c.answers.hold(c, packet, -next(self._numbers), 0, waits, self._resume)

    def _pause(self, c: Connection) -> None:
        """Do not read on from a publisher, unless others wait for it."""
        if c not in self._paused and not self._is_waited_for(c):
            self._paused.add(c)
            c.hold(self)

    def _add(self, acknowledgement: Acknowledgement, full_queues: Sequence[FullQueue]) -> None:
        for withheld, size in full_queues:
            withheld.add(acknowledgement, size)
            self._messages += 1
            self._bytes += size + _MESSAGE_BYTES

    def abandon(self, c: Connection) -> None:
        """The connection has ended. What it published stays withheld, so that coming back brings no more room."""
        self._paused.discard(c)
        c.answers.abandon()

    # -- time --

    def tick(self) -> None:
        """Let those go that have acknowledged nothing for too long, and wait again for those that do again."""
        now_s = self._context.now_s
        self._most_bytes = self._context.settings.max_withheld_bytes
        for subscriber, watched in list(self.full.items()):
            if watched.mark != (mark := subscriber.progress) or subscriber.is_unread:
                watched.mark = mark
                watched.at_s = now_s
            self._look_at(subscriber)
            if subscriber.withheld is not None and now_s - watched.at_s >= subscriber.ack_timeout_s:
                self._give_up(subscriber)
        for subscriber, mark in list(self._silent.items()):
            is_gone = not any(True for _ in subscriber.connections)
            if subscriber.is_acknowledging or is_gone or mark != subscriber.progress:
                del self._silent[subscriber]
                subscriber.is_acknowledging = True
        for c in list(self._paused):
            self._resume(c)
        self._set_alarms(now_s)

    def _give_up(self, subscriber: Subscriber) -> None:
        self._gave_up.value += 1
        withheld = subscriber.withheld
        log = "subscriber.not_acknowledging name=%.200s seconds=%s withheld=%d"
        _log.warning(log, subscriber.name, subscriber.ack_timeout_s, len(withheld or ()))
        self._silent[subscriber] = subscriber.progress
        subscriber.is_acknowledging = False
        self._end(subscriber)

    def _set_alarms(self, now_s: float) -> None:
        alarms = self._context.alarms
        if alarms is None:
            return
        long = [
            subscriber
            for subscriber, watched in self.full.items()
            if now_s - watched.since_s >= _ALARM_S
        ]
        names = [subscriber.name for subscriber in long]
        subscribers = f"{counted(len(long), 'subscriber')} with a full queue"
        text = f"the publishers to {subscribers} are slowed down: {_listed(names)}"
        alarms.set(SLOWING_ALARM, bool(long), text, subscribers=names[:_TOLD])
        names = list(
            dict.fromkeys(
                [subscriber.name for subscriber in self._silent]
                + [c.session.name for c in self._stalled.all()]
            )
        )
        dropping = f"; the full queues of {len(self._silent)} drop messages" if self._silent else ""
        text = f"{counted(len(names), 'subscriber')} acknowledged or read nothing in time{dropping}: {_listed(names)}"
        alarms.set(SILENT_ALARM, bool(names), text, subscribers=names[:_TOLD])

    # -- inside --

    def _end(self, subscriber: Subscriber) -> None:
        """Wait for a subscriber no more."""
        withheld = subscriber.withheld
        subscriber.withheld = None
        self.full.pop(subscriber, None)
        if withheld:
            self._let_go_all(withheld)
        if not subscriber.slows_publishers:
            self._context.later(0, self._trim, subscriber)

    def _let_go_all(self, withheld: Withheld) -> None:
        for _ in range(min(len(withheld), _AT_ONCE)):
            self._let_go_oldest(withheld)
        if withheld:
            self._context.later(0, self._let_go_all, withheld)

    def _trim(self, subscriber: Subscriber) -> None:
        if not subscriber.slows_publishers and subscriber.trim(_AT_ONCE):
            self._context.later(0, self._trim, subscriber)

    def _let_go_oldest(self, withheld: Withheld) -> int:
        acknowledgement, size_bytes = withheld.popleft()
        withheld.size_bytes -= size_bytes
        self._messages -= 1
        self._bytes -= size_bytes + _MESSAGE_BYTES
        acknowledgement()
        return size_bytes

    def _is_waited_for(self, c: Connection) -> bool:
        """True if a full queue waits for an acknowledgement that this connection may send."""
        session = c.session
        if session.withheld is not None:
            return True
        return bool(session.memberships) and any(
            c in subscriber.connections for subscriber in self.full
        )

    def _resume(self, c: Connection) -> None:
        """Read again from a publisher that has little under way."""
        if c not in self._paused:
            return
        is_tight = self._bytes > self._most_bytes
        if not c.answers.held or (c.answers.held_bytes * 2 <= _PAUSE_BYTES and not is_tight):
            self._go_on(c)

    def _go_on(self, c: Connection) -> None:
        self._paused.discard(c)
        c.let_go(self)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"{name:.100}" for name in names[:_TOLD])
