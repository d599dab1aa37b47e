"""Avro: raw binary, no container and no tag.

Of logical types only decimals are interpreted (``avro_decimal``); payloads hold the numbers of the others.

fastavro reads. Its C reader overflows the stack on deeply nested values of a schema that contains itself (the process
dies between 2,000 and 5,000 levels, a payload of 5 KB): such schemas are read by its Python reader, whose recursion
ends in an exception. Its block counts cannot run away, since ``avro_schema`` refuses items that take no bytes; bytes
left over are an error here. What it refuses is read once more, step by step, to say where.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import fastavro
from fastavro import _read_py

from broker.core.schema import FieldType
from schema_validation.serdes.avro_decimal import LOGICAL, read_decimal
from schema_validation.serdes.avro_locate import TooMany, locate
from schema_validation.serdes.avro_schema import MISSING, AvroType, read_schema
from schema_validation.serdes.avro_size import growth
from schema_validation.serdes.avro_types import field_type_of
from schema_validation.serdes.avro_writer import write
from schema_validation.serdes.base import DataRefused, Misfit, NotWritable, SchemaFacts, SchemaSerde, SourceError

# Bytes that a decoded payload may take without a check of the payload first.
MAX_MEMORY = 64 * 1024 * 1024
# Maximum values of a payload that could take more: checking them takes 0.1 s.
MAX_SMALL_VALUES = 50_000

Reader = Callable[[BytesIO, Any], Any]

fastavro.read.LOGICAL_READERS.update({f"{kind}-{LOGICAL}": read_decimal for kind in ("bytes", "fixed")})


class AvroSerde(SchemaSerde):
    """An Avro schema, also a primitive or a union at the top."""

    kind = "avro"

    def __init__(self, source: str, label: str = "") -> None:
        """Compile a schema. Raises ``SourceError``."""
        self.label = label
        self._schema = read_schema(source)
        _check_defaults(self._schema.type, set())
        try:
            self._parsed = fastavro.parse_schema(self._schema.plain)
        except Exception as error:  # noqa: BLE001 # the library raises many types for a bad schema
            raise SourceError(f"not an Avro schema: {error}") from None
        self._free_bytes = int(MAX_MEMORY / growth(self._schema.type))
        self._read: Reader = _read_py.schemaless_reader if self._schema.is_recursive else fastavro.schemaless_reader

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        self._take_no_message_type(message_type)
        if len(data) > self._free_bytes:
            self._check_size(data)
        source = BytesIO(data)
        try:
            value = self._read(source, self._parsed)
        except RecursionError:
            raise self._refused("the payload nests too deep") from None
        except Exception:  # noqa: BLE001 # EOFError, struct.error, IndexError, UnicodeDecodeError, ...
            raise DataRefused(self.label, self._located(data)) from None
        left = len(data) - source.tell()
        if left:
            raise self._refused(f"{left} bytes are left over after the value")
        return value

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        self._take_no_message_type(message_type)
        try:
            return write(self._schema.type, value)
        except NotWritable as error:
            raise error.refused(self.label) from None

    def field_type(self, message_type: str | None = None) -> FieldType:
        return field_type_of(self._schema.type)

    def facts(self) -> SchemaFacts:
        top = self._schema.type
        return {"top": top.name or top.kind, "recursive": self._schema.is_recursive}

    def _check_size(self, data: bytes) -> None:
        """Refuse a payload whose items are so small that it would become very large."""
        try:
            problem = locate(data, self._schema.type, MAX_SMALL_VALUES)
        except TooMany:
            raise self._refused(
                f"holds more than {MAX_SMALL_VALUES} values in {len(data)} bytes; send fewer at a time"
            ) from None
        if problem is not None:
            raise DataRefused(self.label, problem)

    def _located(self, data: bytes) -> Misfit:
        try:
            problem = locate(data, self._schema.type)
        except TooMany:
            problem = None
        return problem or Misfit("payload", "not Avro of this schema")


def _check_defaults(kind: AvroType, seen: set[int]) -> None:
    """Refuse a default that does not fit its field: it would fail for every value without the field."""
    if id(kind) in seen:
        return
    seen.add(id(kind))
    for part in kind.parts():
        _check_defaults(part, seen)
    for field in kind.fields:
        if field.default is MISSING:
            continue
        try:
            write(field.type, field.default, is_default=True)
        except NotWritable as error:
            raise SourceError(f"the default of {kind.name}.{field.name} does not fit: {error.detail}") from None
