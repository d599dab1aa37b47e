"""Data files of Iceberg tables carry the identifiers of columns, inner ones too: some readers find none without."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import index_by_name
from pyiceberg.table import Table

from bridges.spark.columns.column import Column
from bridges.spark.columns.place import Place, path_of
from bridges.spark.columns.template import NameTemplate
from bridges.spark.driver import shadow
from bridges.spark.driver.batch import Members, TableWriter
from bridges.spark.driver.member_places import member_place, open_members
from bridges.spark.driver.members import MembersWriter
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.retype import retype
from bridges.spark.driver.upkeep import remove_rows
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import CommitConflict, Details, Range, TableRefused
from bridges.spark.tables.formats import dead_letters_place, open_table
from bridges.spark.tables.replacing import replace_ranges
from bridges.spark.tasks.keys import Upsert
from bridges.spark.tasks.task import Plan, TaskResult
from tests.bridges.spark.batches import records, rows_of, table_spec, tasks
from tests.bridges.spark.stream_server import StreamServer
from tests.bridges.spark.test_lake_audit import Lake
from tests.bridges.spark.test_upkeep import at

NESTED: list[dict[str, Any]] = [
    {"a": 1, "s": {"x": 1, "t": {"y": "q"}}, "l": [[1], [2]], "m": {"k": {"v": 1}}},
    {"a": 2, "s": {"x": 2, "z": [{"w": 1}]}, "new": {"p": [[1]]}},
]
COLUMNS = (
    Column("m", "m", "map<string, struct<v: long>>"),
    Column("a", "a", "double"),
    Column("s", "s", "struct<x: long, t: struct<y: string>>"),
    Column("l", "l", "array<array<long>>"),
)


@pytest.fixture
def lake(server: StreamServer, tmp_path: Path) -> Lake:
    made = Lake(server, tmp_path, "iceberg")
    made.spec = replace(made.spec, columns=COLUMNS)
    return made


def table_at(place: Place) -> Table:
    return catalog_of(place).load_table(("sluice", place.name))


def paths_in(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Each column of a file and what is inside of it, as Iceberg calls them, with its identifier."""
    for field in fields:
        name, kind = prefix + field.name, field.type
        assert field.metadata, f"{name} has no identifier"
        yield name, int(field.metadata[b"PARQUET:field_id"])
        if pa.types.is_map(kind):
            yield from paths_in([kind.key_field, kind.item_field], f"{name}.")
        elif pa.types.is_list(kind):
            yield from paths_in([kind.value_field], f"{name}.")
        elif pa.types.is_struct(kind):
            yield from paths_in(kind, f"{name}.")


def check_ids(place: Place) -> int:
    """How many data files the newest version has, whose columns all have the identifiers of the table's."""
    table = table_at(place)
    ids = index_by_name(table.schema())
    files = [Path(path_of(task.file.file_path)) for task in table.scan().plan_files()]
    for file in files:
        has = dict(paths_in(pq.read_metadata(file).schema.to_arrow_schema()))
        assert has.keys() <= ids.keys()
        assert has == {path: ids[path] for path in has}
        assert {"_offset", "_rule"} < has.keys()
    return len(files)


def fill(lake: Lake, *payloads: bytes | dict[str, Any]) -> None:
    lake.publish(list(payloads))
    lake.fill()


def test_files_of_every_batch_have_the_identifiers_of_the_table(lake: Lake) -> None:
    fill(lake, NESTED[0], b"bad")
    assert check_ids(lake.spec.place) == 1
    fill(lake, {"a": 3})
    fill(lake, NESTED[1], b"bad")
    fill(lake, {"a": 4, "s": {"x": 1, "t": {"y": "q", "more": {"1": True}}}})
    assert check_ids(lake.spec.place) == 4
    assert check_ids(dead_letters_place(lake.spec.place)) == 2
    table = table_at(lake.spec.place)
    assert "s.t.more" in index_by_name(table.schema())
    assert [row["a"] for row in table.scan().to_arrow().sort_by("_offset").to_pylist()] == [
        1.0,
        3.0,
        2.0,
        4.0,
    ]


def test_tasks_that_find_different_columns_agree_on_identifiers(lake: Lake) -> None:
    lake.publish([{"b": 1}, {"c": "x"}, {"d": {"e": 1}}])
    TableWriter(lake.spec, "job").write(
        tasks(*(records(offset, [payload]) for offset, payload in enumerate(lake._payloads)))
    )
    assert check_ids(lake.spec.place) == 3
    assert rows_of(lake.spec, "b", "c") == [(1, None), (None, "x"), (None, None)]


