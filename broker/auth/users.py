"""The users of the broker itself: who they are, and what is kept of their passwords.

Users are in the configuration as other objects do (section ``users``), with credentials instead of passwords. What is
shown of one never holds a credential. A password that the broker generates is in the answer to that call and nowhere
else.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, Final, NotRequired

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from typing_extensions import TypedDict

from broker.auth import passwords
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.passwords import (
    MAX_NAME_BYTES,
    MAX_PASSWORD_BYTES,
    SCRAM_METHODS,
    Algorithm,
    Credential,
)
from broker.config.model import Settings
from broker.config.secrets import MASK, Secret
from broker.config.spec_problems import parsed
from broker.core.clock import Clock
from broker.core.errors import AlreadyExists, ConfigError, Invalid, NotFound, Problem, ReadOnly
from broker.core.objects import Listed, ObjectSection, Spec, apply, unusable
from broker.core.signals import Signal
from broker.core.times import rfc3339

KIND: Final = "user"
MAX_USERS: Final = 200_000
_MOST_SHAPES: Final = 1000


def _check_name(text: str) -> str:
    if not (0 < len(text.encode(errors="replace")) <= MAX_NAME_BYTES and text.isprintable()):
        raise ValueError(f"expected 1 to {MAX_NAME_BYTES} bytes without control characters")
    return text


def _check_password(secret: Secret) -> Secret:
    if not 0 < len(secret.reveal().encode(errors="replace")) <= MAX_PASSWORD_BYTES:
        raise ValueError(f"expected 1 to {MAX_PASSWORD_BYTES} bytes")
    return secret


_Name = Annotated[str, AfterValidator(_check_name)]
_ReadOnly = Annotated[Any, Field(exclude=True, description="Read-only; ignored.")]


class UserSpec(Settings, strict=True):
    """A user that the broker itself knows. Without a password one is generated."""

    name: _Name = Field(description="The user name.", examples=["meter-7"])
    password: Annotated[Secret, AfterValidator(_check_password)] | None = Field(
        default=None, description="Without one, a password is generated and is in the answer."
    )
    generate: bool = Field(default=False, description="Generate a password; a new user only.")
    is_superuser: bool = Field(default=False, description="Whether access rules do not apply.")
    clientid: _Name | None = Field(
        default=None, description="The only client identifier the user may use."
    )
    description: str = Field(default="", max_length=1000, description="Who the user is.")
    algorithm: _ReadOnly = None
    methods: _ReadOnly = None
    is_generated: _ReadOnly = None
    created_at: _ReadOnly = None
    password_changed_at: _ReadOnly = None

    @field_validator("generate")
    @classmethod
    def _check_generate(cls, generate: bool, info: ValidationInfo) -> bool:
        if generate and info.data.get("password") is not None:
            raise ValueError("give a password, or have one generated")
        return generate


class UserView(TypedDict):
    """A user, without its credentials. `methods` are the methods of enhanced authentication that it can use; `password`
    is only in the answer to the call that generated it."""

    name: str
    is_superuser: bool
    is_generated: bool
    algorithm: str
    methods: list[str]
    clientid: NotRequired[str]
    description: NotRequired[str]
    created_at: NotRequired[str]
    password_changed_at: NotRequired[str]
    password: NotRequired[str]


@dataclass(frozen=True, slots=True)
class User:
    """One user. ``client_id``, when there is one, is the only client identifier it may use."""

    name: str
    credentials: tuple[Credential, ...]
    is_superuser: bool = False
    client_id: str | None = None
    description: str = ""
    is_generated: bool = False
    created_at: str = ""
    password_changed_at: str = ""

    def logs_in_like(self, other: User) -> bool:
        """True if a login of another user of this name holds for this one as well."""
        return self.credentials == other.credentials and self.client_id == other.client_id

    @property
    def methods(self) -> list[str]:
        """The methods of enhanced authentication that it can log in by."""
        return [method for method in SCRAM_METHODS if self.credential_for(method) is not None]

    def credential_for(self, method: str) -> Credential | None:
        """The credential that a method of enhanced authentication needs."""
        wanted = SCRAM_METHODS[method]
        return next(
            (
                credential
                for credential in self.credentials
                if credential.algorithm == wanted and credential.server_key
            ),
            None,
        )

    def as_spec(self) -> Spec:
        """User in the form of the configuration."""
        return {
            **self._shared(),
            "credentials": [credential.as_spec() for credential in self.credentials],
        }

    def as_shown(self) -> Spec:
        """User in the API's form."""
        return {
            **self._shared(),
            "algorithm": self.credentials[0].algorithm,
            "methods": self.methods,
        }

    def _shared(self) -> Spec:
        spec: Spec = {
            "name": self.name,
            "is_superuser": self.is_superuser,
            "is_generated": self.is_generated,
        }
        others = {
            "clientid": self.client_id,
            "description": self.description,
            "created_at": self.created_at,
            "password_changed_at": self.password_changed_at,
        }
        return spec | {member: value for member, value in others.items() if value}


