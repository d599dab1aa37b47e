"""Rows that another engine deleted without writing their files again: Delta's deletion vectors, Iceberg's deletes."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyiceberg.table import DataScan

from bridges.spark.columns.column import Column
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.retype import retype
from bridges.spark.driver.upkeep import remove_rows
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables.contract import LakeTable, Range, TableRefused
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.keys import Upsert
from tests.bridges.spark.batches import records, rows_of, table_spec, tasks
from tests.bridges.spark.stream_server import StreamServer
from tests.bridges.spark.test_lake_audit import Lake

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
REFUSED = "expected files with all of their rows, got 1 with rows that another engine deleted"


def mask(place: str, rows: Sequence[int]) -> None:
    """Delete rows of the oldest file, by their places, with a deletion vector, as Spark does."""
    table = DeltaTable(place)
    log = Path(place, "_delta_log")
    adds = (
        json.loads(line)
        for path in sorted(log.glob("*.json"))
        for line in path.read_text().splitlines()
    )
    add = next(entry["add"] for entry in adds if "add" in entry)
    features = ["deletionVectors"]
    vector = _vector(rows)
    entries: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": 1, "operation": "DELETE"}},
        {"protocol": {
            "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features,
        }},
        {"remove": {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}},
        {"add": {**add, "deletionVector": vector}},
    ]  # fmt: skip
    text = "\n".join(json.dumps(entry) for entry in entries)
    (log / f"{table.version() + 1:020}.json").write_text(text + "\n")


def _vector(rows: Sequence[int]) -> dict[str, Any]:
    """A roaring bitmap of one container, inline."""
    bitmap = (
        struct.pack("<II", 12346, 1) + struct.pack("<HH", 0, len(rows) - 1) + struct.pack("<I", 16)
    )
    bitmap += b"".join(struct.pack("<H", row) for row in rows)
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    return {
        "storageType": "i",
        "pathOrInlineDv": _z85(data),
        "sizeInBytes": len(data),
        "cardinality": len(rows),
    }


def _z85(data: bytes) -> str:
    data += b"\0" * (-len(data) % 4)
    text = ""
    for at in range(0, len(data), 4):
        number, part = int.from_bytes(data[at : at + 4], "big"), ""
        for _ in range(5):
            number, digit = divmod(number, 85)
            part = _Z85[digit] + part
        text += part
    return text


@pytest.fixture
def masked(server: StreamServer, tmp_path: Path) -> Lake:
    """A table with two files, of which a vector has deleted the records 3 and 4."""
    lake = Lake(server, tmp_path, "delta")
    lake.publish([{"a": n} for n in range(10)])
    lake.fill()
    lake.publish([{"a": n} for n in range(10, 14)])
    lake.fill()
    mask(lake.spec.place.path, [3, 4])
    count = (
        QueryBuilder()
        .register("t", DeltaTable(lake.spec.place.path))
        .execute("SELECT a FROM t")
        .read_all()
    )
    assert count.num_rows == 12  # so other readers have it
    return lake


def opened(spec: TableSpec) -> LakeTable:
    table = open_table(spec.format, spec.place, spec.binding)
    assert table is not None
    return table


def test_an_audit_misses_rows_that_a_deletion_vector_deleted(masked: Lake) -> None:
    report = audit_spec(masked.api_spec, masked.positions())
    assert report.problems == ["shard 0: 2 records are in neither (3, 4)"]
    table = opened(masked.spec)
    assert table.rows() == 12
    assert [row["a"] for row in table.newest(11).to_pylist()] == [
        13,
        12,
        11,
        10,
        9,
        8,
        7,
        6,
        5,
        2,
        1,
    ]
    assert sum(batch.num_rows for batch in table.batches()) == 12


def test_a_replay_of_a_file_with_a_deletion_vector_is_refused(masked: Lake) -> None:
    for start, end in ((0, 10), (5, 6)):
        with pytest.raises(TableRefused, match=REFUSED):
            masked.plan(start, end)
        with pytest.raises(TableRefused, match=REFUSED):
            Replayed(masked.spec).run([Range(0, start, end)], masked.read)
    Replayed(masked.spec).run(masked.plan(10, 14).ranges, masked.read)
    assert [offset for (offset,) in rows_of(masked.spec, "_offset")] == [0, 1, 2, *range(5, 14)]


def test_rows_of_a_deletion_vector_stay_deleted_when_all_rows_are_written_again(
    masked: Lake,
) -> None:
    retype(TableWriter(masked.spec, "job"), "a", "json")
    assert [offset for (offset,) in rows_of(masked.spec, "_offset")] == [0, 1, 2, *range(5, 14)]
    table = opened(masked.spec)
    table.compact()
    assert table.rows() == 12


def test_retention_counts_rows_without_those_of_a_deletion_vector(masked: Lake) -> None:
    assert remove_rows(masked.spec, "job", datetime(2030, 1, 1, tzinfo=UTC)) == 12
    assert rows_of(masked.spec, "_offset") == []


def test_a_batch_of_a_table_with_a_key_is_refused_and_no_file_with_a_vector_is_removed(
    tmp_path: Path,
) -> None:
    spec = replace(
        table_spec(tmp_path, "delta", [Column("d", "d", "string")]), upsert=Upsert(("d",))
    )
    open_writer(spec, "job").write(tasks(records(0, [{"d": "a"}, {"d": "b"}])))
    mask(spec.place.path, [0])
    writer = open_writer(spec, "job")
    with pytest.raises(TableRefused, match=REFUSED):
        writer.write(tasks(records(2, [{"d": "c"}])))
    opened(spec).forget_replaced(0)
    assert rows_of(spec, "d") == [("b",)]


def test_a_batch_of_an_iceberg_table_with_a_key_is_refused_where_it_has_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(
        table_spec(tmp_path, "iceberg", [Column("d", "d", "string")]), upsert=Upsert(("d",))
    )
    open_writer(spec, "job").write(tasks(records(0, [{"d": "a"}, {"d": "b"}])))
    plan = DataScan.plan_files

    def with_deletes(scan: DataScan) -> list[Any]:
        return [SimpleNamespace(file=one.file, delete_files={one.file}) for one in plan(scan)]

    writer = open_writer(spec, "job")
    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    with pytest.raises(TableRefused, match=REFUSED):
        writer.write(tasks(records(2, [{"d": "c"}])))
