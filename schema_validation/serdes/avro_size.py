"""Memory that a few bytes can take once decoded by an Avro schema: one byte of an array may be a record."""

from __future__ import annotations

from math import inf

from schema_validation.serdes.avro_schema import AvroType, all_types, takes_bytes

_RECORD = 184
_FIELD = 30
_DECIMAL = 96
# Bytes of a value in CPython; null, booleans and symbols are shared.
_SIZES = {"int": 32, "long": 32, "float": 24, "double": 24, "string": 50, "bytes": 50, "fixed": 50}
_WIDTHS = {"null": 0, "float": 4, "double": 8}


def growth(kind: AvroType) -> float:
    """Most bytes of memory that one byte of a payload becomes in an array or a map; infinite where items take none."""
    return max((_growth_of(part) for part in all_types(kind) if part.items is not None), default=1.0)


def _growth_of(holder: AvroType) -> float:
    if holder.items is None:
        return 1.0
    if holder.kind == "array" and not takes_bytes(holder.items):
        return inf
    key_size, key_width = (_SIZES["string"] + _FIELD, 1) if holder.kind == "map" else (8, 0)
    return (key_size + _size(holder.items, frozenset())) / max(1, key_width + _width(holder.items, frozenset()))


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
