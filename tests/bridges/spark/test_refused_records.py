"""Records that a table's format does not take: dead letters with the reason, and the others are rows."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from deltalake.schema import PrimitiveType, StructType

from bridges.spark.columns.column import Column, columns_of_api
from bridges.spark.columns.types import folded, parse_type
from bridges.spark.driver.batch import RecordsRefused, TableSpec, TableWriter
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables.contract import Change, Range, TableRefused
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.keys import Upsert
from tests.bridges.spark.batches import (
    BINDING,
    dead_letters_of,
    records,
    rows_of,
    table_spec,
    tasks,
)

Make = Callable[..., TableSpec]
HARMFUL = "\ud7ff" * 20
"""Text whose upper bound pyiceberg cuts to text that is no UTF-8."""


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda **given: table_spec(tmp_path, request.param, **given)


def suffixed(key: str) -> str:
    return f"{key}_{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def read_by_others(spec: TableSpec) -> list[dict[str, Any]]:
    if spec.format == "delta":
        rows: list[dict[str, Any]] = DeltaTable(spec.place.path).to_pyarrow_table().to_pylist()
        return rows
    table = open_table(spec.format, spec.place, BINDING)
    assert table is not None
    return [row for batch in table.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        ((), [{"host.temp": 21.5}, {"host": {"temp": 1}}, {"host.temp.unit": "C"}]),
        ((), [{"a.b.c": 1, "a.b": 2, "a": 3, "_topic.x": 4, ".": 5, "..": 6, "a.": 7}]),
        (
            (Column("o", "o", "struct<a: struct<b: long>, `a.b`: long>"),),
            [{"o": {"a": {"b": 1}, "a.b": 2}}],
        ),
        (
            (Column("o", "o", "struct<a: struct<b: long>>"),),
            [{"o": {"a": {"b": 1}}}, {"o": {"a.b": 2}}],
        ),
        (
            (Column("l", "l", "array<struct<a: long>>"),),
            [{"l": [{"a": 1, "a.b": 2}], "l.element.a": 3}],
        ),
        ((), [{"x\0y": 1, "x_y": 2, "\0": 3}]),
        ((Column("o", "o", "struct<a: long>"),), [{"o": {"x\0y": 1, "x_y": 2}}]),
        ((), [{"T": 1, suffixed("t"): 2, "t": 3}]),
        ((Column("o", "o", "struct<T: double>"),), [{"o": {"T": 1, suffixed("t"): 2, "t": 3}}]),
        ((), [{"_file": 1, "_Pos": 2, "_deleted": 3, "_change_type": 4, "_metadata": 5}]),
        (
            (Column("o", "o", "struct<`µ`: long, s: long>"),),
            [{"µ": 1, "μ": 2, "ı": 3, "I": 4, "İ": 5}, {"o": {"μ": 1, "µ": 2, "s": 3, "ſ": 4}}],
        ),
        ((), [{"_PUBLISHED_AT": 1, suffixed("_published_at"): 2, "_published_at": 3}]),
    ],
)
def test_any_names_of_members_are_columns_that_others_read(
    make: Make, columns: Sequence[Column], rows: list[bytes | dict[str, Any]]
) -> None:
    spec = make(columns=columns)
    outcome = TableWriter(spec, "job").write(tasks(records(0, [{"first": 0}]), records(1, rows)))
    assert (outcome.written, outcome.dead) == (1 + len(rows), 0)
    assert TableWriter(spec, "next").write(tasks(records(1 + len(rows), rows))).written == len(rows)
    values = [leaves(one) for one in read_by_others(spec)]
    for row in rows:
        assert values.count(leaves(row)) == 2, (
            "each value in its own column, before and after a restart"
        )


def leaves(value: Any) -> list[float]:
    """The numbers of a row, except those of its provenance."""
    if isinstance(value, dict):
        kept = {key: one for key, one in value.items() if key not in ("_shard", "_offset")}
        return sorted(leaf for one in kept.values() for leaf in leaves(one))
    if isinstance(value, list):
        return sorted(leaf for one in value for leaf in leaves(one))
    if isinstance(value, str) and value.startswith("{"):
        return leaves(json.loads(value))
    return [float(value)] if isinstance(value, int | float) else []


def test_names_that_spark_cannot_tell_apart_are_different() -> None:
    """Spark compares the names of a struct's members as Java does, without case, a character at a time."""
    groups = ["µμΜ", "ſsS", "ıiIİ", "ςσΣ", "ϐβ", "K\u212ak", "ßẞ", "\u0345ι", "ǅǆǄ"]
    kind = parse_type(f"struct<{', '.join(f'`x{one}`: long' for one in ''.join(groups))}>")
    java = [
        "".join((upper if len(upper := one.upper()) == 1 else one).lower()[0] for one in name)
        for name in kind.names
    ]
    assert len(set(java)) == len(java) == len({name.lower() for name in kind.names})
    kept = [name for name in kind.names if len(name) == 2]
    assert len(kept) == len(groups), "the first of each group keeps its name"
    assert folded("e\u0301") != folded("é"), "normal forms are different names for all readers"


