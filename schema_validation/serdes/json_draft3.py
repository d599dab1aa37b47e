"""JSON Schema draft 03 as draft 04, which the validator knows.

Everything is changed where it stands, so that a ``$ref`` by pointer still finds its target, and what draft 04 names
otherwise is added to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DRAFT_3 = "http://json-schema.org/draft-03/schema"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"

_NESTED = ("items", "additionalItems", "additionalProperties", "extends")
_NESTED_BY_NAME = ("properties", "patternProperties", "definitions")
_FORMATS = {"ip-address": "ipv4", "host-name": "hostname"}


def as_draft_4(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of draft 03 in the words of draft 04; it must fit the meta-schema of draft 03."""
    return {**_translated(schema), "$schema": DRAFT_4}


def _translated(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_translated(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    translated = dict(schema)
    for name in _NESTED:
        if name in translated:
            translated[name] = _translated(translated[name])
    for name in _NESTED_BY_NAME:
        if isinstance(translated.get(name), Mapping):
            translated[name] = {key: _translated(inner) for key, inner in translated[name].items()}
    if translated.get("items") == []:
        # draft 04 wants one; without any the others' schema counts for all
        translated["items"] = translated.pop("additionalItems", {})
    if isinstance(translated.get("items"), bool):
        translated["items"] = {} if translated["items"] else {"not": {}}
    _require(translated, schema.get("properties"))
    demands = [*_list(translated.get("extends")), *_kinds(translated), *_disallowed(translated)]
    if demands:
        translated["allOf"] = demands
    if "divisibleBy" in translated:
        translated["multipleOf"] = translated.pop("divisibleBy")
    if isinstance(translated.get("dependencies"), Mapping):
        translated["dependencies"] = {
            name: _dependency(wanted) for name, wanted in translated["dependencies"].items()
        }
    if translated.get("format") in _FORMATS:
        translated["format"] = _FORMATS[translated["format"]]
    return translated


def _require(schema: dict[str, Any], properties: Any) -> None:
    """``required`` is in the property there, in the object around it here."""
    schema.pop("required", None)
    if not isinstance(properties, Mapping):
        return
    required = [
        name
        for name, inner in properties.items()
        if isinstance(inner, Mapping) and inner.get("required") is True
    ]
    if required:
        schema["required"] = required


def _kinds(schema: dict[str, Any]) -> list[Any]:
    """``type`` may hold schemas and ``any``."""
    if "type" not in schema:
        return []
    kinds = _list(schema.pop("type"))
    if "any" in kinds:
        return []
    if all(isinstance(kind, str) for kind in kinds):
        if kinds:
            schema["type"] = kinds
        return []
    return [{"anyOf": [_of_kind(kind) for kind in kinds]}]


def _disallowed(schema: dict[str, Any]) -> list[Any]:
    return [{"not": _of_kind(kind)} for kind in _list(schema.pop("disallow", []))]


def _of_kind(kind: Any) -> Any:
    if kind == "any":
        return {}
    return {"type": kind} if isinstance(kind, str) else _translated(kind)


def _dependency(wanted: Any) -> Any:
    return [wanted] if isinstance(wanted, str) else _translated(wanted)


def _list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
