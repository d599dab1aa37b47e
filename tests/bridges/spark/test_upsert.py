"""Tables with a key: one row a key, that of the last record, whatever is killed, comes again or comes late."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridges.spark.columns.column import Column
from bridges.spark.driver.audit import AuditReport, audit_once
from bridges.spark.driver.batch import Outcome, TableSpec
from bridges.spark.driver.replay import Replayed, planned
from bridges.spark.driver.retype import check_retype, retype
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import Change, LakeTable, Range, TableRefused
from bridges.spark.tasks import merge
from bridges.spark.tasks.keys import Upsert, hashes_of, keys_of
from bridges.spark.tasks.leaves import cover, file_name, is_in, leaves_of
from bridges.spark.tasks.rule_text import RuleText
from bridges.spark.tasks.task import RAW_COLUMNS, Plan, TaskResult
from broker.cli.lake import audit_text
from broker.core.errors import Invalid
from pyspark_sluice.client import Positions, ShardPosition
from pyspark_sluice.records import arrow_schema, project
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, table_spec, tasks
from tests.bridges.spark.stream_server import START_US, record_table
from tests.support.examples import examples

COLUMNS = [Column("d", "d", "string"), Column("v", "v", "double")]

Make = Callable[..., TableSpec]


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(upsert: Upsert, columns: list[Column] = COLUMNS, **given: Any) -> TableSpec:
        return replace(table_spec(tmp_path, request.param, columns), upsert=upsert, **given)

    return made


def write(spec: TableSpec, *parts: pa.RecordBatch) -> Outcome:
    """A batch by a driver that has just started."""
    return open_writer(spec, "job").write(tasks(*parts))


def test_the_last_record_of_a_key_is_its_row(make: Make) -> None:
    spec = make(Upsert(("d",)))
    write(spec, records(0, [{"d": "a", "v": 1}, {"d": "b", "v": 2}, {"d": "a", "v": 3}]))
    write(spec, records(3, [{"d": "b", "v": 4}, {"d": "c", "v": 5}]))
    assert rows_of(spec, "_offset", "d", "v") == [(2, "a", 3.0), (3, "b", 4.0), (4, "c", 5.0)]
    [first, second] = [commit.details for commit in open_writer(spec, "look").table.commits()]
    assert (first.ranges[0].rows, first.ranges[0].superseded, first.keys) == (3, 1, 2)
    assert (second.ranges[0].rows, second.ranges[0].superseded, second.keys) == (2, 0, 3)


def test_a_batch_that_comes_again_changes_nothing(make: Make) -> None:
    spec = make(Upsert(("d",)))
    batch = records(0, [{"d": "a", "v": 1}, b"broken", {"d": "a", "v": 2}])
    write(spec, batch)
    version = open_writer(spec, "look").table.version()
    write(spec, batch)
    assert open_writer(spec, "look").table.version() == version
    assert rows_of(spec, "_offset", "v") == [(2, 2.0)]
    assert dead_letters_of(spec, "_offset") == [(1,)]


def test_a_condition_deletes_and_a_later_record_brings_the_key_back(make: Make) -> None:
    spec = make(Upsert(("d",), "payload.gone = true"))
    write(spec, records(0, [{"d": "a", "v": 1}, {"d": "b", "v": 2}, {"d": "a", "gone": True}]))
    assert rows_of(spec, "d") == [("b",)]
    write(
        spec,
        records(3, [{"d": "a", "v": 7}, {"d": "b", "gone": True}, {"d": "never", "gone": True}]),
    )
    assert rows_of(spec, "_offset", "d", "v") == [(3, "a", 7.0)]
    last = open_writer(spec, "look").table.commits()[-1].details
    assert (last.ranges[0].rows, last.ranges[0].deleted, last.keys) == (3, 2, 1)


def test_a_record_without_a_payload_deletes_the_row_of_its_topic(make: Make) -> None:
    spec = make(Upsert(("_topic",)), [Column("v", "v", "double")])
    write(spec, records(0, [{"v": n} for n in range(5)]))
    write(spec, records(5, [b"", {"v": 6}]))
    assert rows_of(spec, "_topic", "v") == [
        ("plant/7/meter/2", 2.0), ("plant/7/meter/3", 3.0), ("plant/7/meter/4", 4.0), ("plant/7/meter/1", 6.0),
    ]  # fmt: skip


def test_a_row_without_its_whole_key_is_a_dead_letter(make: Make) -> None:
    spec = make(Upsert(("d", "v")))
    outcome = write(spec, records(0, [{"d": "a"}, {"d": "a", "v": 1}, {"v": 1}, b""]))
    assert (outcome.written, outcome.dead) == (1, 3)
    letters = dead_letters_of(spec, "_offset", "_error_stage", "_error")
    assert letters[0] == (
        0,
        "lake.key",
        "column 'v' is part of the key, and the row has no value for it",
    )
    assert letters[1] == (
        2,
        "lake.key",
        "column 'd' is part of the key, and the row has no value for it",
    )
    assert letters[2][:2] == (3, "lake.columns")


def test_a_condition_that_fails_makes_a_dead_letter(make: Make) -> None:
    spec = make(Upsert(("d",), "payload.v * 2 > 10"))
    write(spec, records(0, [{"d": "a", "v": 1}, {"d": "b", "v": "x"}, {"d": "a", "v": 6}]))
    assert rows_of(spec, "d") == []
    assert dead_letters_of(spec, "_offset", "_error_stage", "_error") == [
        (1, "lake.delete_when", "delete_when, column 1: '*' cannot take a string and an integer")
    ]


def test_rows_of_a_rule_with_several_a_record(make: Make) -> None:
    rule = RuleText(
        "each", 'FOREACH payload.items AS i DO i.d AS d, i.v AS v FROM "plant/#"', "node-1"
    )
    spec = make(Upsert(("d",), "payload.gone = true"), kind="topics", rule=rule)
    write(
        spec,
        records(0, [{"items": [{"d": "a", "v": 1.5}, {"d": "b", "v": 2.5}, {"d": "a", "v": 3.5}]}]),
    )
    assert rows_of(spec, "_offset", "d", "v") == [(0, "b", 2.5), (0, "a", 3.5)] or rows_of(
        spec, "_offset", "d", "v"
    ) == [(0, "a", 3.5), (0, "b", 2.5)]
    write(spec, records(1, [{"items": [{"d": "a", "v": 1}], "gone": True}, {"items": []}]))
    assert rows_of(spec, "_offset", "d", "v") == [(0, "b", 2.5)]


def test_messages_keep_the_last_one_of_each_client(make: Make) -> None:
    from bridges.spark.columns.column import RAW

    spec = make(Upsert(("_client_id",)), list(RAW), kind="topics")
    write(spec, records(0, [b"%d" % n for n in range(12)]))
    write(spec, records(12, [b""]))
    assert rows_of(spec, "_client_id", "payload") == [
        ("meter-2", b"7"), ("meter-3", b"8"), ("meter-4", b"9"), ("meter-1", b"11"),
    ]  # fmt: skip


def late(shard: int, first: int, payloads: list[dict[str, Any]], at: int) -> pa.RecordBatch:
    """Records of a shard, published from a millisecond on after the start."""
    batch = (
        record_table(first, [json.dumps(one).encode() for one in payloads])
        .combine_chunks()
        .to_batches()[0]
    )
    times = pa.array(
        [START_US + 1000 * (at + n) for n in range(len(payloads))], batch.schema.field("ts").type
    )
    batch = batch.set_column(batch.schema.get_field_index("ts"), batch.schema.field("ts"), times)
    return project(batch, shard, arrow_schema(RAW_COLUMNS))


def test_keys_in_several_shards_are_ordered_by_time_and_a_late_record_does_not_bring_a_deleted_key_back(
    make: Make,
) -> None:
    spec = make(Upsert(("d",), "payload.gone = true", by_time=True), shards=(0, 1))
    write(spec, late(0, 0, [{"d": "a", "v": 1}, {"d": "b", "v": 1}], at=10))
    write(spec, late(1, 0, [{"d": "a", "v": 0}], at=5))
    assert rows_of(spec, "_shard", "d", "v") == [(0, "a", 1.0), (0, "b", 1.0)]
    write(spec, late(0, 2, [{"d": "a", "gone": True}, {"d": "b", "gone": True}], at=30))
    assert rows_of(spec, "d") == []
    write(spec, late(1, 1, [{"d": "a", "v": 2}], at=20))
    assert rows_of(spec, "d") == []
    write(spec, late(1, 2, [{"d": "a", "v": 3}], at=40))
    assert rows_of(spec, "_shard", "d", "v") == [(1, "a", 3.0)]


def test_files_are_split_as_they_grow_and_a_batch_rewrites_only_those_of_its_keys(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    split_files(monkeypatch, rows=40)
    spec = make(Upsert(("d",)))
    write(spec, records(0, [{"d": f"m{n}", "v": n} for n in range(1000)]))
    before = set(open_writer(spec, "look").table.data_files())
    assert len(before) > 20
    assert all(rows <= 40 for rows in open_writer(spec, "look").table.data_files().values())
    write(spec, records(1000, [{"d": "m7", "v": -1}]))
    after = set(open_writer(spec, "look").table.data_files())
    assert len(before - after) == len(after - before) == 1
    assert len(rows_of(spec, "d")) == 1000
    assert dict(rows_of(spec, "d", "v"))["m7"] == -1.0


def split_files(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let merges split files that have more rows."""
    from bridges.spark.driver import upserts as writer

    made = merge.MergePlan

    def small(*given: Any) -> merge.MergePlan:
        return replace(made(*given), leaf_rows=rows)

    monkeypatch.setattr(writer, "MergePlan", small)


