"""Types of the columns a rule gives, and warnings from the payload's schema."""

from __future__ import annotations

from typing import Any

import pytest

from broker.core.schema import FieldType

METER = FieldType(
    "struct",
    open=False,
    fields={
        "temp": FieldType("double"),
        "seq": FieldType("long"),
        "device": FieldType("string"),
        "tags": FieldType("array", item=FieldType("struct", fields={"k": FieldType("string")}, open=False)),
    },
)


def columns(node: Any, sql: str, *, typed: bool = True) -> list[tuple[str, str]]:
    if typed:
        node.schemas.types["m/+"] = METER
    node.rule(f"{sql} FROM 'm/+'", {"type": "stream", "stream": "hot"})
    return [(name, kind.name) for name, kind in node.service.inferred("r1").columns]


@pytest.mark.parametrize(
    ("sql", "want"),
    [
        ("SELECT payload.temp AS t, payload.seq + 1 AS s", [("t", "double"), ("s", "long")]),
        ("SELECT payload.temp * 2 AS t, payload.seq / 2 AS h", [("t", "double"), ("h", "double")]),
        ("SELECT payload.device + 1 AS d, payload.seq > 1 AS b", [("d", "string"), ("b", "boolean")]),
        ("SELECT clientid, qos, topic(1) AS site", [("clientid", "string"), ("qos", "long"), ("site", "string")]),
        ("SELECT CASE WHEN qos = 1 THEN payload.temp ELSE 0 END AS v", [("v", "double")]),
        ("SELECT CASE WHEN qos = 1 THEN 1 ELSE 'x' END AS v", [("v", "unknown")]),
        ("SELECT payload.temp", [("payload", "struct")]),
        ("SELECT payload.tags[1].k AS k, payload.tags AS l", [("k", "string"), ("l", "array")]),
        ("SELECT payload.temp AS t, t + 1 AS u", [("t", "double"), ("u", "double")]),
        ("SELECT json_decode(payload) AS p, p.seq AS s", [("p", "struct"), ("s", "long")]),
        ("FOREACH payload.tags AS x DO x.k AS k, clientid", [("k", "string"), ("clientid", "string")]),
    ],
)
def test_columns(node: Any, sql: str, want: list[tuple[str, str]]) -> None:
    assert columns(node, sql) == want


def test_without_a_schema_types_come_from_the_sql_alone(node: Any) -> None:
    sql = "SELECT payload.temp AS t, payload.temp * 1.8 + 32 AS f, clientid"
    assert columns(node, sql, typed=False) == [("t", "unknown"), ("f", "double"), ("clientid", "string")]


def test_a_misspelt_field_is_a_warning_with_a_suggestion(node: Any) -> None:
    columns(node, "SELECT payload.tmp AS t, payload.tags[1].x AS x")
    assert node.service.get("r1")["warnings"] == [
        {
            "pointer": "/sql",
            "line": 1,
            "column": 8,
            "message": "payload.tmp: the payload's schema has no field 'tmp'",
            "suggestion": "did you mean 'temp'?",
        },
        {
            "pointer": "/sql",
            "line": 1,
            "column": 26,
            "message": "payload.tags[1].x: the payload's schema has no field 'x'",
            "suggestion": "it has k",
        },
    ]


def test_columns_of_a_stream_are_those_of_all_its_rules(node: Any) -> None:
    to_hot = {"type": "stream", "stream": "hot"}
    node.rule("SELECT 1 AS a, 'x' AS b FROM 'x'", to_hot, name="one")
    node.rule("SELECT 1.5 AS a, 2 AS b, true AS c FROM 'y'", to_hot, name="two")
    node.rule("SELECT 1 AS d FROM 'z'", name="three")
    assert node.service.output_columns_of_stream("hot") == [
        {"name": "a", "type": "double"},
        {"name": "b", "type": "unknown"},
        {"name": "c", "type": "boolean"},
    ]
