"""Connections whose credentials end: by the second in which they do, so that those of that second alone are checked.

A client may renew them in time by authenticating again; else it is disconnected with 0xA0, maximum connect time, and
its will is published.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from sortedcontainers import SortedDict

from broker.connection.context import AT_ONCE, Context
from broker.connection.link import Peer
from broker.core import reason

_NS: Final = 1_000_000_000
# A second after this one is never.
_LATEST_S: Final = 2**53


class Expiries:
    """Connections by the second in which their credentials expire.

    Holds one entry for each connection that has an end, and forgets it with the connection.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        metrics = context.metrics
        self._by_second: SortedDict[int, set[Peer]] = SortedDict()
        self._of: dict[Peer, int] = {}
        self._expired = metrics.counter(
            "credentials_expired", "clients disconnected since their token had ended"
        )
        metrics.gauge(
            "credentials_watched",
            lambda: len(self._of),
            "clients that are disconnected when a token ends",
        )

    def watch(self, c: Peer, expires_s: float | None) -> None:
        """From now on the connection's credentials end at this Unix time, None for never."""
        self.abandon(c)
        if expires_s is None or expires_s > _LATEST_S:
            return
        second = ceil(expires_s)
        self._by_second.setdefault(second, set()).add(c)
        self._of[c] = second

    def abandon(self, c: Peer) -> None:
        """The connection has ended, or its credentials do not."""
        second = self._of.pop(c, None)
        if second is None:
            return
        of_second = self._by_second[second]
        of_second.discard(c)
        if not of_second:
            del self._by_second[second]

    def tick(self) -> None:
        """End the connections whose time has come, a part in each turn of the loop."""
        now_s = self._context.clock.now_ns() / _NS
        for _ in range(AT_ONCE):
            if not self._by_second or self._by_second.peekitem(0)[0] > now_s:
                return
            self._end(next(iter(self._by_second.peekitem(0)[1])))
        if not self._context.is_stopping:
            self._context.later(0, self.tick)

    def _end(self, c: Peer) -> None:
        self.abandon(c)
        self._expired.value += 1
        if c.is_connected:
            c.disconnect(reason.MAXIMUM_CONNECT_TIME, "token_expired", text="the token has ended")
        else:
            c.refuse_connect(reason.BAD_USER_NAME_OR_PASSWORD, "the token has ended")
