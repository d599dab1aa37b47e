"""Everything that time triggers: silent clients, wills, ends of sessions, delayed messages, clearing up.

Much of it can be due at one moment, so that it is done a part in each turn of the loop.
"""

from __future__ import annotations

from typing import Final

from broker.auth.access import Access
from broker.connection.authentication.expiry import Expiries
from broker.connection.authentication.logins import Logins
from broker.connection.authentication.waiting import WaitingLogins
from broker.connection.connections import Connections
from broker.connection.housekeeping import Housekeeping
from broker.connection.queue_watch import QueueWatch
from broker.connection.session_life import SessionLife
from broker.connection.state import TICK_S, NodeState
from broker.connection.sys_topics import SysTopics
from broker.core.clock import Clock, Later
from broker.core.stage import Publisher
from broker.observe.metrics import Counter
from broker.routing.delayed import Delayed
from broker.routing.retained import Retained
from broker.session import resending
from broker.storage.writer import Writer

_NS: Final = 1_000_000_000
_STALE_TICKS: Final = 240
_AT_ONCE: Final = 200
"""Sessions ended in one turn of the loop: some milliseconds."""


class Upkeep:
    """Acts when time passes. ``expired`` counts sessions whose time has come."""

    def __init__(
        self,
        *,
        connections: Connections,
        life: SessionLife,
        waiting_logins: WaitingLogins,
        logins: Logins,
        access: Access,
        expiries: Expiries,
        sys_topics: SysTopics,
        delayed: Delayed,
        retained: Retained,
        publisher: Publisher,
        housekeeping: Housekeeping,
        queue_watch: QueueWatch,
        writer: Writer,
        clock: Clock,
        later: Later,
        state: NodeState,
        expired: Counter,
    ) -> None:
        self._connections, self._life, self._waiting_logins, self._logins = connections, life, waiting_logins, logins
        self._access, self._expiries, self._sys_topics, self._delayed = access, expiries, sys_topics, delayed
        self._retained, self._publisher, self._housekeeping = retained, publisher, housekeeping
        self._queue_watch, self._writer, self._clock, self._later = queue_watch, writer, clock, later
        self._state, self._expired = state, expired
        self._ticks = 0
        self._is_awaited = False

    def tick(self) -> None:
        """Act on what time has brought; called every ``TICK_S``."""
        state, life, clock = self._state, self._life, self._clock
        state.now_s = clock.monotonic_s()
        self._connections.tick(state.now_s)
        self._waiting_logins.tick(state.now_s)
        self._access.authenticators.tick()
        self._expiries.tick()
        self._logins.tick()
        life.shares.tick(clock.now_ns())
        now_ns = clock.now_ns()
        self._act()
        self._publish_delayed()
        self._sys_topics.tick()
        self._sweep_retained()
        if state.settings.retry_interval:
            self._resend(now_ns - int(state.settings.retry_interval * _NS))
        if self._writer.failure is None:  # while the store is opened again it cannot be read
            self._housekeeping.tick(now_ns)
        self._queue_watch.tick(state.now_s)
        self._ticks += 1
        if self._ticks % _STALE_TICKS == 0:
            self._access.forget_old()
            self._connections.forget_old_permits(state.now_s)

    def _act(self) -> None:
        """Publish wills and end sessions whose time has come."""
        life, now_ns = self._life, self._clock.now_ns()
        due = life.sessions.take_due(now_ns, _AT_ONCE)
        for session in due:
            if session.will_at_ns and session.will_at_ns <= now_ns:
                life.wills.publish(session)
                life.records.changed(session)
            if session.ends_at_ns and session.ends_at_ns <= now_ns:
                self._expired.value += 1
                life.end_session(session)
        if len(due) == _AT_ONCE and not self._state.is_stopping:
            self._later(0, self._act)

    def _publish_delayed(self) -> None:
        """Publish delayed messages that are due, and come again for those that are before the next tick."""
        if self._state.is_stopping:
            return
        following_s = self._delayed.run(self._publisher)
        if following_s < TICK_S and not self._is_awaited:
            self._is_awaited = True
            self._later(following_s, self._come_again)

    def _come_again(self) -> None:
        self._is_awaited = False
        self._publish_delayed()

    def _sweep_retained(self) -> None:
        """Forget retained messages that have expired."""
        if self._writer.failure is None and self._retained.sweep() and not self._state.is_stopping:
            self._later(0, self._sweep_retained)

    def _resend(self, sent_before_ns: int) -> None:
        for session in self._life.sessions:
            if session.window.inflight and not session.is_away:
                resending.resend(session, sent_before_ns)
