"""The routes of every kind of objects, from what the kind declares (``broker.core.kinds``)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Protocol

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from broker.core import jsontext
from broker.core.errors import Invalid, NotFound, Problem
from broker.core.kinds import Kind, Switch
from broker.core.objects import ObjectService, Spec
from ui.api import preconditions
from ui.api.gate_filters import GateFilter
from ui.api.models.bridges import ProbeResult
from ui.api.models.shapes import Anything, Order
from ui.api.operation import Operations
from ui.api.parameters import NamePath, checked_name, decode_cursor, encode_cursor
from ui.api.rule_filters import RuleFilter
from ui.api.wire import answer


class Selection(Protocol):
    """Chooses the objects of a list."""

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]: ...


class Everything:
    """Chooses all."""

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]:
        """All of them."""
        return list(objects)


class Objects(ObjectService, Protocol):
    """The service of a kind. What a kind's abilities do not name, its service need not have."""

    def create(self, spec: Spec, **options: Any) -> Spec: ...

    def replace(self, name: str, spec: Spec, **options: Any) -> Spec: ...

    def delete(self, name: str, **options: Any) -> None: ...

    def etag(self, name: str) -> str: ...

    def patched(self, name: str, patch: Spec) -> Spec: ...

    def reorder(self, names: Sequence[str]) -> None: ...

    def metrics(self, name: str) -> Spec: ...

    def reset_metrics(self, name: str) -> None: ...

    async def test(self, name: str) -> Spec: ...

    async def probe(self, spec: Spec) -> Spec: ...


_FILTERS: Final[dict[str, Callable[..., Selection]]] = {
    "validations": GateFilter,
    "transforms": GateFilter,
    "rules": RuleFilter,
}
"""Query parameters that choose the objects of a list, by the path of the kind."""
_READ_ONLY: Final = "Read-only members of an answer may be sent back; they are ignored."

Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items in the answer.")]
Cursor = Annotated[str | None, Query(description="`next` of the previous page.")]
Options = Mapping[str, Any]
"""Keyword arguments for a method of a service."""


async def _no_options(_spec: Spec, _name: str | None, _force: bool) -> tuple[Options, Options]:
    return {}, {}


async def _no_force() -> bool:
    return False


async def _not_special() -> Options:
    return {}


@dataclass(frozen=True, slots=True)
class Saving:
    """What a kind does differently when objects are saved and deleted.

    ``prepare`` gets the spec, its name where it may exist, and ``force``; it gives keyword arguments for ``create`` and
    for ``replace``. ``force`` is the dependency that reads that query parameter, ``deleting`` gives keyword arguments
    for ``delete``.
    """

    prepare: Callable[[Spec, str | None, bool], Awaitable[tuple[Options, Options]]] = _no_options
    force: Callable[..., Awaitable[bool]] = _no_force
    deleting: Callable[..., Awaitable[Options]] = _not_special


