"""Functions over schemas: registered ones, and those of a registry elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.core.errors import Invalid, NotFound
from broker.core.schema import ExternalRegistry, SchemaError, SchemaLookup, Serde
from rules.functions.library import standard
from rules.functions.registry import Functions
from rules.functions.schemas import external_schema_functions, schema_functions
from rules.sql.values import EvaluationError
from schema_validation.serdes.avro import AvroSerde
from schema_validation.serdes.json_schema import JsonSchemaSerde
from schema_validation.serdes.protobuf import ProtobufSerde
from tests.support.calls import evaluate, same

AVRO = '{"type":"record","name":"R","fields":[{"name":"t","type":"double"},{"name":"id","type":"int","default":0}]}'
OTHER_AVRO = '{"type":"record","name":"R","fields":[{"name":"t","type":"double"}]}'
PROTO = """
syntax = "proto2";
message Person { required string name = 1; optional int32 id = 2; oneof u { int32 a = 3; string b = 4; } }
"""
JSON = '{"type":"object","required":["t"],"properties":{"t":{"type":"number"}}}'


class MemoryRegistry:
    """A registry elsewhere that is here: numbers count from 1, each text has one."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.asked: list[str] = []

    def serde(self, schema_id: int) -> Serde:
        if not 1 <= schema_id <= len(self.texts):
            raise SchemaError(f"registry 'elsewhere' has no schema {schema_id}")
        return AvroSerde(self.texts[schema_id - 1])

    def register(self, subject: str, source: str) -> int:
        self.asked.append(subject)
        if subject == "closed":
            raise SchemaError("registry 'elsewhere' refuses the subject 'closed'")
        if source not in self.texts:
            self.texts.append(source)
        return self.texts.index(source) + 1


class Lookup(SchemaLookup):
    """Schemas by name, and one registry elsewhere."""

    def __init__(self) -> None:
        self.elsewhere = MemoryRegistry()
        self.sources: Mapping[str, tuple[str, str]] = {
            "avro1": ("avro", AVRO),
            "pb1": ("protobuf", PROTO),
            "json1": ("json", JSON),
        }

    def serde(self, name: str) -> Serde:
        builders: Mapping[str, Any] = {
            "avro": AvroSerde,
            "protobuf": ProtobufSerde,
            "json": JsonSchemaSerde,
        }
        kind, text = self.source(name)
        serde: Serde = builders[kind](text, f"schema '{name}' version 1")
        return serde

    def source(self, name: str) -> tuple[str, str]:
        if name not in self.sources:
            raise NotFound("schema", name)
        return self.sources[name]

    def external(self, name: str) -> ExternalRegistry:
        if name != "elsewhere":
            raise NotFound("registry", name)
        return self.elsewhere


@pytest.fixture
def lookup() -> Lookup:
    return Lookup()


@pytest.fixture
def functions(lookup: Lookup) -> Functions:
    made = standard()
    for function in (*schema_functions(lambda: lookup), *external_schema_functions(lambda: lookup)):
        made.add(function)
    return made


@pytest.mark.parametrize(
    ("expression", "want"),
    [
        ("schema_decode('avro1', schema_encode('avro1', map('{\"t\":1.5}')))", {"t": 1.5, "id": 0}),
        (
            "schema_decode('pb1', schema_encode('pb1', map('{\"name\":\"a\",\"b\":\"x\"}'), 'Person'), 'Person')",
            {"name": "a", "b": "x"},
        ),
        ("schema_encode('json1', map('{\"t\":1.5}'))", '{"t":1.5}'),
        ("schema_decode('json1', '{\"t\":1}')", {"t": 1}),
        ("schema_check('avro1', map('{\"t\":1.5}'))", True),
        ("schema_check('avro1', map('{\"t\":\"x\"}'))", False),
        ("schema_check('avro1', schema_encode('avro1', map('{\"t\":1.5}')))", True),
        ("schema_check('avro1', 'x')", False),
        ("schema_check('pb1', map('{\"name\":\"a\"}'), 'Person')", True),
        ("schema_check('pb1', map('{\"id\":1}'), 'Person')", False),
        ("schema_check('pb1', 'no protobuf', 'Person')", False),
        ("schema_check('pb1', map('{\"name\":\"a\"}'), 'Nobody')", False),
        ("schema_check('json1', '{\"t\":1}')", True),
        ("schema_check('json1', '{}')", False),
        ("schema_check('json1', 'nonsense')", False),
        ("schema_check('json1', map('{\"t\":1}'))", True),
        ("schema_check('json1', 5)", False),
    ],
)
def test_registered_schemas(functions: Functions, expression: str, want: Any) -> None:
    assert same(evaluate(expression, functions), want)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("schema_decode('nosuch', 'x')", "schema_decode: there is no schema 'nosuch'"),
        ("schema_encode('nosuch', 'x')", "schema_encode: there is no schema 'nosuch'"),
        ("schema_check('nosuch', 'x')", "schema_check: there is no schema 'nosuch'"),
        (
            "schema_decode('avro1', 'x')",
            "schema_decode: schema 'avro1' version 1: payload.t: double takes 8 bytes, 1 left",
        ),
        ("schema_encode('avro1', map_new())", "schema_encode: schema 'avro1' version 1: payload.t"),
        (
            "schema_decode('pb1', 'x')",
            "schema 'pb1' is protobuf, so argument 3 must name a message type",
        ),
        ("schema_check('pb1', 'x')", "argument 3 must name a message type"),
        (
            "schema_decode('avro1', 'x', 'R')",
            "schema 'avro1' is avro, which has no message types; leave argument 3 out",
        ),
        ("schema_check('json1', 'x', 'R')", "schema 'json1' is json, which has no message types"),
        ("schema_decode('pb1', 'x', 'Nobody')", "has no message type 'Nobody'"),
        (
            "schema_decode('pb1', payload, 'Person')",
            "argument 2 must be encoded data, not a map; it is decoded already",
        ),
        ("schema_decode('pb1', 5, 'Person')", "argument 2 must be encoded data, not an integer"),
        (
            "schema_decode('pb1', payload.q, 'Person')",
            "argument 2 must be encoded data, not undefined",
        ),
        ("schema_decode('pb1', 'x', 5)", "argument 3 must be a string"),
        ("schema_encode('json1', map_new())", "schema_encode: schema 'json1' version 1"),
        ("schema_decode('json1', '{}')", "schema_decode: schema 'json1' version 1"),
        (
            "schema_encode('pb1', map('{\"name\":\"a\",\"x\":1}'), 'Person')",
            "payload.x: Person has no such field",
        ),
        (
            'schema_encode(\'pb1\', map(\'{"name":"a","a":1,"b":"c"}\'), \'Person\')',
            "only one can be set",
        ),
    ],
)
def test_failure(functions: Functions, expression: str, message: str) -> None:
    with pytest.raises((EvaluationError, Invalid)) as caught:
        evaluate(expression, functions, payload={"name": "a"})
    assert message in str(caught.value)


