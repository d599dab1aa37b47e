"""Replays into a shadow, without Spark: filled, compared, swapped and discarded, and killed in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridges.spark.columns.column import RAW, Column
from bridges.spark.driver import shadow
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import RunTasks, TableWriter
from bridges.spark.driver.diff import compare
from bridges.spark.driver.progress import RangeProgress
from bridges.spark.tables.contract import Change, Range
from bridges.spark.tables.formats import dead_letters_place, open_table
from bridges.spark.tables.replacing import pieces, replace_ranges
from bridges.spark.tasks.keys import Upsert
from broker.core.errors import Conflict, Invalid, NotFound
from tests.bridges.spark.batches import dead_letters_of, records, rows_of, tasks
from tests.bridges.spark.stream_server import StreamServer
from tests.bridges.spark.test_lake_audit import Lake


class Killed(Exception):
    """The driver ended here."""


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, server: StreamServer, tmp_path: Path) -> Lake:
    made = Lake(server, tmp_path, request.param)
    made.publish([{"a": n} for n in range(10)] + [b"bad", {"a": 11}])
    made.fill()
    return made


def corrected(lake: Lake) -> None:
    """What a corrected rule would give: 2 to 8 changed, one of them new, one a dead letter, 10 a row."""
    lake.republish(
        [{"a": -n if 2 <= n < 8 else n, "b": "x"} for n in range(9)]
        + [b"worse", {"a": 10}, {"a": 11}]
    )


def fill(
    lake: Lake, ranges: Sequence[Range], dies_after: int = 99, replay: str = "r1"
) -> shadow.Shadow:
    """Fill the shadow, in pieces of three records."""

    def read(ranges: Sequence[Range]) -> Iterator[RunTasks]:
        for at, piece in enumerate(pieces(ranges, 3)):
            if at == dies_after:
                raise Killed
            yield lake.read(piece)

    return shadow.fill(lake.spec, replay, ranges, read)


def swap(lake: Lake) -> dict[str, Any]:
    return shadow.swap(lake.spec, TableWriter(lake.spec, "swap"))


RANGES = [Range(0, 2, 8), Range(0, 9, 11)]


def test_a_shadow_that_is_killed_goes_on_and_the_table_stays_as_it_is(lake: Lake) -> None:
    before = rows_of(lake.spec, "_offset", "a")
    corrected(lake)
    with pytest.raises(Killed):
        fill(lake, RANGES, dies_after=1)
    half = shadow.Shadow.open(lake.spec).as_dict("readings")
    assert (half["done"], half["records"], half["is_complete"], half["rows"]) == (3, 8, False, 3)
    with pytest.raises(Conflict, match="lacks 5 records"):
        swap(lake)
    with pytest.raises(Conflict, match="the shadow of another replay"):
        fill(lake, RANGES, replay="r2")
    whole = fill(lake, RANGES).as_dict("readings")
    assert (whole["done"], whole["rows"], whole["dead_letters"], whole["is_complete"]) == (
        8,
        7,
        1,
        True,
    )
    assert rows_of(lake.spec, "_offset", "a") == before
    with pytest.raises(Invalid, match="has a shadow"):
        shadow.check_new(lake.spec)


def test_a_swap_replaces_exactly_the_ranges_and_keeps_what_arrived_meanwhile(lake: Lake) -> None:
    corrected(lake)
    fill(lake, RANGES)
    lake.publish([{"a": 12}])
    lake.fill()
    report = swap(lake)
    assert (report["records"], report["rows"], report["dead_letters"]) == (8, 7, 1)
    assert rows_of(lake.spec, "_offset", "a", "b") == [
        (0, 0.0, None), (1, 1.0, None), *((n, -float(n), "x") for n in range(2, 8)), (8, 8.0, None),
        (10, 10.0, None), (11, 11.0, None), (12, 12.0, None),
    ]  # fmt: skip
    assert dead_letters_of(lake.spec, "_offset") == [(9,)]
    audit = audit_spec(lake.api_spec, lake.positions(), depth="values")
    assert (audit.problems, audit.shards[0].compared, audit.shards[0].rows) == ([], 8, 12)
    with pytest.raises(NotFound, match="sluice replay readings --into shadow"):
        shadow.Shadow.open(lake.spec)
    shadow.check_new(lake.spec)


@pytest.mark.parametrize("commits", [0, 1, 2])
def test_a_swap_that_is_killed_is_finished_by_the_next_one(
    lake: Lake, commits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    corrected(lake)
    fill(lake, RANGES)
    left = iter([True] * commits)

    def dying(*arguments: Any) -> int:
        if not next(left, False):
            raise Killed
        return replace_ranges(*arguments)

    def dies(_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(shadow, "replace_ranges", dying)
        patch.setattr(shadow, "discard", dies)
        with pytest.raises(Killed):
            swap(lake)
    table = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert table is not None
    version = table.version()
    swap(lake)
    table.refresh()
    assert (table.version() == version) is (commits > 0), (
        "rows that are swapped are not swapped again"
    )
    assert [a for _, a in rows_of(lake.spec, "_offset", "a")][2:8] == [
        -2.0,
        -3.0,
        -4.0,
        -5.0,
        -6.0,
        -7.0,
    ]
    assert dead_letters_of(lake.spec, "_offset") == [(9,)]
    assert audit_spec(lake.api_spec, lake.positions()).problems == []


def test_a_difference_says_what_a_swap_would_change(lake: Lake) -> None:
    corrected(lake)
    fill(lake, RANGES)
    progress = RangeProgress()
    found = compare(None, lake.spec, progress)
    rows, letters = found["rows"], found["dead_letters"]
    assert (progress.done, found["records"], found["is_complete"]) == (8, 8, True)
    assert (rows["same"], rows["changed"], rows["only_table"], rows["only_shadow"]) == (0, 6, 1, 1)
    assert rows["columns"] == {"a": 6, "b": 6}
    assert rows["samples"][0] == {
        "kind": "changed", "shard": 0, "offset": 2,
        "table": {"a": "2.0", "b": None}, "shadow": {"a": "-2.0", "b": "x"},
    }  # fmt: skip
    assert (letters["same"], letters["only_table"], letters["only_shadow"]) == (0, 1, 1)


def test_a_replay_that_changes_nothing_has_no_difference(lake: Lake) -> None:
    fill(lake, [Range(0, 0, 12)])
    found = compare(None, lake.spec, RangeProgress())
    assert (found["rows"]["same"], found["rows"]["changed"], found["rows"]["samples"]) == (
        11,
        0,
        [],
    )
    assert found["dead_letters"]["same"] == 1
    before = rows_of(lake.spec, "_offset", "a")
    swap(lake)
    assert rows_of(lake.spec, "_offset", "a") == before


def test_a_shadow_is_discarded_with_its_files(lake: Lake) -> None:
    fill(lake, RANGES)
    assert shadow.discard(lake.spec) == {"table": "readings", "discarded": True}
    beside = shadow.shadow_of(lake.spec).place
    assert not any(Path(place.path).exists() for place in (beside, dead_letters_place(beside)))
    assert shadow.discard(lake.spec) == {"table": "readings", "discarded": False}
    fill(lake, RANGES, replay="r2")
    assert shadow.Shadow.open(lake.spec).replay == "r2"


def test_a_column_that_changed_meanwhile_keeps_the_table_as_it_is(lake: Lake) -> None:
    corrected(lake)
    fill(lake, RANGES)
    TableWriter(lake.spec, "other").table.commit(Change(columns=[Column("b", "b", "double")]))
    with pytest.raises(Conflict, match="other columns than its shadow"):
        swap(lake)


def test_partitions_are_those_of_the_table(server: StreamServer, tmp_path: Path) -> None:
    for table_format in ("delta", "iceberg"):
        one = Lake(server, tmp_path / table_format, table_format)
        one.spec = replace(one.spec, partition_by=("day(_published_at)", "_topic"))
        one.publish([{"a": n} for n in range(12)])
        writer = TableWriter(one.spec, "job")
        writer.write(tasks(records(0, [{"a": n} for n in range(12)])))
        one.republish([{"a": -n} for n in range(12)])
        fill(one, [Range(0, 3, 9)])
        swap(one)
        assert rows_of(one.spec, "_offset", "a") == [
            (n, float(-n if 3 <= n < 9 else n)) for n in range(12)
        ]
        table = open_table(one.spec.format, one.spec.place, one.spec.binding)
        assert table is not None
        assert table.partitions() == one.spec.partition_by


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_columns_are_those_of_the_table_whatever_the_shadow_reads(
    server: StreamServer, tmp_path: Path, table_format: str
) -> None:
    one = Lake(server, tmp_path, table_format)
    one.publish([{"a": 1.5}, {"a": "text"}, {"a": 2.5}])
    one.fill()
    one.republish([{"a": "x"}, {"a": "text"}, {"a": 7.5}])
    assert fill(one, [Range(0, 0, 3)]).as_dict("readings")["dead_letters"] == 2
    raw = replace(one.spec, kind="topics", columns=RAW, place=one.spec.place.beside("_raw"))
    TableWriter(raw, "job").write(tasks(records(0, [{"a": 1}, b"text"])))
    shadow.fill(
        raw, "r1", [Range(0, 0, 2)], lambda _: iter([tasks(records(0, [{"a": 1}, b"text"]))])
    )
    found = compare(None, raw, RangeProgress())["rows"]
    assert (found["same"], found["changed"]) == (2, 0)
    assert rows_of(shadow.shadow_of(raw), "payload") == rows_of(raw, "payload")


def test_a_table_with_a_key_has_no_shadow(server: StreamServer, tmp_path: Path) -> None:
    one = Lake(server, tmp_path, "delta")
    with pytest.raises(Invalid, match="has a key"):
        shadow.check_new(replace(one.spec, upsert=Upsert.of(["a"], "", 1)))
