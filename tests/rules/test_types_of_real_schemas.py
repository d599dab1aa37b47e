"""Types of payloads by real schemas, validations and transformations, as rules find them when they are saved."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from broker.core.errors import Invalid
from broker.core.schema import FieldType
from rules.feature import RulesFeature
from schema_validation.feature import SchemaValidationFeature
from schema_validation.serdes.json_schema import JsonSchemaSerde
from tests.support.features import make_services
from transforms.feature import TransformsFeature

AVRO = {
    "type": "record",
    "name": "Meter",
    "fields": [
        {"name": "temp", "type": "double"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["ON", "OFF"]}},
        {"name": "who", "type": ["null", "string", {"type": "record", "name": "A", "fields": [
            {"name": "id", "type": "long"}]}]},
        {"name": "next", "type": ["null", "Meter"]},
    ],
}  # fmt: skip
PROTO = """
syntax = "proto3";
message Meter {
  double temp = 1;
  optional int64 seq = 2;
  repeated Tag tags = 3;
  map<string, int32> counts = 4;
  Meter inner = 5;
  bytes raw = 6;
  message Tag { string k = 1; }
}
"""


class Bench:
    """Schemas, validations, transformations and rules around one set of services."""

    def __init__(self) -> None:
        self.services = make_services()
        self.schemas = SchemaValidationFeature(self.services)
        self.transforms, self.feature = (
            TransformsFeature(self.services),
            RulesFeature(self.services),
        )
        for feature in (self.schemas, self.transforms, self.feature):
            feature.start()
        self.rules = self.feature.service

    def bind(self, kind: str, source: Any, **members: Any) -> None:
        """Register schema ``s`` and validate ``m/#`` with it."""
        text = source if isinstance(source, str) else json.dumps(source)
        self.schemas.schemas.create(
            {"name": "s", "type": kind, "source": text, "compatibility": "none"}
        )
        check = {"type": kind, "schema": "s"} | (
            {"message_type": "Meter"} if kind == "protobuf" else {}
        )
        validation = {
            "name": "v",
            "topics": ["m/#"],
            "strategy": "all_pass",
            "failure_action": "drop",
        }
        self.schemas.validations.create({**validation, "checks": [check], **members})

    def columns(self, sql: str) -> dict[str, str]:
        """Names and types in Spark's words of the columns of a statement on ``m/+``."""
        checked = self.rules.check({"sql": f"{sql} FROM 'm/+'"})
        return {column["name"]: column["spark_type"] for column in checked["columns"]}

    def mistake(self, sql: str) -> str:
        """The one mistake of a statement on ``m/+``."""
        with pytest.raises(Invalid) as caught:
            self.columns(sql)
        (problem,) = caught.value.problems
        return str(problem)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_combined_json_schemas(bench: Bench) -> None:
    bench.bind(
        "json",
        {
            "allOf": [
                {"$ref": "#/$defs/base"},
                {"required": ["extra"], "properties": {"extra": {"type": "boolean"}}},
            ],
            "type": "object",
            "properties": {"mode": {"enum": ["auto", "off"]}, "tree": {"$ref": "#/$defs/tree"}},
            "oneOf": [
                {"properties": {"kind": {"const": "t"}, "t": {"type": "number"}}},
                {"properties": {"kind": {"const": "h"}, "h": {"type": "integer"}}},
            ],
            "unevaluatedProperties": False,
            "$defs": {
                "base": {"type": "object", "properties": {"seq": {"type": "integer"}}},
                "tree": {
                    "type": "object",
                    "properties": {"l": {"$ref": "#/$defs/tree"}, "r": {"$ref": "#/$defs/tree"}},
                },
            },
        },
    )
    sql = "SELECT payload.seq AS s, payload.extra AS e, payload.mode AS m, payload.tree.l AS l"
    assert bench.columns(sql) == {"s": "BIGINT", "e": "BOOLEAN", "m": "STRING", "l": "STRING"}
    assert "'autos' is not a value of payload.mode" in bench.mistake(
        "SELECT payload.mode = 'autos' AS x"
    )
    assert "'x' is not a value of payload.kind: they are never equal" in bench.mistake(
        "SELECT payload.kind = 'x' AS x"
    )
    assert "did you mean 'extra'?" in bench.mistake("SELECT payload.extr AS x")


