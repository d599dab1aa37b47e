"""Everything that says who may: what a node's connections ask."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from broker.auth.attempt import ConnectAttempt
from broker.auth.authorize import AuthorizationSettings, Authorizer
from broker.auth.backends.backend import Outside
from broker.auth.bans import Bans
from broker.auth.chain import (
    ANONYMOUS,
    UNCHECKED,
    AnyAuthenticatorSettings,
    AuthenticationSettings,
    AuthenticatorChain,
    EnableAuthn,
    is_anonymous,
)
from broker.auth.decision import NOBODY, Decision
from broker.auth.flapping import Flapping, FlappingSettings
from broker.auth.users import Users
from broker.core.client import Client
from broker.core.clock import Clock
from broker.observe.metrics import Metrics
from broker.storage.writer import Writer

_OLD_TICKS: Final = 240


@dataclass(slots=True)
class Access:
    """Authentication, authorization and bans, as connections of a node ask for them.

    ``authenticators`` are replaced as a whole when they change; exchanges in progress continue.
    """

    authenticators: AuthenticatorChain
    authorizer: Authorizer
    bans: Bans
    flapping: Flapping
    users: Users | None = None
    """The broker's own, where there are some."""
    _of_listener: dict[str, tuple[EnableAuthn, AuthenticatorChain | None]] = field(
        default_factory=dict
    )
    """Settings and authenticators of listeners that have their own; None for the authenticators of all."""
    _ticks: int = 0

    @classmethod
    def of(
        cls,
        authenticators: AuthenticatorChain | None,
        writer: Writer,
        metrics: Metrics,
        clock: Clock,
        *,
        authorization: AuthorizationSettings | None = None,
        flapping: FlappingSettings | None = None,
        users: Users | None = None,
        base: Path | None = None,
        outside: Outside | None = None,
    ) -> Access:
        """Build it from its settings; sections left out allow every client everything."""
        bans = Bans(writer, clock)
        return cls(
            authenticators or AuthenticatorChain(AuthenticationSettings(), metrics),
            Authorizer(authorization or AuthorizationSettings(), base, users, outside),
            bans,
            Flapping(flapping or FlappingSettings(), bans, clock),
            users,
        )

    def authenticate(self, attempt: ConnectAttempt) -> Decision | Coroutine[Any, Any, Decision]:
        """Decision about a client by the authenticators of its listener; see ``AuthenticatorChain``."""
        enable_authn, _ = self._of_listener.get(attempt.listener, (True, None))
        if enable_authn is False:
            return UNCHECKED
        chain = self.chain_of(attempt.listener)
        if enable_authn == "quick_deny_anonymous" and is_anonymous(attempt):
            return chain.counted(ANONYMOUS, attempt, NOBODY)
        return chain.authenticate(attempt)

    def chain_of(self, listener: str) -> AuthenticatorChain:
        """The authenticators for clients of a listener."""
        _, own = self._of_listener.get(listener, (True, None))
        return own or self.authenticators

    def place(
        self,
        listener: str,
        enable_authn: EnableAuthn,
        authentication: Sequence[AnyAuthenticatorSettings] | None,
    ) -> None:
        """Authenticate clients of a listener in this way, None by all authenticators. Raises ``ConfigError``."""
        own = None
        if authentication is not None:
            own = self.authenticators.for_listener(listener, authentication)
        self.displace(listener)
        self._of_listener[listener] = (enable_authn, own)

    def displace(self, listener: str) -> None:
        """Forget the authenticators of a listener."""
        _, own = self._of_listener.pop(listener, (True, None))
        if own is not None:
            own.close()

    def check_listener(self, authentication: Sequence[AnyAuthenticatorSettings] | None) -> None:
        """Raise ``ConfigError`` where the authenticators of a listener cannot be used."""
        if authentication:
            self.authenticators.for_listener("", authentication, Metrics())

    @property
    def _chains(self) -> list[AuthenticatorChain]:
        return [
            self.authenticators,
            *(own for _, own in self._of_listener.values() if own is not None),
        ]

    def still_admits(self, decision: Decision) -> bool:
        """True if the user that a client logged in as has not changed since the decision."""
        account = decision.account
        if account is None or self.users is None:
            return True
        user = self.users.find(account.name)
        return (
            user is not None
            and user.logs_in_like(account)
            and user.is_superuser == account.is_superuser
        )

    def has_lost_its_user(self, client: Client) -> bool:
        """True if the broker's own user that a client logged in as was deleted, though there may be another of its name
        now."""
        account = None if client.standing is None else client.standing.account
        if account is None or self.users is None:
            return False
        name, created_at = account
        user = self.users.find(name)
        return user is None or user.created_at != created_at

    def may_still_publish(self, client: Client, topic: str, qos: int, retain: bool) -> bool:
        """True if a client may publish now a message that it left for later."""
        if self.has_lost_its_user(client) or self.bans.of(client) is not None:
            return False
        return self.authorizer.may_still_publish(client, topic, qos, retain)

    async def stop(self) -> None:
        """Close the connections to outside services; returns once they are closed."""
        for chain in self._chains:
            chain.close()
            await chain.closed()
        await self.authorizer.stop()

    def tick(self) -> None:
        """Let authenticators do what is due, and forget what has ended: bans, and clients that have long not
        disconnected. Called twice a second."""
        for chain in self._chains:
            chain.tick()
        self.authorizer.tick()
        self._ticks += 1
        if self._ticks % _OLD_TICKS == 0:
            self.bans.forget_over()
            self.flapping.forget_old()
