"""JSON Schema: validated by jsonschema-rs, which decides and, for a message that is refused, says where and why.

It is built offline: a remote ``$ref`` is never fetched, the schema is refused instead. Patterns run in a linear engine,
those with look-around or references back in a bounded one. What could make a small payload take long (``json_bounds``)
is refused, when the schema is saved or when such a payload comes. The reference implementation in Python (jsonschema)
is held equal to it by tests; it does not explain refused payloads: it is not bounded (``pattern``, ``uniqueItems``), 50
times slower, and where the two disagree it would explain a verdict that is not its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

import jsonschema_rs
from jsonschema import Draft3Validator

from broker.core import jsontext
from broker.core.marks import have_json_types, marked
from broker.core.schema import FieldType
from schema_validation.serdes.base import (
    MAX_SOURCE_BYTES,
    DataRefused,
    Misfit,
    SchemaFacts,
    SchemaSerde,
    SourceError,
    path_text,
    short,
)
from schema_validation.serdes.json_bounds import bounds_of, longest_texts, size_of
from schema_validation.serdes.json_draft3 import DRAFT_3, as_draft_4
from schema_validation.serdes.json_types import field_type_of

DEFAULT_DRAFT = "https://json-schema.org/draft/2020-12/schema"
DRAFTS = {
    DRAFT_3: "draft 03",
    "http://json-schema.org/draft-04/schema": "draft 04",
    "http://json-schema.org/draft-06/schema": "draft 06",
    "http://json-schema.org/draft-07/schema": "draft 07",
    "https://json-schema.org/draft/2019-09/schema": "draft 2019-09",
    DEFAULT_DRAFT: "draft 2020-12",
}
# The formats that are asserted; the others are annotations only.
FORMATS = ("date-time", "email", "ipv4", "ipv6")

# Maximum subschemas that one value may meet, references followed; a schema that could make it more is refused.
MAX_STEPS = 10_000
# Number of steps up to which nothing is counted when a payload arrives.
_FREE_STEPS = 200
# Maximum steps times values of a payload, about 0.2 s.
_MAX_WORK = 10_000_000
# Maximum values of a payload for which all errors, or those of alternatives, are searched: 60 ms.
_MAX_EXPLAINED = 5_000
# Maximum visits of one value in the search for a reason.
_MAX_REPEATED = 1_000
_MAX_TEXT = 1_000
# Longest text, and of all texts together, that patterns with look-around are tried on: they take quadratic time.
_MAX_TEXTS = 64 * 1024

_NOT_ASSERTED = (
    "date", "duration", "hostname", "idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex",
    "relative-json-pointer", "time", "uri", "uri-reference", "uri-template", "uuid",
)  # fmt: skip
_LINEAR = jsonschema_rs.RegexOptions(size_limit=4 << 20, dfa_size_limit=4 << 20)
_BOUNDED = jsonschema_rs.FancyRegexOptions(
    backtrack_limit=1_000, size_limit=4 << 20, dfa_size_limit=4 << 20
)
_MASK = "\x00"


class JsonSchemaSerde(SchemaSerde):
    """A JSON Schema. ``is_valid(value)`` is the whole of the accept path."""

    kind = "json"

    def __init__(self, source: str, label: str = "") -> None:
        """Compile a schema.

        Raises: SourceError: it is not a JSON object, breaks its meta-schema, refers to something that is not in it,
        or could make a payload take too long."""
        self.label = label
        self.schema = _parsed(source)
        self._draft = _draft_of(self.schema)
        self._known = _in_known_draft(self.schema, self._draft)
        self._bounds = bounds_of(self._known)
        if self._bounds.steps > MAX_STEPS:
            raise SourceError(
                f"its references and alternatives unfold to more than {MAX_STEPS} subschemas for a value"
            )
        self._validator, self._has_linear_patterns = _built(self._known)
        is_free = self._has_linear_patterns and self._bounds.steps <= _FREE_STEPS
        self.is_valid: Callable[[Any], bool] = (
            self._validator.is_valid if is_free else self._is_valid_in_time
        )
        self._is_free = is_free

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        self._take_no_message_type(message_type)
        try:
            value = jsontext.decode(data)
        except jsontext.JsonError as error:
            raise self._refused(f"not JSON: {error}") from None
        self._check(value)
        return value

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        self._take_no_message_type(message_type)
        if not have_json_types((value,)):
            value = marked(value)
        self._check(value)
        try:
            return jsontext.encode_any(value)
        except jsontext.JsonError as error:
            raise self._refused(str(error)) from None

    def explain(self, value: Any) -> Misfit:
        """First reason why ``is_valid`` refused a value."""
        if reason := self._too_long(value):
            return Misfit("payload", reason)
        count, depth = size_of(value, _MAX_EXPLAINED)
        is_large = count > _MAX_EXPLAINED and self._bounds.alternatives
        if is_large or self._bounds.growth**depth > _MAX_REPEATED:
            return Misfit(
                "payload", "does not fit the schema; it is too large or too deep to find out where"
            )
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return _misfit(error, value)
        except ValueError as error:
            return Misfit("payload", str(error))
        return Misfit("payload", "does not fit the schema")

    def errors(self, value: Any, most: int = 20) -> list[Misfit]:
        """Reasons why a value does not fit, at most ``most``; for a large value the first."""
        if self.is_valid(value):
            return []
        count, depth = size_of(value, _MAX_EXPLAINED)
        if (
            count > _MAX_EXPLAINED
            or self._bounds.growth**depth > _MAX_REPEATED
            or self._too_long(value)
        ):
            return [self.explain(value)]
        return [_misfit(error, value) for error in islice(self._validator.iter_errors(value), most)]

    def field_type(self, message_type: str | None = None) -> FieldType:
        return field_type_of(self._known)

    def facts(self) -> SchemaFacts:
        return {"draft": DRAFTS[self._draft]}

    def _check(self, value: Any) -> None:
        try:
            fits = self.is_valid(value)
        except ValueError as error:
            raise self._refused(str(error)) from None
        if not fits:
            raise DataRefused(self.label, self.explain(value))

    def _is_valid_in_time(self, value: Any) -> bool:
        return self._too_long(value) is None and bool(self._validator.is_valid(value))

    def _too_long(self, value: Any) -> str | None:
        """Reason why a value could take too long to check, or None."""
        if self._is_free:
            return None
        most = _MAX_WORK // self._bounds.steps
        if self._bounds.steps > _FREE_STEPS and size_of(value, most)[0] > most:
            return f"by a schema with this many subschemas, a payload of at most {most} values is checked"
        if not self._has_linear_patterns:
            longest, total = longest_texts(value)
            if longest > _MAX_TEXT or total > _MAX_TEXTS:
                return (
                    f"by patterns with look-around or back-references, texts of at most {_MAX_TEXT} characters are "
                    f"checked, {_MAX_TEXTS} in all"
                )
        return None


def _parsed(source: str) -> dict[str, Any]:
    if len(source) > MAX_SOURCE_BYTES:
        raise SourceError(f"a schema has at most {MAX_SOURCE_BYTES} bytes")
    try:
        schema = jsontext.decode(source)
    except jsontext.JsonError as error:
        raise SourceError(f"the schema is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise SourceError(f"expected a JSON object, got {short(schema)}")
    return schema


def _draft_of(schema: Mapping[str, Any]) -> str:
    meta_schema = schema.get("$schema", DEFAULT_DRAFT)
    draft = meta_schema.rstrip("#") if isinstance(meta_schema, str) else ""
    if draft not in DRAFTS:
        raise SourceError(
            f"$schema: unknown draft {short(meta_schema)}; known are {', '.join(DRAFTS)}"
        )
    return draft


def _in_known_draft(schema: dict[str, Any], draft: str) -> dict[str, Any]:
    """The schema as the validator knows it: with its draft, and draft 03 in words of draft 04."""
    if draft == DRAFT_3:
        try:
            _draft_3().validate(schema)
        except jsonschema_rs.ValidationError as error:
            raise SourceError(_why(error, schema)) from None
        return as_draft_4(schema)
    return schema if "$schema" in schema else {"$schema": DEFAULT_DRAFT, **schema}


@cache
def _draft_3() -> Any:
    """Validator of schemas of draft 03: its meta-schema, translated as they are."""
    return jsonschema_rs.validator_for(
        as_draft_4(Draft3Validator.META_SCHEMA), mask=_MASK, offline=True
    )


def _built(schema: dict[str, Any]) -> tuple[Any, bool]:
    """The validator, and whether its patterns run in linear time."""
    try:
        return _validator(schema, _LINEAR), True
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError):
        pass  # reported by the other engine, unless look-around was all that failed
    try:
        return _validator(schema, _BOUNDED), False
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise SourceError(_why(error, schema)) from None


def _validator(schema: dict[str, Any], patterns: Any) -> Any:
    return jsonschema_rs.validator_for(
        schema,
        validate_formats=True,
        formats=dict.fromkeys(_NOT_ASSERTED, _is_any),
        pattern_options=patterns,
        mask=_MASK,
        offline=True,
    )


def _is_any(text: str) -> bool:
    return True


def _why(error: Exception, schema: Any) -> str:
    if not isinstance(error, jsonschema_rs.ValidationError):
        return str(error).partition("\n")[0]
    if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
        return f"{error.message.partition(chr(10))[0]}; nothing is fetched; put the definition into the schema"
    message = error.message.partition("\n")[0].replace(
        _MASK, short(_at(schema, error.instance_path))
    )
    message = message.replace(
        'is not a "regex"', "is not a regular expression, or too large when compiled"
    )
    place = path_text(list(error.instance_path), "schema")
    return message if place == "schema" else f"{place}: {message}"


def _misfit(error: Any, value: Any) -> Misfit:
    """Text of an error, its value cut. ``error.instance`` is not asked: it copies the value, however large."""
    detail = error.message[:1000].replace(_MASK, short(_at(value, error.instance_path)))
    return Misfit(
        path_text(list(error.instance_path)), detail if len(detail) <= 200 else detail[:200] + "…"
    )


def _at(value: Any, path: Sequence[str | int]) -> Any:
    """The value at a path of an error, in which keys that are digits are numbers."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(str(part))
        elif isinstance(value, list) and isinstance(part, int):
            value = value[part]
    return value
