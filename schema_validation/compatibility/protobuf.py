"""Protobuf: fields by number, by their bytes on the wire; imported types are compared too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from schema_validation.compatibility.verdict import Reason
from schema_validation.serdes.proto_bundle import Bundle, load_files, load_text
from schema_validation.serdes.proto_types import is_repeated, is_required

_GROUPS = (
    ("int32", "uint32", "int64", "uint64", "bool", "enum"),
    ("sint32", "sint64"),
    ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"),
    ("string", "bytes"),
)
_GROUP_OF: Mapping[str, int] = {
    name: number for number, group in enumerate(_GROUPS) for name in group
}
_TYPE_NAMES: Mapping[int, str] = {
    number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()
}


@dataclass(frozen=True, slots=True)
class Model:
    """The messages of a schema by their names without the package."""

    messages: Mapping[str, Any]
    package: str


def parse(source: str | list[dict[str, Any]]) -> Model:
    """The messages of a source that is known to be a schema."""
    bundle = load_text(source) if isinstance(source, str) else load_files(source)
    return Model(
        {
            name: message
            for top in bundle.root.message_types_by_name.values()
            for name, message in _nested(top, bundle)
        },
        bundle.root.package,
    )


def can_read(reader: Model, writer: Model) -> list[Reason]:
    """Reasons why a reader cannot read everything a writer may have written; empty when it can."""
    comparison = _Comparison()
    for name, written in writer.messages.items():
        read = reader.messages.get(name)
        if read is None:
            comparison.reasons.append(Reason(name, "the reader has no such message"))
        else:
            comparison.message(read, written, name)
    return comparison.reasons


def warnings(new: Model, old: Model) -> list[Reason]:
    """Allowed changes that may cause trouble later: numbers removed without being reserved, another package."""
    reasons = (
        [] if new.package == old.package else [Reason("package", f"it was {old.package!r}", True)]
    )
    for name, before in old.messages.items():
        after = new.messages.get(name)
        if after is None:
            continue
        kept = {field.number for field in after.fields}
        reserved = _reserved(after)
        reasons += [
            Reason(
                f"{name}.{field.name}", f"its number {field.number} is free again; reserve it", True
            )
            for field in before.fields
            if field.number not in kept
            and not any(start <= field.number < end for start, end in reserved)
        ]
    return reasons


class _Comparison:
    def __init__(self) -> None:
        self.reasons: list[Reason] = []
        self._seen: set[tuple[str, str]] = set()

    def message(self, reader: Any, writer: Any, path: str) -> None:
        """Compare two messages and, once, those that their fields hold."""
        pair = (reader.full_name, writer.full_name)
        if pair in self._seen:
            return
        self._seen.add(pair)
        read = {field.number: field for field in reader.fields}
        written = {field.number: field for field in writer.fields}
        for number in sorted(read.keys() | written.keys()):
            self._field(read.get(number), written.get(number), path)
        self.reasons += _oneofs(reader, written, path)

    def _field(self, read: Any, written: Any, path: str) -> None:
        present = read if read is not None else written
        place = f"{path}.{present.name}"
        if _required(read) != _required(written):
            by = "reader" if _required(read) else "writer"
            self.reasons.append(
                Reason(place, f"field {present.number} is required by the {by} only")
            )
        if read is None or written is None:
            return
        if problem := _type_problem(read, written):
            self.reasons.append(Reason(place, f"field {present.number}: {problem}"))
        elif read.type == FieldDescriptor.TYPE_MESSAGE:
            self.message(read.message_type, written.message_type, place)


def _required(field: Any) -> bool:
    return field is not None and is_required(field)


def _type_problem(read: Any, written: Any) -> str | None:
    reads = _TYPE_NAMES[read.type]
    writes = _TYPE_NAMES[written.type]
    if reads != writes and (reads not in _GROUP_OF or _GROUP_OF[reads] != _GROUP_OF.get(writes)):
        return f"the writer writes {writes}, the reader reads {reads}"
    if is_repeated(written) and not is_repeated(read):
        return "it is repeated for the writer and single for the reader"
    return None


def field_type_name(field: Any) -> str:
    """The type as it is written: ``int32``, or the full name of a message or an enum."""
    if field.message_type is not None:
        return str(field.message_type.full_name)
    return (
        str(field.enum_type.full_name) if field.enum_type is not None else _TYPE_NAMES[field.type]
    )


def _oneofs(reader: Any, written: Mapping[int, Any], path: str) -> Iterator[Reason]:
    """Several fields that were independent must not become a oneof: only the last would be kept."""
    for oneof in reader.oneofs:
        moved = [
            field
            for field in oneof.fields
            if (old := written.get(field.number)) is not None and not _oneof(old)
        ]
        if len(moved) > 1:
            names = ", ".join(field.name for field in moved)
            yield Reason(
                f"{path}.{oneof.name}",
                f"{names} may all be set by the writer; the reader keeps one of them",
            )


def _oneof(field: Any) -> Any:
    """The oneof that a field is in; those that proto3 makes for ``optional`` are none."""
    oneof = field.containing_oneof
    return (
        oneof
        if oneof is not None and len(oneof.fields) > 0 and not oneof.name.startswith("_")
        else None
    )


def _reserved(message: Any) -> list[tuple[int, int]]:
    """The ranges of numbers that a message reserves; the end is not among them."""
    proto = DescriptorProto()
    message.CopyToProto(proto)
    return [(reserved.start, reserved.end) for reserved in proto.reserved_range]


def _nested(message: Any, bundle: Bundle) -> Iterator[tuple[str, Any]]:
    prefix = len(bundle.root.package) + 1 if bundle.root.package else 0
    yield message.full_name[prefix:], message
    for inner in message.nested_types:
        if not inner.GetOptions().map_entry:
            yield from _nested(inner, bundle)
