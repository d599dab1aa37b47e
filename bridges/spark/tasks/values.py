"""Values of JSON become values of a column's type, one by one, and back."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any, Final

import msgspec

from bridges.spark.columns.types import MOST_COLUMNS, ColumnType
from broker.core.marks import marked, unmarked, value_of_mark

# Whole numbers up to here are exact as double.
EXACT: Final = 2**53
DECIMAL_TEXT: Final = r"-?[0-9]+(\.[0-9]+)?"
DATE_TEXT: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_DIGITS = Context(prec=80)
_LONGEST_DECIMAL = 64
# Digits of a decimal that come through a float unchanged.
EXACT_DIGITS: Final = 15
# Digits below microseconds, which msgspec rounds.
_FINER = re.compile(r"(?<=\.[0-9]{6})[0-9]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_SHOWN = 60
_IN_RANGE: Final = "a time between the years 1 and 9999 in UTC"
_WORDS: dict[type, str] = {dict: "an object", list: "an array", str: "the text"}
_encode = msgspec.json.Encoder().encode
_decode_time = msgspec.json.Decoder(datetime).decode

Take = Callable[[Any], Any]


class Misfit(ValueError):
    """A value that its column does not take; the text says what was expected. ``steps`` lead to ``value`` inside of the
    column's, where it is not that itself."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.steps = ""
        self.value: Any = None

    def inside(self, step: str, value: Any) -> Misfit:
        """The same, seen from outside."""
        if not self.steps:
            self.value = value
        self.steps = step + self.steps
        return self


class NoPlace(Misfit):
    """A member that a struct does not have and that cannot be added."""


@lru_cache(maxsize=4096)
def taker(kind: ColumnType) -> Take:
    """The function that makes a value that is not null one for Arrow, or raises ``Misfit``."""
    if kind.name == "struct":
        return _struct_taker(kind)
    if kind.name == "array":
        return _array_taker(kind)
    if kind.name == "map":
        return _map_taker(kind)
    return _decimal_taker(kind) if kind.name == "decimal" else _TAKERS[kind.name]