def test_two_tasks_find_names_that_clash(make: Make) -> None:
    spec = make()
    parts = [
        records(at, [row])
        for at, row in enumerate([{"a": 1}, {"a.b": 2}, {"A": 3}, {suffixed("A"): 4}])
    ]
    outcome = TableWriter(spec, "job").write(tasks(*parts))
    assert (outcome.written, outcome.dead) == (4, 0)
    assert [leaves(one) for one in sorted(read_by_others(spec), key=lambda one: one["_offset"])] == [
        [1.0], [2.0], [3.0], [4.0],
    ]  # fmt: skip


def test_a_member_may_be_called_as_a_partition_is(make: Make) -> None:
    spec = make(partition_by=("day(_published_at)",))
    outcome = TableWriter(spec, "job").write(
        tasks(records(0, [{"_published_at_day": 1, "_PUBLISHED_AT_day": 2}]))
    )
    assert (outcome.written, outcome.dead) == (1, 0)
    assert leaves(
        {k: v for k, v in read_by_others(spec)[0].items() if k != "_published_at_day"}
    ) == [1.0, 2.0]


def test_names_of_a_rule_do_not_clash() -> None:
    columns, _ = columns_of_api(
        [{"name": name, "type": "long"} for name in ("o.a", "o", "o.a.b", "O")]
    )
    names = [column.name.lower() for column in columns]
    assert not [(one, other) for one in names for other in names if other.startswith(f"{one}.")]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    "time",
    ["9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+00:01", "9999-12-31T23:59:30.5-00:01"],
)
@pytest.mark.parametrize(
    ("type", "wrap"),
    [
        ("timestamp", lambda time: {"t": time}),
        ("array<timestamp(us)>", lambda time: {"t": [time]}),
        ("map<string, timestamp>", lambda time: {"t": {"k": time}}),
    ],
)
def test_a_time_that_no_reader_has_is_a_dead_letter(
    make: Make, type: str, wrap: Callable[[str], dict[str, Any]], time: str
) -> None:
    spec = make(columns=[Column("t", "t", type)])
    good = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "9999-12-31T22:59:59-01:00"]
    outcome = TableWriter(spec, "job").write(
        tasks(records(0, [wrap(one) for one in [*good, time]]))
    )
    assert (outcome.written, outcome.dead) == (3, 1)
    assert [
        (offset, "between the years 1 and 9999 in UTC" in error)
        for offset, error in dead_letters_of(spec, "_offset", "_error")
    ] == [(3, True)]
    assert len(read_by_others(spec)) == 3


def test_statistics_of_the_first_and_the_last_time_are_read(make: Make) -> None:
    spec = make(columns=[Column("t", "t", "timestamp")], sort_by=("t",))
    times = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0999-05-06T07:08:09.1234Z"]
    writer = TableWriter(spec, "job")
    writer.write(tasks(*(records(at, [{"t": time}]) for at, time in enumerate(times))))
    first = datetime(1, 1, 1, tzinfo=UTC)
    if spec.format == "delta":
        found = DeltaTable(spec.place.path).to_pyarrow_table(filters=[("t", "<=", first)])
    else:
        found = writer.table._table.scan(row_filter=f"t <= '{first.isoformat()}'").to_arrow()
    assert found.column("_offset").to_pylist() == [0]


def test_a_batch_is_split_until_the_record_is_found(tmp_path: Path) -> None:
    spec = table_spec(tmp_path, "iceberg", [Column("s", "s", "string")], shards=(0, 1))
    rows: list[bytes | dict[str, Any]] = [{"s": f"text {n}"} for n in range(20)]
    rows[7], rows[3], rows[16] = {"s": HARMFUL}, b"no JSON", {"s": HARMFUL + "again"}
    other: list[bytes | dict[str, Any]] = [{"s": "x"}, {"s": HARMFUL}]
    writer = TableWriter(spec, "job")
    outcome = writer.write(
        tasks(records(0, rows[:11]), records(11, rows[11:]), records(5, other, shard=1))
    )
    assert (outcome.written, outcome.dead) == (18, 4)
    letters = dead_letters_of(spec, "_shard", "_offset", "_error_stage", "_error")
    assert [one[:3] for one in letters] == [
        (0, 3, "lake.columns"), (0, 7, "lake.commit"), (0, 16, "lake.commit"), (1, 6, "lake.commit"),
    ]  # fmt: skip
    assert letters[1][3].startswith("the table does not take the record: UnicodeEncodeError: ")
    assert rows_of(spec, "_shard", "_offset") == [
        *((0, n) for n in range(20) if n not in (3, 7, 16)), (1, 5),
    ]  # fmt: skip
    assert {one.shard: one.end for one in outcome.ranges} == {0: 20, 1: 7}
    assert (
        TableWriter(spec, "next").write(tasks(records(0, rows), records(5, other, shard=1))).ranges
        == ()
    )


