"""Protobuf compatibility: fields by number and by what stands on the wire."""

from __future__ import annotations

import pytest

from schema_validation.compatibility.protobuf import can_read, parse, warnings

SYNTAX = 'syntax = "proto3"; package p; '


def model(body: str, head: str = SYNTAX) -> object:
    return parse(head + "message M { " + body + " }")


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("double t = 1;", "double t = 1;", []),
        ("double u = 1;", "double t = 1;", []),
        ("double t = 1; string u = 2;", "double t = 1;", []),
        ("double t = 1;", "double t = 1; string u = 2;", []),
        ("float t = 1;", "double t = 1;", ["M.t"]),
        ("int64 t = 1;", "int32 t = 1;", []),
        ("bool t = 1;", "uint64 t = 1;", []),
        ("sint32 t = 1;", "int32 t = 1;", ["M.t"]),
        ("sint64 t = 1;", "sint32 t = 1;", []),
        ("sfixed32 t = 1;", "fixed32 t = 1;", []),
        ("bytes t = 1;", "string t = 1;", []),
        ("repeated string t = 1;", "string t = 1;", []),
        ("string t = 1;", "repeated string t = 1;", ["M.t"]),
        ("oneof o { int32 a = 1; }", "int32 a = 1;", []),
        ("oneof o { int32 a = 1; int32 b = 2; }", "int32 a = 1; int32 b = 2;", ["M.o"]),
        ("oneof o { int32 a = 1; int32 b = 2; }", "oneof o { int32 a = 1; }", []),
        ("optional int32 a = 1;", "int32 a = 1;", []),
        ("map<string, int32> m = 1;", "map<string, string> m = 1;", ["M.m.value"]),
        ("message I { string a = 1; } I i = 1;", "message I { int32 a = 1; } I i = 1;", ["M.i.a"]),
    ],
)
def test_fields_are_held_against_each_other_by_number(
    reader: str, writer: str, expected: list[str]
) -> None:
    reasons = can_read(model(reader), model(writer))  # type: ignore[arg-type]
    assert [reason.path for reason in reasons][: len(expected) or None] == expected


def test_required_is_neither_added_nor_removed() -> None:
    with_it, without = model("required int32 a = 1;", ""), model("optional int32 a = 1;", "")
    assert [reason.path for reason in can_read(with_it, without)] == ["M.a"]  # type: ignore[arg-type]
    assert [reason.path for reason in can_read(without, with_it)] == ["M.a"]  # type: ignore[arg-type]


def test_a_message_that_is_gone_is_told() -> None:
    one, both = parse(SYNTAX + "message A {}"), parse(SYNTAX + "message A {} message B {}")
    assert [reason.path for reason in can_read(one, both)] == ["B"]
    assert can_read(both, one) == []


def test_imported_types_are_compared_too() -> None:
    def bundle(kind: str) -> object:
        imported = f"{SYNTAX} message I {{ {kind} a = 1; }}"
        root = f'{SYNTAX} import "i.proto"; message M {{ I i = 1; }}'
        return parse(
            [
                {"path": "m.proto", "root": True, "contents": root},
                {"path": "i.proto", "root": False, "contents": imported},
            ]
        )

    assert [reason.path for reason in can_read(bundle("string"), bundle("int32"))] == ["M.i.a"]  # type: ignore[arg-type]


def test_a_number_that_is_free_again_is_a_warning_unless_it_is_reserved() -> None:
    old = model("double t = 1; string u = 2;")
    assert [reason.path for reason in warnings(model("double t = 1;"), old)] == ["M.u"]  # type: ignore[arg-type]
    assert warnings(model("reserved 2, 9 to 11; double t = 1;"), old) == []  # type: ignore[arg-type]
