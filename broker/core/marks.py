"""The JSON form of values that JSON has no form for: an object with one member that says what it is.

Bytes are ``{"$base64": "mQ=="}``; NaN and infinities are ``{"$double": "NaN"}``, ``"Infinity"`` or ``"-Infinity"``, as
protobuf calls them in JSON. Imported in tasks of Spark: needs the standard library only.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Final

BASE64: Final = "$base64"
DOUBLE: Final = "$double"
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_DOUBLES: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def marked(value: Any) -> Any:
    """A value as JSON has it, marks in the place of bytes and of numbers that are not finite."""
    if isinstance(value, bytes):
        return {BASE64: base64.b64encode(value).decode()}
    if isinstance(value, float):
        return value if value - value == 0 else {DOUBLE: _name_of(value)}
    if isinstance(value, Mapping):
        return {key: marked(item) for key, item in value.items()}
    return [marked(item) for item in value] if isinstance(value, (list, tuple)) else value


def value_of_mark(mark: Mapping[str, Any]) -> bytes | float | None:
    """The value that a mark stands for; None where an object is not a mark."""
    if len(mark) != 1:
        return None
    ((name, text),) = mark.items()
    if name == DOUBLE:
        return _DOUBLES.get(text) if isinstance(text, str) else None
    if name != BASE64 or not isinstance(text, str):
        return None
    try:
        return binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError:
        return None


def unmarked(value: Any) -> Any:
    """The value that a mark stands for, or the value itself where it is not one."""
    marked_value = value_of_mark(value) if isinstance(value, Mapping) else None
    return value if marked_value is None else marked_value


def have_json_types(values: Iterable[Any]) -> bool:
    """True if JSON has the types of all values, nested ones included, so that at most numbers in them need a mark."""
    for value in values:
        kind = type(value)
        if kind in _SCALARS:
            continue
        if not (
            have_json_types(value.values())
            if kind is dict
            else kind is list and have_json_types(value)
        ):
            return False
    return True


def is_finite(value: Any) -> bool:
    """True if all numbers in a value of JSON's types are finite."""
    if type(value) is float:
        return value - value == 0
    if type(value) is dict:
        return all(map(is_finite, value.values()))
    return all(map(is_finite, value)) if type(value) is list else True


def text_of_bytes(data: bytes) -> str:
    """The text that bytes are in UTF-8, or the JSON text of their mark."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f'{{"{BASE64}":"{base64.b64encode(data).decode()}"}}'


def _name_of(number: float) -> str:
    return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
