"""One stream into many tables in a real Spark, with a driver that is killed between their commits."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.audit import audit_table
from bridges.spark.driver.query import QuerySettings, TableQuery
from tests.bridges.spark.conftest import ROOT
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.support.node import eventually

pytestmark = pytest.mark.spark

DEADLINE_S = 180.0
FORMATS = ("delta", "iceberg")
SITES = ("berlin", "paris", "rome")
DYING = """
import os, signal, sys, threading
from bridges.spark.driver import member_places as places, members as writer

places._AT_ONCE = 1
commit, both, committed = writer.MembersWriter._commit_member, threading.Barrier(2), set()

def commit_one(self, name, *given):
    if self.spec.name in committed:
        both.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self, name, *given)
    committed.add(self.spec.name)

writer.MembersWriter._commit_member = commit_one
from bridges.spark.job import main
main(sys.argv[1:])
"""
"""A driver that is killed when each of its two tables has committed one of its members, and no other."""


def read(table_format: str, path: str) -> pa.Table:
    """A table as another reader sees it."""
    if table_format == "delta":
        return DeltaTable(path).to_pyarrow_table()
    return StaticTable.from_metadata(path).scan().to_arrow()


@pytest.fixture
def run_query(
    spark: Any, server: StreamServer, tmp_path: Path
) -> Iterator[Callable[[dict[str, Any]], TableQuery]]:
    queries: list[TableQuery] = []

    def run(spec: dict[str, Any]) -> TableQuery:
        settings = QuerySettings(max_rows=1000, job="test")
        queries.append(
            TableQuery(spark, LakeApi(server.url, TOKEN), spec, settings, time.monotonic)
        )
        return queries[-1]

    yield run
    for query in queries:
        query.stop()


def add_table(server: StreamServer, directory: Path, table_format: str) -> dict[str, Any]:
    server.make(table_format)
    columns = [{"name": "site", "type": "string"}, {"name": "n", "type": "long"}]
    table: dict[str, Any] = {
        "name": table_format,
        "stream": table_format,
        "format": table_format,
        "columns": columns,
    }
    table |= {
        "path": str(directory / table_format),
        "tables": "t_${site}",
        "max_tables": len(SITES),
    }
    server.tables[table_format] = {**table, "commit_interval": 0.2, "commit_rows": 100_000}
    return server.tables[table_format]


def rows(first: int, last: int) -> list[bytes | dict[str, Any]]:
    """Records of three sites, of which each hundredth has a name that is none."""
    return [
        {"site": "no/name" if n % 100 == 99 else SITES[n % 3], "n": n} for n in range(first, last)
    ]


def test_each_record_is_in_one_table_though_the_driver_is_killed_between_their_commits(
    run_query: Callable[[dict[str, Any]], TableQuery], server: StreamServer, tmp_path: Path
) -> None:
    specs = [add_table(server, tmp_path, table_format) for table_format in FORMATS]
    for name in FORMATS:
        server.append(name, rows(0, 1000))
    arguments = ["--url", server.url, "--directory", str(tmp_path / "job"), "--master", "local[2]"]
    driver = subprocess.Popen([sys.executable, "-c", DYING, *arguments], cwd=ROOT)
    family: list[psutil.Process] = []

    def killed() -> bool:
        if driver.poll() is None:
            family[:] = psutil.Process(driver.pid).children(recursive=True)
        return driver.poll() == -9

    eventually(killed, DEADLINE_S, what="the driver to reach the second member's commit")
    psutil.wait_procs(family, DEADLINE_S)
    for name in FORMATS:
        there = {site: Path(tmp_path, f"{name}__tables", f"t_{site}") for site in SITES}
        found = {site: read(name, str(path)).num_rows for site, path in there.items()}
        assert sorted(map(bool, found.values())) == [False, False, True], found
        assert read(name, str(tmp_path / name)).num_rows == 0
        server.append(name, [*rows(1000, 2500), {"site": "oslo", "n": 0}])
    for spec in specs:
        query = run_query(spec)

        def reached(query: TableQuery = query) -> bool:
            query.step()
            return bool(query.report()["offsets"].get("0") == "2501")

        eventually(reached, DEADLINE_S, what="the end of the stream")
        report = query.report()
        _assert_once(spec, report)
        assert (report["rows"], report["dead_letters"], report["over_max_tables"]) == (2475, 26, 1)
        audit = audit_table(spec["name"], url=server.url, token=TOKEN)
        assert (audit.problems, audit.tables) == ([], [f"t_{site}" for site in SITES])


def _assert_once(spec: dict[str, Any], report: dict[str, Any]) -> None:
    for one, site in zip(report["tables"], SITES, strict=True):
        table = read(spec["format"], one["path"])
        wanted = [n for n in range(2500) if SITES[n % 3] == site and n % 100 != 99]
        assert one["name"] == f"t_{site}"
        assert one["rows"] == table.num_rows == len(wanted)
        assert sorted(table.column("n").to_pylist()) == wanted
        with duckdb.connect() as connection:
            connection.register("rows", table)
            found = connection.execute(
                "select count(*), count(distinct _offset), min(site), max(site) from rows"
            )
            assert found.fetchall() == [(len(wanted), len(wanted), site, site)]
    letters = read(spec["format"], f"{spec['path']}__dead_letters")
    assert sorted(letters.column("_offset").to_pylist()) == [*range(99, 2500, 100), 2500]
    assert (
        "table 't_oslo' would be one more than max_tables, which is 3"
        in letters.column("_error").to_pylist()
    )
