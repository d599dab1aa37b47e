"""Everything that says who may: what a node's connections ask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.auth.authorize import AuthorizationSettings, Authorizer
from broker.auth.backends.backend import Outside
from broker.auth.bans import Bans
from broker.auth.chain import AuthenticationSettings, AuthenticatorChain
from broker.auth.decision import Decision
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

    def still_admits(self, decision: Decision) -> bool:
        """True if the user that a client logged in as has not changed since the decision."""
        account = decision.account
        if account is None or self.users is None:
            return True
        user = self.users.find(account.name)
        return user is not None and user.logs_in_like(account) and user.is_superuser == account.is_superuser

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
        self.authenticators.close()
        await self.authenticators.closed()
        await self.authorizer.stop()

    def tick(self) -> None:
        """Let authenticators do what is due, and forget what has ended: bans, and clients that have long not
        disconnected. Called twice a second."""
        self.authenticators.tick()
        self.authorizer.tick()
        self._ticks += 1
        if self._ticks % _OLD_TICKS == 0:
            self.bans.forget_over()
            self.flapping.forget_old()
