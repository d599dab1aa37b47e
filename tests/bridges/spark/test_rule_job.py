"""A table with a rule in a real Spark: filled live, then rebuilt by the corrected rule."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from bridges.spark import replay
from bridges.spark.api import LakeApi
from bridges.spark.audit import audit_table
from bridges.spark.batch import TableSpec
from bridges.spark.query import QuerySettings, TableQuery
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
    query = TableQuery(spark, api, wrong, QuerySettings(tmp_path, 300, "test"), time.monotonic)

    def is_written() -> bool:
        query.step()
        return bool(query.report()["offsets"].get("0") == "1000")

    eventually(is_written, 180)
    query.stop()
    assert (query.report()["rows"], query.report()["dead_letters"]) == (979, 0)

    server.tables["readings"] = right = _table(tmp_path, HOT)
    monkeypatch.setattr(replay, "_PIECE", 200)
    ranges = [{"shard": 0, "start": 500, "end": 1000}]
    order = {"id": "r1", "ranges": ranges, "columns": OUTPUT, "rule_text": right["rule_text"], "cancel": False}
    order |= {"retype": None, "accept_gap": False, "clean": None}
    spec = TableSpec.of_api(right, api.stream("raw").positions())
    given_up = replay.ReplayRun(spark, api, {**right, "replay": order})
    given_up.cancel()
    eventually(lambda: given_up.report()["state"] == "cancelled", 180)
    assert given_up.report()["done"] == 200
    assert rows_of(spec, "_offset", "f")[-1] == (999, 999 * 1.9 + 32)
    assert len(list(Path(right["path"]).glob("*.parquet"))) == len(DeltaTable(right["path"]).file_uris())

    run = replay.ReplayRun(spark, api, {**right, "replay": order})
    eventually(lambda: run.report()["state"] != "running", 180)
    report = run.report()
    assert (report["state"], report["done"], report["error"]) == ("done", 500, None)
    result = report["result"]
    assert (result["records"], result["rows_before"], result["rows_after"], result["filtered_after"]) == (
        500,
        500,
        500,
        0,
    )
    found = rows_of(spec, "_offset", "f")
    assert found == [(n, n * (1.9 if n < 500 else 1.8) + 32) for n in range(21, 1000)]
    assert audit_table("readings", url=server.url, token=TOKEN).problems == []


def _table(directory: Path, sql: str) -> dict[str, Any]:
    rule = {"name": "hot", "sql": sql, "node": "node-1"}
    path = str(directory / "readings")
    return {
        "name": "readings", "stream": "raw", "format": "delta", "path": path, "rule": "hot", "columns": OUTPUT,
        "rule_text": rule, "commit_interval": 0.2, "commit_rows": 1,
    }  # fmt: skip
