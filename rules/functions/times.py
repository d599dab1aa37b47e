"""Time. Instants are integers in a unit: second, millisecond, microsecond, nanosecond."""

from __future__ import annotations

import re
import time
from datetime import date, datetime
from functools import lru_cache
from typing import Annotated, Any

from rules.functions.registry import (
    NOT_LITERAL,
    Int,
    Kind,
    Literals,
    StrictText,
    choice,
    failure,
    function,
)
from rules.functions.spark_form import SparkForm
from rules.sql.limits import MAX_WIDTH
from rules.sql.values import UNDEFINED, type_name

_NS = {"second": 1_000_000_000, "millisecond": 1_000_000, "microsecond": 1_000, "nanosecond": 1}
_RFC3339_LAYOUTS = {
    unit: f"%Y-%m-%dT%H:%M:%S{fraction}%:z"
    for unit, fraction in {
        "second": "",
        "millisecond": ".%3N",
        "microsecond": ".%6N",
        "nanosecond": ".%N",
    }.items()
}
_DAY_S = 86_400
_EPOCH = date(1970, 1, 1).toordinal()

_NEEDED = "YmdHMS"
# Before these, a colon in the text passes for a ``-`` in the format: EMQX's examples read 10:30:38 by ``%H-%M-%S``.
_AFTER_COLON = ("M", "S")
_MAX_TEMPLATES = 256

_OFFSET = re.compile(r"([+-])([0-9]{2}):?([0-9]{2})(?::([0-9]{2}))?")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
# A specifier; empty where it is not known.
_SPECIFIER = re.compile(r"%(Y|m|d|H|M|S|3N|6N|N|z|:z|::z|%|)")
_ZONE = re.compile(r"[Zz]|[+-][0-9]{2}:?[0-9]{2}(?::[0-9]{2})?")
_SPECIFIERS = "expected %Y %m %d %H %M %S %3N %6N %N %z %:z %::z and %% in the format"
_WIDTHS = {"Y": 4, "m": 2, "d": 2, "H": 2, "M": 2, "S": 2, "3N": 3, "6N": 6, "N": 9}


def _offset(value: Any) -> Any:
    """Seconds east of UTC, or ``local``."""
    if type(value) is str:
        return _offset_of_text(value)
    if type(value) is int:
        return value
    if value is UNDEFINED:
        return 0
    raise ValueError(f"{_OFFSETS}, not {type_name(value)}")


@lru_cache(maxsize=_MAX_TEMPLATES)
def _offset_of_text(text: str) -> Any:
    if text == "local":
        return text
    if text in ("Z", "z"):
        return 0
    match = _OFFSET.fullmatch(text)
    if match is None or int(match[2]) > 23 or int(match[3]) > 59 or int(match[4] or 0) > 59:
        raise ValueError(f"{_OFFSETS}, not {text[:20]!r}")
    total = int(match[2]) * 3600 + int(match[3]) * 60 + int(match[4] or 0)
    return -total if match[1] == "-" else total


_OFFSETS = "seconds east of UTC, 'Z', 'local' or such as '+08:00'"
Unit = Annotated[str, choice(*_NS)]
Offset = Annotated[Any, Kind("offset", "type({v}) is int", _offset)]


_PARSED = "try_cast({0} AS TIMESTAMP)"
_NOT_PARSED = (
    "NOT ({0} RLIKE '\\\\A(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}"
    "([.][0-9]{{1,6}})?(Z|[+-][0-9]{{2}}:[0-9]{{2}})\\\\z')"
    f" OR {_PARSED} IS NULL"
)
_INSTANTS = tuple(
    SparkForm(("string", *unit), f"{call}({_PARSED})", "long", unless=_NOT_PARSED)
    for unit, call in (
        ((), "unix_seconds"),
        (("'second'",), "unix_seconds"),
        (("'millisecond'",), "unix_millis"),
        (("'microsecond'",), "unix_micros"),
    )
)


@function(returns="long", is_pure=False)
def now_timestamp(unit: Unit = "second") -> int:
    """The time now."""
    return time.time_ns() // _NS[unit]


