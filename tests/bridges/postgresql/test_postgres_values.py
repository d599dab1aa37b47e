"""Values of rules as columns take them."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pytest

from bridges.postgresql.values import column_type, converter
from broker.core.schema import FieldType

NOON = datetime(2026, 1, 2, 12, 0, 0, 500_000, UTC)
NOON_MS = int(NOON.timestamp() * 1000)


@pytest.mark.parametrize(
    ("type_name", "value", "converted"),
    [
        ("int4", 7.0, 7),
        ("int8", "12", 12),
        ("int2", True, 1),
        ("float8", 3, 3.0),
        ("float8", 2**53, float(2**53)),
        ("float4", "1.5", 1.5),
        ("numeric", 0.1, Decimal("0.1")),
        ("numeric", "12.50", Decimal("12.50")),
        ("bool", "true", True),
        ("bool", 0, False),
        ("text", 21.5, "21.5"),
        ("text", {"a": 1}, '{"a":1}'),
        ("varchar", b"\xc3\xa9", "é"),
        ("bytea", b"\x00\xff", b"\x00\xff"),
        ("bytea", "é", b"\xc3\xa9"),
        ("bytea", {"$base64": "AP8="}, b"\x00\xff"),
        ("text", b"\x99", '{"$base64":"mQ=="}'),
        ("jsonb", b"\x99", '{"$base64":"mQ=="}'),
        (
            "jsonb",
            {"b": b"ab", "d": float("inf")},
            '{"b":{"$base64":"YWI="},"d":{"$double":"Infinity"}}',
        ),
        ("float8", {"$double": "Infinity"}, float("inf")),
        ("jsonb", {"a": [1]}, '{"a":[1]}'),
        ("jsonb", b'{"a": 1}', '{"a": 1}'),
        ("json", "plain words", '"plain words"'),
        ("json", 5, "5"),
        ("timestamptz", NOON_MS, NOON),
        ("timestamptz", "2026-01-02T13:00:00.5+01:00", NOON),
        ("timestamptz", "2026-01-02T12:00:00.500", NOON),
        ("timestamp", NOON_MS, NOON.replace(tzinfo=None)),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("date", NOON_MS, date(2026, 1, 2)),
        ("time", "12:30", time(12, 30)),
        ("_int4", [1, 2.0, None], [1, 2, None]),
        ("_text", '["a", 1]', ["a", "1"]),
    ],
    ids=lambda value: None if isinstance(value, (bytes, datetime, date, time)) else repr(value),
)
def test_a_value_becomes_what_its_column_takes(type_name: str, value: Any, converted: Any) -> None:
    convert = converter(type_name)
    assert convert is not None
    found = convert(value)
    assert (found, type(found)) == (converted, type(converted))


@pytest.mark.parametrize(
    ("type_name", "value"),
    [
        ("int4", 7.5),
        ("int4", "warm"),
        ("float8", "warm"),
        ("float8", 2**53 + 1),
        ("numeric", "warm"),
        ("bool", "warm"),
        ("bool", 2),
        ("timestamptz", "yesterday"),
        ("timestamptz", 1e300),
        ("date", "2026-13-01"),
        ("_int4", "7"),
        ("_int4", 7),
    ],
)
def test_what_does_not_fit_is_an_error_of_the_row(type_name: str, value: Any) -> None:
    convert = converter(type_name)
    assert convert is not None
    with pytest.raises((ValueError, TypeError, OverflowError)):
        convert(value)


def test_types_that_only_the_server_knows_are_left_to_it() -> None:
    assert converter("mood") is None
    assert converter("_mood") is None


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (FieldType("boolean"), "boolean"),
        (FieldType("long"), "bigint"),
        (FieldType("double"), "double precision"),
        (FieldType("string"), "text"),
        (FieldType("binary"), "bytea"),
        (FieldType("timestamp"), "timestamptz"),
        (FieldType("array", item=FieldType("long")), "bigint[]"),
        (FieldType("array", item=FieldType("struct")), "jsonb"),
        (FieldType("struct"), "jsonb"),
        (FieldType("unknown"), "jsonb"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_table_is_made_with_the_types_that_rules_give(kind: FieldType, shown: str) -> None:
    assert column_type(kind) == shown
