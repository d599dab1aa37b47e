"""Readings as devices send them on any day, with odd names, times, bytes and numbers, and what tables have of them.

What a table has is written here by hand or computed from the number of the message; none of it comes from the product.
Only the names of columns and members that a publisher chose may differ, as those that clash get a suffix. A value below
such a name ends with the number of the name, so that each is found by its value, and has one name in all rows.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import fastavro
import pyarrow as pa

Row = dict[str, Any]
KEYS: Final = 40
"""Values of the column ``k``."""
NAMES_AT: Final = 100
"""A value below a name is the number of its message times this, plus the number of the name."""
PROVENANCE: Final = frozenset(
    {"_stream", "_shard", "_offset", "_published_at", "_topic", "_client_id", "_rule", "_item"}
)


def _suffixed(key: str) -> str:
    """The name of a column for a key whose own is taken."""
    return f"{key}_{hashlib.sha256(key.encode()).hexdigest()[:6]}"


NAMES: Final = (
    "host.temp", "host", "host.temp.unit", "x\0y", "x_y", "\0", "", "T", "t", _suffixed("t"), _suffixed("T"),
    "_file", "_Pos", "_change_type", "_PUBLISHED_AT", _suffixed("_published_at"), "_item", "größe/℃", "ß", "SS",
    "İ", "i̇", "名前🌡", "long" * 75, "Long" * 75, "a b", "a_b", ";{}()=\n\t\"`'", "\\", ".", "..", "a.", "element",
    "list.element", "$base64", "N", "AT", "a.x", "A", "state.host", "p.inner.n", "temp.x", "__proto__", "-1", "\ufeff",
)  # fmt: skip
"""Of members that a publisher chooses: with dots and NUL, empty, long, and clashing with others, with the names that
others get instead, and with columns and members that the rule, the table or its readers have."""

TIMES: Final[Mapping[str, datetime | None]] = {
    "2026-01-02T03:04:05Z": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    "2026-01-02T03:04:05.123456789Z": datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC),
    "0001-01-01T00:00:00Z": datetime(1, 1, 1, tzinfo=UTC),
    "0001-01-01T01:00:00.5+01:00": datetime(1, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
    "9999-12-31T23:59:59.999999999Z": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "9999-12-31T22:59:59-01:00": datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    "1969-12-31T23:59:59.9999999Z": datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "2026-06-30T12:00:00.9999999+05:30": datetime(2026, 6, 30, 6, 30, 0, 999999, tzinfo=UTC),
    "2026-03-29t02:30:00z": datetime(2026, 3, 29, 2, 30, tzinfo=UTC),
    "9999-12-31T23:59:59-01:00": None,
    "0001-01-01T00:00:00+00:01": None,
}
"""Texts and their times; None of those that have none between the years 1 and 9999 in UTC."""
NUMBERS: Final[Mapping[str, float | None]] = {
    "21.5": 21.5,
    "4e-11": 4e-11,
    "1e22": 1e22,
    "-0.0": -0.0,
    "31.33384677520135": 31.333846775201351,
    "9007199254740991": 2.0**53 - 1,
    "-9007199254740992": -(2.0**53),
    "5e-324": 5e-324,
    "1.7976931348623157e308": 1.7976931348623157e308,
    "9007199254740993": None,
    "9007199254740995": None,
    "9223372036854775808": None,
}
"""Literals of JSON in a column of doubles; None of whole numbers that a double does not have."""
COUNTS: Final[Mapping[str, int | None]] = {
    "7": 7,
    "0": 0,
    "-1": -1,
    "9223372036854775807": 2**63 - 1,
    "-9223372036854775808": -(2**63),
    "9007199254740993": 2**53 + 1,
    "-128": -128,
    "1.0": 1,
    "1e3": 1000,
    "9223372036854775808": None,
    "-9223372036854775809": None,
}
"""Literals in a column of whole numbers."""
TEXTS: Final[Mapping[str, float]] = {
    "21.5": 21.5, " 6.3": 6.3, "5e+01": 50.0, "7e0": 7.0, "6.": 6.0, "21.5\n": 21.5, "-0.5": -0.5, "4e-11": 4e-11,
}  # fmt: skip
LIMITS: Final[Mapping[str, tuple[bool, bool]]] = {
    '"limit":null,': (False, False),
    "": (False, False),
    '"limit":30,': (False, True),
    '"limit":30.5,': (True, False),
}
"""Members of the payload, and whether ``limit > 30``, and whether ``NOT limit > 30``."""
LABELS: Final = (
    "plain",
    "",
    "a\0b",
    "\U0010ffff" * 20,
    "\uffff" * 40,
    "é" * 33,
    "\u2028\n\r\t",
    "null",
    '{"a":1}',
)
BYTES: Final = (
    b"\x99\xff",
    b"",
    b"abc",
    b"\0",
    b"mf8=",
    "größe".encode(),
    bytes(range(256)),
    b'{"$base64":"mQ=="}',
)
DOUBLES: Final = (1.5, math.nan, math.inf, -math.inf, -0.0, 5e-324)
PRICES: Final = (
    Decimal("12.50"),
    Decimal("-0.001"),
    Decimal("99999999999999999.999"),
    Decimal("0.000"),
)
DAYS: Final = (date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), date(2026, 2, 28))
LEVELS: Final = ("OK", "LOW", "HIGH")
INTEGERS: Final = (0, -1, -128, -(2**63), 2**63 - 1, -32768, 2**53 + 1)
MOMENTS: Final = (
    (1_767_323_045, 123_456_789),
    (-62_135_596_800, 0),
    (253_402_300_799, 999_999_999),
    (-1, 1),
)
"""Seconds since 1970 and nanoseconds."""


def _pick(values: Any, seq: int) -> Any:
    """One of them in turn."""
    items = list(values.items()) if isinstance(values, Mapping) else values
    return items[seq % len(items)]


# -- Avro and Protobuf --

AVRO: Final = {
    "type": "record", "name": "R", "fields": [
        {"name": "data", "type": "bytes"},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "x", "type": "double"},
        {"name": "xs", "type": {"type": "array", "items": ["null", "double"]}},
        {"name": "by_room", "type": {"type": "map", "values": "double"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "levels", "type": {"type": "array", "items": {"type": "enum", "name": "L", "symbols": [*LEVELS]}}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "I", "fields": [
            {"name": "data", "type": "bytes"}, {"name": "n", "type": "long"}]}], "default": None},
    ],
}  # fmt: skip
PROTO: Final = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
enum Level { OK = 0; LOW = 1; HIGH = 2; }
message Inner { Level level = 1; bytes data = 2; sint64 n = 3; double x = 4; }
message M {
  Level level = 1; repeated Level levels = 2; map<string, Level> by_room = 3; Inner inner = 4; repeated Inner all = 5;
  bytes data = 6; double x = 7; int64 n = 8; google.protobuf.Timestamp at = 9; repeated double xs = 10;
}
"""


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_logical_types(value) for key, value in schema.items() if key != "logicalType"
    }


