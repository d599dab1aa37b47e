"""Bans: clients that are refused, whatever their credentials, by client identifier, user name, address or pattern.

A ban holds until it ends by the wall clock, or forever. Bans are in the store, a key each, so that they survive a
restart and cost nothing to add. Their number is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from ipaddress import ip_address
from typing import Any, Final, Literal, cast

import msgspec
from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import TypedDict

from broker.auth.attempt import ConnectAttempt
from broker.auth.matching import compiled_pattern, in_networks
from broker.config.model import Settings
from broker.config.spec_problems import parsed
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.errors import Invalid, NotFound, Problem, Unavailable
from broker.core.objects import saving
from broker.core.signals import Signal
from broker.core.times import rfc3339
from broker.storage.collection import Codec, ResidentCollection
from broker.storage.writer import Writer

MAX_BANS: Final = 100_000
# Maximum number of bans by pattern and network, which are tested one by one.
MAX_PATTERNS: Final = 1000
_NS: Final = 1_000_000_000
_MOST_BYTES: Final = 65_535
# Creator of the bans that the broker makes itself, of clients that come and go.
BY_BROKER: Final = "flapping detector"

Kind = Literal["clientid", "username", "peerhost", "clientid_re", "username_re", "peerhost_net"]
_EXACT: Final[tuple[Kind, ...]] = ("clientid", "username", "peerhost")


class Ban(msgspec.Struct, frozen=True):
    """One ban. Times are nanoseconds of the wall clock; ``until_ns`` 0 is forever."""

    kind: Kind
    who: str
    by: str = ""
    reason: str = ""
    at_ns: int = 0
    until_ns: int = 0

    @property
    def place(self) -> tuple[Kind, str]:
        """Key of the ban; there is one ban for each."""
        return self.kind, self.who

    def as_shown(self) -> BanView:
        """Ban in the API's form."""
        until = rfc3339(self.until_ns) if self.until_ns else "infinity"
        return {
            "name": f"{self.kind}/{self.who}",
            "as": self.kind,
            "who": self.who,
            "by": self.by,
            "reason": self.reason,
            "created_at": rfc3339(self.at_ns),
            "until": until,
        }


# An active ban. `name` is `as` and `who` with a slash between them.
BanView = TypedDict(
    "BanView",
    {
        "name": str,
        "as": Kind,
        "who": str,
        "by": str,
        "reason": str,
        "created_at": str,
        "until": str,
    },
)


class BanSpec(Settings):
    """A ban to create: which clients it refuses, and until when."""

    kind: Kind = Field(
        alias="as",
        description="What is compared; `_re` is a regular expression (RE2), `_net` a network.",
    )
    who: str = Field(
        min_length=1, description="The identifier, name, address, expression or network."
    )
    reason: str = Field(default="", max_length=1000, description="Reason, for other users.")
    by: str = Field(
        default="", max_length=1000, description="The person or program that created it."
    )
    until: str | None = Field(
        default="infinity", description="When it ends, RFC 3339, or `infinity`."
    )
    name: str | None = Field(default=None, description="Read-only; ignored.")
    created_at: str | None = Field(default=None, description="Read-only; ignored.")

    @field_validator("who")
    @classmethod
    def _check_who(cls, who: str, info: ValidationInfo) -> str:
        kind = info.data.get("kind")
        if len(who.encode(errors="replace")) > _MOST_BYTES:
            raise ValueError(f"is longer than {_MOST_BYTES} bytes")
        if kind == "peerhost":
            address = _address(who)
            if address is None:
                raise ValueError(
                    f"{who!r} is not an address; write it as '10.0.0.1' or '2001:db8::1'"
                )
            return address
        if kind is not None and kind not in _EXACT:
            _matcher(kind, who)
        return who

    @field_validator("until")
    @classmethod
    def _check_until(cls, until: str | None) -> str | None:
        _until_ns(until)
        return until

    @property
    def until_ns(self) -> int | None:
        """When it ends by the wall clock, None for never."""
        return _until_ns(self.until)


def _until_ns(until: str | None) -> int | None:
    if until in (None, "infinity", "forever"):
        return None
    try:
        moment = datetime.fromisoformat(str(until))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise ValueError("expected a time as 2026-01-31T12:00:00Z, or 'infinity'")
    return round(moment.timestamp()) * _NS


@dataclass(frozen=True, slots=True)
class _Pattern:
    ban: Ban
    fact: str
    matches: Callable[[str], Any]


