"""Topic functions."""

from __future__ import annotations

from typing import Any

from broker.core.topic import levels_match
from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import MISSING, bounded, joined, sequence, to_text


@function("topic_join")
def topic_join(first: Any, word: Any = MISSING) -> str:
    """The levels of a list with ``/`` between them, or a parent and a word; a parent's final ``/`` is not doubled."""
    if word is MISSING:
        return joined("topic_join", "/", sequence("topic_join", first))
    parent = to_text(first)
    if not parent:
        raise badarg("topic_join", "the parent is empty")
    return joined("topic_join", "", [parent, "" if parent.endswith("/") else "/", word])


@function("topic_split")
def topic_split(topic: Any) -> list[str]:
    """The levels of a topic, empty ones kept."""
    name = to_text(topic)
    bounded("topic_split", name.count("/"))
    return name.split("/")


@function("topic_match")
def topic_match(topic: str, topic_filter: str) -> bool:
    """Whether the topic matches the filter, MQTT 5.0 section 4.7; ``a/#`` matches ``a`` too."""
    levels = tuple(topic_filter.split("/"))
    return "#" not in levels[:-1] and levels_match(levels, topic)  # with a # elsewhere it is no filter
