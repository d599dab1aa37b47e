"""A rule over a DataFrame of a stream or of Kafka: for users' own jobs, for trying, and for differential tests."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from bridges.spark.columns.column import Column, columns_of_api
from bridges.spark.columns.types import ARROW_TYPES
from bridges.spark.tasks.rule_run import RuleRun, typed
from bridges.spark.tasks.rule_text import RuleText
from rules.sql.spark.transpiler import IRREGULAR, SparkStatement
from rules.sql.spark.values import RECORDS

_SPARK_TYPES: Final = {
    "boolean": "BOOLEAN",
    "long": "BIGINT",
    "double": "DOUBLE",
    "string": "STRING",
    "enum": "STRING",
    "json": "STRING",
    "binary": "BINARY",
    "timestamp": "TIMESTAMP",
    "integer": "INT",
}
# Provenance of a row, by the column of the source.
PLACE: Final = {"_shard": "shard", "_offset": "offset", "_published_at": "ts", "_topic": "topic"}
_PLACE_DDL: Final = "_shard INT, _offset BIGINT, _published_at TIMESTAMP, _topic STRING"


def rule_rows(frame: Any, rule: RuleText, columns: Sequence[Mapping[str, Any]]) -> Any:
    """The rows that a rule gives for a DataFrame, batch or streaming, of ``format("sluice")`` over a stream of messages
    or of ``bridges.spark.kafka_frame.kafka_records``.

    Gives a DataFrame of ``_shard``, ``_offset``, ``_published_at`` and ``_topic`` of the message, the rule's columns,
    and ``_error``: a sentence with the place in the SQL where a message gave no rows because something failed, its
    columns then being null. The compiled rule runs in the Python processes of Spark, which must find the packages of
    this product: they do on one machine; on a cluster send them with ``--py-files`` or ``addArtifacts``.

    Args:
        frame: all columns of the source.
        rule: name and SQL.
        columns: ``name`` and ``type`` of each column, from the member ``columns`` of a rule in the API; one of unknown
            type holds JSON text.

    Raises:
        broker.core.errors.Invalid: the rule cannot run in Spark.
    """
    frame_of_rows = frame_columns(columns)
    needed = dict.fromkeys(("shard", "offset", "ts", *RuleRun(rule).columns))
    return frame.select(*needed).mapInArrow(_runner(rule, frame_of_rows), _ddl(frame_of_rows))


def sql_rows(frame: Any, rule: RuleText, statement: SparkStatement) -> Any:
    """The same DataFrame, computed by a rule's Spark SQL; records it cannot answer for go to the compiled rule."""
    view = f"sluice_records_{uuid.uuid4().hex}"
    frame.createOrReplaceTempView(view)
    session = frame.sparkSession
    rows, irregular = (
        session.sql(text.replace(f"FROM {RECORDS}", f"FROM {view}"))
        for text in (statement.sql, statement.irregular_sql)
    )
    regular = (
        rows.where(f"NOT {IRREGULAR}")
        .drop(IRREGULAR)
        .selectExpr("*", "CAST(NULL AS STRING) AS _error")
    )
    columns = [{"name": name, "type": kind} for name, kind in statement.columns]
    return regular.union(rule_rows(irregular, rule, columns))


def frame_columns(columns: Sequence[Mapping[str, Any]]) -> list[Column]:
    """The columns of the rule's rows."""
    types, _ = columns_of_api([{**column, "type": _known(column["type"])} for column in columns])
    return types


def _known(kind: str) -> str:
    return kind if kind in ARROW_TYPES else "json"


def _ddl(columns: Sequence[Column]) -> str:
    members = "".join(f", `{column.name}` {_SPARK_TYPES[column.type]}" for column in columns)
    return f"{_PLACE_DDL}{members}, _error STRING"


def _runner(
    rule: RuleText, columns: Sequence[Column]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        compiled = RuleRun(rule)
        try:
            for batch in batches:
                yield _frame_batch(compiled, batch, columns)
        finally:
            compiled.close()

    return run


def _frame_batch(rule: RuleRun, batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.RecordBatch:
    """The rows of a batch, then its errors."""
    table = typed(rule.run(batch), columns)
    failed = sorted(table.errors)
    origin = batch.take(pa.array([*table.places, *failed], pa.int64()))
    arrays = {name: origin.column(source) for name, source in PLACE.items()}
    for column in columns:
        kind = ARROW_TYPES[column.type]
        rows = table.converted.arrays.get(column.key, pa.nulls(len(table.places), kind))
        arrays[column.name] = pa.concat_arrays([rows, pa.nulls(len(failed), kind)])
    sentences = [None] * len(table.places) + [table.errors[at] for at in failed]
    arrays["_error"] = pa.array(sentences, pa.string())
    return pa.RecordBatch.from_pydict(arrays)