_WRITTEN: Final = fastavro.parse_schema(_without_logical_types(AVRO))
"""With values that are encoded by hand where they have a logical type."""


def avro(seq: int) -> tuple[bytes, Row]:
    """A record, and what a table has of it."""
    seconds, nanos = _pick(MOMENTS, seq)
    micros = seconds * 1_000_000 + nanos // 1000
    data, x, level = _pick(BYTES, seq), _pick(DOUBLES, seq), seq % len(LEVELS)
    row = {
        "data": data,
        "code": bytes((seq % 256, 255)),
        "x": x,
        "xs": [x, None, 1.0],
        "by_room": {"attic": x, "": 0.5},
        "price": _pick(PRICES, seq).quantize(Decimal("0.001")),
        "day": _pick(DAYS, seq),
        "levels": [LEVELS[level], "HIGH"],
        "inner": None if seq % 3 == 0 else {"data": data[::-1], "n": _pick(INTEGERS, seq)},
    }
    written = io.BytesIO()
    price = int(row["price"].scaleb(3))
    record = {
        **row, "at": micros, "day": (row["day"] - date(1970, 1, 1)).days,
        "price": price.to_bytes(price.bit_length() // 8 + 1, "big", signed=True),
    }  # fmt: skip
    fastavro.schemaless_writer(written, _WRITTEN, record)
    return written.getvalue(), {**row, "at": _time(seconds, nanos)}


def _time(seconds: int, nanos: int) -> datetime:
    day, second = divmod(seconds, 86_400)
    moment = datetime.fromordinal(day + date(1970, 1, 1).toordinal()).replace(tzinfo=UTC)
    hour, second = divmod(second, 3600)
    return moment.replace(
        hour=hour, minute=second // 60, second=second % 60, microsecond=nanos // 1000
    )


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    return bytes((*data, number))


def _field(number: int, value: int | float | bytes) -> bytes:
    """A field of a message: a varint, a double, or bytes with their length."""
    if isinstance(value, float):
        return _varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def proto(seq: int) -> tuple[bytes, Row]:
    """A message, and what a table has of it."""
    seconds, nanos = _pick(MOMENTS, seq + 1)
    data, x, level, n = (
        _pick(BYTES, seq + 3),
        _pick(DOUBLES, seq + 1),
        seq % len(LEVELS),
        _pick(INTEGERS, seq),
    )
    inner = _field(1, level) + _field(2, data) + _field(3, n << 1 ^ n >> 63) + _field(4, x)
    moment = _field(1, seconds) + _field(2, nanos)
    rooms = b"".join(_field(3, _field(1, room) + _field(2, level)) for room in (b"attic", b"a.b"))
    message = (
        _field(1, level) + _field(2, _varint(level) + _varint(2)) + rooms + _field(4, inner) + _field(5, inner)
        + _field(6, data) + _field(7, x) + _field(8, n) + _field(9, moment) + _field(10, struct.pack("<2d", x, 2.0))
    )  # fmt: skip
    row_of_inner = {"level": LEVELS[level], "data": data, "n": n, "x": x}
    return message, {
        "level": LEVELS[level], "levels": [LEVELS[level], "HIGH"], "inner": row_of_inner,
        "by_room": dict.fromkeys(("attic", "a.b"), LEVELS[level]),
         "all": [row_of_inner], "data": data, "x": x, "n": n, "at": _time(seconds, nanos),
        "xs": [x, 2.0],
    }  # fmt: skip


# -- messages --

_STATE: Final = {
    **{name: {"type": "number"} for name in NAMES[::2]},
    "nested": {
        "type": "object",
        "properties": {
            "a": {"type": "object", "properties": {"b": {"type": "integer"}}},
            "a.b": {"type": "integer"},
            "A": {"type": "integer"},
        },
    },
    "times": {"type": "array", "items": {"type": "string", "format": "date-time"}},
    "rooms": {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {"t": {"type": "number"}, "T": {"type": "number"}},
        },
    },
}
"""Half of the names are in the schema; the others come with the messages."""
SCHEMA: Final = {
    "type": "object",
    "properties": {
        "seq": {"type": "integer"},
        "temp": {"type": "number"},
        "note": {},
        "at": {"type": "string", "format": "date-time"},
        "count": {"type": "integer"},
        "limit": {"type": ["number", "null"]},
        **{name: {"type": "string"} for name in ("text", "label", "raw", "avro", "proto")},
        "state": {"type": "object", "properties": _STATE},
        "items": {"type": "array"},
    },
    "required": ["seq", "temp"],
}
_COLUMNS: Final = f"""payload.seq AS n, mod(payload.seq, {KEYS}) AS k, payload.temp AS temp, payload.note AS note,
  payload.at AS at, payload.count AS count, payload.limit > 30 AS over, NOT payload.limit > 30 AS under,
  payload.text > 6 AS above, float(payload.text) AS number, payload.text || '/' || str(payload.temp) AS said,
  base64_decode(payload.raw) AS raw, payload.state AS state, payload.label AS label"""
