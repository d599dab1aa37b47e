"""One outside service as the broker asks it: its state, its limits, and remembered results.

A service that cannot be reached is *away*: clients are then decided on at once, by ``on_unavailable``, and the service
is checked once a second until it answers. Clients that are connected stay.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from pydantic import Field
from typing_extensions import TypedDict

from broker.auth.decision import Decision, Verdict
from broker.auth.hashing import HashPool
from broker.config.model import Settings
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.config.units import Duration, Size
from broker.config.vault import NAMED_SECRETS
from broker.core import reason
from broker.core.clock import Clock, SystemClock
from broker.core.errors import SluiceError
from broker.core.times import rfc3339
from broker.observe.alarms import Alarms
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

log = get_logger(__name__)

T = TypeVar("T")
Status = Literal["connecting", "running", "away"]
# Interval of checks while a service is away, and without a request while it is running. In seconds.
_CHECK_AWAY_S: Final = 1.0
_CHECK_IDLE_S: Final = 15.0
# Memory of a remembered result without the result itself. In bytes.
_ENTRY_BYTES: Final = 600


class ResultCacheSettings(Settings):
    """Limits of remembered results."""

    ttl: Duration = Field(
        default=0, ge=0, le=86_400, description="How long a result is used again for the same client; a duration. 0 "
        "asks the service every time. Only accepted clients are remembered."
    )  # fmt: skip
    max_bytes: Size = Field(
        default=16 * 1024 * 1024,
        ge=0,
        description="Memory for results; the oldest are forgotten first.",
    )


class BackendSettings(Settings):
    """Settings of every outside service."""

    enable: bool = Field(default=True, description="Whether it is asked.")
    pool_size: int = Field(
        default=8, ge=1, le=128, description="Maximum requests, and connections, at the same time."
    )
    timeout: Duration = Field(
        default=5,
        gt=0,
        le=60,
        description="Time limit of a request, with the wait for a connection; a duration.",
    )
    max_waiting: int = Field(
        default=1000, ge=1, le=100_000, description="Maximum clients that wait for a connection to the service. More "
        "are refused: server busy."
    )  # fmt: skip
    on_unavailable: Literal["deny", "ignore"] = Field(
        default="deny", description="Decision while the service is away or gives no usable answer: `deny` refuses the "
        "client, `ignore` asks the next of the chain; a client that none of them decides on is refused, too."
    )  # fmt: skip


class BackendUnavailable(SluiceError):
    """A service gave no usable answer; says why."""

    code = "backend_unavailable"


class Unreachable(BackendUnavailable):
    """There is no connection to the service: it is away."""


class Busy(BackendUnavailable):
    """Too many clients wait for the service."""


class BackendState(TypedDict):
    """State of an outside service, since when and why; requests under way and waiting, counts since the start, and the
    memory of remembered results."""

    status: Status
    reason: str | None
    since: str
    asking: int
    waiting: int
    answered: int
    failed: int
    remembered_bytes: int


@dataclass(frozen=True, slots=True)
class Outside:
    """Services of the broker for requests to outside services."""

    metrics: Metrics
    clock: Clock
    guard: AddressGuard
    alarms: Alarms | None = None
    pool: HashPool | None = None
    """Threads that check slow password hashes."""
    listener: str = ""
    """Listener whose clients are decided about; empty for all."""

    @classmethod
    def alone(cls) -> Outside:
        """Services of their own, for trials."""
        return cls(Metrics(), SystemClock(), AddressGuard(SsrfSettings()))


class Driver(Protocol):
    """Connections to a service. They are opened when they are needed."""

    async def check(self) -> None:
        """Raise ``BackendUnavailable`` unless the service answers."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class Backend:
    """State and limits of one service. ``name`` is what it does and its type: ``authenticator http``."""

    def __init__(
        self, name: str, settings: BackendSettings, driver: Driver, outside: Outside
    ) -> None:
        self.name = name
        self._settings = settings
        self._driver = driver
        self._outside = outside
        self._clock = outside.clock
        self._places = asyncio.Semaphore(settings.pool_size)
        self._asking = 0
        self._waiting = 0
        self._status: Status = "connecting"
        self._reason: str | None = None
        self._since_ns = outside.clock.now_ns()
        self._answered_s = float("-inf")
        self._checked_s = float("-inf")
        self._check: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self.remembered_bytes: Callable[[], int] = lambda: 0
        kind, _, type_name = name.partition(" ")
        labels = {"kind": kind, "type": type_name}
        help = "requests to outside services about clients, by outcome"
        self._answered = outside.metrics.counter(
            "access_backend_requests", help, outcome="success", **labels
        )
        self._failed = outside.metrics.counter(
            "access_backend_requests", help, outcome="failure", **labels
        )
        self._turned_away = outside.metrics.counter(
            "access_backend_requests", help, outcome="away", **labels
        )
        outside.metrics.gauge(
            "access_backend_waiting",
            lambda: self._waiting,
            "clients that wait for a connection to an outside service",
            **labels,
        )

    @property
    def state(self) -> BackendState:
        """State for users."""
        return {
            "status": self._status,
            "reason": self._reason,
            "since": rfc3339(self._since_ns),
            "asking": self._asking,
            "waiting": self._waiting,
            "answered": int(self._answered.value),
            "failed": int(self._failed.value + self._turned_away.value),
            "remembered_bytes": self.remembered_bytes(),
        }

    async def ask(self, request: Callable[[], Awaitable[T]]) -> T:
        """The answer to a request.

        Raises:
            BackendUnavailable: there is none; says why.
        """
        if self._status == "away":
            self._turned_away.value += 1
            raise Unreachable(f"{self.name} is away: {self._reason}")
        if self._waiting >= self._settings.max_waiting:
            self._turned_away.value += 1
            raise Busy(f"{self.name}: {self._waiting} clients wait for a connection (max_waiting)")
        answered = self._answered.value
        try:
            async with asyncio.timeout(self._settings.timeout):
                answer = await self._in_turn(request)
        except TimeoutError:
            late = f"no answer within {self._settings.timeout:g} s"
            if self._answered.value == answered:  # others got none either
                self._went_away(late)
            self._failed.value += 1
            raise BackendUnavailable(f"{self.name}: {late}") from None
        except Unreachable as error:
            self._went_away(str(error))
            self._failed.value += 1
            raise BackendUnavailable(f"{self.name}: {error}") from None
        except BackendUnavailable as error:
            self._failed.value += 1
            log.warning("access.backend_failed", backend=self.name, reason=str(error))
            raise
        self._answers()
        self._answered.value += 1
        return answer

    async def _in_turn(self, request: Callable[[], Awaitable[T]]) -> T:
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        self._asking += 1
        try:
            if self._status == "away":  # since it waited
                raise Unreachable(str(self._reason))
            return await request()
        finally:
            self._asking -= 1
            self._places.release()

    def unavailable(self, error: BackendUnavailable) -> Decision:
        """Decision about a client for which there was no answer."""
        verdict: Verdict = "ignore" if self._settings.on_unavailable == "ignore" else "deny"
        code = reason.SERVER_BUSY if isinstance(error, Busy) else reason.SERVER_UNAVAILABLE
        return Decision(verdict, code, why=str(error))

    def tick(self) -> None:
        """Check the service when it is time to; called twice a second."""
        if self._check is not None or self._closing is not None:
            return
        now_s = self._clock.monotonic_s()
        if self._status == "running":
            is_due = now_s - max(self._answered_s, self._checked_s) >= _CHECK_IDLE_S
        else:
            is_due = now_s - self._checked_s >= _CHECK_AWAY_S
        if is_due:
            self._checked_s = now_s
            self._check = asyncio.create_task(self._checks(), name=f"check of {self.name}")

    def close(self) -> None:
        """Ask nothing more; connections are closed once requests under way have ended."""
        if self._closing is not None:
            return
        if self._check is not None:
            self._check.cancel()
        if self._outside.alarms is not None:
            self._outside.alarms.deactivate(self._alarm)
        try:
            self._closing = asyncio.get_running_loop().create_task(
                self._close(), name=f"end of {self.name}"
            )
        except RuntimeError:  # it was never used
            return

    async def closed(self) -> None:
        """Wait until every connection is closed, after ``close``."""
        if self._closing is not None:
            await self._closing

    async def _close(self) -> None:
        if (check := self._check) is not None:
            await asyncio.wait([check])
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.timeout):
                for _ in range(self._settings.pool_size):  # behind all that wait
                    await self._places.acquire()
        await self._driver.close()

    async def _checks(self) -> None:
        try:
            async with asyncio.timeout(self._settings.timeout):
                await self._driver.check()
        except TimeoutError:
            self._went_away(f"no answer within {self._settings.timeout:g} s")
        except BackendUnavailable as error:
            self._went_away(str(error))
        except Exception as error:
            # a library's own error: the service counts as away, with the log to say why
            log.exception("access.backend_check_failed", backend=self.name)
            self._went_away(type(error).__name__)
        else:
            self._answers()
        finally:
            self._check = None

    @property
    def _alarm(self) -> str:
        kind, _, type_name = self.name.partition(" ")
        return f"{kind}_unavailable:{type_name}"

    def _answers(self) -> None:
        self._answered_s = self._clock.monotonic_s()
        if self._status != "running":
            self._status = "running"
            self._reason = None
            self._since_ns = self._clock.now_ns()
            log.info("access.backend_running", backend=self.name)
            if self._outside.alarms is not None and self._closing is None:
                self._outside.alarms.deactivate(self._alarm)

    def _went_away(self, why: str) -> None:
        if self._status != "away":
            self._since_ns = self._clock.now_ns()
            self._checked_s = self._clock.monotonic_s()
            log.warning("access.backend_away", backend=self.name, reason=why)
        self._status = "away"
        self._reason = why
        if self._outside.alarms is not None and self._closing is None:
            effect = (
                "refused" if self._settings.on_unavailable == "deny" else "decided on without it"
            )
            text = f"the {self.name} is away, and clients are {effect}: {why}"
            self._outside.alarms.activate(
                self._alarm, text, type=self.name.partition(" ")[2], reason=why
            )


