"""Avro: raw binary, no container and no tag.

Of logical types only decimals are interpreted (``avro_decimal``); payloads hold the numbers of the others.

fastavro reads. Its C reader overflows the stack on deeply nested values of a schema that contains itself (the process
dies between 2,000 and 5,000 levels, a payload of 5 KB): such schemas are read by its Python reader, whose recursion
ends in an exception. Its block counts cannot run away, since ``avro_schema`` refuses items that take no bytes; bytes
left over are an error here. What it refuses is read once more, step by step, to say where.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from math import inf
from typing import Any

import fastavro
from fastavro import _read_py

from broker.core.kinds import are
from broker.core.schema import UNKNOWN, FieldType
from rules.sql.type_checker.types import unified_all
from schema_validation.serdes.avro_decimal import LOGICAL, read_decimal
from schema_validation.serdes.avro_locate import TooMany, locate
from schema_validation.serdes.avro_schema import (
    MISSING,
    AvroType,
    all_types,
    read_schema,
    takes_bytes,
)
from schema_validation.serdes.avro_writer import write
from schema_validation.serdes.base import (
    DataRefused,
    Misfit,
    NotWritable,
    SchemaFacts,
    SchemaSerde,
    SourceError,
)

# Bytes that a decoded payload may take without a check of the payload first.
MAX_MEMORY = 64 * 1024 * 1024
# Maximum values of a payload that could take more: checking them takes 0.1 s.
MAX_SMALL_VALUES = 50_000

Reader = Callable[[BytesIO, Any], Any]

fastavro.read.LOGICAL_READERS.update(
    {f"{kind}-{LOGICAL}": read_decimal for kind in ("bytes", "fixed")}
)


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
        self._read: Reader = (
            _read_py.schemaless_reader if self._schema.is_recursive else fastavro.schemaless_reader
        )

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
            raise self._refused(f"{are(left, 'byte')} left over after the value")
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
            raise SourceError(
                f"the default of {kind.name}.{field.name} does not fit: {error.detail}"
            ) from None


# Memory that a few bytes can take once decoded: one byte of an array may be a record.


_RECORD = 184
_FIELD = 30
_DECIMAL = 96
# Bytes of a value in CPython; null, booleans and symbols are shared.
_SIZES = {"int": 32, "long": 32, "float": 24, "double": 24, "string": 50, "bytes": 50, "fixed": 50}
_WIDTHS = {"null": 0, "float": 4, "double": 8}


def growth(kind: AvroType) -> float:
    """Maximum bytes of memory that one byte of a payload becomes in an array or a map; infinite where items take
    none."""
    return max(
        (_growth_of(part) for part in all_types(kind) if part.items is not None), default=1.0
    )


def _growth_of(holder: AvroType) -> float:
    if holder.items is None:
        return 1.0
    if holder.kind == "array" and not takes_bytes(holder.items):
        return inf
    key_size, key_width = (_SIZES["string"] + _FIELD, 1) if holder.kind == "map" else (8, 0)
    return (key_size + _size(holder.items, frozenset())) / max(
        1, key_width + _width(holder.items, frozenset())
    )


def _size(kind: AvroType, within: frozenset[int]) -> int:
    """About how many bytes of memory a value takes, without items of arrays and maps in it."""
    if id(kind) in within:
        return 0
    inside = within | {id(kind)}
    if kind.kind == "record":
        return _RECORD + sum(_FIELD + _size(field.type, inside) for field in kind.fields)
    if kind.kind == "union":
        return max(_size(branch, inside) for branch in kind.branches)
    if kind.digits is not None:
        return _DECIMAL
    return 64 if kind.items is not None else _SIZES.get(kind.kind, 0)


def _width(kind: AvroType, within: frozenset[int]) -> int:
    """Fewest bytes of a payload that a value takes."""
    if id(kind) in within:
        return 0
    inside = within | {id(kind)}
    if kind.kind == "record":
        return sum(_width(field.type, inside) for field in kind.fields)
    if kind.kind == "union":
        return 1 + min(_width(branch, inside) for branch in kind.branches)
    return kind.size if kind.kind == "fixed" else _WIDTHS.get(kind.kind, 1)


# Types of fields. Values of logical types but decimals are what they are written as, a ``timestamp-millis`` is a long;
# tables read them as what they mean.


_SCALARS = {
    "null": "null", "boolean": "boolean", "int": "long", "long": "long", "float": "double", "double": "double",
    "bytes": "binary", "fixed": "binary", "string": "string", "enum": "string",
}  # fmt: skip

# Others are columns of the type that they are written as: ``uuid`` is text, a ``time-millis`` a whole number, and no
# table format of both has a time of day or nanoseconds.
_LOGICAL = {
    ("int", "date"): "date", ("long", "timestamp-millis"): "timestamp", ("long", "timestamp-micros"): "timestamp(us)",
}  # fmt: skip


def field_type_of(kind: AvroType) -> FieldType:
    """The type of the values of a schema; what contains itself is unknown from there on."""
    return _type(kind, frozenset())


def _type(kind: AvroType, within: frozenset[int]) -> FieldType:
    if id(kind) in within:
        return UNKNOWN
    inside = within | {id(kind)}
    if kind.kind == "record":
        fields = {field.name: _type(field.type, inside) for field in kind.fields}
        return FieldType("struct", nullable=False, fields=fields, open=False)
    if kind.kind == "union":
        return _union(kind, inside)
    if kind.items is not None:
        return FieldType(kind.kind, nullable=False, item=_type(kind.items, inside))
    if kind.digits is not None:
        return FieldType(kind.digits.json_type, nullable=False, logical=kind.digits.text)
    logical = _LOGICAL.get((kind.kind, kind.logical or ""), "")
    return FieldType(
        _SCALARS[kind.kind],
        nullable=kind.kind == "null",
        values=tuple(kind.symbols),
        logical=logical,
    )


def _union(kind: AvroType, within: frozenset[int]) -> FieldType:
    others = [branch for branch in kind.branches if branch.kind != "null"]
    is_nullable = len(others) < len(kind.branches)
    if not others:
        return FieldType("null")
    branch_type = unified_all(_type(branch, within) for branch in others)
    return replace(branch_type, nullable=is_nullable or branch_type.name == "unknown")
