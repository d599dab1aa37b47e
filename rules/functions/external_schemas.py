"""Functions over schema registries elsewhere, whose schemas have numbers that travel with the data.

The tag is Confluent's version 0: a zero byte, the number in four bytes, big end first, then the data.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from typing import Annotated, Any

from broker.core.errors import NotFound
from broker.core.schema import ExternalRegistries, ExternalRegistry, SchemaError, Serde
from rules.functions.registry import Function, StrictText, between, failure, make
from rules.functions.schemas import Encoded, Schemas
from rules.sql.limits import MAX_TAGGED_SCHEMAS

_TAG = struct.Struct(">BI")
_MAGIC = 0
SchemaId = Annotated[int, between(0, 2**32 - 1)]


class _Registrations:
    """Numbers of local schemas under subjects, so that a registry is asked once for each text."""

    def __init__(self) -> None:
        self._numbers: OrderedDict[tuple[str, str, str], int] = OrderedDict()

    def number(self, name: str, registry: ExternalRegistry, subject: str, source: str) -> int:
        """The number of a text under a subject of a registry."""
        key = (name, subject, source)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = registry.register(subject, source)
            while len(self._numbers) > MAX_TAGGED_SCHEMAS:
                self._numbers.popitem(last=False)
        return found


def external_schema_functions(schemas: Schemas) -> list[Function]:
    """``avro_encode``, ``avro_decode``, ``schema_encode_and_tag`` and ``schema_decode_tagged``."""
    registrations = _Registrations()

    def known(function: str) -> ExternalRegistries:
        lookup = schemas()
        if not isinstance(lookup, ExternalRegistries):
            raise failure(function, "no schema registry elsewhere is configured")
        return lookup

    def registry(function: str, name: str) -> ExternalRegistry:
        try:
            return known(function).external(name)
        except NotFound as error:
            raise failure(function, str(error)) from None

    def serde(function: str, name: str, number: int) -> Serde:
        try:
            return registry(function, name).serde(number)
        except SchemaError as error:
            raise failure(function, str(error)) from None

    def decoded(function: str, name: str, number: int, data: bytes) -> Any:
        try:
            return serde(function, name, number).decode(data)
        except SchemaError as error:
            raise failure(function, f"schema {number} of registry '{name}': {error}") from None

    def avro_encode(registry_name: StrictText, value: Any, schema_id: SchemaId) -> bytes:
        """The bytes of a value by a schema of a registry elsewhere, by its number there; without a tag."""
        try:
            return serde("avro_encode", registry_name, schema_id).encode(value)
        except SchemaError as error:
            raise failure("avro_encode", f"schema {schema_id} of registry '{registry_name}': {error}") from None

    def avro_decode(registry_name: StrictText, data: Encoded, schema_id: SchemaId | None = None) -> Any:
        """The value that data stands for by a schema of a registry elsewhere: by its number, or by the data's tag."""
        if schema_id is None:
            schema_id, data = _untagged("avro_decode", data)
        return decoded("avro_decode", registry_name, schema_id, data)

    def schema_encode_and_tag(schema: StrictText, registry_name: StrictText, value: Any, subject: StrictText) -> bytes:
        """A value by a local Avro schema, with the tag that a registry elsewhere has for it under a subject."""
        name = "schema_encode_and_tag"
        try:
            kind, source = known(name).source(schema)
            if kind != "avro":
                raise failure(name, f"schema '{schema}' is {kind}; only Avro schemas are registered elsewhere")
            data = schemas().serde(schema).encode(value)
            number = registrations.number(registry_name, registry(name, registry_name), subject, source)
        except (NotFound, SchemaError) as error:
            raise failure(name, str(error)) from None
        return _TAG.pack(_MAGIC, number) + data

    def schema_decode_tagged(registry_name: StrictText, data: Encoded) -> Any:
        """The value of tagged data by the schema of a registry elsewhere that the tag names."""
        return decoded("schema_decode_tagged", registry_name, *_untagged("schema_decode_tagged", data))

    return [
        make(avro_encode, returns="binary", is_pure=False, may_wait=True, usage="(registry, value, schema_id)"),
        make(avro_decode, is_pure=False, may_wait=True, usage="(registry, data[, schema_id])"),
        make(
            schema_encode_and_tag,
            returns="binary",
            is_pure=False,
            may_wait=True,
            usage="(schema, registry, value, subject)",
        ),
        make(schema_decode_tagged, is_pure=False, may_wait=True, usage="(registry, data)"),
    ]


def _untagged(function: str, data: bytes) -> tuple[int, bytes]:
    """The number in the tag, and what follows it."""
    if len(data) < _TAG.size or data[0] != _MAGIC:
        raise failure(function, "the data has no tag: it does not begin with a zero byte and a schema's number")
    return _TAG.unpack_from(data)[1], data[_TAG.size :]
