"""A HOCON document before substitutions are resolved: nodes, and where each is in the text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a file; ``line`` and ``column`` count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file} line {self.line}"


@dataclass(frozen=True, slots=True)
class Text:
    """A quoted text, or one unquoted word; only an unquoted word alone may become a number, boolean or null."""

    text: str
    is_quoted: bool
    place: Place


@dataclass(frozen=True, slots=True)
class Substitution:
    """``${path}`` or ``${?path}``."""

    path: tuple[str, ...]
    is_optional: bool
    place: Place


@dataclass(slots=True)
class Array:
    """``[...]``."""

    items: list[Node]
    place: Place


@dataclass(frozen=True, slots=True)
class Concatenation:
    """Values side by side: texts join (with the blanks between them), arrays append, objects merge.

    ``blanks[i]`` is before ``parts[i]``.
    """

    parts: tuple[Node, ...]
    blanks: tuple[str, ...]
    place: Place


@dataclass(slots=True)
class Assignments:
    """Everything assigned to one key, in the order of the text. Neighbouring objects are merged as they are read."""

    values: list[Node] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def add(self, value: Node, place: Place) -> None:
        """Assign once more."""
        if self.values and isinstance(value, Object) and isinstance(self.values[-1], Object):
            self.values[-1].absorb(value)
            return
        self.values.append(value)
        self.places.append(place)


@dataclass(slots=True)
class Object:
    """``{...}``, or what is in a file."""

    place: Place
    fields: dict[str, Assignments] = field(default_factory=dict)

    def assign(self, path: tuple[str, ...], value: Node, place: Place) -> None:
        """``a.b = value`` is ``a { b = value }``."""
        for key in reversed(path[1:]):
            inner = Object(place)
            inner.fields.setdefault(key, Assignments()).add(value, place)
            value = inner
        self.fields.setdefault(path[0], Assignments()).add(value, place)

    def absorb(self, other: Object) -> None:
        """Take over all assignments of an object later in the text."""
        for key, assignments in other.fields.items():
            mine = self.fields.setdefault(key, Assignments())
            for value, place in zip(assignments.values, assignments.places, strict=True):
                mine.add(value, place)


Node: TypeAlias = Text | Substitution | Array | Concatenation | Object
