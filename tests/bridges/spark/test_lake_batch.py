"""Micro-batches into real Delta and Iceberg tables: exactly once, types, dead letters, evolution."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from bridges.spark.columns.column import Column
from bridges.spark.driver.batch import Gap, TableSpec, TableWriter
from bridges.spark.driver.retype import EarlyTypes, retype
from bridges.spark.tables.contract import Binding, Change, LakeTable, TableRefused
from bridges.spark.tables.formats import dead_letters_place, open_table
from bridges.spark.tasks.task import Plan, TaskResult
from tests.bridges.spark.batches import (
    BINDING,
    dead_letters_of,
    records,
    rows_of,
    table_spec,
    tasks,
)

Make = Callable[..., TableSpec]


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda **given: table_spec(tmp_path, request.param, **given)


def test_rows_become_typed_columns_with_provenance(make: Make) -> None:
    spec = make(
        columns=[Column("temperature", "temperature", "double"), Column("unit", "unit", "string")]
    )
    outcome = TableWriter(spec, "job").write(
        tasks(records(0, [{"temperature": 21, "unit": "C"}, {"unit": None}]))
    )
    assert (outcome.written, outcome.dead) == (2, 0)
    assert TableWriter(spec, "next").table.rows() == 2
    assert rows_of(
        spec, "_stream", "_shard", "_offset", "_topic", "_client_id", "_rule", "temperature", "unit"
    ) == [
        ("hot", 0, 0, "plant/7/meter/0", "meter-0", "hot", 21.0, "C"),
        ("hot", 0, 1, "plant/7/meter/1", "meter-1", "hot", None, None),
    ]


def test_a_batch_that_comes_again_adds_nothing(make: Make) -> None:
    spec = make()
    again = tasks(records(0, [{"a": 1}, b"broken", {"a": 2}]))
    TableWriter(spec, "job").write(again)
    outcome = TableWriter(spec, "job after a crash").write(again)
    assert (outcome.written, outcome.dead) == (0, 0)
    assert rows_of(spec, "_offset", "a") == [(0, 1.0), (2, 2.0)]
    assert [offset for (offset,) in dead_letters_of(spec, "_offset")] == [1]


def test_a_batch_that_overlaps_adds_only_what_is_missing(make: Make) -> None:
    spec = make()
    TableWriter(spec, "job").write(tasks(records(0, [{"a": n} for n in range(5)])))
    outcome = TableWriter(spec, "other checkpoint").write(
        tasks(records(2, [{"a": n} for n in range(2, 9)]))
    )
    assert outcome.written == 4
    assert rows_of(spec, "_offset") == [(n,) for n in range(9)]


def test_a_gap_is_refused(make: Make) -> None:
    spec = make()
    TableWriter(spec, "job").write(tasks(records(0, [{"a": 1}])))
    with pytest.raises(Gap, match="ends at offset 1 of shard 0 and the batch starts at 3"):
        TableWriter(spec, "job").write(tasks(records(3, [{"a": 1}])))


def test_of_two_drivers_with_one_batch_one_commits(make: Make) -> None:
    spec = make(columns=[Column("a", "a", "double")])
    first, second = TableWriter(spec, "first"), TableWriter(spec, "second")
    batch = tasks(records(0, [{"a": n} for n in range(10)]))

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = batch(plan)
        first.write(batch)
        return results

    outcome = second.write(overtaken)
    assert outcome.written == 0
    assert rows_of(spec, "_offset") == [(n,) for n in range(10)]


def test_a_driver_that_died_between_dead_letters_and_rows_repeats_neither(make: Make) -> None:
    spec = make()
    batch = tasks(records(0, [{"a": 1}, b"[]", {"a": 3}]))
    dying = TableWriter(spec, "dies")

    class Died(BaseException):
        pass

    commit = dying.table.commit

    def die(change: Change) -> int:
        if change.details is None:  # of columns
            return commit(change)
        raise Died

    dying.table.commit = die  # type: ignore[method-assign]  # the moment of death
    with pytest.raises(Died):
        dying.write(batch)
    assert [offset for (offset,) in dead_letters_of(spec, "_offset")] == [1]
    TableWriter(spec, "next").write(batch)
    assert rows_of(spec, "_offset") == [(0,), (2,)]
    assert [offset for (offset,) in dead_letters_of(spec, "_offset")] == [1]


def test_new_columns_are_added_when_a_value_is_seen(make: Make) -> None:
    spec = make(pending=("flag",))
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [{"a": 21, "flag": None}])))
    writer.write(
        tasks(records(1, [{"a": 21.5, "flag": True, "list": [1, {"x": 2}], "text": "hi"}]))
    )
    assert rows_of(spec, "a", "flag", "list", "text") == [
        (21.0, None, None, None),
        (21.5, True, '[1,{"x":2}]', "hi"),
    ]


def test_tasks_that_type_a_new_column_differently_are_settled_by_the_first_value(
    make: Make,
) -> None:
    spec = make()
    parts = (records(0, [{"a": 1}, {"a": 2}]), records(2, [{"a": "text"}, {"a": "more"}]))
    outcome = TableWriter(spec, "job").write(tasks(*parts))
    assert (outcome.written, outcome.dead) == (2, 2)
    assert rows_of(spec, "_offset", "a") == [(0, 1.0), (1, 2.0)]


def test_what_does_not_fit_is_a_dead_letter_with_a_sentence(make: Make) -> None:
    spec = make(
        columns=[
            Column("t", "t", "double"),
            Column("n", "n", "long"),
            Column("ok", "ok", "boolean"),
        ]
    )
    bad: list[bytes | dict[str, Any]]
    bad = [
        {"t": "21"},
        {"t": True},
        {"t": 2**60},
        {"n": 1.5},
        {"n": 2**70},
        {"ok": 1},
        b"{",
        b"[1]",
    ]
    outcome = TableWriter(spec, "job").write(
        tasks(records(0, [{"t": 1, "n": 2.0, "ok": True}, *bad]))
    )
    assert (outcome.written, outcome.dead) == (1, len(bad))
    letters = dead_letters_of(spec, "_error", "payload")
    assert letters[0] == ("column 't' takes a number, the row has the text \"21\"", b'{"t": "21"}')
    assert letters[1][0] == "column 't' takes a number, the row has true"
    assert (
        letters[2][0]
        == f"column 't' takes a number, exact only up to {2**53}, the row has the number {2**60}"
    )
    assert letters[3][0] == "column 'n' takes a whole number, the row has the number 1.5"
    assert letters[6][0].startswith("the row is not JSON: ")
    assert letters[7][0] == "the row is an array [1], not an object with a member a column"


def test_two_shards_keep_their_own_offsets(make: Make) -> None:
    spec = make(shards=(0, 1))
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [{"a": 1}, {"a": 2}]), records(5, [{"a": 3}], shard=1)))
    outcome = writer.write(tasks(records(2, [{"a": 4}]), records(5, [{"a": 3}, {"a": 5}], shard=1)))
    assert [(one.shard, one.start, one.end) for one in outcome.ranges] == [(0, 2, 3), (1, 6, 7)]
    assert rows_of(spec, "_shard", "_offset", "a") == [
        (0, 0, 1.0), (0, 1, 2.0), (0, 2, 4.0), (1, 5, 3.0), (1, 6, 5.0),
    ]  # fmt: skip


def test_a_batch_of_dead_letters_alone_moves_the_end(make: Make) -> None:
    spec = make()
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [b"no", b"no"])))
    assert writer.table.next(0) == 2
    writer.write(tasks(records(2, [{"a": 1}])))
    assert [(one.start, one.end) for commit in writer.table.commits() for one in commit.details.ranges] == [
        (0, 2), (2, 3),
    ]  # fmt: skip


def test_commits_have_their_versions_while_others_commit(make: Make) -> None:
    spec = make()
    for offset in range(3):
        TableWriter(spec, "job").write(tasks(records(offset, [{"a": offset}])))
    seen = open_table(spec.format, spec.place, BINDING)
    assert seen is not None
    before = [(one.version, one.details.ranges[0].start) for one in seen.commits()]
    TableWriter(spec, "job").write(tasks(records(3, [{"a": 3}])))
    assert [(one.version, one.details.ranges[0].start) for one in seen.commits()] == before
    now = open_table(spec.format, spec.place, BINDING)
    assert now is not None
    assert [(one.version, one.details.ranges[0].start) for one in now.commits()][:-1] == before


def test_keys_that_make_no_column_name_get_one(make: Make) -> None:
    spec = make()
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [{"a b": 1, "Temp": 2, "temp": 3, "_offset": 4, "": 5}])))
    writer.write(tasks(records(1, [{"a b": 1.5, "temp": 3.5}])))
    by_key = {column.key: column.name for column in writer.table.columns()}
    assert by_key["a b"] == "a_b"
    assert by_key["_offset"].startswith("_offset_")
    assert len({name.lower() for name in by_key.values()}) == 5
    assert rows_of(spec, "a_b", by_key["temp"]) == [(1.0, 3.0), (1.5, 3.5)]


def test_a_table_that_is_removed_meanwhile_is_not_made_anew(make: Make) -> None:
    spec = make()
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [{"a": 1}])))
    shutil.rmtree(spec.place.path)
    with pytest.raises(
        TableRefused,
        match=r"table 'readings' is gone from .*Try: put its files back, or sluice lake tab",
    ):
        writer.write(tasks(records(1, [{"a": 2}])))
    assert not Path(spec.place.path).exists()


def test_a_table_of_another_stream_is_refused(make: Make) -> None:
    spec = make()
    TableWriter(spec, "job").write(tasks(records(0, [{"a": 1}])))
    with pytest.raises(TableRefused, match="holds rows of stream 'hot'"):
        open_table(spec.format, spec.place, Binding("cold", "epoch-1"))
    with pytest.raises(TableRefused, match="deleted and created again"):
        open_table(spec.format, spec.place, Binding("hot", "epoch-2"))


def test_a_path_that_cannot_be_written_is_one_sentence(make: Make, tmp_path: Path) -> None:
    (tmp_path / "readings").write_text("a file is in the way")
    with pytest.raises(
        TableRefused, match=r"table path .*readings cannot be written: .*; choose another path"
    ):
        TableWriter(make(), "job")


def test_delta_tables_are_read_by_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    spec = table_spec(tmp_path)
    TableWriter(spec, "job").write(tasks(records(0, [{"a": n} for n in range(100)])))
    readings = DeltaTable(spec.place.path).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("readings", readings)
        assert connection.execute("select count(*), sum(a) from readings").fetchall() == [
            (100, 4950.0)
        ]
    assert open_table("delta", dead_letters_place(spec.place), spec.binding) is None


@pytest.mark.parametrize("harm", ["missing", "cut", "replaced"])
@pytest.mark.parametrize("place", ["rows", "dead letters"])
def test_a_batch_whose_files_are_not_as_they_were_written_commits_nothing(
    make: Make, harm: str, place: str
) -> None:
    spec = make()
    run = tasks(records(0, [{"a": 1}, b"bad", {"a": 2}]))
    TableWriter(spec, "job").write(run)
    version = TableWriter(spec, "job").table.version()

    def harmed(plan: Plan) -> list[TaskResult]:
        [result] = tasks(records(3, [{"a": 3}, b"bad"]))(plan)
        result.host = "host-b"
        base, [file] = (
            (plan.table, result.files) if place == "rows" else (plan.dead, result.dead_files)
        )
        path = Path(base.path_of(file.path))
        if harm == "missing":
            path.unlink()
        elif harm == "cut":
            path.write_bytes(path.read_bytes()[: file.size // 2])
        else:
            file.rows += 1
        return [result]

    writer = TableWriter(spec, "job")
    with pytest.raises(TableRefused, match="worker 'host-b'"):
        writer.write(harmed)
    assert (writer.table.version(), writer.table.next(0)) == (version, 3)
    assert len(dead_letters_of(spec, "_offset")) == 1


def test_most_values_of_a_sample_say_what_type_a_column_gets(make: Make) -> None:
    spec = make()
    outcome = TableWriter(spec, "job").write(
        tasks(records(0, [{"a": "bad"}, *({"a": n} for n in range(20))]))
    )
    assert (outcome.written, outcome.dead) == (20, 1)
    assert rows_of(spec, "a") == [(float(n),) for n in range(20)]
    assert dead_letters_of(spec, "_offset", "_error") == [
        (0, "column 'a' takes a number, the row has the text \"bad\"")
    ]


def test_a_young_column_is_retyped_when_most_values_have_another_type(make: Make) -> None:
    spec = make()
    writer = TableWriter(spec, "job")
    types = EarlyTypes(writer)
    assert not types.follow(writer.write(tasks(records(0, [{"a": "bad", "b": True}]))))
    assert types.follow(
        writer.write(tasks(records(1, [{"a": n, "b": True, "c": [n]} for n in range(2000)])))
    )
    writer.write(tasks(records(2001, [{"a": 5}, {"a": "bad again"}])))
    assert rows_of(spec, "_offset", "a", "b", "c") == [
        *((1 + n, float(n), True, f"[{n}]") for n in range(2000)),
        (2001, 5.0, None, None),
    ]
    assert [offset for (offset,) in dead_letters_of(spec, "_offset")] == [0, 2002]
    assert dead_letters_of(spec, "payload")[0] == (b'{"a":"bad","b":true}',)


def test_a_table_of_some_size_keeps_its_types_until_it_is_retyped(make: Make) -> None:
    spec = make()
    writer = TableWriter(spec, "job")
    first = [
        {
            "a": "text",
            "day": "2026-01-01T00:00:00.5Z",
            "n": 7,
            "list": [1, {"x": None}],
            "null": None,
        }
    ]
    types = EarlyTypes(writer)
    assert not types.follow(writer.write(tasks(records(0, first * 1500))))
    outcome = writer.write(tasks(records(1500, [{"a": n} for n in range(3000)] + [b"no JSON"])))
    assert (outcome.written, outcome.dead, types.follow(outcome)) == (0, 3001, False)
    report = retype(writer, "a", "double")
    assert (report.rows_before, report.dead_letters_before) == (1500, 3001)
    assert (report.rows_after, report.dead_letters_after) == (3000, 1501)
    assert rows_of(spec, "_offset", "a") == [(1500 + n, float(n)) for n in range(3000)]
    report = retype(writer, "a", "json")
    assert (report.rows_after, report.dead_letters_after) == (4500, 1)
    assert rows_of(spec, "a", "n")[0] == ('"text"', 7.0)
    retype(writer, "day", "timestamp")
    report = retype(writer, "n", "long")
    assert (report.rows_after, report.dead_letters_after) == (4500, 1)
    assert rows_of(spec, "day", "n", "list")[0] == (
        datetime(2026, 1, 1, 0, 0, 0, 500_000, UTC),
        7,
        '[1,{"x":null}]',
    )
    again = TableWriter(spec, "job after a restart")
    again.write(tasks(records(4501, [{"a": [1], "day": "2026-01-02T00:00:00Z", "n": 1}])))
    assert rows_of(spec, "_offset", "_client_id", "a", "n")[-1] == (4501, "meter-0", "[1]", 1)
    assert (again.table.next(0), again.table.first(0)) == (4502, 0)
    assert {column.name: column.type for column in again.table.schemas(1)[0].columns}[
        "day"
    ] == "timestamp"


@pytest.mark.parametrize("commit", [1, 2, 3])
def test_a_retype_that_dies_between_two_commits_loses_nothing_and_is_finished_by_the_next(
    make: Make, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    spec = make()
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [{"a": "text"}] * 1500)))
    writer.write(tasks(records(1500, [{"a": n} for n in range(5)])))

    class Died(BaseException):
        pass

    left = iter(range(1, commit))
    cls = type(writer.table)
    committed = cls.commit

    def until_death(table: LakeTable, change: Change) -> int:
        if change.details is not None and next(left, None) is None:
            raise Died
        return committed(table, change)

    with monkeypatch.context() as patched:
        patched.setattr(cls, "commit", until_death)
        with pytest.raises(Died):
            retype(writer, "a", "double")
    places = {
        offset for (offset,) in (*rows_of(spec, "_offset"), *dead_letters_of(spec, "_offset"))
    }
    assert places == set(range(1505))
    retype(TableWriter(spec, "next"), "a", "double")
    assert rows_of(spec, "_offset") == [(1500 + n,) for n in range(5)]
    assert dead_letters_of(spec, "_offset") == [(n,) for n in range(1500)]


def test_a_batch_that_was_converted_with_the_old_types_is_converted_again(make: Make) -> None:
    spec = make()
    writer, other = TableWriter(spec, "job"), TableWriter(spec, "other")
    writer.write(tasks(records(0, [{"a": "text"}])))
    batch = tasks(records(1, [{"a": "more"}, {"a": 1}]))

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = batch(plan)
        if other.table.columns()[0].type != "double":
            retype(other, "a", "double")
        return results

    other.table.refresh()
    writer.write(overtaken)
    assert rows_of(spec, "_offset", "a") == [(2, 1.0)]
    assert dead_letters_of(spec, "_offset") == [(0,), (1,)]


def test_a_retype_between_the_two_commits_of_a_batch_loses_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make()
    writer = TableWriter(spec, "job")
    writer.write(tasks(records(0, [{"a": "text"}] * 1500)))
    batch = tasks(records(1500, [{"a": "more"}, {"a": 1}, b"no JSON"]))

    class Died(BaseException):
        pass

    dying = TableWriter(spec, "dies")
    commit = dying.table.commit

    def die(change: Change) -> int:
        if change.details is None:  # of columns
            return commit(change)
        raise Died

    dying.table.commit = die  # type: ignore[method-assign]  # the moment of death
    with pytest.raises(Died):
        dying.write(batch)
    assert dead_letters_of(spec, "_offset") == [(1501,), (1502,)]
    retype(TableWriter(spec, "retypes"), "a", "double")
    TableWriter(spec, "next").write(batch)
    assert rows_of(spec, "_offset") == [(1501,)]
    assert dead_letters_of(spec, "_offset") == [*((n,) for n in range(1501)), (1502,)]
