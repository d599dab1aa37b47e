"""Iceberg tables that are committed to for a long time: versions and files go, offsets and the audit stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import Table

from bridges.spark.columns.place import path_of
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import TableWriter
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.replay import Replayed
from bridges.spark.driver.upkeep import tidy
from bridges.spark.tables import contract, iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import KEPT_HOURS, Compaction, Range
from bridges.spark.tables.files import join_files
from bridges.spark.tables.formats import open_table
from bridges.spark.tasks.task import Plan, TaskResult
from tests.bridges.spark.batches import records, rows_of, tasks
from tests.bridges.spark.conftest import ROOT
from tests.bridges.spark.stream_server import StreamServer
from tests.bridges.spark.test_lake_audit import Lake

KEPT = 3


@pytest.fixture
def lake(server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """A table that is tidied after a few commits already."""
    monkeypatch.setitem(iceberg._BOUNDS, "history.expire.min-snapshots-to-keep", str(KEPT))
    monkeypatch.setitem(iceberg._BOUNDS, "write.metadata.previous-versions-max", str(KEPT))
    monkeypatch.setitem(iceberg._BOUNDS, "commit.manifest.min-count-to-merge", "2")
    monkeypatch.setattr(iceberg, "_EXPIRED_AT_ONCE", 1)
    monkeypatch.setattr(iceberg, "_NEWEST", KEPT)
    monkeypatch.setattr(contract, "MANY_SMALL_FILES", 5)
    return Lake(server, tmp_path, "iceberg")


def fill(lake: Lake, batches: int) -> None:
    for _ in range(batches):
        at = len(lake._payloads)
        lake.publish([{"a": at}])
        lake.fill()


def tidied(lake: Lake) -> None:
    tidy(lake.spec, Ledger(lake.spec.place, lake.spec.name), time.monotonic())


def foreign(lake: Lake) -> Table:
    """The table as another engine opens it."""
    return catalog_of(lake.spec.place).load_table(iceberg._identifier(lake.spec.place))


def holds_all(lake: Lake, rows: int) -> None:
    assert rows_of(lake.spec, "_offset", "a") == [(n, float(n)) for n in range(rows)]
    assert audit_spec(lake.api_spec, lake.positions()).problems == []


class Clock:
    """The time as the table sees it. Files of metadata that were written since the last step get the time of before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.now, self._directory = 1_800_000_000.0, directory
        self._dated: set[Path] = set()
        monkeypatch.setattr(time, "time", lambda: self.now)

    def step(self, seconds: float) -> None:
        for path in set(self._directory.rglob("*.*")) - self._dated:
            os.utime(path, (self.now, self.now))
            self._dated.add(path)
        self.now += seconds


@pytest.fixture
def clock(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, Path(lake.spec.place.path))


def versions(lake: Lake) -> dict[int, float]:
    """The versions that another engine can open, by number, with the time of each."""
    return {
        int(one.sequence_number or 0): one.timestamp_ms / 1000
        for one in foreign(lake).metadata.snapshots
    }


