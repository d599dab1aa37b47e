"""Topics that clients name, rewritten before anything else looks at them.

The first rewrite whose ``source_topic`` matches is taken; where its ``re`` is not found in the topic, the topic stays
as it is and no other rewrite is asked. Topics of PUBLISH, of wills and of ``$delayed/...`` are rewritten, and the
filters of SUBSCRIBE and UNSUBSCRIBE, those behind ``$share/NAME/`` too. What rules and the API publish is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import re2
from pydantic import Field, field_validator, model_validator

from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.placeholders import PLACEHOLDER_OR_GROUP
from broker.core.topic import TopicFilter, check_topic_name, split_share
from broker.core.topic_index import TopicIndex

MAX_PATTERN_CHARACTERS: Final = 1000
# Memory that a compiled expression may take.
MAX_PATTERN_BYTES: Final = 1024 * 1024
_UNSAFE: Final = frozenset("+#/\0")


class UnsafeName(Exception):
    """A client identifier or user name that may not become part of a topic; says which and why."""


def name_of(client: Client, which: str) -> str:
    """The value of ``${clientid}``, ``${username}`` or ``${client_attrs.NAME}``.

    Raises:
        UnsafeName: the client has none, or one with ``+``, ``#`` or ``/``: it would reach other clients' topics.
    """
    if which == "clientid":
        value: str | None = client.client_id
    elif which == "username":
        value = client.username
    else:
        value = client.attributes.get(which.removeprefix("client_attrs."))
    if not value:
        raise UnsafeName(f"the client has no {which}")
    if not _UNSAFE.isdisjoint(value):
        raise UnsafeName(f"the client's {which} has '+', '#' or '/' in it")
    return value


def name_problems(text: str) -> str | None:
    """Problem with the ``${...}`` of a template, None if there is none."""
    for match in PLACEHOLDER_OR_GROUP.finditer(text):
        name = match[2]
        if (
            name is not None
            and name not in ("clientid", "username")
            and not name.startswith("client_attrs.")
        ):
            return f"${{{name}}} is not known; there are ${{clientid}}, ${{username}} and ${{client_attrs.NAME}}"
    return None


class RewriteSpec(Settings):
    """One rewrite; member names are those EMQX users know."""

    name: ObjectName
    action: Literal["publish", "subscribe", "all"] = Field(
        default="all",
        description="Topics it applies to: those of messages, filters of subscriptions, or both.",
    )
    source_topic: str = Field(description="A filter that the topic must match.")
    re: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_PATTERN_CHARACTERS,
        description="A regular expression (RE2) that must be found in the topic. Default: none is asked for.",
    )
    dest_topic: str = Field(
        min_length=1,
        description="The new topic: `$1` and so on are groups of `re`; `${clientid}`, `${username}` and "
        "`${client_attrs.NAME}` are the client's.",
    )
    enable: bool = True
    description: str = ""

    @field_validator("source_topic")
    @classmethod
    def _check_source(cls, value: str) -> str:
        try:
            parsed = TopicFilter.parse(value)
        except PeerError as error:
            raise ValueError(str(error)) from None
        if parsed.share_group is not None:
            raise ValueError("expected a filter without $share/NAME/; leave that out")
        return value

    @model_validator(mode="after")
    def _check_template(self) -> RewriteSpec:
        if problem := name_problems(self.dest_topic):
            raise ValueError(f"dest_topic: {problem}")
        groups = _compiled(self.re).groups if self.re is not None else 0
        for match in PLACEHOLDER_OR_GROUP.finditer(self.dest_topic):
            if match[1] is not None and int(match[1][:6]) > groups:
                raise ValueError(f"dest_topic has {match[0]}, and re has {groups} groups")
        fixed = PLACEHOLDER_OR_GROUP.sub("x", self.dest_topic)
        if self.action != "subscribe" and not {"+", "#"}.isdisjoint(fixed):
            raise ValueError("dest_topic is a topic to publish to, and must not contain '+' or '#'")
        return self


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        reason = (
            error.args[0].decode(errors="replace")
            if isinstance(error.args[0], bytes)
            else str(error)
        )
        raise ValueError(f"re {pattern!r} is not a regular expression (RE2): {reason}") from None


# Part of a destination: text, or the number of a group; ``${name}`` is the text ``$name``.
Part = str | int


@dataclass(frozen=True)
class Rewrite:
    """An active rewrite."""

    name: str
    levels: tuple[str, ...]
    expression: Any
    destination: str

    @classmethod
    def of(cls, spec: RewriteSpec) -> Rewrite:
        """Compile a specification, which is known to be valid."""
        expression = _compiled(spec.re) if spec.re is not None else None
        return cls(
            spec.name, TopicFilter.parse(spec.source_topic).levels, expression, spec.dest_topic
        )

    def apply(self, topic: str, client: Client) -> str:
        """The topic it makes of one that its filter matches.

        Raises:
            UnsafeName: what it is to put in of the client cannot be part of a topic.
        """
        source = None
        if self.expression is not None and (source := self.expression.search(topic)) is None:
            return topic

        def fill(match: re.Match[str]) -> str:
            if match[2] is not None:
                return name_of(client, match[2])
            number = int(match[1])
            if source is None:
                return topic
            return source.group(number) or ""

        return PLACEHOLDER_OR_GROUP.sub(fill, self.destination)


class Rewrites:
    """All active rewrites, in their order. ``changed`` is called when they are others."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._publish: TopicIndex[Rewrite] = TopicIndex()
        self._subscribe: TopicIndex[Rewrite] = TopicIndex()
        self._is_empty = True

    def use(self, specs: Sequence[RewriteSpec]) -> None:
        """Use these from the next packet on; those that are not enabled are left out."""
        enabled = [spec for spec in specs if spec.enable]
        self._is_empty = not enabled
        self._publish = _index(spec for spec in enabled if spec.action != "subscribe")
        self._subscribe = _index(spec for spec in enabled if spec.action != "publish")
        self._changed()

    def of_topic(self, topic: str) -> Rewrite | None:
        """The rewrite of a topic that a client publishes to."""
        if self._is_empty:
            return None
        rewrites = self._publish.matching(topic)
        return rewrites[0] if rewrites else None

    def of_filter(self, topic_filter: str) -> Rewrite | None:
        """The rewrite of a filter, without ``$share/NAME/`` or ``$queue/``."""
        if self._is_empty:
            return None
        rewrites = self._subscribe.matching(topic_filter)
        return rewrites[0] if rewrites else None

    def filter_for(self, text: str, client: Client) -> str:
        """The filter that a client's is rewritten to; ``$share/NAME/`` stays in front of it.

        Raises:
            UnsafeName: the client's names cannot be part of it.
        """
        if self._is_empty:
            return text
        prefix, body = split_share(text)
        rewrite = self.of_filter(body)
        return text if rewrite is None else prefix + rewrite.apply(body, client)

    def try_on(self, action: str, topic: str, client: Client) -> tuple[str, str | None]:
        """New topic (``publish``) or filter (``subscribe``), and the name of the rewrite.

        Raises:
            UnsafeName: the client's names cannot be part of it.
            PeerError: the topic, or what it becomes, is none.
        """
        prefix, body = ("", topic) if action == "publish" else split_share(topic)
        if action == "publish":
            check_topic_name(topic)
        else:
            TopicFilter.parse(topic)
        rewrite = self.of_topic(body) if action == "publish" else self.of_filter(body)
        if rewrite is None:
            return topic, None
        rewritten = prefix + rewrite.apply(body, client)
        if action == "publish":
            check_topic_name(rewritten)
        else:
            TopicFilter.parse(rewritten)
        return rewritten, rewrite.name


def _index(specs: Iterable[RewriteSpec]) -> TopicIndex[Rewrite]:
    rewrites = [Rewrite.of(spec) for spec in specs]
    return TopicIndex((rewrite, [rewrite.levels]) for rewrite in rewrites)
