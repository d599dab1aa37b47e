"""Limits of failed logins, by user and by address: attempts above them are refused before a password is hashed.

A user with too many failures is closed to the addresses that failed, and open to every other one, which so gets one
attempt. An address with too many is closed to every client there, except for clients that have logged in from it
before: of these each has a measure of its own. A refused attempt is not a failure, so a flood for one user costs its
address no more than that user's measure. Measures empty evenly, within the window.
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from heapq import nlargest
from ipaddress import ip_address
from math import ceil
from typing import Final, NotRequired, TypeAlias, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from broker.config.model import Settings
from broker.config.units import Duration
from broker.core.clock import Clock
from broker.core.times import rfc3339
from broker.observe.alarms import Alarms
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

log = get_logger(__name__)

_K = TypeVar("_K")
_V = TypeVar("_V")
_Key: TypeAlias = str | bytes | tuple[str]
"""Key of a measure: an address; a digest that has the user; the address of known clients, in a tuple."""

ALARM: Final = "logins_limited"
# Measures, and clients that are known: some 20 MB of each at most. The oldest go first.
_MAX_KEPT: Final = 100_000
# Addresses in the list of failures, and measures that are read between two turns of the loop.
_MAX_LISTED: Final = 1_000
_AT_ONCE: Final = 10_000
_KEY_BYTES: Final = 16
_IPV6_NETWORK_BYTES: Final = 8


class LoginLimitSettings(Settings):
    """Section ``login_limits``: how often logins may fail, of MQTT clients and of the API."""

    enable: bool = Field(default=True, description="Whether failed logins are limited.")
    window: Duration = Field(
        default=60,
        gt=0,
        le=86_400,
        description="Seconds within which failed logins are counted, and forgotten.",
    )
    max_failures_per_user: int = Field(
        default=10, ge=1, description="Failed logins of one user within the window. Above it, addresses that failed "
        "are refused (CONNACK 0x9F, 3.1.1: 3; API: 429), others are not."
    )  # fmt: skip
    max_failures_per_address: int = Field(
        default=300, ge=1, description="Failed logins from one address, or one IPv6 network (/64), within the window. "
        "Above it, only clients that logged in from there before are not refused."
    )  # fmt: skip


class FailedLogins(TypedDict):
    """An address, or the network of an IPv6 one, from which a login failed within ``login_limits.window``; with ``api``
    in front, a login to the API. ``counted`` is how many failures still count. From an ``is_limited`` one only clients
    that logged in before may log in."""

    address: str
    counted: int
    is_limited: bool
    last_failed_at: str
    cell: NotRequired[int]


class LoginLimits:
    """Counts failed logins by user and by address.

    Used on the event loop; all that is kept is bounded, and holds no name.
    """

    def __init__(
        self,
        settings: LoginLimitSettings,
        clock: Clock,
        metrics: Metrics,
        alarms: Alarms | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._alarms = alarms
        self._levels: dict[_Key, tuple[float, float]] = {}
        self._known: dict[bytes, None] = {}
        self._last_s = float("-inf")
        self._since_alarm = 0
        help = "logins refused before the password was checked, since too many had failed"
        self._refused = {
            by: metrics.counter("logins_limited", help, by=by) for by in ("user", "address")
        }

    def refuses(self, address: str, user: str, client: str = "") -> bool:
        """True if an attempt is refused; it is then counted and logged. ``address`` is as ``network_of`` gives it."""
        settings = self.settings
        if not settings.enable:
            return False
        most = settings.max_failures_per_user
        if (key := _key(address, user, client)) in self._known:
            by = "user" if self._is_full(key, most) else ""
        elif self._is_full(address, settings.max_failures_per_address):
            by = "address"
        else:
            has_failed = self._level(_key(address, user), 1) > 0
            by = "user" if has_failed and self._is_full(_key(user), most) else ""
        if by:
            self._refused[by].value += 1
            self._since_alarm += 1
            self._last_s = self._clock.monotonic_s()
            log.warning("authn.limited", by=by, address=address, client_id=client)
        return bool(by)

    def failed(self, address: str, user: str, client: str = "") -> None:
        """A login has failed."""
        most = self.settings.max_failures_per_user
        most_there = self.settings.max_failures_per_address
        if (key := _key(address, user, client)) in self._known:
            self._add(key, most)
            # for the list: they limit no other client of the address
            self._add((address,), most_there)
            return
        self._add(address, most_there)
        self._add(_key(address, user), 1)
        self._add(_key(user), most)

    def succeeded(self, address: str, user: str, client: str = "") -> None:
        """A login was right: the client is known from then on."""
        _put(self._known, _key(address, user, client), None)

    def knows(self, address: str, user: str) -> bool:
        """True if the user has logged in from this address."""
        return _key(address, user, "") in self._known

    async def failures(self) -> list[FailedLogins]:
        """Addresses from which logins failed recently, at most 1,000, those with the most failures that count first."""
        most = self.settings.max_failures_per_address
        now_s = self._clock.monotonic_s()
        places: dict[str, tuple[float, float]] = {}
        for number, (key, (_, at_s)) in enumerate(list(self._levels.items())):
            if not isinstance(key, bytes) and now_s - at_s < self.settings.window:
                address = key if isinstance(key, str) else key[0]
                level, last_s = places.get(address, (0.0, at_s))
                places[address] = (level + self._level(key, most), max(at_s, last_s))
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # others have their turn
        now_ns = self._clock.now_ns()
        return [
            {
                "address": address,
                "counted": ceil(level),
                "is_limited": self._is_full(address, most),
                "last_failed_at": rfc3339(now_ns - round((now_s - at_s) * 1e9)),
            }
            for (level, at_s), address in nlargest(
                _MAX_LISTED, ((measure, address) for address, measure in places.items())
            )
        ]

    def tick(self) -> None:
        """Raise the alarm, or say that it is over; called twice a second."""
        if self._alarms is None:
            return
        is_active = self._clock.monotonic_s() - self._last_s < self.settings.window
        if not is_active:
            self._since_alarm = 0
        message = "logins are refused, since too many have failed; the log names the addresses"
        self._alarms.set(ALARM, is_active, message, refused=self._since_alarm)

    def _level(self, key: _Key, most: int) -> float:
        level, at_s = self._levels.get(key, (0.0, 0.0))
        return (
            max(0.0, level - (self._clock.monotonic_s() - at_s) * most / self.settings.window)
            if level
            else 0.0
        )

    def _is_full(self, key: _Key, most: int) -> bool:
        return self._level(key, most) > most - 1

    def _add(self, key: _Key, most: int) -> None:
        _put(self._levels, key, (min(self._level(key, most) + 1, most), self._clock.monotonic_s()))


def network_of(host: str | None) -> str:
    """Key of an address: an IPv4 address, or the first half of an IPv6 one, of which every site has 2^64."""
    if host is None or ":" not in host:
        return host or ""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(
        mapped or ip_address(address.packed[:_IPV6_NETWORK_BYTES] + bytes(_IPV6_NETWORK_BYTES))
    )


def _key(*names: str) -> bytes:
    """Key of fixed size for any names."""
    parts = (name.encode(errors="surrogatepass") for name in names)
    return blake2b(b"\0".join(parts), digest_size=_KEY_BYTES).digest()


def _put(place: dict[_K, _V], key: _K, value: _V) -> None:
    place.pop(key, None)
    place[key] = value
    if len(place) > _MAX_KEPT:
        del place[next(iter(place))]
