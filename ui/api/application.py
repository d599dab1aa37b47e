"""The management API, put together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from broker.core.kinds import Kind, kinds
from broker.core.resources import resources
from schema_validation.kinds import MODE
from ui.api import node, pages, registry, topics
from ui.api.access import add_users
from ui.api.audit import Auditing
from ui.api.backups import add_backups
from ui.api.context import ApiContext
from ui.api.deadline import BoundedCalls
from ui.api.document import install as install_document
from ui.api.ingest import add_ingest
from ui.api.jobs import BacktestJobs
from ui.api.live import add_live
from ui.api.messages import add_publishing
from ui.api.middleware import Edge
from ui.api.mqtt_clients import add_mqtt_clients
from ui.api.objects import KindRoutes, Saving, draining
from ui.api.operation import EncodedRoute
from ui.api.parameters import refuse_unknown_parameters
from ui.api.problems import install as install_problems
from ui.api.resources import ResourceRoutes
from ui.api.revert import AuditTrail
from ui.api.rules import add_catalogues, add_rules
from ui.api.schemas import add_schemas
from ui.api.security import require_right, require_same_origin
from ui.api.streams import add_imports, add_replays, add_streams

BASE = "/api/v1"


def create_app(context: ApiContext) -> FastAPI:
    """The ASGI application over what the server offers; it has paths only for the services in ``context``."""
    app = FastAPI(
        title="Sluice management API",
        version=context.version,
        summary="Schemas, validations, transformations, rules, streams and tables of a Sluice broker.",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.context = context
    install_problems(app)
    sign_in = APIRouter(prefix=BASE, dependencies=[Depends(require_same_origin)])
    node.add_sign_in(sign_in)
    # Routes themselves: FastAPI works out those of an included router once more, which takes as long as making them.
    app.router.routes += (*_operations(context).routes, *sign_in.routes, *node.probes.routes)
    add_live(app, BASE, context)
    add_mqtt_clients(app, BASE, context)
    add_ingest(app, context)
    schemas: Any = context.services.get("schemas")
    if schemas is not None:
        app.mount(registry.PATH, registry.registry_app(schemas, context))
    pages.add_pages(app)
    install_document(app, f"{BASE}/openapi.json")
    app.add_middleware(Edge, settings=context.api_settings, auditing=Auditing(context))
    return app


def _operations(context: ApiContext) -> APIRouter:
    router = APIRouter(
        prefix=BASE,
        dependencies=[Depends(require_right), Depends(refuse_unknown_parameters)],
        route_class=EncodedRoute,
    )
    add_publishing(router, context)
    node.add_identity(router)
    calls = BoundedCalls(context.verb_timeout_s, is_put_off=context.defers_work)
    if context.streams is not None:
        add_streams(router, context.streams, calls)
    if context.lake is not None:
        context.lake.starts_audits(partial(context.jobs.start, "audit"))
    parts: Sequence[tuple[Callable[..., None], Any]] = (
        (topics.add_tails, context.tails),
        (topics.add_capture_files, context.captures),
        (add_backups, context.backups),
    )
    for add, part in parts:
        if part is not None:
            add(router, part)
    add_catalogues(router, context)
    rules: Any = context.services.get("rules")
    if rules is not None:
        context.jobs.sources.append(BacktestJobs(rules, context.jobs))
    if context.replays is not None:
        context.jobs.sources.append(context.replays)
        add_replays(router, context.replays, context.jobs)
    if context.imports is not None:
        add_imports(router, context.imports)
    offered = [kind for kind in kinds() if kind.path in context.services]
    # objects with any name would take what is below them for a name
    below = tuple(f"/{kind.path}/{{name}}/" for kind in offered if kind.has_any_name)
    for resource in resources():
        if resource.path.startswith(below):
            ResourceRoutes(router, resource, context, calls).add()
    routes = {kind.name: _add_kind(router, kind, context, calls) for kind in offered}
    modes = context.service("services.schemas.modes")
    if modes is not None:
        routes[MODE.name] = KindRoutes(router, MODE, modes, context)
    if context.audit_log is not None:
        context.audit_trail = AuditTrail(context.audit_log, routes)
    for resource in resources():
        if not resource.path.startswith(below):
            ResourceRoutes(router, resource, context, calls).add()
    return router


def _add_kind(
    router: APIRouter, kind: Kind, context: ApiContext, calls: BoundedCalls
) -> KindRoutes:
    """Add a kind, with its routes in addition to the declared ones."""
    service: Any = context.services[kind.path]
    match kind.path:
        case "rules":
            return add_rules(router, kind, service, context, calls)
        case "schemas":
            return add_schemas(router, kind, service, context)
        case "listeners":
            routes = KindRoutes(
                router, kind, service, context, Saving(patching=draining, deleting=draining)
            )
        case _:
            routes = KindRoutes(router, kind, service, context)
    routes.add()
    match kind.path:
        case "listeners":
            node.add_listeners(routes)
        case "users" if context.access is not None:
            add_users(routes, context.access)
    return routes
