"""An ordered list of named objects, kept in a section of the configuration: what object services have in common.

Nothing changes when something raises: a change is saved first and taken over afterwards.
"""

from __future__ import annotations

import builtins
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Generic, Protocol, TypeVar

from broker.core.errors import (
    AlreadyExists,
    Conflict,
    Invalid,
    NotFound,
    Problem,
    ReadOnly,
    did_you_mean,
)
from broker.core.objects import Listed, ObjectSection, Spec, unusable

T = TypeVar("T")

NAME = re.compile(r"[0-9A-Za-z][-0-9A-Za-z_]*", re.ASCII)
MAX_NAME_BYTES = 254
# Names in each list of an error about an order.
_MOST_LISTED: Final = 1_000


def name_problem(name: object) -> str | None:
    """Reason why this cannot be the name of an object, or None if it can."""
    if not isinstance(name, str) or not name:
        return "expected a non-empty name"
    if len(name) > MAX_NAME_BYTES:
        return f"a name has at most {MAX_NAME_BYTES} bytes"
    if not NAME.fullmatch(name):
        return "a name is letters, digits, '-' and '_', and begins with a letter or a digit"
    return None


class OrderedObjects(Generic[T]):
    """Objects by name in their order, each with the spec it was made from.

    ``write`` turns an object into the spec that is saved.
    """

    def __init__(self, kind: str, section: ObjectSection, write: Callable[[T], Spec]) -> None:
        self.kind = kind
        self._section = section
        self._write = write
        self._objects: dict[str, T] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._objects.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._objects

    def names(self) -> list[str]:
        """All names in order."""
        return list(self._objects)

    def adopt(self, name: str, item: T) -> None:
        """Take an object that the section holds already."""
        self._objects[name] = item

    def refusal(self, spec: Spec, error: Exception) -> str:
        """Reason why an object of the section cannot be used, for the operator who starts the broker."""
        return unusable(self._section, self.kind, spec.get("name"), error)

    def find(self, name: str) -> T | None:
        """The object of that name, or None."""
        return self._objects.get(name)

    def get(self, name: str) -> T:
        """The object of that name; raises ``NotFound`` with a suggestion."""
        item = self._objects.get(name)
        if item is None:
            raise NotFound(self.kind, name, did_you_mean(name, self._objects))
        return item

    def check_free(self, name: str) -> None:
        """Raise ``AlreadyExists`` when the name is taken."""
        if name in self._objects:
            raise AlreadyExists(self.kind, name)

    def check_changeable(self, name: str) -> None:
        """Raise ``NotFound`` when there is no such object, ``ReadOnly`` when a file fixes it."""
        self.get(name)
        where = self._section.fixed_by(name)
        if where is not None:
            raise ReadOnly(f"{self.kind} {name!r} is fixed by {where}; change it there")

    def put(self, name: str, item: T) -> None:
        """Add at the end, or put in the place of the object of that name."""
        self._section.save({name: self._write(item)})
        self._objects[name] = item

    def remove(self, name: str) -> T:
        """Take an object away."""
        self.check_changeable(name)
        self._section.save({name: None})
        return self._objects.pop(name)

    def reorder(self, names: Sequence[str]) -> None:
        """Bring all objects into this order; every name must be there exactly once.

        Raises:
            Invalid: with a problem for each name that is unknown, missing or given twice, and lists of the first ones.
            ReadOnly: objects that a file fixes would not come first, as they do at the next start.
        """
        self._check_order(names)
        fixed = [
            spec["name"] for spec in self._section.load() if self._section.defined_by(spec["name"])
        ]
        if list(names[: len(fixed)]) != fixed:
            where = self._section.defined_by(fixed[0])
            text = f"the order must begin with {', '.join(map(repr, fixed))}, fixed by {where}"
            raise ReadOnly(f"{text}; change it there, or order the others behind")
        self._section.reorder(names)
        self._objects = {name: self._objects[name] for name in names}

    def _check_order(self, names: Sequence[str]) -> None:
        counts = Counter(names)
        wrong = {
            "not_found": [name for name in counts if name not in self._objects],
            "not_reordered": [name for name in self._objects if name not in counts],
            "duplicated": [name for name, count in counts.items() if count > 1],
        }
        wrong = {member: listed[:_MOST_LISTED] for member, listed in wrong.items()}
        if not any(wrong.values()):
            return
        problems = [
            *(
                Problem(f"there is no {self.kind} {name!r}", "/order")
                for name in wrong["not_found"]
            ),
            *(Problem(f"{name!r} is missing", "/order") for name in wrong["not_reordered"]),
            *(
                Problem(f"{name!r} is given more than once", "/order")
                for name in wrong["duplicated"]
            ),
        ]
        raise Invalid(
            f"the order must name every {self.kind} exactly once", problems, members=wrong
        )


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


