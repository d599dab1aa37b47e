"""The authenticator ``builtin``: the broker's own users, by password or by SCRAM."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

from pydantic import Field

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import DENIED, IGNORED, LIMITED, ClientName, Decision
from broker.auth.exchange import Exchange
from broker.auth.expressions import ExpressionText
from broker.auth.hashing import HashPool
from broker.auth.login_limits import LoginLimits, network_of
from broker.auth.passwords import MAX_NAME_BYTES, MAX_PASSWORD_BYTES, SCRAM_METHODS, Credential
from broker.auth.scram import Account, ScramExchange
from broker.auth.users import User, Users
from broker.config.model import Settings
from broker.core import reason
from broker.core.errors import Unavailable

ScramMethod = Literal["SCRAM-SHA-256", "SCRAM-SHA-512"]
_BUSY = Decision("deny", reason.SERVER_BUSY)


class BuiltinSettings(Settings):
    """Settings of a ``builtin`` authenticator."""

    mechanism: Literal["builtin"]
    enable: bool = Field(default=True, description="Whether it is asked.")
    precondition: ExpressionText | None = Field(
        default=None, description="It is asked only when this gives exactly 'true'."
    )
    user_id_type: ClientName = Field(
        default="username",
        description="Whether users are found by the user name or by the client identifier.",
    )
    methods: list[ScramMethod] = Field(
        default=["SCRAM-SHA-256", "SCRAM-SHA-512"],
        description="Methods of enhanced authentication that are offered.",
    )


class RememberedLogins:
    """Logins that were right, as digests under a key of this process: to check one again costs microseconds."""

    def __init__(self, most: int) -> None:
        self._most, self._key = most, secrets.token_bytes(32)
        self._seen: dict[bytes, None] = {}

    def has(self, credential: Credential, password: bytes) -> bool:
        """True if this password was right for this credential before."""
        return bool(self._seen) and self._digest(credential, password) in self._seen

    def add(self, credential: Credential, password: bytes) -> None:
        """Remember a correct password; the oldest is forgotten for it."""
        if len(self._seen) >= self._most and self._seen:
            del self._seen[next(iter(self._seen))]
        if self._most:
            self._seen[self._digest(credential, password)] = None

    def _digest(self, credential: Credential, password: bytes) -> bytes:
        return hmac.digest(self._key, credential.stored_key + password, "sha256")


class BuiltinAuthenticator:
    """Checks passwords and SCRAM against the broker's own users.

    A user that does not exist costs what one that does costs, and looks like one in SCRAM.
    """

    def __init__(
        self,
        settings: BuiltinSettings,
        users: Users,
        pool: HashPool,
        remembered: RememberedLogins,
        limits: LoginLimits,
    ) -> None:
        self.methods: Sequence[str] = settings.methods
        self._by_username = settings.user_id_type == "username"
        self._users = users
        self._pool = pool
        self._remembered = remembered
        self._limits = limits

    def decide(self, attempt: ConnectAttempt) -> Decision | Awaitable[Decision]:
        """By password; ``ignore`` for a client that names no user or one that there is not."""
        name = attempt.username if self._by_username else attempt.client_id
        password = attempt.password
        if name is None or password is None or len(name.encode()) > MAX_NAME_BYTES:
            return IGNORED
        known_user = self._users.find(name)
        if len(password) > MAX_PASSWORD_BYTES:
            return self._verdict(attempt, known_user, is_right=False)
        user = known_user or self._users.decoy(name)
        credential = user.credentials[0]
        if not credential.is_slow and password.isascii():
            return self._verdict(attempt, known_user, is_right=credential.matches(password))
        if known_user is not None and self._remembered.has(credential, password):
            return self._verdict(attempt, known_user, is_right=True)
        return self._checked(attempt, name, known_user, lambda: credential.matches(password))

    async def _checked(
        self, attempt: ConnectAttempt, name: str, user: User | None, matches: Callable[[], bool]
    ) -> Decision:
        address = network_of(attempt.peer_host)
        try:
            async with self._pool.turn(address):
                if self._limits.refuses(address, name, attempt.client_id):
                    # others have failed while it waited
                    return LIMITED
                is_right = await self._pool.work(matches)
        except Unavailable:
            return _BUSY
        if is_right and user is not None and attempt.password is not None:
            self._remembered.add(user.credentials[0], attempt.password)
        return self._verdict(attempt, user, is_right=is_right)

    def _verdict(self, attempt: ConnectAttempt, user: User | None, *, is_right: bool) -> Decision:
        if user is None:
            return IGNORED
        return self._accepted(attempt, user) if is_right else DENIED

    def _accepted(self, attempt: ConnectAttempt, user: User) -> Decision:
        verified: set[ClientName] = {"username" if self._by_username else "clientid"}
        if user.client_id is not None:
            if attempt.client_id != user.client_id:
                return DENIED
            verified.add("clientid")
        return Decision(
            "allow",
            is_superuser=user.is_superuser,
            verified=frozenset(verified),
            username=user.name if self._by_username else None,
            mechanism="builtin",
            account=user,
        )

    def begin(self, method: str, attempt: ConnectAttempt) -> Exchange:
        """A SCRAM exchange. The name in it is the user's; one that CONNECT carries too must be the same."""
        return ScramExchange(lambda name: self._account(method, attempt, name))

    def _account(self, method: str, attempt: ConnectAttempt, name: str) -> Account | Decision:
        if self._limits.refuses(network_of(attempt.peer_host), name, attempt.client_id):
            return LIMITED
        known_user = self._users.find(name)
        credential = known_user.credential_for(method) if known_user is not None else None
        if known_user is None or credential is None:
            wanted = SCRAM_METHODS[method]
            decoy = self._users.decoy(name).credentials
            like = next((candidate for candidate in decoy if candidate.algorithm == wanted), None)
            return Account(like or _any_credential(decoy[0], method), DENIED)
        claimed = attempt.username if self._by_username else attempt.client_id
        decision = DENIED if claimed not in (None, name) else self._accepted(attempt, known_user)
        return Account(credential, decision)


def _any_credential(like: Credential, method: str) -> Credential:
    """Credential of a decoy among users that were imported without SCRAM keys."""
    return Credential(SCRAM_METHODS[method], like.salt, 4096, like.stored_key)
