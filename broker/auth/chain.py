"""Authenticators in order: the first that allows or denies decides.

A client over whom none decides is refused; where there are no authenticators every client is accepted. An authenticator
that is plugged in has a settings model with a ``mechanism`` and a line in ``FACTORIES``; one that knows methods of
several steps has ``methods`` and ``begin`` too (``broker.auth.exchange``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol

from pydantic import Field, model_validator

from broker.auth.attempt import ConnectAttempt
from broker.auth.authenticators.builtin import (
    BuiltinAuthenticator,
    BuiltinSettings,
    RememberedLogins,
)
from broker.auth.authenticators.cinfo import CinfoAuthenticator, CinfoSettings
from broker.auth.authenticators.jwt import JwtAuthenticator, JwtSettings
from broker.auth.backends.authenticator import OutsideAuthenticator
from broker.auth.backends.backend import Outside
from broker.auth.backends.http import HttpAuthenticatorSettings, http_authenticator
from broker.auth.backends.ldap import LdapAuthenticatorSettings, ldap_authenticator
from broker.auth.backends.redis import RedisAuthenticatorSettings, redis_authenticator
from broker.auth.backends.sql import (
    MysqlAuthenticatorSettings,
    PostgresqlAuthenticatorSettings,
    sql_authenticator,
)
from broker.auth.decision import LIMITED, NOBODY, Decision
from broker.auth.exchange import Exchange, ExchangeAuthenticator
from broker.auth.expressions import Condition
from broker.auth.hashing import HashPool
from broker.auth.jwks import AuthenticatorState
from broker.auth.login_limits import LoginLimits, LoginLimitSettings, network_of
from broker.auth.users import Users
from broker.config.model import Settings
from broker.config.ssrf import AddressGuard, SsrfSettings
from broker.core import reason
from broker.core.clock import Clock, SystemClock
from broker.core.errors import ConfigError
from broker.core.hosts import is_this_machine
from broker.observe.alarms import Alarms
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

log = get_logger(__name__)

AnyAuthenticatorSettings = Annotated[
    CinfoSettings
    | BuiltinSettings
    | JwtSettings
    | HttpAuthenticatorSettings
    | PostgresqlAuthenticatorSettings
    | MysqlAuthenticatorSettings
    | RedisAuthenticatorSettings
    | LdapAuthenticatorSettings,
    Field(discriminator="mechanism"),
]


# Authentication of the clients of a listener: on, off, or on without anonymous clients.
EnableAuthn = bool | Literal["quick_deny_anonymous"]


# Names of mechanisms by ``mechanism:backend``, as other brokers have them.
ALIASES: Final[Mapping[str, str]] = {
    "password_based:built_in_database": "builtin",
    "scram:built_in_database": "builtin",
    **{f"password_based:{name}": name for name in ("http", "postgresql", "mysql", "redis", "ldap")},
    "ldap:ldap": "ldap",
}


def native(entry: Any) -> Any:
    """Settings of an authenticator with ``mechanism`` and ``backend`` in the form without ``backend``."""
    if not isinstance(entry, Mapping) or "backend" not in entry:
        return entry
    name = ALIASES.get(f"{entry.get('mechanism')}:{entry['backend']}")
    if name is None:
        return entry
    return {**{key: value for key, value in entry.items() if key != "backend"}, "mechanism": name}


class AuthenticationSettings(Settings):
    """Section ``authentication``: a list of authenticators."""

    takes_a_list: ClassVar[bool] = True

    chain: list[AnyAuthenticatorSettings] = Field(
        default_factory=list, description="Authenticators in the order they are asked."
    )

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"chain": [native(entry) for entry in value]} if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class UserAccess:
    """Services for authenticators over the broker's own users."""

    users: Users
    pool: HashPool
    max_remembered: int = 10_000


class Authenticator(Protocol):
    """One link of the chain."""

    def decide(self, attempt: ConnectAttempt) -> Decision | Awaitable[Decision]:
        """Decide over a client; never raises. Checks of more than a millisecond are awaited."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Services for authenticators in addition to their settings."""

    outside: Outside
    users: UserAccess | None
    limits: LoginLimits


def _builtin(settings: Any, around: Surroundings) -> Authenticator:
    access = around.users
    if access is None:
        raise ConfigError(
            ["authentication: the mechanism 'builtin' needs a store of users, and there is none"]
        )
    remembered = RememberedLogins(access.max_remembered)
    return BuiltinAuthenticator(settings, access.users, access.pool, remembered, around.limits)


# Factory of each authenticator, by its settings.
FACTORIES: Final[Mapping[type[Settings], Callable[[Any, Surroundings], Authenticator]]] = {
    CinfoSettings: lambda settings, _: CinfoAuthenticator(settings),
    BuiltinSettings: _builtin,
    JwtSettings: lambda settings, around: JwtAuthenticator(
        settings, around.outside.guard, around.outside.metrics, around.outside.clock
    ),
    HttpAuthenticatorSettings: lambda settings, around: http_authenticator(
        settings, around.outside
    ),
    PostgresqlAuthenticatorSettings: lambda settings, around: sql_authenticator(
        settings, around.outside
    ),
    MysqlAuthenticatorSettings: lambda settings, around: sql_authenticator(
        settings, around.outside
    ),
    RedisAuthenticatorSettings: lambda settings, around: redis_authenticator(
        settings, around.outside
    ),
    LdapAuthenticatorSettings: lambda settings, around: ldap_authenticator(
        settings, around.outside
    ),
}


