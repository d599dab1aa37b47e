"""The routes of every kind of objects, from what the kind declares (``broker.core.kinds``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import isawaitable
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
from ui.api.models.shapes import Object, ObjectList, Order
from ui.api.object_routes import ObjectRoutes
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name, decode_cursor, encode_cursor
from ui.api.rule_filters import RuleFilter
from ui.api.wire import answer, read_model, read_object


class Selection(Protocol):
    """Which objects a list is to hold."""

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]: ...


class Everything:
    """No choice."""

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]:
        """All of them."""
        return list(objects)


class Objects(ObjectService, Protocol):
    """The service of a kind. What a kind's abilities do not name, its service need not have."""

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


class KindRoutes:
    """Adds the routes of one kind."""

    def __init__(self, router: APIRouter, kind: Kind, service: Any) -> None:
        self._router, self.kind = router, kind
        self._service: Objects = service
        self._all, self._one = f"/{kind.path}", f"/{kind.path}/{{name}}"
        self.tags: list[Any] = [kind.tag]
        self._changing = (412,) if kind.abilities.has_etag else ()

    def add_all(self) -> None:
        """Everything that the kind declares."""
        self.add_reading()
        self._add_create()
        self._add_put()
        self._add_delete()
        if self.kind.abilities.can_patch:
            self._add_patch()
        self.add_abilities()

    def add_reading(self) -> None:
        """List and show."""
        kind, service = self.kind, self._service

        @self._router.get(
            self._all,
            operation_id=f"list{kind.ids}",
            tags=self.tags,
            summary=f"List {kind.many}",
            description=f"{kind.about} Returns a page of them in their order.",
            **described(answer=ObjectList, problems=(422,)),
        )
        async def list_objects(
            limit: Limit = 100,
            cursor: Cursor = None,
            wanted: Any = Depends(_FILTERS.get(kind.path, Everything)),  # noqa: B008 # the way FastAPI wants it
        ) -> Response:
            return answer(page_of(wanted.select(service.list()), limit, cursor))

        @self._router.get(
            self._one,
            operation_id=f"get{kind.id}",
            tags=self.tags,
            summary=f"Show {kind.one}",
            description=f"Returns the {kind.name} with its defaults and with read-only members such as its state.",
            **described(answer=Object, problems=(404, 422)),
        )
        async def get_object(name: NamePath, request: Request) -> Response:
            return self.with_etag(request, answer(service.get(checked_name(name))), name)

    def create(self) -> dict[str, Any]:
        """How creation is described."""
        kind = self.kind
        return {
            "path": self._all,
            "operation_id": f"create{kind.id}",
            "tags": self.tags,
            "summary": f"Create {kind.one}",
            "description": f"{kind.about} {_READ_ONLY}",
            **described(body=kind, answer=Object, status=201, problems=(409,)),
        }

    def put(self) -> dict[str, Any]:
        """How creation or replacement is described."""
        kind = self.kind
        return {
            "path": self._one,
            "operation_id": f"put{kind.id}",
            "tags": self.tags,
            "summary": f"Create or replace {kind.one}",
            "description": f"{kind.about} The whole object is replaced: members left out get their defaults. "
            f"{_READ_ONLY}",
            **described(body=kind, answer=Object, problems=(409, *self._changing), also_creates=True),
        }

    def delete(self) -> dict[str, Any]:
        """How deletion is described."""
        kind = self.kind
        return {
            "path": self._one,
            "operation_id": f"delete{kind.id}",
            "tags": self.tags,
            "summary": f"Delete {kind.one}",
            "description": "Refused while other objects use it, and where a configuration file defines it.",
            **described(status=204, problems=(404, 409, 422, *self._changing)),
        }

    def patch(self) -> dict[str, Any]:
        """How a change of members is described."""
        kind = self.kind
        return {
            "path": self._one,
            "operation_id": f"patch{kind.id}",
            "tags": self.tags,
            "summary": f"Change members of {kind.one}",
            "description": "JSON Merge Patch (RFC 7396): members sent replace those saved, null restores a default.",
            **described(body=kind, is_patch=True, answer=Object, problems=(404, 409, 412)),
        }

    def add_abilities(self) -> None:
        """The verbs of the kind's abilities, but for patches."""
        kind, service, abilities = self.kind, self._service, self.kind.abilities
        for switch in abilities.switches:
            self._add_switch(switch)
        if abilities.has_probe:
            self._add_tests()
        if abilities.has_metrics:
            one = ObjectRoutes(self._router, self._one, kind.tag)
            one.show(
                "/metrics",
                f"get{kind.id}Metrics",
                f"Show the counters and rates of {kind.one}",
                "Counted since the start of the broker or the last reset. Rates are per second.",
                lambda name: service.metrics(name),
            )
            one.act(
                "/metrics:reset",
                f"reset{kind.id}Metrics",
                f"Reset the counters of {kind.one}",
                "Sets its counters to zero.",
                lambda name: service.reset_metrics(name),
            )
        if abilities.can_reorder:
            self._add_reorder()

    def etag(self, name: str) -> str | None:
        """The object's ETag; None where there is no such object, or its kind has none."""
        return self._service.etag(name) if self.kind.abilities.has_etag and exists(self._service, name) else None

    def with_etag(self, request: Request, response: Response, name: str) -> Response:
        """The answer with the object's ETag."""
        return preconditions.with_etag(request, response, self.etag(name))

    def _add_create(self) -> None:
        @self._router.post(**self.create())
        async def create_object(request: Request) -> Response:
            created = self._service.create(named(await read_object(request), None, self.kind.named_by))
            return self.with_etag(request, created_answer(request, created), created["name"])

    def _add_put(self) -> None:
        service = self._service

        @self._router.put(**self.put())
        async def put_object(name: NamePath, request: Request) -> Response:
            spec = named(await read_object(request), checked_name(name))
            preconditions.check(request, self.etag(name))
            if exists(service, name):
                saved: Response = answer(service.replace(name, spec))
            else:
                saved = created_answer(request, service.create(spec))
            return self.with_etag(request, saved, name)

    def _add_delete(self) -> None:
        @self._router.delete(**self.delete())
        async def delete_object(name: NamePath, request: Request) -> Response:
            preconditions.check(request, self.etag(checked_name(name)))
            self._service.delete(name)
            return Response(status_code=204)

    def _add_patch(self) -> None:
        service = self._service

        @self._router.patch(**self.patch())
        async def patch_object(name: NamePath, request: Request) -> Response:
            patch = await read_object(request)
            spec = named(service.patched(checked_name(name), patch), name)
            preconditions.check(request, self.etag(name))
            return self.with_etag(request, answer(service.replace(name, spec)), name)

    def _add_switch(self, switch: Switch) -> None:
        kind = self.kind
        summary, _, _ = switch.text.format(kind.one).partition(". ")

        @self._router.post(
            f"{self._one}:{switch.verb}",
            operation_id=f"{switch.verb}{kind.id}",
            tags=self.tags,
            summary=summary.removesuffix("."),
            description=f"{switch.text.format(kind.one)} Returns the {kind.name}.",
            **described(answer=Object, problems=(404, 409, 422)),
        )
        async def switched(name: NamePath) -> Response:
            found = switch.call(self._service, checked_name(name))
            return answer(await found if isawaitable(found) else found)

    def _add_tests(self) -> None:
        kind, service = self.kind, self._service
        steps = "Opens a connection of its own and reports each step: resolve, connect, TLS, authenticate and so on."

        @self._router.post(
            f"{self._one}:test",
            operation_id=f"test{kind.id}",
            tags=self.tags,
            summary=f"Test {kind.one} step by step",
            description=steps,
            **described(answer=ProbeResult, problems=(404, 422)),
        )
        async def test(name: NamePath) -> Response:
            return answer(await service.test(checked_name(name)))

        @self._router.post(
            f"{self._all}:probe",
            operation_id=f"probe{kind.id}",
            tags=self.tags,
            summary=f"Test {kind.one} that is not saved",
            description=f"{steps} Nothing is saved.",
            **described(body=kind, answer=ProbeResult),
        )
        async def probe(request: Request) -> Response:
            return answer(await service.probe(await read_object(request)))

    def _add_reorder(self) -> None:
        kind, service = self.kind, self._service

        @self._router.post(
            f"{self._all}:reorder",
            operation_id=f"reorder{kind.ids}",
            tags=self.tags,
            summary=f"Change the order of {kind.many}",
            description="Each must be named once. Objects that a configuration file defines come first.",
            **described(body=Order, answer=ObjectList, problems=(409,)),
        )
        async def reorder_objects(request: Request) -> Response:
            service.reorder((await read_model(request, Order)).order)
            return answer(page_of(service.list(), 1000, None))


def page_of(objects: Sequence[Spec], limit: int, cursor: str | None) -> Spec:
    start = 0 if cursor is None else _after(objects, *decode_cursor(cursor))
    items = objects[start : start + limit]
    end = start + len(items)
    following = encode_cursor(end - 1, items[-1]["name"]) if items and end < len(objects) else None
    return {"items": items, "next": following, "total": len(objects), "total_is_estimate": False}


def whole_list(items: Sequence[Spec]) -> Spec:
    """All of a list as its only page."""
    return {"items": items, "next": None, "total": len(items), "total_is_estimate": False}


def _after(objects: Sequence[Spec], position: int, name: str) -> int:
    """Behind the object of that name, or where it stood when it is gone."""
    return next((index + 1 for index, spec in enumerate(objects) if spec.get("name") == name), position)


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
