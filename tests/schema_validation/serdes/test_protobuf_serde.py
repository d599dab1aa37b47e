"""Protobuf: text to descriptors, strict coding, bundles that stay in their folder."""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import tarfile
import textwrap
import tracemalloc
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given, settings
from hypothesis import strategies as st

from schema_validation.serdes.base import DataRefused, SourceError
from schema_validation.serdes.proto_archive import files_of_archive
from schema_validation.serdes.proto_parser import parse_file
from schema_validation.serdes.protobuf import ProtobufSerde
from tests.support.examples import examples

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
    for refused in (
        lambda: made.encode({"id": 1}, "Person"),
        lambda: made.decode(b"\x10\x01", "Person"),
    ):
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
    assert (
        made.encode({"kind": "A"}, "Telemetry")
        == made.encode({"kind": 1}, "Telemetry")
        == b"\x38\x01"
    )
    assert made.decode(b"\x38\x09", "Telemetry")["kind"] == 9
    assert made.decode(b"\x38\x01", "Telemetry")["kind"] == "A"  # the first name of a number


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
        ("message A { optional group g = 1 {} }", 1, 28),
        ('syntax = "proto3"; message A { optional group G = 1 {} }', 1, 41),
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
            file(
                "v1/device.proto",
                'import "common/unit.proto"; message D { optional U u = 1; }',
                root=True,
            ),
            file("v1/common/unit.proto", 'import "base.proto"; message U { optional B b = 1; }'),
            file("v1/base.proto", "message B { optional int32 n = 1; }"),
        ]
    )
    assert made.encode({"u": {"b": {"n": 1}}}, "D") == b"\x0a\x04\x0a\x02\x08\x01"
    assert made.has_message_type("B")


@pytest.mark.parametrize("top", ["", "proto/", "repo-1.0/proto/"])
def test_a_bundle_resolves_imports_by_their_path_from_the_top(top: str) -> None:
    unit = 'import "acme/v1/base.proto"; import "shared/site.proto"; message U { optional B b = 1; optional S s = 2; }'
    made = ProtobufSerde(
        [
            file(
                f"{top}acme/v1/pos.proto",
                'import "acme/v1/unit.proto"; message P { optional U u = 1; }',
                root=True,
            ),
            file(f"{top}acme/v1/unit.proto", f'import "google/protobuf/any.proto"; {unit}'),
            file(
                f"{top}acme/v1/base.proto",
                'import "site.proto"; message B { optional Here h = 1; }',
            ),
            file(f"{top}acme/v1/site.proto", "message Here { optional int32 n = 1; }"),
            file(f"{top}shared/site.proto", "message S { optional int32 n = 1; }"),
        ]
    )
    value = {"u": {"b": {"h": {"n": 1}}, "s": {"n": 2}}}
    assert made.decode(made.encode(value, "P"), "P") == value


def test_an_import_is_looked_for_in_the_folder_of_the_root_first() -> None:
    made = ProtobufSerde(
        [
            file("v1/a.proto", 'import "b.proto"; message A { optional B b = 1; }', root=True),
            file("v1/b.proto", "message B { optional int32 near = 1; }"),
            file("b.proto", "message B { optional int32 far = 1; }"),
        ]
    )
    assert made.decode(b"\x0a\x02\x08\x01", "A") == {"b": {"near": 1}}


def test_an_import_from_another_top_is_found_where_it_is_the_only_one() -> None:
    root = file(
        "api/a.proto", 'import "acme/v1/b.proto"; message A { optional B b = 1; }', root=True
    )
    far = file(
        "third_party/acme/v1/b.proto", 'import "acme/v1/c.proto"; message B { optional C c = 1; }'
    )
    farther = file("vendor/x/acme/v1/c.proto", "message C { optional int32 n = 1; }")
    bundle = ProtobufSerde([root, far, farther])
    assert bundle.decode(bundle.encode({"b": {"c": {"n": 1}}}, "A"), "A") == {"b": {"c": {"n": 1}}}
    with pytest.raises(SourceError, match=r"missing: acme/v1/c\.proto"):
        ProtobufSerde([root, far, farther, file("vendor/y/acme/v1/c.proto", farther["contents"])])
    with pytest.raises(SourceError, match=r"missing: b\.proto"):
        ProtobufSerde(
            [file("a.proto", 'import "b.proto"; message A {}', root=True), file("ab.proto", "")]
        )


