"""Models shared by many endpoints: objects, pages, problems."""

from __future__ import annotations

from typing import Any, Generic, Literal, NotRequired, TypeVar

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from broker.admin.clients import SubscriptionResult
from broker.core.json_values import ProblemEntry

Row = TypeVar("Row")


class Body(BaseModel, extra="forbid", strict=True):
    """A body that the API validates: numbers are numbers, and members that it does not have are refused."""


class MissingCell(BaseModel):
    """A cell whose part of the answer is missing, and why."""

    cell: int
    why: str


class Page(BaseModel, Generic[Row]):
    """A page of a list that may be long. ``next`` goes into ``cursor`` for the page after it; ``total`` is null where
    it would have to be counted."""

    items: list[Row]
    next: str | None
    total: int | None
    total_is_estimate: bool
    incomplete: list[MissingCell] = Field(
        default_factory=list, description="Cells that did not answer; absent if all did."
    )


class Order(Body):
    """The names of all objects of a kind, in their new order; or with ``position`` the names of those that move
    there, in this order."""

    order: list[str]
    position: str | None = Field(
        default=None,
        pattern=r"^(top|bottom|(before|after):.+)$",
        max_length=1000,
        description="`top`, `bottom`, `before:NAME` or `after:NAME`.",
    )


class Affected(BaseModel):
    """An object that a change of another one affects, and how: ``uses it``, or what it would do then."""

    kind: str
    name: str
    how: str


class Effect(BaseModel):
    """Effect of a write. ``before`` and ``after`` are what is saved, with secrets as stars; a change of the
    order has ``order`` in them. ``affected`` are objects that use the object, directly or through others.
    ``consequences`` are sentences about clients, messages, rows and files: how many are disconnected, deleted, stopped
    or kept, and where. ``summary`` is for a confirmation; it says if nothing else is affected."""

    dry_run: Literal[True]
    change: Literal["create", "replace", "delete", "none"]
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    affected: list[Affected]
    consequences: list[str]
    summary: str
    warnings: list[ProblemEntry]


class ProblemDocument(TypedDict):
    """An error, RFC 9457. ``code`` is stable; ``instance`` is the request's identifier, as in ``X-Request-Id``.

    Further members depend on the code: ``users`` are the objects that use the one to delete, ``missing_schemas`` those
    that an object names, each with the message type if it names one, ``results`` the outcome of each filter that a
    client should subscribe to. Of an order: the names that do not exist, are missing, or are given more than once.
    """

    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    errors: list[ProblemEntry]
    users: NotRequired[list[str]]
    missing_schemas: NotRequired[list[list[str]]]
    results: NotRequired[list[SubscriptionResult]]
    not_found: NotRequired[list[str]]
    not_reordered: NotRequired[list[str]]
    duplicated: NotRequired[list[str]]
