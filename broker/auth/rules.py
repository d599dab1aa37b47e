"""Access rules: rights of clients to publish and subscribe.

A rule says ``allow`` or ``deny``, whom it is about, which actions, and which topics. The first rule that is about a
request decides it. What a rule needs to know of a client and is not certain (``broker.auth.subject``) never lets
anything through: a rule that allows does not apply then, and one that denies does.

A rule that allows a subscription must cover all of its filter. One that denies refuses it when it covers all of it;
where it meets only a part, the subscription is granted and messages of that part are withheld on delivery or, where
that is set, the subscription is refused. So no client gets by a wildcard what is denied to it by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator

from broker.auth.matching import (
    compiled_pattern,
    filled,
    in_networks,
    placeholders,
    without_placeholders,
)
from broker.config.model import Settings
from broker.core.errors import PeerError
from broker.core.topic import TopicFilter, covers, levels_match, overlaps

Permission = Literal["allow", "deny"]
Action = Literal["publish", "subscribe"]

_EQ: Final = "eq "


def publish_kind(qos: int, retain: bool) -> int:
    """The number of a way to publish: the low bits of the PUBLISH packet's first byte, without DUP."""
    return qos << 1 | retain


def subscribe_kind(qos: int) -> int:
    """The number of a way to subscribe."""
    return 8 + qos


# User names, or client identifiers, of one rule.
MOST_NAMES: Final = 10_000


class Who(Settings):
    """Clients that a rule applies to: all conditions must hold. A list holds when one of it does."""

    username: Annotated[list[str], Field(max_length=MOST_NAMES)] | None = Field(
        default=None, description="User names."
    )
    clientid: Annotated[list[str], Field(max_length=MOST_NAMES)] | None = Field(
        default=None, description="Client identifiers."
    )
    username_re: str | None = Field(
        default=None, description="A regular expression (RE2) for the whole user name."
    )
    clientid_re: str | None = Field(default=None, description="The same for the client identifier.")
    ipaddr: list[str] | None = Field(
        default=None, description="Addresses, and networks as `10.0.0.0/8`."
    )
    listener: list[str] | None = Field(default=None, description="Listeners, as `tcp:default`.")
    client_attrs: dict[str, str] | None = Field(
        default=None, description="Client attributes and their values."
    )

    @field_validator("username", "clientid", "ipaddr", "listener", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("username_re", "clientid_re")
    @classmethod
    def _check_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            compiled_pattern(value)
        return value

    @field_validator("ipaddr")
    @classmethod
    def _check_networks(cls, value: list[str] | None) -> list[str] | None:
        in_networks(value or ())
        return value


class RuleSettings(Settings):
    """One rule."""

    permission: Permission = Field(description="What it says: `allow`, `deny`.")
    who: Literal["all"] | Who = Field(
        default="all", description="`all`, or what must hold of the client."
    )
    action: Literal["publish", "subscribe", "all"] = Field(
        default="all", description="What the client does."
    )
    qos: list[Literal[0, 1, 2]] = Field(
        default=[0, 1, 2], min_length=1, description="At these qualities of service only."
    )
    retain: bool | Literal["all"] = Field(
        default="all", description="Publishing retained messages, others, or all."
    )
    topics: list[str] = Field(
        min_length=1, max_length=1000, description="Topic filters, with `${username}`, `${clientid}`, "
        "`${client_attrs.NAME}` and similar; `eq a/+` is the filter `a/+` itself and not what it matches."
    )  # fmt: skip

    @field_validator("qos", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, int) else value

    @field_validator("topics", mode="before")
    @classmethod
    def _topics_as_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, value: list[str]) -> list[str]:
        for text in value:
            _Topic.parse(text)
        return value


class NamedRuleSettings(RuleSettings):
    """A rule that is an object of its own."""

    name: str = Field(min_length=1, description="Its name.")
    description: str = Field(default="", max_length=1000, description="What it is for.")
    enable: bool = Field(default=True, description="Whether it applies.")


@dataclass(frozen=True, slots=True)
class _Topic:
    """A topic filter with placeholders. ``is_literal``: the filter itself is meant."""

    levels: tuple[str, ...]
    needs: tuple[str, ...]
    is_literal: bool

    @classmethod
    def parse(cls, text: str) -> _Topic:
        """Raises ``ValueError``."""
        is_literal = text.startswith(_EQ)
        body = text.removeprefix(_EQ)
        needs = tuple(placeholders(body))
        try:
            parsed = TopicFilter.parse(without_placeholders(body, "x"))
        except PeerError as error:
            raise ValueError(str(error)) from None
        if parsed.share_group is not None:
            raise ValueError(f"{text!r}: write the filter without $share/GROUP/; it holds for both")
        return cls(tuple(body.split("/")), needs, is_literal)

    def bound(self, facts: Mapping[str, str], *, is_deny: bool) -> Bound | None:
        """The filter for one client. What is not known of it stands for anything when the rule denies."""
        levels = []
        safe = {
            name: facts[name]
            for name in self.needs
            if name in facts and not set("/+#\0") & set(facts[name])
        }
        for level in self.levels:
            bound = filled(level, safe) if self.needs else level
            if bound is None and not is_deny:
                return None
            levels.append("+" if bound is None else bound)
        return Bound(tuple(levels), self.is_literal)