def test_a_message_type_may_be_named_with_its_package() -> None:
    serde = ProtobufSerde(
        'syntax = "proto3"; package a.b; message M { int32 x = 1; message N { int32 y = 1; } }', "s"
    )
    for name in ("M", "a.b.M"):
        assert serde.decode(b"\x08\x05", name) == {"x": 5}
    for name in ("M.N", "a.b.M.N"):
        assert serde.decode(b"\x08\x05", name) == {"y": 5}


def test_a_value_travels_with_the_number_of_its_schema(
    functions: Functions, lookup: Lookup
) -> None:
    lookup.elsewhere.texts.append(OTHER_AVRO)
    tag = "schema_encode_and_tag('avro1', 'elsewhere', map('{\"t\":1.5,\"id\":7}'), 'meters-value')"
    tagged = evaluate(tag, functions)
    assert tagged[:5] in (b"\0\0\0\0\2", "\0\0\0\0\2")
    assert evaluate("schema_decode_tagged('elsewhere', d)", functions, d=tagged) == {
        "t": 1.5,
        "id": 7,
    }
    assert evaluate("avro_decode('elsewhere', d)", functions, d=tagged) == {"t": 1.5, "id": 7}
    evaluate(tag, functions)
    assert lookup.elsewhere.asked == ["meters-value"], "the registry is asked once for each text"


def test_data_without_a_tag_is_read_by_number(functions: Functions, lookup: Lookup) -> None:
    lookup.elsewhere.texts += [AVRO, OTHER_AVRO]
    data = evaluate("avro_encode('elsewhere', map('{\"t\":1.5}'), 2)", functions)
    assert evaluate("avro_decode('elsewhere', d, 2)", functions, d=data) == {"t": 1.5}
    assert evaluate("bytesize(d)", functions, d=data) == 8


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("avro_decode('nowhere', 'x', 1)", "there is no registry 'nowhere'"),
        ("avro_decode('elsewhere', 'x', 9)", "registry 'elsewhere' has no schema 9"),
        ("avro_decode('elsewhere', 'x')", "the data has no tag"),
        ("avro_decode('elsewhere', '')", "the data has no tag"),
        ("avro_encode('elsewhere', map_new(), 1)", "schema 1 of registry 'elsewhere'"),
        ("avro_encode('elsewhere', map_new(), n)", "an integer from 0 to 4294967295"),
        ("schema_decode_tagged('elsewhere', 'plain')", "the data has no tag"),
        ("schema_decode_tagged('elsewhere', tagged)", "schema 1 of registry 'elsewhere'"),
        (
            "schema_encode_and_tag('pb1', 'elsewhere', map_new(), 's')",
            "only Avro schemas are registered elsewhere",
        ),
        (
            "schema_encode_and_tag('nosuch', 'elsewhere', map_new(), 's')",
            "there is no schema 'nosuch'",
        ),
        ("schema_encode_and_tag('avro1', 'elsewhere', map_new(), 's')", "payload.t"),
        (
            "schema_encode_and_tag('avro1', 'elsewhere', map('{\"t\":1.5}'), 'closed')",
            "refuses the subject",
        ),
        (
            "schema_encode_and_tag('avro1', 'nowhere', map('{\"t\":1.5}'), 's')",
            "there is no registry 'nowhere'",
        ),
    ],
)
def test_failure_elsewhere(
    functions: Functions, lookup: Lookup, expression: str, message: str
) -> None:
    lookup.elsewhere.texts.append(AVRO)
    with pytest.raises((EvaluationError, Invalid)) as caught:
        evaluate(expression, functions, n=-1, tagged=b"\0\0\0\0\1x")
    assert message in str(caught.value)


def test_a_lookup_without_registries_elsewhere_says_so() -> None:
    made = standard()
    for function in external_schema_functions(SchemaLookup):
        made.add(function)
    with pytest.raises(EvaluationError, match="there is no registry 'x'"):
        evaluate("avro_decode('x', 'y', 1)", made)