BASE = {"type": "object", "properties": {"seq": {"type": "integer"}, "pos": {"type": "object"}}}
CLOSED = {
    "type": "object",
    "properties": {"own": {"type": "number"}},
    "unevaluatedProperties": False,
}


@pytest.mark.parametrize(
    "parts",
    [
        {"$ref": "#/$defs/base"},
        {"allOf": [{"$ref": "#/$defs/base"}]},
        {"allOf": [{"allOf": [{"$ref": "#/$defs/base"}]}]},
        {"if": {"properties": {"seq": {"type": "integer"}}}},
        {"if": True, "then": {"$ref": "#/$defs/base"}},
        {"if": False, "else": {"allOf": [{"properties": {"seq": {}}}]}},
        {"dependentSchemas": {"own": {"$ref": "#/$defs/base"}}},
        {"anyOf": [{"$ref": "#/$defs/base"}, {"properties": {"own": {}}}]},
        {"oneOf": [{"$ref": "#/$defs/base"}, {"type": "object", "required": ["far"]}]},
        {"$ref": "#anchored"},
        {"allOf": [{"$ref": "https://example.com/other"}]},
        {"$dynamicRef": "#anchored"},
        {
            "allOf": [
                {"$id": "https://example.com/inner", "$ref": "#/$defs/in", "$defs": {"in": BASE}}
            ]
        },
        {"allOf": [{"additionalProperties": {"type": "integer"}}]},
        {"anyOf": [{"unevaluatedProperties": True}]},
        {"patternProperties": {"^s": {}}},
        {"additionalProperties": True},
    ],
)
def test_fields_that_parts_of_a_closed_schema_allow_are_accepted(
    bench: Bench, parts: dict[str, Any]
) -> None:
    defs = {
        "base": BASE,
        "anchored": {**BASE, "$anchor": "anchored", "$dynamicAnchor": "anchored"},
        "other": {**BASE, "$id": "https://example.com/other"},
    }
    schema = {**CLOSED, **parts, "$defs": defs}
    assert JsonSchemaSerde(json.dumps(schema)).decode(b'{"seq":5,"own":1}') == {"seq": 5, "own": 1}
    bench.bind("json", schema)
    assert bench.columns("SELECT payload.seq AS s, payload.own AS o")["o"] == "DOUBLE"


@pytest.mark.parametrize(
    "parts",
    [
        {"$ref": "#/$defs/base"},
        {"allOf": [{"$ref": "#/$defs/base"}]},
        {"$ref": "#anchored"},
        {"allOf": [{"$ref": "#dynamic"}]},
    ],
)
def test_a_closed_schema_whose_parts_are_known_has_no_other_fields(
    bench: Bench, parts: dict[str, Any]
) -> None:
    base = {**BASE, "$anchor": "anchored", "$dynamicAnchor": "dynamic"}
    bench.bind("json", {**parts, "unevaluatedProperties": False, "$defs": {"base": base}})
    assert bench.columns("SELECT payload.seq AS s") == {"s": "BIGINT"}
    assert "payload has no field 'other'" in bench.mistake("SELECT payload.other AS o")


