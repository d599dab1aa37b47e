"""The tree of a HOCON document to plain data: substitutions, concatenations, and how many times a key is assigned.

A substitution looks in the document first, then in the environment. One that names the key it is assigned to means
the key's earlier value, so that ``port = 1883`` and then ``port = ${?PORT}`` is a default with an override.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from broker.config.hocon_reader import HoconError
from broker.config.hocon_tree import (
    Array,
    Assignments,
    Concatenation,
    Node,
    Object,
    Place,
    Substitution,
    Text,
)

# Maximum number of values in a document once its substitutions are resolved: stops those that multiply each other.
MAX_VALUES = 200_000
_TEXT_PER_VALUE = 64  # characters that count as a value of their own

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,300})(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_CONSTANTS = {"true": True, "false": False, "null": None}


class _Missing:
    """Result of an optional substitution without a value: as if the key were absent."""


_MISSING = _Missing()


class Resolver:
    """Resolves one document."""

    def __init__(self, root: Object, environ: Mapping[str, str]) -> None:
        self._root = root
        self._environ = environ
        self._visible: dict[
            int, int
        ] = {}  # assignments being resolved, and how many of them may be seen from inside
        self._values_left = MAX_VALUES

    def resolve(self) -> dict[str, Any]:
        """The document as dicts, lists, texts, numbers, booleans and None.

        Raises:
            HoconError: a substitution that cannot be resolved, or values that do not go together.
        """
        return self._object(self._root)

    def value(self, node: Node) -> Any:
        """A single value; None where it is an optional substitution of nothing."""
        value = self._node(node)
        return None if value is _MISSING else value

    def _node(self, node: Node) -> Any:
        if isinstance(node, Text):
            return node.text if node.is_quoted else _scalar(node.text)
        if isinstance(node, Object):
            return self._object(node)
        if isinstance(node, Array):
            return self._array(node)
        if isinstance(node, Substitution):
            return self._substitution(node)
        return self._concatenation(node)

    def _object(self, node: Object) -> dict[str, Any]:
        values = {}
        for key, assignments in node.fields.items():
            value = self._assigned(assignments)
            if value is not _MISSING:
                values[key] = value
        self._count(len(values), node.place)
        return values

    def _array(self, node: Array) -> list[Any]:
        items = [value for item in node.items if (value := self._node(item)) is not _MISSING]
        self._count(len(items), node.place)
        return items

    def _assigned(self, assignments: Assignments) -> Any:
        """The last assignment; objects are laid over earlier objects."""
        result: Any = _MISSING
        for position in range(self._visible.get(id(assignments), len(assignments.values))):
            node = assignments.values[position]
            if isinstance(node, Object):  # its keys are hidden from themselves one by one
                value: Any = self._object(node)
            else:
                with self._seeing(assignments, position):
                    value = self._node(node)
            result = _laid_over(result, value)
        return result

    def _substitution(self, node: Substitution) -> Any:
        value = self._found(self._root, node.path)
        if value is _MISSING:
            value = self._environ.get(".".join(node.path), _MISSING)
        if value is _MISSING and not node.is_optional:
            name = ".".join(node.path)
            _fail(
                node.place, f"${{{name}}} is neither a key of this file nor an environment variable"
            )
        self._count(_size(value, self._values_left), node.place)
        return value

    def _found(self, node: Object, path: tuple[str, ...]) -> Any:
        """The value at a path below ``node``, without resolving other members."""
        assignments = node.fields.get(path[0])
        if assignments is None:
            return _MISSING
        if len(path) == 1:
            return self._assigned(assignments)
        result: Any = _MISSING
        for position in range(self._visible.get(id(assignments), len(assignments.values))):
            inner = assignments.values[position]
            if isinstance(inner, Object):
                result = _laid_over(result, self._found(inner, path[1:]))
                continue
            with self._seeing(assignments, position):
                value = self._node(inner)
            if value is not _MISSING:
                below = _dig(value, path[1:])
                result = _laid_over(result, below) if isinstance(value, dict) else _MISSING
        return result

    def _concatenation(self, node: Concatenation) -> Any:
        resolved = [(part, self._node(part)) for part in node.parts]
        values = [value for _, value in resolved if value is not _MISSING]
        if not values:
            return _MISSING
        if any(isinstance(value, dict) for value in values):
            return self._joined_objects(values, node.place)
        if any(isinstance(value, list) for value in values):
            return self._joined_arrays(values, node.place)
        if len(values) == 1 and all(isinstance(part, Substitution) for part in node.parts):
            return values[0]
        pieces = zip(node.blanks, resolved, strict=True)
        return "".join(blank + _as_text(part, value) for blank, (part, value) in pieces)

    def _joined_objects(self, values: list[Any], place: Place) -> dict[str, Any]:
        result: Any = {}
        for value in values:
            if not isinstance(value, dict):
                _fail(
                    place, "an object is followed by a value of another kind; is a comma missing?"
                )
            result = _laid_over(result, value)
        return dict(result)

    def _joined_arrays(self, values: list[Any], place: Place) -> list[Any]:
        result: list[Any] = []
        for value in values:
            if not isinstance(value, list):
                _fail(place, "a list is followed by a value of another kind; is a comma missing?")
            result.extend(value)
        return result

    @contextmanager
    def _seeing(self, assignments: Assignments, earlier: int) -> Iterator[None]:
        """While an assignment is resolved, substitutions see only those before it: so nothing refers to itself."""
        key = id(assignments)
        before = self._visible.get(key)
        self._visible[key] = earlier
        try:
            yield
        finally:
            if before is None:
                del self._visible[key]
            else:
                self._visible[key] = before

    def _count(self, values: int, place: Place) -> None:
        self._values_left -= values
        if self._values_left < 0:
            _fail(place, f"with its substitutions the document holds more than {MAX_VALUES} values")


def places(root: Object) -> dict[tuple[str, ...], Place]:
    """Place of the last assignment of each key, by its path; items of a list are keyed by their number."""
    place_by_path: dict[tuple[str, ...], Place] = {}
    _collect_object(root, (), place_by_path)
    return place_by_path


def _collect_object(
    node: Object, path: tuple[str, ...], places: dict[tuple[str, ...], Place]
) -> None:
    for key, assignments in node.fields.items():
        for value, place in zip(assignments.values, assignments.places, strict=True):
            places[(*path, key)] = place
            _collect(value, (*path, key), places)


def _collect(node: Node, path: tuple[str, ...], places: dict[tuple[str, ...], Place]) -> None:
    if isinstance(node, Object):
        _collect_object(node, path, places)
    elif isinstance(node, Array):
        for number, item in enumerate(node.items):
            places[(*path, str(number))] = item.place
            _collect(item, (*path, str(number)), places)
    elif isinstance(node, Concatenation):
        for part in node.parts:
            _collect(part, path, places)


def _scalar(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return float(text) if match[1] or match[2] else int(text)


def _as_text(part: Node, value: Any) -> str:
    if isinstance(part, Text):
        return part.text
    if value is _MISSING:
        return ""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _laid_over(below: Any, above: Any) -> Any:
    """``above``, on top of ``below`` where both are objects."""
    if above is _MISSING:
        return below
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    merged = dict(below)
    for key, value in above.items():
        merged[key] = _laid_over(merged.get(key, _MISSING), value)
    return merged


def _dig(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return _MISSING
        value = value[key]
    return value


def _size(value: Any, most: int) -> int:
    """Number of values in a value, counted no further than just above ``most``."""
    count = 0
    waiting = [value]
    while waiting and count <= most:
        item = waiting.pop()
        count += 1
        if isinstance(item, str):
            count += len(item) // _TEXT_PER_VALUE
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)
    return count


def _fail(place: Place, message: str) -> NoReturn:
    where = f"line {place.line}, column {place.column}"
    raise HoconError(f"{place.file} {where}: {message}", where)
