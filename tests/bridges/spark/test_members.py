"""One stream into many tables by a template of their names: exactly once, bounded, beside dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from bridges.spark.columns.column import Column
from bridges.spark.columns.place import CatalogEntry
from bridges.spark.columns.template import NameTemplate
from bridges.spark.driver.audit import audit_once
from bridges.spark.driver.batch import Members, TableSpec, TableWriter, figures_of
from bridges.spark.driver.member_places import member_place, members_place, open_members
from bridges.spark.driver.members import MembersWriter
from bridges.spark.driver.upkeep import remove_rows
from bridges.spark.tables.contract import Change, LakeTable, TableRefused
from bridges.spark.tables.formats import open_or_create
from bridges.spark.tasks.split import render, unsafe
from bridges.spark.tasks.task import Plan, TaskResult
from pyspark_sluice.client import Positions, ShardPosition
from tests.bridges.spark.batches import (
    BINDING,
    dead_letters_of,
    records,
    rows_of,
    table_spec,
    tasks,
)

Make = Callable[..., TableSpec]


def split(spec: TableSpec, template: str = "t_${site}", most: int = 100) -> TableSpec:
    return replace(spec, members=Members(NameTemplate.parse(template), most))


@pytest.fixture(params=["delta", "iceberg"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    return lambda template="t_${site}", most=100, **given: split(
        table_spec(tmp_path, request.param, **given), template, most
    )


def rows_by_member(spec: TableSpec, *columns: str) -> dict[str, list[tuple[Any, ...]]]:
    """These columns of the rows of each member."""
    members = open_members(spec.format, spec.place, spec.binding)
    return {
        name: rows_of(replace(spec, place=member_place(spec.place, name)), *columns)
        for name in members
    }


def offsets(spec: TableSpec) -> dict[str, list[int]]:
    return {
        name: [offset for (offset,) in rows]
        for name, rows in rows_by_member(spec, "_offset").items()
    }


def problems(spec: TableSpec, *ends: int) -> list[str]:
    """What the audit of a table finds, whose stream has so many records in each shard."""
    shards = tuple(ShardPosition(shard, 0, end) for shard, end in enumerate(ends))
    return audit_once(spec, Positions("hot", "rows", "epoch-1", 1, shards, "", "")).problems


def sites(names: Sequence[str]) -> list[dict[str, Any]]:
    return [{"site": name} for name in names]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("telemetry", r"expected columns as \$\{NAME\}"),
        ("t_${a.b}", r"expected columns as \$\{NAME\}"),
        ("t_${.}", r"expected columns as \$\{NAME\}"),
        ("t_${$}", r"expected columns as \$\{NAME\}"),
        ("${site}", "a letter or a digit first"),
        ("_${site}", "a letter or a digit first"),
        ("t/${site}", "letters, digits, '_' and '-' around the columns"),
        ("../${site}", "letters, digits, '_' and '-' around the columns"),
        ("t_${site}_${a b}", "letters, digits, '_' and '-' around the columns"),
        ("ä${site}", "letters, digits, '_' and '-' around the columns"),
    ],
)
def test_a_template_that_may_give_no_safe_name_is_refused(template: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        NameTemplate.parse(template)


def test_names_are_rendered_from_columns_of_each_type() -> None:
    parts = NameTemplate.parse("t_${a}-${b}").parts
    columns = {"a": pa.array(["x", "Y", "", None, "x"]), "b": pa.array([1.0, 2.5, 3.0, 4.0, 1.0])}
    found = render(parts, columns, 5)
    assert found.texts == ["t_x-1", "t_Y-2.5"]
    assert found.places.tolist() == [0, 1, -1, -1, 0]
    assert found.lacking == {2: "a", 3: "a"}
    others = {"a": pa.array([True, False]), "b": pa.array([7, 8])}
    assert render(parts, others, 2).texts == ["t_true-7", "t_false-8"]
    assert render(parts, {"a": pa.array([[1]]), "b": pa.array([1])}, 1).lacking == {0: "a"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("t_ok-1", None),
        ("t_../../etc", "table name 't_../../etc': expected letters, digits, '_' and '-', got '.'"),
        ("t_a/b", "table name 't_a/b': expected letters, digits, '_' and '-', got '/'"),
        ("t_ü", "table name 't_ü': expected letters, digits, '_' and '-', got 'ü'"),
        ("t_a\0", "table name 't_a\\x00': expected letters, digits, '_' and '-', got '\\x00'"),
        ("t" * 128, None),
        ("t" * 129, f"table name '{'t' * 60}...': expected at most 128 characters, got 129"),
    ],
)
def test_only_safe_names_are_tables(text: str, said: str | None) -> None:
    assert unsafe(text) == said


def test_rows_go_into_a_table_for_each_name(make: Make) -> None:
    spec = make(columns=[Column("site", "site", "string"), Column("n", "n", "double")])
    rows = [{"site": "Berlin", "n": 1}, {"site": "paris", "n": 2}, {"site": "berlin", "n": 3}]
    bad: list[Any] = [
        {"n": 4},
        {"site": "a/b"},
        {"site": "../x"},
        {"site": "x" * 200},
        {"site": ""},
        b"no",
    ]
    outcome = MembersWriter(spec, "job").write(tasks(records(0, [*rows, *bad])))
    assert (outcome.written, outcome.dead, outcome.over) == (3, 6, 0)
    assert rows_by_member(spec, "_offset", "site", "n") == {
        "t_berlin": [(0, "Berlin", 1.0), (2, "berlin", 3.0)],
        "t_paris": [(1, "paris", 2.0)],
    }
    assert rows_of(spec, "_offset") == []
    assert [one for (one,) in dead_letters_of(spec, "_error")][:5] == [
        "column 'site' names the table, and the row has no value for it",
        "table name 't_a/b': expected letters, digits, '_' and '-', got '/'",
        "table name 't_../x': expected letters, digits, '_' and '-', got '.'",
        f"table name 't_{'x' * 58}...': expected at most 128 characters, got 202",
        "column 'site' names the table, and the row has no value for it",
    ]
    assert {stage for (stage,) in dead_letters_of(spec, "_error_stage")} == {
        "lake.tables",
        "lake.columns",
    }
    assert problems(spec, 9) == []
    assert sorted(one.name for one in Path(members_place(spec.place).path).iterdir()) == [
        "t_berlin",
        "t_paris",
    ]


def test_a_batch_that_comes_again_adds_nothing_to_members(make: Make) -> None:
    spec = make()
    batch = tasks(records(0, [*sites("aab"), b"no"]), records(4, sites("bc")))
    MembersWriter(spec, "job").write(batch)
    outcome = MembersWriter(spec, "after a crash").write(batch)
    assert (outcome.written, outcome.dead) == (0, 0)
    assert offsets(spec) == {"t_a": [0, 1], "t_b": [2, 4], "t_c": [5]}
    MembersWriter(spec, "later").write(tasks(records(6, sites("ca"))))
    assert offsets(spec) == {"t_a": [0, 1, 7], "t_b": [2, 4], "t_c": [5, 6]}
    assert problems(spec, 8) == []


class Died(BaseException):
    pass


@pytest.mark.parametrize(("commits", "further"), [(0, 3), (1, -2), (2, 3), (3, 0), (4, -2), (5, 3)])
def test_a_driver_that_died_between_commits_repeats_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch, commits: int, further: int
) -> None:
    """Dead letters, four members, the table: killed after so many commits, and the batch has another end then."""
    spec = make()
    monkeypatch.setattr("bridges.spark.driver.member_places._AT_ONCE", 1)
    MembersWriter(spec, "before").write(tasks(records(0, sites("abx"))))
    rows: list[Any] = [*sites("abab"), b"no", *sites("cdcd"), b"no", *sites("eeaebe")]
    dying, left = MembersWriter(spec, "dies"), commits
    kind = type(dying.table)
    commit = kind.commit

    def counted(table: LakeTable, change: Change) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise Died
        return commit(table, change)

    monkeypatch.setattr(kind, "commit", counted)
    with pytest.raises(Died):
        dying.write(tasks(records(3, rows[:10])))
    monkeypatch.setattr(kind, "commit", commit)
    end = 10 + further
    MembersWriter(spec, "next").write(tasks(records(3, rows[:end])))
    MembersWriter(spec, "last").write(tasks(records(3 + end, rows[end:])))
    found = offsets(spec)
    assert found["t_a"] == [0, 3, 5, 15]
    assert found["t_b"] == [1, 4, 6, 17]
    assert (found["t_c"], found["t_d"], found["t_e"]) == ([8, 10], [9, 11], [13, 14, 16, 18])
    assert [one for (one,) in dead_letters_of(spec, "_offset")] == [7, 12]
    assert problems(spec, 19) == []


def test_of_two_drivers_each_record_is_committed_by_one(make: Make) -> None:
    spec = make()
    first, second = MembersWriter(spec, "first"), MembersWriter(spec, "second")
    batch = tasks(records(0, sites("abab")))

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = batch(plan)
        if not plan.floors:
            first.write(batch)
        return results

    assert second.write(overtaken).written == 0
    second.write(tasks(records(4, sites("abc"))))
    first.write(tasks(records(4, sites("abcd"))))
    assert offsets(spec) == {"t_a": [0, 2, 4], "t_b": [1, 3, 5], "t_c": [6], "t_d": [7]}
    assert problems(spec, 8) == []


def test_rows_for_more_tables_than_max_tables_are_dead_letters(make: Make) -> None:
    spec = make(most=3)
    writer = MembersWriter(spec, "job")
    # Each task may create two; the table has room for three, and the first ones by offset are created.
    outcome = writer.write(
        tasks(records(0, sites("aab")), records(3, sites("cdea")), records(7, sites("fb")))
    )
    assert (outcome.written, outcome.dead, outcome.over) == (6, 3, 3)
    assert offsets(spec) == {"t_a": [0, 1, 6], "t_b": [2, 8], "t_c": [3]}
    said = [one for (one,) in dead_letters_of(spec, "_error")]
    assert said == [
        f"table 't_{name}' would be one more than max_tables, which is 3" for name in "def"
    ]
    outcome = writer.write(tasks(records(9, sites("gabc"))))
    assert (outcome.written, outcome.over) == (3, 1)
    assert problems(spec, 13) == []
    # What tasks wrote for tables that were not created is gone, or cleaned.
    there = Path(members_place(spec.place).path)
    assert {one.name for one in there.iterdir() if list(one.glob("*.parquet"))} == {
        "t_a",
        "t_b",
        "t_c",
    }
    MembersWriter(replace(spec, members=Members(NameTemplate.parse("t_${site}"), 4)), "job").write(
        tasks(records(13, sites("da")))
    )
    assert offsets(spec)["t_d"] == [13]


def test_a_member_whose_name_another_table_of_the_catalog_has_is_refused_alone(
    tmp_path: Path,
) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    spec = split(table_spec(tmp_path, "iceberg"), most=2)

    def entry(name: str) -> CatalogEntry:
        return CatalogEntry(
            "lake", "sql", uri, ("plant", name), {"uri": uri, "warehouse": str(tmp_path)}
        )

    spec = replace(spec, place=replace(spec.place, entry=entry("t")))
    open_or_create(
        "iceberg", replace(spec.place, url=f"{tmp_path}/other", entry=entry("t_taken")), BINDING, ()
    )
    writer = MembersWriter(spec, "job")
    outcome = writer.write(tasks(records(0, sites(["taken", "a", "b", "taken"]))))
    assert (outcome.written, outcome.dead, outcome.over) == (2, 2, 0)
    assert offsets(spec) == {"t_a": [1], "t_b": [2]}
    [(said,), _] = dead_letters_of(spec, "_error")
    assert said.startswith("table 't_taken' cannot be created: "), said
    assert "expected it at" in said, said
    assert problems(spec, 4) == []


def test_members_get_the_columns_of_the_table(make: Make) -> None:
    spec = make()
    writer = MembersWriter(spec, "job")
    writer.write(tasks(records(0, [{"site": "a", "n": 1}, {"site": "b"}])))
    writer.write(tasks(records(2, [{"site": "a", "more": "x"}])))
    MembersWriter(spec, "later")
    found = rows_by_member(spec, "site", "n", "more")
    assert found == {"t_a": [("a", 1.0, None), ("a", None, "x")], "t_b": [("b", None, None)]}


def test_members_have_the_partitions_and_the_order_of_the_table(make: Make) -> None:
    columns = [
        Column("site", "site", "string"),
        Column("n", "n", "long"),
        Column("room", "room", "string"),
    ]
    spec = make(columns=columns, partition_by=("room",), sort_by=("n desc",))
    rows = [
        {"site": site, "room": room, "n": n}
        for n, (site, room) in enumerate(zip("aabab", "xyxxy", strict=True))
    ]
    MembersWriter(spec, "job").write(tasks(records(0, rows)))
    members = open_members(spec.format, spec.place, spec.binding)
    assert {
        name: (one.partitions(), figures_of(one).partitions) for name, one in members.items()
    } == {
        "t_a": (("room",), 2),
        "t_b": (("room",), 2),
    }
    assert problems(spec, 5) == []


def test_rows_are_removed_from_members_by_their_age(make: Make) -> None:
    from datetime import UTC, datetime

    spec = make()
    MembersWriter(spec, "job").write(tasks(records(0, [*sites("aba"), b"no"])))
    assert remove_rows(spec, "job", datetime(2100, 1, 1, tzinfo=UTC)) == 4
    assert offsets(spec) == {"t_a": [], "t_b": []}
    assert problems(spec, 4) == []


def test_shards_are_counted_apart(make: Make) -> None:
    spec = make(shards=(0, 1))
    writer = MembersWriter(spec, "job")
    writer.write(tasks(records(0, sites("ab")), records(5, sites("aac"), shard=1)))
    members = open_members(spec.format, spec.place, spec.binding)
    [commit] = members["t_a"].commits()
    assert [(one.shard, one.start, one.end, one.written) for one in commit.details.ranges] == [
        (0, 0, 2, 1),
        (1, 5, 8, 2),
    ]
    assert (members["t_c"].next(0), members["t_c"].next(1)) == (2, 8)


def test_a_table_is_split_from_its_first_record_or_never(make: Make) -> None:
    plain = replace(make(), members=None)
    TableWriter(plain, "job").write(tasks(records(0, sites("a"))))
    with pytest.raises(
        TableRefused, match=r"was filled with 'tables' none, table 'readings' has t_\$\{site\}"
    ):
        MembersWriter(split(plain), "job")


def test_a_split_table_is_not_opened_as_another(make: Make) -> None:
    spec = make()
    MembersWriter(spec, "job").write(tasks(records(0, sites("a"))))
    with pytest.raises(
        TableRefused, match=r"was filled with 'tables' t_\$\{site\}, table 'readings' has none"
    ):
        TableWriter(replace(spec, members=None), "job")
    with pytest.raises(TableRefused, match="Try: the same 'tables'"):
        MembersWriter(split(spec, "u_${site}"), "job")