class KindRoutes:
    """Adds the routes of one kind."""

    def __init__(self, router: APIRouter, kind: Kind, service: Any, saving: Saving | None = None) -> None:
        self.ops, self.kind = Operations(router, kind.tag), kind
        self._service: Objects = service
        self._saving = saving or Saving()
        self.all, self.one = f"/{kind.path}", f"/{kind.path}/{{name}}"
        self._changing = (412,) if kind.abilities.has_etag else ()

    def add(self) -> None:
        """Everything that the kind declares."""
        abilities = self.kind.abilities
        self._add_reading()
        self._add_create()
        self._add_put()
        self._add_delete()
        if abilities.can_patch:
            self._add_patch()
        for switch in abilities.switches:
            self._add_switch(switch)
        if abilities.has_probe:
            self._add_tests()
        if abilities.has_metrics:
            self._add_metrics()
        if abilities.can_reorder:
            self._add_reorder()

    def show(
        self, part: str, id: str, summary: str, text: str, method: Callable[[str], Any], model: type[Any] = Anything
    ) -> None:
        """Add ``GET`` of a part of an object: what a method returns for its name; OpenAPI shows ``model``."""

        @self.ops.get(f"{self.one}{part}", id, summary, description=text, answer=model, problems=(404, 422))
        def shown(name: NamePath) -> Any:
            return method(name)

    def etag(self, name: str) -> str | None:
        """The object's ETag; None where there is no such object, or its kind has none."""
        return self._service.etag(name) if self.kind.abilities.has_etag and exists(self._service, name) else None

    def with_etag(self, request: Request, response: Response, name: str) -> Response:
        """The answer with the object's ETag."""
        return preconditions.with_etag(request, response, self.etag(name))

    def _add_reading(self) -> None:
        kind, service = self.kind, self._service

        @self.ops.get(
            self.all,
            f"list{kind.ids}",
            f"List {kind.many}",
            description=f"{kind.about} Returns a page of them in their order.",
            answer=kind,
            is_list=True,
            problems=(422,),
        )
        def list_objects(
            limit: Limit = 100,
            cursor: Cursor = None,
            wanted: Any = Depends(_FILTERS.get(kind.path, Everything)),  # noqa: B008 # the way FastAPI wants it
        ) -> Spec:
            return page_of(wanted.select(service.list()), limit, cursor)

        @self.ops.get(
            self.one,
            f"get{kind.id}",
            f"Show {kind.one}",
            description=f"Returns the {kind.name} with its defaults and with read-only members such as its state.",
            answer=kind,
            problems=(404, 422),
        )
        def get_object(name: NamePath, request: Request) -> Response:
            return self.with_etag(request, answer(service.get(name)), name)

    def _add_create(self) -> None:
        kind, service, saving = self.kind, self._service, self._saving

        @self.ops.post(
            self.all,
            f"create{kind.id}",
            f"Create {kind.one}",
            description=f"{kind.about} {_READ_ONLY}",
            body=kind,
            answer=kind,
            status=201,
            problems=(409,),
        )
        async def create_object(body: Spec, request: Request, force: bool = Depends(saving.force)) -> Response:
            spec = named(body, None, kind.named_by)
            options, _ = await saving.prepare(spec, None, force)
            created = service.create(spec, **options)
            return self.with_etag(request, created_answer(request, created), created["name"])

    def _add_put(self) -> None:
        kind, service, saving = self.kind, self._service, self._saving

        @self.ops.put(
            self.one,
            f"put{kind.id}",
            f"Create or replace {kind.one}",
            description=f"{kind.about} The whole object is replaced: members left out get their defaults. {_READ_ONLY}",
            body=kind,
            answer=kind,
            problems=(409, *self._changing),
            also_creates=True,
        )
        async def put_object(
            name: NamePath,
            body: Spec,
            request: Request,
            force: bool = Depends(saving.force),
        ) -> Response:
            spec = named(body, name)
            creating, replacing = await saving.prepare(spec, name, force)
            preconditions.check(request, self.etag(name))
            if exists(service, name):
                saved: Response = answer(service.replace(name, spec, **replacing))
            else:
                saved = created_answer(request, service.create(spec, **creating))
            return self.with_etag(request, saved, name)

    def _add_delete(self) -> None:
        kind, service = self.kind, self._service

        @self.ops.delete(
            self.one,
            f"delete{kind.id}",
            f"Delete {kind.one}",
            description="Refused while other objects use it, and where a configuration file defines it.",
            problems=(404, 409, 422, *self._changing),
        )
        def delete_object(
            name: NamePath,
            request: Request,
            options: Any = Depends(self._saving.deleting),  # noqa: B008
        ) -> None:
            preconditions.check(request, self.etag(name))
            service.delete(name, **options)

    def _add_patch(self) -> None:
        kind, service, saving = self.kind, self._service, self._saving

        @self.ops.patch(
            self.one,
            f"patch{kind.id}",
            f"Change members of {kind.one}",
            description="JSON Merge Patch (RFC 7396): members sent replace those saved, null restores a default.",
            body=kind,
            is_patch=True,
            answer=kind,
            problems=(404, 409, 412),
        )
        async def patch_object(
            name: NamePath,
            body: Spec,
            request: Request,
            force: bool = Depends(saving.force),
        ) -> Response:
            etag, spec = self.etag(name), named(service.patched(name, body), name)
            _, options = await saving.prepare(spec, name, force)
            preconditions.check(request, self.etag(name))
            if self.etag(name) != etag:  # changed while it was prepared
                spec = named(service.patched(name, body), name)
            return self.with_etag(request, answer(service.replace(name, spec, **options)), name)

    def _add_switch(self, switch: Switch) -> None:
        kind = self.kind
        summary, _, _ = switch.text.format(kind.one).partition(". ")

        @self.ops.post(
            f"{self.one}:{switch.verb}",
            f"{switch.verb}{kind.id}",
            summary.removesuffix("."),
            description=f"{switch.text.format(kind.one)} Returns the {kind.name}.",
            answer=kind,
            problems=(404, 409, 422),
        )
        def switched(name: NamePath) -> Any:
            return switch.call(self._service, name)

    def _add_tests(self) -> None:
        kind, service = self.kind, self._service
        steps = "Opens a connection of its own and reports each step: resolve, connect, TLS, authenticate and so on."

        @self.ops.post(
            f"{self.one}:test",
            f"test{kind.id}",
            f"Test {kind.one} step by step",
            description=steps,
            answer=ProbeResult,
            problems=(404, 422),
        )
        async def test(name: NamePath) -> Spec:
            return await service.test(name)

        @self.ops.post(
            f"{self.all}:probe",
            f"probe{kind.id}",
            f"Test {kind.one} that is not saved",
            description=f"{steps} Nothing is saved.",
            body=kind,
            answer=ProbeResult,
        )
        async def probe(body: Spec) -> Spec:
            return await service.probe(body)

    def _add_metrics(self) -> None:
        kind, service = self.kind, self._service
        self.show(
            "/metrics",
            f"get{kind.id}Metrics",
            f"Show the counters and rates of {kind.one}",
            "Counted since the start of the broker or the last reset. Rates are per second.",
            service.metrics,
        )

        @self.ops.post(
            f"{self.one}/metrics:reset",
            f"reset{kind.id}Metrics",
            f"Reset the counters of {kind.one}",
            description="Sets its counters to zero.",
            problems=(404, 422),
        )
        def reset_metrics(name: NamePath) -> None:
            service.reset_metrics(name)

    def _add_reorder(self) -> None:
        kind, service = self.kind, self._service

        @self.ops.post(
            f"{self.all}:reorder",
            f"reorder{kind.ids}",
            f"Change the order of {kind.many}",
            description="Each must be named once. Objects that a configuration file defines come first.",
            answer=kind,
            is_list=True,
            problems=(409,),
        )
        def reorder_objects(body: Order) -> Spec:
            service.reorder(body.order)
            return page_of(service.list(), 1000, None)