class ResultCache(Generic[T]):
    """Results of requests, within a number of bytes and seconds. Keys are digests under a key of this process:
    no name or password is kept."""

    def __init__(self, settings: ResultCacheSettings, clock: Clock) -> None:
        self._ttl_s = settings.ttl
        self._max_bytes = settings.max_bytes
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._results: dict[bytes, tuple[float, int, T]] = {}
        self.bytes = 0

    @property
    def is_on(self) -> bool:
        """True if results are remembered."""
        return self._ttl_s > 0 and self._max_bytes > 0

    def key(self, parts: Sequence[Any]) -> bytes:
        """Key of a request. A changed secret changes all keys."""
        return hmac.digest(
            self._key, repr((NAMED_SECRETS.version, parts)).encode(errors="surrogatepass"), "sha256"
        )

    def get(self, key: bytes) -> T | None:
        """A remembered result."""
        entry = self._results.get(key)
        if entry is None:
            return None
        if self._clock.monotonic_s() >= entry[0]:
            self._forget(key)
            return None
        return entry[2]

    def put(self, key: bytes, result: T, size_bytes: int, lasts_s: float | None = None) -> None:
        """Remember a result; ``lasts_s`` is how long it holds, where that may be shorter than ``ttl``."""
        if key in self._results:
            self._forget(key)
        ends_s = self._clock.monotonic_s() + (
            self._ttl_s if lasts_s is None else min(self._ttl_s, lasts_s)
        )
        size_bytes += _ENTRY_BYTES
        if size_bytes > self._max_bytes:
            return
        self._results[key] = (ends_s, size_bytes, result)
        self.bytes += size_bytes
        while self.bytes > self._max_bytes:
            self._forget(next(iter(self._results)))

    def _forget(self, key: bytes) -> None:
        self.bytes -= self._results.pop(key)[1]