class ObjectVerbs(ABC, Generic[N]):
    """A ``broker.core.objects.ObjectService`` over an ordered list of objects.

    Raises (all verbs): ``Invalid`` with all problems, ``NotFound``, ``AlreadyExists``, and ``ReadOnly`` where a file
    fixes the object; nothing changed then.
    """

    kind: str
    """Name of the kind in messages."""

    def __init__(self, section: ObjectSection, write: Callable[[N], Spec]) -> None:
        self._section = section
        self._write = write
        self._objects: OrderedObjects[N] = OrderedObjects(self.kind, section, write)

    @abstractmethod
    def _compiled(self, spec: Spec) -> N:
        """Check and compile what was sent, and what it refers to. Raises ``Invalid`` with every problem."""

    @abstractmethod
    def _changed(self) -> None:
        """The objects changed: use them as they are now."""

    def _shown(self, item: N) -> Spec:
        """The object as the API shows it."""
        return self._write(item)

    def load(self, specs: Sequence[Spec]) -> builtins.list[str]:
        """Take the objects of the configuration; gives a sentence for each that cannot be used."""
        problems: builtins.list[str] = []
        for spec in specs:
            try:
                item = self._compiled(spec)
                self._objects.check_free(item.name)
                self._objects.adopt(item.name, item)
            except (Invalid, Conflict, ValueError) as error:
                problems.append(self._objects.refusal(spec, error))
        self._changed()
        return problems

    def list(self) -> Listed:
        """All of them in their order."""
        return Listed(self._objects.names(), self.get)

    def get(self, name: str) -> Spec:
        """One of them."""
        return self._shown(self._objects.get(name))

    def create(self, spec: Spec) -> Spec:
        """Add one at the end."""
        item = self._compiled(spec)
        self._objects.check_free(item.name)
        return self._put(item)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Put another in the place of the one of that name, which it keeps."""
        self._objects.check_changeable(name)
        item = self._compiled({**spec, "name": spec.get("name", name)})
        if item.name != name:
            raise Invalid(f"a {self.kind} keeps its name", [Problem(f"expected {name!r}", "/name")])
        return self._put(item)

    def delete(self, name: str) -> None:
        """Remove one."""
        self._objects.remove(name)
        self._changed()

    def reorder(self, names: Sequence[str]) -> None:
        """Bring all into this order. Raises ``Invalid`` unless each is named exactly once."""
        self._objects.reorder(names)
        self._changed()

    def _put(self, item: N) -> Spec:
        self._objects.put(item.name, item)
        self._changed()
        return self._shown(item)


def moved(names: Sequence[str], moving: Sequence[str], position: str) -> list[str]:
    """Names in a new order, with some of them at ``top``, ``bottom``, ``before:NAME`` or ``after:NAME``.

    Raises:
        ValueError: a name is unknown, or is its own anchor.
    """
    word, _, anchor = position.partition(":")
    for name in (*moving, anchor) if anchor else moving:
        if name not in names:
            raise ValueError(f"expected one of {', '.join(names)}, got {name}")
    if anchor in moving or len(set(moving)) != len(moving):
        raise ValueError(f"expected other names than {', '.join(moving)} to move by, each once")
    rest = [name for name in names if name not in moving]
    places = {"top": 0, "bottom": len(rest)}
    at = places[word] if not anchor else rest.index(anchor) + (word == "after")
    return [*rest[:at], *moving, *rest[at:]]
