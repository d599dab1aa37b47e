"""Everything that says who may: what a node's connections ask."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Protocol

from broker.auth.authorize import AuthorizationSettings, Authorizer
from broker.auth.bans import Ban, Bans, KeyStore
from broker.auth.chain import AuthenticationSettings, AuthenticatorChain
from broker.auth.decision import Decision
from broker.auth.flapping import Flapping, FlappingSettings
from broker.auth.users import Users
from broker.core.clock import Clock
from broker.observe.metrics import Metrics

_OLD_TICKS: Final = 240


class AccessWatcher(Protocol):
    """Applies changes to connected clients."""

    def rules_changed(self) -> None:
        """Access rules changed."""
        ...

    def users_changed(self, names: Collection[str], /) -> None:
        """Users were deleted or changed."""
        ...

    def clients_of(self, names: Collection[str], /) -> list[str]:
        """Identifiers of the clients that are connected as these users."""
        ...

    def banned(self, ban: Ban, /) -> None:
        """A ban was added."""
        ...


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
    _ticks: int = 0

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
        """Of its settings; what is left out allows every client everything."""
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

    def announce_to(self, watcher: AccessWatcher) -> None:
        """Report changes that affect connected clients to this."""
        self.authorizer.on_change, self.bans.on_ban = watcher.rules_changed, watcher.banned
        if self.users is not None:
            self.users.on_change, self.users.clients_of = watcher.users_changed, watcher.clients_of

    def tick(self) -> None:
        """Let authenticators do what is due, and forget what has ended: bans, and clients that have long not
        disconnected. Called twice a second."""
        self.authenticators.tick()
        self._ticks += 1
        if self._ticks % _OLD_TICKS == 0:
            self.bans.forget_over()
            self.flapping.forget_old()