@dataclass(frozen=True, slots=True)
class _Link:
    mechanism: str
    precondition: Condition | None
    authenticator: Authenticator

    def is_for(self, attempt: ConnectAttempt) -> bool:
        """True if the precondition holds; one that fails does not."""
        if self.precondition is None:
            return True
        holds, error = self.precondition.holds(attempt.bindings())
        if error is not None:
            told = {"mechanism": self.mechanism, "client_id": attempt.client_id}
            log.warning("authn.precondition_failed", reason=error, **told)
        return holds


class AuthenticatorChain:
    """The authenticators that are enabled. ``is_empty`` tells that there are none: then every client on this machine is
    accepted, by its own address or the one that a load balancer announces.

    ``trusts_anonymous`` says that clients of other machines are accepted too, and the names of all are believed.
    """

    def __init__(
        self,
        settings: AuthenticationSettings,
        metrics: Metrics,
        access: UserAccess | None = None,
        *,
        trusts_anonymous: bool = False,
        clock: Clock | None = None,
        guard: AddressGuard | None = None,
        limits: LoginLimits | None = None,
        alarms: Alarms | None = None,
        listener: str = "",
    ) -> None:
        clock = clock or SystemClock()
        self.limits = limits or LoginLimits(LoginLimitSettings(), clock, metrics)
        pool = None if access is None else access.pool
        outside = Outside(
            metrics, clock, guard or AddressGuard(SsrfSettings()), alarms, pool, listener
        )
        around = Surroundings(outside, access, self.limits)
        self._around = around
        self._trusts_anonymous = trusts_anonymous
        self._links: Sequence[_Link] = [
            _Link(
                entry.mechanism,
                Condition([entry.precondition]) if entry.precondition else None,
                FACTORIES[type(entry)](entry, around),
            )
            for entry in settings.chain
            if entry.enable
        ]
        self.is_empty = not self._links
        self._finds_by_client_id = any(
            isinstance(entry, BuiltinSettings) and entry.enable and entry.user_id_type == "clientid"
            for entry in settings.chain
        )
        self._living = [
            (link.mechanism, link.authenticator)
            for link in self._links
            if isinstance(link.authenticator, (JwtAuthenticator, OutsideAuthenticator))
        ]
        self._unchecked = Decision(
            "allow",
            verified=frozenset(("username", "clientid") if trusts_anonymous else ()),
            mechanism=NOBODY,
        )
        self._allowed = metrics.counter(
            "authentication_allowed", "clients an authenticator accepted"
        )
        self._denied = metrics.counter("authentication_denied", "clients an authenticator refused")
        self._undecided = metrics.counter(
            "authentication_undecided", "clients no authenticator decided over: refused"
        )

    def for_listener(
        self,
        listener: str,
        authentication: Sequence[AnyAuthenticatorSettings],
        metrics: Metrics | None = None,
    ) -> AuthenticatorChain:
        """A chain for clients of one listener in the same surroundings, or counted by other metrics in a trial."""
        settings = AuthenticationSettings.model_construct(chain=list(authentication))
        return self.replaced(settings, metrics, listener)

    def replaced(
        self, settings: AuthenticationSettings, metrics: Metrics | None = None, listener: str = ""
    ) -> AuthenticatorChain:
        """A chain of other settings in the same surroundings, or counted by other metrics where it is only tried."""
        around = self._around
        outside = around.outside
        return AuthenticatorChain(
            settings, metrics or outside.metrics, around.users, trusts_anonymous=self._trusts_anonymous,
            clock=outside.clock, guard=outside.guard, limits=self.limits, alarms=outside.alarms,
            listener=listener,
        )  # fmt: skip

    def tick(self) -> None:
        """Let authenticators do what is due; called twice a second."""
        for _, authenticator in self._living:
            authenticator.tick()
        self.limits.tick()

    def close(self) -> None:
        """Other authenticators replaced these."""
        for _, authenticator in self._living:
            authenticator.close()

    @property
    def outside(self) -> Outside:
        """Services of the broker for requests to outside services."""
        return self._around.outside

    async def closed(self) -> None:
        """Wait until connections to outside services are closed, after ``close``."""
        for _, authenticator in self._living:
            if isinstance(authenticator, OutsideAuthenticator):
                await authenticator.backend.closed()

    def state_of(self, mechanism: str) -> AuthenticatorState | None:
        """State of an authenticator for users; None if there is nothing to report."""
        return next(
            (authenticator.state for name, authenticator in self._living if name == mechanism), None
        )

    def authenticate(self, attempt: ConnectAttempt) -> Decision | Coroutine[Any, Any, Decision]:
        """``allow``, or ``deny`` with the MQTT 5 reason code; awaitable where an authenticator must wait."""
        if self.is_empty:
            if self._trusts_anonymous or is_this_machine(attempt.peer_host):
                return self._unchecked
            return self.counted(_UNCHECKED_FROM_AFAR, attempt, NOBODY)
        if not is_anonymous(attempt) and self._is_limited(attempt):
            return LIMITED
        return self._from(0, attempt, None)

    def _from(
        self, start: int, attempt: ConnectAttempt, outage: Decision | None
    ) -> Decision | Coroutine[Any, Any, Decision]:
        """Decision of the authenticators from a position on; ``outage`` is of one before that gave no answer."""
        for position in range(start, len(self._links)):
            link = self._links[position]
            if not link.is_for(attempt):
                continue
            decision = link.authenticator.decide(attempt)
            if not isinstance(decision, Decision):
                return self._awaited(decision, position, attempt, outage)
            if decision.verdict != "ignore":
                return self.counted(decision, attempt, link.mechanism)
        return self._exhausted(attempt, outage)

    async def _awaited(
        self,
        waits: Awaitable[Decision],
        position: int,
        attempt: ConnectAttempt,
        outage: Decision | None,
    ) -> Decision:
        decision = await waits
        if decision.verdict != "ignore":
            return self.counted(decision, attempt, self._links[position].mechanism)
        if decision.reason_code != reason.SUCCESS:
            outage = decision
        following = self._from(position + 1, attempt, outage)
        return following if isinstance(following, Decision) else await following

    def begin(self, method: str, attempt: ConnectAttempt) -> Exchange | Decision:
        """An exchange by a method of enhanced authentication, or why there is none.

        Authenticators before the one with the method, and need not wait, can deny.
        """
        if self._is_limited(attempt):
            return LIMITED
        for link in self._links:
            if not link.is_for(attempt):
                continue
            authenticator = link.authenticator
            if isinstance(authenticator, ExchangeAuthenticator):
                if method in authenticator.methods:
                    return authenticator.begin(method, attempt)
                continue
            decision = authenticator.decide(attempt)
            if isinstance(decision, Coroutine):
                decision.close()
            elif isinstance(decision, Decision) and decision.verdict == "deny":
                return self.counted(decision, attempt, link.mechanism)
        return Decision("deny", reason.BAD_AUTHENTICATION_METHOD)

    def counted(
        self, decision: Decision, attempt: ConnectAttempt, mechanism: str, user: str = ""
    ) -> Decision:
        """Count a decision and log a denial; for exchanges, in which ``user`` was named, once they have finished."""
        if decision.is_allowed:
            self._allowed.value += 1
            self.limits.succeeded(*self._who(attempt, user))
        else:
            self._denied.value += 1
            if decision.reason_code in _OF_WRONG_LOGINS and (user or not is_anonymous(attempt)):
                self.limits.failed(*self._who(attempt, user))
            reason_name = reason.name_of(decision.reason_code)
            told = {"detail": decision.why} if decision.why else {}
            log.info(
                "authn.denied",
                mechanism=mechanism,
                client_id=attempt.client_id,
                reason=reason_name,
                **told,
            )
        return decision

    def _exhausted(self, attempt: ConnectAttempt, outage: Decision | None) -> Decision:
        """A client without credentials is not authorized; one with some gets the answer to a wrong password, unless a
        service that may know it is away."""
        self._undecided.value += 1
        log.info("authn.undecided", client_id=attempt.client_id)
        if outage is not None:
            return Decision("deny", outage.reason_code, why=outage.why)
        if is_anonymous(attempt):
            return Decision("deny", reason.NOT_AUTHORIZED)
        self.limits.failed(*self._who(attempt))
        return Decision("deny", reason.BAD_USER_NAME_OR_PASSWORD)

    def _who(self, attempt: ConnectAttempt, user: str = "") -> tuple[str, str, str]:
        """Address, user and client, as login limits know them."""
        name = user or (None if self._finds_by_client_id else attempt.username)
        return (
            network_of(attempt.peer_host),
            attempt.client_id if name is None else name,
            attempt.client_id,
        )

    def _is_limited(self, attempt: ConnectAttempt) -> bool:
        return self.limits.refuses(*self._who(attempt))


UNCHECKED: Final = Decision("allow", mechanism=NOBODY)
ANONYMOUS: Final = Decision(
    "deny",
    reason.NOT_AUTHORIZED,
    why="the listener refuses clients without a user name and a password (enable_authn)",
)
_UNCHECKED_FROM_AFAR: Final = Decision(
    "deny",
    reason.NOT_AUTHORIZED,
    why="nothing checks who connects, and the client is on another machine. Try: add an authenticator, or set "
    "access.allow_anonymous = true",
)
_OF_WRONG_LOGINS: Final = frozenset((reason.BAD_USER_NAME_OR_PASSWORD, reason.NOT_AUTHORIZED))


def is_anonymous(attempt: ConnectAttempt) -> bool:
    """True if a client sent neither a user name nor a password."""
    return attempt.username is None and attempt.password is None
