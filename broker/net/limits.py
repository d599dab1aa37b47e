"""The links of one listener: their maximum number and rate, the answer to those above it, and the metrics."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from broker.connection.hub import Hub
from broker.core import reason
from broker.core.bucket import TokenBucket
from broker.core.room import Guest, Lobby
from broker.net.settings import ListenerSettings, NamedListener
from broker.observe.log import get_logger
from broker.observe.metrics import Counter, Metrics

_log = get_logger(__name__)

# Connections above the limit that may wait for the answer to their CONNECT that says why; the oldest are cut off.
MOST_ANSWERED: Final = 64
# Time limit for their CONNECT.
ANSWER_TIMEOUT_S: Final = 2.0
# Maximum number of addresses with a remembered rate of connections; the oldest is forgotten first.
MOST_ADDRESSES: Final = 10_000


class Why(NamedTuple):
    """A reason not to take a connection: what its CONNECT is answered with, and what it is counted as."""

    code: int
    name: str


FULL: Final = Why(reason.QUOTA_EXCEEDED, "max_connections")
NODE_FULL: Final = Why(reason.QUOTA_EXCEEDED, "max_connections_total")
TOO_FAST: Final = Why(reason.CONNECTION_RATE_EXCEEDED, "connection_rate")
ADDRESS_TOO_FAST: Final = Why(reason.CONNECTION_RATE_EXCEEDED, "connection_rate_per_ip")
_ALWAYS_SHOWN: Final = (FULL, NODE_FULL, TOO_FAST, ADDRESS_TOO_FAST)


class Limited(Guest, Protocol):
    """A link, for its owner. ``has_place`` is set while it is one of a client that has authenticated."""

    peer_host: str | None
    refusal: int
    has_place: bool

    def dismiss(self, code: int, why: str) -> None:
        """Disconnect the client with a reason code."""


class AddressRates:
    """Rates of connections by address. Bounded: the address that was quiet longest is forgotten first."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: dict[str, TokenBucket] = {}

    def take(self, host: str | None, now_s: float) -> bool:
        """True if an address may open another connection now; counts it."""
        if not self._rate or host is None:
            return True
        bucket = self._buckets.pop(host, None) or TokenBucket(self._rate, self._rate, now_s)
        if len(self._buckets) >= MOST_ADDRESSES:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[host] = bucket
        return bucket.try_take(now_s)

    def __len__(self) -> int:
        return len(self._buckets)


