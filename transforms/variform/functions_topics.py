"""Topic functions."""

from __future__ import annotations

from typing import Any

from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import bounded, joined, text, to_text


@function("topic_join", 1, 2)
def topic_join(first: Any, *word: Any) -> str:
    """The levels of a list with ``/`` between them, or a parent and a word; a parent's final ``/`` is not doubled."""
    if not word:
        if first.__class__ is not list:
            raise badarg("topic_join", "one argument must be a list of levels")
        return joined("topic_join", "/", first)
    parent = to_text(first)
    if not parent:
        raise badarg("topic_join", "the parent is empty")
    return joined("topic_join", "", [parent, "" if parent.endswith("/") else "/", word[0]])


@function("topic_split", 1)
def topic_split(topic: Any) -> list[str]:
    """The levels of a topic, empty ones kept."""
    name = to_text(topic)
    bounded("topic_split", name.count("/"))
    return name.split("/")


@function("topic_match", 2)
def topic_match(topic: Any, topic_filter: Any) -> bool:
    """Whether the topic matches the filter, MQTT 5.0 section 4.7; ``a/#`` matches ``a`` too."""
    name, levels = text("topic_match", topic), text("topic_match", topic_filter).split("/")
    if name.startswith("$") and levels[0] in ("+", "#"):
        return False
    words = name.split("/")
    for position, level in enumerate(levels):
        if level == "#":
            return position == len(levels) - 1  # elsewhere it is no filter, which matches nothing
        if position >= len(words) or level not in ("+", words[position]):
            return False
    return len(levels) == len(words)
