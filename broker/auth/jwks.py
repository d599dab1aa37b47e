"""Keys that an issuer publishes (JWK set, RFC 7517), fetched when the broker starts and then at intervals.

What was read last is used until something newer is read, however long the address cannot be reached. A token that
names a key which is not known has the set read at once, yet not more often than every ``_LEAST_PAUSE_S``: any client
can send such tokens. There is one request under way at most, on which all wait who need its keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NotRequired

from typing_extensions import TypedDict

from broker.auth.backends.backend import BackendState
from broker.config.outgoing import CallFailed, ClientTls, TlsUnusable, call
from broker.config.secret_text import SecretUrl
from broker.config.ssrf import AddressDenied, AddressGuard
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import ConfigError
from broker.core.lazy_module import LazyModule
from broker.core.times import rfc3339_or_none
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

if TYPE_CHECKING:
    from broker.auth import jwt_keys
    from broker.auth.jwt_keys import VerifyingKey
else:
    jwt_keys = LazyModule("broker.auth.jwt_keys")

log = get_logger(__name__)

# Minimum time between early requests: after a failure, and for keys that are not known.
_LEAST_PAUSE_S: Final = 10.0
_MOST_BYTES: Final = 1024 * 1024
_MOST_KEYS: Final = 256


class JwksState(TypedDict):
    """State of keys that are read from an address: the connection, the number of keys, the time of the last read, and
    the last failure."""

    status: str
    keys: int
    read_at: str | None
    last_error: str | None


class AuthenticatorState(TypedDict):
    """State of an authenticator: of the keys of tokens, or of the outside service that it asks."""

    jwks: NotRequired[JwksState]
    backend: NotRequired[BackendState]


class AuthenticatorReadOnly(TypedDict):
    """State of an authenticator, where there is something to report."""

    state: NotRequired[AuthenticatorState]


class KeySet:
    """The keys of one JWK set, fetched at intervals. ``tick`` is called twice a second."""

    def __init__(
        self,
        url: SecretUrl,
        tls: ClientTls,
        *,
        allowed: Sequence[str],
        refresh_interval_s: float,
        timeout_s: float,
        guard: AddressGuard,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._url, self._allowed = url, tuple(allowed)
        self._interval_s = refresh_interval_s
        self._timeout_s = timeout_s
        self._guard = guard
        self._clock = clock
        try:
            self._context = tls.context() if url.address.startswith("https:") else None
        except TlsUnusable as error:
            raise ConfigError([f"authentication: {error}"]) from None
        self._server_name = tls.server_name_indication
        self._task: asyncio.Task[None] | None = None
        self._asked_s = float("-inf")
        self._due_s = 0.0
        self._read_ns = 0
        self._problem: str | None = None
        self._by_kid: dict[str, list[VerifyingKey]] = {}
        self._nameless: list[VerifyingKey] = []
        self._all: list[VerifyingKey] = []
        text = "requests for the keys that tokens are signed with, by outcome"
        self._succeeded = metrics.counter("jwks_requests", text, outcome="success")
        self._failed = metrics.counter("jwks_requests", text, outcome="failure")
        metrics.gauge(
            "jwks_keys",
            lambda: len(self._all),
            "keys that tokens may be signed with, read from an issuer",
        )

    @property
    def is_loaded(self) -> bool:
        """True if the keys were ever read."""
        return self._read_ns > 0

    @property
    def state(self) -> JwksState:
        """State for users."""
        status = "connecting" if self._problem is None and not self.is_loaded else "disconnected"
        return {
            "status": "connected" if self._problem is None and self.is_loaded else status,
            "keys": len(self._all),
            "read_at": rfc3339_or_none(self._read_ns),
            "last_error": self._problem,
        }

    def keys(self, kid: str | None) -> list[VerifyingKey]:
        """Keys that may have signed a token that names this key, or none."""
        return self._all if kid is None else [*self._by_kid.get(kid, ()), *self._nameless]

    def may_have_more(self, kid: str | None) -> bool:
        """True if waiting for ``newest`` could help with a token."""
        is_known = self.is_loaded and (kid is None or kid in self._by_kid)
        return not is_known and (self._task is not None or self._may_ask())

    def is_missing(self, kid: str | None) -> bool:
        """True if the issuer may have published a key for such a token that could not be read."""
        is_current = self.is_loaded and self._problem is None
        return not is_current and (kid is None or kid not in self._by_kid)

    async def newest(self) -> None:
        """Wait until the keys were read once more, or that failed; never raises."""
        task = self._task
        if task is None and self._may_ask():
            task = self._ask()
        if task is not None:
            await asyncio.wait([task])

    def tick(self) -> None:
        """Read the keys when it is time to."""
        if self._task is None and self._clock.monotonic_s() >= self._due_s:
            self._ask()

    def close(self) -> None:
        """Give up the request under way."""
        if self._task is not None:
            self._task.cancel()
        self._due_s = float("inf")

    def _may_ask(self) -> bool:
        return self._clock.monotonic_s() >= self._asked_s + _LEAST_PAUSE_S and self._due_s < float(
            "inf"
        )

    def _ask(self) -> asyncio.Task[None]:
        self._asked_s = self._clock.monotonic_s()
        self._task = asyncio.create_task(self._read(), name="keys of tokens")
        return self._task

    async def _read(self) -> None:
        try:
            self._use(await self._members())
        except (CallFailed, AddressDenied) as error:
            self._note_failure(str(error))
        except Exception as error:
            # whatever was read: the last keys are used, and it is tried again
            log.exception("jwks.failed", url=self._url.shown)
            self._note_failure(f"the answer cannot be used: {type(error).__name__}")
        finally:
            self._task = None

    def _note_failure(self, why: str) -> None:
        self._failed.value += 1
        self._due_s = self._clock.monotonic_s() + min(self._interval_s, _LEAST_PAUSE_S)
        if why != self._problem:
            log.warning("jwks.unreachable", url=self._url.shown, keys=len(self._all), reason=why)
        self._problem = why

    def _use(self, members: Sequence[Any]) -> None:
        keys, problems = jwt_keys.keys_of_set(members, self._allowed)
        by_kid: dict[str, list[VerifyingKey]] = {}
        for key in keys:
            if key.kid is not None:
                by_kid.setdefault(key.kid, []).append(key)
        if not self.is_loaded or self._problem is not None or by_kid.keys() != self._by_kid.keys():
            log.info("jwks.read", url=self._url.shown, keys=len(keys), of_no_use=problems[:10])
        self._all = keys
        self._by_kid = by_kid
        self._nameless = [key for key in keys if key.kid is None]
        self._succeeded.value += 1
        self._problem, self._read_ns = None, self._clock.now_ns()
        self._due_s = self._clock.monotonic_s() + self._interval_s

    async def _members(self) -> Sequence[Any]:
        status, body = await call(
            "GET",
            self._url.reveal(),
            self._guard,
            self._context,
            timeout_s=self._timeout_s,
            most_bytes=_MOST_BYTES,
            server_name=self._server_name,
        )
        if status != HTTPStatus.OK:
            raise CallFailed(f"the answer is {status}")
        try:
            document = jsontext.decode(body)
        except ValueError:
            document = None
        members = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(members, list) or len(members) > _MOST_KEYS:
            raise CallFailed(
                f"the answer is not a JWK set: an object with 'keys', a list of {_MOST_KEYS} at most"
            )
        return members
