"""Time. Instants are integers in a unit: second, millisecond, microsecond, nanosecond."""

from __future__ import annotations

import re
import time
from datetime import date
from typing import Annotated, Any

from rules.functions.registry import Int, StrictText, choice, failure, function
from rules.sql.values import UNDEFINED, type_name

_NS = {"second": 1_000_000_000, "millisecond": 1_000_000, "microsecond": 1_000, "nanosecond": 1}
_DIGITS = {"second": 0, "millisecond": 3, "microsecond": 6, "nanosecond": 9}
_DAY_S = 86_400
_EPOCH = date(1970, 1, 1).toordinal()

Unit = Annotated[str, choice(*_NS)]

_OFFSET = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})(?::([0-9]{2}))?")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_SPECIFIER = re.compile(r"%(Y|m|d|H|M|S|3N|6N|N|z|:z|::z)")
_WIDTHS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2, "3N": 3, "6N": 6, "N": 9, "z": 5, ":z": 6, "::z": 9}


@function(returns="long")
def now_timestamp(unit: Unit = "second") -> int:
    """The time now."""
    return time.time_ns() // _NS[unit]


@function(returns="string")
def now_rfc3339(unit: Unit = "second") -> str:
    """The time now as text, in the zone of the host."""
    return _rfc3339("now_rfc3339", time.time_ns() // _NS[unit], unit)


@function(returns="string")
def unix_ts_to_rfc3339(instant: Int, unit: Unit = "second") -> str:
    """An instant as text, in the zone of the host."""
    return _rfc3339("unix_ts_to_rfc3339", instant, unit)


@function(returns="long")
def rfc3339_to_unix_ts(text: StrictText, unit: Unit = "second") -> int:
    """The instant a text stands for; it must name its offset."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise failure("rfc3339_to_unix_ts", f"{text[:40]!r} is no RFC 3339 time such as 2024-02-23T15:56:30Z")
    seconds = _seconds("rfc3339_to_unix_ts", *(int(part) for part in match.groups()[:6]))
    seconds -= offset_s(match[8], "rfc3339_to_unix_ts")
    return _in_unit(seconds, int((match[7] or "").ljust(9, "0")[:9]), unit)


@function(returns="string")
def format_date(unit: Unit, offset: Any, template: StrictText, instant: Int | None = None) -> str:
    """An instant (now if not given) as text: %Y %m %d %H %M %S, %3N %6N %N, %z %:z %::z."""
    value = time.time_ns() // _NS[unit] if instant is None else instant
    seconds, fraction_ns = divmod(value * _NS[unit], 1_000_000_000)
    shift = offset_s(offset, "format_date", seconds)
    year, month, day, hour, minute, second = _civil("format_date", seconds + shift)
    numbers = {"Y": f"{year:04}", "m": month, "d": day, "H": hour, "M": minute, "S": second}
    texts = {key: number if isinstance(number, str) else f"{number:02}" for key, number in numbers.items()}
    nanoseconds = f"{fraction_ns:09}"
    texts.update({"3N": nanoseconds[:3], "6N": nanoseconds[:6], "N": nanoseconds})
    return _SPECIFIER.sub(lambda match: texts.get(match[1]) or _offset_text(shift, match[1]), template)


@function(returns="long", arity=(3, 4))
def date_to_unix_ts(*arguments: Any) -> int:
    """``date_to_unix_ts(unit, [offset,] format, text)``: the instant that a text in a format stands for."""
    name = "date_to_unix_ts"
    unit, offset, template, text = arguments if len(arguments) == 4 else (arguments[0], UNDEFINED, *arguments[1:])
    if type(unit) is not str or unit not in _NS or type(template) is not str or type(text) is not str:
        raise failure(name, f"takes (unit, [offset,] format, text); units are {', '.join(_NS)}")
    parts = _parsed(name, template, text)
    missing = [f"%{key}" for key in "YmdHMS" if key not in parts]
    if missing:
        raise failure(name, f"{', '.join(missing)} cannot be read from {text[:40]!r}")
    seconds = _seconds(name, *(int(parts[key]) for key in "YmdHMS"))
    zone = next((parts[key] for key in ("z", ":z", "::z") if key in parts), None)
    seconds -= offset_s(zone, name) if zone is not None else 0
    seconds -= offset_s(offset, name, seconds)
    fraction = next((parts[key] for key in ("N", "6N", "3N") if key in parts), "")
    return _in_unit(seconds, int(fraction.ljust(9, "0")), unit)


@function(returns="long", aliases=("timezone_to_second",))
def timezone_to_offset_seconds(offset: Any) -> int:
    """Seconds east of UTC of an offset: seconds, Z, local, +hh:mm, +hh:mm:ss, +hhmm."""
    return offset_s(offset, "timezone_to_offset_seconds")


@function(returns="string", arity=(0, 2))
def mongo_date(*arguments: Any) -> str:
    """A date for MongoDB, shown as ISODate(...); the instant is in milliseconds unless a unit is given."""
    unit = arguments[1] if len(arguments) > 1 else "millisecond"
    if type(unit) is not str or unit not in _NS:
        raise failure("mongo_date", f"units are {', '.join(_NS)}")
    value = arguments[0] if arguments else time.time_ns() // _NS[unit]
    if type(value) is not int:
        raise failure("mongo_date", f"argument 1 must be an integer, not {type_name(value)}")
    return f"ISODate({format_date('millisecond', 0, '%Y-%m-%dT%H:%M:%S.%3NZ', value * _NS[unit] // 1_000_000)})"


def offset_s(offset: Any, name: str, at_s: int | None = None) -> int:
    """Seconds east of UTC; ``local`` is the host's offset at an instant (now if not given)."""
    if type(offset) is int:
        return offset
    if offset is UNDEFINED or offset in ("Z", "z"):
        return 0
    if offset == "local":
        return _local_offset(name, int(time.time()) if at_s is None else at_s)
    match = _OFFSET.fullmatch(offset) if type(offset) is str else None
    if match is None or int(match[2]) > 23 or int(match[3]) > 59 or int(match[4] or 0) > 59:
        raise failure(name, "an offset is seconds, 'Z', 'local' or such as '+08:00'")
    total = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
    return -total if match[1] == "-" else total


def _local_offset(name: str, at_s: int) -> int:
    try:
        return time.localtime(at_s).tm_gmtoff
    except (OverflowError, ValueError, OSError):
        raise failure(name, "the time is out of range") from None


def _rfc3339(name: str, instant: int, unit: str) -> str:
    seconds, fraction_ns = divmod(instant * _NS[unit], 1_000_000_000)
    shift = _local_offset(name, seconds)
    year, month, day, hour, minute, second = _civil(name, seconds + shift)
    digits = _DIGITS[unit]
    fraction = f".{fraction_ns:09}"[: digits + 1] if digits else ""
    moment = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
    return moment + fraction + _offset_text(shift, ":z")


def _civil(name: str, seconds: int) -> tuple[int, int, int, int, int, int]:
    days, rest = divmod(seconds, _DAY_S)
    try:
        day = date.fromordinal(_EPOCH + days)
    except (ValueError, OverflowError):
        raise failure(name, "the time is out of range: years go from 1 to 9999") from None
    return day.year, day.month, day.day, rest // 3600, rest // 60 % 60, rest % 60


def _seconds(name: str, year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
    try:
        days = date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        raise failure(name, f"there is no date {year:04}-{month:02}-{day:02}") from None
    if hour > 23 or minute > 59 or second > 59:
        raise failure(name, f"there is no time {hour:02}:{minute:02}:{second:02}")
    return days * _DAY_S + hour * 3600 + minute * 60 + second


def _in_unit(seconds: int, fraction_ns: int, unit: str) -> int:
    return (seconds * 1_000_000_000 + fraction_ns) // _NS[unit]


def _offset_text(shift: int, specifier: str) -> str:
    sign, total = ("-", -shift) if shift < 0 else ("+", shift)
    hours, minutes, seconds = total // 3600, total // 60 % 60, total % 60
    if specifier == "z":
        return f"{sign}{hours:02}{minutes:02}"
    return f"{sign}{hours:02}:{minutes:02}" + (f":{seconds:02}" if specifier == "::z" else "")


def _parsed(name: str, template: str, text: str) -> dict[str, str]:
    """Pieces of the text by specifier: fixed widths, literal characters are skipped without being compared."""
    parts: dict[str, str] = {}
    at = position = 0
    while at < len(template) and position < len(text):
        match = _SPECIFIER.match(template, at)
        if match is None:
            at, position = at + 1, position + 1
            continue
        key = match[1]
        piece = text[position : position + _WIDTHS[key]]
        if not key.endswith("z") and not (piece.isascii() and piece.isdigit() and len(piece) == _WIDTHS[key]):
            raise failure(name, f"%{key} cannot be read from {piece!r}")
        parts[key] = piece
        at, position = match.end(), position + len(piece)
    return parts
