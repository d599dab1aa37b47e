"""Which of many filters match a topic, without looking at each: a tree by level."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Level(Generic[Item]):
    """What stands after the levels that lead here."""

    __slots__ = ("by_name", "items", "open_items")

    def __init__(self) -> None:
        self.by_name: dict[str, _Level[Item]] = {}
        self.items: list[tuple[int, Item]] = []
        """Of filters that end here."""
        self.open_items: list[tuple[int, Item]] = []
        """Of filters that end with ``#`` after this level."""


class TopicIndex(Generic[Item]):
    """Items by the topic filters they are for; one item may have several. Made once, then only asked."""

    def __init__(self, items: Iterable[tuple[Item, Iterable[tuple[str, ...]]]] = ()) -> None:
        """Args: each item with the levels of its filters."""
        self._root: _Level[Item] = _Level()
        for order, (item, filters) in enumerate(items):
            for levels in filters:
                self._add(levels, (order, item))

    def matching(self, topic: str) -> list[Item]:
        """The items for which a filter matches, each once, in the order they were given (MQTT 5.0, 4.7.1 and 4.7.2)."""
        found: dict[int, Item] = {}
        reached = [self._root]
        if not topic.startswith("$"):
            found.update(self._root.open_items)
        for depth, name in enumerate(topic.split("/")):
            is_hidden = depth == 0 and name.startswith("$")
            reached = [
                following
                for level in reached
                for key in ((name,) if is_hidden or name == "+" else (name, "+"))
                if (following := level.by_name.get(key)) is not None
            ]
            for level in reached:
                found.update(level.open_items)
        for level in reached:
            found.update(level.items)
        return [found[order] for order in sorted(found)]

    def _add(self, levels: tuple[str, ...], entry: tuple[int, Item]) -> None:
        level = self._root
        for name in levels:
            if name == "#":
                level.open_items.append(entry)
                return
            level = level.by_name.setdefault(name, _Level())
        level.items.append(entry)
