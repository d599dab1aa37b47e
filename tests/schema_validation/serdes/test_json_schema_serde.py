"""JSON Schema: nothing is fetched, nothing hangs, and the fast engine agrees with the reference."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import jsonschema
import jsonschema_specifications
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.core import jsontext
from broker.core.schema import FieldType
from schema_validation.serdes.base import DataRefused, SourceError
from schema_validation.serdes.json_schema import JsonSchemaSerde

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-100, 100) | st.floats(-10, 10) | st.text("abc", max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=8,
)
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number", "string", "boolean", "null", "object", "array"])
        | st.lists(st.sampled_from(["integer", "string", "null"]), min_size=1, max_size=3, unique=True),
        "minimum": st.integers(-5, 5),
        "maxLength": st.integers(0, 3),
        "minItems": st.integers(0, 2),
        "enum": st.lists(st.integers(0, 2) | st.text("ab", max_size=1), min_size=1, max_size=3, unique_by=repr),
        "required": st.lists(st.sampled_from("abcd"), max_size=2, unique=True),
    },
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
            "items": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "additionalProperties": st.booleans(),
            "uniqueItems": st.booleans(),
        },
    ),
    max_leaves=6,
)


def serde(schema: Any) -> JsonSchemaSerde:
    return JsonSchemaSerde(jsontext.encode(schema).decode())


@settings(max_examples=300)
@given(SCHEMAS, JSON_VALUES)
def test_accept_path_agrees_with_the_reference(schema: dict[str, Any], value: Any) -> None:
    reference = jsonschema.Draft202012Validator(schema, registry=jsonschema_specifications.REGISTRY)
    made = serde(schema)
    assert made.is_valid(value) == reference.is_valid(value)
    assert bool(made.errors(value)) != made.is_valid(value)


def test_a_remote_reference_is_never_fetched() -> None:
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is printed."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, name="schema server")
    thread.start()
    try:
        base = f"http://127.0.0.1:{server.server_port}"
        for schema in (
            {"$ref": f"{base}/a.json"},
            {"properties": {"x": {"$ref": f"{base}/b.json#/$defs/y"}}},
            {"$id": f"{base}/root.json", "$ref": "other.json"},
            {"$schema": f"{base}/meta.json"},
            {"$ref": "file:///etc/hostname"},
        ):
            with pytest.raises(SourceError):
                serde(schema)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == []


@pytest.mark.parametrize(
    "source", ["5", "true", "[]", "{", '{"type":"foo"}', '{"$ref":"#/$defs/no"}', '{"pattern":"("}', '{"$schema":"x"}']
)
def test_a_faulty_schema_is_refused_when_it_is_saved(source: str) -> None:
    with pytest.raises(SourceError):
        JsonSchemaSerde(source)


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        ({"pattern": "^(a+)+$"}, b'"' + b"a" * 50_000 + b'!"'),
        ({"uniqueItems": True}, b"[" + b",".join(b'{"k":%d}' % i for i in range(5000)) + b"]"),
        ({"$ref": "#"}, b"1"),
    ],
)
def test_hostile_payloads_end_in_time(schema: dict[str, Any], payload: bytes) -> None:
    made = serde(schema)
    start = time.monotonic()
    made.misfit(payload)
    assert time.monotonic() - start < 2


def test_values_keep_their_kind() -> None:
    assert serde({"type": "integer"}).is_valid(10**30)
    assert serde({"type": "integer"}).is_valid(1.0)
    assert not serde({"type": "integer"}).is_valid(True)
    assert serde({"multipleOf": 0.01}).is_valid(19.99)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [("date-time", "2024-01-01T00:00:00Z", "today"), ("ipv4", "10.0.0.1", "10.0.0"), ("email", "a@b.c", "a")],
)
def test_formats_are_asserted(name: str, good: str, bad: str) -> None:
    made = serde({"format": name})
    assert made.is_valid(good)
    assert not made.is_valid(bad)


def test_an_error_names_the_place_and_hides_the_rest() -> None:
    made = serde({"properties": {"readings": {"items": {"properties": {"t": {"type": "integer"}}}}}})
    with pytest.raises(DataRefused) as caught:
        made.decode(b'{"readings":[{"t":1},{"t":"x"}],"secret":"s3"}')
    assert str(caught.value) == "payload.readings[1].t: 'x' is not of type \"integer\""
    assert "s3" not in str(serde({"type": "array"}).explain({"secret": "s3"}))


def test_field_types() -> None:
    found = serde(
        {
            "type": "object",
            "required": ["n", "s"],
            "properties": {
                "n": {"type": "integer"},
                "s": {"type": ["string", "null"]},
                "u": {"type": ["string", "integer"]},
                "a": {"type": "array", "items": {"$ref": "#/$defs/d"}},
                "m": {"type": "object", "additionalProperties": {"type": "boolean"}},
                "e": {"enum": ["a", "b"]},
            },
            "$defs": {"d": {"type": "number"}},
        }
    ).field_type()
    assert found.open
    assert found.fields["n"] == FieldType("long", nullable=False)
    assert found.fields["s"] == FieldType("string", nullable=True)
    assert found.fields["u"].name == "unknown"
    assert found.fields["a"].item == FieldType("double", nullable=False)
    assert found.fields["m"].name == "map"
    assert found.fields["e"].name == "string"
