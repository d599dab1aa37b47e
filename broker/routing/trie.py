"""Topic filters to whoever subscribed them, MQTT 5.0 section 4.7, without asking each filter.

A filter without wildcards costs one dictionary hit; the others are a tree by level, walked along the topic.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

T = TypeVar("T")


class _Node(Generic[T]):
    __slots__ = ("children", "values")

    def __init__(self) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.values: dict[str, T] = {}


_WILDCARDS: Final = frozenset(("+", "#"))


class FilterTrie(Generic[T]):
    """A value per filter and owner; owners are texts (client identifiers)."""

    def __init__(self) -> None:
        self._exact: dict[tuple[str, ...], dict[str, T]] = {}
        self._root: _Node[T] = _Node()

    def put(self, levels: tuple[str, ...], owner: str, value: T) -> None:
        """Set the owner's value at a filter, replacing the one before."""
        if _WILDCARDS.isdisjoint(levels):
            self._exact.setdefault(levels, {})[owner] = value
            return
        node = self._root
        for level in levels:
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node()
            node = child
        node.values[owner] = value

    def remove(self, levels: tuple[str, ...], owner: str) -> None:
        """Remove the owner's value at a filter, if there is one, and branches left empty."""
        if _WILDCARDS.isdisjoint(levels):
            owners = self._exact.get(levels)
            if owners is not None:
                owners.pop(owner, None)
                if not owners:
                    del self._exact[levels]
            return
        path, node = [], self._root
        for level in levels:
            child = node.children.get(level)
            if child is None:
                return
            path.append((node, level))
            node = child
        node.values.pop(owner, None)
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.values or child.children:
                return
            del parent.children[level]

    def match(self, topic: str) -> list[tuple[str, T]]:
        """Owner and value of every filter that matches the topic name, in no promised order."""
        levels = tuple(topic.split("/"))
        found = list(self._exact.get(levels, {}).items())
        nodes = [self._root]
        may_be_wild = not topic.startswith("$")  # [MQTT-4.7.2-1]
        for level in levels:
            following: list[_Node[T]] = []
            for node in nodes:
                children = node.children
                if may_be_wild:
                    if "#" in children:
                        found.extend(children["#"].values.items())
                    if "+" in children:
                        following.append(children["+"])
                if level in children:
                    following.append(children[level])
            may_be_wild = True
            if not following:
                return found
            nodes = following
        for node in nodes:
            found.extend(node.values.items())
            if "#" in node.children:  # 'a/#' matches 'a' too
                found.extend(node.children["#"].values.items())
        return found
