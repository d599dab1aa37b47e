"""Avro: what the library would do wrong is refused, and nothing that is sent ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from decimal import Context, Decimal
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core.schema import FieldType
from schema_validation.serdes.avro import AvroSerde
from schema_validation.serdes.base import DataRefused, SourceError
from tests.support.examples import examples

LIST = {
    "type": "record",
    "name": "node",
    "fields": [{"name": "next", "type": ["null", "node"]}],
}
READING = {
    "type": "record",
    "name": "reading",
    "namespace": "demo",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "temp", "type": ["null", "double"], "default": None},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "raw", "type": {"type": "fixed", "name": "f", "size": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "k", "symbols": ["A", "B"]}},
        {"name": "list", "type": {"type": "array", "items": ["int", "string"]}},
    ],
}
VALUES = st.fixed_dictionaries(
    {
        "id": st.text(),
        "at": st.integers(-(2**63), 2**63 - 1),
        "temp": st.none() | st.floats(allow_nan=False),
        "tags": st.dictionaries(st.text(max_size=3), st.integers(-(2**31), 2**31 - 1), max_size=3),
        "raw": st.binary(min_size=2, max_size=2),
        "kind": st.sampled_from("AB"),
        "list": st.lists(st.integers(-(2**31), 2**31 - 1) | st.text(max_size=3), max_size=4),
    }
)


def serde(schema: Any) -> AvroSerde:
    return AvroSerde(json.dumps(schema))


@given(VALUES)
def test_values_come_back(value: dict[str, Any]) -> None:
    made = serde(READING)
    assert made.decode(made.encode(value)) == value


@given(VALUES)
def test_the_library_reads_what_is_written(value: dict[str, Any]) -> None:
    plain = json.loads(json.dumps(READING))
    plain["fields"][1]["type"] = "long"
    assert (
        fastavro.schemaless_reader(
            BytesIO(serde(READING).encode(value)), fastavro.parse_schema(plain)
        )
        == value
    )


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    for schema in (READING, LIST, {"type": "array", "items": "long"}, ["null", "string", "bytes"]):
        made = serde(schema)
        assert (made.misfit(data) is None) == _decodes(made, data)


def _decodes(made: AvroSerde, data: bytes) -> bool:
    try:
        made.decode(data)
    except DataRefused:
        return False
    return True


def test_deep_values_of_a_recursive_schema_are_refused_and_do_not_end_the_process() -> None:
    # In a process of its own: where this fails, it fails with a segmentation fault.
    script = (
        "import json\n"
        "from schema_validation.serdes.avro import AvroSerde\n"
        f"made = AvroSerde({json.dumps(LIST)!r})\n"
        "for depth in (10, 1000, 5000, 200000):\n"
        "    print(depth, made.misfit(b'\\x02' * depth + b'\\x00') is None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True
    )
    assert done.stdout.splitlines()[0] == "10 True"
    assert done.stdout.splitlines()[-1] == "200000 False"


def test_deep_values_are_not_written() -> None:
    value: Any = None
    for _ in range(5000):
        value = {"next": value}
    with pytest.raises(DataRefused, match="too deep"):
        serde(LIST).encode(value)


def test_block_counts_are_not_believed() -> None:
    huge = b"\x80\x80\x80\x80\x80\x40"  # 2^40, zigzag
    for schema in (
        {"type": "array", "items": "int"},
        {"type": "map", "values": "null"},
        "string",
        "bytes",
    ):
        assert serde(schema).misfit(huge) is not None
    two_blocks = {"type": "array", "items": "int"}
    # a negative count is followed by the size
    assert serde(two_blocks).decode(b"\x03\x04\x02\x04\x02\x06\x00") == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize(
    ("items", "value"),
    [
        ("null", None),
        ({"type": "record", "name": "e", "fields": []}, {}),
        ({"type": "fixed", "name": "z", "size": 0}, b""),
    ],
)
def test_items_that_take_no_bytes_are_counted_while_they_are_read(items: Any, value: Any) -> None:
    made = serde(
        {
            "type": "record",
            "name": "r",
            "fields": [{"name": "l", "type": {"type": "array", "items": items}}],
        }
    )
    assert made.encode({"l": [value] * 3}) == b"\x06\x00"
    assert made.decode(b"\x06\x00") == {"l": [value] * 3}
    for most in (
        b"\xc0\x9a\x0c",
        b"\x80\x80\x80\x80\x80\x40",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00",
    ):
        assert "holds more than 50000 values" in str(made.misfit(most + b"\x00"))
    assert made.misfit(b"\x06\x02\x00\x00") is not None


def test_bytes_left_over_are_an_error() -> None:
    with pytest.raises(DataRefused, match="1 byte is left over"):
        serde("int").decode(b"\x02\x00")


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ("int", True), ("int", 1.0), ("int", 2**31), ("long", 2**63), ("long", "1"), ("double", "1"), ("double", True),
        ("string", None), ("string", 5), ("string", b"x"), ("boolean", 1), ("null", ""), ("float", 1e300),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, "B"), ({"type": "fixed", "name": "f", "size": 2}, b"x"),
        (["null", "int"], "x"), ({"type": "array", "items": "int"}, {"a": 1}), ({"type": "map", "values": "int"}, [1]),
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}, {}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_not_written(schema: Any, value: Any) -> None:
    with pytest.raises(DataRefused):
        serde(schema).encode(value)


@pytest.mark.parametrize(
    ("schema", "value", "data"),
    [
        ("double", 1, b"\0\0\0\0\0\0\xf0?"),
        ("bytes", "é", b"\x04\xc3\xa9"),
        (["int", "long"], 2**40, b"\x02\x80\x80\x80\x80\x80\x40"),
        (["null", "string"], "null", b"\x02\x08null"),
        (
            {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": 1}]},
            {"x": 2},
            b"\x02",
        ),
    ],
)
def test_what_is_written(schema: Any, value: Any, data: bytes) -> None:
    assert serde(schema).encode(value) == data


def test_an_error_names_the_place() -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "t", "type": "int"}]}
    with pytest.raises(DataRefused, match=r"payload\[1\]\.t: 'x' is not a number of type int"):
        serde({"type": "array", "items": record}).encode([{"t": 1}, {"t": "x"}])


def test_tried_branches_do_not_multiply() -> None:
    def branch(name: str, leaf: str) -> dict[str, Any]:
        fields = [
            {"name": "n", "type": ["null", "a", "b"] if name == "b" else ["null", "a"]},
            {"name": "x", "type": leaf},
        ]
        return {"type": "record", "name": name, "fields": fields}

    schema = [branch("a", "int"), branch("b", "int")]
    value: Any = {"n": "bad", "x": 1}
    for _ in range(60):
        value = {"n": value, "x": 1}
    with pytest.raises(DataRefused):
        serde(schema).encode(value)


@pytest.mark.parametrize(
    "schema",
    [
        5, [], ["int", "int"], ["int", ["string"]], "nope", {"type": "record", "name": "r"},
        {"type": "record", "name": "1x", "fields": []}, {"type": "enum", "name": "e", "symbols": ["A", "A"]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]},
        {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": "x"}]},
        {"type": "fixed", "name": "f", "size": -1},
    ],
)  # fmt: skip
def test_a_faulty_schema_is_refused_when_it_is_saved(schema: Any) -> None:
    with pytest.raises(SourceError):
        serde(schema)


def test_field_types_keep_numbers_of_logical_types() -> None:
    found = serde(READING).field_type()
    assert not found.open
    assert found.fields["at"] == FieldType("long", nullable=False, logical="timestamp")
    assert found.fields["temp"] == FieldType("double", nullable=True)
    assert found.fields["raw"].name == "binary"
    assert found.fields["kind"].name == "string"
    assert found.fields["list"].item == FieldType("unknown")


def decimal(precision: int, scale: int = 0, **fixed: Any) -> dict[str, Any]:
    kind = {"type": "fixed", "name": "d", **fixed} if fixed else {"type": "bytes"}
    return {**kind, "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("schema", "value", "data", "read"),
    [
        (decimal(8, 2), 12.5, b"\x04\x04\xe2", 12.5),
        (decimal(8, 2), "-12.5", b"\x04\xfb\x1e", -12.5),
        (decimal(8, 2), -1.28, b"\x02\x80", -1.28),
        (decimal(8), 7, b"\x02\x07", 7),
        (decimal(15, 15), 0.1, b"\x0c\x5a\xf3\x10\x7a\x40\x00", 0.1),
        (decimal(8, 2), b"\x00\x00\x01", b"\x06\x00\x00\x01", 0.01),
        (decimal(38, 9), "1.5", b"\x08\x59\x68\x2f\x00", "1.500000000"),
        (decimal(16, 10), 0, b"\x02\x00", "0.0000000000"),
        (decimal(4, 1, size=3), -0.1, b"\xff\xff\xff", -0.1),
        (["null", decimal(4, 1, size=3)], -0.1, b"\x02\xff\xff\xff", -0.1),
        (decimal(39), b"\xff", b"\x02\xff", b"\xff"),
        (decimal(4, 5), b"\xff", b"\x02\xff", b"\xff"),
        (decimal(4, size=1), b"\xff", b"\xff", b"\xff"),
    ],
)
def test_decimals_are_numbers_or_text_that_keeps_each_digit(
    schema: Any, value: Any, data: bytes, read: Any
) -> None:
    made = serde(schema)
    assert made.encode(value) == data
    assert made.decode(data) == read
    assert type(made.decode(data)) is type(read)
    assert made.encode(made.decode(data)) == data or isinstance(value, bytes)


@given(
    st.integers(1, 38).flatmap(lambda digits: st.tuples(st.just(digits), st.integers(0, digits))),
    st.data(),
)
def test_each_decimal_comes_back(digits: tuple[int, int], data: st.DataObject) -> None:
    number = data.draw(st.integers(1 - 10 ** digits[0], 10 ** digits[0] - 1))
    made = serde(decimal(*digits))
    text = format(Decimal(number).scaleb(-digits[1], Context(prec=80)), "f")
    read = made.decode(made.encode(text))
    assert Decimal(str(read)) == Decimal(text)
    assert fastavro.schemaless_reader(
        BytesIO(made.encode(read)), fastavro.parse_schema(decimal(*digits))
    ) == Decimal(text)


@pytest.mark.parametrize(
    "value", ["1.001", 100, "1e1", "", True, None, 10**100, float("nan"), 1.005, b"\x7f\xff"]
)
def test_a_decimal_that_does_not_fit_is_not_written(value: Any) -> None:
    with pytest.raises(DataRefused, match=r"is not a decimal\(4, 2\)"):
        serde(decimal(4, 2)).encode(value)


def test_characters_of_the_default_of_bytes_are_a_byte_each() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    inner = {
        "type": "record",
        "name": "i",
        "fields": [{"name": "b", "type": "bytes", "default": "\u0080"}],
    }
    fields: list[dict[str, Any]] = [
        {"name": "b", "type": "bytes", "default": "\u00ff\u0000a"},
        {"name": "f", "type": fixed, "default": "\u00fe\u00ff"},
        {"name": "u", "type": ["bytes", "null"], "default": "\u00e9"},
        {"name": "i", "type": inner, "default": {}},
        {"name": "l", "type": {"type": "array", "items": "bytes"}, "default": ["\u00c3"]},
    ]
    defaults = serde({"type": "record", "name": "r", "fields": fields})
    value = {"b": b"\xff\x00a", "f": b"\xfe\xff", "u": b"\xe9", "i": {"b": b"\x80"}, "l": [b"\xc3"]}
    assert defaults.decode(defaults.encode({})) == value
    assert defaults.decode(defaults.encode({"b": "é"}))["b"] == "é".encode()
    with pytest.raises(
        SourceError, match=r"the default of r.b does not fit: expected characters up to U\+00FF"
    ):
        serde({"type": "record", "name": "r", "fields": [{**fields[0], "default": "\u0100"}]})


def test_the_default_of_a_decimal_is_bytes_as_the_standard_writes_them() -> None:
    fields: list[dict[str, Any]] = [
        {"name": "p", "type": decimal(4, 2), "default": "\u0001\u00ff"},
        {"name": "n", "type": "int"},
    ]
    made = serde({"type": "record", "name": "r", "fields": fields})
    assert made.decode(made.encode({"n": 1})) == {"p": 5.11, "n": 1}
    with pytest.raises(
        SourceError, match=r"the default of r.p does not fit: .* is not a decimal\(4, 2\)"
    ):
        serde({"type": "record", "name": "r", "fields": [{**fields[0], "default": "\u7fff"}]})


def test_a_recursive_schema_has_decimals_too() -> None:
    fields = [{"name": "p", "type": decimal(4, 2)}, {"name": "next", "type": ["null", "r"]}]
    made = serde({"type": "record", "name": "r", "fields": fields})
    value = {"p": 1.5, "next": {"p": 0.25, "next": None}}
    assert made.decode(made.encode(value)) == value


@pytest.mark.parametrize(
    ("schema", "data", "misfit"),
    [
        ("int", b"", "payload: expected int, got the end of the data"),
        ("long", b"\xff" * 11, "payload: expected long, got a number of more than 10 bytes"),
        ("string", b"\x04\xff\xfe", "payload: expected string, got bytes that are not UTF-8 (byte 0)"),
        ("bytes", b"\x01abc", "payload: bytes of -1 bytes is announced, 3 left"),
        ("string", b"\xfe\xff\xff\xff\x0fab", "payload: string of 2,147,483,647 bytes is announced, 2 left"),
        ("double", b"abc", "payload: double takes 8 bytes, 3 left"),
        (decimal(4, 2), b"\x04\x27\x10", "payload: expected a decimal(4, 2), got a number with more digits"),
        (decimal(4, 2), b"\x04\x27", "payload: bytes of 2 bytes is announced, 1 left"),
        (decimal(4, size=3), b"\x7f\xff\xff", "payload: expected a decimal(4, 0), got a number with more digits"),
        (["null", "int"], b"\x04", "payload: the union ['null', 'int'] has no branch with index 2"),
        (["null", "int"], b"\x01", "payload: the union ['null', 'int'] has no branch with index -1"),
        ({"type": "array", "items": "int"}, b"\x80\x80\x80\x80\x80\x40",
         "payload: 1,099,511,627,776 items are announced, 0 bytes are left"),
        ({"type": "map", "values": {"type": "array", "items": "string"}}, b"\x02\x02k\x02\x08x",
         "payload.k[0]: string of 4 bytes is announced, 1 left"),
        ({"type": "record", "name": "r", "fields": [{"name": "e", "type": {
            "type": "enum", "name": "s", "symbols": ["A", "B"]}}]}, b"\x04",
         "payload.e: the enum s has 2 symbols, none with index 2"),
    ],
)  # fmt: skip
def test_a_refusal_says_where_and_what(schema: Any, data: bytes, misfit: str) -> None:
    assert str(serde(schema).misfit(data)) == misfit


@pytest.mark.parametrize("holder", [{"type": "array"}, {"type": "map"}])
def test_items_of_many_fields_and_no_bytes_are_refused_when_they_are_saved(
    holder: dict[str, str],
) -> None:
    fields = [{"name": f"n{i}", "type": "null"} for i in range(5000)]
    record = {"type": "record", "name": "r", "fields": [*fields, {"name": "b", "type": "boolean"}]}
    with pytest.raises(SourceError, match="that take no bytes"):
        serde({**holder, "items" if holder["type"] == "array" else "values": record})


def test_a_long_chain_of_types_is_refused_or_read() -> None:
    """Each record holds the one before it: the C reader would follow 50,000 levels without a payload of that size."""
    for length in (100, 2000):
        holder: list[Any] = [
            {
                "type": "record",
                "name": f"r{i}",
                "fields": [{"name": "f", "type": "int" if i == 0 else f"r{i - 1}"}],
            }
            for i in range(length)
        ]
        try:
            made = serde(holder)
        except SourceError:
            assert length == 2000
        else:
            assert (
                made.misfit(bytes([2 * (length - 1) & 127 | 128, 2 * (length - 1) >> 7, 2])) is None
            )


# -- random schemas --

LEAVES: list[tuple[str, st.SearchStrategy[Any]]] = [
    ("null", st.none()), ("boolean", st.booleans()), ("int", st.integers(-(2**31), 2**31 - 1)),
    ("long", st.integers(-(2**63), 2**63 - 1)), ("double", st.floats(allow_nan=False)),
    ("float", st.floats(width=32, allow_nan=False)), ("string", st.text(max_size=5)), ("bytes", st.binary(max_size=5)),
]  # fmt: skip


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3, path: str = "t") -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema without a union whose branches share values, and what its values are."""
    shape = draw(
        st.sampled_from(
            ["leaf", "enum", "fixed", *(["record", "array", "map", "union"] if depth else [])]
        )
    )
    if shape == "leaf":
        name, leaves = draw(st.sampled_from(LEAVES))
        return name, leaves
    if shape == "enum":
        return {"type": "enum", "name": path, "symbols": ["A", "B"]}, st.sampled_from("AB")
    if shape == "fixed":
        return {"type": "fixed", "name": path, "size": 3}, st.binary(min_size=3, max_size=3)
    if shape == "record":
        parts = [draw(schemas(depth - 1, f"{path}_{i}")) for i in range(draw(st.integers(1, 3)))]
        fields = [{"name": f"f{i}", "type": part} for i, (part, _) in enumerate(parts)]
        values = st.fixed_dictionaries({f"f{i}": value for i, (_, value) in enumerate(parts)})
        return {"type": "record", "name": path, "fields": fields}, values
    inner, values_of = draw(schemas(depth - 1, f"{path}_i"))
    if shape == "array" and draw(st.booleans()):
        return {"type": "array", "items": inner}, st.lists(values_of, max_size=3)
    if shape == "array":
        return {"type": "array", "items": {"type": "record", "name": path, "fields": [
            {"name": "n", "type": "int"}, {"name": "v", "type": inner}]}}, st.lists(
            st.fixed_dictionaries({"n": st.integers(0, 9), "v": values_of}), max_size=3)  # fmt: skip
    if shape == "map":
        return {"type": "map", "values": inner}, st.dictionaries(
            st.text(max_size=3), values_of, max_size=3
        )
    if isinstance(inner, list) or inner == "null":
        return inner, values_of
    return ["null", inner], st.none() | values_of


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_values_of_any_schema_come_back_and_the_library_reads_them(data: st.DataObject) -> None:
    schema, values = data.draw(schemas())
    made, value = serde(schema), data.draw(values)
    written = made.encode(value)
    assert made.decode(written) == value
    assert fastavro.schemaless_reader(BytesIO(written), fastavro.parse_schema(schema)) == value