@pytest.mark.parametrize(
    "files",
    [
        [],
        [file("a.proto", "message A {}")],
        [file("../a.proto", "message A {}", root=True)],
        [file("/a.proto", "message A {}", root=True)],
        [file("a.proto", 'import "../b.proto"; message A {}', root=True)],
        [
            file("a.proto", 'import "b.proto"; message A {}', root=True),
            file("b.proto", 'import "a.proto";'),
        ],
        [file("a.proto", "message A {}", root=True), file("a.proto", "message A {}")],
        [{"path": "a.proto", "root": True}],
        "a.proto",
    ],
)
def test_a_faulty_bundle_is_refused(files: Any) -> None:
    with pytest.raises(SourceError):
        ProtobufSerde(files if isinstance(files, list) else [files])


# -- compiled schemas --


def compiled(*files: tuple[str, str]) -> str:
    """What ``protoc --include_imports --descriptor_set_out`` writes, in base64."""
    made = FileDescriptorSet(file=[parse_file(text, path) for path, text in files])
    return base64.b64encode(made.SerializeToString()).decode()


BASE = ("base.proto", 'syntax = "proto3"; package p; message B { int32 n = 1; }')
ROOT = (
    "root.proto",
    'syntax = "proto3"; package p; import "base.proto"; message R { B b = 1; repeated int64 l = 2; }',
)


def test_a_compiled_schema_is_as_its_text() -> None:
    made = ProtobufSerde(compiled(BASE, ROOT))
    assert made.facts() == {"message_types": ["R"]}
    assert made.has_message_type("p.B")
    assert made.decode(made.encode({"b": {"n": 5}, "l": [1]}, "R"), "R") == {
        "b": {"n": 5},
        "l": [1],
    }
    wrapped = "\n".join(textwrap.wrap(compiled(BASE, ROOT), 76)) + "\n"
    assert ProtobufSerde(wrapped).has_message_type("R")


def test_compiled_files_import_each_other_by_their_whole_names() -> None:
    far = ("b.proto", "message B { optional int32 far = 1; }")
    near = ("v1/b.proto", "message Near { optional int32 near = 1; }")
    root = ("v1/a.proto", 'import "b.proto"; message A { optional B b = 1; }')
    assert ProtobufSerde(compiled(far, near, root)).decode(b"\x0a\x02\x08\x01", "A") == {
        "b": {"far": 1}
    }


def test_a_single_compiled_file_is_understood() -> None:
    text = 'syntax = "proto3"; message M { int32 x = 1; }'
    single = base64.b64encode(parse_file(text, "default").SerializeToString()).decode()
    assert ProtobufSerde(single).decode(b"\x08\x05", "M") == {"x": 5}


def test_a_compiled_schema_without_its_imports_is_refused() -> None:
    with pytest.raises(SourceError, match=r"missing: base\.proto"):
        ProtobufSerde(compiled(ROOT))


def test_groups_are_read_and_written() -> None:
    made = ProtobufSerde(
        "message A { repeated group Result = 1 { required string url = 2; } optional int32 n = 3; }"
    )
    data = b"\x0b\x12\x01x\x0c\x18\x05"
    assert made.decode(data, "A") == {"result": [{"url": "x"}], "n": 5}
    assert made.encode({"result": [{"url": "x"}], "n": 5}, "A") == data
    with pytest.raises(DataRefused, match="required fields are missing"):
        made.decode(b"\x0b\x0c", "A")


