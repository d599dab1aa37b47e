"""Tokens for programs that read streams: each may read the records of some streams, and nothing else.

A token is 256 random bits and is shown once. Its SHA-256 is kept, in ``DIR/api.hocon`` or a file that users write.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from math import inf
from typing import Annotated, Final, NotRequired

from pydantic import Field, StringConstraints, field_validator
from typing_extensions import TypedDict

from broker.admin.spec_objects import SpecObjects
from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.core.clock import Clock
from broker.core.contributor import Change, Contributor
from broker.core.errors import Invalid, Problem
from broker.core.kinds import counted
from broker.core.objects import ObjectSection, Spec
from broker.core.signals import Signal
from broker.core.times import rfc3339

MAX_TOKENS: Final = 10_000
# Lets scanners of source code recognise a token.
_PREFIX: Final = "sluice_"


class TokenSpec(Settings):
    """Streams that a token reads, and its expiry."""

    name: ObjectName
    streams: list[Annotated[str, StringConstraints(min_length=1, max_length=200)]] = Field(
        min_length=1, max_length=1000, description="Names of the streams whose records it reads."
    )
    expires_at: str | None = Field(default=None, description="When it ends, RFC 3339. Default: never.")
    description: str = Field(default="", max_length=1000, description="The program that uses it.")
    created_at: str | None = Field(default=None, description="Read-only; ignored.")
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the token, where you generate it yourself; needed in files. Write-only.",
    )

    @field_validator("expires_at")
    @classmethod
    def _check_expiry(cls, value: str | None) -> str | None:
        if value is not None and _expiry_s(value) is None:
            raise ValueError("expected a time with its zone, as 2026-01-31T12:00:00Z")
        return value


class TokenView(TypedDict):
    """A token without its secret. ``token`` is only in the answer to the call that created it."""

    name: str
    streams: list[str]
    description: str
    is_expired: bool
    created_at: NotRequired[str]
    expires_at: NotRequired[str]
    token: NotRequired[str]


class Tokens(Contributor, SpecObjects[TokenSpec]):
    """The verbs of administrators, and ``find`` for requests."""

    kind = "token"
    read_only = frozenset(("is_expired", "token"))

    def __init__(self, section: ObjectSection, clock: Clock) -> None:
        self._clock, self._by_hash = clock, dict[str, TokenSpec]()
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
            kept = set() if after is None else set(after["streams"])
            if lost := [repr(stream) for stream in before["streams"] if stream not in kept]:
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

    def create(self, spec: Spec) -> Spec:
        """Create a token, which is generated and in the answer unless ``spec`` has its hash."""
        if len(self._by_hash) >= MAX_TOKENS:
            raise Invalid("no more tokens can be kept", [Problem(f"there may be {MAX_TOKENS:,}", "/name")])
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
            raise Invalid("the token cannot be used", [Problem("expected the SHA-256 of the token", "/sha256")])
        return item

    def _shown(self, item: TokenSpec) -> Spec:
        shown = item.model_dump(mode="json", exclude_none=True, exclude={"sha256"})
        return shown | {"is_expired": self.has_expired(item)}

    def _use(self, tokens: Sequence[TokenSpec]) -> None:
        before = self._by_hash
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
