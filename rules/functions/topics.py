"""Functions on topics and filters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from broker.core.topic import levels_match
from rules.functions.registry import Items, Text, failure, function
from rules.sql.values import UNDEFINED, check_items, joined, text_of, type_name
from rules.sql.work import spend


@function(returns="boolean")
def topic_match(topic: Any, topic_filter: Any) -> bool:
    """Whether a topic matches a filter, by the rules of MQTT; false when either is undefined. Also written ``=~``."""
    if topic is UNDEFINED or topic_filter is UNDEFINED:
        return False
    if type(topic) is not str or type(topic_filter) is not str:
        raise failure("=~", "a topic on the left and a topic filter on the right are needed, both strings")
    return _matches(topic_filter, topic)


@function(returns="array")
def topic_split(topic: Text) -> list[str]:
    """The levels of a topic or filter, empty ones kept."""
    check_items(topic.count("/"))
    return topic.split("/")


@function(returns="string", arity=(1, 2), usage="(levels) or (parent, word)")
def topic_join(*arguments: Any) -> Any:
    """The levels of an array with / between them, or a parent and a word; a parent's final / is not doubled."""
    if len(arguments) == 1:
        levels = arguments[0]
        if type(levels) is not list:
            raise failure("topic_join", f"one argument must be an array of levels, not {type_name(levels)}")
        spend(len(levels), 500)
        return joined(*[part for level in levels for part in ("/", text_of(level))][1:])
    parent, word = map(text_of, arguments)
    if not parent:
        raise failure("topic_join", "the parent is empty")
    return joined(parent, "" if parent[-1:] in ("/", b"/") else "/", word)


@function(returns="boolean")
def contains_topic(filters: Items, topic: Text, qos: Any = UNDEFINED) -> bool:
    """Whether a list of ``{topic, qos}`` holds that very topic, and that QoS where given."""
    return _any(filters, qos, lambda text: text == topic)


@function(returns="boolean")
def contains_topic_match(filters: Items, topic: Text, qos: Any = UNDEFINED) -> bool:
    """Whether a filter in a list of ``{topic, qos}`` matches the topic, with that QoS where given."""
    return _any(filters, qos, lambda text: _matches(text, topic))


def _matches(topic_filter: str, topic: str) -> bool:
    """``levels_match`` of a text that may be no filter: one with ``#`` before its last level matches nothing."""
    levels = tuple(topic_filter.split("/"))
    return "#" not in levels[:-1] and levels_match(levels, topic)


def _any(filters: list[Any], qos: Any, fits: Callable[[str], bool]) -> bool:
    for entry in filters:
        if (
            type(entry) is dict
            and type(entry.get("topic")) is str
            and fits(entry["topic"])
            and (qos is UNDEFINED or entry.get("qos") == qos)
        ):
            return True
    return False
