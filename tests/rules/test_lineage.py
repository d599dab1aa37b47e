"""What columns are made of, and the schema of rows for Arrow and Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
import sqlglot

from broker.core.schema import FieldType
from rules.functions.library import standard
from rules.sql.syntax.parser import parse
from rules.sql.type_checker.arrow_schema import arrow_schema, spark_schema
from rules.sql.type_checker.inference import Inferred, infer
from rules.sql.type_checker.inputs import message_input

FUNCTIONS = standard()
_LONG, _DOUBLE, _STRING = (FieldType(name, nullable=False) for name in ("long", "double", "string"))
_SENSOR = FieldType("struct", nullable=False, open=False, fields={"id": _LONG, "t": _DOUBLE})
METER = FieldType(
    "struct",
    nullable=False,
    open=False,
    fields={
        "temp": _DOUBLE,
        "hum": _DOUBLE,
        "o": FieldType("struct", nullable=False, open=False, fields={"x": _LONG, "y b": _STRING}),
        "sensors": FieldType("array", nullable=False, item=_SENSOR),
        "by_name": FieldType("map", nullable=False, item=_LONG),
        "loose": FieldType("struct"),
        "raw": FieldType("binary"),
        "at": FieldType("timestamp"),
    },
)


def traced(sql: str) -> Inferred:
    """What is inferred of a statement on meters."""
    return infer(
        parse(f"{sql} FROM 'm/#'" if " FROM " not in sql else sql),
        FUNCTIONS,
        [message_input("m/#", METER)],
    )


def origins(sql: str) -> dict[str, list[str]]:
    """Column names with what they are made of."""
    return {
        column["name"]: [
            ".".join(filter(None, (one["column"], one["path"]))) for one in column["from"]
        ]
        for column in traced(sql).lineage.as_dict()["columns"]
    }


@pytest.mark.parametrize(
    ("sql", "want"),
    [
        ("SELECT payload.temp AS t, clientid", {"t": ["payload.temp"], "clientid": ["clientid"]}),
        ("SELECT payload.temp + payload.hum * 2 AS s, 1 AS one", {"s": ["payload.hum", "payload.temp"], "one": []}),
        ("SELECT payload.temp AS t, t + qos AS u", {"t": ["payload.temp"], "u": ["payload.temp", "qos"]}),
        ("SELECT payload.o AS o, o.x AS x", {"o": ["payload.o"], "x": ["payload.o.x"]}),
        ("SELECT payload AS p, p.temp AS t", {"p": ["payload"], "t": ["payload.temp"]}),
        ("SELECT json_decode(payload) AS p, p.temp AS t", {"p": ["payload"], "t": ["payload.temp"]}),
        ("SELECT payload('o.x') AS x, topic(1) AS site", {"x": ["payload.o.x"], "site": ["topic"]}),
        ("SELECT payload.sensors[1].t AS t", {"t": ["payload.sensors[1].t"]}),
        ("SELECT payload.temp, payload.o.x", {"payload": ["payload.o.x", "payload.temp"]}),
        ("SELECT payload.temp AS n.a, payload.hum AS n.b, n.a AS a", {"n": ["payload.hum", "payload.temp"],
                                                                      "a": ["payload.temp"]}),
        ("SELECT {a: payload.temp, b: qos} AS m, m.b AS b", {"m": ["payload.temp", "qos"], "b": ["qos"]}),
        ("SELECT CASE WHEN qos = 1 THEN payload.temp ELSE payload.hum END AS v",
         {"v": ["payload.hum", "payload.temp", "qos"]}),
        ("SELECT coalesce(username, clientid) AS who", {"who": ["clientid", "username"]}),
        ("FOREACH payload.sensors AS s DO s.id AS id, s, topic",
         {"id": ["payload.sensors[].id"], "s": ["payload.sensors[]"], "topic": ["topic"]}),
        ("FOREACH split(topic, '/') AS level DO level", {"level": ["topic"]}),
        ("SELECT null() AS clientid, clientid AS c", {"clientid": [], "c": ["clientid"]}),
    ],
)  # fmt: skip
def test_origins(sql: str, want: dict[str, list[str]]) -> None:
    assert origins(sql) == want


def test_conditions_are_listed_apart() -> None:
    sql = (
        "FOREACH payload.sensors AS s DO s.t AS t INCASE s.id > 1 FROM 'm/#' "
        "WHERE payload.temp > 20 AND (clientid = 'a' OR qos = 1)"
    )
    found = traced(sql).lineage.as_dict()
    assert found["columns"] == [
        {
            "name": "t",
            "type": "double",
            "spark_type": "DOUBLE",
            "expression": "s.t",
            "from": [{"column": "payload", "path": "sensors[].t", "type": "double"}],
        }
    ]
    assert [(one["clause"], one["expression"]) for one in found["conditions"]] == [
        ("WHERE", "payload.temp > 20"),
        ("WHERE", "clientid = 'a' OR qos = 1"),
        ("INCASE", "s.id > 1"),
    ]
    assert found["conditions"][1]["from"] == [
        {"column": "clientid", "path": None, "type": "string"},
        {"column": "qos", "path": None, "type": "long"},
    ]


def test_star_is_every_column_of_the_event() -> None:
    found = origins("SELECT *, payload.temp AS topic")
    assert found["clientid"] == ["clientid"]
    assert found["topic"] == ["payload.temp"]
    assert origins("SELECT payload.temp AS username, *")["username"] == ["payload.temp", "username"]


SHAPES: list[tuple[str, str, pa.DataType]] = [
    ("payload.temp > 1", "BOOLEAN", pa.bool_()),
    ("payload.o.x", "BIGINT", pa.int64()),
    ("payload.temp", "DOUBLE", pa.float64()),
    ("topic", "STRING", pa.string()),
    ("payload.raw", "BINARY", pa.binary()),
    ("payload.at", "TIMESTAMP", pa.timestamp("us", tz="UTC")),
    ("payload.loose.x", "STRING", pa.string()),
    ("payload.loose", "STRING", pa.string()),
    ("payload.by_name", "MAP<STRING, BIGINT>", pa.map_(pa.string(), pa.int64())),
    (
        "payload.o",
        "STRUCT<x: BIGINT, `y b`: STRING>",
        pa.struct([("x", pa.int64()), ("y b", pa.string())]),
    ),
    (
        "payload.sensors",
        "ARRAY<STRUCT<id: BIGINT, t: DOUBLE>>",
        pa.list_(pa.struct([("id", pa.int64()), ("t", pa.float64())])),
    ),
    ("[payload.o.x, payload.temp]", "ARRAY<DOUBLE>", pa.list_(pa.float64())),
    ("{a: [1]}", "STRUCT<a: ARRAY<BIGINT>>", pa.struct([("a", pa.list_(pa.int64()))])),
]


@pytest.mark.parametrize(("expression", "spark", "arrow"), SHAPES)
def test_types_for_arrow_and_spark(expression: str, spark: str, arrow: pa.DataType) -> None:
    columns = traced(f"SELECT {expression} AS x").columns
    assert spark_schema(columns) == f"x {spark}"
    assert arrow_schema(columns) == pa.schema([("x", arrow)])


def test_spark_can_read_the_schema() -> None:
    selected = ", ".join(f'{shape[0]} AS "c {position}"' for position, shape in enumerate(SHAPES))
    ddl = spark_schema(traced(f"SELECT {selected}, 1 AS select_, 'x' AS größe").columns)
    table: Any = sqlglot.parse_one(f"CREATE TABLE t ({ddl})", dialect="spark")
    assert [column.name for column in table.this.expressions][-2:] == ["select_", "größe"]