def test_well_known_types_decode_by_their_fields() -> None:
    made = ProtobufSerde(
        'syntax = "proto3"; import "google/protobuf/any.proto"; import "google/protobuf/struct.proto";'
        'import "google/protobuf/api.proto"; import "google/protobuf/wrappers.proto";'
        "message M { google.protobuf.Any a = 1; google.protobuf.Struct s = 2; google.protobuf.Int64Value v = 3;"
        " google.protobuf.Method m = 4; }"
    )
    value = {
        "a": {"type_url": "t/x.Y", "value": b"\x08\x01"},
        "s": {"fields": {"k": {"number_value": 1.5}, "n": {"null_value": "NULL_VALUE"}}},
        "v": {"value": 2**53 + 1},
    }
    assert made.decode(made.encode(value, "M"), "M") == value


def test_last_values_win_messages_merge_and_packing_does_not_matter() -> None:
    made = ProtobufSerde(
        'syntax = "proto3"; message M { int32 n = 1; I i = 2; repeated int32 l = 3;'
        " repeated int32 u = 4 [packed = false]; message I { int32 a = 1; int32 b = 2; } }"
    )
    data = b"\x12\x02\x08\x01\x08\x05\x08\x06\x12\x02\x10\x02\x18\x01\x18\x02\x22\x02\x03\x04\xf8\x01\x07"
    assert made.decode(data, "M") == {"n": 6, "i": {"a": 1, "b": 2}, "l": [1, 2], "u": [3, 4]}


def test_files_of_a_bundle_that_are_missing_are_all_named() -> None:
    files = [
        file(
            "v1/a.proto",
            'import "b.proto"; import "c.proto"; import "../d.proto"; message A {}',
            root=True,
        ),
        file("v1/b.proto", 'import "e.proto"; import "/f.proto"; message B {}'),
    ]
    with pytest.raises(SourceError) as caught:
        ProtobufSerde(files)
    assert "missing: c.proto, e.proto" in caught.value.message
    assert "invalid, since they leave the folder: ../d.proto, /f.proto" in caught.value.message


# -- archives --


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for info, contents in members:
            info.size = len(contents)
            tar.addfile(info, io.BytesIO(contents))
    return packed.getvalue()


def member(path: str, contents: str = "message A {}") -> tuple[tarfile.TarInfo, bytes]:
    return tarfile.TarInfo(path), contents.encode()


def test_an_archive_is_a_bundle() -> None:
    packed = archive(
        member("./v1/device.proto", 'import "common/unit.proto"; message D { optional U u = 1; }'),
        member("./v1/common/unit.proto", "message U { optional int32 n = 1; }"),
    )
    made = ProtobufSerde(files_of_archive(packed, "device.proto"))
    assert made.encode({"u": {"n": 1}}, "D") == b"\x0a\x02\x08\x01"


def _link(path: str) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
    return info, b""


@pytest.mark.parametrize(
    ("data", "root", "says"),
    [
        (b"", "a.proto", "not a gzipped tar"),
        (b"\x1f\x8bxx", "a.proto", "not a gzipped tar"),
        (gzip.compress(b"x" * 5000), "a.proto", "not a gzipped tar"),
        (gzip.compress(bytes(64 * 1024 * 1024)), "a.proto", "at most 10485760 bytes"),
        (archive(member("b.proto")), "a.proto", "has 0 files 'a.proto'"),
        (archive(member("x/a.proto"), member("y/a.proto")), "a.proto", "has 2 files 'a.proto'"),
        (archive(member("a.proto"), member("../b.proto")), "a.proto", "must stay in the bundle"),
        (archive(member("a.proto"), member("/b.proto")), "a.proto", "must stay in the bundle"),
        (archive(member("a.proto"), _link("b.proto")), "a.proto", "not a regular file"),
        (archive(member("a.proto")), "v1/a.proto", "without a folder"),
        (archive(member("a.proto"))[:60], "a.proto", "not a gzipped tar|has 0 files"),
        (archive(*[member(f"a{i}.proto") for i in range(1001)]), "a0.proto", "at most 1000 files"),
        (archive((tarfile.TarInfo("a.proto"), b"\xff\xfe")), "a.proto", "not UTF-8"),
    ],
    ids=lambda part: (
        part if isinstance(part, str) else "archive"
    ),  # archives hold the time they were made at
)
def test_a_hostile_archive_is_refused(data: bytes, root: str, says: str) -> None:
    with pytest.raises(SourceError, match=says):
        files_of_archive(data, root)


