"""Memory that a few bytes can take once decoded by a protobuf message type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from schema_validation.serdes.proto_types import NESTING, is_required
from schema_validation.serdes.varint import LongVarint, read_varint, varint

# Maximum fields checked in a payload that may hold too many values: 0.1 s.
MAX_STEPS = 100_000
# Wire type of the value behind a tag.
VARINT, EIGHT, LENGTH, START, END, FOUR = range(6)


def _reachable(descriptor: Any) -> Iterator[Any]:
    """The message types that a message can hold, itself included."""
    descriptors = {descriptor.full_name: descriptor}
    waiting = [descriptor]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in descriptors:
                descriptors[inner.full_name] = inner
                waiting.append(inner)
    yield from descriptors.values()


def has_required(descriptor: Any) -> bool:
    """True if a message, or one in it, has required fields."""
    return any(is_required(field) for inner in _reachable(descriptor) for field in inner.fields)


def _implicit(descriptor: Any) -> int:
    return sum(not field.has_presence for field in descriptor.fields)


class SizeLimit:
    """Limit on the decoded values of a message type's payloads, checked before they are parsed."""

    def __init__(self, descriptor: Any, most: int) -> None:
        self._descriptor = descriptor
        self._most = most
        self._widths = {inner.full_name: 1 + _implicit(inner) for inner in _reachable(descriptor)}
        self._tags = _tags_of_messages(descriptor, self._widths)
        self.free_bytes = 2 * most // max(self._widths.values())
        """Size in bytes up to which a payload cannot exceed the limit: a message in it takes two bytes."""

    def is_exceeded(self, data: bytes) -> bool:
        """True if a payload holds too many. Broken payloads are left to the parser."""
        if self._widths[self._descriptor.full_name] + self._at_most(data) <= self._most:
            return False
        try:
            return self._counted(data) > self._most
        except (IndexError, LongVarint):
            return False

    def _at_most(self, data: bytes) -> int:
        """Upper bound of the messages: the number of bytes equal to tags of such fields."""
        return sum(data.count(tag) * width for tag, width in self._tags.items()) + len(data) // 8

    def _counted(self, data: bytes) -> int:
        """The values of the messages, counted until there are too many."""
        total = 0
        steps = 0
        waiting = [(0, len(data), self._descriptor)]
        while waiting:
            at, end, descriptor = waiting.pop()
            total += self._widths[descriptor.full_name]
            fields = descriptor.fields_by_number
            while at < end:
                steps += 1
                if total > self._most or steps > MAX_STEPS:
                    return self._most + 1
                tag, at = read_varint(data, at)
                after = _end_of_value(data, at, tag & 7)
                field = fields.get(tag >> 3)
                if tag & 7 == LENGTH and field is not None and field.type in NESTING:
                    waiting.append((read_varint(data, at)[1], min(after, end), field.message_type))
                at = after
        return total


def _tags_of_messages(descriptor: Any, widths: Mapping[str, int]) -> dict[bytes, int]:
    """The bytes that begin a field that holds a message, with the values of an empty one."""
    tags: dict[bytes, int] = {}
    for inner in _reachable(descriptor):
        for field in inner.fields:
            if field.type in NESTING:
                kind = LENGTH if field.type == FieldDescriptor.TYPE_MESSAGE else START
                tag = varint(field.number << 3 | kind)
                tags[tag] = max(tags.get(tag, 0), widths[field.message_type.full_name])
    return tags


def _end_of_value(data: bytes, at: int, wire: int) -> int:
    """End position of a value; at the end of the data where it breaks, or is a group, whose fields follow one by
    one."""
    if wire == VARINT:
        return read_varint(data, at)[1]
    if wire == LENGTH:
        size, start = read_varint(data, at)
        return start + size
    return at + {EIGHT: 8, FOUR: 4}.get(wire, 0)
