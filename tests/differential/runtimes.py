"""One rule on the same messages in each runtime: as the broker runs it, compiled in Spark, as Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from bridges.spark.rule_frame import rule_rows
from bridges.spark.tasks.rule_text import RuleText
from broker.core.client import Client
from broker.core.message import Message
from broker.core.schema import FieldType
from pyspark_sluice.records import arrow_schema
from rules.functions.library import standard
from rules.sql.compiler.compile import compile_for_messages
from rules.sql.compiler.program import RuleContext
from rules.sql.sources import sources
from rules.sql.spark.transpiler import SparkStatement, to_spark
from rules.sql.spark.values import RECORDS
from rules.sql.syntax.parser import parse
from rules.sql.values import UNDEFINED

FAILED: Final = "failed"
IRREGULAR: Final = "irregular"
NO_ROW: Final = "no row"
Outcome = tuple[Any, ...] | str
"""The values of a row in order, or what there was instead of one."""

_COLUMNS = (
    "shard",
    "offset",
    "ts",
    "topic",
    "payload",
    "qos",
    "retain",
    "client_id",
    "username",
    "properties",
    "rule",
)
_US = 1_767_225_600_123_456


@dataclass(frozen=True, slots=True)
class Record:
    """A message as a stream keeps it."""

    payload: bytes
    topic: str = "plant/1/temp"
    client_id: str = "meter-1"
    username: str | None = None
    qos: int = 1
    retain: bool = False


def frame_of(spark: Any, records: Sequence[Record]) -> Any:
    """A DataFrame of the source; the offset is the place in the list."""
    schema = arrow_schema(_COLUMNS)
    given: dict[str, list[Any]] = {
        "shard": [0] * len(records),
        "offset": list(range(len(records))),
        "ts": [_US + 1000 * at for at in range(len(records))],
        **{
            name: [getattr(one, name) for one in records]
            for name in ("topic", "payload", "client_id", "username")
        },
        **{name: [getattr(one, name) for one in records] for name in ("qos", "retain")},
    }
    arrays = [
        pa.array(given.get(field.name, [None] * len(records)), field.type) for field in schema
    ]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema)).selectExpr(
        *(f"CAST(qos AS TINYINT) AS {name}" if name == "qos" else name for name in _COLUMNS)
    )


def live(sql: str, records: Sequence[Record]) -> list[Outcome]:
    """What the broker's function gives for each message."""
    moment = [0]
    context = RuleContext("node-1", {"rule_id": "r"}, lambda: moment[0])
    tree = parse(sql)
    program, read = compile_for_messages(tree, standard(), context), sources(tree)
    outcomes: list[Outcome] = []
    for at, one in enumerate(records):
        received_us = _US + 1000 * at
        moment[0] = received_us // 1000
        message = Message(
            one.topic,
            one.payload,
            one.qos,
            one.retain,
            Client(one.client_id, one.username),
            received_us * 1000,
        )
        try:
            row = program.run(message) if read.matches_topic(one.topic) else None
        except Exception:  # noqa: BLE001 (that it fails is what the others must agree with)
            outcomes.append(FAILED)
            continue
        assert not isinstance(row, list)
        outcomes.append(NO_ROW if row is None else tuple(map(_plain, row.values())))
    return outcomes


def statement_of(sql: str, payload: FieldType | None) -> SparkStatement:
    """The rule's Spark SQL."""
    tree = parse(sql)
    return to_spark(tree, sources(tree), standard(), payload, rule="r", node="node-1")


def in_spark_sql(
    spark: Any, statements: Sequence[SparkStatement], view: str, count: int
) -> list[list[Outcome]]:
    """What each statement gives for the records of a view, in one job; each of its columns as JSON of one kind."""
    queries = [
        f"SELECT {number} AS rule, _offset, _irregular, to_json(named_struct({_members(one)}), "
        f"map('ignoreNullFields', 'false')) AS row FROM ({one.sql.replace(f'FROM {RECORDS}', f'FROM {view}')})"
        for number, one in enumerate(statements)
    ]
    outcomes: list[list[Outcome]] = [[NO_ROW] * count for _ in statements]
    for rule, offset, is_irregular, row in spark.sql(" UNION ALL ".join(queries)).collect():
        outcomes[rule][offset] = IRREGULAR if is_irregular else _values(row)
    return outcomes


def compiled_in_spark(
    frame: Any, sql: str, columns: Sequence[Mapping[str, str]], count: int
) -> list[Outcome]:
    """What ``mapInArrow`` gives."""
    outcomes: list[Outcome] = [NO_ROW] * count
    for row in rule_rows(frame, RuleText("r", sql, "node-1"), columns).collect():
        outcomes[row._offset] = FAILED if row._error else tuple(row[4:-1])
    return outcomes


def _members(statement: SparkStatement) -> str:
    return ", ".join(f"'{at}', `{name}`" for at, (name, _) in enumerate(statement.columns))


def _values(row: str) -> tuple[Any, ...]:
    import json

    return tuple(json.loads(row).values())


def _plain(value: Any) -> Any:
    return None if value is UNDEFINED else value
