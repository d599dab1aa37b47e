"""Answers of the management API held against its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
from jsonschema import Draft202012Validator


class ApiDocument:
    """The OpenAPI document of a node. Schemas are closed: clients may ignore members, the broker has to name them."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.operations = [
            (method, path, operation)
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
        ]
        self._components = closed(document["components"])
        self._validators: dict[tuple[str, int], Draft202012Validator | None] = {}

    def declared(self, answer: httpx.Response, operation: Mapping[str, Any]) -> Any:
        """What the document says of an answer with this status; None where it says nothing."""
        response = operation["responses"].get(str(answer.status_code))
        if response and "$ref" in response:
            return self._components["responses"][response["$ref"].rpartition("/")[2]]
        return response

    def misfits(self, answer: httpx.Response, operation: Mapping[str, Any]) -> Iterator[str]:
        """The differences of an answer from what the document says of it, at most three of its body."""
        declared = self.declared(answer, operation)
        status = answer.status_code
        if declared is None:
            yield f"status {status} is not declared"
            return
        content = declared.get("content", {})
        media = answer.headers.get("content-type", "").partition(";")[0]
        if not content:
            if answer.content:
                yield f"status {status} has a body, and none is declared"
            return
        if media not in content:
            yield f"status {status} has {media!r}, declared are {', '.join(content)}"
            return
        validator = self._validator(operation["operationId"], status, content[media])
        if validator is None:
            return
        texts = answer.text.splitlines() if media == "application/x-ndjson" else [answer.text]
        for text in texts:
            errors = validator.iter_errors(json.loads(text))
            for _, error in zip(range(3), errors, strict=False):
                yield f"status {status} at /{'/'.join(map(str, error.path))}: {error.message[:300]}"

    def _validator(
        self, operation: str, status: int, content: Mapping[str, Any]
    ) -> Draft202012Validator | None:
        """The check of a body; None where it is not described, or is not JSON."""
        key = (operation, status)
        if key not in self._validators:
            schema = closed(content.get("schema", {}))
            is_text = schema.get("type") == "string"
            self._validators[key] = (
                Draft202012Validator({**schema, "components": self._components})
                if schema and not is_text
                else None
            )
        return self._validators[key]


def closed(schema: Any) -> Any:
    """The schema with no members but those that it names."""
    if not isinstance(schema, dict):
        return [closed(item) for item in schema] if isinstance(schema, list) else schema
    inner = {name: closed(item) for name, item in schema.items()}
    has_members = isinstance(schema.get("properties"), dict) and schema.get("type") == "object"
    return {"additionalProperties": False, **inner} if has_members else inner
