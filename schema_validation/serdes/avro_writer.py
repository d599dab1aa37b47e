"""Writes Avro strictly.

Characters of a default of bytes stand for a byte each, as the standard writes bytes in JSON.

fastavro's writer turns ``True`` and ``1.5`` into 1 and writes 2^31 as an int; here a boolean is not an int, a float is
not an int, a string is not a number, and ranges are checked. Bytes and fixed accept a string as its
UTF-8, float and double an int. A union takes the first branch that fits.
"""

from __future__ import annotations

import struct
from typing import Any

from broker.core.kinds import counted
from broker.core.marks import unmarked
from schema_validation.serdes.avro_decimal import Digits, signed_bytes
from schema_validation.serdes.avro_schema import MISSING, AvroType
from schema_validation.serdes.base import NotWritable, short
from schema_validation.serdes.varint import varint, zigzag

# Maximum values written for one payload, tried branches of unions included: these can multiply.
MAX_STEPS = 200_000

_RANGES = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


def write(kind: AvroType, value: Any, *, is_default: bool = False) -> bytes:
    """The value, or default of a field, in Avro's binary form. Raises ``NotWritable``."""
    writer = _Writer(is_default=is_default)
    try:
        writer.write(kind, value)
    except RecursionError:
        raise NotWritable("the value nests too deep") from None
    return bytes(writer.out)


class _Writer:
    def __init__(self, *, is_default: bool) -> None:
        self.out = bytearray()
        self._left = MAX_STEPS
        self._is_default = is_default

    def write(self, kind: AvroType, value: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise NotWritable(f"more than {MAX_STEPS} steps to write it")
        getattr(self, f"_write_{kind.kind}")(kind, value)

    def _write_null(self, kind: AvroType, value: Any) -> None:
        if value is not None:
            raise _wanted("null", value)

    def _write_boolean(self, kind: AvroType, value: Any) -> None:
        if not isinstance(value, bool):
            raise _wanted("a boolean", value)
        self.out.append(value)

    def _write_int(self, kind: AvroType, value: Any) -> None:
        if type(value) is not int:
            raise _wanted(f"a number of type {kind.kind}", value)
        least, most = _RANGES[kind.kind]
        if not least <= value <= most:
            raise NotWritable(f"{short(value)} is out of the range of {kind.kind}")
        self._varint(value)

    _write_long = _write_int

    def _write_float(self, kind: AvroType, value: Any) -> None:
        value = unmarked(value)
        if type(value) not in (int, float):
            raise _wanted(f"a number of type {kind.kind}", value)
        try:
            self.out += struct.pack("<f" if kind.kind == "float" else "<d", value)
        except OverflowError:
            raise NotWritable(f"{short(value)} is out of the range of {kind.kind}") from None

    _write_double = _write_float

    def _write_string(self, kind: AvroType, value: Any) -> None:
        if not isinstance(value, str):
            raise _wanted("a string", value)
        self._bytes(_utf8(value))

    def _write_bytes(self, kind: AvroType, value: Any) -> None:
        self._bytes(
            self._raw(value) if kind.digits is None else self._decimal(kind, kind.digits, value)
        )

    def _write_fixed(self, kind: AvroType, value: Any) -> None:
        data = self._raw(value) if kind.digits is None else self._decimal(kind, kind.digits, value)
        if len(data) != kind.size:
            raise NotWritable(f"expected {counted(kind.size, 'byte')}, got {len(data)}")
        self.out += data

    def _write_enum(self, kind: AvroType, value: Any) -> None:
        if not isinstance(value, str) or value not in kind.symbols:
            raise NotWritable(f"{short(value)} is not a symbol of {kind.name}")
        self._varint(kind.symbols.index(value))

    def _write_array(self, kind: AvroType, value: Any) -> None:
        if not isinstance(value, list) or kind.items is None:
            raise _wanted("an array", value)
        if value:
            self._varint(len(value))
        for index, item in enumerate(value):
            self._below(index, kind.items, item)
        self.out.append(0)

    def _write_map(self, kind: AvroType, value: Any) -> None:
        if not isinstance(value, dict) or kind.items is None:
            raise _wanted("an object", value)
        if value:
            self._varint(len(value))
        for key, item in value.items():
            self._bytes(_utf8(key))
            self._below(key, kind.items, item)
        self.out.append(0)

    def _write_record(self, kind: AvroType, value: Any) -> None:
        if not isinstance(value, dict):
            raise _wanted("an object", value)
        for field in kind.fields:
            member = value.get(field.name, field.default)
            if member is MISSING:
                raise NotWritable("is missing").below(field.name)
            outer = self._is_default
            self._is_default = self._is_default or field.name not in value
            self._below(field.name, field.type, member)
            self._is_default = outer

    def _write_union(self, kind: AvroType, value: Any) -> None:
        start = len(self.out)
        first = None
        for index, branch in enumerate(kind.branches):
            self._varint(index)
            try:
                self.write(branch, value)
            except NotWritable as error:
                if self._left < 0:
                    raise
                first = error if first is None or len(error.path) > len(first.path) else first
                del self.out[start:]
            else:
                return
        if first is not None and first.path:
            raise first
        raise NotWritable(
            f"{short(value)} fits no branch of the union {[b.name or b.kind for b in kind.branches]}"
        )

    def _raw(self, value: Any) -> bytes:
        value = unmarked(value)
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            raise _wanted("bytes or a string", value)
        if not self._is_default:
            return _utf8(value)
        try:
            return value.encode("latin-1")
        except UnicodeEncodeError:
            raise NotWritable(
                f"expected characters up to U+00FF, each for a byte, got {short(value)}"
            ) from None

    def _decimal(self, kind: AvroType, digits: Digits, value: Any) -> bytes:
        if type(value) is str and self._is_default and all(char <= "\xff" for char in value):
            value = value.encode("latin-1")
        if type(value) is bytes and digits.value(value) is not None:
            return value
        number = digits.number(value)
        if number is None:
            raise _wanted(f"a {digits.text}", value)
        return signed_bytes(number, kind.size)

    def _below(self, part: str | int, kind: AvroType, value: Any) -> None:
        try:
            self.write(kind, value)
        except NotWritable as error:
            raise error.below(part) from None

    def _varint(self, value: int) -> None:
        rest = zigzag(value)
        if rest < 0x80:
            self.out.append(rest)
        else:
            self.out += varint(rest)

    def _bytes(self, data: bytes) -> None:
        self._varint(len(data))
        self.out += data


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise NotWritable("the string has lone surrogates") from None


def _wanted(what: str, got: Any) -> NotWritable:
    return NotWritable(f"{short(got)} is not {what}")
