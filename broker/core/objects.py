"""Objects that users create: schemas, validations, transformations, rules, streams, tables.

Each feature has an ``ObjectService`` with the same five verbs, so that API and CLI are thin and alike, and keeps its
objects in an ``ObjectSection`` of the configuration, so that they survive a restart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol, TypeVar, overload

from broker.core.errors import Invalid, NotFound

T = TypeVar("T")

# An object as JSON: what was sent to create it, defaults filled in.
Spec = dict[str, Any]


class Reference(NamedTuple):
    """An object by kind and name. Actions and sources are named ``<type>:<name>``."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


class Version(NamedTuple):
    """Saved version of an object. ``etag`` changes with every saved change, and is the same after a
    restart. ``changed_ns`` is when it was changed, None where that was before the broker started."""

    etag: str
    changed_ns: int | None = None


def etag_of(saved: Mapping[str, Any]) -> str:
    """``etag`` of a saved object, independent of the order of its members."""
    return sha256(json.dumps(saved, sort_keys=True).encode()).hexdigest()[:16]


class SavedObject(NamedTuple):
    """An object that was saved: its section of the configuration, and its forms in the file of the API, None where it
    is not there. ``order`` are the names in the file before, where the object was removed, or all objects of the
    section were brought into the order ``order_of``."""

    section: str
    name: str
    before: Spec | None
    after: Spec | None
    order: Sequence[str] = ()
    order_of: Sequence[str] | None = None

    @property
    def what(self) -> str:
        """``added``, ``changed`` or ``removed``."""
        return "added" if self.before is None else "removed" if self.after is None else "changed"


ACTOR: Final[ContextVar[str]] = ContextVar("actor", default="")
"""User or program whose request this task answers; empty outside of requests."""

REQUEST: Final[ContextVar[str]] = ContextVar("request", default="")
"""Identifier of that request, the same in each cell that answers a part of it; empty outside of requests."""

_is_dry_run: ContextVar[bool] = ContextVar("is_dry_run", default=False)


# Objects as they are saved, None for one that is removed, by their place: ``("rule_engine", "rules", "hot")``.
Saves = Mapping[tuple[str, ...], Spec | None]


class DryRunEnd(Exception):
    """A dry run got to where a write begins to change something. ``changes``: whether it would; ``saves``: the objects
    that it would save, by their place in the configuration, as far as the service left that to its section."""

    def __init__(self, changes: bool, saves: Saves) -> None:
        self.changes = changes
        self.saves = saves
        super().__init__("a dry run changes nothing")


@contextmanager
def dry_run() -> Iterator[None]:
    """End writes in this task with ``DryRunEnd`` before they change anything."""
    token = _is_dry_run.set(True)
    try:
        yield
    finally:
        _is_dry_run.reset(token)


def saving(changes: bool = True, saves: Saves | None = None) -> None:
    """Called by every write when all is checked and before anything changes: a dry run ends here."""
    if _is_dry_run.get():
        raise DryRunEnd(changes, saves or {})


_deleted_together: ContextVar[Collection[Reference]] = ContextVar("deleted_together", default=())


@contextmanager
def deleting_together(references: Collection[Reference]) -> Iterator[None]:
    """Let this task delete each of these objects though others of them use it."""
    token = _deleted_together.set(references)
    try:
        yield
    finally:
        _deleted_together.reset(token)


def is_deleted_too(reference: Reference) -> bool:
    """True if the deletion that runs in this task deletes this object too."""
    return reference in _deleted_together.get()


def apply(objects: dict[str, T], changes: Mapping[str, T | None]) -> None:
    """Put objects in their place or at the end, and remove those that are None."""
    for name, changed in changes.items():
        if changed is None:
            objects.pop(name, None)
        else:
            objects[name] = changed


class ObjectSection(Protocol):
    """The place of one kind of objects in the configuration (layers merged, see ``broker.config``)."""

    def load(self) -> list[Spec]:
        """All objects in order. Each has a ``name``."""

    def save(self, changes: Mapping[str, Spec | None]) -> None:
        """Write objects by name to the file the API writes, each in its place or at the end, and remove those that are
        None; returns when it is on disk.

        Raises:
            broker.core.errors.Unavailable: the file cannot be written; nothing changed.
        """

    def reorder(self, names: Sequence[str]) -> None:
        """Write the objects in this order; raises as ``save``."""

    def fixed_by(self, name: str) -> str | None:
        """The file that fixes the object (then it cannot be changed at run time), or None."""

    def defined_by(self, name: str) -> str | None:
        """The file that has the object at the next start too, whatever is saved; or None."""

    def base(self, name: str) -> Spec | None:
        """The object to which a deletion resets the one of this name; None where it is deleted. Raises ``ReadOnly``."""

    def forget(self, name: str) -> None:
        """Remove what was saved over the object of ``base``."""

    def where(self, name: str) -> str:
        """The file, and the line where it is known, in which an object is."""

    def saved(self, name: str) -> Spec:
        """An object of the section, as it is saved."""

    def version(self, name: str) -> Version:
        """The version of an object that is in the section."""


