"""The OpenAPI document: what FastAPI sees of the routes, with the bodies' models, security and tags added."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from broker.core.kinds import Kind, kinds, load
from ui.api import examples, live, preconditions
from ui.api.models.shapes import ProblemDocument
from ui.api.operation import COMPONENTS, MODELS, PROBLEMS, ref, ref_of_kind
from ui.api.problems import ApiProblem

_TAGS = {
    "System": "The node and the sessions of the dashboard",
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
    "Topics": "What is published where: the tree of topics, tails; rewrites, and subscriptions made for clients",
    "Delayed": "Messages that wait for their time",
    "Share groups": "Shared subscriptions: members, what waits for them",
    "Jobs": "Long work: progress, cancelling, results",
    "Quarantine": "Messages that validations and transformations refused",
    "Pipeline": "What acts on a topic",
    "Bridges": "Connectors, actions and sources",
    "Listeners": "Addresses that clients connect to",
    "Try": "Evaluate without saving; nothing is stored, and each call has a deadline of 2 seconds",
}


_ETAG = {"type": "string", "description": "The version, as the header `ETag` quotes it."}
# Members of list rows that are not the object's own.
_FIXED_BY = {
    "type": ["string", "null"],
    "description": "The configuration file that defines the object, which cannot be changed by the API; else null.",
}
# Members of a schema that do not change what it accepts.
_NOTES = ("title", "description", "default")


@dataclass(frozen=True, slots=True)
class _Page:
    """A body that changes only with the version of the product, in both forms that clients take, and its ETag."""

    plain: bytes
    compressed: bytes
    etag: str

    @classmethod
    def of(cls, content: Any) -> _Page:
        """The page of something that JSON can express."""
        plain = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        return cls(plain, gzip.compress(plain, mtime=0), hashlib.sha256(plain).hexdigest()[:32])

    def answer(self, request: Request) -> Response:
        """The page for a request: compressed where the client takes that, 304 where it has the page."""
        is_compressed = preconditions.takes_gzip(request.headers.get("accept-encoding", ""))
        # Each form has an ETag of its own, as caches expect.
        etag = f"{self.etag}-gzip" if is_compressed else self.etag
        headers = {
            "Vary": "Accept-Encoding",
            "Cache-Control": "no-cache",
            "ETag": preconditions.quoted(etag),
        }
        body = self.compressed if is_compressed else self.plain
        if is_compressed:
            headers["Content-Encoding"] = "gzip"
        whole = Response(body, headers=headers, media_type="application/json")
        return preconditions.with_etag(request, whole, etag)


class _Document:
    """The document of an application, built once on the first request: on a thread, since it takes a quarter of a
    second."""

    def __init__(self, app: FastAPI, path: str) -> None:
        self._app = app
        self._path = path
        self._lock = threading.Lock()
        self._pages: dict[str | None, _Page] = {}
        """The page of the whole document, as None, and of each schema by its name."""

    def content(self) -> dict[str, Any]:
        """The document."""
        with self._lock:
            if self._app.openapi_schema is None:
                self._app.openapi_schema = _build(self._app)
            return self._app.openapi_schema

    def page(self, schema: str | None) -> _Page | None:
        """The page of the document, or of one schema with those that it refers to; None if there is no such schema."""
        schemas = self.content()["components"]["schemas"]
        if schema is not None and schema not in schemas:
            return None
        with self._lock:  # else all who ask at the start make it
            page = self._pages.get(schema)
            if page is None:
                content = self._app.openapi_schema if schema is None else _part(schemas, schema)
                page = self._pages[schema] = _Page.of(content)
            return page

    async def show(self, request: Request) -> Response:
        """Answer a request for the document, or for one schema."""
        name = request.path_params.get("name")
        page = await asyncio.to_thread(self.page, name)
        if page is None:
            detail = f"name: expected a schema of this API, got {name!r}. Try: GET {self._path}, components.schemas"
            raise ApiProblem(404, "not_found", detail)
        return page.answer(request)


def _part(schemas: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One schema, and all that it refers to, in the form of the document."""
    needed = {name: schemas[name]}
    waiting = [name]
    while waiting:
        text = json.dumps(schemas[waiting.pop()])
        for reference in re.findall(f'"{COMPONENTS}([^"]+)"', text):
            if reference not in needed:
                needed[reference] = schemas[reference]
                waiting.append(reference)
    return {"components": {"schemas": needed}}


def install(app: FastAPI, path: str) -> None:
    """Serve the document, and each of its schemas alone under the same path."""
    document = _Document(app, path)
    app.openapi = document.content  # type: ignore[method-assign] # FastAPI's documented way to extend the document
    app.add_route(path, document.show, include_in_schema=False)
    app.add_route(f"{path}/schemas/{{name}}", document.show, include_in_schema=False)


def _build(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        openapi_version="3.1.0",
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    document["x-live-channels"] = live.described(app.state.live)
    components = document.setdefault("components", {})
    problem = {"application/problem+json": {"schema": {"$ref": ref(ProblemDocument)}}}
    components["schemas"] = {**components.get("schemas", {}), **_schemas()}
    components["responses"] = {
        f"Problem{status}": {"description": text, "content": problem}
        for status, text in PROBLEMS.items()
    }
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "The administrator's token."},
    }
    document["security"] = [{"token": []}]
    for path in ("/api/v1/session", "/api/v1/session:oidc"):
        for method in document["paths"].get(path, {}).values():
            method["security"] = []
    _forget_frameworks_errors(document)
    _add_examples(document["paths"])
    return document


