"""Bits of integers and of strings."""

from __future__ import annotations

import struct
from typing import Annotated, Any

from rules.functions.registry import Int, Literals, at_least, choice, failure, function
from rules.functions.spark_form import SparkForm, forms
from rules.sql.limits import MAX_INTEGER_BITS
from rules.sql.values import UNDEFINED, Bits, string, type_name

_FLOATS = {16: "e", 32: "f", 64: "d"}
Reading = Annotated[str, choice("integer", "float", "bits")]
Sign = Annotated[str, choice("unsigned", "signed")]
Endian = Annotated[str, choice("big", "little")]
Length = Annotated[int, at_least(0)]


_SHIFT = "CAST(least(greatest({1}, 0), 63) AS INT)"
_LEFT = (
    SparkForm(
        ("long", "long"),
        f"shiftleft({{0}}, {_SHIFT})",
        "long",
        unless=f"{{1}} < 0 OR {{1}} > 62 OR shiftright(shiftleft({{0}}, {_SHIFT}), {_SHIFT}) <> {{0}}",
    ),
)
_RIGHT = (
    SparkForm(
        ("long", "long"), f"shiftright({{0}}, {_SHIFT})", "long", unless="{1} < 0 OR {1} > 63"
    ),
)


@function(returns="long", spark=forms("long", value="(~ {0})"))
def bitnot(x: Int) -> int:
    """All bits inverted, in two's complement."""
    return ~x


@function(returns="long", spark=(SparkForm(("long", "long"), "({0} & {1})", "long"),))
def bitand(x: Int, y: Int) -> int:
    """The bits that both have."""
    return x & y


@function(returns="long", spark=(SparkForm(("long", "long"), "({0} | {1})", "long"),))
def bitor(x: Int, y: Int) -> int:
    """The bits that either has."""
    return x | y


@function(returns="long", spark=(SparkForm(("long", "long"), "({0} ^ {1})", "long"),))
def bitxor(x: Int, y: Int) -> int:
    """The bits that only one has."""
    return x ^ y


@function(returns="long", spark=_LEFT)
def bitsl(x: Int, n: Int) -> int:
    """Shifted left by n bits; to the right when n is negative."""
    return _shifted("bitsl", x, n)


@function(returns="long", spark=_RIGHT)
def bitsr(x: Int, n: Int) -> int:
    """Shifted right by n bits, keeping the sign; to the left when n is negative."""
    return _shifted("bitsr", x, -n)


def _shifted(name: str, x: int, left: int) -> int:
    if left <= 0:
        return x >> -left
    if x and left + x.bit_length() > MAX_INTEGER_BITS:
        raise failure(name, f"the result has more than {MAX_INTEGER_BITS} bits")
    return x << left if x else 0


@function(
    returns="long",
    spark=forms("string", value="(8 * CAST(octet_length({0}) AS BIGINT))", gives="long"),
)
def bitsize(data: Any) -> int:
    """The number of bits of a string."""
    return _bits("bitsize", data).size


@function(
    returns="long", spark=forms("string", value="CAST(octet_length({0}) AS BIGINT)", gives="long")
)
def bytesize(data: Any) -> int:
    """The number of bytes of a string."""
    return -(-_bits("bytesize", data).size // 8)


def _first_bits(values: Literals) -> tuple[int, str] | None:
    if len(values) == 2 and type(values[1]) is int and values[1] < 0:
        return 1, "argument 2 must be an integer of at least 0"
    return None


@function(usage="(b, [start,] len[, type[, sign[, endian]]])", check=_first_bits)
def subbits(
    data: Any,
    start: Int,
    size: Length | None = None,
    kind: Reading = "integer",
    sign: Sign = "unsigned",
    endian: Endian = "big",
) -> Any:
    """Bits of a string from the first or from ``start``, counted from 1, as integer, float or bits.

    ``type`` is ``integer``, ``float`` or ``bits``, ``sign`` ``unsigned`` or ``signed``, ``endian`` ``big`` or
    ``little``; the first of each where none is given. Undefined where start lies outside.
    """
    bits = _bits("subbits", data)
    if size is None:
        if start < 0:
            raise failure("subbits", "argument 2 must be an integer of at least 0")
        start, size = 1, start
    if not 1 <= start <= bits.size:
        return UNDEFINED
    size = min(size, bits.size - start + 1)
    if kind == "integer" and size > MAX_INTEGER_BITS:
        raise failure(
            "subbits", f"an integer has at most {MAX_INTEGER_BITS} bits; take them as 'bits'"
        )
    part = (bits.value >> (bits.size - start + 1 - size)) & ((1 << size) - 1)
    if kind == "bits":
        return _as_value(part, size)
    if kind == "float":
        return _float(part, size, endian)
    if endian == "little":
        part = _little(part, size)
    return part - (1 << size) if sign == "signed" and size and part >> (size - 1) else part


def _bits(name: str, data: Any) -> Bits:
    if type(data) is Bits:
        return data
    if type(data) is str:
        data = data.encode()
    if type(data) is not bytes:
        raise failure(name, f"argument 1 must be a string, not {type_name(data)}")
    return Bits(int.from_bytes(data, "big"), 8 * len(data))


def _as_value(part: int, size: int) -> Any:
    return Bits(part, size) if size % 8 else string(part.to_bytes(size // 8, "big"))


def _little(part: int, size: int) -> int:
    """The bits read byte by byte, the first byte lowest; a last incomplete byte is highest."""
    value = 0
    shift = 0
    left = size
    while left > 0:
        width = min(8, left)
        value |= ((part >> (left - width)) & ((1 << width) - 1)) << shift
        shift = shift + width
        left = left - width
    return value


def _float(part: int, size: int, endian: str) -> float:
    if size not in _FLOATS:
        raise failure("subbits", f"a float has 16, 32 or 64 bits, not {size}")
    order = ">" if endian == "big" else "<"
    value: float = struct.unpack(order + _FLOATS[size], part.to_bytes(size // 8, "big"))[0]
    if value - value != 0.0:
        raise failure("subbits", "the bits are not a finite float")
    return value