def test_of_two_drivers_with_one_batch_one_commits(make: Make) -> None:
    spec = make(Upsert(("d",)))
    write(spec, records(0, [{"d": "a", "v": 0}]))
    batch, first = (
        tasks(records(1, [{"d": "a", "v": 1}, {"d": "b", "v": 2}])),
        open_writer(spec, "first"),
    )

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = batch(plan)
        first.write(batch)
        return results

    assert open_writer(spec, "second").write(overtaken).written == 0
    assert rows_of(spec, "_offset", "d", "v") == [(1, "a", 1.0), (2, "b", 2.0)]


class Died(BaseException):
    pass


@settings(
    max_examples=examples(12),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_any_batches_with_kills_and_repeats_give_what_a_dictionary_gives(
    table_format: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Of random batches in two shards, each may be killed before or after each of its commits, or come again."""
    by_time = data.draw(st.booleans(), "by_time")
    upsert = Upsert(("d", "n"), "payload.gone = true", by_time=by_time)
    columns = [Column("d", "d", "string"), Column("n", "n", "long"), Column("v", "v", "double")]
    spec = replace(
        table_spec(tmp_path_factory.mktemp("t"), table_format, columns),
        upsert=upsert,
        shards=(0, 1) if by_time else (0,),
    )
    row = st.fixed_dictionaries(
        {"d": st.sampled_from("abc"), "n": st.integers(0, 3), "v": st.integers(0, 9)},
        optional={"gone": st.booleans()},
    ) | st.just({"v": 1})
    model: dict[tuple[Any, ...], tuple[tuple[int, ...], float | None]] = {}
    dead, ends = 0, {0: 0, 1: 0}
    with pytest.MonkeyPatch.context() as patched:
        split_files(patched, rows=4)
        for number in range(data.draw(st.integers(1, 5), "batches")):
            shard = data.draw(st.integers(0, 1), "shard") if by_time else 0
            rows = data.draw(st.lists(row, min_size=1, max_size=12), "rows")
            at = data.draw(st.integers(0, 60), "at") if by_time else ends[shard]
            batch = tasks(late(shard, ends[shard], rows, at))
            killed = data.draw(
                st.sampled_from(["", "dead before", "dead after", "rows before", "rows after"]),
                "killed",
            )
            kill(spec, batch, killed)
            open_writer(spec, f"job {number}").write(batch)
            if data.draw(st.booleans(), "again"):
                open_writer(spec, "again").write(batch)
            for index, one in enumerate(rows):
                if "d" not in one:
                    dead += 1
                    continue
                place = (
                    (at + index, shard, ends[shard] + index) if by_time else (ends[shard] + index,)
                )
                key = (one["d"], one["n"])
                if key not in model or place >= model[key][0]:
                    model[key] = place, None if one.get("gone") else float(str(one["v"]))
            ends[shard] += len(rows)
            expected = {key: value for key, (_, value) in model.items() if value is not None}
            found = rows_of(spec, "d", "n", "v")
            assert len(found) == len(expected)
            assert {(d, n): v for d, n, v in found} == expected
            assert len(dead_letters_of(spec, "_offset")) == dead


def kill(spec: TableSpec, batch: Any, killed: str) -> None:
    """Let a driver write a batch and die at a commit, if there is one."""
    if not killed:
        return
    which, when = killed.split()
    dying = open_writer(spec, "dies")
    cls = type(dying.table)
    commit = cls.commit

    def until_death(table: LakeTable, change: Change) -> int:
        is_fatal = change.details is not None and (change.details.kind == "dead") == (
            which == "dead"
        )
        version = commit(table, change) if not is_fatal or when == "after" else 0
        if is_fatal:
            raise Died
        return version

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cls, "commit", until_death)
        with contextlib.suppress(Died):
            dying.write(batch)


def test_readers_of_others_see_one_row_a_key(tmp_path: Path) -> None:
    import duckdb
    from pyiceberg.catalog.sql import SqlCatalog  # noqa: F401

    payloads = [{"d": f"m{n % 50}", "v": n} for n in range(200)]
    wanted = (50, 50, float(sum(range(150, 200))))
    for table_format in ("delta", "iceberg"):
        spec = replace(
            table_spec(tmp_path / table_format, table_format, COLUMNS), upsert=Upsert(("d",))
        )
        write(spec, records(0, payloads[:120]))
        write(spec, records(120, payloads[120:]))
        if table_format == "delta":
            found = DeltaTable(spec.place.path).to_pyarrow_dataset()
        else:
            found = open_writer(spec, "look").table._table.scan().to_arrow()
        with duckdb.connect() as connection:
            connection.register("latest", found)
            query = "select count(*), count(distinct d), sum(v) from latest"
            assert connection.execute(query).fetchone() == wanted


def test_replaced_files_are_removed_once_they_are_old(make: Make) -> None:
    spec = make(Upsert(("d",)))
    for offset in range(30):
        write(spec, records(offset, [{"d": "a", "v": offset}]))
    table = open_writer(spec, "look").table

    def files() -> set[str]:
        return {path.name for path in Path(spec.place.path).rglob("key-*.parquet")}

    assert len(files()) == 30
    assert table.forget_replaced(3600) == 0
    assert len(files()) == 30
    assert table.forget_replaced(0) >= 29
    assert files() == {path.rpartition("/")[2] for path in table.data_files()}
    assert rows_of(spec, "_offset", "v") == [(29, 29.0)]


def test_files_stay_for_readers_for_a_time_after_they_were_replaced(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    spec = make(Upsert(("d",)))
    for offset in range(30):
        write(spec, records(offset, [{"d": "a", "v": offset}]))
    now += 7 * 24 * 3600
    opened = open_writer(spec, "reader").table
    write(spec, records(30, [{"d": "a", "v": 30}]))
    table = open_writer(spec, "look").table
    promise = "delta.deletedFileRetentionDuration", "interval 8 days"
    if spec.format == "iceberg":
        promise = "history.expire.max-snapshot-age-ms", str(8 * 24 * 3600 * 1000)
    set_property(spec, *promise)
    table.refresh()
    assert table.forget_replaced(900) == 0, "the table promises its readers more"
    set_property(spec, promise[0], "interval 1 seconds" if spec.format == "delta" else "1000")
    table.refresh()
    assert table.forget_replaced(900) > 28
    assert [row["v"] for row in opened.scan(["v"]).to_pylist()] == [29.0]


def set_property(spec: TableSpec, name: str, value: str) -> None:
    """Set a property of a table as another engine does."""
    if spec.format == "delta":
        DeltaTable(spec.place.path).alter.set_table_properties({name: value})
        return
    with (
        catalog_of(spec.place).load_table(("sluice", spec.place.name)).transaction() as transaction
    ):
        transaction.set_properties({name: value})


def audited(spec: TableSpec, next_offset: int) -> AuditReport:
    shards = [ShardPosition(shard, 0, next_offset if shard == 0 else 0) for shard in spec.shards]
    where = Positions(
        spec.binding.stream,
        spec.kind,
        spec.binding.epoch,
        1,
        tuple(shards),
        "http://nowhere",
        "ticket",
    )
    return audit_once(spec, where)


def test_an_audit_accounts_for_rows_that_are_gone(make: Make) -> None:
    spec = make(Upsert(("d",), "payload.gone = true"))
    write(
        spec, records(0, [{"d": "a", "v": 1}, {"d": "b", "v": 2}, {"d": "a", "v": 3}, b"no JSON"])
    )
    write(spec, records(4, [{"d": "b", "gone": True}, {"d": "c", "v": 4}]))
    report = audited(spec, 6)
    assert report.ok, report.problems
    [shard] = report.shards
    assert (shard.rows, shard.dead_letters, shard.superseded, shard.missing) == (2, 1, 3, 0)
    assert (
        "6 records = 2 rows + 1 dead letter + 0 filtered + 3 superseded or deleted"
        in audit_text(report.as_dict())
    )


def test_an_audit_before_the_first_row_says_so(make: Make) -> None:
    spec = make(Upsert(("d",)), columns=[])
    # it was not created either
    assert "the table has no rows yet" in audit_text(audited(spec, 0).as_dict())
    open_writer(spec, "job")
    assert "the table has no rows yet" in audit_text(audited(spec, 0).as_dict())
    write(spec, records(0, [b"no JSON", {"v": 1}]))
    report = audited(spec, 2)
    assert (report.problems, report.shards[0].dead_letters) == ([], 2)
    assert "the table has no rows yet" in audit_text(report.as_dict())
    write(spec, records(2, [{"d": "a"}]))
    assert "no rows yet" not in audit_text(audited(spec, 3).as_dict())


def test_an_audit_sees_rows_that_others_removed_or_doubled(tmp_path: Path) -> None:
    spec = replace(table_spec(tmp_path, "delta", COLUMNS), upsert=Upsert(("d",)))
    write(spec, records(0, [{"d": "a", "v": 1}, {"d": "b", "v": 2}, {"d": "c", "v": 3}]))
    DeltaTable(spec.place.path).delete("d = 'a'")
    assert audited(spec, 3).problems == [
        "the last commit of the lake job left 3 rows, the table has 2"
    ]
    row = DeltaTable(spec.place.path).to_pyarrow_table().slice(0, 1)
    write_deltalake(spec.place.path, row, mode="append")
    problems = audited(spec, 3).problems
    assert "3 rows have 2 different keys (d): some keys have several rows" in problems
    assert any("is there more than once" in problem for problem in problems)
    # Another engine rewrote the files; the next batch sorts their rows into files by key again.
    write(spec, records(3, [{"d": "d", "v": 4}]))
    assert [d for (d,) in rows_of(spec, "d")] == ["b", "c", "d"]
    assert audited(spec, 4).problems == []


def test_a_replay_with_a_corrected_rule_rebuilds_the_rows_of_its_keys(make: Make) -> None:
    wrong = RuleText(
        "scale", 'SELECT payload.d AS d, payload.v * 2.0 AS v FROM "plant/#"', "node-1"
    )
    right = RuleText(
        "scale", 'SELECT payload.d AS d, payload.v * 3.0 AS v FROM "plant/#"', "node-1"
    )
    spec = make(Upsert(("d",), "payload.gone = true"), kind="topics", rule=wrong)
    payloads: list[bytes | dict[str, Any]] = [
        {"d": "a", "v": 1.5}, {"d": "b", "v": 2.5}, {"d": "c", "v": 1}, {"d": "a", "gone": True, "v": 0}, b"no JSON",
    ]  # fmt: skip
    write(spec, records(0, payloads))
    assert rows_of(spec, "d", "v") == [("b", 5.0), ("c", 2.0)]
    fixed = replace(spec, rule=right)
    for _ in range(2):
        report = Replayed(fixed).run(
            [Range(0, 1, 4)], lambda ranges: tasks(records(1, payloads[1:]))
        )
        assert (report.rows_before, report.rows_after, report.dead_letters_after) == (2, 2, 1)
        assert rows_of(spec, "d", "v") == [("b", 7.5), ("c", 3.0)]
    assert audited(fixed, 5).problems == []
    with pytest.raises(Invalid, match="a replay reads to its end, offset 5"):
        planned(
            fixed,
            lambda at: Positions("hot", "topics", "epoch-1", 1, (ShardPosition(0, 0, 5),), "", ""),
            0,
            3,
        )


@pytest.mark.parametrize("upsert", [None, Upsert(("v",))])
def test_a_table_with_another_key_is_not_filled(make: Make, upsert: Upsert | None) -> None:
    spec = make(Upsert(("d",)))
    write(spec, records(0, [{"d": "a", "v": 1}]))
    other = "v" if upsert else "none"
    with pytest.raises(
        TableRefused, match=f"has the key d, table '{spec.name}' has {other}. Try: the same 'key'"
    ):
        open_writer(replace(spec, upsert=upsert), "job")


def test_the_columns_of_a_key_keep_their_types(make: Make) -> None:
    spec = make(Upsert(("d",)))
    check_retype(spec, COLUMNS, "v", "string")
    with pytest.raises(Invalid) as refused:
        check_retype(spec, COLUMNS, "d", "long")
    text = "'d' is part of the table's key. Try: another 'path', which is filled from the stream again."
    assert [problem.message for problem in refused.value.problems] == [text]


def test_a_retype_takes_dead_letters_that_are_the_last_record_of_their_key(make: Make) -> None:
    spec = make(Upsert(("d",)))
    write(
        spec,
        records(
            0,
            [{"d": "a", "v": 1}, {"d": "b", "v": 2}, {"d": "a", "v": "old"}, {"d": "c", "v": "x"}],
        ),
    )
    write(
        spec,
        records(
            4,
            [{"d": "b", "v": "new"}, {"d": "a", "v": 3}, {"v": "no key"}, {"d": "b", "v": "newer"}],
        ),
    )
    assert rows_of(spec, "_offset", "d", "v") == [(1, "b", 2.0), (5, "a", 3.0)]
    report = retype(open_writer(spec, "retypes"), "v", "json")
    assert (report.rows_before, report.dead_letters_before) == (2, 5)
    assert (report.rows_after, report.dead_letters_after) == (3, 1)
    expected = [(3, "c", '"x"'), (5, "a", "3.0"), (7, "b", '"newer"')]
    assert rows_of(spec, "_offset", "d", "v") == expected
    assert [offset for (offset,) in dead_letters_of(spec, "_offset")] == [6]
    assert audited(spec, 8).problems == []
    assert retype(open_writer(spec, "retypes"), "v", "json").rows_after == 3
    write(spec, records(8, [{"d": "c", "v": {"n": 1}}, {"d": "d", "v": 4}]))
    assert rows_of(spec, "_offset", "d", "v") == [*expected[1:], (8, "c", '{"n":1}'), (9, "d", "4")]
    assert audited(spec, 10).problems == []
    # Rows that do not fit become dead letters, and a retype back takes them again.
    report = retype(open_writer(spec, "retypes"), "v", "double")
    assert (report.rows_after, report.dead_letters_after) == (2, 3)
    assert audited(spec, 10).problems == []
    report = retype(open_writer(spec, "retypes"), "v", "json")
    assert (report.rows_after, report.dead_letters_after) == (4, 1)
    assert audited(spec, 10).problems == []


@pytest.mark.parametrize("by_time", [False, True])
def test_a_retype_brings_no_deleted_key_back(make: Make, by_time: bool) -> None:
    spec = make(Upsert(("d",), "payload.gone = true", by_time=by_time))
    write(spec, records(0, [{"d": "a", "v": "x"}, {"d": "b", "v": 1}, {"d": "c", "v": 1}]))
    write(spec, records(3, [{"d": "a", "gone": True}]))
    write(
        spec,
        records(
            4, [{"d": "d", "v": "y"}, {"d": "b", "v": "bad", "gone": True}, {"d": "a", "v": "z"}]
        ),
    )
    report = retype(open_writer(spec, "retypes"), "v", "json")
    assert [d for (d,) in rows_of(spec, "d")] == ["c", "d", "a"]
    assert (
        report.dead_letters_after,
        [offset for (offset,) in dead_letters_of(spec, "_offset")],
    ) == (1, [0])
    assert audited(spec, 7).problems == []


def test_a_retype_of_a_table_with_a_rule_leaves_its_dead_letters_to_a_replay(make: Make) -> None:
    rule = RuleText("states", 'SELECT payload.d AS d, payload.v AS v FROM "plant/#"', "node-1")
    spec = make(Upsert(("d",), "payload.gone = true"), kind="topics", rule=rule)
    write(
        spec,
        records(
            0,
            [
                {"d": "a", "v": 1},
                b"no JSON",
                {"d": "b", "v": 2},
                {"d": "a", "v": 3},
                {"d": "c", "v": "x"},
            ],
        ),
    )
    fixed = replace(spec, columns=(COLUMNS[0], Column("v", "v", "string")))
    writer = open_writer(fixed, "retypes")
    assert [one.wanted for one in writer.held] == ["string"]
    with pytest.raises(Invalid, match="column 'v' of lake table 'readings' stays as it is"):
        retype(writer, "v", "string")
    assert audited(spec, 5).problems == []
    fixed = replace(spec, columns=(COLUMNS[0], Column("v", "v", "json")))
    report = retype(open_writer(fixed, "retypes"), "v", "json")
    assert (report.rows_after, report.dead_letters_after) == (2, 2)
    assert rows_of(spec, "d", "v") == [("b", "2.0"), ("a", "3.0")]
    assert audited(spec, 5).problems == []


def test_a_retype_leaves_dead_letters_of_which_the_condition_asks_more_than_they_have(
    make: Make,
) -> None:
    spec = make(Upsert(("d",), "qos = 2"))
    write(spec, records(0, [{"d": "a", "v": "x"}, {"d": "b", "v": 1}]))
    report = retype(open_writer(spec, "retypes"), "v", "json")
    assert (report.rows_after, report.dead_letters_after) == (1, 1)
    assert audited(spec, 2).problems == []


def test_a_retype_remembers_deletions_for_late_records(make: Make) -> None:
    spec = make(Upsert(("d",), "payload.gone = true", by_time=True), shards=(0, 1))
    write(spec, late(0, 0, [{"d": "a", "v": 1}, {"d": "a", "gone": True}], at=30))
    retype(open_writer(spec, "retypes"), "v", "string")
    write(spec, late(1, 0, [{"d": "a", "v": "late"}], at=20))
    assert rows_of(spec, "d") == []
    write(spec, late(1, 1, [{"d": "a", "v": "new"}], at=40))
    assert rows_of(spec, "d", "v") == [("a", "new")]


@pytest.mark.parametrize("removes_all", [False, True])
def test_a_retype_that_dies_is_finished_by_the_next(make: Make, removes_all: bool) -> None:
    spec = make(Upsert(("d",)))
    write(
        spec,
        records(
            0, [{"d": "a", "v": 1}, {"d": "b", "v": "x"}, {"d": "a", "v": "y"}, {"d": "c", "v": 2}]
        ),
    )
    dying = open_writer(spec, "dies")
    cls = type(dying.table)
    commit = cls.commit

    def until_death(table: LakeTable, change: Change) -> int:
        version = commit(table, change)
        if change.removes_all == removes_all:
            raise Died
        return version

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cls, "commit", until_death)
        with pytest.raises(Died):
            retype(dying, "v", "json" if removes_all else "boolean")
    report = retype(open_writer(spec, "again"), "v", "json")
    assert (report.rows_after, report.dead_letters_after) == (3, 0)
    assert rows_of(spec, "_offset", "d") == [(1, "b"), (2, "a"), (3, "c")]
    assert audited(spec, 4).problems == []


def test_leaves_cover_each_hash_once() -> None:
    leaves = {leaf: file_name(leaf) for leaf in ("00", "010", "11")}
    assert leaves_of(leaves.values()) == (leaves, [])
    whole = cover(leaves)
    assert sorted(whole) == ["00", "010", "011", "10", "11"]
    hashes = np.array([0, 2**30, 2**30 + 2**29, 2**31, 2**32 - 1], np.uint32)
    assert sum(is_in(hashes, leaf).astype(int) for leaf in whole).tolist() == [1] * 5
    assert leaves_of([*leaves.values(), "joined-1.parquet"]) == (leaves, ["joined-1.parquet"])
    nested = [file_name("0"), file_name("01")]
    assert leaves_of(nested) == ({}, nested)


def test_keys_are_told_apart_by_their_values() -> None:
    rows = pa.table({"a": ["a", "ab", "1:a"], "b": ["bc", "c", "bc"], "n": [1.0, -0.0, 0.0]})
    assert len(set(keys_of(rows, ("a", "b")).to_pylist())) == 3
    assert keys_of(rows, ("n",))[1] == keys_of(rows, ("n",))[2]
    # Hashes are in the files of tables: they must never change.
    assert hashes_of(pa.array([b"meter-1", b"meter-2"])).tolist() == [3905427956, 3265823208]
