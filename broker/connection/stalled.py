"""Connected subscribers that take nothing: they do not acknowledge what is in flight, or do not read what is sent.

Connections are checked one after the other, some in each tick, so no message costs anything.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from broker.connection.connection import Connection
from broker.connection.connections import Connections
from broker.connection.context import Context

# Ticks in which every connection is checked once.
_PASS_TICKS: Final = 4
# Maximum connections checked in one tick: less than a millisecond.
_AT_LEAST: Final = 1000


class _Seen(NamedTuple):
    """Amount that a subscriber had taken when something was waiting for it, and since when it has taken no more."""

    mark: Hashable
    since_s: float


class Stalled:
    """Since when connected subscribers have taken nothing."""

    def __init__(self, context: Context, connections: Connections) -> None:
        self._context = context
        self._connections = connections
        self._seen: dict[Connection, _Seen] = {}
        self._stalled: dict[Connection, None] = {}
        self._pass: Iterator[Connection] = iter(())
        help = "connected subscribers that have acknowledged or read nothing for mqtt.subscriber_ack_timeout"
        context.metrics.gauge("subscribers_stalled", lambda: len(self.all()), help)

    def tick(self) -> None:
        """Look at some connections, at each once at most."""
        count = max(_AT_LEAST, len(self._connections) // _PASS_TICKS)
        chosen = list(islice(self._pass, count))
        if not chosen:
            self._begin()
            chosen = list(islice(self._pass, count))
        for c in chosen:
            self._look_at(c)

    def _begin(self) -> None:
        self._seen = {c: seen for c, seen in self._seen.items() if not c.is_closed}
        self._stalled = {c: None for c in self._stalled if c in self._seen}
        self._pass = iter(self._connections)

    def _look_at(self, c: Connection) -> None:
        mark = None if c.is_closed or not c.is_connected or c.is_unread else _mark(c)
        if mark is None:
            self._seen.pop(c, None)
            return
        seen = self._seen.get(c)
        if seen is None or seen.mark != mark:
            self._seen[c] = _Seen(mark, self._context.now_s)
        elif (
            self._context.now_s - seen.since_s >= c.session.ack_timeout_s and c not in self._stalled
        ):
            self._stalled[c] = None
            self._context.timelines.add(c.client.client_id, "slow", "not_acknowledging")

    def silent_s(self, c: Connection) -> float | None:
        """Seconds for which a client has acknowledged none of the messages in flight to it, or read none that are
        sent to it; None when nothing is."""
        seen = self._seen.get(c)
        mark = _mark(c)
        if mark is None:
            return None
        return 0.0 if seen is None or seen.mark != mark else self._context.now_s - seen.since_s

    def is_stalled(self, c: Connection) -> bool:
        """True if a client has acknowledged or read nothing for ``mqtt.subscriber_ack_timeout``."""
        silent_s = self.silent_s(c)
        return silent_s is not None and silent_s >= c.session.ack_timeout_s

    def all(self) -> list[Connection]:
        """Clients that have acknowledged or read nothing for ``mqtt.subscriber_ack_timeout``."""
        return [c for c in self._stalled if not c.is_closed and self.is_stalled(c)]


def _mark(c: Connection) -> Hashable:
    """Value that changes when a client takes something from its queue; None when nothing does."""
    session = c.session
    if session.window.inflight:
        return "acknowledged", session.progress
    unsent = c.link.unsent_bytes()
    return ("read", c.box.bytes_out - unsent) if unsent else None
