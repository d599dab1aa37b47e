"""JSON Schema: nothing is fetched, nothing hangs, and the fast engine agrees with the reference."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
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
from tests.support.examples import examples
from tests.support.processor import takes_less_than

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-100, 100)
    | st.floats(-10, 10)
    | st.text("abc", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)
    ),
    max_leaves=8,
)
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(
            ["integer", "number", "string", "boolean", "null", "object", "array"]
        )
        | st.lists(
            st.sampled_from(["integer", "string", "null"]), min_size=1, max_size=3, unique=True
        ),
        "minimum": st.integers(-5, 5),
        "maxLength": st.integers(0, 3),
        "minItems": st.integers(0, 2),
        "enum": st.lists(
            st.integers(0, 2) | st.text("ab", max_size=1), min_size=1, max_size=3, unique_by=repr
        ),
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


@settings(max_examples=examples(300))
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
    "source",
    [
        "5",
        "true",
        "[]",
        "{",
        '{"type":"foo"}',
        '{"$ref":"#/$defs/no"}',
        '{"pattern":"("}',
        '{"$schema":"x"}',
    ],
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
    with takes_less_than(2):
        made.misfit(payload)


def test_values_keep_their_kind() -> None:
    assert serde({"type": "integer"}).is_valid(10**30)
    assert serde({"type": "integer"}).is_valid(1.0)
    assert not serde({"type": "integer"}).is_valid(True)
    assert serde({"multipleOf": 0.01}).is_valid(19.99)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date-time", "2024-01-01T00:00:00Z", "today"),
        ("ipv4", "10.0.0.1", "10.0.0"),
        ("email", "a@b.c", "a"),
    ],
)
def test_formats_are_asserted(name: str, good: str, bad: str) -> None:
    made = serde({"format": name})
    assert made.is_valid(good)
    assert not made.is_valid(bad)


def test_an_error_names_the_place_and_hides_the_rest() -> None:
    made = serde(
        {"properties": {"readings": {"items": {"properties": {"t": {"type": "integer"}}}}}}
    )
    with pytest.raises(DataRefused) as caught:
        made.decode(b'{"readings":[{"t":1},{"t":"x"}],"secret":"s3"}')
    assert str(caught.value) == "payload.readings[1].t: 'x' is not of type \"integer\""
    assert "s3" not in str(serde({"type": "array"}).explain({"secret": "s3"}))


@pytest.mark.parametrize("draft", ["03", "04", "06", "07"])
def test_the_draft_is_the_one_that_the_schema_names(draft: str) -> None:
    made = serde(
        {"$schema": f"http://json-schema.org/draft-{draft}/schema#", "const": 1, "divisibleBy": 2}
    )
    assert made.facts() == {"draft": f"draft {draft}"}
    assert made.is_valid(4) is (draft in ("03", "04"))
    assert made.is_valid(1) is (draft != "03")


def test_without_a_draft_it_is_the_newest() -> None:
    made = serde({"prefixItems": [{"type": "string"}]})
    assert made.facts() == {"draft": "draft 2020-12"}
    assert not made.is_valid([1])


def test_draft_03_asks_for_what_it_says() -> None:
    made = serde(
        {
            "$schema": "http://json-schema.org/draft-03/schema#",
            "type": "object",
            "properties": {
                "a": {
                    "type": ["string", {"type": "object", "properties": {"b": {"required": True}}}],
                    "required": True,
                },
                "ip": {"format": "ip-address"},
                "same": {"$ref": "#/properties/a"},
                "none": {"disallow": ["string", "null"]},
                "all": {"extends": [{"minimum": 1}, {"maximum": 3}]},
                "any": {"type": "any"},
            },
            "dependencies": {"all": "any"},
        }
    )
    for fits in ({"a": "x"}, {"a": {"b": 1}, "ip": "10.0.0.1"}, {"a": "x", "all": 2, "any": None}):
        assert made.errors(fits) == []
    for place, misfit in (
        ("payload", {}), ("payload.a", {"a": {}}), ("payload.ip", {"a": "x", "ip": "10"}),
        ("payload", {"a": "x", "all": 2}),
        ("payload.same", {"a": "x", "same": 1}), ("payload.none", {"a": "x", "none": None}),
        ("payload.all", {"a": "x", "all": 4, "any": 1}),
    ):  # fmt: skip
        assert [error.path for error in made.errors(misfit)] == [place]
    assert made.field_type().fields["a"].name == "unknown"
    with pytest.raises(SourceError, match=r"schema\.type"):
        serde({"$schema": "http://json-schema.org/draft-03/schema#", "type": 5})


@pytest.mark.parametrize("name", ["date", "time", "uuid", "uri", "hostname", "regex", "nonsense"])
def test_other_formats_say_something_to_people_only(name: str) -> None:
    assert serde({"format": name}).is_valid("?? !")


# -- what could take long --


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    with takes_less_than(seconds):
        return call()


def _chain(links: int, link: Callable[[dict[str, str]], dict[str, Any]]) -> dict[str, Any]:
    """Definitions that refer to the next one, in a row."""
    defs: dict[str, Any] = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(links)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{links}": {"type": "integer"}}}


@pytest.mark.parametrize(
    "link",
    [
        lambda next_one: {"allOf": [next_one, next_one]},
        lambda next_one: {"anyOf": [next_one, {"not": next_one}]},
        lambda next_one: {"if": next_one, "then": next_one},
        lambda next_one: {"patternProperties": {"a": next_one, "b": next_one}},
        lambda next_one: {"properties": {"a": next_one}, "additionalProperties": next_one},
    ],
    ids=["allOf", "anyOf and not", "if", "patternProperties", "properties and others"],
)
def test_definitions_that_multiply_are_refused_when_they_are_saved(
    link: Callable[[dict[str, str]], dict[str, Any]],
) -> None:
    with pytest.raises(SourceError, match="unfold to more than"):
        _within(2, lambda: serde(_chain(40, link)))
    serde(_chain(5, link))


def test_a_long_chain_of_references_is_refused_and_a_short_one_is_not() -> None:
    with pytest.raises(SourceError, match="unfold to more than"):
        _within(2, lambda: serde(_chain(15_000, lambda next_one: {**next_one})))
    assert serde(_chain(1_000, lambda next_one: {**next_one})).is_valid(1)


EXPRESSION: dict[str, Any] = {
    "oneOf": [
        {"type": "integer"},
        {
            "type": "object",
            "required": ["a"],
            "properties": {"k": {"const": "plus"}, "a": {"$ref": "#"}},
        },
        {
            "type": "object",
            "required": ["a"],
            "properties": {"k": {"const": "minus"}, "a": {"$ref": "#"}},
        },
    ]
}
"""Each level is looked at twice, since the branch shows in ``k`` only."""


def test_a_recursive_schema_decides_and_explains_in_time() -> None:
    def nested(depth: int, inner: Any) -> Any:
        for level in range(depth):
            inner = {"a": inner, "k": ("plus", "minus")[level % 2]}
        return inner

    made = serde(EXPRESSION)
    assert _within(1, lambda: made.is_valid(nested(100, 1)))
    for depth in (3, 20, 100):
        found = _within(1, lambda depth=depth: made.explain(nested(depth, "x")))  # type: ignore[misc] # the default binds now
        assert found.path == "payload"
        assert _within(1, lambda depth=depth: made.errors(nested(depth, "x")))  # type: ignore[misc] # as above
    assert "too deep" in made.explain(nested(100, "x")).detail


def test_a_large_payload_that_does_not_fit_is_explained_in_time() -> None:
    wrong = [1] * 300_000
    made = serde({"items": {"type": "string"}})
    assert str(_within(1, lambda: made.explain(wrong))) == 'payload[0]: 1 is not of type "string"'
    assert len(_within(1, lambda: made.errors(wrong))) == 1
    either = serde({"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "boolean"}}]})
    assert "too large" in _within(1, lambda: either.explain(wrong)).detail


@pytest.mark.parametrize(
    "pattern", [r"^(a+)+$", r"(a|aa)+\1$", r"(?=a)(a+)+$", r"^(?!b)(a*)*c$", r"(.*)*x\1"]
)
@pytest.mark.parametrize(
    "payload", [[("a" * 40) + "!"] * 1000, ["a" * 900_000 + "!"], ["a" * 900 + "!"] * 900]
)
def test_patterns_end_in_time(pattern: str, payload: list[str]) -> None:
    made = serde({"items": {"anyOf": [{"pattern": pattern}, {"type": "string"}]}})
    fits = _within(2, lambda: made.is_valid(payload))
    if not fits:
        assert "at most" in made.explain(payload).detail


def test_look_around_is_understood() -> None:
    made = serde({"pattern": r"^(?=.*\d)(?=.*[a-z]).{8,}$"})
    assert made.is_valid("abcdefg1")
    assert not made.is_valid("abcdefgh")


def test_a_large_enumeration_counts() -> None:
    values = [{"a": number} for number in range(20_000)]
    made = serde({"items": {"enum": values}})
    assert made.is_valid(values[-10:])
    found = _within(2, lambda: made.explain([values[-1]] * 100_000))
    assert "at most" in found.detail


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


def test_a_message_type_is_refused() -> None:
    made = serde({"type": "integer"})
    assert made.decode(b"1") == 1
    for coded in (lambda: made.decode(b"1", "M"), lambda: made.encode(1, "M")):
        with pytest.raises(DataRefused, match="has no message type 'M'"):
            coded()


def test_keys_of_digits_are_keys_in_an_error() -> None:
    schema = {
        "type": "object",
        "properties": {"5": {"type": "object", "properties": {"007": {"type": "integer"}}}},
    }
    made = JsonSchemaSerde(json.dumps(schema))
    misfit = made.misfit(b'{"5": {"007": "x"}}')
    assert misfit is not None
    assert "integer" in str(misfit)
    with pytest.raises(SourceError):
        JsonSchemaSerde(json.dumps({"properties": {"5": {"minimum": "x"}}}))
