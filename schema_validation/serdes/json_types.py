"""The field types of a JSON Schema, as rules and tables see them. What is not decided by the schema is ``unknown``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from broker.core.schema import UNKNOWN, FieldType

_SCALARS = {"integer": "long", "number": "double", "string": "string", "boolean": "boolean", "null": "null"}
_MAX_DEPTH = 32


def field_type_of(schema: Mapping[str, Any]) -> FieldType:
    """The type of the values a schema accepts."""
    return replace(_type(schema, schema, 0), nullable=False)


def _type(schema: Any, root: Mapping[str, Any], depth: int) -> FieldType:
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return UNKNOWN
    if "$ref" in schema:
        return _type(_target(schema["$ref"], root), root, depth + 1)
    names = schema.get("type")
    if names is None:
        return _undeclared(schema, root, depth)
    listed = [names] if isinstance(names, str) else list(names)
    is_nullable = "null" in listed
    others = [name for name in listed if name != "null"] or ["null"]
    if set(others) == {"integer", "number"}:
        others = ["number"]
    if len(others) != 1:
        return UNKNOWN
    return replace(_named(others[0], schema, root, depth), nullable=is_nullable)


def _undeclared(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> FieldType:
    """Without ``type``: a constant or an enumeration of one type says it too."""
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    kinds = {_type_of_value(value) for value in values}
    nullable = "null" in kinds
    kinds.discard("null")
    return FieldType(kinds.pop(), nullable=nullable) if len(kinds) == 1 and "unknown" not in kinds else UNKNOWN


def _type_of_value(value: Any) -> str:
    if value is None:
        return "null"
    for python, name in ((bool, "boolean"), (int, "long"), (float, "double"), (str, "string")):
        if isinstance(value, python):
            return name
    return "unknown"


def _named(name: str, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> FieldType:
    if name == "object":
        return _object(schema, root, depth)
    if name == "array":
        items = schema.get("items")
        return FieldType("array", item=_type(items, root, depth + 1) if "prefixItems" not in schema else UNKNOWN)
    return FieldType(_SCALARS.get(name, "unknown"))


def _object(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> FieldType:
    required = schema.get("required", [])
    properties = schema.get("properties", {})
    extra = schema.get("additionalProperties", True)
    if not properties and isinstance(extra, Mapping) and "patternProperties" not in schema:
        return FieldType("map", item=_type(extra, root, depth + 1))
    fields = {}
    for name, inner in properties.items():
        found = _type(inner, root, depth + 1)
        fields[name] = replace(found, nullable=found.nullable or name not in required)
    is_open = extra is not False or bool(schema.get("patternProperties"))
    return FieldType("struct", fields=fields, open=is_open)


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """What a reference within the document names (``#/$defs/x``); None for others."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
