"""What time triggers for sessions and stored messages: wills, ends of sessions, delayed messages, expiry, resending.

Much of it can be due at one moment, so it is done in parts, one in each turn of the loop.
"""

from __future__ import annotations

from typing import Final

from broker.connection.context import AT_ONCE, TICK_S, Context
from broker.connection.sessions.lifecycle import SessionLife
from broker.core.stage import Publisher
from broker.routing.delayed import Delayed
from broker.routing.retained import Retained
from broker.session import sending

_NS: Final = 1_000_000_000


class Upkeep:
    """Acts when time passes; ``tick`` is called every ``TICK_S``."""

    def __init__(
        self, context: Context, life: SessionLife, delayed: Delayed, retained: Retained, publisher: Publisher
    ) -> None:
        self._context, self._life, self._delayed = context, life, delayed
        self._retained, self._publisher = retained, publisher
        self._is_awaited = False

    def tick(self) -> None:
        """Act on what time has brought."""
        retry_interval = self._context.settings.retry_interval
        self._end_due()
        self._publish_delayed()
        self._sweep_retained()
        if retry_interval:
            self._resend(self._context.clock.now_ns() - int(retry_interval * _NS))

    def _end_due(self) -> None:
        """Publish wills and end sessions whose time has come."""
        life, now_ns = self._life, self._context.clock.now_ns()
        due = life.sessions.take_due(now_ns, AT_ONCE)
        for session in due:
            if session.will_at_ns and session.will_at_ns <= now_ns:
                life.wills.publish(session)
                life.records.changed(session)
            if session.ends_at_ns and session.ends_at_ns <= now_ns:
                self._context.figures.sessions_expired.value += 1
                life.end_session(session)
        if len(due) == AT_ONCE and not self._context.is_stopping:
            self._context.later(0, self._end_due)

    def _publish_delayed(self) -> None:
        """Publish delayed messages that are due, and come again for those that are due before the next tick."""
        if self._context.is_stopping:
            return
        following_s = self._delayed.run(self._publisher)
        if following_s < TICK_S and not self._is_awaited:
            self._is_awaited = True
            self._context.later(following_s, self._come_again)

    def _come_again(self) -> None:
        self._is_awaited = False
        self._publish_delayed()

    def _sweep_retained(self) -> None:
        """Forget retained messages that have expired."""
        if self._context.writer.failure is None and self._retained.sweep() and not self._context.is_stopping:
            self._context.later(0, self._sweep_retained)

    def _resend(self, sent_before_ns: int) -> None:
        for session in self._life.sessions:
            if session.window.inflight and not session.is_away:
                sending.resend(session, sent_before_ns)
