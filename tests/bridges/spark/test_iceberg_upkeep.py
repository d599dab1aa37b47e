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

from bridges.spark.audit import audit_spec
from bridges.spark.batch import TableWriter
from bridges.spark.ledger import Ledger
from bridges.spark.query import tidy
from bridges.spark.replay import Replayed
from bridges.spark.tables import iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import KEPT_HOURS, CommitConflict, Range
from bridges.spark.tables.files import join_files
from bridges.spark.tables.formats import open_table
from bridges.spark.tables.place import path_of
from bridges.spark.task import Plan, TaskResult
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
    monkeypatch.setattr(iceberg, "MANY_SMALL_FILES", 5)
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


def test_old_versions_go_with_their_files_and_the_audit_holds(lake: Lake) -> None:
    for _ in range(4):
        fill(lake, 6)
        tidied(lake)
    fill(lake, 1)
    tidied(lake)
    table = foreign(lake)
    assert len(table.metadata.snapshots) == KEPT
    used = {Path(path_of(one.manifest_list)).name for one in table.metadata.snapshots}
    used |= {
        Path(path_of(part.manifest_path)).name for one in table.metadata.snapshots for part in one.manifests(table.io)
    }
    assert {path.name for path in Path(lake.spec.place.path, "metadata").glob("*.avro")} == used
    assert len(list(Path(lake.spec.place.path, "metadata").glob("*.json"))) == KEPT + 1
    assert len(table.inspect.files()) < 5
    holds_all(lake, 25)


def test_files_that_no_version_refers_to_go_after_a_week(lake: Lake) -> None:
    fill(lake, 6)
    left, fresh = Path(lake.spec.place.path, "left.parquet"), Path(lake.spec.place.path, "fresh.parquet")
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
    foreign(lake).maintenance.expire_snapshots().older_than(datetime.now() + timedelta(days=1)).commit()
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


def test_a_rewrite_by_another_engine_stops_the_joining_of_its_files(
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
    with pytest.raises(CommitConflict):
        table.tidy()
    holds_all(lake, 6)


@pytest.mark.parametrize(
    ("owner", "name", "calls"),
    [
        ("catalogs.SqlCatalog", "commit_table", 0),  # before old snapshots are removed
        ("PyArrowFileIO", "delete", 0),  # after that, before their files are
        ("PyArrowFileIO", "delete", 2),
        ("catalogs.SqlCatalog", "commit_table", 1),  # before the joined files are committed
        ("iceberg.IcebergLakeTable", "clean", 0),  # after that
    ],
)
def test_killed_while_tidying_nothing_is_lost_or_doubled(lake: Lake, owner: str, name: str, calls: int) -> None:
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
from pyiceberg.io.pyarrow import PyArrowFileIO
from bridges.spark.batch import TableSpec
from bridges.spark.ledger import Ledger
from bridges.spark.query import tidy
from bridges.spark.tables import catalogs, iceberg
from bridges.spark.tables.contract import Binding
from bridges.spark.tables.place import Place

path, epoch, owner, name, calls = sys.argv[1:]
iceberg._EXPIRED_AT_ONCE, iceberg.MANY_SMALL_FILES = 1, 5
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
