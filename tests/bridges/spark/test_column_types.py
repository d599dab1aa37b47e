"""Types of columns as text, what they take, and what changes of them a table makes in place."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridges.spark.columns.column import Column, columns_of_api
from bridges.spark.columns.types import ARROW_TYPES, MOST_COLUMNS, ColumnType, NotAType, parse_type
from bridges.spark.driver.evolution import held, in_place
from bridges.spark.tasks.convert import _convert_at_once, _convert_by_row, convert
from bridges.spark.tasks.values import plain
from broker.core.column_text import column_text
from broker.core.schema import UNKNOWN, FieldType
from rules.sql.values import json_bytes
from schema_validation.serdes.avro import AvroSerde
from schema_validation.serdes.protobuf import ProtobufSerde

LEAVES = st.sampled_from([ColumnType(name) for name in ARROW_TYPES]) | st.builds(
    lambda precision, scale: ColumnType(
        "decimal", precision=precision, scale=min(precision, scale)
    ),
    st.integers(1, 38),
    st.integers(0, 38),
)
KEYS = st.text(
    st.characters(codec="utf-8", exclude_characters="\n\r\x85\u2028\u2029"), min_size=1, max_size=6
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: (
        inner.map(lambda kind: ColumnType("array", item=kind))
        | inner.map(lambda kind: ColumnType("map", item=kind))
        | st.dictionaries(KEYS, inner, min_size=1, max_size=3).map(
            lambda m: ColumnType("struct", tuple(m.items()))
        )
    ),
    max_leaves=6,
)


@given(TYPES)
def test_the_text_of_a_type_is_read_as_that_type(kind: ColumnType) -> None:
    assert parse_type(kind.text) == kind
    assert len({name.lower() for name in kind.names}) == len(kind.members)
    assert isinstance(kind.arrow, pa.DataType)


@given(st.text(max_size=30))
def test_any_text_is_a_type_or_refused(text: str) -> None:
    with contextlib.suppress(NotAType):
        assert parse_type(text).text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("number", "expected one of: boolean, integer, long"),
        ("array<long", "expected '>' at character"),
        ("struct<a long>", "expected ':' at character 10, got long"),
        ("struct<a: long, a: long>", "expected different members, got 'a' twice"),
        ("map<long, long>", "expected 'string' at character 5, got long"),
        ("decimal(39, 2)", "expected 1 to 38 digits and at most as many decimals, got 39, 2"),
        ("long long", "expected the end at character 6, got long"),
        ("array<" * 17 + "long" + ">" * 17, "expected at most 16 levels"),
    ],
)
def test_a_type_that_is_none_is_refused_with_its_place(text: str, error: str) -> None:
    with pytest.raises(NotAType) as caught:
        parse_type(text)
    assert error in str(caught.value)


def test_field_types_become_columns_as_deep_and_as_many_as_a_table_takes() -> None:
    struct = FieldType(
        "struct", fields={"at": FieldType("long", logical="timestamp(us)"), "a b": UNKNOWN}
    )
    assert column_text(struct) == "struct<at: timestamp(us), `a b`: json>"
    assert column_text(FieldType("array", item=FieldType("map", item=struct))) == (
        "array<map<string, struct<at: timestamp(us), `a b`: json>>>"
    )
    assert [column_text(FieldType(name)) for name in ("unknown", "array", "map", "struct")] == [
        "unknown", "json", "json", "json",
    ]  # fmt: skip
    deep = FieldType("long")
    for _ in range(20):
        deep = FieldType("array", item=deep)
    assert column_text(deep) == "array<" * 16 + "json" + ">" * 16
    wide = FieldType("struct", fields={f"m{n}": FieldType("long") for n in range(MOST_COLUMNS)})
    columns, pending = columns_of_api(
        [
            {"name": name, "type": column_text(kind)}
            for name, kind in {"n": FieldType("long"), "w": wide}.items()
        ]
        + [{"name": "x", "type": "unknown"}]
    )
    assert ([column.type for column in columns], pending) == (["long", "json"], ["x"])


def rows(*values: Any) -> pa.BinaryArray:
    return pa.array([json.dumps({"c": value}).encode() for value in values], pa.binary())


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("date", "2024-02-29", "2024-02-29"),
        ("date", 19782, "2024-02-29"),
        ("timestamp", "2024-02-29T10:00:00.25+01:00", "2024-02-29T09:00:00.250000Z"),
        ("timestamp", 1709193600250, "2024-02-29T08:00:00.250000Z"),
        ("timestamp(us)", 1709193600250001, "2024-02-29T08:00:00.250001Z"),
        ("timestamp", {"seconds": 1709193600, "nanos": 1999}, "2024-02-29T08:00:00.000001Z"),
        ("timestamp", "2024-02-29T08:00:00.0000019Z", "2024-02-29T08:00:00.000001Z"),
        ("timestamp", "2024-12-31T23:59:59.999999999Z", "2024-12-31T23:59:59.999999Z"),
        ("timestamp", "1969-12-31T23:59:59.9999999+00:00", "1969-12-31T23:59:59.999999Z"),
        ("timestamp", {}, "1970-01-01T00:00:00Z"),
        ("double", 2**53, float(2**53)),
        ("array<double>", [-(2**53), 1e300], [-float(2**53), 1e300]),
        ("decimal(6, 2)", "1234.50", "1234.50"),
        ("decimal(6, 2)", 12.5, "12.50"),
        ("decimal(15, 2)", 9999999999999.99, "9999999999999.99"),
        ("decimal(15, 15)", -0.000000000000001, "-0.000000000000001"),
        ("decimal(3, 0)", 7, "7"),
        ("decimal(38, 0)", "9" * 38, "9" * 38),
        ("enum", "ON", "ON"),
        ("enum", 7, "7"),
        ("map<string, enum>", {"a": "ON", "b": -3}, {"a": "ON", "b": "-3"}),
        ("binary", "text", "text"),
        ("binary", {"$base64": "dGV4dA=="}, "text"),
        ("binary", {"$base64": ""}, ""),
        ("binary", {"$base64": "mQ=="}, {"$base64": "mQ=="}),
        (
            "array<struct<b: binary>>",
            [{"b": {"$base64": "mf8="}}, {}, None],
            [{"b": {"$base64": "mf8="}}, {}, None],
        ),
        ("map<string, binary>", {"k": {"$base64": "mQ=="}}, {"k": {"$base64": "mQ=="}}),
        ("string", {"$base64": "mQ=="}, '{"$base64":"mQ=="}'),
        ("json", {"$base64": "mQ=="}, {"$base64": "mQ=="}),
        ("double", {"$double": "Infinity"}, {"$double": "Infinity"}),
        (
            "struct<a: array<double>>",
            {"a": [1.5, {"$double": "-Infinity"}]},
            {"a": [1.5, {"$double": "-Infinity"}]},
        ),
        ("binary", 12.5, "12.5"),
        (
            "struct<a: long, b: struct<c: string>>",
            {"a": 1, "b": {"c": "x"}},
            {"a": 1, "b": {"c": "x"}},
        ),
        ("struct<a: long, b: string>", {"a": None}, {}),
        (
            "struct<`a.b c`: long, `a.b_c`: long>",
            {"a.b c": 1, "a.b_c": 2},
            {"a.b c": 1, "a.b_c": 2},
        ),
        ("array<struct<a: double>>", [{"a": 1}, None, {}], [{"a": 1.0}, None, {}]),
        ("map<string, array<long>>", {"k": [1], "l": None}, {"k": [1], "l": None}),
        ("array<array<boolean>>", [[True], []], [[True], []]),
        ("struct<a: enum>", {"a": "ON"}, {"a": "ON"}),
        ("struct<a: json>", {"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}),
        ("struct<t: timestamp>", {"t": "2024-02-29T10:00:00Z"}, {"t": "2024-02-29T10:00:00Z"}),
    ],
)
def test_a_value_that_fits_is_a_column_and_can_be_read_back(
    kind: str, value: Any, kept: Any
) -> None:
    column = Column("c", "c", kind)
    found = convert(rows(value, None), [column])
    assert found.errors == {}
    assert found.arrays["c"].type == column.parsed.arrow
    shown, nothing = found.arrays["c"].to_pylist(maps_as_pydicts="strict")
    assert nothing is None
    text = msgspec.json.encode(plain(column.parsed, shown))
    back = json.loads(text)
    assert back == kept
    again = convert(rows(back), [column])
    assert again.arrays["c"].to_pylist() == found.arrays["c"].to_pylist()[:1]


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        (
            "date",
            "2024-02-30",
            "column 'c' takes a date as RFC 3339 text or in days since 1970, the row has the text",
        ),
        ("date", True, "column 'c' takes a date"),
        (
            "timestamp(us)",
            "noon",
            "column 'c' takes a time as RFC 3339 text or in microseconds, the row has the text",
        ),
        (
            "timestamp",
            10**18,
            "column 'c' takes a time between the years 1 and 9999 in UTC, the row",
        ),
        (
            "timestamp",
            {"hours": 1},
            "column 'c' takes a time as RFC 3339 text or in milliseconds, the row has an obj",
        ),
        (
            "decimal(4, 2)",
            "100",
            "column 'c' takes a number with at most 2 digits before and 2 after the point",
        ),
        (
            "decimal(4, 2)",
            "1.001",
            "column 'c' takes a number with at most 2 digits before and 2 after the point",
        ),
        (
            "decimal(38, 2)",
            1234567890123456.25,
            "as text where it has more than 15 digits, the row has the number",
        ),
        (
            "struct<a: struct<b: long>>",
            {"a": {"b": "x"}},
            "column 'c.a.b' takes a whole number, the row has the text",
        ),
        (
            "array<struct<b: long>>",
            [{"b": 1}, {"b": 1.5}],
            "column 'c[2].b' takes a whole number, the row has the num",
        ),
        (
            "map<string, long>",
            {"k": "v"},
            "column 'c.k' takes a whole number, the row has the text \"v\"",
        ),
        (
            "map<string, struct<a: long>>",
            {"k": {"b": 1}},
            "column 'c.k.b' is not in the table and cannot be added",
        ),
        (
            "double",
            2**53 + 1,
            "column 'c' takes a number, exact only up to 9007199254740992, the row has the number 9007",
        ),
        ("double", -(2**53) - 1, "column 'c' takes a number, exact only up to 9007199254740992"),
        (
            "struct<a: array<double>>",
            {"a": [2**53 + 1]},
            "column 'c.a[1]' takes a number, exact only up to",
        ),
        ("binary", {"$base64": "?"}, "column 'c' takes bytes or a string, the row has an object"),
        ("double", {"$double": "nan"}, "column 'c' takes a number, the row has an object"),
        ("long", {"$double": "NaN"}, "column 'c' takes a whole number, the row has an object"),
        ("array<long>", {"a": 1}, "column 'c' takes an array, the row has an object"),
        ("struct<a: long>", [1], "column 'c' takes an object, the row has an array [1]"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_place(
    kind: str, value: Any, error: str
) -> None:
    found = convert(rows(value, None), [Column("c", "c", kind)])
    assert list(found.errors) == [0]
    assert error in found.errors[0]
    assert len(found.arrays["c"]) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e6, 1e6)
    | st.sampled_from([{"$base64": "mQ=="}, {"$base64": "?"}, {"$base64": None}, {"$base64": ""}])
    | st.sampled_from(
        ["", "x", "2024-02-29", "2024-02-29T10:00:00Z", "2024-02-29 10:00:00", "2024-02-29T10:00", "1.50", "-007"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip


@given(
    st.sampled_from(
        [
            "struct<a: long, b: double>", "struct<a: struct<b: string>, c: boolean>", "array<double>", "timestamp",
            "array<struct<a: timestamp>>", "date", "timestamp(us)", "decimal(5, 2)", "struct<a: decimal(3, 1)>",
            "decimal(15, 9)", "binary", "enum", "struct<a: binary, b: array<binary>>",
        ]
    ),
    st.lists(JSON, min_size=1, max_size=4),
)  # fmt: skip
def test_all_rows_at_once_are_what_they_are_one_by_one(kind: str, values: list[Any]) -> None:
    column = Column("c", "c", kind)
    fast = _convert_at_once(rows(*values), [column], ())
    if fast is not None:
        slow = _convert_by_row(rows(*values), [column])
        assert slow.errors == {}
        assert fast.arrays["c"].equals(slow.arrays["c"])


@pytest.mark.parametrize(
    "kind",
    [
        "struct<a: long, b: array<struct<c: double>>>",
        "timestamp",
        "decimal(6, 2)",
        "decimal(15, 2)",
        "date",
        "binary",
    ],
)
def test_rows_that_fit_are_read_at_once(kind: str) -> None:
    samples = {"timestamp": 1, "date": "2024-01-01", "decimal(6, 2)": "1.5", "decimal(15, 2)": 1.5}
    samples["binary"] = {"$base64": "mQ=="}
    value = samples.get(kind, {"a": 1, "b": [{"c": 2.5}, None]})
    assert _convert_at_once(rows(value, None, value), [Column("c", "c", kind)], ()) is not None


@pytest.mark.parametrize(
    ("has", "wanted", "delta", "iceberg", "target"),
    [
        ("struct<a: long>", "struct<b: string, a: long>", "struct<a: long, b: string>", "=", "="),
        ("struct<a: long, b: long>", "struct<a: long>", None, None, None),
        ("array<struct<a: long>>", "array<struct<a: long, b: date>>", "array<struct<a: long, b: date>>", "=", "="),
        ("map<string, struct<a: long>>", "map<string, struct<a: long, b: long>>", None,
         "map<string, struct<a: long, b: long>>", "="),
        ("decimal(4, 2)", "decimal(8, 2)", None, "decimal(8, 2)", "="),
        ("decimal(4, 2)", "decimal(6, 4)", None, None, "decimal(6, 4)"),
        ("decimal(8, 2)", "decimal(4, 2)", None, None, "decimal(8, 2)"),
        ("double", "long", None, None, "double"),
        ("long", "double", None, None, "double"),
        ("long", "string", None, None, "string"),
        ("string", "enum", None, None, None),
        ("enum", "string", None, None, None),
        ("struct<a: json>", "struct<a: enum>", None, None, "struct<a: enum>"),
        ("json", "struct<a: long>", None, None, "struct<a: long>"),
        ("struct<a: long>", "json", None, None, "struct<a: long>"),
        ("struct<a: long>", "struct<a: date, b: long>", "struct<a: long, b: long>", "=", "struct<a: date, b: long>"),
        ("timestamp", "timestamp(us)", None, None, "timestamp(us)"),
        ("binary", "decimal(8, 2)", None, None, "decimal(8, 2)"),
    ],
)  # fmt: skip
def test_what_is_changed_in_place_and_what_is_held(
    has: str, wanted: str, delta: str | None, iceberg: str | None, target: str | None
) -> None:
    before, after = [Column("c", "c", has)], [Column("c", "c", wanted)]
    iceberg = delta if iceberg == "=" else iceberg
    target = iceberg if target == "=" else target or has
    for table_format, expected in (("delta", delta), ("iceberg", iceberg)):
        assert in_place(before, after, table_format) == (
            [Column("c", "c", expected)] if expected else []
        )
        now = expected or has
        waiting = held([Column("c", "c", now)], after, table_format)
        assert [(one.type, one.wanted) for one in waiting] == (
            [] if now == target else [(now, target)]
        )


@given(
    st.integers(1, 15).flatmap(lambda digits: st.tuples(st.just(digits), st.integers(0, digits))),
    st.data(),
)
def test_decimals_of_few_digits_come_through_numbers(
    digits: tuple[int, int], data: st.DataObject
) -> None:
    precision, scale = digits
    steps = data.draw(
        st.lists(st.none() | st.integers(1 - 10**precision, 10**precision - 1), min_size=1)
    )
    values = [None if one is None else one / 10**scale for one in steps]
    found = _convert_at_once(
        rows(*values), [Column("c", "c", f"decimal({precision}, {scale})")], ()
    )
    assert found is not None
    assert found.arrays["c"].to_pylist() == [
        None if one is None else Decimal(one).scaleb(-scale) for one in steps
    ]


STATES: Final = """syntax = "proto3";
message Reading {
  enum State { UNKNOWN = 0; OK = 1; }
  message Part { State state = 1; optional State before = 2; }
  State state = 1; Part part = 2; repeated State states = 3; map<string, State> by_name = 4; repeated Part parts = 5;
}"""


def test_enums_of_proto3_are_names_wherever_they_are() -> None:
    serde = ProtobufSerde(STATES)
    names = serde.field_type("Reading").fields
    columns, pending = columns_of_api(
        [{"name": name, "type": column_text(kind)} for name, kind in names.items()]
    )
    assert pending == []
    part = {"state": "OK", "before": 7}
    values = {
        "state": 9,
        "part": part,
        "states": ["OK", 5],
        "by_name": {"a": "OK", "b": 5},
        "parts": [part],
    }
    value = serde.decode(serde.encode(values, "Reading"), "Reading")
    found = convert(pa.array([json_bytes(value)], pa.binary()), columns)
    assert found.errors == {}
    shown = {
        key: array.to_pylist(maps_as_pydicts="strict")[0] for key, array in found.arrays.items()
    }
    part = {"state": "OK", "before": "7"}
    assert shown == {
        "state": "9", "part": part, "states": ["OK", "5"], "by_name": {"a": "OK", "b": "5"}, "parts": [part],
    }  # fmt: skip


BYTES_AVRO: Final = json.dumps({"type": "record", "name": "R", "fields": [
    {"name": "b", "type": "bytes"}, {"name": "f", "type": {"type": "fixed", "name": "F", "size": 2}},
    {"name": "bs", "type": {"type": "array", "items": ["null", "bytes"]}}, {"name": "d", "type": "double"},
    {"name": "by_name", "type": {"type": "map", "values": "float"}},
    {"name": "inner", "type": {"type": "record", "name": "I", "fields": [
        {"name": "b", "type": "bytes"}, {"name": "d", "type": "double"}]}},
]})  # fmt: skip
BYTES_PROTO: Final = """syntax = "proto3"; message R {
  message I { bytes b = 1; double d = 2; }
  bytes b = 1; bytes f = 2; repeated bytes bs = 3; double d = 4; map<string, float> by_name = 5; I inner = 6;
}"""


@pytest.mark.parametrize(
    "serde", [AvroSerde(BYTES_AVRO), ProtobufSerde(BYTES_PROTO)], ids=["avro", "protobuf"]
)
@pytest.mark.parametrize("data", [b"\x99\xff", b"ab", b"\x00\xc3"])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf"), 1.5])
def test_bytes_and_all_doubles_of_schemas_are_themselves_in_columns(
    serde: Any, data: bytes, number: float
) -> None:
    message_type = "R" if serde.kind == "protobuf" else None
    row = {
        "b": data, "f": data, "bs": [data], "d": number, "by_name": {"k": number}, "inner": {"b": data, "d": number},
    }  # fmt: skip
    decoded = serde.decode(serde.encode(row, message_type), message_type)
    kinds = serde.field_type(message_type).fields.items()
    columns, pending = columns_of_api(
        [{"name": name, "type": column_text(kind)} for name, kind in kinds]
    )
    assert pending == []
    texts = pa.array([json_bytes(decoded)] * 2, pa.binary())
    converted = convert(texts, columns)
    assert converted.errors == {}
    shown = {
        key: array.to_pylist(maps_as_pydicts="strict")[1] for key, array in converted.arrays.items()
    }
    assert repr(shown) == repr(row)
    again = serde.decode(serde.encode(json.loads(json_bytes(decoded)), message_type), message_type)
    assert repr(again) == repr(decoded), "the JSON form is read by the schema, too"


def test_a_key_without_a_column_gets_the_type_that_a_mark_says() -> None:
    texts = pa.array(
        [b'{"b":{"$base64":"mQ=="},"d":{"$double":"NaN"},"o":{"$base64":1}}'], pa.binary()
    )
    found = convert(texts, [])
    assert {key: one.type for key, one in found.discovered.items()} == {
        "b": "binary",
        "d": "double",
        "o": "json",
    }
    assert repr(found.arrays["b"].to_pylist() + found.arrays["d"].to_pylist()) == repr(
        [b"\x99", float("nan")]
    )