@pytest.mark.parametrize("commit", range(1, 9))
def test_a_driver_that_dies_while_a_batch_is_split_loses_and_repeats_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commit: int
) -> None:
    spec = table_spec(tmp_path, "iceberg", [Column("s", "s", "string")])
    rows: list[bytes | dict[str, Any]] = [
        {"s": "a"},
        b"bad",
        {"s": "b"},
        {"s": HARMFUL},
        b"bad",
        {"s": "c"},
    ]
    batch = tasks(records(0, rows))

    class Died(BaseException):
        pass

    writer = TableWriter(spec, "dies")
    cls = type(writer.table)
    real = cls.commit
    left = iter(range(commit))

    def until_death(table: Any, change: Change) -> int:
        if next(left, None) is None:
            raise Died
        return real(table, change)

    with monkeypatch.context() as patched:
        patched.setattr(cls, "commit", until_death)
        with contextlib.suppress(Died):
            writer.write(batch)
    TableWriter(spec, "next").write(batch)
    assert rows_of(spec, "_offset") == [(0,), (2,), (5,)]
    assert dead_letters_of(spec, "_offset") == [(1,), (3,), (4,)]


def test_a_panic_of_the_library_is_for_a_record_too(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make(columns=[Column("s", "s", "string")])
    writer = TableWriter(spec, "job")
    commit = type(writer.table).commit

    def panics(table: Any, change: Change) -> int:
        for file in change.add:
            assert change.details is not None
            if (
                change.details.kind == "rows"
                and "panic" in pq.read_table(table.place.path_of(file.path))["s"].to_pylist()
            ):
                StructType(
                    [DeltaField("a", PrimitiveType("long")), DeltaField("A", PrimitiveType("long"))]
                )
        return commit(table, change)

    monkeypatch.setattr(type(writer.table), "commit", panics)
    outcome = writer.write(tasks(records(0, [{"s": "a"}, {"s": "panic"}, {"s": "b"}])))
    assert (outcome.written, outcome.dead) == (2, 1)
    assert [offset for (offset,) in dead_letters_of(spec, "_offset")] == [1]


def test_what_no_record_causes_is_no_dead_letter(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make()
    writer = TableWriter(spec, "job")

    def fails(*_: object) -> int:
        raise RuntimeError("the library is broken")

    monkeypatch.setattr(type(writer.table), "commit", fails)
    with pytest.raises(RecordsRefused, match="RuntimeError: the library is broken"):
        writer.write(tasks(records(0, [{"a": n} for n in range(8)])))
    monkeypatch.undo()
    assert dead_letters_of(spec, "_offset") == []
    assert (
        TableWriter(spec, "next").write(tasks(records(0, [{"a": n} for n in range(8)]))).written
        == 8
    )


def test_a_table_with_a_key_leaves_out_the_record_alone(make: Make) -> None:
    spec = make(
        columns=[Column("s", "s", "string"), Column("k", "k", "string")], upsert=Upsert(("k",))
    )
    rows: list[bytes | dict[str, Any]] = [
        {"k": str(n), "s": HARMFUL if n == 2 else "text"} for n in range(4)
    ]
    outcome = open_writer(spec, "job").write(tasks(records(0, rows)))
    dead = 1 if spec.format == "iceberg" else 0
    assert (outcome.written, outcome.dead) == (4 - dead, dead)
    assert len(rows_of(spec, "k")) == 4 - dead


def test_a_replay_leaves_a_record_a_dead_letter_that_the_table_does_not_take(
    tmp_path: Path,
) -> None:
    spec = table_spec(tmp_path, "iceberg", [Column("s", "s", "string")])
    rows: list[bytes | dict[str, Any]] = [{"s": "a"}, {"s": HARMFUL}, b"bad", {"s": "b"}]
    TableWriter(spec, "job").write(tasks(records(0, rows)))
    report = Replayed(spec).run([Range(0, 0, 4)], lambda _: tasks(records(0, rows)))
    assert (report.rows_after, report.dead_letters_after) == (2, 2)
    assert rows_of(spec, "_offset") == [(0,), (3,)]
    assert dead_letters_of(spec, "_offset", "_error_stage") == [
        (1, "lake.commit"),
        (2, "lake.columns"),
    ]
    fixed = {"s": "fits now"}
    report = Replayed(spec).run(
        [Range(0, 0, 4)], lambda _: tasks(records(0, [rows[0], fixed, *rows[2:]]))
    )
    assert (report.rows_after, report.dead_letters_after) == (3, 1)


def test_a_table_whose_members_have_names_of_before_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = table_spec(tmp_path, "delta", [Column("o", "o", "struct<a: long, `a.b`: long>")])
    with monkeypatch.context() as patched:
        patched.setattr("bridges.spark.columns.types._clashes", lambda name, taken: name in taken)
        TableWriter(spec, "old").write(tasks(records(0, [{"o": {"a": 1, "a.b": 2}}])))
        spec.columns[0].parsed.__dict__.pop("names")
    from bridges.spark.columns.types import parse_type

    parse_type.cache_clear()
    with pytest.raises(
        TableRefused, match=r"column 'o' has no member 'o\.a_b_.*Try: another 'path'"
    ):
        TableWriter(spec, "new")
