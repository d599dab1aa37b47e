"""Connections whose login waits: for an authenticator that takes its time, or in the jail of a client identifier that
goes from one connection to the next. What they send until then is kept, and a connection that ends takes its login with
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from logging import getLogger
from typing import Any, Final, NamedTuple

from broker.auth.decision import Decision
from broker.auth.flapping import Jail
from broker.connection.connection import PARKED_LOGIN
from broker.connection.context import Context
from broker.connection.link import Peer
from broker.core import reason

_log = getLogger(__name__)

_FAILED: Final = Decision("deny", reason.SERVER_UNAVAILABLE)


class _Jailed(NamedTuple):
    c: Peer
    finish: Callable[[], None]


class PendingLogins:
    """The logins of a node that wait. Each connection has one at most."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        self._jail = Jail()
        self._jailed: dict[str, _Jailed] = {}
        help = "clients that wait for an authenticator or a source of access rules"
        context.metrics.gauge("logins_waiting", lambda: len(self._tasks), help)

    def wait(
        self, c: Peer, decision: Coroutine[Any, Any, Decision], finish: Callable[[Decision], None]
    ) -> None:
        """Take nothing more of a connection until the decision; then ``finish``."""
        self.park(c)
        self._tasks[c] = asyncio.create_task(self._decide(c, decision, finish), name="login")

    def park(self, c: Peer) -> None:
        """Keep what a connection sends until ``go_on``. It is held when that is much; else it is read on, so that its
        end is noticed."""
        c.is_parked = True

    def go_on(self, c: Peer, finish: Callable[[], None]) -> None:
        """Finish what a parked connection waits for, then take what it sent until now."""
        c.go_on(finish)
        if not c.is_parked:
            c.let_go(PARKED_LOGIN)

    def hold_in_jail(self, c: Peer, client_id: str, finish: Callable[[], None]) -> bool:
        """True if a connection has to wait for an identifier that was taken over a moment ago; then ``finish`` later.

        One waits for an identifier at most, the newest; an earlier one is refused with 0x89, server busy.
        """
        if not self._jail.is_held(client_id, self._context.clock.monotonic_s()):
            return False
        before = self._jailed.pop(client_id, None)
        if before is not None:
            before.c.refuse_connect(reason.SERVER_BUSY)
        self.park(c)
        self._jailed[client_id] = _Jailed(c, finish)
        return True

    def taken_over(self, client_id: str) -> None:
        """A connection has taken an identifier from another."""
        self._jail.taken_over(client_id, self._context.clock.monotonic_s())

    def tick(self) -> None:
        """Resume connections that have waited long enough."""
        now_s = self._context.now_s
        self._jail.forget_old(now_s)
        for client_id in [
            jailed_id for jailed_id in self._jailed if not self._jail.is_held(jailed_id, now_s)
        ]:
            jailed = self._jailed.pop(client_id)
            self.go_on(jailed.c, jailed.finish)

    def abandon(self, c: Peer) -> None:
        """The connection has ended."""
        for client_id in [client_id for client_id, jailed in self._jailed.items() if jailed.c is c]:
            del self._jailed[client_id]
        task = self._tasks.pop(c, None)
        if task is not None:
            task.cancel()

    async def _decide(
        self, c: Peer, waits: Coroutine[Any, Any, Decision], finish: Callable[[Decision], None]
    ) -> None:
        try:
            decision = await waits
        except Exception:  # noqa: BLE001  one authenticator's trouble refuses this client, and no other
            _log.exception("authn.failed")
            decision = _FAILED
        del self._tasks[c]
        self.go_on(c, lambda: finish(decision))
