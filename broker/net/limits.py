"""The links of one listener: how many and how fast they may come, what is said to those too many, and the figures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from broker.connection.hub import Hub
from broker.core import reason
from broker.net.settings import NamedListener
from broker.observe.log import get_logger
from broker.observe.metrics import Counter, Metrics

_log = get_logger(__name__)

MOST_ANSWERED: Final = 64
"""So many connections above the limit may wait with their CONNECT for an answer that says why; more are cut off."""
ANSWER_TIMEOUT_S: Final = 2.0
"""How long those have for their CONNECT."""
_WHY: Final = {reason.QUOTA_EXCEEDED: "max_connections", reason.CONNECTION_RATE_EXCEEDED: "connection_rate"}


class Limited(Protocol):
    """What a link has for its owner."""

    peer_host: str | None
    refusal: int


class LinkOwner:
    """The links of one listener, within its limits."""

    def __init__(self, listener: NamedListener, hub: Hub, metrics: Metrics) -> None:
        settings = listener.settings
        self.name = str(listener)
        self._hub, self._metrics = hub, metrics
        self._most, self._rate = settings.max_connections, settings.max_conn_rate
        self._allowance, self._since_s = max(1.0, self._rate), hub.clock.monotonic_s()
        self.links: set[Limited] = set()
        self._answered: set[Limited] = set()
        name = self.name
        metrics.gauge("listener_connections", lambda: self.count, "clients connected, by listener", listener=name)
        self._accepted = metrics.counter(
            "listener_connections_accepted", "connections within the limits of their listener", listener=name
        )
        for why in _WHY.values():
            self._refused(why).value += 0

    @property
    def count(self) -> int:
        """Connections within the limits."""
        return len(self.links) - len(self._answered)

    def knock(self, peer_host: str | None, pending: int) -> bool:
        """Whether it is worth to begin with a connection that needs work before it is one of MQTT (a TLS handshake).

        ``pending`` is how many are being worked on.
        """
        code = self._over_rate()
        if not code and self._most and len(self.links) + pending >= self._most + MOST_ANSWERED:
            code = reason.QUOTA_EXCEEDED
        if code:
            self.refused(peer_host, _WHY[code])
        return not code

    def admit(self, link: Limited, *, has_knocked: bool) -> bool:
        """Whether a link is kept; where that is only for an answer, its ``refusal`` is set to the reason code."""
        code = 0 if has_knocked else self._over_rate()
        if not code and self._most and self.count >= self._most:
            code = reason.QUOTA_EXCEEDED
        if code:
            self.refused(link.peer_host, _WHY[code])
            if len(self._answered) >= MOST_ANSWERED:
                return False
            link.refusal = code
            self._answered.add(link)
        else:
            self._accepted.value += 1
        self.links.add(link)
        return True

    def leave(self, link: Limited) -> bool:
        """A link is gone; returns whether it had been kept."""
        if link not in self.links:
            return False
        self.links.discard(link)
        self._answered.discard(link)
        return True

    def refused(self, peer_host: str | None, why: str, text: str = "") -> None:
        """Count and log a connection that this listener does not take."""
        self._refused(why).value += 1
        self._hub.figures.refused_connection(why)
        more = {"error": text} if text else {}
        _log.warning("listener.refused", listener=self.name, peer=peer_host, reason=why, **more)

    def _refused(self, why: str) -> Counter:
        help = "connections that a listener did not take, by reason"
        return self._metrics.counter("listener_connections_refused", help, listener=self.name, reason=why)

    def _over_rate(self) -> int:
        """Take one of the connections that the rate allows now; the reason code when there is none."""
        if not self._rate:
            return 0
        now_s = self._hub.clock.monotonic_s()
        saved = self._allowance + (now_s - self._since_s) * self._rate
        self._allowance, self._since_s = min(saved, max(1.0, self._rate)), now_s
        if self._allowance < 1:
            return reason.CONNECTION_RATE_EXCEEDED
        self._allowance -= 1
        return 0


def show_expiry(metrics: Metrics, listener: str, read: Callable[[], float]) -> None:
    """Show when the first certificate of a listener ends, in seconds since 1970."""
    help = "when the first certificate of a listener ends, seconds since 1970"
    metrics.gauge("listener_certificate_expires_seconds", read, help, listener=listener)
