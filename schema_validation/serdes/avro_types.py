"""The field types of an Avro schema. Values of logical types but decimals are what they are written as, a
``timestamp-millis`` is a long; tables read them as what they mean."""

from __future__ import annotations

from dataclasses import replace

from broker.core.schema import UNKNOWN, FieldType
from rules.sql.type_checker.types import unified_all
from schema_validation.serdes.avro_schema import AvroType

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
    return FieldType(_SCALARS[kind.kind], nullable=kind.kind == "null", values=tuple(kind.symbols), logical=logical)


def _union(kind: AvroType, within: frozenset[int]) -> FieldType:
    others = [branch for branch in kind.branches if branch.kind != "null"]
    is_nullable = len(others) < len(kind.branches)
    if not others:
        return FieldType("null")
    branch_type = unified_all(_type(branch, within) for branch in others)
    return replace(branch_type, nullable=is_nullable or branch_type.name == "unknown")