def recorded_credentials(saved: Mapping[str, Any], _then: Mapping[str, Any] | None) -> Spec:
    """The credentials of a saved user for the audit log, which shows only that they changed."""
    return {"credentials": MASK if "credentials" in saved else None}


class Users:
    """The broker's own users. Used on the event loop; what hashes waits for the pool."""

    kind: Final = KIND

    def __init__(
        self,
        section: ObjectSection,
        settings: PasswordHashingSettings,
        pool: HashPool,
        clock: Clock,
    ) -> None:
        self._section = section
        self._settings = settings
        self._pool = pool
        self._clock = clock
        self._users: dict[str, User] = {}
        self._creating: set[str] = set()
        self._secret = secrets.token_bytes(32)
        self._shapes: list[tuple[Credential, ...]] | None = None
        self.on_change = Signal[Collection[str]]()
        """Signal with the names of users that were deleted or changed, once that is saved."""

    def start(self) -> None:
        """Read the users of the configuration.

        Raises:
            ConfigError: with a sentence for each that cannot be used.
        """
        problems = []
        for spec in self._section.load():
            try:
                self._users[spec["name"]] = _kept(spec)
            except (Invalid, ValueError) as error:
                problems.append(unusable(self._section, KIND, spec["name"], error))
        if problems:
            raise ConfigError(problems)

    def know(self, secret: bytes) -> None:
        """Use this secret for decoys of users that do not exist, so that they stay the same across restarts."""
        self._secret = secret

    # -- for authenticators --

    def find(self, name: str) -> User | None:
        """The user of that name."""
        return self._users.get(name)

    def decoy(self, name: str) -> User:
        """A stand-in for a user that does not exist: always the same for a name, with credentials of the kinds that
        users have."""
        chance = hmac.digest(self._secret, name.encode(), "sha256")
        if self._shapes is None:
            self._shapes = self._shapes_now()
        like = self._shapes[int.from_bytes(chance[:4]) % len(self._shapes)]
        return User(
            name,
            tuple(
                replace(
                    credential, salt=_salt(chance, credential), stored_key=_key(chance, credential)
                )
                for credential in like
            ),
        )

    def _shapes_now(self) -> list[tuple[Credential, ...]]:
        """Credentials whose kinds decoys have, so that they do not reveal which names exist."""
        if self._users:
            return [user.credentials for user in islice(self._users.values(), _MOST_SHAPES)]
        settings = self._settings
        kinds = _kinds(settings.algorithm, settings.scram)
        return [
            tuple(Credential(kind, b" " * 16, settings.rounds(kind), b" ", b" ") for kind in kinds)
        ]

    # -- verbs --

    def list(self) -> Listed:
        """All users by name, in the API's form."""
        return Listed(sorted(self._users), self.get)

    def get(self, name: str) -> Spec:
        """One user in the API's form.

        Raises:
            NotFound: there is none.
        """
        return self._known(name).as_shown()

    async def create(self, spec: Mapping[str, Any]) -> Spec:
        """Create a user. Without a ``password`` one is generated, and is in the answer.

        Raises:
            Invalid, AlreadyExists, Unavailable: nothing was created.
        """
        members = _checked(spec)
        name = members["name"]
        if name in self._users or name in self._creating:
            raise AlreadyExists(KIND, name)
        if len(self._users) + len(self._creating) >= MAX_USERS:
            raise Invalid("the user cannot be saved", [_too_many("/name")])
        self._creating.add(name)
        try:
            credentials, generated = await self._credentials(members)
        finally:
            self._creating.discard(name)
        now = self._now()
        user = _with_members(
            User(name, credentials, is_generated=bool(generated), created_at=now), members
        )
        self._save(replace(user, password_changed_at=now))
        return {**user.as_shown(), "password_changed_at": now, **generated}

    async def replace(self, name: str, spec: Mapping[str, Any]) -> Spec:
        """Change a user; its password only when ``spec`` has one.

        Raises:
            Invalid, NotFound, ReadOnly, Unavailable: nothing was changed.
        """
        members = _checked({**spec, "name": name})
        self._changeable(name)
        if members.get("generate"):
            raise Invalid(
                "the user cannot be changed",
                [Problem("POST /users/NAME:rotate generates a new password", "/generate")],
            )
        credentials, _ = await self._credentials(members) if "password" in members else ((), {})
        user = _with_members(self._changeable(name), members)
        if credentials:
            user = replace(
                user, credentials=credentials, is_generated=False, password_changed_at=self._now()
            )
        self._save(user)
        return user.as_shown()

    async def rotate(self, name: str) -> Spec:
        """Generate a new password, which is in the answer; the old one no longer works. Safe to repeat.

        Raises:
            NotFound, ReadOnly, Unavailable: nothing was changed.
        """
        self._changeable(name)
        credentials, generated = await self._credentials({})
        user = self._changeable(name)
        user = replace(
            user, credentials=credentials, is_generated=True, password_changed_at=self._now()
        )
        self._save(user)
        return {**user.as_shown(), **generated}

    def delete(self, name: str) -> None:
        """Delete a user; its connections end.

        Raises:
            NotFound, ReadOnly: nothing was changed.
        """
        self._changeable(name)
        self._write({name: None})

    def adopt(self, users: Sequence[User]) -> None:
        """Add users with these credentials, all or none; those with the same names are changed to them.

        Raises:
            Invalid, ReadOnly: nothing was changed.
        """
        for user in users:
            self._refuse_fixed(user.name)
        if len(self._users.keys() | {user.name for user in users}) > MAX_USERS:
            raise Invalid("the users cannot be saved", [_too_many("")])
        now = self._now()
        created = {
            user.name: existing.created_at if (existing := self.find(user.name)) else now
            for user in users
        }
        self._write(
            {
                user.name: replace(user, created_at=created[user.name], password_changed_at=now)
                for user in users
            }
        )

    def take_over(self, changes: Mapping[str, Spec | None]) -> None:
        """Use users as another cell has saved them; None for those that it has deleted."""
        existing = {name for name in changes if name in self._users}
        apply(
            self._users,
            {name: None if spec is None else _kept(spec) for name, spec in changes.items()},
        )
        self._shapes = None
        self.on_change(existing)

    # -- inside --

    async def _credentials(self, members: Mapping[str, Any]) -> tuple[tuple[Credential, ...], Spec]:
        """Credentials, and the generated password, if any, as a member of the answer."""
        settings = self._settings
        password = members.get("password")
        if password is None:
            password = passwords.generated_password()
            generated: Spec = {"password": password}
            work = _generated_credentials(password.encode(), settings.scram)
        else:
            generated = {}
            kinds = _kinds(settings.algorithm, settings.scram)
            work = [(password.encode(), kind, settings.rounds(kind)) for kind in kinds]
        return await self._pool.run(
            lambda: tuple(passwords.hashed(*job) for job in work)
        ), generated

    def _known(self, name: str) -> User:
        user = self._users.get(name)
        if user is None:
            raise NotFound(KIND, name)
        return user

    def _changeable(self, name: str) -> User:
        user = self._known(name)
        self._refuse_fixed(name)
        return user

    def _refuse_fixed(self, name: str) -> None:
        file = self._section.fixed_by(name)
        if file is not None:
            raise ReadOnly(f"user {name!r} is fixed by {file}; change it there")

    def _save(self, user: User) -> None:
        self._write({user.name: user})

    def _write(self, changes: Mapping[str, User | None]) -> None:
        self._section.save(
            {name: None if user is None else user.as_spec() for name, user in changes.items()}
        )
        existing = {name for name in changes if name in self._users}
        apply(self._users, changes)
        self._shapes = None
        self.on_change(existing)

    def _now(self) -> str:
        return rfc3339(self._clock.now_ns())


