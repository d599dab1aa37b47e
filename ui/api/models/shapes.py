"""What the bodies of many endpoints have in common: objects, pages, problems."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

Row = TypeVar("Row")


class Body(BaseModel, extra="forbid", strict=True):
    """A body that the API validates: numbers are numbers, and members that it does not have are refused."""


class CheckedBody(BaseModel, extra="forbid"):
    """A body whose members the service checks: it knows read-only ones, which may be sent back."""


class Object(BaseModel, extra="allow"):
    """An object as it is shown: what was sent, defaults filled in, and read-only members such as ``state``."""

    name: str


class ObjectList(BaseModel):
    """A page of objects. ``next`` goes into ``cursor`` for the page after it."""

    items: list[dict[str, Any]]
    next: str | None
    total: int
    total_is_estimate: bool


class Page(BaseModel, Generic[Row]):
    """A page of a list that may be long. ``next`` goes into ``cursor`` for the page after it; ``total`` is null where
    it would have to be counted."""

    items: list[Row]
    next: str | None
    total: int | None
    total_is_estimate: bool


class Anything(BaseModel, extra="allow"):
    """An object whose members the feature describes."""


class Order(Body):
    """The names of all objects of a kind, in their new order."""

    order: list[str]


class ProblemEntry(BaseModel):
    """One thing wrong, and where: a JSON pointer into the body; line and column count from 1 inside that text."""

    pointer: str | None = None
    line: int | None = None
    column: int | None = None
    message: str
    suggestion: str | None = None


class Affected(BaseModel):
    """An object that a change of another one affects, and how: ``uses it``, or what it would do then."""

    kind: str
    name: str
    how: str


class Effect(BaseModel):
    """What a write would change. ``before`` and ``after`` are what is saved, with secrets as stars; a change of the
    order has ``order`` in them. ``affected`` are objects that use the object, directly or through others."""

    dry_run: Literal[True]
    change: Literal["create", "replace", "delete", "none"]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    affected: list[Affected]
    warnings: list[ProblemEntry]


class ProblemDocument(BaseModel, extra="allow"):
    """An error, RFC 9457. ``code`` is stable; ``instance`` is the request's identifier."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemEntry]
