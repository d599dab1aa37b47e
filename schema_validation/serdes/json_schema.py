"""JSON Schema: validated by jsonschema-rs, which decides and, for a message that is refused, says where and why.

It is built with a retriever that refuses: a remote ``$ref`` is never fetched, the schema is refused instead. Patterns
run in a linear or bounded engine. The reference implementation in Python (jsonschema) is held equal to it by tests; it
does not explain refused payloads: it is not bounded (``pattern``, ``uniqueItems``), 50 times slower, and where the
two disagree it would explain a verdict that is not its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import jsonschema_rs

from broker.core import jsontext
from broker.core.schema import FieldType
from schema_validation.serdes.base import MAX_SOURCE_BYTES, DataRefused, Misfit, SourceError, path_text, short
from schema_validation.serdes.json_types import field_type_of

DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"
DRAFTS = {
    "http://json-schema.org/draft-04/schema": "draft 04",
    "http://json-schema.org/draft-06/schema": "draft 06",
    "http://json-schema.org/draft-07/schema": "draft 07",
    "https://json-schema.org/draft/2019-09/schema": "draft 2019-09",
    DEFAULT_DRAFT: "draft 2020-12",
}

_MASK = "\x00"


class JsonSchemaSerde:
    """A JSON Schema. ``is_valid(value)`` is the whole of the accept path."""

    kind = "json"

    def __init__(self, source: str, label: str = "") -> None:
        """Compile a schema.

        Raises:
            SourceError: it is no JSON object, breaks its meta-schema, or refers to something that is not in it.
        """
        self.label = label
        self.schema = _parsed(source)
        self._draft = _draft_of(self.schema)
        self._validator = _built(self.schema)
        self.is_valid: Callable[[Any], bool] = self._validator.is_valid

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        try:
            value = jsontext.decode(data)
        except jsontext.JsonError as error:
            raise DataRefused(self.label, Misfit("payload", f"not JSON: {error}")) from None
        self._check(value)
        return value

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        self._check(value)
        try:
            return jsontext.encode(value)
        except jsontext.JsonError as error:
            raise DataRefused(self.label, Misfit("payload", str(error))) from None

    def has_message_type(self, message_type: str) -> bool:
        return False

    def misfit(self, data: bytes, message_type: str | None = None) -> Misfit | None:
        try:
            self.decode(data)
        except DataRefused as error:
            return error.misfit
        return None

    def explain(self, value: Any) -> Misfit:
        """What is wrong with a value that ``is_valid`` refused: the first thing found."""
        found = self.errors(value, 1)
        return found[0] if found else Misfit("payload", "does not fit the schema")

    def errors(self, value: Any, most: int = 20) -> list[Misfit]:
        """What is wrong with a value, at most so many things."""
        try:
            return [_misfit(error) for error in islice(self._validator.iter_errors(value), most)]
        except ValueError as error:
            return [Misfit("payload", str(error))]

    def field_type(self, message_type: str | None = None) -> FieldType:
        return field_type_of(self.schema)

    def facts(self) -> dict[str, Any]:
        return {"draft": DRAFTS[self._draft]}

    def _check(self, value: Any) -> None:
        try:
            fits = self.is_valid(value)
        except ValueError as error:
            raise DataRefused(self.label, Misfit("payload", str(error))) from None
        if not fits:
            raise DataRefused(self.label, self.explain(value))


def _parsed(source: str) -> dict[str, Any]:
    if len(source) > MAX_SOURCE_BYTES:
        raise SourceError(f"a schema has at most {MAX_SOURCE_BYTES} bytes")
    try:
        schema = jsontext.decode(source)
    except jsontext.JsonError as error:
        raise SourceError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise SourceError(f"a JSON schema is an object, not {short(schema)}")
    return schema


def _draft_of(schema: dict[str, Any]) -> str:
    given = schema.get("$schema", DEFAULT_DRAFT)
    draft = given.rstrip("#") if isinstance(given, str) else ""
    if draft not in DRAFTS:
        raise SourceError(f"$schema: unknown draft {short(given)}; known are {', '.join(DRAFTS)}")
    return draft


def _built(schema: dict[str, Any]) -> Any:
    dated = schema if "$schema" in schema else {"$schema": DEFAULT_DRAFT, **schema}
    try:
        return jsonschema_rs.validator_for(dated, validate_formats=True, retriever=_refuse, mask=_MASK)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise SourceError(_why(error)) from None


def _refuse(uri: str) -> Any:
    raise ValueError("references to other documents are never fetched; put the definition into $defs")


def _why(error: Exception) -> str:
    if not isinstance(error, jsonschema_rs.ValidationError):
        return str(error).partition("\n")[0]
    message = error.message.partition("\n")[0].replace(_MASK, short(error.instance))
    place = path_text(list(error.instance_path), "schema")
    return message if place == "schema" else f"{place}: {message}"


def _misfit(error: Any) -> Misfit:
    detail = error.message.replace(_MASK, short(error.instance))
    return Misfit(path_text(list(error.instance_path)), detail if len(detail) <= 200 else detail[:200] + "…")