IN_SPARK: Final = f'SELECT {_COLUMNS} FROM "meters/#"'
"""A rule that Spark can run too."""
IN_BROKER: Final = f"""SELECT {_COLUMNS}, schema_decode('odd-avro', base64_decode(payload.avro)) AS a,
  schema_decode('odd-proto', base64_decode(payload.proto), 'M') AS p FROM "meters/#" """
ITEMS: Final = 'SELECT payload.items AS items JQ .items[] FROM "meters/#"'
"""A rule whose rows have the names that a publisher chose as columns."""


def define(call: Callable[..., Any]) -> None:
    """Make the schemas, and the validation that binds one to ``meters/#``, by calls of the API."""
    for name, kind, source in [
        ("odd-avro", "avro", json.dumps(AVRO)),
        ("odd-proto", "protobuf", PROTO),
        ("meter", "json", json.dumps(SCHEMA)),
    ]:
        call("POST", "/schemas", {"name": name, "type": kind, "source": source})
    check = {
        "strategy": "all_pass",
        "checks": [{"type": "json", "schema": "meter"}],
        "failure_action": "drop",
    }
    call("POST", "/validations", {"name": "meters", "topics": ["meters/#"], **check})


def _value(seq: int, name: int) -> int:
    return seq * NAMES_AT + name


