"""Compaction, expiry of versions, and retention of rows of real tables, and the audit after each."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyiceberg.table import Table

from bridges.spark.broker_side.states import advice_of
from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import TableWriter, figures_of
from bridges.spark.driver.history import history_of
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.replay import ReplayRun
from bridges.spark.driver.upkeep import (
    Retention,
    compact,
    expire,
    remove_rows,
    retain,
    tables_of,
    tidy,
)
from bridges.spark.tables import contract, iceberg
from bridges.spark.tables.catalogs import catalog_of
from bridges.spark.tables.contract import TableRefused
from bridges.spark.tables.formats import open_table
from broker.cli.lake import audit_text
from tests.bridges.spark.batches import dead_letters_of, rows_of
from tests.bridges.spark.stream_server import START_US, TOKEN, StreamServer
from tests.bridges.spark.test_lake_audit import Lake


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, server: StreamServer, tmp_path: Path) -> Lake:
    return Lake(server, tmp_path, request.param)


def fill(lake: Lake, batches: int) -> None:
    for _ in range(batches):
        lake.publish([{"a": 1}, b"bad"])
        lake.fill()


def problems(lake: Lake) -> list[str]:
    return audit_spec(lake.api_spec, lake.positions()).problems


def at(offset: int) -> datetime:
    """When a record was published."""
    return datetime.fromtimestamp((START_US + 1000 * offset) / 1_000_000, UTC)


def as_iceberg(lake: Lake) -> Table:
    return catalog_of(lake.spec.place).load_table(iceberg._identifier(lake.spec.place))


def test_a_compaction_joins_what_its_preview_says_and_loses_no_offset(lake: Lake) -> None:
    fill(lake, 4)
    planned = compact("readings", tables_of(lake.spec), dry_run=True)
    assert (planned["files"], planned["files_after"]) == (8, 2), "rows and dead letters"
    assert len(open_table(lake.spec.format, lake.spec.place, lake.spec.binding).files()) == 4  # type: ignore[union-attr]
    done = compact("readings", tables_of(lake.spec), dry_run=False)
    assert done == {**planned, "dry_run": False}
    assert compact("readings", tables_of(lake.spec), dry_run=True)["files"] == 0
    writer = TableWriter(lake.spec, "job")
    assert (writer.table.first(0), writer.table.next(0)) == (0, 8)
    fill(lake, 1)
    assert problems(lake) == []
    assert len(rows_of(lake.spec, "_offset")) == len(dead_letters_of(lake.spec, "_offset")) == 5


def test_a_batch_that_is_committed_meanwhile_does_not_stop_a_compaction(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(lake, 3)
    module, name = (iceberg, "join_files") if lake.spec.format == "iceberg" else (contract, "bins")
    real = getattr(module, name)

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(module, name, real)
        fill(lake, 1)
        return real(*arguments)

    monkeypatch.setattr(module, name, overtaken)
    tables = tables_of(lake.spec)
    compact("readings", tables, dry_run=True)
    compact("readings", tables, dry_run=False)
    assert problems(lake) == []
    assert len(rows_of(lake.spec, "_offset")) == 4


def test_partitions_are_joined_each_for_itself(server: StreamServer, tmp_path: Path) -> None:
    for table_format in ("delta", "iceberg"):
        lake = Lake(server, tmp_path / table_format, table_format)
        lake.api_spec["partition_by"] = ["_client_id"]
        lake.spec = lake.spec.of_api(lake.api_spec, lake.positions())
        for _ in range(3):
            lake.publish([{"a": 1}, {"a": 2}])
            lake.fill()
        planned = compact("readings", tables_of(lake.spec), dry_run=True)
        assert (planned["files"], planned["files_after"]) == (6, 2)
        compact("readings", tables_of(lake.spec), dry_run=False)
        clients = [f"meter-{n}" for n in range(2)]
        assert [client for (client,) in rows_of(lake.spec, "_client_id")] == clients * 3
        assert problems(lake) == []
        assert figures_of(tables_of(lake.spec)[0]).partitions == 2


def test_an_expiry_removes_old_versions_with_their_files_and_keeps_what_is_named(
    lake: Lake,
) -> None:
    fill(lake, 3)
    if lake.spec.format == "iceberg":
        table = as_iceberg(lake)
        table.manage_snapshots().create_tag(
            table.metadata.snapshots[0].snapshot_id, "promised"
        ).commit()
    compact("readings", tables_of(lake.spec), dry_run=False)
    assert expire("readings", tables_of(lake.spec), 3600, dry_run=True)["files"] == 0, (
        "nothing is an hour old"
    )
    before = set(Path(lake.spec.place.path).rglob("*.parquet"))
    planned = expire("readings", tables_of(lake.spec), 0, dry_run=True)
    assert set(Path(lake.spec.place.path).rglob("*.parquet")) == before
    assert planned["files"] >= 6 - (1 if lake.spec.format == "iceberg" else 0)
    assert planned["bytes"] > 0
    done = expire("readings", tables_of(lake.spec), 0, dry_run=False)
    assert done == {**planned, "dry_run": False}
    left = set(Path(lake.spec.place.path).rglob("*.parquet"))
    if lake.spec.format == "iceberg":
        promised = as_iceberg(lake).metadata.refs["promised"].snapshot_id
        assert as_iceberg(lake).scan(snapshot_id=promised).to_arrow().num_rows == 1
        assert planned["snapshots"] >= 2
        assert len(left) == 2, "the joined file, and that of the tag"
    else:
        assert len(left) == 1
    fill(lake, 1)
    assert problems(lake) == []


def test_a_delta_table_that_promises_readers_more_is_not_expired(
    server: StreamServer, tmp_path: Path
) -> None:
    lake = Lake(server, tmp_path, "delta")
    fill(lake, 2)
    promise = {"delta.deletedFileRetentionDuration": "interval 2 days"}
    DeltaTable(lake.spec.place.path).alter.set_table_properties(promise)
    with pytest.raises(
        TableRefused, match="promises readers 'interval 2 days', more than asked for"
    ):
        expire("readings", tables_of(lake.spec), 24 * 3600, dry_run=True)
    assert expire("readings", tables_of(lake.spec), 3 * 24 * 3600, dry_run=True)["files"] == 0


def test_rows_removed_by_their_age_are_known_to_the_audit(lake: Lake) -> None:
    fill(lake, 3)
    assert remove_rows(lake.spec, "job", at(3)) == 3
    assert rows_of(lake.spec, "_offset") == [(4,)]
    assert dead_letters_of(lake.spec, "_offset") == [(3,), (5,)]
    report = audit_spec(lake.api_spec, lake.positions())
    assert report.problems == []
    [shard] = report.shards
    assert (shard.rows, shard.dead_letters, shard.removed, shard.missing) == (1, 2, 3, 0)
    assert "+ 3 removed by their age" in audit_text(report.as_dict())
    assert remove_rows(lake.spec, "job", at(3)) == 0
    tidy(lake.spec, Ledger(lake.spec.place, "readings"), time.monotonic())
    assert remove_rows(lake.spec, "job", at(4)) == 1
    fill(lake, 2)
    assert problems(lake) == []
    table = open_table(lake.spec.format, lake.spec.place, lake.spec.binding)
    assert "old rows removed" in [one["operation"] for one in history_of(table, 20)["versions"]]
    assert table is not None
    assert (table.first(0), table.next(0)) == (0, 10)


def test_a_row_that_is_lost_beside_removed_ones_is_missing(
    server: StreamServer, tmp_path: Path
) -> None:
    lake = Lake(server, tmp_path, "delta")
    lake.publish([{"a": n} for n in range(10)])
    lake.fill()
    DeltaTable(lake.spec.place.path).delete("_offset = 2")
    remove_rows(lake.spec, "job", at(5))
    # Which one it is cannot be told.
    [problem] = problems(lake)
    assert problem == "shard 0: 5 records are in neither (0, 1, 2, 3, 4)"
    DeltaTable(lake.spec.place.path).delete("_offset = 7")
    assert "(0, 1, 2, 3, 4, ...)" in problems(lake)[0]


def test_whole_files_go_where_partitions_are_by_time(server: StreamServer, tmp_path: Path) -> None:
    for table_format in ("delta", "iceberg"):
        lake = Lake(server, tmp_path / table_format, table_format)
        lake.api_spec["partition_by"] = ["day(_published_at)"]
        lake.spec = lake.spec.of_api(lake.api_spec, lake.positions())
        lake.publish([{"a": 1}] * 3)
        lake.fill()
        files = set(Path(lake.spec.place.path).glob("part-*.parquet"))
        assert remove_rows(lake.spec, "job", at(2)) == 0, "the day has not ended"
        assert remove_rows(lake.spec, "job", datetime(2026, 1, 2, 12, tzinfo=UTC)) == 3
        assert set(Path(lake.spec.place.path).glob("part-*.parquet")) == files, (
            "none was written again"
        )
        assert problems(lake) == []
        if table_format == "delta":
            log = (
                sorted(Path(lake.spec.place.path, "_delta_log").glob("*.json"))[-1]
                .read_text()
                .splitlines()
            )
            assert [
                key for line in log for key in json.loads(line) if key in ("add", "remove")
            ] == ["remove"]


def test_the_lake_job_runs_what_was_ordered_beside_the_batches(lake: Lake) -> None:
    fill(lake, 3)
    order: dict[str, Any] = {
        "id": "o1",
        "ranges": [],
        "columns": [],
        "rule_text": None,
        "retype": None,
    }
    order |= {"accept_gap": False, "clean": None, "cancel": False}
    for wanted in ({"compact": True}, {"expire": {"older_than_s": 0.0}}):
        table = {**lake.api_spec, "replay": {**order, **wanted}}
        run = ReplayRun(None, LakeApi(lake.server.url, TOKEN), table)
        assert not run.is_alone
        run._thread.join(60)
        report = run.report()
        assert (report["error"], report["result"]["files"] > 0) == (None, True)
    rows = retain(lake.spec, "", 0.0, dry_run=True)["rows"]
    assert rows > 0
    run = ReplayRun(
        None,
        LakeApi(lake.server.url, TOKEN),
        table | {"replay": {**order, "retain": {"older_than_s": 0.0}}},
    )
    run._thread.join(60)
    assert (run.is_alone, run.report()["result"]["rows"]) == (False, rows)
    assert retain(lake.spec, "", 0.0, dry_run=True)["rows"] == 0
    assert problems(lake) == []


def test_an_order_does_not_create_a_table_that_is_gone(lake: Lake) -> None:
    fill(lake, 1)
    shutil.rmtree(lake.spec.place.path)
    order: dict[str, Any] = {
        "id": "o1",
        "ranges": [],
        "columns": [],
        "rule_text": None,
        "clean": None,
        "cancel": False,
    }
    retype = {"column": "a", "type": "long"}
    for wanted in ({"retype": None, "accept_gap": True}, {"retype": retype, "accept_gap": False}):
        table = {
            **lake.api_spec,
            "expected": {"": {"id": None, "version": 0}},
            "replay": {**order, **wanted},
        }
        run = ReplayRun(None, LakeApi(lake.server.url, TOKEN), table)
        run._thread.join(60)
        assert f"table {lake.spec.name!r} is gone from" in run.report()["error"]
        assert not Path(lake.spec.place.path).exists()


def test_retention_is_applied_once_an_hour(server: StreamServer, tmp_path: Path) -> None:
    lake = Lake(server, tmp_path, "delta")
    fill(lake, 1)
    assert Retention(None).apply(lake.spec, "job", 0.0) == 0
    retention = Retention(3600.0)
    assert retention.apply(lake.spec, "job", 10.0) == 2
    fill(lake, 1)
    assert retention.apply(lake.spec, "job", 3000.0) == 0
    assert retention.apply(lake.spec, "job", 3611.0) == 2
    assert problems(lake) == []


@pytest.mark.parametrize(
    ("report", "partition_by", "starts"),
    [
        ({}, [], []),
        ({"rows": 10, "files": 99, "bytes": 198_000_000, "partitions": 1}, [], ["99 files average 2.0 MB. Try:"]),
        ({"rows": 10, "files": 29, "bytes": 29_000, "partitions": 1}, [], []),
        (
            {"rows": 3_000_000, "files": 1200, "bytes": 90_000_000, "partitions": 1200},
            ["_client_id"],
            ["1,200 partitions for 3,000,000 rows. Try: partitions that are larger"],
        ),
        ({"rows": 10, "files": 2000, "bytes": 200 * 10**9, "partitions": 1}, [], ["200 GB without partitions"]),
    ],
)  # fmt: skip
def test_advice_comes_out_of_reported_figures(
    report: dict[str, int], partition_by: list[str], starts: list[str]
) -> None:
    found = advice_of("readings", report, partition_by)
    assert [text[: len(start)] for text, start in zip(found, starts, strict=True)] == starts
