"""Tokens for programs: each has a role and a scope, or reads the records of some streams and nothing else.

A token is 256 random bits and is shown once. Its SHA-256 is kept, in ``DIR/api.hocon`` or a file that users write.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from math import inf
from typing import Annotated, Final, NotRequired, Self

from pydantic import Field, StringConstraints, field_validator, model_validator
from typing_extensions import TypedDict

from broker.admin.rights import KINDS_TEXT, ROLES, TOPICS_TEXT, Actor, KindScope, Role, TopicScope
from broker.admin.spec_objects import SpecObjects
from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.contributor import Change, Contributor
from broker.core.errors import Invalid, Problem
from broker.core.kinds import counted
from broker.core.objects import ObjectSection, Spec
from broker.core.signals import Signal
from broker.core.times import rfc3339
from broker.core.values import Values

MAX_TOKENS: Final = 10_000
# Prefix of the keys of the last uses, and the seconds in which uses of a token are written once.
_USED: Final = "api/token-used/"
_NOTED_EVERY_S: Final = 60.0
# Lets scanners of source code recognise a token.
_PREFIX: Final = "sluice_"


class TokenSpec(Settings):
    """The role and scope of a token, or the streams that it reads, and its expiry."""

    name: ObjectName
    role: Role | None = Field(
        default=None, description="Role of a program that uses the API; else it needs `streams`."
    )
    kinds: KindScope | None = Field(default=None, description=f"{KINDS_TEXT} Only with a role.")
    topics: TopicScope | None = Field(default=None, description=f"{TOPICS_TEXT} Only with a role.")
    streams: list[Annotated[str, StringConstraints(min_length=1, max_length=200)]] = Field(
        default_factory=list,
        max_length=1000,
        description="Names of the streams whose records it reads, and nothing else. Only without a role.",
    )
    expires_at: str | None = Field(
        default=None, description="When it ends, RFC 3339. Default: never."
    )
    description: str = Field(default="", max_length=1000, description="The program that uses it.")
    created_at: str | None = Field(default=None, description="Read-only; ignored.")
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the token, where you generate it yourself; needed in files. Write-only.",
    )

    @model_validator(mode="after")
    def _check_rights(self) -> Self:
        if (self.role is None) is not bool(self.streams):
            raise ValueError(f"expected a role ({', '.join(ROLES)}) or streams, and not both")
        if self.role is None and (self.kinds is not None or self.topics is not None):
            raise ValueError("expected a role with kinds and topics")
        return self

    @field_validator("expires_at")
    @classmethod
    def _check_expiry(cls, value: str | None) -> str | None:
        if value is not None and _expiry_s(value) is None:
            raise ValueError("expected a time with its zone, as 2026-01-31T12:00:00Z")
        return value


class TokenView(TypedDict):
    """A token without its secret. ``token`` is only in the answer to the call that created it. ``last_used_at`` is
    accurate to a minute, and ``last_used_from`` the address."""

    name: str
    role: NotRequired[Role]
    kinds: NotRequired[list[str]]
    topics: NotRequired[list[str]]
    streams: list[str]
    description: str
    is_expired: bool
    last_used_at: NotRequired[str]
    last_used_from: NotRequired[str]
    created_at: NotRequired[str]
    expires_at: NotRequired[str]
    token: NotRequired[str]


class Tokens(Contributor, SpecObjects[TokenSpec]):
    """The verbs of administrators, and ``find`` for requests."""

    kind = "token"
    read_only = frozenset(("is_expired", "token", "last_used_at", "last_used_from"))

    def __init__(self, section: ObjectSection, clock: Clock, values: Values | None = None) -> None:
        self._clock = clock
        self._values = values or Values()
        self._by_hash: dict[str, TokenSpec] = {}
        self._noted_s: dict[str, float] = {}
        self._used: dict[str, Spec] = {}
        self.on_revoked = Signal[()]()
        """A token was deleted or changed: what it has led to ends."""
        super().__init__(self.kind, section, TokenSpec, self._use)

    def consequences(self, change: Change) -> Iterator[str]:
        """The streams that programs can no longer read, as a token or a stream is deleted."""
        (kind, name), before, after = change.target, change.before, change.after
        if kind == "stream" and before is not None and after is None:
            for token in self._objects:
                if name in token.streams and not self.has_expired(token):
                    yield f"Token {token.name!r} can no longer read it."
        if kind == self.kind and before is not None:
            kept = set() if after is None else set(after.get("streams", ()))
            if lost := [repr(stream) for stream in before.get("streams", ()) if stream not in kept]:
                yield f"Programs that use it can no longer read {counted(len(lost), 'stream')}: {', '.join(lost)}."

    def find(self, shown: str) -> TokenSpec | None:
        """The token that a request shows; it may have expired."""
        return self._by_hash.get(_hash(shown))

    def has_expired(self, token: TokenSpec) -> bool:
        """True if it has expired."""
        return self._clock.now_ns() / 1e9 >= self.ends_s(token)

    def ends_s(self, token: TokenSpec) -> float:
        """When it ends, in Unix time."""
        expiry_s = None if token.expires_at is None else _expiry_s(token.expires_at)
        return inf if expiry_s is None else expiry_s

    def actor_of(self, token: TokenSpec) -> Actor:
        """The actor that shows a token."""
        return Actor(
            f"the token {token.name!r}",
            token.role,
            None if token.kinds is None else frozenset(token.kinds),
            None if token.topics is None else tuple(token.topics),
            token.streams,
            self.ends_s(token),
        )

    def note_use(self, token: TokenSpec, address: str | None) -> None:
        """Note that a request showed a token; kept once a minute."""
        now_s = self._clock.monotonic_s()
        if now_s - self._noted_s.get(token.name, -inf) >= _NOTED_EVERY_S:
            self._noted_s[token.name] = now_s
            self._used[token.name] = used = {
                "last_used_at": rfc3339(self._clock.now_ns()),
                "last_used_from": address,
            }
            self._values.put(f"{_USED}{token.name}", jsontext.encode(used))

    def create(self, spec: Spec) -> Spec:
        """Create a token, which is generated and in the answer unless ``spec`` has its hash."""
        if len(self._by_hash) >= MAX_TOKENS:
            raise Invalid(
                "no more tokens can be kept", [Problem(f"there may be {MAX_TOKENS:,}", "/name")]
            )
        dated = {**spec, "created_at": rfc3339(self._clock.now_ns())}
        if dated.get("sha256") is not None:
            return super().create(dated)
        token = _PREFIX + secrets.token_urlsafe(32)
        return {**super().create({**dated, "sha256": _hash(token)}), "token": token}

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change what a token reads; the token stays the same unless ``spec`` has the hash of another."""
        before = self._objects.get(name)
        kept = {"sha256": spec.get("sha256") or before.sha256, "created_at": before.created_at}
        return super().replace(name, {**spec, **kept})

    def _compiled(self, spec: Spec) -> TokenSpec:
        item = super()._compiled(spec)
        if item.sha256 is None:
            raise Invalid(
                "the token cannot be used",
                [Problem("expected the SHA-256 of the token", "/sha256")],
            )
        return item

    def _shown(self, item: TokenSpec) -> Spec:
        shown = item.model_dump(mode="json", exclude_none=True, exclude={"sha256"})
        used = self._used.get(item.name) or jsontext.decode(
            self._values.get(f"{_USED}{item.name}") or b"{}"
        )
        return shown | {
            "is_expired": self.has_expired(item),
            **{name: text for name, text in used.items() if text},
        }

    def _use(self, tokens: Sequence[TokenSpec]) -> None:
        before = self._by_hash
        names = {token.name for token in tokens}
        for gone in {token.name for token in before.values()} - names:
            self._noted_s.pop(gone, None)
            self._used.pop(gone, None)
            self._values.put(f"{_USED}{gone}", None)
        self._by_hash = {token.sha256: token for token in tokens if token.sha256 is not None}
        if any(self._by_hash.get(token_hash) != token for token_hash, token in before.items()):
            self.on_revoked()


def _hash(token: str) -> str:
    return sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _expiry_s(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