class MemorySection:
    """A section that lives in memory, for tests and for calls that store nothing."""

    def __init__(self, objects: Sequence[Spec] = ()) -> None:
        self._objects = {spec["name"]: spec for spec in objects}

    def load(self) -> list[Spec]:
        return [dict(spec) for spec in self._objects.values()]

    def save(self, changes: Mapping[str, Spec | None]) -> None:
        saving(any(self._objects.get(name) != spec for name, spec in changes.items()))
        apply(self._objects, changes)

    def reorder(self, names: Sequence[str]) -> None:
        saving(list(self._objects) != list(names))
        self._objects = {name: self._objects[name] for name in names}

    def fixed_by(self, name: str) -> str | None:
        return None

    def defined_by(self, name: str) -> str | None:
        return self.fixed_by(name)

    def base(self, name: str) -> Spec | None:
        return None

    def forget(self, name: str) -> None:
        self.save({name: None})

    def where(self, name: str) -> str:
        return "memory"

    def saved(self, name: str) -> Spec:
        return self._objects[name]

    def version(self, name: str) -> Version:
        return Version(etag_of(self.saved(name)))


def merged(target: Any, patch: Any) -> Any:
    """A document with a JSON Merge Patch (RFC 7396) applied: null removes a member. Neither is changed."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def unusable(section: ObjectSection, kind: str, name: object, error: Exception) -> str:
    """The sentence about an object of the configuration that cannot be used: file, line, object, reason, advice."""
    reason = "; ".join(map(str, error.problems)) if isinstance(error, Invalid) else str(error)
    return f"{section.where(str(name))}: {kind} {name!r} cannot be used: {reason} (correct it there, or take it out)"


class Listed(Sequence[Mapping[str, Any]]):
    """Objects in their order, each shown when it is read: a page of a list costs what the page has."""

    __slots__ = ("_show", "names")

    def __init__(self, names: Sequence[str], show: Callable[[str], Mapping[str, Any]]) -> None:
        self.names = names
        self._show = show

    @classmethod
    def of(cls, objects: Sequence[Mapping[str, Any]], key: str) -> Listed:
        """Objects that may be shown already, whose member ``key`` names them."""
        if isinstance(objects, Listed):
            return objects
        shown = {item[key]: item for item in objects}
        return cls(list(shown), shown.__getitem__)

    def only(self, names: Sequence[str]) -> Listed:
        """The objects of these names, in the order of the names."""
        return Listed(names, self._show)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for name in self.names:
            try:
                shown = self._show(name)
            except NotFound:  # deleted since
                continue
            yield shown

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, at: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, at: slice) -> Listed: ...

    def __getitem__(self, at: int | slice) -> Mapping[str, Any] | Listed:
        return self.only(self.names[at]) if isinstance(at, slice) else self._show(self.names[at])


class KindService(Protocol):
    """Members that the service of every kind has; its declaration (``broker.core.kinds``) has the rest."""

    @property
    def kind(self) -> str:
        """Name of the kind in messages: ``rule``, ``lake table``."""
        ...

    def list(self) -> Sequence[Mapping[str, Any]]: ...

    def get(self, name: str) -> Mapping[str, Any]: ...


class ObjectService(Protocol):
    """The verbs a person has for one kind of objects. All run on the event loop and return within milliseconds.

    ``create`` and ``replace`` check everything first (``Invalid`` with all problems) and change nothing when they
    raise. What they return is the object as it is shown: the spec plus read-only members such as ``state``.
    """

    @property
    def kind(self) -> str:
        """Name of the kind in messages: ``rule``, ``lake table``."""

    def list(self) -> Sequence[Mapping[str, Any]]: ...

    def get(self, name: str) -> Spec: ...

    def create(self, spec: Spec) -> Spec: ...

    def replace(self, name: str, spec: Spec) -> Spec: ...

    def delete(self, name: str) -> None: ...
