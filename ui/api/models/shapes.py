"""What the bodies of many endpoints have in common: objects, pages, problems."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel

from broker.core.wire import ProblemEntry

Row = TypeVar("Row")


class Body(BaseModel, extra="forbid", strict=True):
    """A body that the API validates: numbers are numbers, and members that it does not have are refused."""


class CheckedBody(BaseModel, extra="forbid"):
    """A body whose members the service checks: it knows read-only ones, which may be sent back."""


class Page(BaseModel, Generic[Row]):
    """A page of a list that may be long. ``next`` goes into ``cursor`` for the page after it; ``total`` is null where
    it would have to be counted."""

    items: list[Row]
    next: str | None
    total: int | None
    total_is_estimate: bool


class Order(Body):
    """The names of all objects of a kind, in their new order."""

    order: list[str]


class ProblemDocument(BaseModel, extra="allow"):
    """An error, RFC 9457. ``code`` is stable; ``instance`` is the request's identifier."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemEntry]
