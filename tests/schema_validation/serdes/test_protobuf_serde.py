"""Protobuf: text to descriptors, strict coding, bundles that stay in their folder."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schema_validation.serdes.base import DataRefused, SourceError
from schema_validation.serdes.proto_parser import parse_file
from schema_validation.serdes.protobuf import ProtobufSerde

TELEMETRY = """
syntax = "proto3";          // a comment
package demo.v1;
import "google/protobuf/timestamp.proto";
option java_package = "x";
message Telemetry {
  reserved 100 to 110, 200; reserved "old";
  string device = 1 [deprecated = true];
  repeated sint64 samples = 2;
  map<int32, Pos> places = 3;
  optional int32 seq = 4;
  oneof body { string text = 5; bytes raw = 6; }
  Kind kind = 7;
  Telemetry inner = 8;
  google.protobuf.Timestamp at = 9;
  message Pos { double lat = 1; }
  enum Kind { option allow_alias = true; UNKNOWN = 0; A = 1; B = 1; }
}
service S { rpc Get(Telemetry) returns (Telemetry) { option idempotency_level = NO_SIDE_EFFECTS; } }
"""
PERSON = """
message Person {
  required string name = 1;
  optional int32 id = 2 [default = 7];
  repeated string tags = 3 [packed = false];
  extensions 100 to max;
}
"""
VALUES = st.fixed_dictionaries(
    {
        "device": st.text(),
        "samples": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
        "places": st.dictionaries(
            st.integers(-(2**31), 2**31 - 1).map(str),
            st.fixed_dictionaries({"lat": st.floats(allow_nan=False)}),
            max_size=3,
        ),
        "kind": st.just("UNKNOWN"),
    },
    optional={"seq": st.integers(-(2**31), 2**31 - 1), "raw": st.binary()},
)


@given(VALUES)
def test_values_come_back(value: dict[str, Any]) -> None:
    made = ProtobufSerde(TELEMETRY)
    assert made.decode(made.encode(value, "Telemetry"), "demo.v1.Telemetry") == value


@given(st.binary(max_size=100))
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    made = ProtobufSerde(TELEMETRY)
    if made.misfit(data, "Telemetry") is None:
        assert isinstance(made.decode(data, "Telemetry"), dict)


@given(st.text(alphabet='message {}=;1"optional int32 a[],.<>/*', max_size=80))
def test_any_text_parses_or_is_refused_with_a_place(source: str) -> None:
    try:
        parse_file(source, "a.proto")
    except SourceError as error:
        line = error.line
    else:
        line = 1
    assert line is not None


def test_proto2_keeps_absent_fields_absent_and_wants_required_ones() -> None:
    made = ProtobufSerde(PERSON)
    assert made.decode(made.encode({"name": "n"}, "Person"), "Person") == {"name": "n", "tags": []}
    for refused in (lambda: made.encode({"id": 1}, "Person"), lambda: made.decode(b"\x10\x01", "Person")):
        with pytest.raises(DataRefused, match="required fields are missing: name"):
            refused()


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"devise": "x"}, "payload.devise"), ({"device": None}, "payload.device"), ({"seq": "5"}, "payload.seq"),
        ({"seq": True}, "payload.seq"), ({"samples": [1, 1.0]}, "payload.samples[1]"), ({"kind": "C"}, "payload.kind"),
        ({"places": {"1": {"lat": "x"}}}, "payload.places.1.lat"), ({"text": "a", "raw": b""}, "payload.raw"),
        ({"seq": 2**31}, "payload.seq"), ({"places": {"x": {}}}, "payload.places.x"), ([], "payload"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_not_written(value: Any, place: str) -> None:
    with pytest.raises(DataRefused) as caught:
        ProtobufSerde(TELEMETRY).encode(value, "Telemetry")
    assert caught.value.misfit.path == place


def test_enums_are_written_by_name_and_by_number_and_unknown_numbers_stay() -> None:
    made = ProtobufSerde(TELEMETRY)
    assert made.encode({"kind": "A"}, "Telemetry") == made.encode({"kind": 1}, "Telemetry") == b"\x38\x01"
    assert made.decode(b"\x38\x09", "Telemetry")["kind"] == 9


def test_nesting_ends_at_the_limit_of_the_format() -> None:
    made = ProtobufSerde(TELEMETRY)
    value: dict[str, Any] = {}
    for _ in range(200):
        value = {"inner": value}
    with pytest.raises(DataRefused, match="nests deeper"):
        made.encode(value, "Telemetry")
    data = b""
    for _ in range(60):
        data = b"\x42" + bytes([len(data)]) + data if len(data) < 128 else data
    assert isinstance(made.decode(data, "Telemetry"), dict)


def test_nested_types_and_unknown_ones() -> None:
    made = ProtobufSerde(TELEMETRY)
    assert made.has_message_type("Telemetry.Pos")
    assert made.decode(made.encode({"lat": 1.5}, "Telemetry.Pos"), "Telemetry.Pos") == {"lat": 1.5}
    assert not made.has_message_type("PlacesEntry")
    for message_type in (None, "Nope"):
        with pytest.raises(DataRefused):
            made.decode(b"", message_type)


@pytest.mark.parametrize(
    ("source", "line", "column"),
    [
        ("xxxx", 1, 1),
        ("message A {\n  int32 x = 1;\n}", 2, 3),
        ('syntax = "proto3";\nmessage A { required int32 x = 1; }', 2, 13),
        ("message A {", 1, 12),
        ("message A { optional int32 x = 0; }", 1, 32),
        ("message A { optional group G = 1 {} }", 1, 22),
        ('edition = "2023";', 1, 1),
        ("message A { optional string s = 1; } $", 1, 38),
    ],
)
def test_a_faulty_text_is_refused_with_its_place(source: str, line: int, column: int) -> None:
    with pytest.raises(SourceError) as caught:
        ProtobufSerde(source)
    assert (caught.value.line, caught.value.column) == (line, column)


@pytest.mark.parametrize(
    "source",
    [
        "message A { optional Nope x = 1; }",
        "message A { optional int32 x = 1; optional int32 y = 1; }",
        'import "other.proto"; message A {}',
        "enum E { A = 0; }",
    ],
)
def test_a_text_that_means_nothing_is_refused(source: str) -> None:
    with pytest.raises(SourceError):
        ProtobufSerde(source)


def file(path: str, contents: str, *, root: bool = False) -> dict[str, Any]:
    return {"path": path, "contents": contents, "root": root}


def test_a_bundle_resolves_imports_below_the_folder_of_its_root() -> None:
    made = ProtobufSerde(
        [
            file("v1/device.proto", 'import "common/unit.proto"; message D { optional U u = 1; }', root=True),
            file("v1/common/unit.proto", 'import "base.proto"; message U { optional B b = 1; }'),
            file("v1/base.proto", "message B { optional int32 n = 1; }"),
        ]
    )
    assert made.encode({"u": {"b": {"n": 1}}}, "D") == b"\x0a\x04\x0a\x02\x08\x01"
    assert made.has_message_type("B")


@pytest.mark.parametrize(
    "files",
    [
        [],
        [file("a.proto", "message A {}")],
        [file("../a.proto", "message A {}", root=True)],
        [file("/a.proto", "message A {}", root=True)],
        [file("a.proto", 'import "../b.proto"; message A {}', root=True)],
        [file("a.proto", 'import "b.proto"; message A {}', root=True), file("b.proto", 'import "a.proto";')],
        [file("a.proto", "message A {}", root=True), file("a.proto", "message A {}")],
        [{"path": "a.proto", "root": True}],
        "a.proto",
    ],
)
def test_a_faulty_bundle_is_refused(files: Any) -> None:
    with pytest.raises(SourceError):
        ProtobufSerde(files if isinstance(files, list) else [files])
