"""Durations and sizes in the form of settings: ``15s``, ``7d``, ``64KiB``, ``1MB``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_DURATION_UNITS_S = {
    "ms": 0.001,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
}
_SIZE_UNITS = {
    "": 1, "b": 1,
    "k": 1024, "kb": 1024, "kib": 1024,
    "m": 1024**2, "mb": 1024**2, "mib": 1024**2,
    "g": 1024**3, "gb": 1024**3, "gib": 1024**3,
    "t": 1024**4, "tb": 1024**4, "tib": 1024**4,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_duration_s(value: object) -> object:
    """Seconds of ``"15s"``, ``"1h30m"`` or a number of seconds; ``"infinity"`` is ``inf``. Other types pass unchanged.

    Raises:
        ValueError: with the units that are known.
    """
    if not isinstance(value, str):
        return value
    if value.strip().lower() in ("infinity", "inf"):
        return float("inf")
    total = 0.0
    at = 0
    while at < len(value):
        match = _QUANTITY.match(value, at)
        if match is None or (match[2].lower() or "s") not in _DURATION_UNITS_S:
            raise ValueError(
                f"{value!r} is not a duration; write a number with ms, s, m, h, d or w, as '15s' or '7d'"
            )
        total += float(match[1]) * _DURATION_UNITS_S[match[2].lower() or "s"]
        if total == float("inf"):
            raise ValueError(f"a duration of {len(match[1])} digits is too large")
        at = match.end()
    if not value.strip():
        raise ValueError(
            "an empty string is not a duration; write a number with ms, s, m, h, d or w, as '15s'"
        )
    return total


def parse_size_bytes(value: object) -> object:
    """Bytes of ``"64KiB"``, ``"1MB"`` (binary units, both spellings) or a number. Other types pass unchanged.

    Raises:
        ValueError: with the units that are known.
    """
    if not isinstance(value, str):
        return value
    match = _QUANTITY.fullmatch(value)
    if match is None or match[2].lower() not in _SIZE_UNITS:
        raise ValueError(f"{value!r} is not a size; write a number with KB, MB or GB, as '64KB'")
    size = float(match[1]) * _SIZE_UNITS[match[2].lower()]
    if size == float("inf"):
        raise ValueError(f"a size of {len(match[1])} digits is too large")
    return int(size)


def duration_text(seconds: float) -> str:
    """A duration as one writes it: ``1d``, ``1m30s``, ``500ms``."""
    if seconds == float("inf"):
        return "infinity"
    left_ms = round(seconds * 1000)
    words = []
    for unit, unit_ms in (
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1000),
        ("ms", 1),
    ):
        count, left_ms = divmod(left_ms, unit_ms)
        words += [f"{count}{unit}"] if count else []
    return "".join(words) or "0s"


def size_text(size_bytes: int) -> str:
    """A size as one writes it, in the largest unit that is exact: ``64KB``; else the number of bytes."""
    for unit in ("TB", "GB", "MB", "KB"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit.lower()] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit.lower()]}{unit}"
    return str(size_bytes)


def _written(unit: str) -> WithJsonSchema:
    """For clients that draw forms, ``x-unit`` says what a number counts."""
    return WithJsonSchema({"type": ["number", "string"], "x-unit": unit})


# Seconds, written as ``15s`` or ``7d``.
Duration = Annotated[
    float, BeforeValidator(parse_duration_s), PlainSerializer(float), _written("seconds")
]

# Bytes, written as ``64KB`` or ``1GB``.
Size = Annotated[int, BeforeValidator(parse_size_bytes), PlainSerializer(int), _written("bytes")]
