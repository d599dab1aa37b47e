"""A table with a rule in a real Spark: filled live, then rebuilt by the corrected rule."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from bridges.spark.driver import progress, replay
from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.audit import audit_table
from bridges.spark.driver.batch import TableSpec, TableWriter
from bridges.spark.driver.query import QuerySettings, TableQuery
from bridges.spark.driver.replay import in_spark
from bridges.spark.tables.contract import Range
from tests.bridges.spark.batches import rows_of
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.bridges.spark.test_rule_tables import HOT, OUTPUT
from tests.support.node import eventually

pytestmark = pytest.mark.spark


def test_a_rule_fills_its_table_and_a_corrected_one_rebuilds_it(
    spark: Any, server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.make("raw", kind="topics")
    server.append("raw", [{"temp": number} for number in range(1000)])
    wrong = _table(tmp_path, HOT.replace("1.8", "1.9"))
    server.tables["readings"] = wrong
    api = LakeApi(server.url, TOKEN)
    query = TableQuery(spark, api, wrong, QuerySettings(300, "test"), time.monotonic)

    def is_written() -> bool:
        query.step()
        return bool(query.report()["offsets"].get("0") == "1000")

    eventually(is_written, 180)
    query.stop()
    assert (query.report()["rows"], query.report()["dead_letters"]) == (979, 0)

    server.tables["readings"] = right = _table(tmp_path, HOT)
    monkeypatch.setattr(progress, "PIECE", 200)
    ranges = [{"shard": 0, "start": 500, "end": 1000}]
    order = {
        "id": "r1",
        "ranges": ranges,
        "columns": OUTPUT,
        "rule_text": right["rule_text"],
        "cancel": False,
    }
    order |= {"retype": None, "accept_gap": False, "clean": None}
    spec = TableSpec.of_api(right, api.stream("raw").positions())
    given_up = replay.ReplayRun(spark, api, {**right, "replay": {**order, "rate": 100}})
    eventually(lambda: given_up.report()["done"] == 200, 180)
    given_up.cancel()
    eventually(lambda: given_up.report()["state"] == "cancelled", 180)
    assert given_up.report()["done"] in (200, 400)
    assert rows_of(spec, "_offset", "f")[-1] == (999, 999 * 1.9 + 32)
    assert len(list(Path(right["path"]).glob("*.parquet"))) == len(
        DeltaTable(right["path"]).file_uris()
    )

    run = replay.ReplayRun(spark, api, {**right, "replay": order})
    eventually(lambda: run.report()["state"] != "running", 180)
    report = run.report()
    assert (report["state"], report["done"], report["error"]) == ("done", 500, None)
    result = report["result"]
    assert (
        result["records"],
        result["rows_before"],
        result["rows_after"],
        result["filtered_after"],
    ) == (
        500,
        500,
        500,
        0,
    )
    found = rows_of(spec, "_offset", "f")
    assert found == [(n, n * (1.9 if n < 500 else 1.8) + 32) for n in range(21, 1000)]
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_corrected_rule_fills_a_shadow_that_is_compared_and_swapped(
    spark: Any,
    server: StreamServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table_format: str,
) -> None:
    server.make("raw", kind="topics")
    server.append("raw", [{"temp": number} for number in range(1000)])
    wrong = {**_table(tmp_path, HOT.replace("1.8", "1.9")), "format": table_format}
    server.tables["readings"] = wrong
    api = LakeApi(server.url, TOKEN)
    spec = TableSpec.of_api(wrong, api.stream("raw").positions())
    everything = [{"shard": 0, "start": 0, "end": 1000}]
    nothing = {
        "retype": None,
        "accept_gap": False,
        "clean": None,
        "cancel": False,
        "ranges": [],
        "columns": OUTPUT,
        "rule_text": wrong["rule_text"],
    }

    def begun(**order: Any) -> replay.ReplayRun:
        return replay.ReplayRun(spark, api, {**wrong, "replay": {"id": "o", **nothing, **order}})

    def done(run: replay.ReplayRun) -> Any:
        eventually(lambda: run.report()["state"] != "running", 180)
        assert run.report()["error"] is None
        return run.report()["result"]

    TableWriter(spec, "job").write(in_spark(spark, api, spec, [Range(0, 0, 1000)]))
    into = {
        "ranges": everything,
        "rule_text": _table(tmp_path, HOT)["rule_text"],
        "into": "shadow",
        "replay": "r1",
    }
    monkeypatch.setattr(progress, "PIECE", 300)
    killed = begun(**into, rate=100)
    eventually(lambda: killed.report()["done"] >= 200, 180)
    killed.cancel()
    eventually(lambda: killed.report()["state"] == "cancelled", 180)
    kept = killed.report()["done"]
    assert kept < 1000
    paused = begun(**into, pause=True)
    eventually(lambda: paused.report()["done"] == kept, 180)
    assert paused.report()["state"] == "running"
    paused.follow({"pause": False, "cancel": False})
    assert {"done": 1000, "rows": 979, "filtered": 21, "is_complete": True}.items() <= done(
        paused
    ).items()
    diff = done(begun(diff=True))["rows"]
    assert (diff["same"], diff["changed"], diff["columns"], len(diff["samples"])) == (
        0,
        979,
        {"f": 979},
        20,
    )
    assert rows_of(spec, "_offset", "f")[-1] == (999, 999 * 1.9 + 32)
    assert done(begun(swap=True))["rows"] == 979
    assert rows_of(spec, "_offset", "f") == [(n, n * 1.8 + 32) for n in range(21, 1000)]
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []
    found = done(begun(audit="deep", rule_text=into["rule_text"]))
    assert (found["problems"], found["shards"][0]["compared"]) == ([], 979)
    [problem] = done(begun(audit="deep"))["problems"]
    assert "the table has changed the rows of 979 records (21, 22, 23, 24, 25, ...)" in problem
    assert done(begun(discard=True)) == {"table": "readings", "discarded": False}


def _table(directory: Path, sql: str) -> dict[str, Any]:
    rule = {"name": "hot", "sql": sql, "node": "node-1"}
    path = str(directory / "readings")
    return {
        "name": "readings", "stream": "raw", "format": "delta", "path": path, "rule": "hot", "columns": OUTPUT,
        "rule_text": rule, "commit_interval": 0.2, "commit_rows": 1,
    }  # fmt: skip
