"""The page of the management API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from docs.reference_pages.markdown import page, prose, table


def api(document: Mapping[str, Any]) -> str:
    """Every request that an OpenAPI document tells, and the bodies."""
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    sections = []
    for tag in document["tags"]:
        chosen = [found for found in operations if tag["name"] in found[2]["tags"]]
        rows = [(f"`{method} {path}`", operation["summary"], _body(operation), _query(operation))
                for method, path, operation in chosen]  # fmt: skip
        requests = table(("request", "what it does", "body", "query"), rows)
        sections.append(f"## {tag['name']}\n\n{tag['description']}.\n\n{requests}")
    wanted = sorted({name for _, _, operation in operations if (name := _body_name(operation))})
    bodies = [_schema(name, document["components"]["schemas"][name]) for name in wanted]
    return page(
        "The management API",
        "HTTP and JSON, at `http://127.0.0.1:18083` unless set otherwise. Send `Authorization: Bearer TOKEN`. Errors "
        "are problem documents (RFC 9457) with `code`, a sentence in `detail`, and in `errors` the place of each "
        "problem: JSON pointer, line and column. The whole description is served as OpenAPI at "
        "`/api/v1/openapi.json`, as a page at `/docs`; `/api/v1/openapi.json/schemas/StreamSpec` is one schema with "
        "those that it refers to. Both have an `ETag` and are compressed for clients that take gzip. What objects are "
        "made of: [objects](objects.md), "
        "[connectors](connectors.md).",
        "Without a token: `GET /livez`, `GET /readyz`, and `GET /metrics` in Prometheus' text format.",
        *sections,
        "## Bodies",
        *bodies,
    )


def _body_name(operation: Mapping[str, Any]) -> str | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    reference: str = content.get("schema", {}).get("$ref", "")
    return reference.rpartition("/")[2] or None


def _body(operation: Mapping[str, Any]) -> str:
    name = _body_name(operation)
    return f"[{name}](#{name.lower()})" if name else ""


def _query(operation: Mapping[str, Any]) -> str:
    chosen = [p for p in operation.get("parameters", ()) if p["in"] == "query"]
    return ", ".join(f"`{p['name']}`" + ("" if p["required"] else " (optional)") for p in chosen)


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    rows = [
        (f"`{member}`", _json_type(found), "yes" if member in schema.get("required", ()) else "")
        for member, found in schema.get("properties", {}).items()
    ]
    text = prose(schema.get("description", ""))
    return f"### {name}\n\n{text}" + (
        f"\n\n{table(('member', 'type', 'required'), rows)}" if rows else ""
    )


def _json_type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if "/$defs/" in schema["$ref"] else name
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(
                _json_type(one) for one in schema[choice] if one.get("type") != "null"
            )
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_json_type(schema.get('items', {}))}"
    return str(schema.get("type", "any"))
