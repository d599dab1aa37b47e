"""The management API, put together."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from broker.core.kinds import Kind, kinds
from ui.api import pages, registry, system
from ui.api.access import add_access
from ui.api.alarms import add_alarms
from ui.api.bridges import add_actions, add_connectors
from ui.api.clients import add_clients
from ui.api.context import ApiContext
from ui.api.deadline import BoundedCalls
from ui.api.delayed import add_delayed
from ui.api.document import install as install_document
from ui.api.edge import Edge
from ui.api.groups import add_groups
from ui.api.ingest import add_ingest
from ui.api.lake import add_lake
from ui.api.listeners import add_listeners, add_reload, add_settings
from ui.api.messages import add_publishing
from ui.api.objects import KindRoutes
from ui.api.parameters import refuse_unknown_parameters
from ui.api.pipeline import add_pipeline
from ui.api.problems import install as install_problems
from ui.api.quarantine import add_quarantine
from ui.api.retained import add_retained
from ui.api.rules import add_rules
from ui.api.schemas import add_schemas
from ui.api.security import require_administrator
from ui.api.sessions import add_sessions
from ui.api.streams import add_streams
from ui.api.subscriptions import add_subscriptions
from ui.api.system import add_status
from ui.api.verbs import VERBS, add_verb

BASE = "/api/v1"


def create_app(context: ApiContext) -> FastAPI:
    """The ASGI application over what the server offers; it has paths for what is in ``context`` and no others."""
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
    app.include_router(_operations(context), prefix=BASE, dependencies=[Depends(require_administrator)])
    app.include_router(system.sign_in, prefix=BASE)
    app.include_router(system.probes)
    add_ingest(app, context)
    schemas: Any = context.services.get("schemas")
    if schemas is not None:
        app.mount(registry.PATH, registry.registry_app(schemas, context))
    pages.add_pages(app)
    install_document(app, f"{BASE}/openapi.json")
    app.add_middleware(Edge, settings=context.api_settings)
    _work_out_routes(app)
    return app


def _work_out_routes(app: FastAPI) -> None:
    """Look for a path that there is none of. FastAPI works out the routes of routers when it first looks through them:
    with the first request that would be a fifth of a second of the event loop, which serves MQTT clients too."""
    for route in app.routes:
        route.matches({"type": "http", "method": "GET", "path": "/\0", "root_path": "", "headers": []})


def _operations(context: ApiContext) -> APIRouter:
    router = APIRouter(dependencies=[Depends(refuse_unknown_parameters)])
    add_status(router, context)
    add_publishing(router, context)
    if context.streams is not None:
        add_streams(router, context.streams)
    if context.lake is not None:
        add_lake(router, context.lake)
    if context.alarms is not None:
        add_alarms(router, context.alarms)
    calls = BoundedCalls(context.verb_timeout_s, is_put_off=context.defers_work)
    for kind in kinds():
        if kind.path in context.services:
            _add_kind(router, kind, context.services[kind.path], calls)
    if context.listeners is not None:
        add_listeners(router, context.listeners)
    if context.reload is not None:
        add_reload(router, context.reload)
    if context.settings is not None:
        add_settings(router, context.settings)
    if context.access is not None:
        add_access(router, context.access)
    if context.delayed is not None:
        add_delayed(router, context.delayed)
    if context.groups is not None:
        add_groups(router, context.groups)
    if context.traffic is not None:
        add_clients(router, context.traffic.clients)
        add_sessions(router, context.traffic.sessions, context.clock)
        add_subscriptions(router, context.traffic.subscriptions)
        add_retained(router, context.traffic.retained)
    if context.quarantine is not None:
        add_quarantine(router, context.quarantine)
    for verb in VERBS:
        if verb.kind in context.services:
            add_verb(router, verb, context.services[verb.kind], calls)
    if context.pipeline is not None:
        add_pipeline(router, context.pipeline, calls)
    return router


def _add_kind(router: APIRouter, kind: Kind, service: Any, calls: BoundedCalls) -> None:
    match kind.path:
        case "rules":
            add_rules(router, kind, service, calls)
        case "schemas":
            add_schemas(router, kind, service, calls)
        case "connectors":
            add_connectors(router, kind, service)
        case "actions":
            add_actions(router, kind, service)
        case _:
            KindRoutes(router, kind, service).add_all()