# -- what is refused, and where --


@pytest.mark.parametrize(
    ("data", "misfit"),
    [
        (b"\x0a\xff\xff\xff\xff\x0f", "payload.device: 4,294,967,295 bytes are announced, 0 left"),
        (b"\x20", "payload.seq: expected a number, got the end of the data"),
        (b"\x20\xff", "payload.seq: expected a number, got the end of the data"),
        (b"\x20" + b"\xff" * 11, "payload.seq: byte 1: expected a number of at most 10 bytes"),
        (b"\x42\x02\x42\x05", "payload.inner.inner: 5 bytes are announced, 0 left"),
        (
            b"\x0a\x02\xff\xfe",
            "payload.device: expected text, got bytes that are not UTF-8 (byte 0)",
        ),
        (b"\x00\x00", "payload: byte 1: no field begins with the tag 0"),
        (b"\x0f\x00", "payload.device: byte 1: no field begins with the tag 15"),
        (b"\x0c", "payload.device: byte 1: no field begins with the tag 12"),
        (b"\xfb\x01\x08\x01", "payload: group 31 does not end"),
        (b"\x11\x00", "payload.samples[0]: expected 8 bytes, got 1"),
    ],
)
def test_a_refusal_says_where_and_what(data: bytes, misfit: str) -> None:
    assert str(ProtobufSerde(TELEMETRY).misfit(data, "Telemetry")) == misfit


def test_deep_messages_are_refused_at_the_limit_of_the_format() -> None:
    def nested(depth: int) -> bytes:
        data = b""
        for _ in range(depth):
            size = bytearray()
            left = len(data)
            while left > 127:
                size.append(left & 127 | 128)
                left >>= 7
            data = b"\x42" + bytes([*size, left]) + data
        return data

    made = ProtobufSerde(TELEMETRY)
    assert made.misfit(nested(90), "Telemetry") is None
    for depth in (150, 10_000):
        found = made.misfit(nested(depth), "Telemetry")
        assert found is not None
        assert found.detail == "messages nest deeper than 100 levels"
    assert made.misfit(b"\xfb\x01" * 100_000, "Telemetry") is not None


def test_a_few_bytes_do_not_become_megabytes() -> None:
    fields = "".join(f"int32 f{i} = {i + 1};" for i in range(200))
    made = ProtobufSerde(
        f'syntax = "proto3"; message W {{ {fields} }} message L {{ repeated W w = 1; }}'
    )
    assert len(made.decode(b"\x0a\x00" * 100, "L")["w"]) == 100
    tracemalloc.start()
    found = made.misfit(b"\x0a\x00" * 500_000, "L")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(found) == "payload: a payload decodes to at most 500000 values"
    assert peak < 64 * 1024 * 1024


# -- random schemas --

SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "double": st.floats(allow_nan=False), "float": st.floats(width=32, allow_nan=False),
    "int32": st.integers(-(2**31), 2**31 - 1), "sint64": st.integers(-(2**63), 2**63 - 1),
    "uint32": st.integers(0, 2**32 - 1), "fixed64": st.integers(0, 2**64 - 1), "bool": st.booleans(),
    "string": st.text(max_size=5), "bytes": st.binary(max_size=5), "E": st.sampled_from(["ZERO", "ONE", 7]),
}  # fmt: skip