def test_replays_joined_files_and_removed_rows_keep_identifiers(lake: Lake) -> None:
    for payload in [*NESTED, {"a": 3}, {"a": 4}, {"a": 5}]:
        fill(lake, payload, payload)
    Replayed(lake.spec).run((Range(0, 1, 5),), lake.read)
    assert check_ids(lake.spec.place) == 5, "two of them are written again without some rows"
    table = open_table("iceberg", lake.spec.place, lake.spec.binding)
    assert table is not None
    table.compact()
    assert check_ids(lake.spec.place) == 1
    assert remove_rows(lake.spec, "job", at(3)) == 3
    assert check_ids(lake.spec.place) == 1
    assert [row[0] for row in rows_of(lake.spec, "a")] == [2.0, 3.0, 3.0, 4.0, 4.0, 5.0, 5.0]


def test_a_shadow_takes_the_identifiers_of_its_table(lake: Lake) -> None:
    fill(lake, {"s": {"x": 1}})
    fill(lake, {"b": 1})
    fill(lake, {"s": {"x": 1, "y": 2}}, b"bad")

    def read(ranges: Iterable[Range]) -> Iterator[Callable[[Plan], list[TaskResult]]]:
        yield lake.read(list(ranges))

    shadow.fill(lake.spec, "r1", [Range(0, 1, 4)], read)
    own = table_at(shadow.shadow_of(lake.spec).place).schema()
    assert index_by_name(own) != index_by_name(table_at(lake.spec.place).schema()), (
        "the shadow was created at once"
    )
    shadow.swap(lake.spec, TableWriter(lake.spec, "swap"))
    assert check_ids(lake.spec.place) == 2
    assert check_ids(dead_letters_place(lake.spec.place)) == 1
    assert rows_of(lake.spec, "b") == [(None,), (1,), (None,)]
    assert table_at(lake.spec.place).scan().to_arrow().sort_by("_offset")["s"].to_pylist() == [
        {"x": 1, "t": None, "y": None}, None, {"x": 1, "t": None, "y": 2.0},
    ]  # fmt: skip


def test_a_retyped_column_has_the_identifier_that_it_gets(lake: Lake) -> None:
    fill(lake, {"b": 1, "s": {"x": 1}}, b"bad")
    fill(lake, {"b": 2})
    before = table_at(lake.spec.place).schema().find_field("b").field_id
    retype(TableWriter(lake.spec, "job"), "b", "long")
    assert table_at(lake.spec.place).schema().find_field("b").field_id != before
    assert check_ids(lake.spec.place) == 1
    assert check_ids(dead_letters_place(lake.spec.place)) == 1
    assert rows_of(lake.spec, "b") == [(1,), (2,)]
    fill(lake, {"b": 3})
    assert check_ids(lake.spec.place) == 2


def test_a_column_that_another_engine_renamed_keeps_its_identifier(lake: Lake) -> None:
    fill(lake, {"b": 1, "s": {"x": 1}})
    with table_at(lake.spec.place).update_schema() as update:
        update.rename_column("b", "count")
    fill(lake, {"b": 2, "s": {"x": 2}})
    assert [row["count"] for row in table_at(lake.spec.place).scan().to_arrow().to_pylist()] == [
        2,
        1,
    ]
    assert "count" in dict(paths_in(newest_file(lake.spec.place)))