class Bans:
    """The bans of a node. Used on the event loop. ``on_ban`` is called with each new one, ``on_lift`` with the name of
    each that was lifted or has ended."""

    def __init__(self, writer: Writer, clock: Clock) -> None:
        self._clock = clock
        self._bans = ResidentCollection(writer, b"bans/", _PLACES, _BANS, self._changed)
        self._patterns: dict[tuple[Kind, str], _Pattern] = {}
        self.load = self._bans.load
        self.on_ban = Signal[Ban]()
        self.on_lift = Signal[str]()

    def __len__(self) -> int:
        return len(self._bans)

    def of(self, client: ConnectAttempt | Client) -> Ban | None:
        """The ban that a client is under now, if any."""
        if not len(self._bans):
            return None
        return self._on(_facts(client))

    def _on(self, facts: Mapping[str, str]) -> Ban | None:
        now_ns = self._clock.now_ns()
        for kind in _EXACT:
            ban = self._bans.get((kind, facts[kind])) if kind in facts else None
            if ban is not None and not _is_over(ban, now_ns):
                return ban
        for pattern in self._patterns.values():
            text = facts.get(pattern.fact)
            if text is not None and not _is_over(pattern.ban, now_ns) and pattern.matches(text):
                return pattern.ban
        return None

    def trial(self, spec: Mapping[str, Any]) -> Callable[[Client], bool]:
        """A test of whom a ban would refuse. Raises ``Invalid``."""
        ban = self._read(spec)
        fact = ban.kind.partition("_")[0]
        matches = ban.who.__eq__ if ban.kind in _EXACT else _matcher(ban.kind, ban.who)
        return lambda client: fact in (facts := _facts(client)) and bool(matches(facts[fact]))

    # -- verbs --

    def list(self) -> list[BanView]:
        """All active bans, newest first."""
        now_ns = self._clock.now_ns()
        active = [ban for ban in self._bans.values() if not _is_over(ban, now_ns)]
        return [ban.as_shown() for ban in sorted(active, key=lambda ban: -ban.at_ns)]

    def create(self, spec: Mapping[str, Any]) -> BanView:
        """Add a ban, or replace the one of the same clients. Their connections are closed.

        Raises:
            Invalid: with every problem.
            Unavailable: there are as many as there may be.
        """
        ban = self._read(spec)
        self.add(ban)
        return ban.as_shown()

    def add(self, ban: Ban) -> None:
        """See ``create``."""
        is_new = self._bans.get(ban.place) is None
        if is_new and len(self) >= MAX_BANS:
            raise Unavailable(f"expected at most {MAX_BANS:,} bans. Try: sluice bans rm")
        if is_new and ban.kind not in _EXACT and len(self._patterns) >= MAX_PATTERNS:
            raise Unavailable(
                f"expected at most {MAX_PATTERNS:,} bans by pattern. Try: sluice bans rm"
            )
        saving()
        self._bans.put(ban.place, ban)
        self.on_ban(ban)

    def delete(self, kind: str, who: str) -> None:
        """Lift a ban; raises ``NotFound``."""
        if kind == "peerhost":
            who = _address(who) or who
        place = cast(Kind, kind), who
        if self._bans.get(place) is None:
            raise NotFound(f"ban of the {kind}", who)
        saving()
        self._bans.put(place, None)
        self.on_lift("/".join(place))

    def forget_over(self) -> None:
        """Forget bans that have ended."""
        now_ns = self._clock.now_ns()
        for ban in [ban for ban in self._bans.values() if _is_over(ban, now_ns)]:
            self.delete(ban.kind, ban.who)

    # -- inside --

    def _changed(self, place: tuple[Kind, str], ban: Ban | None) -> None:
        kind, who = place
        if kind in _EXACT:
            return
        if ban is None:
            self._patterns.pop(place, None)
        else:
            self._patterns[place] = _Pattern(ban, kind.partition("_")[0], _matcher(kind, who))

    def _read(self, spec: Mapping[str, Any]) -> Ban:
        checked = parsed(BanSpec, spec, "the ban cannot be saved")
        until_ns = checked.until_ns
        if until_ns is not None and until_ns <= self._clock.now_ns():
            raise Invalid(
                "the ban cannot be saved",
                [Problem("until: expected a time in the future", "/until")],
            )
        return Ban(
            checked.kind,
            checked.who,
            checked.by,
            checked.reason,
            self._clock.now_ns(),
            until_ns or 0,
        )


def _place_of(key: bytes) -> tuple[Kind, str]:
    kind, _, who = key.decode().partition("/")
    return cast(Kind, kind), who


_PLACES: Final = Codec[tuple[Kind, str]](lambda place: "/".join(place).encode(), _place_of)
_BANS: Final = Codec[Ban](msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(Ban).decode)


def _facts(client: ConnectAttempt | Client) -> dict[str, str]:
    """Facts of a client that bans compare, without absent ones."""
    facts = {
        "clientid": client.client_id,
        "username": client.username,
        "peerhost": client.peer_host,
    }
    return {name: text for name, text in facts.items() if text is not None}


def _is_over(ban: Ban, now_ns: int) -> bool:
    return 0 < ban.until_ns <= now_ns


def _address(text: str) -> str | None:
    """An address as connections have it, None where it is none."""
    try:
        return str(ip_address(text))
    except ValueError:
        return None


def _matcher(kind: str, who: str) -> Callable[[str], Any]:
    """Raises ``ValueError`` with a sentence."""
    if kind == "peerhost_net":
        return in_networks([who])
    matches: Callable[[str], Any] = compiled_pattern(who).fullmatch
    return matches
