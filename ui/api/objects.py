"""The five verbs of every kind of objects: list, create, show, replace, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from broker.core import jsontext
from broker.core.errors import Invalid, NotFound, Problem
from broker.core.objects import ObjectService, Spec
from ui.api import preconditions
from ui.api.gate_filters import gate_filter
from ui.api.models.access import AccessRuleSpec, AuthenticatorSpec, RuleSourceSpec
from ui.api.models.bridges import ActionSpec, ConnectorSpec, SourceSpec
from ui.api.models.clients import AutoSubscriptionSpec
from ui.api.models.gates import TransformSpec, ValidationSpec
from ui.api.models.messages import RewriteSpec
from ui.api.models.rules import RuleSpec
from ui.api.models.schemas import SchemaRegistrySpec, SchemaSpec
from ui.api.models.shapes import Object, ObjectList, ObjectPatch, Order
from ui.api.models.streams import StreamSpec, TableSpec
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name, decode_cursor, encode_cursor
from ui.api.wire import answer, read_object


class Selection(Protocol):
    """Which objects a list is to hold."""

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]: ...


class Everything:
    """No choice."""

    def select(self, objects: Iterable[Spec]) -> Sequence[Spec]:
        """All of them."""
        return list(objects)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects: its path, the word for one in operation identifiers, its tag, and its body.

    ``filter`` makes the choice of a list from query parameters. ``named_by`` is the member that names an object.
    """

    path: str
    singular: str
    plural: str
    tag: str
    model: type[BaseModel]
    filter: Callable[..., Selection] = Everything
    named_by: str = "name"

    @property
    def one(self) -> str:
        """The path of one of them."""
        return f"/{self.path}/{{name}}"

    @property
    def word(self) -> str:
        """One of them in a sentence: ``an access rule``."""
        text = _spaced(self.singular)
        return f"{'an' if text[0] in 'aeio' else 'a'} {text}"

    @property
    def words(self) -> str:
        """Many of them: ``access rules``."""
        return _spaced(self.plural)


def _preconditions(service: ObjectService) -> tuple[int, ...]:
    """The status of a call whose precondition does not hold, where the kind has those."""
    return (412,) if hasattr(service, "etag") else ()


def _spaced(name: str) -> str:
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()


KINDS: Sequence[Kind] = (
    Kind("schemas", "Schema", "Schemas", "Schemas", SchemaSpec),
    Kind("schema-registries", "SchemaRegistry", "SchemaRegistries", "Schemas", SchemaRegistrySpec),
    Kind("validations", "Validation", "Validations", "Validations", ValidationSpec, gate_filter),
    Kind("transforms", "Transform", "Transforms", "Transforms", TransformSpec, gate_filter),
    Kind("rules", "Rule", "Rules", "Rules", RuleSpec),
    Kind("streams", "Stream", "Streams", "Streams", StreamSpec),
    Kind("access/rules", "AccessRule", "AccessRules", "Access", AccessRuleSpec),
    Kind("authentication", "Authenticator", "Authenticators", "Access", AuthenticatorSpec, named_by="mechanism"),
    Kind("authorization/sources", "RuleSource", "RuleSources", "Access", RuleSourceSpec, named_by="type"),
    Kind("rewrites", "Rewrite", "Rewrites", "Topics", RewriteSpec),
    Kind("auto-subscriptions", "AutoSubscription", "AutoSubscriptions", "Topics", AutoSubscriptionSpec),
    Kind("lake/tables", "Table", "Tables", "Lake", TableSpec),
    Kind("connectors", "Connector", "Connectors", "Bridges", ConnectorSpec),
    Kind("actions", "Action", "Actions", "Bridges", ActionSpec),
    Kind("sources", "Source", "Sources", "Bridges", SourceSpec),
)

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many objects.")]
Cursor = Annotated[str | None, Query(description="'next' of the page before.")]


def add_kind(router: APIRouter, kind: Kind, service: ObjectService) -> None:
    """Add the routes of one kind. A service with ``etag`` has preconditions, one with ``patched`` takes patches."""
    _add_list(router, kind, service)
    _add_create(router, kind, service)
    _add_get(router, kind, service)
    _add_put(router, kind, service)
    _add_delete(router, kind, service)
    if hasattr(service, "patched"):
        _add_patching(router, kind, service)
    reorder = getattr(service, "reorder", None)
    if reorder is not None:
        add_reorder(router, kind, service, reorder)


