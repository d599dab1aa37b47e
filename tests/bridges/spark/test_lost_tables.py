"""Tables that others removed, replaced or rolled back: none is created again without a person's decision."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table

from bridges.spark.columns.template import NameTemplate
from bridges.spark.driver.audit import audit_once
from bridges.spark.driver.batch import Members, TableSpec, TableWriter
from bridges.spark.driver.ledger import Ledger, ledger_of
from bridges.spark.driver.member_places import member_place
from bridges.spark.driver.replay import check_whole, planned_again
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables.contract import Part, Range, TableLost, TableRefused
from bridges.spark.tables.formats import dead_letters_place, open_table
from pyspark_sluice.client import Positions, ShardPosition
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, table_spec, tasks
from tests.bridges.spark.stream_server import StreamServer
from tests.bridges.spark.test_lake_audit import Lake
from tests.bridges.spark.test_object_store import bucket, make, proxy, s3

__all__ = ["bucket", "make", "proxy", "s3"]
TRY = (
    r"Try: put its files back, or sluice lake tables recreate readings, or sluice replay readings\."
)


@pytest.fixture(params=["delta", "iceberg"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> TableSpec:
    return table_spec(tmp_path, request.param)


def write(writer: TableWriter, first: int, payloads: list[Any]) -> None:
    writer.write(tasks(records(first, payloads)))


def numbers(first: int, end: int) -> list[dict[str, Any]]:
    return [{"a": n} for n in range(first, end)]


def expecting(spec: TableSpec, writer: TableWriter) -> TableSpec:
    """The table with what the broker knows of it from the last report."""
    return replace(spec, expected=writer.parts())


def where(first: int, end: int) -> Positions:
    return Positions("hot", "rows", "epoch-1", 1, (ShardPosition(0, first, end),), "", "")


def is_lost(spec: TableSpec, running: TableWriter, first: int, said: str) -> None:
    """A writer that is running and one that starts say the same, and leave everything as it is."""
    expected = expecting(spec, running)
    for work in (
        lambda: write(running, first, numbers(first, first + 1)),
        lambda: open_writer(expected, "job"),
        lambda: check_whole(expected),
    ):
        with pytest.raises(TableLost, match=f"{said}.* {TRY}"):
            work()


def test_dead_letters_that_are_removed_are_not_created_anew(spec: TableSpec) -> None:
    writer = TableWriter(spec, "job")
    write(writer, 0, [{"a": 1}, b"bad"])
    shutil.rmtree(dead_letters_place(spec.place).path)
    is_lost(spec, writer, 2, "the dead-letter table of table 'readings' is gone from")
    with pytest.raises(TableLost):
        write(writer, 2, [b"bad"])
    assert not Path(dead_letters_place(spec.place).path).exists()
    recreated = TableWriter(spec, "job")
    write(recreated, 2, [b"bad", {"a": 3}])
    assert (rows_of(spec, "_offset"), dead_letters_of(spec, "_offset")) == ([(0,), (3,)], [(2,)])


def test_a_member_that_is_removed_is_not_created_anew(spec: TableSpec) -> None:
    spec = replace(spec, members=Members(NameTemplate.parse("t_${site}"), 10))
    writer = open_writer(spec, "job")
    write(writer, 0, [{"site": "x"}, {"site": "y"}])
    shutil.rmtree(member_place(spec.place, "t_x").path)
    expected = expecting(spec, writer)
    said = f"member table 't_x' of table 'readings' is gone from .* {TRY}"
    with pytest.raises(TableLost, match=said):
        write(writer, 2, [{"site": "x"}])
    with pytest.raises(TableLost, match=said):
        open_writer(expected, "job")
    assert not Path(member_place(spec.place, "t_x").path).exists()
    write(open_writer(spec, "job"), 2, [{"site": "x"}])
    assert rows_of(replace(spec, place=member_place(spec.place, "t_x")), "_offset") == [(2,)]


def test_a_table_that_was_replaced_by_another_one_is_not_taken_for_it(spec: TableSpec) -> None:
    writer = TableWriter(spec, "job")
    write(writer, 0, numbers(0, 2))
    shutil.rmtree(spec.place.path)
    other = TableWriter(spec, "other job")
    for n in range(4):
        write(other, n, numbers(n, n + 1))
    is_lost(spec, writer, 4, "table 'readings' is another one: the table at .* has identifier")
    assert TableWriter(spec, "job").table.rows() == 4


def test_a_table_that_was_restored_from_an_older_copy_is_lost_and_then_filled_again(
    spec: TableSpec, tmp_path: Path
) -> None:
    writer = TableWriter(spec, "job")
    write(writer, 0, numbers(0, 2))
    shutil.copytree(spec.place.path, tmp_path / "copy")
    ledger = Ledger(spec.place, spec.name)
    for n in range(2, 6):
        write(writer, n, numbers(n, n + 1))
    ledger.sync(spec, 0.0)
    shutil.rmtree(spec.place.path)
    shutil.copytree(tmp_path / "copy", spec.place.path)
    is_lost(spec, writer, 6, "table 'readings' no longer has version")

    plan = planned_again(expecting(spec, writer), lambda _: where(3, 8), {0: 0}, {0: 6})
    assert (plan.ranges, plan.missing, plan.recreates, plan.fills) == (
        [Range(0, 3, 8)],
        [Range(0, 2, 3)],
        True,
        True,
    )
    again = TableWriter(spec, "job")
    ledger.go_back(again.table)
    again.begin_again({0: 0}, where(3, 8))
    write(again, 3, numbers(3, 8))
    ledger.sync(spec, 0.0)
    assert rows_of(spec, "_offset", "a") == [(n, float(n)) for n in (0, 1, 3, 4, 5, 6, 7)]
    audit = audit_once(spec, where(3, 8))
    assert (audit.problems, audit.shards[0].expired) == ([], 1)
    assert sorted(row["to_offset"] for row in ledger_of(spec, again.table).to_pylist()) == [2, 3, 8]


def test_a_table_that_is_gone_begins_again_where_it_began_without_what_the_stream_lacks(
    spec: TableSpec,
) -> None:
    writer = TableWriter(spec, "job")
    writer.begin({0: 2})
    write(writer, 2, [*numbers(2, 5), b"bad"])
    begins, ends = writer.begins(), writer.ends(writer.table)
    expected = expecting(spec, writer)
    shutil.rmtree(spec.place.path)
    plan = planned_again(expected, lambda _: where(4, 9), begins, ends)
    assert (plan.ranges, plan.missing, plan.records) == ([Range(0, 4, 9)], [Range(0, 2, 4)], 5)
    again = TableWriter(spec, "job")
    again.begin_again(begins, where(4, 9))
    write(again, 4, [*numbers(4, 5), b"bad", *numbers(6, 9)])
    assert (rows_of(spec, "_offset"), dead_letters_of(spec, "_offset")) == (
        [(4,), (6,), (7,), (8,)],
        [(5,)],
    )
    audit = audit_once(spec, where(4, 9))
    assert (audit.problems, audit.shards[0].first, audit.shards[0].expired) == ([], 2, 2)


def test_a_table_that_is_whole_but_for_its_dead_letters_is_replayed(spec: TableSpec) -> None:
    writer = TableWriter(spec, "job")
    write(writer, 0, [{"a": 1}, b"bad", {"a": 3}])
    expected = expecting(spec, writer)
    shutil.rmtree(dead_letters_place(spec.place).path)
    plan = planned_again(expected, lambda _: where(1, 5), {0: 0}, {0: 3})
    assert (plan.ranges, plan.missing, plan.fills) == ([Range(0, 1, 3)], [Range(0, 0, 1)], False)
    assert (plan.recreates, plan.rows_before) == (True, 1)


def went_back(table: Table, snapshot: int) -> None:
    """Let another engine go back to a snapshot, which leaves the properties of the table as they are."""
    table.refresh()
    table.manage_snapshots().rollback_to_snapshot(snapshot).commit()


@pytest.mark.parametrize("is_continued", [False, True], ids=["alone", "and written to"])
def test_an_iceberg_table_that_another_engine_rolled_back_is_filled_from_there(
    tmp_path: Path, is_continued: bool
) -> None:
    spec = table_spec(tmp_path, "iceberg")
    writer = TableWriter(spec, "job")
    write(writer, 0, numbers(0, 3))
    snapshot = writer.table._table.current_snapshot()
    write(writer, 3, numbers(3, 6))
    other = open_table("iceberg", spec.place, spec.binding)
    assert other is not None
    assert snapshot is not None
    went_back(other._table, snapshot.snapshot_id)
    if is_continued:
        other._table.append(other._table.scan(limit=0).to_arrow())
    is_lost(spec, writer, 6, "table 'readings' no longer has version 2")
    again = TableWriter(spec, "job")
    assert again.ends(again.table) == {0: 3}
    again.begin_again({0: 0}, where(0, 6))
    write(again, 3, numbers(3, 7))
    assert rows_of(spec, "_offset") == [(n,) for n in range(7)]
    assert audit_once(spec, where(0, 7)).problems == []
    TableWriter(expecting(spec, again), "job")


def test_a_delta_table_that_another_engine_restored_is_lost(tmp_path: Path) -> None:
    spec = table_spec(tmp_path)
    writer = TableWriter(spec, "job")
    write(writer, 0, numbers(0, 3))
    version = writer.table.version()
    write(writer, 3, numbers(3, 6))
    DeltaTable(spec.place.path).restore(version)
    is_lost(spec, writer, 6, "table 'readings' no longer has version")
    plan = planned_again(expecting(spec, writer), lambda _: where(0, 6), {0: 0}, {0: 6})
    assert (plan.ranges, plan.fills, plan.rows_before) == ([Range(0, 0, 6)], False, 3)


def test_a_delta_log_of_which_files_are_gone_is_not_written_to(tmp_path: Path) -> None:
    spec = table_spec(tmp_path)
    writer = TableWriter(spec, "job")
    for n in range(5):
        write(writer, n, numbers(n, n + 1))
    log = tmp_path / "readings" / "_delta_log"
    kept = (log / f"{2:020}.json").read_bytes()
    (log / f"{2:020}.json").unlink()
    said = "the log of the Delta table cannot be read: .*Try: put the files of _delta_log back, or move"
    with pytest.raises(TableRefused, match=said):
        TableWriter(expecting(spec, writer), "job")
    (log / f"{2:020}.json").write_bytes(kept)
    TableWriter(expecting(spec, writer), "job")
    (log / f"{writer.table.version():020}.json").unlink()
    is_lost(spec, writer, 5, "table 'readings' no longer has version")
    assert not (log / f"{writer.table.version() + 1:020}.json").exists()


def test_a_prefix_of_an_object_store_that_is_removed_is_not_filled_anew(
    make: Callable[..., Lake],
) -> None:
    lake = make()
    lake.publish([{"a": 1}, b"bad"])
    writer = lake.fill()
    place = lake.spec.place
    for part, what in (
        ("__dead_letters", "the dead-letter table of table 'readings'"),
        ("", "table 'readings'"),
    ):
        place.files.delete_dir(place.beside(part).path if part else place.path)
        is_lost(lake.spec, writer, 2, f"{what} is gone from s3://")


def test_what_a_broker_of_before_kept_says_only_that_a_table_was_written(
    server: StreamServer, tmp_path: Path, spec: TableSpec
) -> None:
    writer = TableWriter(spec, "job")
    write(writer, 0, numbers(0, 2))
    known = replace(spec, expected={"": Part(None, 0)})
    assert TableWriter(known, "job").table.rows() == 2
    shutil.rmtree(spec.place.path)
    with pytest.raises(TableLost, match="is gone from"):
        TableWriter(known, "job")


def test_an_iceberg_table_of_which_metadata_is_gone_is_lost(tmp_path: Path) -> None:
    spec = table_spec(tmp_path, "iceberg")
    writer = TableWriter(spec, "job")
    write(writer, 0, numbers(0, 2))
    expected = expecting(spec, writer)
    Path(writer.table.newest_file()).unlink()
    with pytest.raises(
        TableLost,
        match=f"table 'readings' no longer has version 1, which its job has written.*{TRY}",
    ):
        write(writer, 2, numbers(2, 3))
    with pytest.raises(TableLost, match="table 'readings' no longer has version 1"):
        TableWriter(expected, "job")
