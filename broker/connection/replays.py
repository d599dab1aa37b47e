"""Retained messages on their way to those who subscribed: a slice at a time, as fast as each of them takes them.

A subscription to a million retained messages holds neither memory nor the loop: what is read from the store at once is
a slice, and other work of the loop goes between any two. A message that is retained after the subscription was made
reaches it as a live one, and is passed over here: nobody gets an older message of a topic after a newer one, or the
same twice.

A subscription that ends with its connection, or asks for QoS 0, draws its messages from ``deliveries``, ahead of all
newer ones. For a session that outlives its connection, messages of QoS 1 and 2 go through the session log, a slice with
the subscription and the rest as they are taken. Where such a replay stands is written together with what it appended,
under ``replay/CLIENT_ID``, so that it goes on after a reconnection and after a crash.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from broker.codec.outgoing import Outgoing
from broker.connection.backlog import Backlog
from broker.core.clock import Clock, Defer, Later
from broker.core.message import Message
from broker.core.subscription import Subscription
from broker.routing.retained import Entry, Retained
from broker.routing.router import Target
from broker.routing.topic_keys import FilterWalk
from broker.session.delivery import Delivery
from broker.session.session import Session
from broker.storage.writer import Writer

PREFIX: Final = b"replay/"
_MESSAGES: Final = 256
_BYTES: Final = 256 * 1024
"""Of one slice, so that a slow client shows before there is much for it in memory."""
_MOST_WAITING: Final = 2000
"""Retained messages that wait for their commit and are looked through at once; with more, the commit is awaited."""
_NOTHING_YET: Final = Delivery(None, 0, False, ())
"""Drawn where there is nothing to send now: the rest is for another turn of the loop."""
_LOOK_AGAIN_S: Final = 0.005
"""How soon a session that had no room is looked at again."""


class _Place(msgspec.Struct, array_like=True, frozen=True):
    """Where a replay stands, as the store keeps it."""

    filter: str
    position: bytes
    since: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Place]).decode


class Replay:
    """The retained messages of one subscription on their way into the session log; ``position`` is None at the end."""

    __slots__ = ("is_awaited", "is_kept", "position", "session", "since", "subscription", "walk", "without")

    def __init__(self, session: Session, subscription: Subscription, position: bytes, since: int) -> None:
        self.session, self.subscription, self.since = session, subscription, since
        self.walk = FilterWalk(subscription.filter)
        self.position: bytes | None = position
        self.without: frozenset[bytes] = frozenset()
        self.is_awaited = False
        """Something will take it up again: a turn, a commit, a timer."""
        self.is_kept = False


class Replays:
    """Those of the node. ``max_queue`` is what a session may have waiting in memory."""

    def __init__(
        self,
        retained: Retained,
        backlog: Backlog,
        writer: Writer,
        clock: Clock,
        defer: Defer,
        later: Later,
        max_queue: int,
    ) -> None:
        self._retained, self._backlog, self._writer, self._clock = retained, backlog, writer, clock
        self._defer, self._later, self._max_queue = defer, later, max_queue
        self.is_wanted: Callable[[Message], bool] = lambda message: True
        """Whether a retained message is still to be handed out."""
        self._of: dict[Session, list[Replay]] = {}
        self._turns: deque[Replay] = deque()

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def start(self, session: Session, subscription: Subscription) -> None:
        """Send what a new subscription finds."""
        if self._retained.has_none(subscription.filter):
            return
        if session.is_durable and subscription.qos:
            self._start_logging(session, subscription)
        else:
            session.send_ahead(self.deliveries(session, subscription))

    def deliveries(self, session: Session, subscription: Subscription) -> Iterator[Delivery]:
        """What a new subscription finds, to be drawn as the client takes it; one without a message in it means that a
        turn of the loop is due. What is retained from here on is left out: it comes as a live message."""
        return self._deliveries(session, subscription, self._retained.stamp)

    def _deliveries(self, session: Session, subscription: Subscription, since: int) -> Iterator[Delivery]:
        walk = FilterWalk(subscription.filter)
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
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        while True:
            for outgoing, qos in self._current(session, subscription, entries, since):
                yield Delivery(outgoing, qos, True, identifiers)
            if position is None or not _is_wanted(session, subscription):
                return
            passed_over = self._retained.changed_meanwhile(without)
            entries, position = self._retained.read(walk, position, _MESSAGES, _BYTES, passed_over)
            if not entries:
                yield _NOTHING_YET

    def _start_logging(self, session: Session, subscription: Subscription) -> None:
        replay = Replay(session, subscription, b"", self._retained.stamp)
        if self._retained.waiting > _MOST_WAITING:
            self._keep(replay)
            self._await_commit(replay)
            return
        entries, replay.without = self._retained.waiting_entries(replay.walk)
        self._send(replay, entries)
        self._advance(replay)

    def session_ended(self, session: Session) -> None:
        """Forget what was under way for a session."""
        if self._of.pop(session, ()):
            self._writer.put(_key(session), None)

    def resumed(self, session: Session) -> None:
        """A connection has taken the session: go on."""
        for replay in self._of.get(session, ()):
            self._await_turn(replay)

    def load(self, client_id: str, value: bytes, session: Session | None) -> None:
        """Take up what an earlier run left, for a session that is restored; forget it when that is gone."""
        places = _decode(value) if session is not None else ()
        known = [place for place in places if session is not None and place.filter in session.subscriptions]
        if session is None or not known:
            self._writer.put(PREFIX + client_id.encode(), None)
            return
        for place in known:
            replay = Replay(session, session.subscriptions[place.filter], place.position, place.since)
            replay.is_kept = True
            self._of.setdefault(session, []).append(replay)

    # -- inside --

    def _advance(self, replay: Replay) -> None:
        """Log a slice; the place goes with it."""
        assert replay.position is not None
        passed_over = self._retained.changed_meanwhile(replay.without)
        entries, replay.position = self._retained.read(replay.walk, replay.position, _MESSAGES, _BYTES, passed_over)
        has_appended = self._send(replay, entries)
        if replay.position is None:
            self._remove(replay)
            return
        self._keep(replay)
        if has_appended:
            self._store_places(replay.session)
            self._await_commit(replay)
        else:
            self._await_turn(replay)

    def _keep(self, replay: Replay) -> None:
        if not replay.is_kept:
            replay.is_kept = True
            self._of.setdefault(replay.session, []).append(replay)
            self._store_places(replay.session)

    def _send(self, replay: Replay, entries: Iterable[Entry]) -> bool:
        """Append to the session log, but what has QoS 0; True when there was something to append."""
        session, subscription, has_appended = replay.session, replay.subscription, False
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        for outgoing, qos in self._current(session, subscription, entries, replay.since):
            if qos:
                self._backlog.keep(_as_retained(outgoing.message), [Target(session, qos, True, identifiers)], True)
                has_appended = True
            else:
                session.deliver(outgoing, 0, True, identifiers)
        return has_appended

    def _current(
        self, session: Session, subscription: Subscription, entries: Iterable[Entry], since: int
    ) -> Iterator[tuple[Outgoing, int]]:
        now_ns, granted = self._clock.now_ns(), subscription.qos
        for message, stamp in entries:
            outgoing = Outgoing(message)
            if subscription.filter.text not in session.subscriptions:  # unsubscribed, or taken from the client
                return
            if stamp > since or outgoing.is_expired(now_ns) or not self.is_wanted(message):
                continue
            if session.may_have is None or session.may_have(message.topic, granted):
                yield outgoing, min(message.qos, granted)

    def _remove(self, replay: Replay) -> None:
        replays = self._of.get(replay.session)
        if replays is None or replay not in replays:
            return
        replays.remove(replay)
        self._store_places(replay.session)
        if not replays:
            del self._of[replay.session]

    def _store_places(self, session: Session) -> None:
        places = [
            _Place(replay.subscription.filter.text, replay.position, replay.since)
            for replay in self._of.get(session, ())
            if replay.position is not None
        ]
        self._writer.put(_key(session), _encode(places) if places else None)

    def _await_commit(self, replay: Replay) -> None:
        """The log is not to be filled faster than it is written."""
        replay.is_awaited = True

        def go_on(_error: BaseException | None) -> None:
            replay.is_awaited = False
            self._await_turn(replay)

        self._writer.when_committed(go_on)

    def _await_turn(self, replay: Replay) -> None:
        if replay.is_awaited:
            return
        replay.is_awaited = True
        self._turns.append(replay)
        if len(self._turns) == 1:
            self._defer(self._run)

    def _run(self) -> None:
        """One slice a turn of the loop, each replay in its turn."""
        replay = self._turns[0]
        replay.is_awaited = False
        if not _is_wanted(replay.session, replay.subscription):
            self._remove(replay)
        elif self._has_room(replay.session):
            self._advance(replay)
        elif not replay.session.is_away:  # else ``resumed`` goes on
            replay.is_awaited = True
            self._later(_LOOK_AGAIN_S, self._look_again, replay)
        self._turns.popleft()
        if self._turns:
            self._defer(self._run)

    def _look_again(self, replay: Replay) -> None:
        replay.is_awaited = False
        self._await_turn(replay)

    def _has_room(self, session: Session) -> bool:
        if session.is_away or session.is_behind or session.is_slow:
            return False
        return len(session.queue) * 2 <= self._max_queue


def _is_wanted(session: Session, subscription: Subscription) -> bool:
    """Whether a subscription still holds."""
    return not session.is_ended and session.subscriptions.get(subscription.filter.text) is subscription


def _as_retained(message: Message) -> Outgoing:
    return Outgoing(message.changed(message.topic, message.payload, message.qos, True, message.properties))


def _key(session: Session) -> bytes:
    return PREFIX + session.client_id.encode()
