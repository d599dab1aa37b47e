"""Accounts of those who use the API and the dashboard: a name, a password, a role and a scope.

Of a password the keys of SCRAM are kept, in ``DIR/api.hocon`` or a file that users write. It is checked on a thread of
the pool that hashes passwords of clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, NotRequired

from pydantic import AfterValidator, Field, field_validator
from typing_extensions import TypedDict

from broker.admin.rights import KINDS_TEXT, TOPICS_TEXT, Actor, KindScope, Role, TopicScope
from broker.admin.spec_objects import SpecObjects
from broker.auth import passwords
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.passwords import MAX_PASSWORD_BYTES, Credential
from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.config.root import Config
from broker.config.secrets import Secret
from broker.config.sections import Sections
from broker.core.clock import Clock, SystemClock
from broker.core.contributor import Change, Contributor
from broker.core.errors import AlreadyExists, Invalid, Problem
from broker.core.objects import ObjectSection, Spec
from broker.core.signals import Signal
from broker.core.times import rfc3339
from broker.observe.metrics import Metrics

MAX_ACCOUNTS: Final = 10_000
MIN_PASSWORD_BYTES: Final = 8
_MAX_ITERATIONS: Final = 10_000_000
# The actor of the API's own token, which no account may be taken for.
_RESERVED: Final = "administrator"


def _check_password(secret: Secret) -> Secret:
    if (
        not MIN_PASSWORD_BYTES
        <= len(secret.reveal().encode(errors="replace"))
        <= MAX_PASSWORD_BYTES
    ):
        raise ValueError(f"expected {MIN_PASSWORD_BYTES} to {MAX_PASSWORD_BYTES} bytes")
    return secret


class AccountSpec(Settings):
    """A person who signs in to the dashboard, or uses the API with a session."""

    name: ObjectName = Field(examples=["ann"])
    role: Role = Field(description="Role: viewer, editor, operator or administrator.")
    kinds: KindScope | None = Field(default=None, description=KINDS_TEXT)
    topics: TopicScope | None = Field(default=None, description=TOPICS_TEXT)
    description: str = Field(default="", max_length=1000, description="Who it belongs to.")
    password: Annotated[Secret, AfterValidator(_check_password)] | None = Field(
        default=None,
        exclude=True,
        description="At least 8 bytes. A new account without one gets a generated password, which is in the answer.",
    )
    credentials: list[dict[str, Any]] | None = Field(
        default=None, exclude=True, description="Keys of the password, as the broker writes them."
    )
    created_at: str | None = Field(default=None, description="Read-only; ignored.")
    password_changed_at: str | None = Field(default=None, description="Read-only; ignored.")

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name == _RESERVED:
            raise ValueError(
                f"expected another name, since {_RESERVED!r} is the owner of the API's token"
            )
        return name

    @field_validator("credentials")
    @classmethod
    def _check_credentials(
        cls, credentials: list[dict[str, Any]] | None
    ) -> list[dict[str, Any]] | None:
        for credential in credentials or ():
            kept = Credential.from_spec(credential)
            if not kept.server_key or kept.iterations > _MAX_ITERATIONS:
                raise ValueError(
                    f"expected keys of SCRAM with at most {_MAX_ITERATIONS:,} iterations"
                )
        return credentials


class AccountView(TypedDict):
    """An account, without its password. `password` is only in the answer to the call that generated it."""

    name: str
    role: Role
    kinds: NotRequired[list[str]]
    topics: NotRequired[list[str]]
    description: str
    created_at: NotRequired[str]
    password_changed_at: NotRequired[str]
    password: NotRequired[str]


class Accounts(Contributor, SpecObjects[AccountSpec]):
    """The verbs of administrators, sign-in by password, and the rights of those who are signed in."""

    kind = "account"

    def __init__(
        self,
        section: ObjectSection,
        settings: PasswordHashingSettings,
        pool: HashPool,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._clock = clock
        self._before: dict[str, AccountSpec] = {}
        self.on_change = Signal[()]()
        """An account was deleted or changed: what it is signed in to has other rights, or ends."""
        super().__init__(self.kind, section, AccountSpec, self._use, _written)

    def consequences(self, change: Change) -> Iterator[str]:
        """The effect on those who are signed in."""
        (kind, name), before, after = change.target, change.before, change.after
        if kind == self.kind and before is not None:
            if after is None:
                yield f"{name!r} can no longer sign in, and its sessions end."
            elif any(
                before.get(member) != after.get(member) for member in ("role", "kinds", "topics")
            ):
                yield f"The sessions of {name!r} have the new rights at once."

    async def sign_in(self, name: str, password: str, place: str) -> bool:
        """True if this is the password of the account; an unknown name takes as long. ``place`` is the address, of
        which each gets its turn.

        Raises:
            Unavailable: too many passwords wait to be checked.
        """
        account = self._objects.find(name)
        credential = self._decoy() if account is None else _credential(account)
        async with self._pool.turn(place):
            matches = await self._pool.work(
                lambda: credential.matches(password.encode(errors="replace"))
            )
        return matches and account is not None and account is self._objects.find(name)

    def stamp_of(self, name: str) -> str:
        """Digest of an account's password, by which its sessions end with a new one; empty for an unknown name."""
        account = self._objects.find(name)
        return "" if account is None else sha256(_credential(account).stored_key).hexdigest()[:32]

    def actor_of(self, name: str) -> Actor:
        """The actor of a session of this account."""
        account = self._objects.get(name)
        return Actor(
            name,
            account.role,
            None if account.kinds is None else frozenset(account.kinds),
            None if account.topics is None else tuple(account.topics),
        )

    def create(self, spec: Spec) -> Any:
        """Create an account; its password is generated and in the answer where ``spec`` has none."""
        if self._objects.find(str(spec.get("name"))) is not None:
            raise AlreadyExists(self.kind, str(spec["name"]))
        if len(self._objects.names()) >= MAX_ACCOUNTS:
            raise Invalid(
                "the account cannot be saved",
                [Problem(f"expected at most {MAX_ACCOUNTS:,} accounts")],
            )
        now = rfc3339(self._clock.now_ns())
        dated = {"created_at": now, "password_changed_at": now}
        if spec.get("credentials") and spec.get("password") is None:
            return super().create({**dated, **spec})
        return self._created({**spec, **dated})

    async def _created(self, spec: Spec) -> Spec:
        generated = (
            {} if spec.get("password") is not None else {"password": passwords.generated_password()}
        )
        return {**super().create(await self._hashed({**spec, **generated})), **generated}

    def replace(self, name: str, spec: Spec) -> Any:
        """Change an account; its password only where ``spec`` has one."""
        before = self._objects.get(name)
        kept = {
            "credentials": before.credentials,
            "created_at": before.created_at,
            "password_changed_at": before.password_changed_at,
        }
        if spec.get("password") is None:
            return super().replace(name, {**spec, "password": None, **kept})
        return self._replaced(
            name, {**spec, **kept, "password_changed_at": rfc3339(self._clock.now_ns())}
        )

    async def _replaced(self, name: str, spec: Spec) -> Spec:
        return super().replace(name, await self._hashed(spec))

    async def _hashed(self, spec: Spec) -> Spec:
        """The spec with the keys of its password in place of it."""
        checked = super()._compiled(spec)
        assert checked.password is not None
        password = checked.password.reveal().encode(errors="replace")
        rounds = self._settings.rounds("pbkdf2_sha256")
        credential = await self._pool.run(
            lambda: passwords.hashed(password, "pbkdf2_sha256", rounds)
        )
        return {**spec, "password": None, "credentials": [credential.as_spec()]}

    def _compiled(self, spec: Spec) -> AccountSpec:
        item = super()._compiled(spec)
        if item.password is not None:  # of a file
            password = item.password.reveal().encode(errors="replace")
            credential = passwords.hashed(password, "pbkdf2_sha256", passwords.GENERATED_ITERATIONS)
            return item.model_copy(update={"password": None, "credentials": [credential.as_spec()]})
        if not item.credentials:
            raise Invalid(
                "the account cannot be used",
                [Problem("expected a password, or its keys", "/password")],
            )
        return item

    def _decoy(self) -> Credential:
        return Credential(
            "pbkdf2_sha256", b" " * 16, self._settings.rounds("pbkdf2_sha256"), b" ", b" "
        )

    def _shown(self, item: AccountSpec) -> Spec:
        return item.model_dump(mode="json", exclude_none=True)

    def _use(self, accounts: Sequence[AccountSpec]) -> None:
        before = self._before
        self._before = {account.name: account for account in accounts}
        if any(self._before.get(name) != account for name, account in before.items()):
            self.on_change()


def create_in_file(config: Config, spec: Spec) -> Spec:
    """Create an account in the configuration of a node that is not running; the account, with a generated password.

    Raises:
        SluiceError: nothing was created.
    """
    settings = config.get("password_hashing", PasswordHashingSettings)

    async def create() -> Spec:
        pool = HashPool(settings, Metrics())
        accounts = Accounts(Sections(config).section("accounts"), settings, pool, SystemClock())
        try:
            accounts.start()
            created: Spec = await accounts.create(spec)
            return created
        finally:
            pool.close()

    return asyncio.run(create())


def _credential(account: AccountSpec) -> Credential:
    return Credential.from_spec((account.credentials or [{}])[0])


def _written(item: AccountSpec) -> Spec:
    return item.model_dump(mode="json", exclude_none=True) | {"credentials": item.credentials}
