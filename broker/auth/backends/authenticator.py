"""Authenticators that ask an outside service: what they have in common."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import Field

from broker.auth.attempt import ConnectAttempt
from broker.auth.backends.backend import (
    Backend,
    BackendSettings,
    BackendUnavailable,
    Driver,
    Outside,
    ResultCache,
    ResultCacheSettings,
)
from broker.auth.backends.templates import Template, facts_of_login
from broker.auth.decision import DENIED, IGNORED, ClientName, Decision
from broker.auth.expressions import ExpressionText
from broker.auth.jwks import AuthenticatorState
from broker.auth.passwords import MAX_PASSWORD_BYTES
from broker.core import reason

_NS: Final = 1_000_000_000
EXPIRED: Final = Decision(
    "deny", reason.BAD_USER_NAME_OR_PASSWORD, why="the credentials have expired"
)


class OutsideAuthenticatorSettings(BackendSettings):
    """Settings of every authenticator that asks an outside service."""

    precondition: ExpressionText | None = Field(
        default=None, description="It is asked only when this gives exactly 'true'."
    )
    verifies: list[ClientName] = Field(
        default=["username"], description="Names that an accepted client has proven to be its own, `username`, "
        "`clientid`; access rules believe no others."
    )  # fmt: skip
    cache: ResultCacheSettings = Field(
        default_factory=ResultCacheSettings, description="Remembered results of accepted clients."
    )


T = TypeVar("T")


class Verifier(Driver, Protocol[T]):
    """Asks a service about clients."""

    templates: tuple[Template, ...]
    """All that depends on the client in a request."""
    needs_password: bool
    """True if there is nothing to ask about a client without a password."""

    async def asked(self, facts: Mapping[str, str | None]) -> T:
        """Answer of the service. Raises ``BackendUnavailable``."""
        ...

    async def decision(self, answer: T, facts: Mapping[str, str | None]) -> Decision:
        """Decision by an answer, without the service. Raises ``BackendUnavailable``."""
        ...


class OutsideAuthenticator(Generic[T]):
    """Decides by the answer of an outside service."""

    def __init__(
        self,
        mechanism: str,
        settings: OutsideAuthenticatorSettings,
        verifier: Verifier[T],
        outside: Outside,
    ) -> None:
        self._mechanism = mechanism
        self._verifier = verifier
        self._clock = outside.clock
        self._verified = frozenset(settings.verifies)
        self._names = sorted(
            {name for template in verifier.templates for name in template.names} | {"password"}
        )
        place = f"@{outside.listener}" if outside.listener else ""
        self.backend = Backend(f"authenticator {mechanism}{place}", settings, verifier, outside)
        self._results: ResultCache[Decision] = ResultCache(settings.cache, outside.clock)
        self.backend.remembered_bytes = lambda: self._results.bytes

    def decide(self, attempt: ConnectAttempt) -> Decision | Coroutine[Any, Any, Decision]:
        """By a remembered result, or by the answer of the service; ``ignore`` where there is nothing to ask."""
        password = attempt.password
        if password is not None and len(password) > MAX_PASSWORD_BYTES:
            return DENIED
        facts = facts_of_login(attempt)
        if self._verifier.needs_password and (not password or not self._has_names(facts)):
            return IGNORED
        if not self._results.is_on:
            return self._asked(facts, None)
        key = self._results.key(
            [facts[name] if name != "password" else password for name in self._known(facts)]
        )
        remembered = self._results.get(key)
        return self._asked(facts, key) if remembered is None else remembered

    def _known(self, facts: Mapping[str, str | None]) -> list[str]:
        return [name for name in self._names if name in facts]

    def _has_names(self, facts: Mapping[str, str | None]) -> bool:
        """True if the client has any of the names that a request would have."""
        names = [name for name in self._names if name != "password"]
        return not names or any(facts.get(name) for name in names)

    async def _asked(self, facts: Mapping[str, str | None], key: bytes | None) -> Decision:
        try:
            answer = await self.backend.ask(lambda: self._verifier.asked(facts))
            decision = await self._verifier.decision(answer, facts)
        except BackendUnavailable as error:
            return self.backend.unavailable(error)
        if not decision.is_allowed:
            return decision
        now_s = self._clock.now_ns() / _NS
        if decision.expires_s is not None and decision.expires_s <= now_s:
            return EXPIRED
        decision = Decision(
            "allow",
            is_superuser=decision.is_superuser,
            verified=self._verified,
            username=decision.username,
            attributes=decision.attributes,
            mechanism=self._mechanism,
            expires_s=decision.expires_s,
            rules=decision.rules,
        )
        if key is not None:
            size = 200 * len(decision.rules or ()) + sum(
                map(len, [*decision.attributes, *decision.attributes.values()])
            )
            self._results.put(
                key,
                decision,
                size,
                None if decision.expires_s is None else decision.expires_s - now_s,
            )
        return decision

    def tick(self) -> None:
        """Check the service when it is time to."""
        self.backend.tick()

    def close(self) -> None:
        """Stop; it is no longer asked."""
        self.backend.close()

    @property
    def state(self) -> AuthenticatorState:
        """State for users."""
        return {"backend": self.backend.state}
