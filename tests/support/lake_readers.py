"""Engines of others that read tables of an S3 stand-in, each with its own code of the format.

Each gives the rows that it reads as an Arrow table, all columns or those named.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq

from bridges.spark.driver.java import find_java
from tests.support.downloads import pyspark
from tests.support.environments import environment
from tests.support.jars import jars, one_at_a_time

DUCKDB = "1.5.5"
_ICEBERG = "1.12.0"
ICEBERG_SPARK = "4.1.4"
"""The newest that Iceberg has a runtime for."""
ICEBERG_JARS = f"""
<dependency org="org.apache.iceberg" name="iceberg-spark-runtime-4.1_2.13" rev="{_ICEBERG}" conf="default->master(*)"/>
<dependency org="org.apache.iceberg" name="iceberg-aws-bundle" rev="{_ICEBERG}" conf="default->master(*)"/>
"""


@dataclass(frozen=True)
class Store:
    """An S3 stand-in."""

    endpoint: str
    key: str
    secret: str
    region: str = "us-east-1"


def delta_rs(store: Store, url: str, columns: Sequence[str] = ()) -> pa.Table:
    return _read(sys.executable, _DELTA_RS, store, url, columns)


def pyiceberg(store: Store, metadata: str, columns: Sequence[str] = ()) -> pa.Table:
    return _read(sys.executable, _PYICEBERG, store, metadata, columns)


def duckdb(store: Store, what: str, columns: Sequence[str] = ()) -> pa.Table:
    """``what`` is a call, of ``delta_scan`` or ``iceberg_scan``."""
    extensions = ("avro", "delta", "httpfs", "iceberg")
    packages = [f"duckdb=={DUCKDB}", *(f"duckdb-extension-{name}=={DUCKDB}" for name in extensions)]
    return _read(str(environment(*packages)), _DUCKDB, store, what, columns)


def spark_with_delta(
    store: Store, url: str, directory: Path, columns: Sequence[str] = ()
) -> pa.Table:
    with one_at_a_time("ivy"):  # Spark fetches the jars into Ivy's cache
        return _read(sys.executable, _SPARK_DELTA, store, url, columns, directory)


def spark_with_iceberg(
    store: Store, catalog: str, table: str, directory: Path, columns: Sequence[str] = ()
) -> pa.Table:
    """``catalog`` is the address of a REST catalog, ``table`` its namespace and name there."""
    files = ",".join(map(str, jars("iceberg-spark-aws-4.1", ICEBERG_JARS).glob("*.jar")))
    others = {"PYTHONPATH": str(pyspark(ICEBERG_SPARK))}
    return _read(
        sys.executable, _SPARK_ICEBERG, store, table, columns, directory, others, catalog, files
    )


def _read(
    python: str,
    code: str,
    store: Store,
    what: str,
    columns: Sequence[str],
    directory: Path | None = None,
    others: Mapping[str, str] | None = None,
    *more: str,
) -> pa.Table:
    environ: Mapping[str, str] = {
        "PATH": os.environ["PATH"],
        "HOME": str(Path.home()),
        **(others or {}),
    }
    if directory is not None:
        find_java(directory).apply(environ := {**environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    with TemporaryDirectory() as scratch:
        rows = f"{scratch}/rows.parquet"
        arguments = [
            store.endpoint,
            store.key,
            store.secret,
            store.region,
            what,
            rows,
            ",".join(columns),
            *more,
        ]
        read = [python, "-c", _ARGUMENTS + code, *arguments]
        done = subprocess.run(
            read, env=environ, cwd=directory, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
        return pq.read_table(rows)


_ARGUMENTS = """
import sys
endpoint, key, secret, region, what, out, columns, *more = sys.argv[1:]
columns = columns.split(",") if columns else []
"""
_DELTA_RS = """
import os
import pyarrow.parquet as pq
from deltalake import DeltaTable
options = {
    "aws_endpoint": endpoint, "aws_access_key_id": key, "aws_secret_access_key": secret, "aws_region": region,
    "aws_allow_http": "true",
}
pq.write_table(DeltaTable(what, storage_options=options).to_pyarrow_table(columns=columns or None), out)
os._exit(0)  # threads of Arrow may still read through delta-rs when the interpreter ends
"""
_PYICEBERG = """
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable
properties = {
    "s3.endpoint": endpoint, "s3.access-key-id": key, "s3.secret-access-key": secret, "s3.region": region,
}
table = StaticTable.from_metadata(what, properties)
pq.write_table(table.scan(selected_fields=tuple(columns) or ("*",)).to_arrow(), out)
"""
_DUCKDB = """
import importlib
from pathlib import Path
import duckdb
with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as db:
    for name in ("httpfs", "avro", "iceberg", "delta"):
        package = importlib.import_module(f"duckdb_extension_{name}")
        [file] = Path(package.__file__).parent.rglob("*.duckdb_extension")
        db.execute(f"LOAD '{file}'")
    host = endpoint.removeprefix("http://")
    db.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}', REGION '{region}', ENDPOINT '{host}', "
        f"USE_SSL false, URL_STYLE 'path')"
    )
    db.execute(f"COPY (SELECT {', '.join(columns) or '*'} FROM {what}) TO '{out}' (FORMAT parquet)")
"""
_SPARK_DELTA = """
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
settings = {
    "spark.jars.packages": "io.delta:delta-spark_4.2_2.13:4.4.0,org.apache.hadoop:hadoop-aws:3.5.0,"
    "software.amazon.awssdk:s3:2.35.4,software.amazon.awssdk:s3-transfer-manager:2.35.4,"
    "software.amazon.awssdk:sts:2.35.4",
    "spark.jars.excludes": "software.amazon.awssdk:bundle",  # half a gigabyte of clients of other services
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC",
    "spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.endpoint.region": region,
    "spark.hadoop.fs.s3a.access.key": key, "spark.hadoop.fs.s3a.secret.key": secret,
    "spark.hadoop.fs.s3a.path.style.access": "true", "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
rows = spark.read.format("delta").load(what.replace("s3://", "s3a://"))
pq.write_table(rows.select(*columns or "*").toArrow(), out)
"""
_SPARK_ICEBERG = """
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
uri, files = more
lake = "spark.sql.catalog.lake"
settings = {
    "spark.jars": files, "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false", "spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC",
    lake: "org.apache.iceberg.spark.SparkCatalog", f"{lake}.type": "rest", f"{lake}.uri": uri,
    f"{lake}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO", f"{lake}.s3.endpoint": endpoint,
    f"{lake}.s3.path-style-access": "true", f"{lake}.client.region": region,
    f"{lake}.s3.access-key-id": key, f"{lake}.s3.secret-access-key": secret,
}
builder = SparkSession.builder.master("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
rows = builder.getOrCreate().table(f"lake.{what}")
pq.write_table(rows.select(*columns or "*").toArrow(), out)
"""
