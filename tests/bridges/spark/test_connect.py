"""Spark Connect: a client without anything of Sluice reads streams through a server with the wheel of the source."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pyspark
import pytest

from bridges.spark.job import JobOptions, run_job
from broker.core.errors import SluiceError
from tests.bridges.spark.stream_server import TOKEN, StreamServer
from tests.support.environments import environment
from tests.support.processes import ServerProcess, free_port, is_open
from tests.support.spark_cluster import SPARK_HOME, spark_with_the_wheel_alone

CLIENT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()

def readings(reader):
    reader = reader.format("sluice").option("url", sys.argv[2]).option("token", sys.argv[3])
    return reader.option("stream", "readings").load().selectExpr("offset")

print(readings(spark.read).count())
query = readings(spark.readStream).writeStream.format("memory").queryName("rows").trigger(availableNow=True).start()
assert query.awaitTermination(120)
print(spark.table("rows").count())
"""
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.mark.heavy
@pytest.mark.spark
def test_streams_are_read_through_connect(server: StreamServer, tmp_path: Path) -> None:
    server.make("readings")
    server.append("readings", [{"n": n} for n in range(1000)])
    port = free_port()
    options = [
        "--class",
        SERVER,
        "--master",
        "local[2]",
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
    ]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), *options, "spark-internal"]
    environ = spark_with_the_wheel_alone(tmp_path)
    client = environment(f"pyspark[connect]=={pyspark.__version__}")
    with ServerProcess(command, tmp_path, lambda: is_open(port), environ=environ):
        arguments = [f"sc://127.0.0.1:{port}", server.url, TOKEN]
        read = [str(client), "-c", CLIENT, *arguments]
        done = subprocess.run(
            read, cwd=tmp_path, env={}, capture_output=True, text=True, check=False
        )
    assert done.stdout.split() == ["1000", "1000"], done.stderr[-3000:]


def test_the_job_of_the_tables_needs_a_driver_of_its_own(tmp_path: Path) -> None:
    options = JobOptions("", "", tmp_path, master="sc://127.0.0.1:15002")
    with pytest.raises(
        SluiceError,
        match=r"such as spark://HOST:7077, got sc://127.0.0.1:15002: .* not fill tables",
    ):
        run_job(options, threading.Event())
