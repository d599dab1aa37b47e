"""Connections whose credentials end: by the second in which they do, so that those of that second are looked at alone.

A client may renew them in time by authenticating again; else it is disconnected with 0xA0, maximum connect time, and
its will is published.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from sortedcontainers import SortedDict

from broker.connection import close
from broker.core import reason
from broker.observe.metrics import Metrics

if TYPE_CHECKING:
    from broker.connection.connection import Connection
    from broker.connection.hub import Hub

_NS: Final = 1_000_000_000
_AT_ONCE: Final = 200
"""Connections ended in one turn of the loop: some milliseconds."""
_LATEST_S: Final = 2**53
"""A second after this one is never."""


class Expiries:
    """Connections by the second in which their credentials expire.

    Holds one entry for each connection that has an end, and forgets it with the connection.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._by_second: SortedDict[int, set[Connection]] = SortedDict()
        self._of: dict[Connection, int] = {}
        self._expired = metrics.counter("credentials_expired", "clients disconnected since their token had ended")
        metrics.gauge("credentials_watched", lambda: len(self._of), "clients that are disconnected when a token ends")

    def watch(self, c: Connection, expires_s: float | None) -> None:
        """From now on the connection's credentials end at this Unix time, None for never."""
        self.forget(c)
        if expires_s is None or expires_s > _LATEST_S:
            return
        second = ceil(expires_s)
        self._by_second.setdefault(second, set()).add(c)
        self._of[c] = second

    def forget(self, c: Connection) -> None:
        """The connection has ended, or its credentials do not."""
        second = self._of.pop(c, None)
        if second is None:
            return
        of_second = self._by_second[second]
        of_second.discard(c)
        if not of_second:
            del self._by_second[second]

    def tick(self, hub: Hub) -> None:
        """End the connections whose time has come, a part in each turn of the loop."""
        now_s = hub.clock.now_ns() / _NS
        for _ in range(_AT_ONCE):
            if not self._by_second or self._by_second.peekitem(0)[0] > now_s:
                return
            self._end(next(iter(self._by_second.peekitem(0)[1])))
        if not hub.is_stopping:
            hub.later(0, self.tick, hub)

    def _end(self, c: Connection) -> None:
        self.forget(c)
        self._expired.value += 1
        if c.is_connected:
            close.disconnect(c, reason.MAXIMUM_CONNECT_TIME, "token_expired", text="the token has ended")
        else:
            close.refuse_connect(c, reason.BAD_USER_NAME_OR_PASSWORD, "the token has ended")
