"""How much a protobuf message type can make of few bytes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from schema_validation.serdes.proto_types import NESTING, is_map, is_repeated


def _reachable(descriptor: Any) -> Iterator[Any]:
    """The message types that a message can hold, itself included."""
    found = {descriptor.full_name: descriptor}
    waiting = [descriptor]
    while waiting:
        for field in waiting.pop().fields:
            inner = field.message_type
            if inner is not None and inner.full_name not in found:
                found[inner.full_name] = inner
                waiting.append(inner)
    yield from found.values()


def has_required(descriptor: Any) -> bool:
    """Whether a message, or one in it, has required fields."""
    return any(_is_required(field) for inner in _reachable(descriptor) for field in inner.fields)


def _is_required(field: Any) -> bool:
    if hasattr(field, "is_required"):
        return bool(field.is_required)
    return bool(field.label == FieldDescriptor.LABEL_REQUIRED)


def most_implicit(descriptor: Any) -> int:
    """Most fields that come out of an empty message, of all types that a message can hold."""
    return max(map(_implicit, _reachable(descriptor)))


def _implicit(descriptor: Any) -> int:
    return sum(not field.has_presence for field in descriptor.fields)


def holds_more_than(most: int, message: Any) -> bool:
    """Whether a message decodes to more values than this."""
    total, waiting = 0, [message]
    widths: dict[str, int] = {}
    while waiting and total <= most:
        found = waiting.pop()
        name = found.DESCRIPTOR.full_name
        if name not in widths:
            widths[name] = 1 + _implicit(found.DESCRIPTOR)
        total += widths[name]
        for field, value in found.ListFields():
            total += len(value) if is_repeated(field) else 1
            waiting += _messages(field, value)
    return total > most


def _messages(field: Any, value: Any) -> Any:
    """The messages in a field."""
    if is_map(field):
        inner = field.message_type.fields_by_name["value"]
        return value.values() if inner.type in NESTING else ()
    if field.type not in NESTING:
        return ()
    return value if is_repeated(field) else (value,)