def test_properties_without_a_type_have_types_beside_an_object(bench: Bench) -> None:
    untyped = {
        "required": ["temp"],
        "properties": {
            "temp": {"type": "number"},
            "pos": {"properties": {"lat": {"type": "number"}}},
        },
    }
    bench.bind("json", {"allOf": [{"$ref": "#/$defs/base"}, untyped], "$defs": {"base": BASE}})
    sql = "SELECT payload.seq AS s, payload.temp AS t, payload.pos AS p, payload.pos.lat AS l"
    assert bench.columns(sql) == {
        "s": "BIGINT",
        "t": "DOUBLE",
        "p": "STRUCT<lat: DOUBLE>",
        "l": "DOUBLE",
    }


def test_a_json_schema_that_unfolds_without_end_is_unknown_somewhere(bench: Bench) -> None:
    steps: Mapping[str, Any] = {
        f"d{n}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/d{n + 1}"} for side in "ab"},
        }
        for n in range(30)
    }
    bench.bind("json", {"$ref": "#/$defs/d0", "$defs": {**steps, "d30": {"type": "string"}}})
    assert bench.columns("SELECT payload.a.b.a AS x").keys() == {"x"}


def test_avro_and_protobuf_payloads_are_decoded_by_name(bench: Bench) -> None:
    bench.bind("avro", AVRO)
    assert "the payload is written in Avro, not JSON" in bench.mistake("SELECT payload.temp AS t")
    sql = "SELECT schema_decode('s', payload) AS p, p.temp AS t, p.who.id AS id, p.next AS n"
    assert bench.columns(sql) == {
        "p": "STRUCT<temp: DOUBLE, state: STRING, who: STRING, next: STRING>",
        "t": "DOUBLE",
        "id": "STRING",
        "n": "STRING",
    }
    sql = "SELECT schema_decode('s', payload) AS p, p.tmp AS t"
    assert "p.tmp: p has no field 'tmp'; did you mean 'temp'?" in bench.mistake(sql)
    sql = "SELECT schema_decode('s', payload) AS p, p.state = 'on' AS t"
    assert (
        "'on' is not a value of p.state: they are never equal; did you mean 'ON'?"
        in bench.mistake(sql)
    )


def test_protobuf_message_types(bench: Bench) -> None:
    bench.bind("protobuf", PROTO)
    assert "the payload is written in Protobuf" in bench.mistake("SELECT payload.temp AS t")
    sql = "SELECT schema_decode('s', payload, 'Meter') AS p, p.tags AS g, p.counts AS c, p.raw AS r, p.inner AS i"
    assert bench.columns(sql) | {"p": ""} == {
        "p": "",
        "g": "ARRAY<STRUCT<k: STRING>>",
        "c": "MAP<STRING, BIGINT>",
        "r": "BINARY",
        "i": "STRING",
    }


def test_a_transformation_to_json_makes_fields_known(bench: Bench) -> None:
    bench.bind("avro", AVRO)
    bench.transforms.service.create(
        {
            "name": "to-json",
            "topics": ["m/#"],
            "failure_action": "drop",
            "payload_decoder": {"type": "avro", "schema": "s"},
            "payload_encoder": {"type": "json"},
            "operations": [{"key": "payload.site", "value": "topic"}],
        }
    )
    assert bench.columns("SELECT payload.temp AS t, payload.site AS s") == {
        "t": "DOUBLE",
        "s": "STRING",
    }
    assert "did you mean 'temp'?" in bench.mistake("SELECT payload.tmep AS t")


@pytest.mark.parametrize(
    "members",
    [{"mode": "shadow"}, {"enable": False}, {"failure_action": "ignore"}, {"topics": ["m/1"]}],
)
def test_validations_that_let_others_pass_bind_nothing(
    bench: Bench, members: dict[str, Any]
) -> None:
    bench.bind(
        "json",
        {"type": "object", "properties": {"temp": {}}, "additionalProperties": False},
        **members,
    )
    assert bench.columns("SELECT payload.tmep AS t") == {"t": "STRING"}


