"""Protobuf, proto2 and proto3, read and written by walking the descriptors.

``json_format`` is not used: it writes 64-bit integers and bytes as text, renames fields and drops defaults, and accepts
"5" and 5.0 for an integer. Methods of messages are called as those of ``Empty``, which has no fields: a field that is
named like a method hides it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError

from broker.core.marks import unmarked
from broker.core.schema import SPARKPLUG_B, UNKNOWN, FieldType
from schema_validation.serdes.base import (
    DataRefused,
    NotWritable,
    SchemaFacts,
    SchemaSerde,
    SourceError,
    short,
)
from schema_validation.serdes.proto_bundle import load_files, load_text
from schema_validation.serdes.proto_locate import locate
from schema_validation.serdes.proto_size import SizeLimit, has_required
from schema_validation.serdes.proto_types import NESTING, is_map, is_repeated, message_type_of

_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_FLOAT_MAX = 3.4028235677973366e38
_MAX_DEPTH = 100
# Maximum values that a payload decodes to. Two bytes can be a message whose hundred fields all come out as defaults.
MAX_VALUES = 500_000

Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Coder:
    """Parser and reader of a message type."""

    parse: Callable[[bytes], Any]
    read: Read
    has_required: bool
    size: SizeLimit


class ProtobufSerde(SchemaSerde):
    """A protobuf schema: a string, a compiled one in base64, or the files of a bundle. Calls name a message type."""

    kind = "protobuf"

    def __init__(self, source: str | list[dict[str, Any]], label: str = "") -> None:
        """Compile a schema. Raises ``SourceError``."""
        self.label = label
        bundle = load_text(source) if isinstance(source, str) else load_files(source)
        self._types: dict[str, Any] = {}
        for file in (*bundle.files, bundle.root):
            for descriptor in file.message_types_by_name.values():
                self._add(descriptor, len(file.package) + 1 if file.package else 0)
        if not self._types:
            raise SourceError("the schema defines no message")
        self._own = sorted(bundle.root.message_types_by_name)
        self._readers: dict[str, Read] = {}
        self._coders: dict[str | None, _Coder] = {}

    def _add(self, descriptor: Any, prefix: int) -> None:
        """Know a message by its name without the package and with it."""
        self._types[descriptor.full_name] = descriptor
        self._types[descriptor.full_name[prefix:]] = descriptor
        for nested in descriptor.nested_types:
            if not nested.GetOptions().map_entry:
                self._add(nested, prefix)

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        coder = self._coders.get(message_type) or self._coder(message_type)
        if len(data) > coder.size.free_bytes and coder.size.is_exceeded(data):
            raise self._refused(f"a payload decodes to at most {MAX_VALUES} values")
        try:
            message = coder.parse(data)
        except DecodeError:
            raise DataRefused(self.label, locate(data, self._descriptor(message_type))) from None
        if coder.has_required and not Empty.IsInitialized(message):
            missing = ", ".join(Empty.FindInitializationErrors(message)[:5])
            raise self._refused(f"required fields are missing: {missing}")
        return coder.read(message)

    def _coder(self, message_type: str | None) -> _Coder:
        descriptor = self._descriptor(message_type)
        parse = message_factory.GetMessageClass(descriptor).FromString
        coder = _Coder(
            parse,
            self._reader(descriptor),
            has_required(descriptor),
            SizeLimit(descriptor, MAX_VALUES),
        )
        self._coders[message_type] = coder
        return coder

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        message = message_factory.GetMessageClass(self._descriptor(message_type))()
        try:
            _fill(message, value, 1)
        except NotWritable as error:
            raise error.refused(self.label) from None
        if not Empty.IsInitialized(message):
            missing = ", ".join(Empty.FindInitializationErrors(message)[:5])
            raise self._refused(f"required fields are missing: {missing}")
        data: bytes = Empty.SerializeToString(message, deterministic=True)
        return data

    def has_message_type(self, message_type: str) -> bool:
        return message_type in self._types

    def index_path(self, message_type: str) -> list[int]:
        """Path of a message type in its file: its index, within the messages around it. It must exist."""
        path: list[int] = []
        inner = self._types[message_type]
        while inner is not None:
            around = inner.containing_type
            siblings = (
                around.nested_types
                if around is not None
                else inner.file.message_types_by_name.values()
            )
            path.insert(0, [sibling.full_name for sibling in siblings].index(inner.full_name))
            inner = around
        return path

    def field_type(self, message_type: str | None = None) -> FieldType:
        descriptor = self._types.get(message_type or "")
        return UNKNOWN if descriptor is None else message_type_of(descriptor)

    def facts(self) -> SchemaFacts:
        return {"message_types": self._own}

    def _descriptor(self, message_type: str | None) -> Any:
        if message_type is None:
            raise self._refused("a message type is needed to code protobuf")
        coder = self._types.get(message_type)
        if coder is None:
            raise self._refused(f"the schema has no message type {short(message_type)}")
        return coder

    def _reader(self, descriptor: Any) -> Read:
        """Converter of a message of a type into a map; created once per type."""
        reader = self._readers.get(descriptor.full_name)
        if reader is not None:
            return reader
        always: list[tuple[str, Read]] = []
        when_present: list[tuple[str, Read]] = []

        has_field = Empty.HasField

        def read(message: Any) -> dict[str, Any]:
            value = {name: convert(getattr(message, name)) for name, convert in always}
            for name, convert in when_present:
                if has_field(message, name):
                    value[name] = convert(getattr(message, name))
            return value

        self._readers[descriptor.full_name] = read  # before the fields: a type may contain itself
        for field in descriptor.fields:
            (when_present if field.has_presence else always).append(
                (field.name, self._converter(field))
            )
        return read

    def _converter(self, field: Any) -> Read:
        if is_map(field):
            convert = self._single(field.message_type.fields_by_name["value"])
            return lambda values: {_key_text(key): convert(values[key]) for key in values}
        single = self._single(field)
        if is_repeated(field):
            return lambda values: [single(item) for item in values]
        return single

    def _single(self, field: Any) -> Read:
        if field.type in NESTING:
            return self._reader(field.message_type)
        if field.type == FieldDescriptor.TYPE_ENUM:
            # the first of aliases
            names = {value.number: value.name for value in reversed(field.enum_type.values)}
            return lambda number: names.get(number, number)
        return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _key_text(key: Any) -> str:
    return (
        key
        if isinstance(key, str)
        else ("true" if key else "false")
        if isinstance(key, bool)
        else str(key)
    )


def _fill(message: Any, value: Any, depth: int) -> None:
    """Write a map into a message: every key is a field, every value of its type."""
    if not isinstance(value, dict):
        raise NotWritable(f"{short(value)} is not an object")
    if depth > _MAX_DEPTH:
        raise NotWritable(f"the value nests deeper than {_MAX_DEPTH} levels")
    descriptor = type(message).DESCRIPTOR
    fields = descriptor.fields_by_name
    for name, item in value.items():
        field = fields.get(name)
        if field is None:
            raise NotWritable(f"{descriptor.name} has no such field").below(name)
        oneof = field.containing_oneof
        if oneof is not None and Empty.WhichOneof(message, oneof.name) not in (None, name):
            raise NotWritable(f"of {oneof.name} only one can be set").below(name)
        try:
            _put(message, field, item, depth)
        except NotWritable as error:
            raise error.below(name) from None


def _put(message: Any, field: Any, value: Any, depth: int) -> None:
    if is_map(field):
        _put_map(getattr(message, field.name), field, value, depth)
    elif is_repeated(field):
        _put_list(getattr(message, field.name), field, value, depth)
    elif field.type in NESTING:
        inner = getattr(message, field.name)
        Empty.SetInParent(inner)
        _fill(inner, value, depth + 1)
    else:
        _assigned(setattr, message, field.name, _scalar(field, value))


def _put_list(target: Any, field: Any, value: Any, depth: int) -> None:
    if not isinstance(value, list):
        raise NotWritable(f"{short(value)} is not an array")
    for index, item in enumerate(value):
        try:
            if field.type in NESTING:
                _fill(target.add(), item, depth + 1)
            else:
                _assigned(target.append, _scalar(field, item))
        except NotWritable as error:
            raise error.below(index) from None


def _put_map(target: Any, field: Any, value: Any, depth: int) -> None:
    if not isinstance(value, dict):
        raise NotWritable(f"{short(value)} is not an object")
    key_field = field.message_type.fields_by_name["key"]
    value_field = field.message_type.fields_by_name["value"]
    for name, item in value.items():
        try:
            key = _scalar(key_field, _key(key_field, name))
            if value_field.type in NESTING:
                _fill(target[key], item, depth + 1)
            else:
                target[key] = _scalar(value_field, item)
        except NotWritable as error:
            raise error.below(name) from None


def _key(field: Any, text: Any) -> Any:
    """The key of a map from its text: the keys of a value are texts."""
    if field.type == FieldDescriptor.TYPE_BOOL and text in ("true", "false"):
        return text == "true"
    if field.cpp_type in _RANGES and isinstance(text, str):
        try:
            return int(text)
        except ValueError:
            raise NotWritable(f"{short(text)} is not an integer key") from None
    return text


def _scalar(field: Any, value: Any) -> Any:
    """The value when it is of the field's type, strictly."""
    if field.cpp_type in _RANGES:
        return _integer(*_RANGES[field.cpp_type], value)
    if field.type == FieldDescriptor.TYPE_BOOL:
        if value is True or value is False or (type(value) is int and value in (0, 1)):
            return bool(value)
        raise NotWritable(f"{short(value)} is not a boolean")
    if field.type in (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT):
        return _float(field.type, value)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return _enum(field.enum_type, value)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(value)
    if not isinstance(value, str):
        raise NotWritable(f"{short(value)} is not a string")
    _bytes(value)
    return value


