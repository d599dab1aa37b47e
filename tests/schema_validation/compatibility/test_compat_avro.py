"""Avro compatibility equals what fastavro reads, and each reason has its place."""

from __future__ import annotations

import json
from io import BytesIO
from itertools import count
from typing import Any, Final

import fastavro
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from schema_validation.compatibility.avro import can_read, parse
from schema_validation.serdes.avro_schema import PRIMITIVES
from tests.support.examples import examples

Schema = Any


def paths(reader: Schema, writer: Schema) -> list[str]:
    return [
        reason.path for reason in can_read(parse(json.dumps(reader)), parse(json.dumps(writer)))
    ]


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    named = [
        {"name": item[0], "type": item[1], **(item[2] if len(item) > 2 else {})} for item in fields
    ]
    return {"type": "record", "name": "R", "fields": named, **more}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


T = ("t", "double")


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("long", "int", []),
        ("int", "long", [""]),
        ("bytes", "string", []),
        (decimal(8, 2), decimal(6, 2), []),
        (decimal(6, 2), decimal(8, 2), [""]),
        (decimal(8, 3), decimal(8, 2), [""]),
        (decimal(8, 2), "bytes", []),
        ("double", "boolean", [""]),
        (record(T, ("u", "string", {"default": ""})), record(T), []),
        (record(T, ("u", "string")), record(T), ["fields.u"]),
        (record(T), record(T, ("u", "string")), []),
        (record(("t", "string")), record(T), ["fields.t"]),
        (record(("v", "double", {"aliases": ["t"]})), record(T), []),
        (record(T, name="S"), record(T), [""]),
        (record(T, name="S", aliases=["R"]), record(T), []),
        (enum("A", "B"), enum("A"), []),
        (enum("A"), enum("A", "B"), [""]),
        (enum("A", default="A"), enum("A", "B"), []),
        (
            {"type": "fixed", "name": "F", "size": 2},
            {"type": "fixed", "name": "F", "size": 3},
            [""],
        ),
        (["null", "string"], "string", []),
        ("string", ["null", "string"], [""]),
        (["null", "long"], ["null", "int"], []),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, ["items"]),
        (
            {"type": "map", "values": record(T)},
            {"type": "map", "values": record(("u", "int"))},
            ["values.fields.t"],
        ),
        (record(("n", ["null", "R"])), record(("n", ["null", "R"]), T), []),
    ],
)
def test_resolution_has_its_places(reader: Schema, writer: Schema, expected: list[str]) -> None:
    assert paths(reader, writer) == expected


SCALARS = st.sampled_from(sorted(PRIMITIVES))
FIELD_NAMES = ("a", "b", "c")


