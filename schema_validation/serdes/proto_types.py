"""The field types of a protobuf message type, as its decoded values have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from broker.core.schema import UNKNOWN, FieldType

# Types of fields that hold a message.
NESTING = (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP)
# Maximum fields of a type when every message is written out where it is used.
_MAX_FIELDS = 10_000
_SCALARS = {
    FieldDescriptor.CPPTYPE_BOOL: "boolean", FieldDescriptor.CPPTYPE_FLOAT: "double",
    FieldDescriptor.CPPTYPE_DOUBLE: "double", FieldDescriptor.CPPTYPE_INT32: "long",
    FieldDescriptor.CPPTYPE_INT64: "long", FieldDescriptor.CPPTYPE_UINT32: "long",
    FieldDescriptor.CPPTYPE_UINT64: "long",
}  # fmt: skip
# Values are names, and numbers of which the schema has no name.
_OPEN_ENUM = FieldType("unknown", logical="enum")


def message_type_of(descriptor: Any) -> FieldType:
    """The type of the maps that messages decode to; a message that contains itself is unknown from there on."""
    return _Reader().message(descriptor, frozenset())


class _Reader:
    def __init__(self) -> None:
        self._fields = 0

    def message(self, descriptor: Any, within: frozenset[str]) -> FieldType:
        self._fields += len(descriptor.fields)
        if descriptor.full_name in within or self._fields > _MAX_FIELDS:
            return UNKNOWN
        inside = within | {descriptor.full_name}
        fields = {field.name: self._field(field, inside) for field in descriptor.fields}
        logical = "timestamp" if descriptor.full_name == "google.protobuf.Timestamp" else ""
        return FieldType("struct", nullable=False, fields=fields, open=False, logical=logical)

    def _field(self, field: Any, within: frozenset[str]) -> FieldType:
        if is_map(field):
            return FieldType(
                "map",
                nullable=False,
                item=self._single(field.message_type.fields_by_name["value"], within),
            )
        single = self._single(field, within)
        if is_repeated(field):
            return FieldType("array", nullable=False, item=single)
        return replace(single, nullable=bool(field.has_presence) or single.nullable)

    def _single(self, field: Any, within: frozenset[str]) -> FieldType:
        if field.type in NESTING:
            return self.message(field.message_type, within)
        if field.type == FieldDescriptor.TYPE_BYTES:
            return FieldType("binary", nullable=False)
        if field.type == FieldDescriptor.TYPE_ENUM:
            values = tuple(value.name for value in field.enum_type.values)
            return (
                FieldType("string", nullable=False, values=values)
                if field.enum_type.is_closed
                else _OPEN_ENUM
            )
        return FieldType(_SCALARS.get(field.cpp_type, "string"), nullable=False)


def is_repeated(field: Any) -> bool:
    """True if a field holds a list or a map."""
    return (
        bool(field.is_repeated)
        if hasattr(field, "is_repeated")
        else field.label == FieldDescriptor.LABEL_REPEATED
    )


def is_required(field: Any) -> bool:
    """True if a field must be there (proto2)."""
    return (
        bool(field.is_required)
        if hasattr(field, "is_required")
        else field.label == FieldDescriptor.LABEL_REQUIRED
    )


def is_map(field: Any) -> bool:
    """True if a field holds a map."""
    return bool(
        field.type == FieldDescriptor.TYPE_MESSAGE
        and is_repeated(field)
        and field.message_type.GetOptions().map_entry
    )