def _integer(least: int, most: int, value: Any) -> int:
    if type(value) is not int:
        raise NotWritable(f"{short(value)} is not an integer")
    if not least <= value <= most:
        raise NotWritable(f"{short(value)} is out of range, {least} to {most}")
    return value


def _float(kind: int, value: Any) -> float:
    value = unmarked(value)
    if type(value) not in (int, float):
        raise NotWritable(f"{short(value)} is not a number")
    try:
        number = float(value)
    except OverflowError:
        raise NotWritable(f"{short(value)} is out of range") from None
    if kind == FieldDescriptor.TYPE_FLOAT and _FLOAT_MAX < abs(number) < float("inf"):
        raise NotWritable(f"{short(value)} is out of the range of float")
    return number


def _enum(enum: Any, value: Any) -> int:
    if isinstance(value, str) and value in enum.values_by_name:
        number: int = enum.values_by_name[value].number
        return number
    if type(value) is int and -(2**31) <= value < 2**31:
        return value
    raise NotWritable(f"{short(value)} is not a value of {enum.name}")


def _bytes(value: Any) -> bytes:
    value = unmarked(value)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise NotWritable(f"{short(value)} is neither bytes nor a string")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise NotWritable("the string has lone surrogates") from None


def _assigned(assign: Callable[..., object], *arguments: Any) -> None:
    """Assign, and raise the library's refusals (an unknown number of a closed enum) as our error."""
    try:
        assign(*arguments)
    except (ValueError, TypeError) as error:
        raise NotWritable(str(error)) from None


# The schema of Sparkplug B payloads, built in under a name that no user can take.


@cache
def sparkplug_serde() -> ProtobufSerde:
    """The serde of Sparkplug B; compiled when it is first asked for."""
    source = Path(__file__).with_name("sparkplug_b.proto").read_text(encoding="utf-8")
    return ProtobufSerde(source, f"schema '{SPARKPLUG_B}'")