def test_rows_of_a_renamed_column_are_kept_when_files_are_written_again(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of files without identifiers, and where a column was made again under the name of another one."""
    with monkeypatch.context() as earlier:
        earlier.setattr(Column, "has_ids", False)
        fill(lake, {"b": 1, "s": {"x": 1}}, {"b": 2})
    fill(lake, {"b": 3, "gone": 1}, {"b": 4})
    field = table_at(lake.spec.place).schema().find_field("gone")
    with table_at(lake.spec.place).update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("b", "count")
        update.delete_column("gone")
    with table_at(lake.spec.place).update_schema() as update:
        update.add_column("gone", field.field_type)
    table = open_table("iceberg", lake.spec.place, lake.spec.binding)
    assert table is not None
    assert table.newest(3).column("count").to_pylist() == [4, 3, 2]
    replace_ranges(table, [Range(0, 1, 3)], [], Details("job", ()))
    assert rows_of(lake.spec, "count", "gone") == [(1, None), (4, None)]
    table.refresh()
    table.compact()
    assert check_ids(lake.spec.place) == 1
    assert rows_of(lake.spec, "count", "gone") == [(1, None), (4, None)]
    assert [row["s"] for row in table_at(lake.spec.place).scan().to_arrow().to_pylist()] == [
        {"x": 1, "t": None},
        None,
    ]


def test_a_table_with_a_key_whose_column_was_renamed_is_refused(tmp_path: Path) -> None:
    spec = table_spec(tmp_path, "iceberg", upsert=Upsert(("d",)))
    open_writer(spec, "job").write(tasks(records(0, [{"d": "a", "v": 1}])))
    with table_at(spec.place).update_schema() as update:
        update.rename_column("v", "w")
    late = tasks(records(1, [{"d": "b", "v": 2}]))
    with pytest.raises(TableRefused, match="Try: rename it back"):
        open_writer(spec, "job").write(late)
    with table_at(spec.place).update_schema() as update:
        update.rename_column("w", "v")
    open_writer(spec, "job").write(late)
    assert sorted(rows_of(spec, "d", "v")) == [("a", 1), ("b", 2)]


def newest_file(place: Place) -> pa.Schema:
    file = max(Path(place.path).glob("part-*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    return pq.read_metadata(file).schema.to_arrow_schema()


def test_a_column_that_another_engine_made_again_has_a_new_identifier(lake: Lake) -> None:
    """Also where it does so between the tasks and their commit."""
    fill(lake, {"b": 1})
    field = table_at(lake.spec.place).schema().find_field("b")

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = tasks(records(1, [{"b": 2}]))(plan)
        with table_at(lake.spec.place).update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("b")
        with table_at(lake.spec.place).update_schema() as update:
            update.add_column("b", field.field_type, doc=field.doc)
        return results

    runs = iter([overtaken])
    late = tasks(records(1, [{"b": 2}]))
    TableWriter(lake.spec, "job").write(lambda plan: next(runs, late)(plan))
    [row] = table_at(lake.spec.place).scan(row_filter="_offset = 1").to_arrow().to_pylist()
    assert row["b"] == 2


def test_files_of_a_table_with_a_key_have_identifiers(tmp_path: Path) -> None:
    spec = table_spec(tmp_path, "iceberg", COLUMNS, upsert=Upsert(("d",)))
    for offset, payload in enumerate(
        [{"d": "a", **NESTED[0]}, {"d": "b", **NESTED[1]}, {"d": "a", "a": 3}]
    ):
        open_writer(spec, "job").write(tasks(records(offset, [payload])))
        assert check_ids(spec.place) >= 1
    retype(open_writer(spec, "job"), "a", "long")
    assert check_ids(spec.place) >= 1
    assert sorted(rows_of(spec, "d", "a")) == [("a", 3), ("b", 2)]


def test_files_of_member_tables_have_the_identifiers_of_each(tmp_path: Path) -> None:
    spec = table_spec(
        tmp_path, "iceberg", COLUMNS, members=Members(NameTemplate.parse("t_${site}"), 10)
    )

    def write(offset: int, *payloads: dict[str, object]) -> None:
        MembersWriter(spec, "job").write(tasks(records(offset, list(payloads))))

    write(0, {"site": "a", **NESTED[0]})
    write(1, {"site": "a", **NESTED[1]})
    write(2, {"site": "b", **NESTED[1]}, {"site": "a", "a": 3})
    write(4, {"site": "b", "s": {"new": 1}}, {"site": "c", "fresh": 1})
    places = {
        name: member_place(spec.place, name)
        for name in open_members("iceberg", spec.place, spec.binding)
    }
    assert {name: check_ids(place) for name, place in places.items()} == {
        "t_a": 3,
        "t_b": 2,
        "t_c": 1,
    }
    assert [row["a"] for row in table_at(places["t_a"]).scan().to_arrow().to_pylist()] == [
        3.0,
        2.0,
        1.0,
    ]


def test_files_of_earlier_releases_are_found_by_names(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(Column, "has_ids", False)
        fill(lake, NESTED[0])
    fill(lake, NESTED[1])
    with pytest.raises(AssertionError, match="has no identifier"):
        check_ids(lake.spec.place)
    table = open_table("iceberg", lake.spec.place, lake.spec.binding)
    assert table is not None
    for _ in range(2):
        found = table_at(lake.spec.place).scan().to_arrow().sort_by("_offset")
        assert found["a"].to_pylist() == [1.0, 2.0]
        assert [row["x"] for row in found["s"].to_pylist()] == [1, 2]
        with duckdb.connect() as connection:
            connection.register("t", found)
            assert connection.execute("select sum(a) from t").fetchone() == (3.0,)
        table.compact()
    assert check_ids(lake.spec.place) == 1


def test_a_file_with_other_identifiers_than_the_table_is_not_committed(lake: Lake) -> None:
    fill(lake, {"b": 1})

    def wrong(plan: Plan) -> list[TaskResult]:
        columns = [replace(one, ids=(99,)) if one.key == "b" else one for one in plan.columns]
        return tasks(records(1, [{"b": 2}]))(replace(plan, columns=tuple(columns)))

    with pytest.raises(CommitConflict, match="constant conflicts"):
        TableWriter(lake.spec, "job").write(wrong)
    assert rows_of(lake.spec, "b") == [(1,)]
