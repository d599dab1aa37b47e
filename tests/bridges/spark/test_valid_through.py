"""Up to which time every record is in a table: what commits say, and how other engines ask for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from bridges.spark.driver.batch import TableSpec
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables import iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.formats import open_table
from pyspark_sluice.client import Positions, ShardPosition
from pyspark_sluice.errors import Unreachable
from tests.bridges.spark.batches import BINDING, records, table_spec, tasks
from tests.bridges.spark.stream_server import START_US

NOW_US = START_US + 3_600_000_000


def stream(*ends: int, now_us: int | None = NOW_US) -> Callable[[], Positions]:
    """The positions of a stream that ends there, a number for each shard."""
    shards = tuple(ShardPosition(shard, 0, end) for shard, end in enumerate(ends))
    return lambda: Positions("hot", "rows", BINDING.epoch, 1, shards, "", "", now_us)


def fill(spec: TableSpec, positions: Callable[[], Positions], *batches: Any) -> int | None:
    """Commit a batch; the time that the table then says, in microseconds after ``START_US``."""
    writer = open_writer(spec, "job")
    writer.positions = positions
    writer.write(tasks(*batches))
    table = open_table(spec.format, spec.place, spec.binding)
    assert table is not None
    found = table.valid_through()
    return None if found is None else found - START_US


@pytest.fixture(params=["delta", "iceberg"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> TableSpec:
    return table_spec(tmp_path, request.param)


SETTLED_US = NOW_US - START_US - 5_000_000


def test_a_table_that_has_read_its_stream_to_the_end_is_valid_through_a_moment_ago(
    spec: TableSpec,
) -> None:
    assert fill(spec, stream(3), records(0, [{"a": n} for n in range(3)])) == SETTLED_US


def test_one_that_has_not_is_valid_through_just_before_its_last_record(spec: TableSpec) -> None:
    rows = [{"a": n} for n in range(3)]
    # the records are a millisecond apart
    assert fill(spec, stream(10), records(0, rows)) == 2000 - 1
    assert fill(spec, stream(10), records(3, rows)) == 5000 - 1
    # the last one is a moment old
    assert fill(spec, stream(9, now_us=START_US + 9000), records(6, rows)) == 8000


def test_the_shard_that_is_furthest_behind_decides_and_an_idle_one_does_not(
    spec: TableSpec,
) -> None:
    spec = replace(spec, shards=(0, 1, 2))
    one, other = records(0, [{"a": 1}] * 5), records(0, [{"a": 1}] * 3, shard=1)
    assert fill(spec, stream(5, 9, 0), one, other) == 2000 - 1
    # of shard 0 nothing is known
    assert fill(spec, stream(9, 9, 0), records(3, [{"a": 1}] * 6, shard=1)) == 2000 - 1
    assert fill(spec, stream(9, 9, 0), records(5, [{"a": 1}] * 4)) == SETTLED_US


def test_it_never_goes_back_and_a_broker_that_is_away_changes_nothing(spec: TableSpec) -> None:
    rows = [{"a": n} for n in range(3)]

    def away() -> Positions:
        raise Unreachable("no answer")

    assert fill(spec, away, records(0, rows)) is None
    assert fill(spec, stream(6), records(3, rows)) == SETTLED_US
    assert fill(spec, stream(20), records(6, rows)) == SETTLED_US
    assert fill(spec, away, records(9, rows)) == SETTLED_US
    assert fill(spec, stream(20, now_us=None), records(12, rows)) == SETTLED_US


def test_other_engines_see_it_in_commits_and_beside_them(spec: TableSpec) -> None:
    fill(spec, stream(9), records(0, [{"a": 1}, {"a": 2}]))
    fill(spec, stream(9), records(2, [{"a": 3}]))
    text, path = "2026-01-01T00:00:00.001999Z", spec.place.path
    if spec.format == "delta":
        assert DeltaTable(path).history(1)[0]["valid-through"] == text
        DeltaTable(path).optimize.compact()
        assert DeltaTable(path).transaction_version("valid-through") == START_US + 1999
        query = (
            f"SELECT max(commitInfo['valid-through']) FROM read_json('{path}/_delta_log/*.json')"
        )
    else:
        table = catalog_of(spec.place).load_table(iceberg._identifier(spec.place))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        assert snapshot.summary is not None
        assert snapshot.summary["valid-through"] == text
        ours = open_table(spec.format, spec.place, spec.binding)
        assert ours is not None
        ours.compact()
        table.refresh()
        assert table.properties["valid-through"] == text
        query = f"SELECT max(properties['valid-through']) FROM read_json('{path}/metadata/*.metadata.json')"
    assert duckdb.connect().execute(query).fetchall() == [(datetime.fromisoformat(text),)]


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_members_and_tables_with_a_key_say_it_too(tmp_path: Path, table_format: str) -> None:
    keyed = TableSpec.of_api(spec_of(tmp_path, table_format, key=["a"]), stream(2)())
    assert fill(keyed, stream(2), records(0, [{"a": 1}, {"a": 1}])) == SETTLED_US
    members = TableSpec.of_api(spec_of(tmp_path, table_format, tables="t_${a}"), stream(2)())
    assert fill(members, stream(2), records(0, [{"a": 1}, {"a": 2}])) == SETTLED_US
    for name in ("t_1", "t_2"):
        if table_format == "delta":
            member = DeltaTable(f"{members.place.path}__tables/{name}")
            assert member.transaction_version("valid-through") == START_US + SETTLED_US


def spec_of(directory: Path, table_format: str, **more: Any) -> dict[str, Any]:
    name = next(iter(more))
    return {
        "name": name, "stream": "hot", "format": table_format, "path": f"{directory}/{name}",
        "columns": [{"name": "a", "type": "long"}], **more,
    }  # fmt: skip
