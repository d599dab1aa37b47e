"""What is due by the clock: wills, ends of sessions, delayed messages, retained ones that expire.

Much of it can be due at one moment, so that it is done a part in each turn of the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from broker.connection.hub import Hub

TICK_S: Final = 0.5
"""How often ``Hub.tick`` is to be called; keep-alive is enforced this exactly."""
_AT_ONCE: Final = 200
"""Sessions ended in one turn of the loop: some milliseconds."""


class Due:
    """Handles wills, sessions, delayed and retained messages when they are due.

    Each method is called with every tick, and goes on by itself while there is more to do.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._is_awaited = False

    def act(self) -> None:
        """Publish wills and end sessions whose time has come."""
        hub = self._hub
        now_ns = hub.clock.now_ns()
        due = hub.sessions.take_due(now_ns, _AT_ONCE)
        for session in due:
            if session.will_at_ns and session.will_at_ns <= now_ns:
                hub.wills.publish(session)
                hub.records.changed(session)
            if session.ends_at_ns and session.ends_at_ns <= now_ns:
                hub.figures.sessions_expired.value += 1
                hub.end_session(session)
        if len(due) == _AT_ONCE and not hub.is_stopping:
            hub.later(0, self.act)

    def publish_delayed(self) -> None:
        """Publish delayed messages that are due, and come again for those that are before the next tick."""
        hub = self._hub
        if hub.is_stopping:
            return
        following_s = hub.delayed.run()
        if following_s < TICK_S and not self._is_awaited:
            self._is_awaited = True
            hub.later(following_s, self._come_again)

    def _come_again(self) -> None:
        self._is_awaited = False
        self.publish_delayed()

    def sweep_retained(self) -> None:
        """Forget retained messages that have expired."""
        hub = self._hub
        if hub.writer.failure is None and hub.retained.sweep() and not hub.is_stopping:
            hub.later(0, self.sweep_retained)
