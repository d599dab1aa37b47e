"""Publishers wait a moment for subscribers that are a little behind, not for one that is slow; and for the store.

A connected subscriber whose queue or socket fills up holds back its publishers, by not reading their sockets.
That costs no one a message where publishers come in bursts, or are faster than subscribers by a hair. It lasts
``slow_subscriber_wait`` at most: then the bounds and policies of the subscriber's queues hold, and the others continue
at full speed. A subscriber that was waited for in vain is not waited for again until it has caught up and a rest of
``REST`` times that long is over, so that a bad one costs the others at most a twentieth of their time.
"""

from __future__ import annotations

from typing import Final, Protocol

from broker.connection.context import Context
from broker.connection.link import Peer

REST: Final = 20


class Crowded(Protocol):
    """Subscriber that publishers wait for: a session, or a share group."""

    is_waited_for: bool

    @property
    def is_away(self) -> bool:
        """True if nothing is sent to it now."""

    @property
    def owner(self) -> object:
        """The connection that has it."""


class Backpressure:
    """Publishers that wait for subscribers. ``fresh`` holds the subscribers found crowded since a connection was last
    held back."""

    __slots__ = ("_awaiting_store", "_context", "_given_up", "_resting", "_waiting", "fresh")

    def __init__(self, context: Context) -> None:
        self._context = context
        self.fresh: list[Crowded] = []
        self._waiting: dict[Crowded, set[Peer]] = {}
        self._resting: dict[Crowded, bool] = {}
        """Sessions that were waited for in vain, and whether they have caught up since."""
        help = "times that publishers no longer waited for a subscriber, since it was too slow"
        self._given_up = context.metrics.counter("slow_subscribers", help)
        self._awaiting_store: set[Peer] = set()
        context.writer.on_relief(self._let_go_all)

    @property
    def _wait_s(self) -> float:
        return self._context.settings.slow_subscriber_wait

    def crowded(self, session: Crowded) -> None:
        """A message was queued for a session that is more than half full."""
        if (
            session.is_waited_for
            and self._wait_s
            and (not self.fresh or self.fresh[-1] is not session)
        ):
            self.fresh.append(session)

    def hold(self, *publishers: Peer) -> None:
        """Make connections wait for all that their messages have just crowded."""
        for session in self.fresh:
            for publisher in publishers:
                if session.owner is publisher or session.is_away or not session.is_waited_for:
                    continue
                if session not in self._waiting:
                    self._waiting[session] = set()
                    self._context.later(
                        self._wait_s, self._give_up, session, self._waiting[session]
                    )
                self._waiting[session].add(publisher)
                publisher.hold(session)
        self.fresh.clear()

    def hold_for_store(self, publisher: Peer) -> None:
        """A connection published too much: do not read on until the store's writer has caught up."""
        self._awaiting_store.add(publisher)
        publisher.hold(self)

    def abandon(self, publisher: Peer) -> None:
        """The connection has ended."""
        self._awaiting_store.discard(publisher)

    def relieved(self, session: Crowded) -> None:
        """A session has room again, or is gone."""
        if session in self._resting:
            self._resting[session] = True
        else:
            session.is_waited_for = True
        self._let_go(session)

    def _give_up(self, session: Crowded, waiting: set[Peer]) -> None:
        """The longest wait for a subscriber is over."""
        if self._waiting.get(session) is not waiting:
            return
        self._given_up.value += 1
        session.is_waited_for = False
        self._resting[session] = False
        self._context.later(self._wait_s * REST, self._rested, session)
        self._let_go(session)

    def _rested(self, session: Crowded) -> None:
        session.is_waited_for = self._resting.pop(session)

    def _let_go(self, session: Crowded) -> None:
        for publisher in self._waiting.pop(session, ()):
            publisher.let_go(session)

    def _let_go_all(self) -> None:
        """The store's writer has caught up."""
        waiting = self._awaiting_store
        self._awaiting_store = set()
        for publisher in waiting:
            publisher.let_go(self)
