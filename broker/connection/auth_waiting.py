"""Connections whose login waits: for an authenticator that takes its time, or in the jail of a client identifier that
goes from one connection to the next. They are not read from meanwhile, and a connection that ends takes its login
with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from logging import getLogger
from typing import TYPE_CHECKING, Any

from broker.auth.decision import Decision
from broker.core import reason
from broker.observe.metrics import Metrics

if TYPE_CHECKING:
    from broker.connection.connection import Connection

_log = getLogger(__name__)

_FAILED = Decision("deny", reason.SERVER_UNAVAILABLE)


class WaitingLogins:
    """The logins of a node that wait. Each connection has one at most."""

    def __init__(self, metrics: Metrics) -> None:
        self._tasks: dict[Connection, asyncio.Task[None]] = {}
        metrics.gauge("logins_waiting", lambda: len(self._tasks), "clients whose authenticator has not answered yet")

    def wait(
        self, c: Connection, decision: Coroutine[Any, Any, Decision], finish: Callable[[Decision], None]
    ) -> None:
        """Read nothing more from a connection until it is decided over; then ``finish``."""
        self.park(c)
        self._tasks[c] = asyncio.create_task(self._decide(c, decision, finish), name="login")

    def park(self, c: Connection) -> None:
        """Keep what a connection sends until ``go_on``."""
        c.is_parked = True
        c.hold(self)

    def go_on(self, c: Connection, finish: Callable[[], None]) -> None:
        """Finish what a parked connection waits for, then take what it sent meanwhile."""
        c.go_on(finish)
        if not c.is_parked:
            c.let_go(self)

    def abandon(self, c: Connection) -> None:
        """The connection has ended."""
        task = self._tasks.pop(c, None)
        if task is not None:
            task.cancel()

    async def _decide(
        self, c: Connection, waits: Coroutine[Any, Any, Decision], finish: Callable[[Decision], None]
    ) -> None:
        try:
            decision = await waits
        except Exception:  # one authenticator's trouble refuses this client, and no other
            _log.exception("authn.failed")
            decision = _FAILED
        del self._tasks[c]
        self.go_on(c, lambda: finish(decision))