@function(returns="string", is_pure=False)
def now_rfc3339(unit: Unit = "second") -> str:
    """The time now as text, in the zone of the host."""
    return _rfc3339("now_rfc3339", time.time_ns() // _NS[unit], unit)


@function(returns="string")
def unix_ts_to_rfc3339(instant: Int, unit: Unit = "second") -> str:
    """An instant as text, in the zone of the host."""
    return _rfc3339("unix_ts_to_rfc3339", instant, unit)


@function(returns="long", spark=_INSTANTS)
def rfc3339_to_unix_ts(text: StrictText, unit: Unit = "second") -> int:
    """The instant a string stands for; it must name its offset."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise failure(
            "rfc3339_to_unix_ts",
            f"{text[:40]!r} is not an RFC 3339 time such as 2024-02-23T15:56:30Z",
        )
    seconds = _seconds("rfc3339_to_unix_ts", *(int(part) for part in match.groups()[:6]))
    seconds -= offset_s(match[8], "rfc3339_to_unix_ts")
    return _in_unit(seconds, int((match[7] or "").ljust(9, "0")[:9]), unit)


def _unknown(template: str) -> str:
    """The first specifier that is not known; empty where all are."""
    unknown = next((match.start() for match in _SPECIFIER.finditer(template) if not match[1]), None)
    return "" if unknown is None else template[unknown : unknown + 2]


def _format_literal(values: Literals) -> tuple[int, str] | None:
    template = values[2]
    if type(template) is str and (unknown := _unknown(template)):
        return 2, f"{_SPECIFIERS}, got {unknown!r}"
    return None


@function(returns="string", is_pure=False, check=_format_literal)
def format_date(
    unit: Unit, offset: Offset, template: StrictText, instant: Int | None = None
) -> str:
    """An instant (now if not given) as text: %Y %m %d %H %M %S, %3N %6N %N, %z %:z %::z, and %% for a percent sign."""
    value = time.time_ns() // _NS[unit] if instant is None else instant
    return _formatted("format_date", unit, offset, template, value)


def _formatted(name: str, unit: str, offset: Any, template: str, instant: int) -> str:
    seconds, fraction_ns = divmod(instant * _NS[unit], 1_000_000_000)
    shift = _local_offset(name, seconds) if offset == "local" else offset
    moment = _civil(name, seconds + shift)
    layout, has_zone = _layout(template)
    zones = [_offset_text(shift, specifier) for specifier in _ZONES] if has_zone else ("", "", "")
    return layout.format(
        *moment, fraction_ns // 1_000_000, fraction_ns // 1000, fraction_ns, *zones
    )


_ZONES = ("z", ":z", "::z")
_PLACES = {
    "Y": "{0:04}", "m": "{1:02}", "d": "{2:02}", "H": "{3:02}", "M": "{4:02}", "S": "{5:02}",
    "3N": "{6:03}", "6N": "{7:06}", "N": "{8:09}", "z": "{9}", ":z": "{10}", "::z": "{11}", "%": "%",
}  # fmt: skip


@lru_cache(maxsize=_MAX_TEMPLATES)
def _layout(template: str) -> tuple[str, bool]:
    """A template as one for ``str.format``, and whether it names the zone."""
    if len(template) > MAX_WIDTH:
        raise failure("format_date", f"a format has at most {MAX_WIDTH} characters")
    if unknown := _unknown(template):
        raise failure("format_date", f"{_SPECIFIERS}, got {unknown!r}")
    plain = template.replace("{", "{{").replace("}", "}}")
    return _SPECIFIER.sub(lambda match: _PLACES[match[1]], plain), "z" in plain


def _date_literals(values: Literals) -> tuple[int, str] | None:
    """A format that lacks what is always needed, or an offset that is none."""
    template = values[-2]
    position = len(values) - 2
    if template is not NOT_LITERAL:
        if type(template) is not str:
            return position, f"argument {position + 1} must be a format, not {type_name(template)}"
        if unknown := _unknown(template):
            return position, f"{_SPECIFIERS}, got {unknown!r}"
        missing = [f"%{key}" for key in _NEEDED if key not in _SPECIFIER.findall(template)]
        if missing:
            return position, f"the format needs {', '.join(missing)} too"
    if len(values) == 4 and values[1] is not NOT_LITERAL:
        try:
            _offset(values[1])
        except ValueError as error:
            return 1, f"argument 2 must be {error}"
    return None


@function(
    returns="long", arity=(3, 4), usage="(unit, [offset,] format, text)", check=_date_literals
)
def date_to_unix_ts(unit: Unit, *arguments: Any) -> int:
    """The instant of a string in a format of format_date. An offset in the string overrides the argument."""
    name = "date_to_unix_ts"
    offset, template, text = arguments if len(arguments) == 3 else (UNDEFINED, *arguments)
    if type(template) is not str or type(text) is not str:
        raise failure(name, "takes (unit, [offset,] format, text), format and text as strings")
    parts = _parsed(name, template, text)
    missing = [f"%{key}" for key in _NEEDED if key not in parts]
    if missing:
        raise failure(name, f"{', '.join(missing)} cannot be read from {text[:40]!r}")
    civil = [int(parts[key]) for key in _NEEDED]
    seconds = _seconds(name, *civil)
    shift = offset_s(next((parts[key] for key in _ZONES if key in parts), offset), name)
    seconds = _of_local(name, *civil) if shift == "local" else seconds - shift
    fraction = next((parts[key] for key in ("N", "6N", "3N") if key in parts), "")
    return _in_unit(seconds, int(fraction.ljust(9, "0")), unit)


@function(returns="long", aliases=("timezone_to_second",), is_pure=False)
def timezone_to_offset_seconds(offset: Offset) -> int:
    """Seconds east of UTC of an offset: seconds, Z, local, +hh:mm, +hh:mm:ss, +hhmm."""
    return (
        _local_offset("timezone_to_offset_seconds", int(time.time()))
        if offset == "local"
        else offset
    )


@function(returns="string", is_pure=False)
def mongo_date(instant: Int | None = None, unit: Unit = "millisecond") -> str:
    """A date for MongoDB, shown as ISODate(...); the instant is in milliseconds unless a unit is given."""
    value = time.time_ns() // _NS[unit] if instant is None else instant
    return f"ISODate({format_date('millisecond', 0, '%Y-%m-%dT%H:%M:%S.%3NZ', value * _NS[unit] // 1_000_000)})"


@function(returns="long", is_pure=False)
def timestamp_s() -> int:
    """The time now, in seconds."""
    return time.time_ns() // 1_000_000_000


@function(returns="long", is_pure=False)
def timestamp_ms() -> int:
    """The time now, in milliseconds."""
    return time.time_ns() // 1_000_000


def offset_s(offset: Any, name: str) -> Any:
    """Seconds east of UTC, or ``local``."""
    try:
        return _offset(offset)
    except ValueError as error:
        raise failure(name, f"an offset must be {error}") from None


def _of_local(name: str, *civil: int) -> int:
    """The instant of a time in the zone of the host; the first of two where the clock was set back."""
    try:
        return int(datetime(*civil).timestamp())  # type: ignore[arg-type]  # six integers
    except (OverflowError, ValueError, OSError):
        raise failure(name, "the time is out of range") from None


def _local_offset(name: str, at_s: int) -> int:
    try:
        return time.localtime(at_s).tm_gmtoff
    except (OverflowError, ValueError, OSError):
        raise failure(name, "the time is out of range") from None


def _rfc3339(name: str, instant: int, unit: str) -> str:
    return _formatted(name, unit, "local", _RFC3339_LAYOUTS[unit], instant)


def _civil(name: str, seconds: int) -> tuple[int, int, int, int, int, int]:
    days, rest = divmod(seconds, _DAY_S)
    try:
        day = date.fromordinal(_EPOCH + days)
    except (ValueError, OverflowError):
        raise failure(name, "the time is out of range: years go from 1 to 9999") from None
    return day.year, day.month, day.day, rest // 3600, rest // 60 % 60, rest % 60


def _seconds(
    name: str, year: int, month: int, day: int, hour: int, minute: int, second: int
) -> int:
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
    hours = total // 3600
    minutes = total // 60 % 60
    seconds = total % 60
    if specifier == "z":
        return f"{sign}{hours:02}{minutes:02}"
    return f"{sign}{hours:02}:{minutes:02}" + (f":{seconds:02}" if specifier == "::z" else "")


def _parsed(name: str, template: str, text: str) -> dict[str, str]:
    """Pieces of the text by specifier; a string may end after any of them."""
    parts: dict[str, str] = {}
    at = 0
    for literal, key in _fields(template):
        if at == len(text):
            return parts
        is_colon = literal == "-" and key in _AFTER_COLON and text.startswith(":", at)
        if not is_colon and not text.startswith(literal, at):
            raise failure(
                name, f"expected {literal[:40]!r} at character {at + 1}, got {text[at : at + 40]!r}"
            )
        at += len(literal)
        if key:
            parts[key] = _piece(name, key, text, at)
            at += len(parts[key])
    if at < len(text):
        raise failure(name, f"expected the end at character {at + 1}, got {text[at : at + 40]!r}")
    return parts


def _piece(name: str, key: str, text: str, at: int) -> str:
    if key in _ZONES:
        zone = _ZONE.match(text, at)
        if zone is None:
            raise failure(name, f"an offset must be {_OFFSETS}, not {text[at : at + 20]!r}")
        return zone[0]
    width = _WIDTHS[key]
    piece = text[at : at + width]
    if not (len(piece) == width and piece.isascii() and piece.isdigit()):
        raise failure(name, f"%{key} cannot be read from {piece!r}")
    return piece


@lru_cache(maxsize=_MAX_TEMPLATES)
def _fields(template: str) -> tuple[tuple[str, str], ...]:
    """Literal text and the specifier behind it, which is empty at the end."""
    if len(template) > MAX_WIDTH:
        raise failure("date_to_unix_ts", f"a format has at most {MAX_WIDTH} characters")
    if unknown := _unknown(template):
        raise failure("date_to_unix_ts", f"{_SPECIFIERS}, got {unknown!r}")
    fields: list[tuple[str, str]] = []
    at = 0
    literal = ""
    for match in _SPECIFIER.finditer(template):
        literal += template[at : match.start()]
        at = match.end()
        if match[1] == "%":
            literal += "%"
        else:
            fields.append((literal, match[1]))
            literal = ""
    return (*fields, (literal + template[at:], ""))
