"""JSON as this product means it: strict on the way in, compact on the way out, integers of any size exact.

Refused: NaN and infinities, overflow (``1e400``), lone surrogates, invalid UTF-8, byte order marks, trailing commas or
bytes, leading zeros, empty input, nesting deeper than ``MAX_DEPTH``, more than ``MAX_CONTAINERS`` arrays and objects.
Duplicate keys: the last one wins. msgspec decodes a telemetry payload of 128 B in 0.24 µs and keeps integers beyond 64
bits, which orjson turns into floats.

No text of 2 MB holds the event loop for 100 ms: measured are 66 ms for the most objects, 70 ms for the most numbers
that take long.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import re2

from broker.core.marks import have_json_types, is_finite, marked

# Deepest nesting of arrays and objects accepted.
MAX_DEPTH = 128
# Maximum number of arrays and objects in one document.
MAX_CONTAINERS = 100_000
# Length of a document, in characters, that never takes more than some milliseconds.
_SMALL_LENGTH = 4096
# An exponent from 290 on. msgspec takes 6 to 10 µs for each such float, 200 times what it takes for others, ``float``
# 0.7. RE2 looks through 1 MB in a millisecond, ``re`` in eleven.
_EXTREME = re2.compile(rb"[eE][+-]?0*(?:29|3)\d")
_MAX_EXTREME = 100_000
# No text up to this length nests too deep: each level takes two characters. Counting them takes 0.6 µs.
_SHALLOW_LENGTH = 2 * MAX_DEPTH


class JsonError(ValueError):
    """Text that is not JSON; the message says why and where."""


def _float(text: str) -> float:
    number = float(text)
    if number - number:
        raise ValueError("Number out of range")
    return number


_decode = msgspec.json.Decoder().decode
_decode_extreme = msgspec.json.Decoder(float_hook=_float).decode
_skip = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode


def decode(text: bytes | str) -> Any:
    """The value of a JSON text.

    Raises:
        JsonError: the text is not strict JSON, nests deeper than ``MAX_DEPTH``, or has too many parts.
    """
    length = len(text)
    try:
        value = _decode(text) if length <= _SMALL_LENGTH else _decode_long(text)
    except (ValueError, RecursionError) as error:
        raise JsonError(_why(text, error)) from None
    if length > _SHALLOW_LENGTH and _may_be_deep(text) and _depth(value) > MAX_DEPTH:
        raise JsonError(f"JSON nests deeper than {MAX_DEPTH} levels")
    return value


def decode_ns(text: bytes | str) -> float:
    """An estimate of the nanoseconds that ``decode`` takes: by characters, arrays and objects, and the numbers where
    they take long."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    time_ns = 15.0 * len(data) + 300.0 * (data.count(b"[") + data.count(b"{"))
    if len(data) > _SMALL_LENGTH and _EXTREME.search(data):
        time_ns += 700.0 * data.count(b",")
    return time_ns


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8, keys in the order of the value, floats in their shortest exact form.

    Raises:
        JsonError: the value holds something JSON cannot say. Bytes become base64 and NaN null, so values that may hold
            them are for ``encode_any``.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise JsonError(f"not representable as JSON: {error}") from None


def is_json(text: str) -> bool:
    """True if the text is one JSON value. No value is built, which takes a quarter of the time of ``decode``."""
    try:
        _skip(text)
    except (ValueError, RecursionError):
        return False
    return True


def float_text(value: float) -> str:
    """The shortest exact form of a float, as ``encode`` writes it: ``0.1``, ``2.0``, ``1e22``, ``4e-11``.

    Values without a JSON number have the names of Protobuf's JSON mapping: ``NaN``, ``Infinity``, ``-Infinity``.
    """
    text = _encode(value).decode()
    return (
        text
        if text != "null"
        else "NaN"
        if value != value
        else "Infinity"
        if value > 0
        else "-Infinity"
    )


def encode_any(value: Any, convert: Callable[[Any], Any] = marked) -> bytes:
    """``encode`` for values of rules and schemas: bytes and numbers that are not finite are marked (``marks``).

    Args:
        value: any value.
        convert: gives a value with marks; called where there may be something to mark.

    Raises:
        JsonError: the value holds something that has no mark either, or nests too deep.
    """
    try:
        if have_json_types(value.values() if type(value) is dict else (value,)):
            text = _encode(value)
            if b"null" not in text or is_finite(value):
                # msgspec writes null for NaN and infinities
                return text
        return _encode(convert(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise JsonError(f"not representable as JSON: {error}") from None


def _decode_long(text: bytes | str) -> Any:
    data = text.encode() if isinstance(text, str) else text
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        raise ValueError(f"JSON has more than {MAX_CONTAINERS} arrays and objects")
    if not _EXTREME.search(data):
        return _decode(data)
    if data.count(b",") > _MAX_EXTREME:
        raise ValueError(
            f"JSON has more than {_MAX_EXTREME} values, and exponents beyond 290 among them"
        )
    return _decode_extreme(data)


def _why(text: bytes | str, error: BaseException) -> str:
    if not text.strip():
        return "empty text is not JSON"
    if isinstance(error, RecursionError):
        return f"JSON nests deeper than {MAX_DEPTH} levels"
    if isinstance(error, UnicodeDecodeError):
        return f"text is not UTF-8: byte {error.start}"
    return str(error)


def _may_be_deep(text: bytes | str) -> bool:
    if isinstance(text, str):
        return text.count("[") + text.count("{") > MAX_DEPTH
    return text.count(b"[") + text.count(b"{") > MAX_DEPTH


def _depth(value: Any) -> int:
    """Nesting of a decoded value, without recursion."""
    deepest = 0
    level = [value]
    while level:
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        if not any(isinstance(item, (dict, list)) for item in level):
            break
        deepest += 1
        level = inner
    return deepest
