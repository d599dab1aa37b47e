"""Types of the columns a rule gives, and warnings from the payload's schema."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from broker.core.errors import Invalid
from broker.core.json_values import problem_to_wire
from broker.core.schema import FieldType
from rules.settings import RulesSettings

METER = FieldType(
    "struct",
    open=False,
    fields={
        "temp": FieldType("double"),
        "seq": FieldType("long"),
        "device": FieldType("string"),
        "tags": FieldType(
            "array", item=FieldType("struct", fields={"k": FieldType("string")}, open=False)
        ),
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
        (
            "SELECT payload.device + 1 AS d, payload.seq > 1 AS b",
            [("d", "string"), ("b", "boolean")],
        ),
        (
            "SELECT clientid, qos, topic(1) AS site",
            [("clientid", "string"), ("qos", "long"), ("site", "string")],
        ),
        ("SELECT CASE WHEN qos = 1 THEN payload.temp ELSE 0 END AS v", [("v", "double")]),
        ("SELECT CASE WHEN qos = 1 THEN 1 ELSE 'x' END AS v", [("v", "unknown")]),
        (
            "SELECT base64_decode(payload) AS b, str(gunzip(payload)) AS s",
            [("b", "binary"), ("s", "string")],
        ),
        ("SELECT payload.temp", [("payload", "struct")]),
        ("SELECT payload.tags[1].k AS k, payload.tags AS l", [("k", "string"), ("l", "array")]),
        ("SELECT payload.temp AS t, t + 1 AS u", [("t", "double"), ("u", "double")]),
        ("SELECT json_decode(payload) AS p, p.seq AS s", [("p", "struct"), ("s", "long")]),
        (
            "FOREACH payload.tags AS x DO x.k AS k, clientid",
            [("k", "string"), ("clientid", "string")],
        ),
    ],
)
def test_columns(node: Any, sql: str, want: list[tuple[str, str]]) -> None:
    assert columns(node, sql) == want


def test_without_a_schema_types_come_from_the_sql_alone(node: Any) -> None:
    sql = "SELECT payload.temp AS t, payload.temp * 1.8 + 32 AS f, clientid"
    assert columns(node, sql, typed=False) == [
        ("t", "unknown"),
        ("f", "double"),
        ("clientid", "string"),
    ]


def test_a_rule_with_a_misspelt_field_is_not_saved(node: Any) -> None:
    with pytest.raises(Invalid) as caught:
        columns(node, "SELECT payload.tmp AS t, payload.tags[1].x AS x")
    assert caught.value.code == "type_check"
    assert [problem_to_wire(problem) for problem in caught.value.problems] == [
        {
            "pointer": "/sql",
            "line": 1,
            "column": 8,
            "message": "payload.tmp: payload has no field 'tmp'",
            "suggestion": "did you mean 'temp'?",
            "fix": {"line": 1, "column": 8, "name": "tmp", "by": "temp"},
        },
        {
            "pointer": "/sql",
            "line": 1,
            "column": 26,
            "message": "payload.tags[1].x: payload.tags[1] has no field 'x'",
            "suggestion": "it has k",
        },
    ]
    assert not node.service.list()


def test_rules_keep_running_when_a_schema_changes_under_them(node: Any) -> None:
    columns(node, "SELECT payload.temp AS t")
    node.schemas.types["m/+"] = replace(METER, fields={"temperature": FieldType("string")})
    shown = node.service.get("r1")
    assert (shown["state"], shown["columns"][0]["type"]) == ("mistyped", "unknown")
    assert [warning["suggestion"] for warning in shown["warnings"]] == [
        "did you mean 'temperature'?"
    ]
    assert shown["problem"].startswith(
        "line 1, column 8: payload.temp: payload has no field 'temp'"
    )
    node.send("m/1", b'{"temp": 21}')
    assert node.count("passed") == 1
    assert node.service.enable("r1", False)["state"] == "disabled"
    with pytest.raises(Invalid):
        node.service.replace("r1", {"sql": "SELECT payload.temp AS t, 1 AS one FROM 'm/+'"})
    del node.schemas.types["m/+"]
    assert node.service.enable("r1", True)["state"] == "running"
    assert node.service.get("r1")["warnings"] == []


@pytest.mark.parametrize(("level", "warnings"), [("warning", 1), ("off", 0)])
def test_the_setting_says_what_becomes_of_mistakes(node: Any, level: str, warnings: int) -> None:
    node = type(node)(settings=RulesSettings.model_validate({"type_check": level}))
    columns(node, "SELECT payload.tmp AS t")
    shown = node.service.get("r1")
    assert len(shown["warnings"]) == warnings
    assert shown["state"] == "running"


def test_columns_of_a_stream_are_those_of_all_its_rules(node: Any) -> None:
    to_hot = {"type": "stream", "stream": "hot"}
    node.rule("SELECT 1 AS a, 'x' AS b FROM 'x'", to_hot, name="one")
    node.rule("SELECT 1.5 AS a, 2 AS b, true AS c FROM 'y'", to_hot, name="two")
    node.rule("SELECT 1 AS d FROM 'z'", name="three")
    assert node.services.contributors.columns_of_stream("hot") == [
        {"name": "a", "type": "double"},
        {"name": "b", "type": "unknown"},
        {"name": "c", "type": "boolean"},
    ]