@st.composite
def messages(draw: st.DrawFn, depth: int = 2) -> tuple[str, st.SearchStrategy[dict[str, Any]]]:
    """The body of a proto3 message, and its values as they decode."""
    body = ""
    always: dict[str, st.SearchStrategy[Any]] = {}
    optional: dict[str, st.SearchStrategy[Any]] = {}
    for number in range(1, draw(st.integers(1, 5)) + 1):
        name = f"f_{number}"
        shape = draw(
            st.sampled_from(
                ["implicit", "optional", "repeated", "map", *(["message"] if depth else [])]
            )
        )
        kind = draw(st.sampled_from(list(SCALARS)))
        if shape == "message":
            inner, values = draw(messages(depth - 1))
            body += f"message M{number} {{ {inner} }} M{number} {name} = {number};"
            optional[name] = values
        elif shape == "map":
            body += f"map<string, {kind}> {name} = {number};"
            always[name] = st.dictionaries(st.text(max_size=3), SCALARS[kind], max_size=2)
        elif shape == "repeated":
            body += f"repeated {kind} {name} = {number};"
            always[name] = st.lists(SCALARS[kind], max_size=3)
        else:
            body += f"{shape.removeprefix('implicit')} {kind} {name} = {number};"
            (optional if shape == "optional" else always)[name] = SCALARS[kind]
    return body, st.fixed_dictionaries(always, optional=optional)


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_values_of_any_schema_come_back(data: st.DataObject) -> None:
    body, values = data.draw(messages())
    made = ProtobufSerde(
        f'syntax = "proto3"; enum E {{ ZERO = 0; ONE = 1; }} message T {{ {body} }}'
    )
    value = data.draw(values)
    assert made.decode(made.encode(value, "T"), "T") == value


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), st.binary(max_size=200))
def test_any_bytes_and_any_schema_decode_or_are_refused_with_a_place(
    data: st.DataObject, payload: bytes
) -> None:
    body, _ = data.draw(messages())
    made = ProtobufSerde(
        f'syntax = "proto3"; enum E {{ ZERO = 0; ONE = 1; }} message T {{ {body} }}', "schema 's'"
    )
    with contextlib.suppress(DataRefused):
        made.decode(payload, "T")
    found = made.misfit(payload, "T")
    assert found is None or (found.path.startswith("payload") and len(str(found)) < 400)


def test_a_large_payload_of_wide_messages_that_are_filled_decodes() -> None:
    fields = "".join(f"int32 f{i} = {i + 1};" for i in range(200))
    made = ProtobufSerde(
        f'syntax = "proto3"; message W {{ {fields} bytes raw = 300; }} message L {{ repeated W w = 1; }}'
    )
    value = {
        "w": [
            {f"f{i}": i + 1 for i in range(200)} | {"raw": bytes([10, 0]) * 5_000}
            for _ in range(20)
        ]
    }
    assert made.decode(made.encode(value, "L"), "L") == value


def test_a_bundle_may_hold_compiled_files() -> None:
    base = base64.b64encode(
        parse_file("message B { optional int32 n = 1; }", "default").SerializeToString()
    ).decode()
    made = ProtobufSerde(
        [
            file("r.proto", 'import "b.proto"; message R { optional B b = 1; }', root=True),
            file("b.proto", base),
        ]
    )
    assert made.decode(b"\x0a\x02\x08\x05", "R") == {"b": {"n": 5}}


@pytest.mark.parametrize(
    "name",
    [
        "HasField",
        "WhichOneof",
        "SerializeToString",
        "IsInitialized",
        "SetInParent",
        "DESCRIPTOR",
        "__class__",
        "Clear",
    ],
)
def test_a_field_is_named_like_a_method(name: str) -> None:
    text = f"""syntax = "proto2";
    message Inner {{ optional string {name} = 1; required int32 n = 2; }}
    message M {{ optional string {name} = 1; optional int32 b = 2; optional Inner inner = 3;
                 oneof one {{ int32 x = 4; int32 y = 5; }} }}"""
    serde = ProtobufSerde(text)
    value = {name: "v", "b": 1, "inner": {name: "w", "n": 3}, "x": 4}
    assert serde.decode(serde.encode(value, "M"), "M") == value
    with pytest.raises(DataRefused, match="only one can be set"):
        serde.encode({name: "v", "x": 1, "y": 2}, "M")
    with pytest.raises(DataRefused, match="required fields are missing"):
        serde.encode({name: "v", "inner": {name: "w"}}, "M")