def _named(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    """Records, enums and fixed types; names are made different for each kind, and the same in both schemas."""
    default = st.sampled_from([{}, {"default": None}])
    field = st.tuples(
        st.sampled_from(FIELD_NAMES), inner, default, st.sampled_from([[], ["a"], ["b"]])
    )
    return st.one_of(
        st.lists(field, max_size=3, unique_by=lambda item: item[0]).map(_record),
        st.tuples(st.sets(st.sampled_from("XYZ"), min_size=1), st.booleans()).map(_enum),
        st.integers(1, 2).map(lambda size: {"type": "fixed", "name": "F", "size": size}),
    )


def _record(fields: list[Any]) -> Schema:
    names = {item[0] for item in fields}
    made = []
    for name, kind, default, aliases in fields:
        fitting = (
            {"default": None}
            if default and (kind == "null" or (isinstance(kind, list) and kind[0] == "null"))
            else {}
        )
        free = [alias for alias in aliases if alias not in names]
        names |= set(free)
        made.append({"name": name, "type": kind, **fitting, **({"aliases": free} if free else {})})
    return {"type": "record", "name": "R", "fields": made}


def _enum(drawn: tuple[set[str], bool]) -> Schema:
    symbols = sorted(drawn[0])
    return {
        "type": "enum",
        "name": "E",
        "symbols": symbols,
        **({"default": symbols[0]} if drawn[1] else {}),
    }


def _composed(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    return st.one_of(
        _named(inner),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda values: {"type": "map", "values": values}),
        st.lists(SCALARS, min_size=1, max_size=3, unique=True),
    )


SCHEMAS = st.recursive(SCALARS, _composed, max_leaves=4)


def _with_own_names(schema: Schema, numbers: Any, prefix: str = "") -> Schema:
    """The schema with each named type called after its place, so that none is defined twice."""
    if isinstance(schema, list):
        return [_with_own_names(item, numbers, prefix) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if "name" in made:
        made["name"] = f"{made['name']}{prefix}"
    for key in ("items", "values"):
        if key in made:
            made[key] = _with_own_names(made[key], numbers, f"{prefix}_{key[0]}")
    if "fields" in made:
        made["fields"] = [
            {**item, "type": _with_own_names(item["type"], numbers, f"{prefix}_{item['name']}")}
            for item in made["fields"]
        ]
    return made


VALUES: Final[dict[str, Any]] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2**40,
    "float": 0.5,
    "double": 0.1,
    "bytes": b"x",
    "string": "x",
}


def covering(schema: Schema) -> list[Any]:
    """Values that show everything a writer may write: each symbol, each branch, and items in every array and map."""
    if isinstance(schema, list):
        return [(branch, value) for branch in schema for value in covering(branch)]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        options = [covering(item["type"]) for item in schema["fields"]]
        most = max((len(found) for found in options), default=1)
        return [
            {
                item["name"]: found[min(index, len(found) - 1)]
                for item, found in zip(schema["fields"], options, strict=True)
            }
            for index in range(most)
        ]
    if kind == "array":
        return [covering(schema["items"])]
    if kind == "map":
        return [{str(index): value for index, value in enumerate(covering(schema["values"]))}]
    if kind == "enum":
        return list(schema["symbols"])
    if kind == "fixed":
        return [b"x" * schema["size"]]
    return [VALUES[kind]]


def encoded(schema: Schema, value: Any, out: BytesIO) -> bytes:
    """A value written by hand where fastavro would have to guess the branch of a union."""
    if isinstance(schema, list):
        branch, inner = value
        fastavro.schemaless_writer(out, "long", schema.index(branch))
        encoded(branch, inner, out)
    elif isinstance(schema, dict) and schema["type"] == "record":
        for item in schema["fields"]:
            encoded(item["type"], value[item["name"]], out)
    elif isinstance(schema, dict) and schema["type"] in ("array", "map"):
        entries = (
            list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
        )
        if entries:
            fastavro.schemaless_writer(out, "long", len(entries))
        for key, item in entries:
            if key is not None:
                fastavro.schemaless_writer(out, "string", key)
            encoded(schema.get("items", schema.get("values")), item, out)
        fastavro.schemaless_writer(out, "long", 0)
    else:
        fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def reads(reader: Schema, writer: Schema) -> bool:
    parsed_reader, parsed_writer = fastavro.parse_schema(reader), fastavro.parse_schema(writer)
    for value in covering(writer):
        try:
            fastavro.schemaless_reader(
                BytesIO(encoded(writer, value, BytesIO())), parsed_writer, parsed_reader
            )
        except Exception:  # noqa: BLE001 # the library raises many types when it cannot read
            return False
    return True


def fields_of(schema: Schema) -> list[dict[str, Any]]:
    """The fields of all records in a schema."""
    if isinstance(schema, list):
        return [field for branch in schema for field in fields_of(branch)]
    if not isinstance(schema, dict):
        return []
    own = schema.get("fields", [])
    inner = [schema[key] for key in ("items", "values") if key in schema] + [
        field["type"] for field in own
    ]
    return [*own, *(field for one in inner for field in fields_of(one))]


def has_one_field_for_each(reader: Schema, writer: Schema) -> bool:
    """Whether no field of the reader goes by name with one of the writer's and by alias with another: the standard does
    not say which is read then, and fastavro takes either."""
    names = {field["name"] for field in fields_of(writer)}
    return not any(
        field["name"] in names and names.intersection(field.get("aliases", ()))
        for field in fields_of(reader)
    )


@settings(max_examples=examples(600), suppress_health_check=list(HealthCheck), deadline=None)
@given(SCHEMAS, SCHEMAS)
def test_the_verdict_is_what_fastavro_reads(one: Schema, other: Schema) -> None:
    reader, writer = _with_own_names(one, count()), _with_own_names(other, count())
    assume(has_one_field_for_each(reader, writer))
    assert (not paths(reader, writer)) == reads(reader, writer)


@settings(max_examples=examples(300), suppress_health_check=list(HealthCheck), deadline=None)
@given(SCHEMAS, st.data())
def test_the_verdict_on_small_changes_is_what_fastavro_reads(
    schema: Schema, data: st.DataObject
) -> None:
    writer = _with_own_names(schema, count())
    reader = _changed(writer, data)
    assert (not paths(reader, writer)) == reads(reader, writer)


def _changed(schema: Schema, data: st.DataObject) -> Schema:
    """The schema with one thing changed somewhere."""
    if isinstance(schema, list):
        return data.draw(st.permutations(schema))[: data.draw(st.integers(1, len(schema)))]
    if not isinstance(schema, dict):
        return data.draw(SCALARS)
    made = dict(schema)
    for key in ("items", "values"):
        if key in made:
            made[key] = _changed(made[key], data)
    if made["type"] == "enum":
        made["symbols"] = sorted(data.draw(st.sets(st.sampled_from("XYZ"), min_size=1)))
        made.pop("default", None)
    if made.get("fields"):
        index = data.draw(st.integers(0, len(made["fields"]) - 1))
        field = made["fields"][index]
        kept = [item for item in made["fields"] if item is not field]
        changes = [
            kept,
            [
                *kept,
                {
                    **{k: v for k, v in field.items() if k != "default"},
                    "type": _changed(field["type"], data),
                },
            ],
        ]
        made["fields"] = data.draw(st.sampled_from(changes))
    return made