def _struct_taker(kind: ColumnType) -> Take:
    members = [
        (key, name, taker(inner))
        for (key, inner), name in zip(kind.members, kind.names, strict=True)
    ]
    member_keys = {key for key, _ in kind.members}

    def take(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Misfit("an object")
        taken = {}
        for key, name, take_member in members:
            item = value.get(key)
            if item is not None:
                try:
                    taken[name] = take_member(item)
                except Misfit as misfit:
                    raise misfit.inside(f".{key}", item) from None
        if not value.keys() <= member_keys:
            for key, item in value.items():
                if key not in member_keys and item is not None:
                    raise NoPlace("").inside(f".{key}", item)
        return taken

    return take


def _array_taker(kind: ColumnType) -> Take:
    assert kind.item is not None
    take_item = taker(kind.item)

    def take(value: Any) -> Any:
        if not isinstance(value, list):
            raise Misfit("an array")
        items = []
        for number, item in enumerate(value, start=1):
            try:
                items.append(None if item is None else take_item(item))
            except Misfit as misfit:
                raise misfit.inside(f"[{number}]", item) from None
        return items

    return take


def _map_taker(kind: ColumnType) -> Take:
    assert kind.item is not None
    take_item = taker(kind.item)

    def take(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Misfit("an object")
        entries = []
        for key, item in value.items():
            try:
                entries.append((key, None if item is None else take_item(item)))
            except Misfit as misfit:
                raise misfit.inside(f".{key}", item) from None
        return entries

    return take


def _decimal_taker(kind: ColumnType) -> Take:
    whole = kind.precision - kind.scale
    scale = kind.scale
    step = Decimal((0, (1,), -scale))
    wanted = f"a number with at most {whole} digits before and {scale} after the point"

    def take(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise Misfit(wanted)
        if isinstance(value, str) and not (
            len(value) <= _LONGEST_DECIMAL and re.fullmatch(DECIMAL_TEXT, value)
        ):
            raise Misfit(wanted)
        number = Decimal(value if isinstance(value, str | int) else repr(value))
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        if isinstance(value, float) and len(digits) > EXACT_DIGITS:
            raise Misfit(f"{wanted}, as text where it has more than {EXACT_DIGITS} digits")
        if len(digits) + exponent > whole:
            raise Misfit(wanted)
        rounded = number.quantize(step, context=_DIGITS)
        if rounded != number:
            raise Misfit(wanted)
        return rounded

    return take


def grown(kind: ColumnType, values: Sequence[Any], room: int) -> ColumnType:
    """The type with the further members that structs of these values have, at most ``room``; each of the type of
    most of its values. Inside maps none are added, as not all formats can."""
    if kind.name == "array" and kind.item is not None:
        inner = [item for value in values if isinstance(value, list) for item in value]
        item = grown(kind.item, inner, room)
        return kind if item is kind.item else replace(kind, item=item)
    if kind.name != "struct":
        return kind
    objects = [value for value in values if isinstance(value, dict)]
    kinds = dict(kind.members)
    unknown: dict[str, Counter[str]] = {}
    for object in objects:
        if not object.keys() <= kinds.keys():
            for key, value in object.items():
                if value is not None and key not in kinds:
                    unknown.setdefault(key, Counter())[type_of(value)] += 1
    fresh = {
        key: ColumnType(votes.most_common(1)[0][0])
        for key, votes in list(unknown.items())[: max(room, 0)]
    }
    room -= len(fresh)
    is_same = not fresh
    for key, inner_kind in kind.members:
        if inner_kind.name in ("struct", "array"):
            inner_grown = grown(
                inner_kind, [object[key] for object in objects if object.get(key) is not None], room
            )
            room -= inner_grown.width - inner_kind.width
            is_same = is_same and inner_grown is inner_kind
            kinds[key] = inner_grown
    return kind if is_same else replace(kind, members=(*kinds.items(), *fresh.items()))


def type_of(value: Any) -> str:
    """The type of a column made for a value. Any number makes a double: 21 may be followed by 21.5."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "double"
    if isinstance(value, dict):
        return {bytes: "binary", float: "double"}.get(type(value_of_mark(value)), "json")
    return "string" if isinstance(value, str) else "json"


def described(value: Any) -> str:
    """A value in an error: its kind and its beginning."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    kind = _WORDS.get(type(value), "the number")
    text = _encode(value).decode()
    return f"{kind} {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"


def sentence(key: str, value: Any, misfit: Misfit) -> str:
    """The sentence for a value that does not fit its column."""
    place = f"column {key + misfit.steps!r}"
    text = described(misfit.value if misfit.steps else value)
    if isinstance(misfit, NoPlace):
        room = f"a table has at most {MOST_COLUMNS} columns, and structs inside maps only the members of the schema"
        return f"{place} is not in the table and cannot be added ({room}), the row has {text}"
    return f"{place} takes {misfit}, the row has {text}"


@dataclass(frozen=True, slots=True)
class _Unit:
    """The unit of a number, for times since 1970."""

    words: str
    microseconds: int


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Misfit("true or false")


def _long(value: Any) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and value % 1)
    ):
        raise Misfit("a whole number")
    if not -(2**63) <= value < 2**63:
        raise Misfit("a whole number of 64 bits")
    return int(value)


def _double(value: Any) -> float:
    value = unmarked(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit("a number")
    if isinstance(value, int) and abs(value) > EXACT:
        raise Misfit(f"a number, exact only up to {EXACT}")
    return float(value)


def _string(value: Any) -> str:
    """Text, or the mark of bytes that are not text, as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value_of_mark(value), bytes):
        return _json(value)
    raise Misfit("a string")


def _enum(value: Any) -> str:
    return str(value) if type(value) is int else _string(value)


def _json(value: Any) -> str:
    return _encode(value).decode()


def _binary(value: Any) -> bytes:
    """Bytes, text, or a number as its text: a decimal whose column is not converted yet."""
    data = unmarked(value)
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes):
        return data
    if type(value) in (int, float):
        return _encode(value)
    raise Misfit("bytes or a string")


def _date(value: Any) -> date:
    """RFC 3339 text, or days since 1970 as Avro counts them."""
    wanted = "a date as RFC 3339 text or in days since 1970"
    try:
        if isinstance(value, str) and re.fullmatch(DATE_TEXT, value):
            return date.fromisoformat(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return _EPOCH_DAY + timedelta(days=value)
    except (ValueError, OverflowError):
        pass
    raise Misfit(wanted)


def _timestamp_taker(unit: _Unit) -> Take:
    """RFC 3339 text, a number of units since 1970, or a Timestamp of protobuf; all are cut to microseconds."""
    wanted = f"a time as RFC 3339 text or in {unit.words}"

    def take(value: Any) -> datetime:
        if isinstance(value, str):
            try:
                moment = _decode_time(_encode(_FINER.sub("", value)))
            except ValueError:
                raise Misfit(wanted) from None
            try:
                return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
            except OverflowError:
                raise Misfit(_IN_RANGE) from None
        try:
            if isinstance(value, int) and not isinstance(value, bool):
                return _EPOCH + timedelta(microseconds=value * unit.microseconds)
            if isinstance(value, dict) and value.keys() <= {"seconds", "nanos"}:
                seconds = _long(value.get("seconds") or 0)
                nanos = _long(value.get("nanos") or 0)
                return _EPOCH + timedelta(seconds=seconds, microseconds=nanos // 1000)
        except OverflowError:
            raise Misfit(_IN_RANGE) from None
        raise Misfit(wanted)

    return take


UNITS: Final = {"timestamp": _Unit("milliseconds", 1000), "timestamp(us)": _Unit("microseconds", 1)}
_TAKERS: dict[str, Take] = {
    "boolean": _boolean,
    "integer": _long,
    "long": _long,
    "double": _double,
    "string": _string,
    "enum": _enum,
    "json": _json,
    "binary": _binary,
    "date": _date,
    **{name: _timestamp_taker(unit) for name, unit in UNITS.items()},
}


def plain(kind: ColumnType, value: Any) -> Any:
    """The JSON that a value of a column came from, for msgspec: maps as dicts, null members left out."""
    if value is None:
        return None
    if kind.name == "struct":
        plain_members = {
            key: plain(inner, value[name])
            for (key, inner), name in zip(kind.members, kind.names, strict=True)
        }
        return {key: member for key, member in plain_members.items() if member is not None}
    if kind.item is not None and kind.name == "array":
        return [plain(kind.item, member) for member in value]
    if kind.item is not None:
        return {key: plain(kind.item, member) for key, member in value.items()}
    if kind.name == "json":
        return msgspec.Raw(value.encode())
    if isinstance(value, Decimal):
        return format(value, "f")  # never with an exponent, which is not read
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return marked(value)
