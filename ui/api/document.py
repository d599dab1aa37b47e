"""The OpenAPI document: what FastAPI sees of the routes, with the bodies' models, security and tags added."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from ui.api import examples
from ui.api.models import access, bridges, clients, gates, messages, node, rules, schemas, shapes, streams
from ui.api.status import Status

_BODIES = (access, bridges, clients, gates, messages, node, rules, schemas, shapes, streams)
_TAGS = {
    "System": "The node and the sessions of the status page",
    "Schemas": "Registered schemas",
    "Validations": "Checks that messages must pass",
    "Transforms": "Changes made to messages",
    "Rules": "SQL over messages and events",
    "Streams": "Durable logs",
    "Lake": "Tables that follow streams",
    "Access": "Who may connect, publish and subscribe: users, access rules, bans",
    "Clients": "Who is connected: see, disconnect, subscribe",
    "Sessions": "What is kept for clients, and what waits for them",
    "Subscriptions": "Who gets what",
    "Retained": "The last retained message of each topic",
    "Messages": "Publishing",
    "Topics": "Rewrites of topics, and subscriptions made for clients",
    "Delayed": "Messages that wait for their time",
    "Share groups": "Shared subscriptions: members, what waits for them",
    "Quarantine": "Messages that validations and transformations refused",
    "Pipeline": "What acts on a topic",
    "Bridges": "Connectors, actions and sources",
    "Listeners": "Addresses that clients connect to",
    "Try": "Evaluate without saving; nothing is stored, and each call has a deadline of 2 seconds",
}


def install(app: FastAPI, path: str) -> None:
    """Make the application answer with our document, built once, when first asked for: on a thread, since it takes a
    quarter of a second."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build(app)
        return app.openapi_schema

    async def show(_request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(document))

    app.openapi = document  # type: ignore[method-assign] # FastAPI's documented way to extend the document
    app.add_route(path, show, include_in_schema=False)


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        openapi_version="3.1.0",
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    components = document.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **_schemas(_models())}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "The administrator's token."},
    }
    document["security"] = [{"token": []}]
    for method in document["paths"].get("/api/v1/session", {}).values():
        method["security"] = []
    _forget_frameworks_errors(document)
    _add_examples(document["paths"])
    return document


def _add_examples(paths: Mapping[str, Any]) -> None:
    """An example for each body, and for each parameter that must be given."""
    for path, methods in paths.items():
        kind = re.split(r"/\{name\}|:", path)[0]
        created = examples.body_of(paths.get(kind, {}).get("post", {}).get("operationId", ""))
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                content["example"] = examples.body_of(operation["operationId"], created)
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "name" and created:
                    parameter["example"] = examples.name_of(created)
                elif parameter["required"]:
                    parameter["example"] = examples.PARAMETERS[parameter["name"]]


def _models() -> Iterable[type[BaseModel]]:
    for module in _BODIES:
        for item in vars(module).values():
            if isinstance(item, type) and issubclass(item, BaseModel) and item is not BaseModel:
                yield item


def _schemas(described: Iterable[type[BaseModel]]) -> dict[str, Any]:
    _, definitions = models_json_schema(
        [(model, "validation") for model in described], ref_template="#/components/schemas/{model}"
    )
    status = TypeAdapter(Status).json_schema(ref_template="#/components/schemas/{model}")
    parts = status.pop("$defs")
    return {**definitions["$defs"], **parts, "Status": status}


def _forget_frameworks_errors(document: dict[str, Any]) -> None:
    """FastAPI describes its own 422, which never leaves this server."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
