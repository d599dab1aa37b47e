"""Bounds on the work a JSON Schema can cause, so that no payload can hold up the broker.

The validator is fast and remembers what recursive references gave, but two things multiply: definitions that refer to
others twice, over and over (twenty lines make 2^20 steps), and the search for a reason, which goes through every
alternative of every level of a recursive schema. Both are reported here from the schema alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urldefrag, urljoin

from schema_validation.serdes.base import at_pointer, listed, mapped

_SUMMED_LISTS = ("allOf", "anyOf", "oneOf")
_SUMMED = ("not", "if", "then", "else")
_SUMMED_BY_NAME = ("dependentSchemas", "dependencies")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
# Number of values of an ``enum`` that count as one step.
_ENUM_SHARE = 50
_CEILING = 10**9


@dataclass(frozen=True, slots=True)
class Bounds:
    """``steps`` is the most subschemas that one value and what is around it can meet, ``growth`` how often a recursive
    schema looks at the same value again, for each level of nesting; ``alternatives`` that it has anyOf or oneOf.
    """

    steps: int
    growth: int
    alternatives: bool


@dataclass(slots=True)
class _Parts:
    """The subschemas of one: those for the same value, for members, and for items; of lists only one applies."""

    same: list[Any] = field(default_factory=list)
    named: list[Any] = field(default_factory=list)
    members: list[Any] = field(default_factory=list)
    placed: list[Any] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)

    def all(self) -> list[Any]:
        return [*self.same, *self.named, *self.members, *self.placed, *self.items]

    def total(self, of: Mapping[int, int], cut: int) -> int:
        def get(part: Any) -> int:
            return of.get(id(part), cut)

        members = max(map(get, self.named), default=0) + sum(map(get, self.members))
        items = max(map(get, self.placed), default=0) + sum(map(get, self.items))
        return min(_CEILING, sum(map(get, self.same)) + max(members, items))


def bounds_of(schema: Mapping[str, Any]) -> Bounds:
    """The bounds of a schema. Its references within the document are followed, others count as one step."""
    index = _Index(schema)
    steps: dict[int, int] = {}
    growth: dict[int, int] = {}
    parts: dict[int, _Parts] = {}
    alternatives = False
    waiting: list[Any] = [schema]
    while waiting:  # depth first, without recursion: references can make a chain of any length
        node = waiting[-1]
        if id(node) in steps:
            waiting.pop()
        elif id(node) not in parts:
            alternatives = alternatives or "anyOf" in node or "oneOf" in node
            parts[id(node)] = node_parts = index.parts(node)
            waiting += [part for part in node_parts.all() if id(part) not in parts]
        else:
            waiting.pop()
            own = 1 + len(listed(node.get("enum"))) // _ENUM_SHARE
            steps[id(node)] = own + parts[id(node)].total(steps, 1)
            growth[id(node)] = parts[id(node)].total(growth, 1)
    return Bounds(steps[id(schema)], max(growth.values()), alternatives)


class _Index:
    """Finds what references name: by pointer, by ``$id``, by anchor."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[str, list[Any]] = {}
        self._register(root)

    def _register(self, root: Mapping[str, Any]) -> None:
        waiting: list[tuple[Any, str]] = [(root, "")]
        while waiting:
            node, base = waiting.pop()
            if isinstance(node, Mapping):
                base = self._registered(node, base)
                waiting += [
                    (inner, base) for inner in node.values() if isinstance(inner, (Mapping, list))
                ]
            elif isinstance(node, list):
                waiting += [(inner, base) for inner in node if isinstance(inner, (Mapping, list))]

    def _registered(self, node: Mapping[str, Any], base: str) -> str:
        for keyword in ("$id", "id"):
            own = node.get(keyword)
            if isinstance(own, str):
                base = _joined(base, own)
                self._resources.setdefault(base.rstrip("#"), node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(node.get(keyword), str):
                self._anchors.setdefault(node[keyword], []).append(node)
        self._bases[id(node)] = base
        return base

    def parts(self, node: Mapping[str, Any]) -> _Parts:
        result = _Parts()
        result.same += self._referred(node)
        for keyword in _SUMMED_LISTS:
            result.same += _schemas(listed(node.get(keyword)))
        for keyword in _SUMMED:
            result.same += _schemas([node.get(keyword)])
        for keyword in _SUMMED_BY_NAME:
            result.same += _schemas(mapped(node.get(keyword)).values())
        result.named += _schemas(mapped(node.get("properties")).values())
        result.members += _schemas(mapped(node.get("patternProperties")).values())
        result.members += _schemas(
            map(node.get, ("additionalProperties", "unevaluatedProperties", "propertyNames"))
        )
        result.placed += _schemas([*listed(node.get("prefixItems")), *listed(node.get("items"))])
        result.items += _schemas(
            map(node.get, ("items", "additionalItems", "contains", "unevaluatedItems"))
        )
        return result

    def _referred(self, node: Mapping[str, Any]) -> Iterator[Any]:
        for keyword in _REFERENCES:
            reference = node.get(keyword)
            if isinstance(reference, str):
                yield from _schemas(self._targets(reference, self._bases.get(id(node), "")))

    def _targets(self, reference: str, base: str) -> list[Any]:
        url, fragment = urldefrag(_joined(base, reference))
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(fragment, []) or [self._resources.get(f"{url}#{fragment}")]
        return [at_pointer(self._resources.get(url), fragment)]


def _joined(base: str, reference: str) -> str:
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _schemas(schemas: Iterable[Any]) -> list[Any]:
    return [item for item in schemas if isinstance(item, Mapping)]


def size_of(value: Any, most: int) -> tuple[int, int]:
    """Number of values in a JSON value, itself included, and their depth; counting stops above ``most``."""
    count = 0
    depth = 0
    level = [value]
    while level and count <= most:
        inner: list[Any] = []
        count = count + len(level)
        depth = depth + 1
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level = inner
    return count, depth


def longest_texts(value: Any) -> tuple[int, int]:
    """The length of the longest text in a value, names of members included, and of all texts together."""
    longest = total = 0
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            longest = max(longest, len(item))
            total = total + len(item)
        elif isinstance(item, dict):
            waiting += item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return longest, total
