"""Iceberg's own jars maintain a table while it is written to: files, manifests and snapshots are theirs to change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import pytest

from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.java import find_java
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.upkeep import tidy
from bridges.spark.tables import contract
from bridges.spark.tables.contract import CommitConflict
from tests.bridges.spark.batches import rows_of
from tests.bridges.spark.conftest import ROOT
from tests.bridges.spark.stream_server import StreamServer
from tests.bridges.spark.test_lake_audit import Lake
from tests.support.downloads import pyspark
from tests.support.environments import environment
from tests.support.jars import jars
from tests.support.lake_readers import DUCKDB

pytestmark = [pytest.mark.spark, pytest.mark.heavy, pytest.mark.timeout(900)]

SPARK = "4.1.4"
"""The newest that Iceberg has a runtime for."""
JARS = """
<dependency org="org.apache.iceberg" name="iceberg-spark-runtime-4.1_2.13" rev="1.12.0" conf="default->master(*)"/>
"""
ROUNDS = 3
PAUSE_S = 0.3
"""Between commits: the tables of others commit every few seconds."""


def test_rewrites_and_expiry_by_icebergs_jars_lose_no_offset_and_no_row(
    server: StreamServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "MANY_SMALL_FILES", 20)
    lake = Lake(server, tmp_path, "iceberg")
    fill(lake, 10)
    ledger, commits = Ledger(lake.spec.place, lake.spec.name), 0
    with ThreadPoolExecutor() as pool:
        maintained = pool.submit(maintain, lake, tmp_path)
        while not wait([maintained], PAUSE_S).done:
            fill(lake, 1)
            commits += 1
            if ledger.due(commits):
                with suppress(CommitConflict):
                    # as in the job, where a table is tidied another time
                    tidy(lake.spec, ledger, commits)
    fill(lake, 1)
    rows = len(lake._payloads)
    assert rows_of(lake.spec, "_offset", "a") == [(n, float(n)) for n in range(rows)]
    assert audit_spec(lake.api_spec, lake.positions()).problems == []
    rounds = json.loads(maintained.result())
    assert len(rounds) == ROUNDS
    assert all(counted > before for before, counted in zip([0, *rounds], rounds, strict=False))


def test_duckdb_and_daft_read_a_table_by_its_directory(
    server: StreamServer, tmp_path: Path
) -> None:
    """DuckDB finds the newest version by its name, and Daft the columns by their identifiers."""
    lake = Lake(server, tmp_path, "iceberg")
    fill(lake, 2)
    lake.publish([{"a": 2, "b": "new"}])
    lake.fill()
    extensions = [f"duckdb-extension-{name}=={DUCKDB}" for name in ("avro", "httpfs", "iceberg")]
    duckdb = environment(f"duckdb=={DUCKDB}", *extensions)
    daft = environment("daft==0.7.26", "pyiceberg==0.12.0")
    for python, code in ((duckdb, _DUCKDB), (daft, _DAFT)):
        command = [str(python), "-c", code, lake.spec.place.path]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        assert json.loads(done.stdout) == [[0, 0.0, None], [1, 1.0, None], [2, 2.0, "new"]]


def fill(lake: Lake, batches: int) -> None:
    for _ in range(batches):
        lake.publish([{"a": len(lake._payloads)}])
        lake.fill()


def maintain(lake: Lake, directory: Path) -> str:
    """Run Spark with Iceberg's jars on the table; how many rows it counted after each round."""
    files = map(str, jars("iceberg-spark-4.1", JARS).glob("*.jar"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (pyspark(SPARK), ROOT)))}
    find_java(directory / "java").apply(environment)
    command = [
        sys.executable,
        "-c",
        _MAINTENANCE,
        lake.spec.place.path,
        ",".join(files),
        str(ROUNDS),
    ]
    done = subprocess.run(
        command, env=environment, cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout.strip().splitlines()[-1]


_DUCKDB = """
import importlib, json, sys
from pathlib import Path
import duckdb

with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as db:
    for name in ("httpfs", "avro", "iceberg"):
        package = importlib.import_module(f"duckdb_extension_{name}")
        [file] = Path(package.__file__).parent.rglob("*.duckdb_extension")
        db.execute(f"LOAD '{file}'")
    print(json.dumps(db.sql(f"SELECT _offset, a, b FROM iceberg_scan('{sys.argv[1]}') ORDER BY 1").fetchall()))
"""
_DAFT = """
import json, sys
import daft
from pyiceberg.table import StaticTable

found = daft.read_iceberg(StaticTable.from_metadata(sys.argv[1])).sort("_offset").to_pydict()
print(json.dumps(list(zip(found["_offset"], found["a"], found["b"]))))
"""
_MAINTENANCE = """
import json, sys
from pyspark.sql import SparkSession

path, jars, rounds = sys.argv[1:]
lake = "spark.sql.catalog.lake"
settings = {
    "spark.jars": jars,
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    lake: "org.apache.iceberg.spark.SparkCatalog",
    f"{lake}.type": "hadoop",
    f"{lake}.warehouse": "file://" + path.rpartition("/")[0],
    f"{lake}.cache-enabled": "false",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
calls = (
    "rewrite_data_files(table => 'readings', options => map('rewrite-all', 'true'))",
    "rewrite_manifests('readings')",
    "expire_snapshots(table => 'readings', older_than => now(), retain_last => 1)",
)
counts = []
for _ in range(int(rounds)):
    for call in calls:
        for attempt in range(50):
            try:
                spark.sql(f"CALL lake.system.{call}").collect()
                break
            except Exception as error:  # the writer was first, and the table says that nobody retries by himself
                failure = error
        else:
            raise failure
    counts.append(spark.table("lake.readings").count())
    assert spark.read.format("iceberg").load(path).count() >= counts[-1]
print(json.dumps(counts))
"""
