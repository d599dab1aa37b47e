"""JSON Schema compatibility: what is declared compatible is so for documents, and each reason has its place."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from schema_validation.compatibility.json_schema import can_read, parse
from schema_validation.compatibility.verdict import Reason
from tests.support.examples import examples

Schema = Any


def reasons(reader: Schema, writer: Schema) -> list[Reason]:
    return can_read(parse(json.dumps(reader)), parse(json.dumps(writer)))


def real(found: list[Reason]) -> list[str]:
    return [reason.path for reason in found if not reason.is_warning]


def draft_3(**is_required: bool) -> Schema:
    properties = {name: {"required": required} for name, required in is_required.items()}
    return {
        "$schema": "http://json-schema.org/draft-03/schema#",
        "type": "object",
        "properties": properties,
    }


OBJECT = {"type": "object", "properties": {"t": {"type": "number"}}, "required": ["t"]}
CLOSED = {**OBJECT, "additionalProperties": False}
REFERRING = {"$defs": {"n": {"type": "number"}}, "properties": {"t": {"$ref": "#/$defs/n"}}}
LIST = {"properties": {"v": {}, "next": {"$ref": "#"}}}
CASES: list[tuple[str, Schema, Schema, list[str]]] = [
    ("equal", OBJECT, OBJECT, []),
    ("anything is read by an empty schema", {}, OBJECT, []),
    ("a type is added", OBJECT, {}, ["type"]),
    ("a type is widened", {"type": ["number", "null"]}, {"type": "number"}, []),
    ("a type is narrowed", {"type": "integer"}, {"type": "number"}, ["type"]),
    ("an integer is a number", {"type": "number"}, {"type": "integer"}, []),
    ("a required property is added", {**OBJECT, "required": ["t", "u"]}, OBJECT, ["properties.u"]),
    ("a required property is added in draft 03", draft_3(t=True, u=True), draft_3(t=True), ["properties.u"]),
    ("a required property becomes optional in draft 03", draft_3(t=False), draft_3(t=True), []),
    ("a required property becomes optional", {**OBJECT, "required": []}, OBJECT, []),
    ("a property changes its type", {"properties": {"t": {"type": "string"}}}, OBJECT, ["properties.t.type"]),
    ("an optional property of an open object", {"properties": {"t": {}, "u": {"type": "string"}}}, OBJECT, []),
    ("a property of a closed object", {"properties": {"t": {}, "u": {"type": "string"}}}, CLOSED, []),
    ("an object is closed", CLOSED, OBJECT, ["additionalProperties"]),
    ("an object is opened", OBJECT, CLOSED, []),
    ("a property of a closed reader is gone", {"additionalProperties": False}, CLOSED, ["properties.t"]),
    ("a bound is loosened", {"minimum": 0}, {"minimum": 1, "type": "number"}, []),
    ("a bound is tightened", {"minimum": 1}, {"minimum": 0, "type": "number"}, ["minimum"]),
    ("a bound becomes strict", {"exclusiveMinimum": 1}, {"minimum": 1, "type": "number"}, ["minimum"]),
    ("a symbol is added", {"enum": ["a", "b"]}, {"enum": ["a"]}, []),
    ("a symbol is taken away", {"enum": ["a"]}, {"enum": ["a", "b"]}, [""]),
    ("values become listed", {"enum": ["a"]}, {"type": "string"}, ["enum"]),
    ("a branch is added", {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string"}, []),
    ("a branch is taken", {"type": "string"}, {"anyOf": [{"type": "string"}, {"type": "null"}]}, ["type"]),
    ("branches by type", {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"type": ["string", "null"]}, []),
    ("one of, apart by type", {"oneOf": [{"type": "string"}, {"type": "null"}]}, {"type": "string"}, []),
    ("one of, not apart", {"oneOf": [{"type": "string"}, {"minLength": 1}]}, {"type": "string"}, ["oneOf"]),
    ("a reference is looked through", {"properties": {"t": {"type": "number"}}}, REFERRING, []),
    ("a reference of the reader", REFERRING, {"properties": {"t": {"type": "string"}}}, ["properties.t.type"]),
    ("a schema that contains itself", LIST, {**LIST, "type": "object"}, []),
    ("an inner change of one", {**LIST, "required": ["v"]}, LIST, ["properties.v", "properties.next.properties.v"]),
    ("items", {"items": {"type": "number"}}, {"type": "array", "items": {"type": "integer"}}, []),
    ("items, narrowed", {"items": {"type": "integer"}}, {"type": "array"}, ["items.type"]),
    ("a pattern is added", {"pattern": "^a"}, {"type": "string"}, ["pattern"]),
    ("a pattern that does not concern", {"pattern": "^a"}, {"type": "number"}, []),
    ("a condition", {"if": {"minimum": 1}, "then": {"maximum": 2}}, {"type": "number"}, ["if"]),
    ("nothing is read by false", {"properties": {"t": False}}, OBJECT, ["properties.t"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reader", "writer", "expected"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_change_is_judged_with_its_place(
    reader: Schema, writer: Schema, expected: list[str]
) -> None:
    assert real(reasons(reader, writer)) == expected


def test_an_optional_property_of_an_open_object_is_a_warning() -> None:
    found = reasons({"properties": {"t": {}, "u": {"type": "string"}}}, OBJECT)
    assert [(reason.path, reason.is_warning) for reason in found] == [("properties.u", True)]


def test_other_meanings_of_the_same_text_are_told_apart() -> None:
    """Both say the same, and refer to different things."""

    def of(kind: str) -> Schema:
        return {
            "$defs": {"n": {"type": kind}},
            "properties": {"t": {"anyOf": [{"$ref": "#/$defs/n"}]}},
        }

    assert real(reasons(of("string"), of("number"))) == ["properties.t.type"]


def test_what_other_parts_evaluate_is_no_property_of_this_one() -> None:
    inner = {"properties": {"a": {}}, "unevaluatedProperties": False}
    assert real(reasons(inner, {**inner, "allOf": [{"properties": {"b": {}}}]}))


LEAVES = st.sampled_from(
    [True, {}, {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "null"},
     {"minimum": 1}, {"type": "number", "maximum": 3}, {"exclusiveMinimum": 1}, {"multipleOf": 2}, {"enum": ["a", 1]},
     {"const": "a"}, {"maxLength": 1}, {"minLength": 1}, {"pattern": "^a"}, {"not": {"type": "string"}},
     {"type": ["string", "null"]}, {"enum": [1, 2, None]}, {"uniqueItems": True}, {"minItems": 1}, {"maxItems": 1},
     {"$ref": "#/$defs/d"}, {"$ref": "#"}, {"required": ["a"]}, {"minProperties": 1}, {"maxProperties": 1},
     {"type": "object"}, {"type": "array"}]
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "ab"])


def _composed(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    lists = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(NAMES, inner, max_size=2),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "additionalProperties": inner | st.just(False),
            "required": st.lists(NAMES, max_size=1),
            "items": inner,
            "prefixItems": lists,
            "anyOf": lists,
            "oneOf": lists,
            "allOf": lists,
            "not": inner,
            "contains": inner,
            "propertyNames": inner,
            "if": inner,
            "then": inner,
            "unevaluatedProperties": st.just(False),
            "type": st.sampled_from(["object", "array", ["object", "null"]]),
            "$ref": st.just("#/$defs/d"),
        },
    )


SCHEMAS = st.recursive(LEAVES, _composed, max_leaves=5)
ROOTS = st.builds(
    lambda root, held: {**(root if isinstance(root, dict) else {}), "$defs": {"d": held}},
    SCHEMAS,
    LEAVES,
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 2, 3.5, -1, "", "a", "b", "ab", 1.0]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=4,
)
FIXED_VALUES: list[Any] = [
    None, True, 0, 1, 2, 3.5, "", "a", "bb", [], [1], ["a", 1], [1, 1], {}, {"a": 1}, {"a": "a"}, {"b": None},
    {"ab": 1}, {"a": {}}, {"a": {"a": 1}}, {"a": [1]}, {"x": 1}, {"a": 1, "b": 2},
]  # fmt: skip


@settings(max_examples=examples(500), suppress_health_check=list(HealthCheck), deadline=None)
@given(ROOTS, ROOTS, st.lists(VALUES, max_size=10))
def test_what_is_declared_compatible_reads_every_document(
    reader: Schema, writer: Schema, values: list[Any]
) -> None:
    try:
        valid_for_reader = jsonschema_rs.validator_for(reader).is_valid
        valid_for_writer = jsonschema_rs.validator_for(writer).is_valid
    except Exception:  # noqa: BLE001 # a schema that could not be saved
        assume(False)
    found = reasons(reader, writer)
    assume(not found)
    for value in FIXED_VALUES + values:
        try:
            written = valid_for_writer(value)
        except ValueError:  # a reference that leads to itself
            continue
        assert not written or valid_for_reader(value), value


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck), deadline=None)
@given(ROOTS, ROOTS)
def test_a_union_with_the_writer_reads_the_writer(schema: Schema, other: Schema) -> None:
    """Completeness where it matters: the same schema, and one that adds a branch."""
    assert not reasons(schema, schema)
    assume('Properties"' not in json.dumps(schema) and "$ref" not in json.dumps([schema, other]))
    assert not real(reasons({"anyOf": [schema, other]}, schema))