def test_of_a_day_all_new_versions_stay_and_the_old_ones_that_were_current_at_full_ten_minutes(
    lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "_NEWEST", 5)
    monkeypatch.setattr(contract, "MANY_SMALL_FILES", 1000)
    for _ in range(20):
        fill(lake, 1)
        tidied(lake)
        clock.step(130)
    # The clock began at a full ten minutes, and versions are from 0, 130, 260, ... seconds.
    current_at = [int(moment // 130) + 1 for moment in range(600, 20 * 130, 600)]
    newest = list(range(16, 21))
    assert list(versions(lake)) == sorted({*current_at, *newest})
    scanned = foreign(lake).scan(snapshot_id=foreign(lake).metadata.snapshots[0].snapshot_id)
    assert scanned.to_arrow().num_rows == current_at[0]
    clock.step(24 * 3600)
    fill(lake, 1)
    tidied(lake)
    assert list(versions(lake)) == [19, 20, 21], (
        "replaced a moment ago, and the least that the table's property says"
    )
    holds_all(lake, 21)


def test_a_reader_of_any_version_can_finish_for_a_day(lake: Lake, clock: Clock) -> None:
    """Small files are joined meanwhile, manifests merged, and versions thinned out."""
    opened: list[tuple[float, Table]] = []
    for _ in range(4):
        for _ in range(6):
            fill(lake, 1)
            opened.append((clock.now, foreign(lake)))
            tidied(lake)
            clock.step(100)
    assert len(foreign(lake).inspect.files()) < 10, "files were joined"
    for step_s in (3600, 12 * 3600, 10 * 3600):
        clock.step(step_s)
        fill(lake, 1)
        tidied(lake)
        for rows, (at, table) in enumerate(opened, 1):
            if clock.now < at + 24 * 3600:
                assert table.scan().to_arrow().num_rows == rows
    clock.step(2 * 24 * 3600)
    fill(lake, 1)
    tidied(lake)
    table = foreign(lake)
    used = {Path(path_of(one.manifest_list)).name for one in table.metadata.snapshots}
    used |= {
        Path(path_of(part.manifest_path)).name
        for one in table.metadata.snapshots
        for part in one.manifests(table.io)
    }
    assert {path.name for path in Path(lake.spec.place.path, "metadata").glob("*.avro")} == used
    holds_all(lake, 28)


def test_a_version_that_was_current_until_now_stays(lake: Lake, clock: Clock) -> None:
    fill(lake, KEPT + 3)
    clock.step(30 * 24 * 3600)
    opened = foreign(lake)
    for _ in range(KEPT + 2):
        fill(lake, 1)
        tidied(lake)
        clock.step(10)
    assert opened.scan().to_arrow().num_rows == KEPT + 3
    assert (
        foreign(lake).scan(snapshot_id=opened.metadata.current_snapshot_id).to_arrow().num_rows
        == KEPT + 3
    )


def test_settings_of_the_table_decide_how_long_versions_stay(
    lake: Lake, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "_NEWEST", 100)
    fill(lake, 2)
    with foreign(lake).transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": str(3600 * 1000)})
        transaction.set_properties({"write.metadata.previous-versions-max": "20"})
    clock.step(3599)
    fill(lake, KEPT + 1)
    tidied(lake)
    assert {1, 2} < versions(lake).keys()
    assert foreign(lake).properties["write.metadata.previous-versions-max"] == str(KEPT), (
        "20 is of an earlier release"
    )
    clock.step(3601)
    fill(lake, 1)
    tidied(lake)
    assert len(versions(lake)) <= KEPT + 1, (
        "the least that its property says, and what was replaced now"
    )


def test_files_that_no_version_refers_to_go_after_a_week(lake: Lake) -> None:
    fill(lake, 6)
    left, fresh = (
        Path(lake.spec.place.path, "left.parquet"),
        Path(lake.spec.place.path, "fresh.parquet"),
    )
    for path in (left, fresh):
        path.write_bytes(b"of a task whose commit failed")
    long_ago = time.time() - KEPT_HOURS * 3600 - 60
    for path in Path(lake.spec.place.path).rglob("*"):
        if path.is_file() and path != fresh:
            os.utime(path, (long_ago, long_ago))
    tidied(lake)
    assert not left.exists()
    assert fresh.exists()
    holds_all(lake, 6)


def test_another_engine_may_expire_and_rewrite_at_any_time(lake: Lake) -> None:
    fill(lake, 6)
    Replayed(lake.spec).run((Range(0, 1, 3),), lake.read)
    fill(lake, 2)
    foreign(lake).maintenance.expire_snapshots().older_than(
        datetime.now() + timedelta(days=1)
    ).commit()
    assert len(foreign(lake).metadata.snapshots) == 1
    holds_all(lake, 8)

    writer = TableWriter(lake.spec, "job")
    lake.publish([{"a": 8}])

    def overtaken(plan: Plan) -> list[TaskResult]:
        results = tasks(records(8, [{"a": 8}]))(plan)
        table = foreign(lake)
        table.overwrite(table.scan().to_arrow())
        table.maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
        return results

    assert writer.write(overtaken).written == 1
    assert writer.write(overtaken).written == 0, "the offsets are not forgotten"
    tidied(lake)
    fill(lake, 3)
    tidied(lake)
    holds_all(lake, 12)
    ledger = Ledger(lake.spec.place, "readings").rows(writer.table.identity()).to_pylist()
    assert [(row["from_offset"], row["to_offset"]) for row in ledger if row["replay"]] == [(1, 3)]


def test_files_that_another_engine_rewrote_are_not_joined(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, 6)

    def overtaken(*arguments: Any) -> None:
        join_files(*arguments)
        table = foreign(lake)
        table.overwrite(table.scan().to_arrow())

    monkeypatch.setattr(iceberg, "join_files", overtaken)
    table = open_table("iceberg", lake.spec.place, lake.spec.binding)
    assert table is not None
    assert table.compact(dry_run=True).files == 6
    assert table.compact() == Compaction()
    holds_all(lake, 6)


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        ("catalogs.PlaceCatalog", "commit_table", 0),  # before old snapshots are removed
        ("PlaceIO", "delete", 0),  # after that, before the metadata that lists them is
        ("PlaceIO", "delete", 2),
        ("catalogs.PlaceCatalog", "commit_table", 1),  # before the joined files are committed
        ("catalogs.PlaceCatalog", "commit_table", 2),  # before unused files are looked for
        ("iceberg.IcebergLakeTable", "_sweep", 0),  # after that
    ],
)
def test_killed_while_tidying_nothing_is_lost_or_doubled(
    lake: Lake, owner: str, name: str, calls: int
) -> None:
    fill(lake, 7)
    arguments = [lake.spec.place.url, lake.spec.binding.epoch, owner, name, str(calls)]
    killed = subprocess.run([sys.executable, "-c", _KILLED, *arguments], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    holds_all(lake, 7)
    fill(lake, 2)
    tidied(lake)
    fill(lake, 5)
    tidied(lake)
    holds_all(lake, 14)


_KILLED = """
import os, signal, sys, time
from bridges.spark.driver.batch import TableSpec
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.upkeep import tidy
from bridges.spark.tables import catalogs, contract, iceberg
from bridges.spark.tables.place_catalog import PlaceIO
from bridges.spark.tables.contract import Binding
from bridges.spark.columns.place import Place

path, epoch, owner, name, calls = sys.argv[1:]
iceberg._EXPIRED_AT_ONCE, iceberg._NEWEST, contract.MANY_SMALL_FILES = 1, 3, 5
left, owner = int(calls), eval(owner)
real = getattr(owner, name)

def dies(*arguments, **named):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return real(*arguments, **named)

setattr(owner, name, dies)
place = Place(path)
spec = TableSpec("readings", "iceberg", place, "rows", Binding("hot", epoch))
tidy(spec, Ledger(place, "readings"), time.monotonic())
"""
