"""Everything that says who may: what a node's connections ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.auth.authorize import AuthorizationSettings, Authorizer
from broker.auth.bans import Bans, KeyStore
from broker.auth.chain import AuthenticationSettings, AuthenticatorChain
from broker.auth.decision import Decision
from broker.auth.flapping import Flapping, FlappingSettings
from broker.auth.users import Users
from broker.core.clock import Clock
from broker.observe.metrics import Metrics


@dataclass(slots=True)
class Access:
    """Authentication, authorization and bans, as connections of a node ask for them.

    ``authenticators`` are replaced as a whole when they change; exchanges under way go on.
    """

    authenticators: AuthenticatorChain
    authorizer: Authorizer
    bans: Bans
    flapping: Flapping
    users: Users | None = None
    """The broker's own, where there are some."""

    @classmethod
    def of(
        cls,
        authenticators: AuthenticatorChain | None,
        store: KeyStore,
        metrics: Metrics,
        clock: Clock,
        *,
        authorization: AuthorizationSettings | None = None,
        flapping: FlappingSettings | None = None,
        users: Users | None = None,
        **where: Any,
    ) -> Access:
        """Of its settings; what is left out lets everybody do everything."""
        bans = Bans(store, clock)
        return cls(
            authenticators or AuthenticatorChain(AuthenticationSettings(), metrics),
            Authorizer(authorization or AuthorizationSettings(), **where),
            bans,
            Flapping(flapping or FlappingSettings(), bans, clock),
            users,
        )

    def still_admits(self, decision: Decision) -> bool:
        """Whether the user that a client logged in as is what it was when that was decided."""
        account = decision.account
        if account is None or self.users is None:
            return True
        user = self.users.find(account.name)
        return user is not None and user.logs_in_like(account) and user.is_superuser == account.is_superuser

    def forget_old(self) -> None:
        """Forget what has ended: bans, and clients that have long not disconnected."""
        self.bans.forget_over()
        self.flapping.forget_old()
