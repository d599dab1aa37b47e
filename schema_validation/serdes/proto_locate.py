"""Place and reason of a protobuf decoding error, which the library does not report.

Runs when a payload was refused. What the library skips (unknown fields, a known field with another wire type) is
skipped here too.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from broker.core.kinds import are
from schema_validation.serdes.base import Located, Misfit, path_text
from schema_validation.serdes.proto_size import EIGHT, END, FOUR, LENGTH, START, VARINT
from schema_validation.serdes.proto_types import NESTING, is_map, is_repeated
from schema_validation.serdes.varint import LongVarint, read_varint

# Deepest nesting of messages that protobuf reads.
MAX_DEPTH = 100
# Maximum fields checked: 30 ms.
MAX_STEPS = 20_000

Path = list[str | int]


def locate(data: bytes, descriptor: Any) -> Misfit:
    """The first place at which bytes are not a message of a type."""
    walk = _Walk(data)
    try:
        walk.message(0, len(data), descriptor, [], 1)
    except Located as found:
        return found.misfit
    return walk.not_utf8 or Misfit("payload", f"not a protobuf message of type {descriptor.name}")


class _Walk:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = MAX_STEPS
        self.not_utf8: Misfit | None = None
        """A string that is none, which only proto3 refuses."""

    def message(self, at: int, end: int, descriptor: Any, path: Path, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Located(path, f"messages nest deeper than {MAX_DEPTH} levels")
        fields = descriptor.fields_by_number
        seen: dict[int, int] = {}
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise Located(
                    [],
                    f"not a protobuf message of type {descriptor.name}; it is too large to find out where",
                )
            tag, at = self._varint(at, end, path)
            field = fields.get(tag >> 3)
            place = path
            if field is not None:
                index = seen[field.number] = seen.get(field.number, -1) + 1
                is_listed = (
                    is_repeated(field)
                    and not is_map(field)
                    and not (tag & 7 == LENGTH and field.is_packed)
                )
                place = [*path, field.name, index] if is_listed else [*path, field.name]
            at = self._value(tag, at, end, field, place, depth)

    def _value(self, tag: int, at: int, end: int, field: Any, path: Path, depth: int) -> int:
        """End position of a field's value."""
        wire = tag & 7
        if tag >> 3 == 0 or wire > FOUR or wire == END:
            raise Located(path, f"byte {at}: no field begins with the tag {tag}")
        if wire == VARINT:
            return self._varint(at, end, path)[1]
        if wire == LENGTH:
            return self._sized(at, end, field, path, depth)
        if wire == START:
            return self._group(tag >> 3, at, end, path, depth)
        width = 8 if wire == EIGHT else 4
        if at + width > end:
            raise Located(path, f"expected {width} bytes, got {end - at}")
        return at + width

    def _sized(self, at: int, end: int, field: Any, path: Path, depth: int) -> int:
        size, at = self._varint(at, end, path)
        if size > end - at:
            raise Located(path, f"{are(size, 'byte')} announced, {end - at} left")
        if field is not None and field.type in NESTING:
            self.message(at, at + size, field.message_type, path, depth + 1)
        elif (
            field is not None
            and field.type == FieldDescriptor.TYPE_STRING
            and self.not_utf8 is None
        ):
            try:
                self._data[at : at + size].decode()
            except UnicodeDecodeError as error:
                self.not_utf8 = Misfit(
                    path_text(path),
                    f"expected text, got bytes that are not UTF-8 (byte {error.start})",
                )
        return at + size

    def _group(self, number: int, at: int, end: int, path: Path, depth: int) -> int:
        """Read over a group."""
        if depth > MAX_DEPTH:
            raise Located(path, f"messages nest deeper than {MAX_DEPTH} levels")
        while at < end:
            tag, at = self._varint(at, end, path)
            if tag & 7 == END:
                if tag >> 3 != number:
                    raise Located(
                        path, f"byte {at}: group {number} ends with the tag of group {tag >> 3}"
                    )
                return at
            at = self._value(tag, at, end, None, path, depth + 1)
        raise Located(path, f"group {number} does not end")

    def _varint(self, at: int, end: int, path: Path) -> tuple[int, int]:
        try:
            return read_varint(self._data, at, end)
        except IndexError:
            raise Located(path, "expected a number, got the end of the data") from None
        except LongVarint:
            raise Located(path, f"byte {at}: expected a number of at most 10 bytes") from None
