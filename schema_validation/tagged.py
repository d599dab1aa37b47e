"""Payloads with Confluent's tag in front: a zero byte, the schema's id in four bytes, big end first, then the data.

The version that the id names decodes, whichever is in use; encoding writes the id of the version in use. Of Protobuf
the path of the message type is between the two, as zigzag varints: their count, then the indexes.
"""

from __future__ import annotations

import struct
from typing import Any

from broker.core.schema import FieldType
from schema_validation.serdes.base import DataRefused, Misfit, SchemaFacts, SchemaSerde
from schema_validation.serdes.varint import LongVarint, read_varint, signed, varint, zigzag
from schema_validation.versions import Schema

_TAG = struct.Struct(">BI")
_MOST_INDEXES = 32


class TaggedSerde(SchemaSerde):
    """The versions of a schema by their ids."""

    def __init__(self, schema: Schema) -> None:
        current = schema.current
        self.kind = schema.kind
        self.label = current.serde.label
        self._name = schema.name
        self._current = current.serde
        self._current_id = current.id
        self._index_path = getattr(current.serde, "index_path", None)  # of Protobuf alone
        self._by_id = {version.id: version.serde for version in schema.versions}

    def decode(self, data: bytes, message_type: str | None = None) -> Any:
        serde, body = self._opened(data)
        return serde.decode(body, message_type)

    def encode(self, value: Any, message_type: str | None = None) -> bytes:
        body = self._current.encode(value, message_type)
        path = b""
        if message_type is not None and self._index_path is not None:
            path = _written_path(self._index_path(message_type))
        return _TAG.pack(0, self._current_id) + path + body

    def has_message_type(self, message_type: str) -> bool:
        return self._current.has_message_type(message_type)

    def misfit(self, data: bytes, message_type: str | None = None) -> Misfit | None:
        try:
            serde, body = self._opened(data)
        except DataRefused as error:
            return error.misfit
        return serde.misfit(body, message_type)

    def field_type(self, message_type: str | None = None) -> FieldType:
        return self._current.field_type(message_type)

    def facts(self) -> SchemaFacts:
        return self._current.facts()

    def _opened(self, data: bytes) -> tuple[SchemaSerde, bytes]:
        """The decoder of the data, and the data without its tag."""
        if len(data) < _TAG.size or data[0] != 0:
            raise self._refused("it has no tag: it does not begin with a zero byte and a schema's id")
        number = _TAG.unpack_from(data)[1]
        serde = self._by_id.get(number)
        if serde is None:
            raise self._refused(f"its tag names the schema id {number}, which is not a version of {self._name!r}")
        start = _TAG.size if self.kind != "protobuf" else self._after_path(data)
        return serde, data[start:]

    def _after_path(self, data: bytes) -> int:
        """Start position of the message: behind the count and the indexes, or the single zero that stands for
        ``[0]``."""
        try:
            count, at = read_varint(data, _TAG.size)
            if not 0 <= signed(count) <= _MOST_INDEXES:
                raise IndexError
            for _ in range(signed(count)):
                _, at = read_varint(data, at)
        except (IndexError, LongVarint):
            raise self._refused("its tag has no path of a message type") from None
        return at


def _written_path(indexes: list[int]) -> bytes:
    return b"\x00" if indexes == [0] else b"".join(varint(zigzag(number)) for number in (len(indexes), *indexes))