class LinkOwner:
    """The links of one listener, within its limits and those of the node."""

    def __init__(self, listener: NamedListener, hub: Hub, metrics: Metrics) -> None:
        self.name = str(listener)
        self._hub = hub
        self._metrics = metrics
        self.use(listener.settings)
        self.links: set[Limited] = set()
        self.count = 0
        """Clients that have authenticated."""
        self._answered = Lobby[Limited](2 * MOST_ANSWERED)
        name = self.name
        metrics.gauge(
            "listener_connections",
            lambda: self.count,
            "clients connected, by listener",
            listener=name,
        )
        self._accepted = metrics.counter(
            "listener_connections_accepted",
            "connections within the limits of their listener",
            listener=name,
        )
        for refusal in _ALWAYS_SHOWN:
            self._refused(refusal.name).value += 0

    def use(self, settings: ListenerSettings) -> None:
        """Apply these limits from the next connection on; existing links stay."""
        hub = self._hub
        rate = settings.max_conn_rate
        place = hub.context.place
        most = settings.max_connections
        self._most = most if place is None else place.part_of(most)
        self.delays_small_packets = not settings.tcp_options.nodelay
        self._rate = TokenBucket(rate, rate, hub.context.clock.monotonic_s()) if rate else None
        self._addresses = AddressRates(settings.max_conn_rate_per_ip)
        self._knows_address_early = settings.proxy_protocol == "off"
        hub.zones.place(self.name, settings.zone)
        hub.access.place(self.name, settings.enable_authn, settings.authentication)
        hub.connections.limit_listener(
            self.name, settings.max_publish_rate, settings.max_publish_bytes_rate
        )

    def dismiss(self, code: int, why: str) -> None:
        """Disconnect all clients with a reason code."""
        for link in list(self.links):
            link.dismiss(code, why)

    def knock(self, peer_host: str | None) -> bool:
        """True if a connection may start work that comes before MQTT (a TLS handshake)."""
        refusal = self._too_fast() or (
            self._address_too_fast(peer_host) if self._knows_address_early else None
        )
        if refusal is not None:
            self.refused(peer_host, refusal.name)
        return refusal is None

    def wait(self, guest: Guest, host: str | None) -> None:
        """Keep a connection that has not authenticated."""
        self._hub.context.admission.wait(guest, host)

    def stop_waiting(self, guest: Guest) -> None:
        """Forget a connection that has not authenticated."""
        self._hub.context.admission.lobby.leave(guest)

    def open(self, link: Limited, *, has_knocked: bool) -> None:
        """Keep a link until it has authenticated; where that is only for an answer, set its ``refusal`` to the reason
        code."""
        self.links.add(link)
        refusal = self._why_not(link, has_knocked=has_knocked)
        if refusal is None:
            self._accepted.value += 1
            self.wait(link, link.peer_host)
            return
        self.refused(link.peer_host, refusal.name)
        link.refusal = refusal.code
        self._answered.enter(link, link.peer_host)

    def admit(self, link: Limited) -> int:
        """Give a link whose client has authenticated a place, or return the reason code with which it is refused."""
        refusal = self._full()
        if refusal is not None:
            self.refused(link.peer_host, refusal.name)
            return refusal.code
        self.stop_waiting(link)
        link.has_place = True
        self.count += 1
        self._hub.context.admission.admitted += 1
        return 0

    def leave(self, link: Limited) -> None:
        """Forget a link that is gone."""
        self.links.discard(link)
        if link.has_place:
            link.has_place = False
            self.count -= 1
            self._hub.context.admission.admitted -= 1
        elif not self._answered.leave(link):
            self.stop_waiting(link)

    def refused(self, peer_host: str | None, why: str, text: str = "") -> None:
        """Count and log a connection that this listener does not take."""
        self._refused(why).value += 1
        self._hub.context.figures.refused_connection(why)
        more = {"error": text} if text else {}
        _log.warning("listener.refused", listener=self.name, peer=peer_host, reason=why, **more)

    def _refused(self, why: str) -> Counter:
        help = "connections that a listener did not take, by reason"
        return self._metrics.counter(
            "listener_connections_refused", help, listener=self.name, reason=why
        )

    def _why_not(self, link: Limited, *, has_knocked: bool) -> Why | None:
        hub = self._hub
        if hub.context.admission.refused_with:
            return Why(hub.context.admission.refused_with, "overload")
        if not has_knocked and (refusal := self._too_fast()) is not None:
            return refusal
        knows_now = not (has_knocked and self._knows_address_early)
        if knows_now and (refusal := self._address_too_fast(link.peer_host)) is not None:
            return refusal
        return self._full()

    def _full(self) -> Why | None:
        if self._most and self.count >= self._most:
            return FULL
        admission = self._hub.context.admission
        return NODE_FULL if admission.admitted >= admission.most else None

    def _too_fast(self) -> Why | None:
        """Take one of the connections that the rate allows now."""
        is_taken = self._rate is None or self._rate.try_take(self._hub.context.clock.monotonic_s())
        return None if is_taken else TOO_FAST

    def _address_too_fast(self, host: str | None) -> Why | None:
        return (
            None
            if self._addresses.take(host, self._hub.context.clock.monotonic_s())
            else ADDRESS_TOO_FAST
        )


def show_expiry(metrics: Metrics, listener: str, read: Callable[[], float]) -> None:
    """Show when the first certificate of a listener ends, in seconds since 1970."""
    help = "when the first certificate of a listener ends, seconds since 1970"
    metrics.gauge("listener_certificate_expires_seconds", read, help, listener=listener)


# Descriptors reserved for other uses than connections: the store's files, streams, processes of rules, connectors.
_KEPT_BACK: Final = 384
_FEWEST: Final = 64


def client_limit(api_connections: int = 0) -> int:
    """Connections of MQTT clients that there are descriptors for, in addition to those of the management API."""
    return max(_FEWEST, _raised_limit() - _KEPT_BACK - api_connections)


def api_limit(most: int) -> int:
    """Connections of the management API: ``most``, within an eighth of the system's limit."""
    return max(1, min(most, _raised_limit() // 8))


def _raised_limit() -> int:
    """Ask for as many file descriptors as the system permits; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems permit less than they say
            pass
    return soft
