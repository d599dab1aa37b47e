"""Decimals of Avro: a whole number in bytes, highest byte first, that counts steps of ``10 ** -scale``.

A value is a number where any double is exact enough, up to 15 digits, and text beyond: so rules calculate with it, and
tables and JSON keep each digit. As the standard wants, a ``decimal`` that is none, such as one of -1 digits, is plain
bytes; so is one with more digits than a column of a table has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final

MOST_DIGITS: Final = 38
# Digits of a decimal that a double keeps unchanged.
EXACT_DIGITS: Final = 15
_POWERS: Final = tuple(10**digits for digits in range(MOST_DIGITS + 1))
_CONTEXT: Final = Context(prec=2 * MOST_DIGITS)
_TEXT: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?")
_LONGEST_TEXT: Final = 64
# Logical type for our decimals; the library would read ``decimal`` as Python's.
LOGICAL: Final = "sluice-decimal"


@dataclass(frozen=True, slots=True)
class Digits:
    """Precision and scale of a decimal."""

    precision: int
    scale: int

    @property
    def text(self) -> str:
        """The type of a column of a table."""
        return f"decimal({self.precision}, {self.scale})"

    @property
    def json_type(self) -> str:
        """The name of the field type that values have."""
        if self.precision > EXACT_DIGITS:
            return "string"
        return "double" if self.scale else "long"

    def can_hold(self, other: Digits) -> bool:
        """True if the bytes of each such decimal mean the same number here."""
        return self.scale == other.scale and self.precision >= other.precision

    def value(self, data: bytes) -> int | float | str | None:
        """The number that bytes are; None where it has more digits."""
        number = int.from_bytes(data, "big", signed=True)
        if abs(number) >= _POWERS[self.precision]:
            return None
        if self.precision <= EXACT_DIGITS:
            return number / _POWERS[self.scale] if self.scale else number
        return format(Decimal(number).scaleb(-self.scale, _CONTEXT), "f")

    def number(self, value: Any) -> int | None:
        """The whole number that a value is written as; None if it has more digits or is not a number."""
        if type(value) is str:
            is_number = len(value) <= _LONGEST_TEXT and _TEXT.fullmatch(value) is not None
        else:
            is_number = type(value) in (int, float) and abs(value) < _POWERS[MOST_DIGITS]
        if not is_number:
            return None
        steps = Decimal(repr(value) if type(value) is float else value).scaleb(self.scale, _CONTEXT)
        number = int(steps)
        return number if number == steps and abs(number) < _POWERS[self.precision] else None


def digits_of(raw: Mapping[str, Any]) -> Digits | None:
    """Digits of a type in a schema; None if it is not a decimal."""
    precision = raw.get("precision")
    scale = raw.get("scale", 0)
    if raw.get("logicalType") != "decimal" or raw.get("type") not in ("bytes", "fixed"):
        return None
    if type(precision) is not int or type(scale) is not int:
        return None
    is_decimal = 1 <= precision <= MOST_DIGITS and 0 <= scale <= precision
    if raw["type"] == "fixed" and is_decimal:
        is_decimal = _POWERS[precision] <= 1 << max(0, 8 * min(raw["size"], 20) - 1)
    return Digits(precision, scale) if is_decimal else None


def marked(raw: Mapping[str, Any]) -> dict[str, str]:
    """Attributes by which the library reads a type of a schema as one of our decimals."""
    return {} if digits_of(raw) is None else {"logicalType": LOGICAL}


def signed_bytes(number: int, size: int = 0) -> bytes:
    """A whole number as ``size`` bytes; without a size, in the fewest bytes."""
    least = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return number.to_bytes(size or least, "big", signed=True)


_digits = lru_cache(maxsize=1024)(Digits)


def read_decimal(data: bytes, writer_schema: Any, reader_schema: Any = None) -> int | float | str:
    """Read one of our decimals; the library calls it.

    Raises:
        ValueError: it has more digits than its schema says.
    """
    value = _digits(writer_schema["precision"], writer_schema.get("scale", 0)).value(data)
    if value is None:
        raise ValueError("too many digits")
    return value
