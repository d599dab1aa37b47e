"""Publishers wait for subscribers that are a little behind; they do not wait for one that has stopped reading.

A connected subscriber whose queue or socket fills up holds back whoever publishes to it, by not reading their sockets.
That costs nobody a message when publishers are a little faster than subscribers. A subscriber that has not caught up
within ``PATIENCE_TICKS`` of the hub is not waited for any more until it has: then its queue's bound and policy hold,
and the others go on at full speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from broker.session.session import Session

if TYPE_CHECKING:
    from broker.connection.connection import Connection

PATIENCE_TICKS: Final = 2
"""From half a second to a whole one."""


class Brake:
    """Who waits for whom. ``fresh`` holds the subscribers found crowded since a connection was last held back."""

    __slots__ = ("_ticks_left", "_waiting", "fresh")

    def __init__(self) -> None:
        self.fresh: list[Session] = []
        self._waiting: dict[Session, set[Connection]] = {}
        self._ticks_left: dict[Session, int] = {}

    def crowded(self, session: Session) -> None:
        """A message was queued for a session that is more than half full."""
        if session.is_waited_for and (not self.fresh or self.fresh[-1] is not session):
            self.fresh.append(session)

    def hold(self, publisher: Connection) -> None:
        """Make a connection wait for all that its messages have just crowded."""
        for session in self.fresh:
            if session.owner is publisher or session.is_away:
                continue
            self._waiting.setdefault(session, set()).add(publisher)
            self._ticks_left.setdefault(session, PATIENCE_TICKS)
            publisher.hold(session)
        self.fresh.clear()

    def relieved(self, session: Session) -> None:
        """A session has room again, or is gone."""
        session.is_waited_for = True
        self._let_go(session)

    def tick(self) -> None:
        """Give up on sessions that were waited for long enough."""
        for session in list(self._ticks_left):
            self._ticks_left[session] -= 1
            if self._ticks_left[session] <= 0:
                session.is_waited_for = False
                self._let_go(session)

    def _let_go(self, session: Session) -> None:
        self._ticks_left.pop(session, None)
        for publisher in self._waiting.pop(session, ()):
            publisher.let_go(session)