@dataclass(frozen=True, slots=True)
class Bound:
    """A topic filter of a rule for one client."""

    levels: tuple[str, ...]
    is_literal: bool

    @classmethod
    def parse(cls, text: str) -> Bound:
        """A filter as ``text`` gives it."""
        return cls(tuple(text.removeprefix(_EQ).split("/")), text.startswith(_EQ))

    @property
    def text(self) -> str:
        """Text of the filter in a rule."""
        return (_EQ if self.is_literal else "") + "/".join(self.levels)

    def matches_topic(self, topic: str) -> bool:
        """True if the filter covers a message on this topic."""
        return (
            "/".join(self.levels) == topic if self.is_literal else levels_match(self.levels, topic)
        )

    def covers(self, asked: tuple[str, ...]) -> bool:
        """True if it covers all of a subscription's filter."""
        return self.levels == asked if self.is_literal else covers(self.levels, asked)

    def meets(self, asked: tuple[str, ...]) -> bool:
        """True if it covers some of a subscription's filter."""
        return self.levels == asked if self.is_literal else overlaps(self.levels, asked)


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A rule for one client. ``kinds`` is a set of bits, of ``publish_kind`` and ``subscribe_kind``."""

    name: str
    source: str
    is_allow: bool
    kinds: int
    filters: tuple[Bound, ...]

    @classmethod
    def restored(
        cls, name: str, source: str, is_allow: bool, kinds: int, texts: Sequence[str]
    ) -> BoundRule:
        """A rule of the members that ``stored`` gave."""
        return cls(name, source, is_allow, kinds, tuple(Bound.parse(text) for text in texts))

    def stored(self) -> tuple[str, str, bool, int, list[str]]:
        """Its members, filters as text."""
        return (
            self.name,
            self.source,
            self.is_allow,
            self.kinds,
            [bound.text for bound in self.filters],
        )

    def bind(self, facts: Mapping[str, str]) -> BoundRule:
        """The rule itself, as ``Rule.bind``: it is bound already."""
        return self

    def is_about_publish(self, kind: int, topic: str) -> bool:
        """True if it decides over a publish."""
        return bool(self.kinds >> kind & 1) and any(
            topic_filter.matches_topic(topic) for topic_filter in self.filters
        )

    def is_about_delivery(self, kind: int, topic: str) -> bool:
        """True if it decides over a message for a subscription, made in this way, that matches it. A filter that is
        meant literally says nothing about messages."""
        if not self.kinds >> kind & 1:
            return False
        return any(
            not topic_filter.is_literal and topic_filter.matches_topic(topic)
            for topic_filter in self.filters
        )

    def is_about_subscribe(self, kind: int, asked: tuple[str, ...]) -> bool:
        """True if it decides over all of a subscription."""
        return bool(self.kinds >> kind & 1) and any(
            topic_filter.covers(asked) for topic_filter in self.filters
        )

    def denied_part(self, kind: int, asked: tuple[str, ...]) -> tuple[Bound, ...]:
        """The filters of a rule that denies some of a subscription."""
        if self.is_allow or not self.kinds >> kind & 1:
            return ()
        return tuple(topic_filter for topic_filter in self.filters if topic_filter.meets(asked))


class Rule:
    """A compiled rule; ``bind`` gives it for one client, None where it is about others."""

    __slots__ = (
        "_checks",
        "client_ids",
        "is_allow",
        "kinds",
        "name",
        "source",
        "topics",
        "usernames",
    )

    def __init__(self, settings: RuleSettings, name: str, source: str) -> None:
        self.name = name
        self.source = source
        self.is_allow = settings.permission == "allow"
        self.kinds = _kinds(settings)
        self.topics = tuple(_Topic.parse(text) for text in settings.topics)
        self._checks: list[_Check] = []
        who = settings.who
        self.usernames = self.client_ids = None
        if isinstance(who, Who):
            self.usernames = who.username
            self.client_ids = who.clientid
            self._checks = _checks(who)

    def bind(self, facts: Mapping[str, str]) -> BoundRule | None:
        """The rule for a client."""
        for check in self._checks:
            value = facts.get(check.fact)
            if value is None:
                if self.is_allow:
                    return None
            elif not check.holds(value):
                return None
        is_deny = not self.is_allow
        filters = [topic.bound(facts, is_deny=is_deny) for topic in self.topics]
        kept = tuple(bound for bound in filters if bound is not None)
        return BoundRule(self.name, self.source, self.is_allow, self.kinds, kept) if kept else None


@dataclass(frozen=True, slots=True)
class _Check:
    fact: str
    holds: Any


def _checks(who: Who) -> list[_Check]:
    checks = []
    for fact, wanted in (
        ("username", who.username),
        ("clientid", who.clientid),
        ("listener", who.listener),
    ):
        if wanted is not None:
            checks.append(_Check(fact, frozenset(wanted).__contains__))
    for fact, pattern in (("username", who.username_re), ("clientid", who.clientid_re)):
        if pattern is not None:
            checks.append(_Check(fact, compiled_pattern(pattern).fullmatch))
    if who.ipaddr is not None:
        checks.append(_Check("peerhost", lru_cache(maxsize=1024)(in_networks(who.ipaddr))))
    for name, value in (who.client_attrs or {}).items():
        checks.append(_Check(f"client_attrs.{name}", value.__eq__))
    return checks


def _kinds(settings: RuleSettings) -> int:
    kinds = 0
    for qos in settings.qos:
        if settings.action != "publish":
            kinds |= 1 << subscribe_kind(qos)
        if settings.action != "subscribe":
            for retain in (False, True):
                if settings.retain in ("all", retain):
                    kinds |= 1 << publish_kind(qos, retain)
    return kinds