def _add_examples(paths: Mapping[str, Any]) -> None:
    """An example for each body, and for each parameter that must be given."""
    for path, methods in paths.items():
        kind = re.split(r"/\{name\}|:", path)[0]
        of_one = paths.get(f"{kind}/{{name}}", {})
        creation = paths.get(kind, {}).get("post") or of_one.get("post") or of_one.get("put", {})
        created = examples.body_of(creation.get("operationId", ""))
        for operation in methods.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                content["example"] = examples.body_of(operation["operationId"], created)
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "name" and created:
                    parameter["example"] = examples.name_of(created)
                elif parameter["required"]:
                    parameter["example"] = examples.PARAMETERS[parameter["name"]]


class _Schema(GenerateJsonSchema):
    def encode_default(self, dft: Any) -> Any:
        """A default as JSON, which has no infinite numbers."""
        return json.loads(
            json.dumps(super().encode_default(dft)), parse_constant=lambda _: "infinity"
        )


def _schemas() -> dict[str, Any]:
    """The components: models that operations name, and what is sent to save objects of each kind."""
    specs = {kind: kind.spec_models() for kind in kinds()}
    views = {kind: kind.view_models() for kind in kinds()}
    added = {kind: load(kind.read_only) for kind in kinds() if kind.read_only}
    of_kinds = [
        model for models in (*specs.values(), *views.values(), added.values()) for model in models
    ]
    models = list(dict.fromkeys([*MODELS.values(), *of_kinds]))
    adapters: list[tuple[Any, JsonSchemaMode, TypeAdapter[Any]]] = [
        (model, "validation", TypeAdapter(model)) for model in models
    ]
    of_model, definitions = TypeAdapter.json_schemas(
        adapters, ref_template=f"{COMPONENTS}{{model}}", schema_generator=_Schema
    )
    components: dict[str, Any] = definitions["$defs"]
    for reference, model in MODELS.items():
        components.setdefault(reference.removeprefix(COMPONENTS), of_model[model, "validation"])
    for kind, many in specs.items():
        references = [of_model[model, "validation"] for model in many]
        bodies = [components[str(form["$ref"]).removeprefix(COMPONENTS)] for form in references]
        shown = [of_model[model, "validation"] for model in views[kind]]
        read_only = components[added[kind].__name__]["properties"] if kind in added else {}
        row = components[str(shown[1]["$ref"]).removeprefix(COMPONENTS)] if shown else None
        parts = _parts_of(
            kind, references, [body["properties"] for body in bodies], shown, row, read_only
        )
        for reference, schema in parts.items():
            components.setdefault(reference.removeprefix(COMPONENTS), schema)
    return components


def _parts_of(
    kind: Kind,
    references: list[Any],
    bodies: list[dict[str, Any]],
    views: list[Any],
    row: Any,
    read_only: Mapping[str, Any],
) -> dict[str, Any]:
    """Schemas of a kind by reference: a spec, an object as shown, an object in a list, a page, and a patch."""
    members = {name: schema for body in bodies for name, schema in body.items()}
    for name in members:
        forms = [
            {key: body[name][key] for key in body[name] if key not in _NOTES}
            for body in bodies
            if name in body
        ]
        if different := [form for at, form in enumerate(forms) if form not in forms[:at]][1:]:
            members[name] = {"anyOf": [forms[0], *different]}
    shown = {
        "type": "object",
        "description": f"{kind.one.capitalize()} as it is shown: with defaults, and with read-only members.",
        "properties": {"name": {"type": "string"}, **members, **read_only},
        "required": ["name"],
    }
    row = row or shown
    parts = {
        ref_of_kind(kind, "Spec"): references[0] if len(references) == 1 else {"anyOf": references},
        ref_of_kind(kind, "Object"): views[0] if views else shown,
        ref_of_kind(kind, "Item"): {
            **row,
            "properties": {**row["properties"], "etag": _ETAG, "fixed_by": _FIXED_BY},
            "required": [*row["required"], "etag", "fixed_by"],
        },
        ref_of_kind(kind, "List"): {
            "type": "object",
            "description": f"A page of {kind.many}. `next` goes into `cursor` for the page after it.",
            "properties": {
                "items": {"type": "array", "items": {"$ref": ref_of_kind(kind, "Item")}},
                "next": {"type": ["string", "null"]},
                "total": {"type": "integer"},
                "total_is_estimate": {"type": "boolean"},
            },
            "required": ["items", "next", "total", "total_is_estimate"],
        },
    }
    if kind.abilities.can_patch:
        parts[ref_of_kind(kind, "Patch")] = {
            "type": "object",
            "description": f"Members of {kind.one} to change; null restores the default of one.",
            "properties": members,
            "additionalProperties": False,
        }
    return parts


def _forget_frameworks_errors(document: dict[str, Any]) -> None:
    """FastAPI describes its own 422, which never leaves this server."""
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(name, None)
    for operation in (
        operation for methods in document["paths"].values() for operation in methods.values()
    ):
        if "application/json" in operation["responses"].get("422", {}).get("content", {}):
            del operation["responses"]["422"]