def test_several_validations_and_alternatives(bench: Bench) -> None:
    bench.bind("json", {"type": "object", "properties": {"temp": {"type": "number"}}})
    other = {
        "type": "object",
        "required": ["seq"],
        "properties": {"seq": {"type": "integer"}, "temp": {}},
    }
    bench.schemas.schemas.create({"name": "o", "type": "json", "source": json.dumps(other)})
    validation = {"name": "w", "topics": ["m/#"], "strategy": "all_pass", "failure_action": "drop"}
    bench.schemas.validations.create({**validation, "checks": [{"type": "json", "schema": "o"}]})
    sql = "SELECT payload.temp AS t, payload.seq AS s"
    assert bench.columns(sql) == {"t": "DOUBLE", "s": "BIGINT"}
    bench.schemas.validations.delete("w")
    checks = [{"type": "json", "schema": "o"}, {"type": "json", "schema": "s"}]
    bench.schemas.validations.replace(
        "v", {**validation, "name": "v", "strategy": "any_pass", "checks": checks}
    )
    assert bench.columns(sql) == {"t": "STRING", "s": "STRING"}
    assert "did you mean 'temp'?" in bench.mistake("SELECT payload.tmep AS t")


def test_a_transformation_in_shadow_mode_changes_no_types(bench: Bench) -> None:
    bench.bind("json", {"type": "object", "properties": {"temp": {"type": "number"}}})
    shared = {"name": "x", "topics": ["m/#"], "failure_action": "drop", "mode": "shadow"}
    bench.transforms.service.create(
        {**shared, "operations": [{"key": "payload.temp", "value": "'warm'"}]}
    )
    assert bench.columns("SELECT payload.temp AS t") == {"t": "DOUBLE"}
    enforced = {
        **shared,
        "mode": "enforce",
        "operations": [{"key": "payload.temp", "value": "'warm'"}],
    }
    bench.transforms.service.replace("x", enforced)
    assert bench.columns("SELECT payload.temp AS t") == {"t": "STRING"}


def test_saved_rules_show_what_a_new_schema_says(bench: Bench) -> None:
    bench.bind(
        "json",
        {
            "type": "object",
            "properties": {"temp": {"type": "number"}},
            "additionalProperties": False,
        },
    )
    bench.rules.create(
        {
            "name": "r",
            "sql": "SELECT payload.temp AS t FROM 'm/+'",
            "actions": [{"type": "console"}],
        }
    )
    celsius = {
        "type": "object",
        "properties": {"celsius": {"type": "integer"}},
        "additionalProperties": False,
    }
    bench.schemas.schemas.replace("s", {"type": "json", "source": json.dumps(celsius)}, force=True)
    shown = bench.rules.get("r")
    assert (shown["state"], shown["warnings"][0]["suggestion"]) == ("mistyped", "it has celsius")
    assert bench.rules.mistyped() == {"r": shown["problem"]}
    bench.schemas.validations.delete("v")
    shown = bench.rules.get("r")
    assert (shown["state"], shown["warnings"]) == ("running", [])


def test_rows_of_another_rule_have_its_types(bench: Bench) -> None:
    bench.rules.create(
        {
            "name": "up",
            "sql": "SELECT 1 AS n, {k: 'x'} AS o FROM 'm/+'",
            "actions": [{"type": "console"}],
        }
    )
    found = bench.rules.check({"sql": "SELECT n, o.k AS k, node FROM '$rules/up'"})
    assert found["spark_schema"] == "n BIGINT, k STRING, node STRING"
    with pytest.raises(Invalid) as caught:
        bench.rules.check({"sql": "SELECT o.kk AS k FROM '$rules/up'"})
    assert "did you mean 'k'?" in str(caught.value)
    (warning,) = bench.rules.check({"sql": "SELECT payload.x AS x FROM '$rules/up'"})["warnings"]
    assert "has no column 'payload'" in warning["message"]