def page_of(objects: Sequence[Spec], limit: int, cursor: str | None, named_by: str = "name") -> Spec:
    """A page of objects that have this member as their name."""
    start = 0
    if cursor is not None:
        position, name = decode_cursor(cursor)  # behind the object of that name, or where it was when it is gone
        start = next((at + 1 for at, spec in enumerate(objects) if spec.get(named_by) == name), position)
    items = objects[start : start + limit]
    end = start + len(items)
    following = encode_cursor(end - 1, items[-1][named_by]) if items and end < len(objects) else None
    return {"items": items, "next": following, "total": len(objects), "total_is_estimate": False}


def whole_list(items: Sequence[Spec]) -> Spec:
    """All of a list as its only page."""
    return {"items": items, "next": None, "total": len(items), "total_is_estimate": False}


def named(spec: Spec, name: str | None, member: str = "name") -> Spec:
    """The spec with its name, which may be left out where the path or another member has it.

    Raises:
        broker.core.errors.Invalid: no name, not a string, malformed, or another than the path's.
    """
    given = spec.get("name", name or spec.get(member))
    if not isinstance(given, str):
        got = "nothing" if given is None else jsontext.encode(given).decode()[:60]
        raise Invalid("the object cannot be saved", [Problem(f"expected a string, got {got}", f"/{member}")])
    if name is not None and given != name:
        differ = Problem(f"it is {given!r}, and {name!r} in the path", "/name", suggestion="leave it out of the body")
        raise Invalid("the name in the body is another", [differ])
    return {**spec, "name": checked_name(given)}


def exists(service: ObjectService, name: str) -> bool:
    try:
        service.get(name)
    except NotFound:
        return False
    return True


def created_answer(request: Request, spec: Spec) -> Response:
    response = answer(spec, 201)
    path = request.url.path
    response.headers["Location"] = path if request.method == "PUT" else f"{path}/{spec['name']}"
    return response
