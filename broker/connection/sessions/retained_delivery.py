"""Retained messages on their way to those who subscribed: a slice at a time, as fast as each of them takes them.

A subscription to a million retained messages holds neither memory nor the loop: what is read from the store at once is
a slice, and other work of the loop goes between any two. A message that is retained after the subscription was made
reaches it as a live one, and is passed over here: no one gets an older message of a topic after a newer one, or the
same twice.

There is one replay a session and filter: a new subscription to the filter begins it again, and the end of the
subscription ends it.

A subscription that ends with its connection, or asks for QoS 0, has its messages sent ahead of all newer ones. For a
session that outlives its connection, messages of QoS 1 and 2 go through the session log, a slice with the subscription,
while a turn of the loop has time for it, and the rest as they are taken. Its position is written together with the
messages that it appended, under ``replay/CLIENT_ID``, so that it continues after a reconnection and after a crash.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

import msgspec

from broker.codec.outgoing import Outgoing
from broker.connection.context import Context
from broker.connection.sessions.log import SessionLog
from broker.core.message import Message
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk
from broker.routing.retained_store import Entry, Retained
from broker.routing.router import Target
from broker.session.delivery import Delivery
from broker.session.registry import SessionRegistry
from broker.session.retained_queue import NOT_YET
from broker.session.session import Session
from broker.storage.collection import TEXT, Codec, Collection

_MESSAGES: Final = 256
# Maximum of one slice, so that a slow client shows before there is much for it in memory.
_BYTES: Final = 256 * 1024
# Retained messages that wait for their commit and are searched at once; with more, the commit is awaited.
_MOST_WAITING: Final = 2000
# Drawn where there is nothing to send now: the rest is for another turn of the loop.
_NOTHING_YET: Final = Delivery(None, 0, False, ())
# Maximum of one turn of the loop, for slices that are logged; the current one is finished.
_TURN_S: Final = 0.005
# Seconds until a session that had no room is checked again.
_LOOK_AGAIN_S: Final = 0.005


# Seconds that a SUBACK waits for retained messages of other cells.
_FIRST_S: Final = 2.0
# Messages after which it waits for no more of them.
_FIRST_MESSAGES: Final = 256


class LookUp(Protocol):
    """The retained messages of one subscription, where several cells have some."""

    has_begun: bool
    """True once each cell has sent a part, or is left out."""

    @property
    def is_over(self) -> bool:
        """True if there is nothing more, unless a cell that did not answer does so yet."""

    @property
    def is_complete(self) -> bool:
        """True if all cells have answered."""

    def take(self) -> Sequence[Message] | None:
        """The next messages, which may be none; None if there are none yet."""

    def state(self) -> bytes:
        """All that another process needs to continue."""

    def close(self) -> None:
        """Drop the rest."""


class Cells(Protocol):
    """The cells of a broker."""

    def covers(self, topic_filter: TopicFilter) -> bool:
        """True if other cells may have retained messages that match."""

    def begin(
        self, topic_filter: TopicFilter, on_more: Callable[[], None], state: bytes | None = None
    ) -> LookUp:
        """Look up the retained messages of a subscription that is made now, or that ``state`` is of. ``on_more`` is
        called each time that there is more to take, or nothing more."""


class _Position(msgspec.Struct, array_like=True, frozen=True):
    """Position of a replay, as the store keeps it: with other cells, the state of its look-up."""

    filter: str
    position: bytes
    since: int


_POSITIONS: Final = Codec[list[_Position]](
    msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(list[_Position]).decode
)


class Replay:
    """The retained messages of one subscription on their way into the session log; ``position`` is None at the end."""

    __slots__ = (
        "filter", "has_begun", "is_awaited", "look_up", "on_begun", "position", "sent", "session", "since", "walk",
        "without",
    )  # fmt: skip

    def __init__(
        self, session: Session, topic_filter: TopicFilter, position: bytes, since: int
    ) -> None:
        self.session = session
        self.filter = topic_filter.text
        self.since = since
        self.walk = FilterWalk(topic_filter)
        self.position: bytes | None = position
        self.without: frozenset[bytes] | None = None
        """Keys to pass over; None until it has begun."""
        self.is_awaited = False
        """A commit will take it up again."""
        self.look_up: LookUp | None = None
        """Reads it, where other cells have some of the messages."""
        self.sent = 0
        self.has_begun = False
        """True if no SUBACK waits for it any longer."""
        self.on_begun: list[Callable[[], None]] = []


class _Ahead:
    """A look-up over several cells whose messages are sent ahead; ``is_active`` while the session draws them."""

    __slots__ = ("is_active", "look_up", "on_begun")

    def __init__(self, look_up: LookUp) -> None:
        self.look_up = look_up
        self.is_active = False
        self.on_begun: list[Callable[[], None]] = []

    def begun(self) -> None:
        """No SUBACK waits for it any longer."""
        for begun in self.on_begun:
            begun()
        self.on_begun.clear()


class Replays:
    """The replays of a node. ``may_send`` says whether a retained message may still be sent; None allows all."""

    def __init__(
        self,
        context: Context,
        retained: Retained,
        session_log: SessionLog,
        may_send: Callable[[Message], bool] | None = None,
    ) -> None:
        self._context = context
        self._retained = retained
        self._session_log = session_log
        self._may_send = may_send
        self._writer = context.writer
        self._clock = context.clock
        self._defer = context.defer
        self._of: dict[Session, dict[str, Replay]] = {}
        """Unfinished replays, by topic filter."""
        self.cells: Cells | None = None
        """The cells that have retained messages; None in a broker of one process."""
        self._ahead: dict[Session, dict[str, _Ahead]] = {}
        self._runnable: OrderedDict[Replay, None] = OrderedDict()
        """Replays whose next slice is due."""
        self._full: set[Session] = set()
        """Sessions without room, which are checked again soon."""
        self._moved: dict[str, Session] = {}
        """Sessions whose positions are stored with the next commit, by client identifier."""
        self._left_s = _TURN_S
        self._is_renewed = False
        self._is_due = False
        self.stored = Collection(context.writer, b"replay/", TEXT, _POSITIONS)
        context.writer.before_commit(self._put_positions)
        help = "subscriptions that retained messages are sent to"
        context.metrics.gauge("retained_replays", lambda: len(self), help)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def start(self, session: Session, subscription: Subscription) -> None:
        """Send what a new subscription finds, in place of the rest for an earlier one to the same filter. What is
        retained from here on is left out: it comes as a live message."""
        topic_filter = subscription.filter
        since = self._retained.stamp
        self.forget(session, topic_filter.text)
        if self.cells is not None and self.cells.covers(topic_filter):
            self._start_over_cells(self.cells, session, subscription, since)
            return
        if self._retained.has_none(topic_filter):
            return
        if not (session.is_durable and subscription.qos):
            session.send_ahead(topic_filter.text, self._deliveries(session, topic_filter, since))
            return
        replay = Replay(session, topic_filter, b"", since)
        if self._left_s <= 0:
            self._keep(replay)
            self._await_turn(replay)
        else:
            self._take_turn(replay)

    # -- over several cells --

    def _start_over_cells(
        self, cells: Cells, session: Session, subscription: Subscription, since: int
    ) -> None:
        topic_filter = subscription.filter
        if session.is_durable and subscription.qos:
            replay = Replay(session, topic_filter, b"", since)
            replay.look_up = cells.begin(topic_filter, partial(self._await_turn, replay))
            self._keep(replay)
        elif not session.is_away:
            text = topic_filter.text
            look_up = cells.begin(topic_filter, partial(self._go_on_ahead, session, text))
            ahead = self._ahead.setdefault(session, {})[text] = _Ahead(look_up)
            session.send_ahead(text, self._from_cells(session, text, ahead))

    def _from_cells(self, session: Session, text: str, ahead: _Ahead) -> Iterator[Delivery]:
        """See ``_deliveries``."""
        look_up = ahead.look_up
        ahead.is_active = True
        try:
            while not look_up.is_over:
                messages = look_up.take() if look_up.has_begun else None
                if messages is None:
                    yield NOT_YET
                    continue
                entries = [Entry(message, 0) for message in messages]
                for outgoing, qos, identifiers in self._current(session, text, entries, 0):
                    yield Delivery(outgoing, qos, True, identifiers)
                if not messages:
                    yield _NOTHING_YET
        finally:
            ahead.is_active = False
        if look_up.is_complete:
            self._end_ahead(session, text)

    def _go_on_ahead(self, session: Session, text: str) -> None:
        """A look-up has more, or nothing more."""
        ahead = self._ahead[session][text]
        if ahead.look_up.has_begun:
            ahead.begun()
        if session.is_away and session.retained_queue is None:
            self._end_ahead(session, text)
        elif ahead.is_active:
            session.pump()
        elif not ahead.look_up.is_over:
            session.send_ahead(text, self._from_cells(session, text, ahead))
        elif ahead.look_up.is_complete:
            self._end_ahead(session, text)

    def _end_ahead(self, session: Session, text: str) -> None:
        kept = self._ahead.get(session, {})
        if (ahead := kept.pop(text, None)) is not None:
            ahead.look_up.close()
            if not kept:
                del self._ahead[session]
            ahead.begun()

    def _advance_over_cells(self, replay: Replay, look_up: LookUp) -> None:
        """Log what another cell sent; the state of the look-up goes with it."""
        messages = look_up.take()
        if messages is None:
            return
        replay.sent += len(messages)
        has_appended = self._send(replay, [Entry(message, 0) for message in messages])
        if look_up.is_complete:
            self.forget(replay.session, replay.filter)
            return
        if has_appended:
            self._mark_moved(replay.session)
        if look_up.is_over or replay.sent >= _FIRST_MESSAGES:
            self._begun(replay)
        if has_appended:
            self._await_commit(replay)
        elif not look_up.is_over:
            self._await_turn(replay)

    def when_begun(self, session: Session, then: Callable[[], None]) -> bool:
        """Call a function once the first retained messages for new subscriptions of a session are here, or after two
        seconds; False if no cell is waited for."""
        waited_for: list[Replay | _Ahead] = [
            *(
                replay
                for replay in self._of.get(session, {}).values()
                if replay.look_up is not None and not replay.has_begun
            ),
            *(
                ahead
                for ahead in self._ahead.get(session, {}).values()
                if not ahead.look_up.has_begun
            ),
        ]
        waits = len(waited_for)

        def begun() -> None:
            nonlocal waits
            waits -= 1
            if not waits:
                then()

        def late() -> None:
            nonlocal waits
            if waits > 0:
                waits = 0
                then()

        for reading in waited_for:
            reading.on_begun.append(begun)
        if waited_for:
            self._context.later(_FIRST_S, late)
        return bool(waited_for)

    @staticmethod
    def _begun(replay: Replay) -> None:
        if not replay.has_begun:
            replay.has_begun = True
            for begun in replay.on_begun:
                begun()
            replay.on_begun.clear()

    def _close(self, replay: Replay) -> None:
        if replay.look_up is not None:
            replay.look_up.close()
            self._begun(replay)

    # -- of this cell --

    def _deliveries(
        self, session: Session, topic_filter: TopicFilter, since: int
    ) -> Iterator[Delivery]:
        """To be drawn as the client takes them; one without a message in it means that a turn of the loop is due."""
        walk = FilterWalk(topic_filter)
        entries: list[Entry] = []
        without: frozenset[bytes] = frozenset()
        if self._retained.waiting <= _MOST_WAITING:
            entries, without = self._retained.waiting_entries(walk)
        else:
            committed: list[object] = []
            self._writer.when_committed(committed.append)
            while not committed:
                yield _NOTHING_YET
        position: bytes | None = b""
        while True:
            for outgoing, qos, identifiers in self._current(
                session, topic_filter.text, entries, since
            ):
                yield Delivery(outgoing, qos, True, identifiers)
            if position is None:
                return
            passed_over = self._retained.changed_meanwhile(without)
            entries, position = self._retained.read(walk, position, _MESSAGES, _BYTES, passed_over)
            if not entries:
                yield _NOTHING_YET

    def forget(self, session: Session, topic_filter: str) -> None:
        """Discard the rest of the replay for a subscription to this filter."""
        if session.retained_queue is not None:
            session.retained_queue.remove(topic_filter)
        self._end_ahead(session, topic_filter)
        replays = self._of.get(session)
        replay = None if replays is None else replays.pop(topic_filter, None)
        if replays is None or replay is None:
            return
        self._runnable.pop(replay, None)
        self._close(replay)
        self._mark_moved(session)
        if not replays:
            del self._of[session]

    def session_ended(self, session: Session) -> None:
        """Forget what was under way for a session."""
        for replay in self._of.pop(session, {}).values():
            self._runnable.pop(replay, None)
            self._close(replay)
            self._mark_moved(session)
        for ahead in self._ahead.pop(session, {}).values():
            ahead.look_up.close()

    def resumed(self, session: Session) -> None:
        """A connection has taken the session, or it has room again: continue."""
        for replay in self._of.get(session, {}).values():
            self._await_turn(replay)
        if session.retained_queue is None:
            for text in list(self._ahead.get(session, ())):
                self._end_ahead(session, text)

    def load(self, sessions: SessionRegistry) -> None:
        """Take up what an earlier run left for sessions that are restored; forget it where they are gone."""
        for client_id, places in self.stored.stored():
            self._load(client_id, places, sessions.get(client_id))

    def _load(self, client_id: str, places: list[_Position], session: Session | None) -> None:
        valid_places = [
            place
            for place in places
            if session is not None and place.filter in session.subscriptions
        ]
        if session is None or not valid_places:
            self.stored.put(client_id, None)
            return
        for place in valid_places:
            topic_filter = session.subscriptions[place.filter].filter
            replay = Replay(session, topic_filter, place.position, place.since)
            replay.without = frozenset()
            if self.cells is not None and self.cells.covers(topic_filter):
                replay.has_begun = True
                replay.look_up = self.cells.begin(
                    topic_filter, partial(self._await_turn, replay), place.position
                )
            self._of.setdefault(session, {})[place.filter] = replay

    # -- inside --

    def _take_turn(self, replay: Replay) -> None:
        """Begin or continue one, at the cost of this turn of the loop."""
        before_s = self._clock.monotonic_s()
        self._advance(replay)
        self._left_s -= self._clock.monotonic_s() - before_s
        if not self._is_renewed:
            self._is_renewed = True
            self._defer(self._renew)

    def _renew(self) -> None:
        self._left_s = _TURN_S
        self._is_renewed = False

    def _advance(self, replay: Replay) -> None:
        """Log a slice; the place goes with it."""
        if replay.look_up is not None:
            self._advance_over_cells(replay, replay.look_up)
            return
        has_appended = False
        if replay.without is None:
            if self._retained.waiting > _MOST_WAITING:
                self._keep(replay)
                self._await_commit(replay)
                return
            entries, replay.without = self._retained.waiting_entries(replay.walk)
            has_appended = self._send(replay, entries)
        assert replay.position is not None
        passed_over = self._retained.changed_meanwhile(replay.without)
        entries, replay.position = self._retained.read(
            replay.walk, replay.position, _MESSAGES, _BYTES, passed_over
        )
        has_appended |= self._send(replay, entries)
        if replay.position is None:
            self.forget(replay.session, replay.filter)
            return
        self._keep(replay)
        if has_appended:
            self._mark_moved(replay.session)
            self._await_commit(replay)
        else:
            self._await_turn(replay)

    def _send(self, replay: Replay, entries: Iterable[Entry]) -> bool:
        """Append to the session log, but what has QoS 0; True when there was something to append."""
        session = replay.session
        has_appended = False
        for outgoing, qos, identifiers in self._current(
            session, replay.filter, entries, replay.since
        ):
            if qos:
                self._session_log.keep(
                    _as_retained(outgoing.message), [Target(session, qos, True, identifiers)], True
                )
                has_appended = True
            else:
                session.deliver(outgoing, 0, True, identifiers)
        return has_appended

    def _current(
        self, session: Session, topic_filter: str, entries: Iterable[Entry], since: int
    ) -> Iterator[tuple[Outgoing, int, tuple[int, ...]]]:
        """Messages of these that the session may have, with QoS and identifiers of the subscription as it is now."""
        now_ns = self._clock.now_ns()
        for message, stamp in entries:
            outgoing = Outgoing(message)
            subscription = session.subscriptions.get(topic_filter)
            if subscription is None:  # unsubscribed, or taken from the client
                return
            if stamp > since or outgoing.is_expired(now_ns):
                continue
            if self._may_send is not None and not self._may_send(message):
                continue
            if session.may_have is None or session.may_have(message.topic, subscription.qos):
                identifiers = (subscription.identifier,) if subscription.identifier else ()
                yield outgoing, min(message.qos, subscription.qos), identifiers

    def _keep(self, replay: Replay) -> None:
        """Add it to those under way."""
        kept = self._of.setdefault(replay.session, {})
        if replay.filter not in kept:
            kept[replay.filter] = replay
            self._mark_moved(replay.session)

    def _mark_moved(self, session: Session) -> None:
        self._moved[session.client_id] = session
        self._writer.touch()

    def _put_positions(self) -> None:
        for session in self._moved.values():
            places = [
                _Position(
                    replay.filter,
                    replay.position if replay.look_up is None else replay.look_up.state(),
                    replay.since,
                )
                for replay in self._of.get(session, {}).values()
                if replay.position is not None
            ]
            self.stored.put(session.client_id, places or None)
        self._moved.clear()

    def _await_commit(self, replay: Replay) -> None:
        """The log is not to be filled faster than it is written."""
        replay.is_awaited = True
        self._writer.when_committed(lambda _error: self._go_on(replay))

    def _go_on(self, replay: Replay) -> None:
        replay.is_awaited = False
        self._await_turn(replay)

    def _await_turn(self, replay: Replay) -> None:
        if replay.is_awaited or self._of.get(replay.session, {}).get(replay.filter) is not replay:
            return
        self._runnable[replay] = None
        self._await_run()

    def _await_run(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._defer(self._run)

    def _run(self) -> None:
        """A slice for each, as many as this turn of the loop has time for."""
        self._is_due = False
        for _ in range(len(self._runnable)):
            if self._left_s <= 0:
                break
            replay, _ = self._runnable.popitem(last=False)
            if self._has_room(replay.session):
                self._take_turn(replay)
            else:
                self._await_room(replay.session)
        if self._runnable:
            self._await_run()

    def _await_room(self, session: Session) -> None:
        """Look again soon, once for all replays of a session; one that is away continues with ``resumed``."""
        if session not in self._full and not session.is_away:
            self._full.add(session)
            self._context.later(_LOOK_AGAIN_S, self._look_again, session)

    def _look_again(self, session: Session) -> None:
        self._full.discard(session)
        if self._has_room(session):
            self.resumed(session)
        elif session in self._of:
            self._await_room(session)

    def _has_room(self, session: Session) -> bool:
        if session.is_away or session.is_behind or session.is_slow:
            return False
        return len(session.queue) * 2 <= self._context.settings.max_queued_messages


def _as_retained(message: Message) -> Outgoing:
    return Outgoing(
        message.changed(message.topic, message.payload, message.qos, True, message.properties)
    )
