"""Clients that come and go: a jail for identifiers that go from one connection to the next, and a ban for flapping."""

from __future__ import annotations

from collections import deque
from typing import Final

from pydantic import Field

from broker.auth.bans import BY_BROKER, Ban, Bans
from broker.config.model import Settings
from broker.config.units import Duration
from broker.core.clock import Clock
from broker.core.errors import Unavailable
from broker.observe.log import get_logger

log = get_logger(__name__)

# Two clients that fight over an identifier get it in turns of this many seconds.
JAIL_S: Final = 1.0
_MOST_WATCHED: Final = 100_000
_NS: Final = 1_000_000_000


class FlappingSettings(Settings):
    """Section ``flapping_detect``: clients that disconnect too often are banned for a while."""

    enable: bool = Field(default=False, description="Whether it is done.")
    max_count: int = Field(
        default=15, ge=1, le=10_000, description="Disconnects within the window that lead to a ban."
    )
    window_time: Duration = Field(default=60, gt=0, description="The window, in seconds.")
    ban_time: Duration = Field(
        default=300, gt=0, description="How long a client is banned then, in seconds."
    )


class Flapping:
    """Counts disconnects by client identifier, the last few of each."""

    def __init__(self, settings: FlappingSettings, bans: Bans, clock: Clock) -> None:
        self.settings = settings
        self._bans = bans
        self._clock = clock
        self._seen: dict[str, deque[float]] = {}

    def disconnected(self, client_id: str) -> None:
        """A client's connection has ended."""
        if not self.settings.enable:
            return
        now_s = self._clock.monotonic_s()
        times = self._seen.pop(client_id, None) or deque(maxlen=self.settings.max_count)
        times.append(now_s)
        if len(times) == times.maxlen and now_s - times[0] <= self.settings.window_time:
            self._ban(client_id)
            return
        self._seen[client_id] = times
        if len(self._seen) > _MOST_WATCHED:
            del self._seen[next(iter(self._seen))]

    def forget_old(self) -> None:
        """Forget clients that have not been seen within the window."""
        before = self._clock.monotonic_s() - self.settings.window_time
        for client_id in [
            client_id for client_id, times in self._seen.items() if times[-1] < before
        ]:
            del self._seen[client_id]

    def _ban(self, client_id: str) -> None:
        settings = self.settings
        now_ns = self._clock.now_ns()
        reason = f"{settings.max_count} disconnects within {settings.window_time:g} s"
        log.warning("client.flapping", client_id=client_id, disconnects=settings.max_count)
        try:
            self._bans.add(
                Ban(
                    "clientid",
                    client_id,
                    BY_BROKER,
                    reason,
                    now_ns,
                    now_ns + round(settings.ban_time * _NS),
                )
            )
        except Unavailable as error:
            log.warning("client.not_banned", client_id=client_id, reason=str(error))


class Jail:
    """When each identifier was last taken over. Bounded: what is older than the jail lasts is forgotten."""

    def __init__(self) -> None:
        self._taken_s: dict[str, float] = {}

    def is_held(self, client_id: str, now_s: float) -> bool:
        """True if the identifier was taken over so recently that the next connection must wait."""
        taken_s = self._taken_s.get(client_id)
        return taken_s is not None and now_s - taken_s < JAIL_S

    def taken_over(self, client_id: str, now_s: float) -> None:
        """A connection has taken the identifier from another."""
        self._taken_s.pop(client_id, None)
        self._taken_s[client_id] = now_s

    def forget_old(self, now_s: float) -> None:
        """Forget those that are free again."""
        while self._taken_s:
            oldest = next(iter(self._taken_s))
            if now_s - self._taken_s[oldest] < JAIL_S:
                return
            del self._taken_s[oldest]
