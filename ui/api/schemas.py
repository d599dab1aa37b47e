"""Schemas over HTTP: versions, who uses them, what a change would do, and the calls that try one.

Compiling and comparing run on threads of their own with a deadline (``ui.api.deadline``), so that a schema that takes
long holds up nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol, runtime_checkable

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.kinds import Kind
from broker.core.objects import ObjectService, Spec
from ui.api.bundles import add_bundles
from ui.api.deadline import BoundedCalls
from ui.api.models.schemas import (
    Compatibility,
    InferredSchema,
    RegisteredDecode,
    RegisteredEncode,
    RegisteredValidate,
    SchemaDifference,
    SchemaInference,
    SchemaSource,
    SchemaUsers,
)
from ui.api.models.shapes import Anything, Object, ObjectList
from ui.api.object_routes import ObjectRoutes
from ui.api.objects import KindRoutes, created_answer, exists, named, page_of
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.wire import Json, answer, plain, read_model, read_object

SCHEMAS = "schemas"
"""The path of the kind."""
COMPILE_S = 5.0
"""Longest compilation of a schema that is saved."""

Force = Annotated[bool, Query(description="Do it even when it breaks who uses the schema.")]
Permanent = Annotated[bool, Query(description="Forget it for good; else its versions are still found by their ids.")]
VersionPath = Annotated[str, Path(description="The number of a version, 'latest', or 'current' for the one in use.")]

_TAG = "Schemas"
_TAGS: list[Any] = [_TAG]
_ONE = "/schemas/{name}"
_VERSION = f"{_ONE}/versions/{{version}}"


@runtime_checkable
class SchemaVerbs(ObjectService, Protocol):
    """The service of schemas (``schema_validation.service``)."""

    def prepare(self, spec: Spec, name: str | None = None) -> Callable[[], Any]: ...

    def version(self, name: str, number: str) -> Spec: ...

    def use(self, name: str, version: int, *, force: bool = False) -> Spec: ...

    def delete_version(self, name: str, number: int, *, force: bool = False, permanent: bool = False) -> None: ...

    def users(self, name: str) -> Spec: ...

    def difference(self, name: str, before: str, after: str) -> Spec: ...

    def mode_of(self, name: str | None) -> str: ...

    def set_mode(self, name: str | None, mode: str) -> str: ...

    def prepare_check(self, body: Spec) -> Callable[[], Spec]: ...

    def prepare_infer(self, body: Spec) -> Callable[[], Spec]: ...

    def decode(self, body: Spec) -> Spec: ...

    def encode(self, body: Spec) -> Spec: ...

    def validate(self, body: Spec) -> Spec: ...


def add_schemas(router: APIRouter, kind: Kind, service: Any, calls: BoundedCalls) -> None:
    """Add all that schemas have, but for the calls that name none (``ui.api.verbs``)."""
    one, routes = ObjectRoutes(router, _ONE, _TAG), KindRoutes(router, kind, service)
    routes.add_reading()
    one.show(
        "/users",
        "getSchemaUsers",
        "Show which objects use a schema",
        "Validations, transformations and rules that name it, and schemas that refer to it.",
        service.users,
        SchemaUsers,
    )
    compiling = BoundedCalls(COMPILE_S, slots=2)
    _add_writing(router, routes, service, compiling)
    add_bundles(router, service, compiling)
    _add_versions(router, one, service)
    _add_modes(router, service)
    _add_trying(router, service, calls)


def _add_writing(router: APIRouter, routes: KindRoutes, service: Any, compiling: BoundedCalls) -> None:
    @router.post(**routes.create())
    async def create_schema(request: Request) -> Response:
        spec = named(await read_object(request), None)
        prepared = await compiling.run("compiling the schema", service.prepare(spec))
        return created_answer(request, service.create(spec, prepared))

    @router.put(**routes.put())
    async def put_schema(name: NamePath, request: Request, force: Force = False) -> Response:
        spec = named(await read_object(request), checked_name(name))
        prepared = await compiling.run("compiling the schema", service.prepare(spec, name))
        if exists(service, name):
            return answer(service.replace(name, spec, force=force, prepared=prepared))
        return created_answer(request, service.create(spec, prepared))

    @router.delete(**routes.delete())
    async def delete_schema(name: NamePath, force: Force = False, permanent: Permanent = False) -> Response:
        service.delete(checked_name(name), force=force, permanent=permanent)
        return Response(status_code=204)


def _add_versions(router: APIRouter, one: ObjectRoutes, service: SchemaVerbs) -> None:
    def versions(name: str) -> Spec:
        return page_of(service.get(name)["versions"], 1000, None)

    one.show(
        "/versions",
        "listSchemaVersions",
        "List the versions of a schema",
        "Oldest first, without their sources.",
        versions,
        ObjectList,
    )

    @router.get(
        _VERSION,
        operation_id="getSchemaVersion",
        tags=_TAGS,
        summary="Show a version of a schema",
        **described(answer=Object, problems=(404, 422)),
    )
    async def get_version(name: NamePath, version: VersionPath) -> Response:
        """Returns the version with its source."""
        return answer(service.version(checked_name(name), version))

    @router.delete(
        _VERSION,
        operation_id="deleteSchemaVersion",
        tags=_TAGS,
        summary="Delete a version of a schema",
        **described(status=204, problems=(404, 409, 422)),
    )
    async def delete_version(
        name: NamePath, version: VersionPath, force: Force = False, permanent: Permanent = False
    ) -> Response:
        """Payloads that name the version by its identifier can still be decoded, unless `permanent` is set. Deleting
        the last version deletes the schema.
        """
        service.delete_version(checked_name(name), _number(version), force=force, permanent=permanent)
        return Response(status_code=204)

    @router.post(
        f"{_VERSION}:use",
        operation_id="useSchemaVersion",
        tags=_TAGS,
        summary="Use another version of a schema",
        **described(answer=Object, problems=(404, 409, 422)),
    )
    async def use_version(name: NamePath, version: VersionPath, force: Force = False) -> Response:
        """Payloads are encoded and decoded with this version from now on. Use it to roll back a change."""
        number = service.version(checked_name(name), version)["version"]
        return answer(service.use(name, number, force=force))

    @router.get(
        f"{_ONE}/diff",
        operation_id="diffSchemaVersions",
        tags=_TAGS,
        summary="Compare two versions of a schema",
        **described(answer=SchemaDifference, problems=(404, 422)),
    )
    async def diff(
        name: NamePath,
        before: Annotated[str, Query(description="A version, as in the path of one.")],
        after: Annotated[str, Query(description="Another version.")] = "current",
    ) -> Response:
        """Lists fields that were added, removed or changed, with their paths."""
        return answer(service.difference(checked_name(name), before, after))


def _add_modes(router: APIRouter, service: SchemaVerbs) -> None:
    def add(path: str, subject: str, what: str, mode_name: Callable[..., str | None]) -> None:
        @router.get(
            path,
            operation_id=f"get{subject}Compatibility",
            tags=_TAGS,
            summary=f"Show the compatibility mode {what}",
            **described(answer=Compatibility, problems=(404, 422)),
        )
        async def get_mode(name: Any = Depends(mode_name)) -> Response:  # noqa: B008 # as FastAPI declares it
            """The mode says what a new version of a schema must be compatible with."""
            return answer({"compatibility": service.mode_of(name)})

        @router.put(
            path,
            operation_id=f"put{subject}Compatibility",
            tags=_TAGS,
            summary=f"Set the compatibility mode {what}",
            **described(body=Compatibility, answer=Compatibility, problems=(404, 409)),
        )
        async def put_mode(request: Request, name: Any = Depends(mode_name)) -> Response:  # noqa: B008
            """Versions that are saved from now on must be compatible as the mode says; saved ones stay."""
            mode = (await read_model(request, Compatibility)).compatibility
            return answer({"compatibility": service.set_mode(name, mode)})

    def of_schema(name: NamePath) -> str:
        service.get(checked_name(name))
        return name

    add("/schemas:compatibility", "Registry", "of schemas without one of their own", lambda: None)
    add(f"{_ONE}/compatibility", "Schema", "of a schema", of_schema)


@dataclass(frozen=True, slots=True)
class _Try:
    """A call on a registered schema, which the path names. ``method`` prepares on the loop what then takes a while."""

    verb: str
    operation_id: str
    summary: str
    body: type[BaseModel]
    prepare: Callable[[Any, Spec], Callable[[], Mapping[str, Any]]]


_TRIES: Sequence[_Try] = (
    _Try(
        "check",
        "checkSchemaChange",
        "Check a new version of a schema",
        SchemaSource,
        lambda service, body: service.prepare_check(body),
    ),
    _Try(
        "decode",
        "decodeWithRegisteredSchema",
        "Decode a payload with a registered schema",
        RegisteredDecode,
        lambda service, body: lambda: service.decode(body),
    ),
    _Try(
        "encode",
        "encodeWithRegisteredSchema",
        "Encode a value with a registered schema",
        RegisteredEncode,
        lambda service, body: lambda: service.encode(body),
    ),
    _Try(
        "validate",
        "validateWithRegisteredSchema",
        "Validate a value or payload with a registered schema",
        RegisteredValidate,
        lambda service, body: lambda: service.validate(body),
    ),
)


def _add_trying(router: APIRouter, service: SchemaVerbs, calls: BoundedCalls) -> None:
    for item in _TRIES:
        _add_try(router, service, calls, item)

    @router.post(
        "/schemas:infer",
        operation_id="inferSchema",
        tags=["Try"],
        summary="Infer a schema from messages",
        **described(body=SchemaInference, answer=InferredSchema),
    )
    async def infer(request: Request) -> Response:
        """Learns from samples in the body, or from messages on a topic or in a stream. Nothing is saved."""
        made = service.prepare_infer(await read_object(request))
        return Json(await calls.run("schemas:infer", lambda: jsontext.encode(plain(made()))))


def _add_try(router: APIRouter, service: SchemaVerbs, calls: BoundedCalls, item: _Try) -> None:
    @router.post(
        f"{_ONE}:{item.verb}",
        operation_id=item.operation_id,
        tags=["Try"],
        summary=item.summary,
        **described(body=item.body, answer=Anything, problems=(404,)),
    )
    async def run(name: NamePath, request: Request) -> Response:
        """Uses the version in use unless the body names another. Nothing is saved."""
        body = {**(await read_object(request)), "name": checked_name(name)}
        made = item.prepare(service, body)
        return Json(await calls.run(f"schemas/{name}:{item.verb}", lambda: jsontext.encode(plain(made()))))


def _number(version: str) -> int:
    if not (version.isascii() and version.isdecimal() and len(version) < 10):
        problem = Problem(f"{version!r} is no number; a version to delete is named by its number", "/path/version")
        raise Invalid("the version cannot be deleted", [problem])
    return int(version)