def test_templates_are_held_against_the_rows(bench: Bench) -> None:
    bench.bind(
        "json",
        {
            "type": "object",
            "properties": {"temp": {"type": "number"}},
            "additionalProperties": False,
        },
    )
    action = {
        "type": "republish",
        "topic": "out/${clientId}",
        "payload": "${payload.temp} ${payload.tmep}",
    }
    checked = bench.rules.check({"sql": "SELECT clientid, payload FROM 'm/+'", "actions": [action]})
    assert [(one["pointer"], one["suggestion"]) for one in checked["warnings"]] == [
        ("/actions/0/topic", "did you mean 'clientid'?"),
        ("/actions/0/payload", "did you mean 'temp'?"),
    ]


def test_struct_types_have_their_fields(bench: Bench) -> None:
    bench.bind("protobuf", PROTO)
    found = bench.services.schemas.payload_type("m/1")
    assert found is not None
    assert found.coding == "protobuf"
    assert found.fields["seq"] == FieldType("long", nullable=True)
    assert found.fields["temp"] == FieldType("double", nullable=False)


LOGICAL_AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "us", "type": ["null", {"type": "long", "logicalType": "timestamp-micros"}]},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "at", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "in", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2},
        },
        {
            "name": "sum",
            "type": [
                "null",
                {
                    "type": "fixed",
                    "name": "s",
                    "size": 16,
                    "logicalType": "decimal",
                    "precision": 38,
                    "scale": 9,
                },
            ],
        },
        {"name": "odd", "type": {"type": "bytes", "logicalType": "decimal", "precision": 39}},
    ],
}
LOGICAL_JSON = {
    "type": "object",
    "properties": {
        "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        "day": {"type": "string", "format": "date"},
        "mail": {"type": "string", "format": "email"},
        "by": {"type": "object", "additionalProperties": {"type": "number"}},
        "any": {},
    },
}
LOGICAL_PROTO = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Meter { google.protobuf.Timestamp at = 1; repeated google.protobuf.Timestamp all = 2; }
"""


@pytest.mark.parametrize(
    ("kind", "source", "sql", "columns"),
    [
        ("json", {"type": "object", "properties": {"gps": LOGICAL_JSON}}, "payload.gps AS p, payload AS whole",
         ["struct<at: timestamp, day: date, mail: string, by: map<string, double>, any: json>", "string"]),
        ("json", LOGICAL_JSON, "payload.at AS at, upper(payload.at) AS text, payload.any AS any",
         ["timestamp", "string", "unknown"]),
        ("avro", LOGICAL_AVRO, "schema_decode('s', payload) AS p",
         [("struct<ms: timestamp, us: timestamp(us), day: date, id: string, at: long, in: map<string, array<long>>, "
           "price: decimal(8, 2), sum: decimal(38, 9), odd: binary>")]),
        ("avro", LOGICAL_AVRO, "schema_decode('s', payload) AS p, p.ms AS ms, p.us + 1 AS later, -p.day AS n",
         [..., "timestamp", "long", "long"]),
        ("avro", LOGICAL_AVRO, "schema_decode('s', payload) AS p, p.price AS price, p.price * 2 AS twice",
         [..., "decimal(8, 2)", "double"]),
        ("protobuf", LOGICAL_PROTO, "schema_decode('s', payload, 'Meter') AS p, p.at.seconds AS s",
         ["struct<at: timestamp, all: array<timestamp>>", "long"]),
    ],
)  # fmt: skip
def test_columns_of_tables_are_what_the_schema_means(
    bench: Bench, kind: str, source: Any, sql: str, columns: list[Any]
) -> None:
    bench.bind(kind, source)
    bench.rules.create(
        {"name": "r", "sql": f"SELECT {sql} FROM 'm/+'", "actions": [{"type": "console"}]}
    )
    found = [column["type"] for column in bench.rules.rule_for_spark("r")["columns"]]
    assert [
        one for one, wanted in zip(found, columns, strict=True) if wanted not in (one, ...)
    ] == []