@settings(max_examples=examples(200), deadline=None)
@given(st.data(), st.binary(max_size=200))
def test_any_bytes_and_any_schema_decode_or_are_refused_with_a_place(
    data: st.DataObject, payload: bytes
) -> None:
    schema, _ = data.draw(schemas())
    found = serde(schema).misfit(payload)
    assert found is None or (found.path.startswith("payload") and len(str(found)) < 400)


def test_small_items_do_not_become_much_memory() -> None:
    flag = {"type": "record", "name": "r", "fields": [{"name": "b", "type": "boolean"}]}
    made = serde({"type": "array", "items": flag})
    assert made.misfit(b"\x80\x89\x7a" + b"\x01" * 1_000_000 + b"\x00") is not None
    tracemalloc.start()
    found = str(made.misfit(b"\x80\x89\x7a" + b"\x01" * 1_000_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == "payload: holds more than 50000 values in 1000003 bytes; send fewer at a time"
    assert peak < 16 * 1024 * 1024
    named = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "s", "type": "string"}, {"name": "b", "type": "boolean"}],
    }
    large = [{"s": "x" * 100, "b": True}] * 10_000
    made = serde({"type": "array", "items": named})
    assert made.decode(made.encode(large)) == large


def test_a_message_type_is_refused() -> None:
    made = serde("int")
    assert made.decode(b"\x02") == 1
    for coded in (lambda: made.decode(b"\x02", "M"), lambda: made.encode(1, "M")):
        with pytest.raises(DataRefused, match="has no message type 'M'"):
            coded()
