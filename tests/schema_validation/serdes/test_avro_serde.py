"""Avro: what the library would do wrong is refused, and nothing that is sent ends the process."""

from __future__ import annotations

import json
import subprocess
import sys
from io import BytesIO
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.schema import FieldType
from schema_validation.serdes.avro import AvroSerde
from schema_validation.serdes.base import DataRefused, SourceError

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
    assert fastavro.schemaless_reader(BytesIO(serde(READING).encode(value)), fastavro.parse_schema(plain)) == value


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
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
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
    for schema in ({"type": "array", "items": "int"}, {"type": "map", "values": "null"}, "string", "bytes"):
        assert serde(schema).misfit(huge) is not None
    for items in ("null", {"type": "record", "name": "e", "fields": []}, {"type": "fixed", "name": "z", "size": 0}):
        with pytest.raises(SourceError, match="at least one byte"):
            serde({"type": "array", "items": items})


def test_bytes_left_over_are_an_error() -> None:
    with pytest.raises(DataRefused, match="1 bytes are left over"):
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
        ({"type": "record", "name": "r", "fields": [{"name": "a", "type": "int", "default": 1}]}, {"x": 2}, b"\x02"),
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
    assert found.fields["at"] == FieldType("long", nullable=False)
    assert found.fields["temp"] == FieldType("double", nullable=True)
    assert found.fields["raw"].name == "binary"
    assert found.fields["kind"].name == "string"
    assert found.fields["list"].item == FieldType("unknown")