def state(seq: int, time: Any) -> Row:
    """An object with some of the names, and nested ones."""
    chosen = {seq * 7 % len(NAMES), seq * 11 % len(NAMES), seq % len(NAMES)}
    nested, dotted, capital, room, other = (_value(seq, 90 + number) for number in range(5))
    below: Row = (
        {"nested": {"a": {"b": nested}, "a.b": dotted, "A": capital}},
        {"nested": {"a.b": dotted}, "times": [time, time]},
        {"rooms": {"a.b": {"t": room, "T": other}, "": {"T": other}, "x\0y": {}}},
        {"rooms": {}, "times": [], "nested": {}},
    )[seq % 4]
    return {**{NAMES[name]: _value(seq, name) for name in chosen}, **below}


def items(seq: int) -> list[Row]:
    """Rows of their own, in every second message."""
    chosen = {seq * 5 % len(NAMES), seq * 13 % len(NAMES)}
    row = {
        "n": -1 - seq,
        "k": KEYS + seq % 7,
        **{NAMES[name]: _value(seq, name) for name in chosen},
    }
    return [row] if seq % 2 else []


def _literals(seq: int) -> tuple[str, str, str]:
    """Texts of time, temperature and count, of which at most one is odd."""
    return (
        _pick(list(TIMES), seq // 3) if seq % 3 == 0 else "2026-01-02T03:04:05Z",
        _pick(list(NUMBERS), seq // 3) if seq % 3 == 1 else "21.5",
        _pick(list(COUNTS), seq // 3) if seq % 3 == 2 else "7",
    )


def _times(seq: int) -> str:
    """A text whose time is one."""
    return str(_pick([text for text, time in TIMES.items() if time], seq))


def payload(seq: int, note: Any = 1.5) -> bytes:
    """The message of a number."""
    at, temp, count = _literals(seq)
    members = {
        "note": note,
        "at": at,
        "text": _pick(list(TEXTS), seq),
        "label": _pick(LABELS, seq),
        "raw": base64.b64encode(_pick(BYTES, seq)).decode(),
        "avro": base64.b64encode(avro(seq)[0]).decode(),
        "proto": base64.b64encode(proto(seq)[0]).decode(),
        "state": state(seq, _times(seq)),
        "items": items(seq),
    }
    others = json.dumps(members, ensure_ascii=seq % 4 == 0)[1:]
    return (
        f'{{"seq":{seq},"temp":{temp},"count":{count},{_pick(list(LIMITS), seq)}{others}'.encode()
    )


# -- what a table has --


def reason(seq: int) -> str | None:
    """Why the row of a message is a dead letter; None where it is not."""
    at, temp, count = _literals(seq)
    if TIMES[at] is None:
        return f"column 'at' takes a time between the years 1 and 9999 in UTC, the row has the text \"{at}\""
    if NUMBERS[temp] is None:
        return f"column 'temp' takes a number, exact only up to 9007199254740992, the row has the number {temp}"
    if COUNTS[count] is None:
        return f"column 'count' takes a whole number of 64 bits, the row has the number {count}"
    return None


def row(seq: int) -> Row:
    """The row of a message that is none."""
    at, temp, count = _literals(seq)
    text = _pick(list(TEXTS), seq)
    over, under = LIMITS[_pick(list(LIMITS), seq)]
    return {
        "n": seq, "k": seq % KEYS, "temp": NUMBERS[temp], "note": 1.5, "at": TIMES[at], "count": COUNTS[count],
        "over": over, "under": under, "above": TEXTS[text] > 6, "number": TEXTS[text], "said": f"{text}/{temp}",
        "raw": _pick(BYTES, seq), "label": _pick(LABELS, seq), "state": state(seq, TIMES[_times(seq)]),
        "a": avro(seq)[1], "p": proto(seq)[1],
    }  # fmt: skip


def rows_of(seqs: Iterable[int], *, in_broker: bool = True) -> dict[int, Row]:
    """The rows of messages by ``n``: those of the rules that run in the broker, or of the one that runs in Spark."""
    rows = {}
    for seq in seqs:
        if in_broker:
            rows.update({one["n"]: one for one in items(seq)})
        if reason(seq) is None:
            rows[seq] = row(seq)
            if not in_broker:
                del rows[seq]["a"], rows[seq]["p"]
    return rows


def check(
    table: pa.Table,
    expected: Mapping[int, Row],
    *,
    has_empty: bool = True,
    also: Iterable[str] = (),
) -> None:
    """Find the expected rows in a table, by ``n``, and nothing else.

    Args:
        has_empty: False where the reader cannot tell empty arrays and maps from null.
        also: further columns, that are not looked at.
    """
    names: dict[tuple[str, int], set[str]] = {}
    ignored = PROVENANCE | set(also)
    rows = [
        {name: value for name, value in one.items() if name not in ignored}
        for one in table.to_pylist()
    ]
    numbers = [one["n"] for one in rows]
    assert sorted(numbers) == sorted(expected), _difference(numbers, expected)
    for one in rows:
        found = _plain(_by_number(one, names), has_empty=has_empty)
        wanted = _plain(_by_number(expected[one["n"]]), has_empty=has_empty)
        assert found == wanted, f"row {one['n']}"
    split = {place: keys for place, keys in names.items() if len(keys) > 1}
    assert not split, f"members in several columns: {split}"
    taken = [(path, key) for (path, _), keys in names.items() for key in keys]
    assert len(taken) == len(set(taken)), "a column has values of several members"


def errors_of(letters: pa.Table) -> dict[int, str]:
    """Reasons of dead letters by the number of the message."""
    payloads = [json.loads(one) for one in letters["payload"].to_pylist()]
    numbers = [one["n"] if "n" in one else one["seq"] for one in payloads]
    assert len(set(numbers)) == len(numbers), "a message is a dead letter twice"
    return dict(zip(numbers, letters["_error"].to_pylist(), strict=True))


def _difference(found: list[int], expected: Iterable[int]) -> str:
    counted = Counter(found)
    counted.subtract(Counter(expected))
    wrong = {number: count for number, count in counted.items() if count}
    return f"rows too many (or too few) by n: {dict(list(wrong.items())[:20])} of {len(wrong)}"


def _by_number(one: Row, names: dict[tuple[str, int], set[str]] | None = None) -> Row:
    """A row whose chosen names are their numbers; ``names`` are those met, by path and number."""
    seen: dict[tuple[str, int], set[str]] = {} if names is None else names
    if one["n"] < 0:
        chosen = {name: value for name, value in one.items() if name not in ("n", "k")}
        return {"n": one["n"], "k": one["k"], **_numbered(chosen, "", seen)}
    return {**one, "state": _numbered(one["state"], "state", seen)}


def _numbered(value: Any, path: str, seen: dict[tuple[str, int], set[str]]) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        value = dict(value)
    if not isinstance(value, dict):
        return value
    found = {}
    for key, member in value.items():
        if isinstance(member, int | float):
            number = int(member) % NAMES_AT
            seen.setdefault((path, number), set()).add(key)
            found[str(number)] = int(member)
        elif member is not None:
            found[key] = _numbered(member, f"{path}.{key}", seen)
    return found


def _plain(value: Any, *, has_empty: bool) -> Any:
    """A value that is equal to another one if it is the same to the last bit, without members that are null."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        value = dict(value)
    if isinstance(value, dict):
        members = {
            key: _plain(member, has_empty=has_empty)
            for key, member in value.items()
            if member is not None
        }
        # An empty map is an empty list of pairs.
        return {key: member for key, member in members.items() if has_empty or member != []} or []
    return (
        [_plain(item, has_empty=has_empty) for item in value] if isinstance(value, list) else value
    )
