"""Routes of schemas that save: versions, compatibility modes, bundles.

Compiling and comparing run on threads of their own with a deadline (``ui.api.deadline``), so that a slow schema does
not hold up other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from broker.core.contributor import Contributors
from broker.core.errors import Invalid, Problem
from broker.core.kinds import Kind
from broker.core.objects import Reference, Spec, Version
from broker.core.schema import SchemaEffect
from schema_validation.service import SchemaService
from ui.api import preconditions
from ui.api.bundles import add_bundles
from ui.api.context import ApiContext
from ui.api.deadline import BoundedCalls
from ui.api.effects import DryRun, effect_of, users_of, would_change
from ui.api.json_bodies import answer
from ui.api.models.schemas import (
    Compatibility,
)
from ui.api.objects import KindRoutes, Options, Saving
from ui.api.operation import Operations
from ui.api.parameters import NamePath

# Longest compilation of a schema that is saved.
COMPILE_S = 5.0

Force = Annotated[bool, Query(description="Do it even when it breaks objects that use the schema.")]
Permanent = Annotated[
    bool,
    Query(description="Delete it permanently; else its versions are still found by their ids."),
]
VersionPath = Annotated[
    str, Path(description="The number of a version, 'latest', or 'current' for the one in use.")
]

_ONE = "/schemas/{name}"
_VERSION = f"{_ONE}/versions/{{version}}"


async def _forced(force: Force = False) -> bool:
    return force


async def _deleting(force: Force = False, permanent: Permanent = False) -> Options:
    return {"force": force, "permanent": permanent}


def add_schemas(router: APIRouter, kind: Kind, service: Any, context: ApiContext) -> KindRoutes:
    """Add saving and deleting schemas and their versions, which compile and compare, and compatibility modes."""
    compiling = BoundedCalls(COMPILE_S, slots=2)

    async def prepare(spec: Spec, name: str | None, force: bool) -> tuple[Options, Options]:
        prepared = await compiling.run("compiling the schema", service.prepare(spec, name))
        return {"prepared": prepared}, {"prepared": prepared, "force": force}

    def impact(prepared: Options) -> Sequence[SchemaEffect]:
        return service.impact_of(prepared["prepared"].schema) if prepared else ()

    routes = KindRoutes(
        router,
        kind,
        service,
        context,
        Saving(prepare, _forced, forces_new=False, impact=impact, deleting=_deleting),
    )
    routes.add()
    add_bundles(routes, kind, service, compiling)
    _add_versions(routes, service, kind)
    _add_modes(routes.ops, service)
    return routes


def _add_versions(routes: KindRoutes, service: SchemaService, kind: Kind) -> None:
    ops = routes.ops

    @ops.delete(
        _VERSION,
        "deleteSchemaVersion",
        "Delete a version of a schema",
        problems=(409, 412),
        may_be_dry=True,
    )
    async def delete_version(
        name: NamePath,
        version: VersionPath,
        request: Request,
        force: Force = False,
        permanent: Permanent = False,
        dry_run: DryRun = False,
    ) -> Any:
        """Payloads that name the version by its identifier can still be decoded, unless `permanent` is set. Deleting
        the last version deletes the schema.
        """
        routes.check(request, name)
        number = _number(version)
        delete = partial(service.delete_version, name, number, force=force, permanent=permanent)
        if not dry_run:
            return delete()
        changes = await would_change(delete)
        affected = users_of(
            Contributors(), Reference(kind.name, name), service.effects_of_deleting(name, number)
        )
        gone = {"name": name, "version": number}
        return answer(effect_of("delete" if changes else "none", gone, None, affected))

    @ops.post(
        f"{_VERSION}:use",
        "useSchemaVersion",
        "Use another version of a schema",
        answer=kind,
        problems=(409, 412),
        may_be_dry=True,
    )
    async def use_version(
        name: NamePath,
        version: VersionPath,
        request: Request,
        force: Force = False,
        dry_run: DryRun = False,
    ) -> Any:
        """Payloads are encoded and decoded with this version from now on. Use it to roll back a change."""
        chosen = service.version(name, version)
        routes.check(request, name)
        use = partial(service.use, name, chosen["version"], force=force)
        return await routes.written(
            request, name, {**service.get(name), **chosen}, use, is_dry=dry_run
        )


def _add_modes(ops: Operations, service: SchemaService) -> None:
    def add(path: str, subject: str, what: str, mode_name: Callable[..., Any]) -> None:
        @ops.get(
            path,
            f"get{subject}Compatibility",
            f"Show the compatibility mode {what}",
            answer=Compatibility,
        )
        def get_mode(request: Request, name: Any = Depends(mode_name)) -> Any:
            """The mode says what a new version of a schema must be compatible with."""
            return answered(request, service.mode_of(name))

        @ops.put(
            path,
            f"put{subject}Compatibility",
            f"Set the compatibility mode {what}",
            answer=Compatibility,
            problems=(409, 412),
        )
        def put_mode(body: Compatibility, request: Request, name: Any = Depends(mode_name)) -> Any:
            """Versions that are saved from now on must be compatible as the mode says; saved ones stay."""
            preconditions.check(request, Version(service.mode_of(name)))
            return answered(request, service.set_mode(name, body.compatibility))

    def answered(request: Request, mode: str) -> Response:
        return preconditions.with_etag(request, answer({"compatibility": mode}), mode)

    async def of_schema(name: NamePath) -> str:
        service.get(name)
        return name

    add("/schemas:compatibility", "Registry", "of schemas without one of their own", _of_all)
    add(f"{_ONE}/compatibility", "Schema", "of a schema", of_schema)


async def _of_all() -> None:
    """The mode of schemas without one of their own belongs to no name."""


def _number(version: str) -> int:
    if not (version.isascii() and version.isdecimal() and len(version) < 10):
        problem = Problem(f"expected the number of a version, got {version!r}", "/path/version")
        raise Invalid("the version cannot be deleted", [problem])
    return int(version)