def _kinds(algorithm: Algorithm, scram: bool) -> list[Algorithm]:
    """The algorithms of a user's credentials, that of its password first."""
    return list(dict.fromkeys([algorithm, *(SCRAM_METHODS.values() if scram else ())]))


def _generated_credentials(password: bytes, scram: bool) -> list[tuple[bytes, Algorithm, int]]:
    kinds = _kinds("sha256", scram)
    return [
        (password, kind, passwords.GENERATED_ITERATIONS if kind != "sha256" else 0)
        for kind in kinds
    ]


def _salt(chance: bytes, credential: Credential) -> bytes:
    return sha256(chance + credential.algorithm.encode()).digest()[
        : len(credential.salt) or passwords.SALT_BYTES
    ]


def _key(chance: bytes, credential: Credential) -> bytes:
    return hmac.digest(chance, credential.algorithm.encode(), credential.digest)


def _with_members(user: User, members: Mapping[str, Any]) -> User:
    return replace(
        user,
        is_superuser=members.get("is_superuser", False),
        client_id=members.get("clientid"),
        description=members.get("description", ""),
    )


def _kept(spec: Mapping[str, Any]) -> User:
    """A user of the configuration. A plain password there is hashed in memory, at little cost."""
    if "password" in spec:
        members = _checked(spec)
        work = _generated_credentials(members["password"].encode(), True)
        return _with_members(
            User(members["name"], tuple(passwords.hashed(*job) for job in work)), members
        )
    members = _checked({key: value for key, value in spec.items() if key != "credentials"})
    kept = spec.get("credentials")
    if not isinstance(kept, list) or not kept:
        raise ValueError("needs a password, or credentials as the broker writes them")
    credentials = tuple(Credential.from_spec(entry) for entry in kept)
    user = User(
        members["name"],
        credentials,
        is_generated=spec.get("is_generated") is True,
        created_at=str(spec.get("created_at", "")),
        password_changed_at=str(spec.get("password_changed_at", "")),
    )
    return _with_members(user, members)


def _checked(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a user that are given, read-only ones left out; raises ``Invalid`` with every problem."""
    checked = parsed(UserSpec, spec, "the user cannot be saved")
    members = checked.model_dump(exclude_none=True, exclude_unset=True)
    return members | (
        {"password": checked.password.reveal()} if checked.password is not None else {}
    )


def _too_many(pointer: str) -> Problem:
    return Problem(f"expected at most {MAX_USERS:,} users. Try: sluice users rm", pointer)