def _add_list(router: APIRouter, kind: Kind, service: ObjectService) -> None:
    @router.get(
        f"/{kind.path}",
        operation_id=f"list{kind.plural}",
        tags=[kind.tag],
        summary=f"List {kind.words} in their order",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_objects(
        limit: Limit = 100,
        cursor: Cursor = None,
        wanted: Any = Depends(kind.filter),  # noqa: B008 # the way FastAPI wants it
    ) -> Response:
        return answer(page_of(wanted.select(service.list()), limit, cursor))


def _add_create(router: APIRouter, kind: Kind, service: ObjectService) -> None:
    @router.post(
        f"/{kind.path}",
        operation_id=f"create{kind.singular}",
        tags=[kind.tag],
        summary=f"Create {kind.word}",
        **described(body=kind.model, answer=Object, status=201, problems=(409,)),
    )
    async def create_object(request: Request) -> Response:
        spec = await read_object(request)
        created = service.create(named(spec, None, kind.named_by))
        return preconditions.with_etag(request, created_answer(request, created), etag_of(service, created["name"]))


def _add_get(router: APIRouter, kind: Kind, service: ObjectService) -> None:
    @router.get(
        kind.one,
        operation_id=f"get{kind.singular}",
        tags=[kind.tag],
        summary=f"Show {kind.word}",
        **described(answer=Object, problems=(404, 422)),
    )
    async def get_object(name: NamePath, request: Request) -> Response:
        shown = answer(service.get(checked_name(name)))
        return preconditions.with_etag(request, shown, etag_of(service, name))


def _add_put(router: APIRouter, kind: Kind, service: ObjectService) -> None:
    @router.put(
        kind.one,
        operation_id=f"put{kind.singular}",
        tags=[kind.tag],
        summary=f"Create or replace {kind.word}",
        **described(body=kind.model, answer=Object, problems=(409, *_preconditions(service)), also_creates=True),
    )
    async def put_object(name: NamePath, request: Request) -> Response:
        spec = named(await read_object(request), checked_name(name))
        preconditions.check(request, etag_of(service, name))
        if exists(service, name):
            saved: Response = answer(service.replace(name, spec))
        else:
            saved = created_answer(request, service.create(spec))
        return preconditions.with_etag(request, saved, etag_of(service, name))


def _add_delete(router: APIRouter, kind: Kind, service: ObjectService) -> None:
    @router.delete(
        kind.one,
        operation_id=f"delete{kind.singular}",
        tags=[kind.tag],
        summary=f"Delete {kind.word}",
        **described(status=204, problems=(404, 409, 422, *_preconditions(service))),
    )
    async def delete_object(name: NamePath, request: Request) -> Response:
        preconditions.check(request, etag_of(service, checked_name(name)))
        service.delete(name)
        return Response(status_code=204)


def _add_patching(router: APIRouter, kind: Kind, service: Any) -> None:
    @router.patch(
        kind.one,
        operation_id=f"patch{kind.singular}",
        tags=[kind.tag],
        summary=f"Change members of {kind.word}, by JSON Merge Patch",
        **described(body=ObjectPatch, answer=Object, problems=(404, 409, 412)),
    )
    async def patch_object(name: NamePath, request: Request) -> Response:
        patch = await read_object(request)
        spec = named(service.patched(checked_name(name), patch), name)
        preconditions.check(request, etag_of(service, name))
        return preconditions.with_etag(request, answer(service.replace(name, spec)), etag_of(service, name))


def etag_of(service: Any, name: str) -> str | None:
    """The object's ETag; None where there is no such object, or its kind has none."""
    find = getattr(service, "etag", None)
    return find(name) if find is not None and exists(service, name) else None


def add_reorder(
    router: APIRouter, kind: Kind, service: ObjectService, reorder: Callable[[Sequence[str]], None]
) -> None:
    """Add the route that brings the objects of a kind into another order."""

    @router.post(
        f"/{kind.path}:reorder",
        operation_id=f"reorder{kind.plural}",
        tags=[kind.tag],
        summary=f"Bring all {kind.words} into an order; each must be named once",
        **described(body=Order, answer=ObjectList, problems=(409,)),
    )
    async def reorder_objects(request: Request) -> Response:
        order = (await read_object(request)).get("order")
        if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
            raise Invalid("the order cannot be used", [Problem("expected an array of names", "/order")])
        reorder(order)
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
