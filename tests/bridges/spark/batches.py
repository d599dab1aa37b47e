"""Micro-batches without Spark: the same task code over record batches in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from bridges.spark.columns.column import Column
from bridges.spark.columns.place import Place
from bridges.spark.driver.batch import RunTasks, TableSpec, results_of
from bridges.spark.tables.contract import Binding
from bridges.spark.tables.formats import dead_letters_place, open_table
from bridges.spark.tasks.mapping import written
from bridges.spark.tasks.task import RAW_COLUMNS, Plan, TaskResult
from pyspark_sluice.records import arrow_schema, project
from tests.bridges.spark.stream_server import record_table

BINDING = Binding("hot", "epoch-1")


def table_spec(
    directory: Path, table_format: str = "delta", columns: Sequence[Column] = (), **other: Any
) -> TableSpec:
    """A table of a rows stream."""
    place = Place(str(directory / "readings"))
    return TableSpec("readings", table_format, place, "rows", BINDING, tuple(columns), **other)


def records(
    first: int, payloads: Sequence[bytes | dict[str, Any]], shard: int = 0
) -> pa.RecordBatch:
    """Records of one shard as the source gives them, all columns."""
    data = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in payloads]
    batch = record_table(first, data).combine_chunks().to_batches()[0]
    return project(batch, shard, arrow_schema(RAW_COLUMNS))


def tasks(*parts: pa.RecordBatch) -> RunTasks:
    """Run one task a part."""

    def run(plan: Plan) -> list[TaskResult]:
        return results_of((written(plan, iter([part])) for part in parts), plan.table.url)

    return run


def rows_of(spec: TableSpec, *columns: str) -> list[tuple[Any, ...]]:
    """These columns of a table's rows, in the order of their offsets."""
    return _rows(spec, spec.place, columns)


def dead_letters_of(spec: TableSpec, *columns: str) -> list[tuple[Any, ...]]:
    """The same of its dead letters."""
    return _rows(spec, dead_letters_place(spec.place), columns)


def _rows(spec: TableSpec, place: Place, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    table = open_table(spec.format, place, spec.binding)
    if table is None:
        return []
    found = table.scan(list(dict.fromkeys(["_shard", "_offset", *columns])))
    found = found.sort_by([("_shard", "ascending"), ("_offset", "ascending")])
    return list(zip(*(found.column(name).to_pylist() for name in columns), strict=True))
