"""Tables filled by a standalone cluster: master, workers and driver on hosts of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyiceberg.catalog import load_catalog

import bridges.spark.job
from bridges.spark.driver.audit import audit_table
from tests.support.certificates import Authority
from tests.support.iceberg_catalog import RestCatalogServer
from tests.support.jars import SHORT_LIVED
from tests.support.lake_readers import (
    Store,
    delta_rs,
    duckdb,
    pyiceberg,
    spark_with_delta,
    spark_with_iceberg,
)
from tests.support.network import hosts
from tests.support.node import TOKEN, Node, eventually
from tests.support.plain_http import NO_TLS
from tests.support.processes import free_port
from tests.support.s3_server import KEYS, S3Server
from tests.support.spark_cluster import ROOT, SPARK_HOME, SparkCluster, spark_with_the_wheel_alone

pytestmark = [pytest.mark.spark, pytest.mark.heavy, pytest.mark.timeout(2400)]
DEADLINE_S = 300.0
SETTINGS = """
api.allow_clear_text = true
range_server {{ bind = "{host}:0", certfile = "{files.cert}", keyfile = "{files.key}" }}
lake.run_spark = false
"""
STORE = """
lake.stores = [{{
  url = "s3://lake", endpoint = "{endpoint}", region = "us-east-1"
  access_key_id = "${{env:SLUICE_SECRET_ACCESS_KEY_ID}}", secret_access_key = "${{env:SLUICE_SECRET_SECRET_ACCESS_KEY}}"
}}]
lake.catalogs = [{{ name = "plant", uri = "{catalog}" }}]
"""


@contextmanager
def broker(
    directory: Path, host: str, config: str = "", environ: dict[str, str] | None = None
) -> Iterator[Node]:
    """One that other hosts reach, whose range server has a certificate of the authority ``Tests-ca.pem``."""
    files = Authority(directory).sign("ranges", {"CN": "ranges"}, [host])
    node = Node(
        directory / "node", config=SETTINGS.format(host=host, files=files) + config, environ=environ
    )
    node.mqtt, node.api = ("127.0.0.1", free_port()), (host, free_port())
    node.start()
    try:
        yield node
    finally:
        node.stop()


@contextmanager
def submitted(
    node: Node, cluster: SparkCluster, environ: dict[str, str], *conf: str
) -> Iterator[None]:
    """The job of the tables under ``spark-submit``, on the broker's host."""
    host, _ = node.api
    settings = {
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.executor.memory": "512m",
        "spark.executor.defaultJavaOptions": " ".join(SHORT_LIVED),
        "spark.executorEnv.SSL_CERT_FILE": environ["SSL_CERT_FILE"],
        **dict(one.split("=", 1) for one in conf),
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [
        *(
            str(SPARK_HOME / "bin" / "spark-submit"),
            "--master",
            cluster.url,
            *options,
            bridges.spark.job.__file__,
        ),
        *("--url", node.url, "--directory", str(node.data_dir.parent / "driver")),
    ]
    with (node.data_dir.parent / "driver.log").open("wb") as log:
        given = {**environ, "PYSPARK_DRIVER_PYTHON": sys.executable, "SLUICE_API_TOKEN": TOKEN}
        driver = subprocess.Popen(
            command, env=given, cwd=log.name.removesuffix("driver.log"), stdout=log, stderr=log
        )
    try:
        yield
    finally:
        driver.terminate()
        driver.wait(60)


def table(node: Node) -> dict[str, Any]:
    found: dict[str, Any] = node.call("GET", "/lake/tables/readings")
    return found


def add_table(node: Node, path: str, messages: int, **spec: Any) -> int:
    """A table of a rule that gives 1,000 rows a message; how many rows it will have."""
    node.call("POST", "/streams", {"name": "readings"})
    sql = 'FOREACH payload.n AS n DO n AS n, clientid FROM "meters/#"'
    actions = [{"type": "stream", "stream": "readings"}]
    node.call("POST", "/rules", {"name": "readings", "sql": sql, "actions": actions})
    node.call(
        "POST", "/lake/tables", {"name": "readings", "stream": "readings", "path": path, **spec}
    )
    with node.client() as client:
        for message in range(messages):
            payload = str({"n": [message * 1000 + number for number in range(1000)]}).replace(
                "'", '"'
            )
            body = {"topic": "meters/1", "payload": payload, "qos": 1}
            client.post("/messages:publish", json=body).raise_for_status()
    return messages * 1000


def test_executors_that_lack_something_are_named_and_the_others_fill_the_table(
    tmp_path: Path,
) -> None:
    environ = spark_with_the_wheel_alone(tmp_path)
    shared = tmp_path / "lake"
    shared.mkdir()
    poor = tmp_path / "poor"
    poor.mkdir()
    for module in Path(environ["PYTHONPATH"]).iterdir():
        if module.name != "msgspec":
            (poor / module.name).symlink_to(module)
    ui = free_port()
    with hosts(3) as [first, second, third], broker(tmp_path, first.outside) as node:
        expected = add_table(node, f"{shared}/readings", 20, commit_interval=0.5)
        environ["SSL_CERT_FILE"] = str(tmp_path / "Tests-ca.pem")
        with SparkCluster(first, tmp_path / "spark", environ) as cluster:
            lacking = [
                cluster.worker(second, environ={"PYTHONPATH": str(poor)}),
                cluster.worker(third, own_disk=[shared]),
            ]
            with submitted(node, cluster, environ, "spark.ui.enabled=true", f"spark.ui.port={ui}"):
                lacks = (
                    f"host '{second.addresses[0]}': package 'msgspec' is missing",
                    f"host '{third.addresses[0]}': it does not see the driver's files in {shared}",
                )
                eventually(
                    lambda: all(lack in (table(node)["reason"] or "") for lack in lacks), DEADLINE_S
                )
                assert (table(node)["state"], table(node)["rows"]) == ("failed", 0)
                for one in lacking:
                    one.kill()
                cluster.worker(second)
                cluster.worker(third)
                eventually(lambda: table(node)["rows"] == expected, DEADLINE_S)
                eventually(lambda: table(node)["state"] == "running", DEADLINE_S)
                page = httpx.get(
                    f"http://{first.outside}:{ui}/executors/", trust_env=False, verify=NO_TLS
                )
                assert page.status_code == 200
        report = audit_table("readings", url=node.url, token=TOKEN)
        assert (report.problems, report.shards[0].rows) == ([], expected)


@pytest.mark.parametrize("table_format", ["delta", "iceberg"])
def test_a_million_rows_are_exact_where_hosts_share_nothing(
    tmp_path: Path, table_format: str
) -> None:
    """Every host has its own network, and its own disk where the others have what the driver and the broker write. The
    Iceberg table is in a REST catalog."""
    environ = spark_with_the_wheel_alone(tmp_path)
    environ["SSL_CERT_FILE"] = str(tmp_path / "Tests-ca.pem")
    secrets = {f"SLUICE_SECRET_{name.upper()}": value for name, value in KEYS.items()}
    for place in ("node", "driver"):
        (tmp_path / place).mkdir()
    own_disk = [tmp_path / "node", tmp_path / "driver", ROOT / "broker", ROOT / "bridges"]
    in_catalog = (
        {"catalog": "plant", "catalog_table": "meters.readings"}
        if table_format == "iceberg"
        else {}
    )
    (tmp_path / "rest").mkdir()
    with (
        hosts(3) as [first, second, third],
        S3Server(tmp_path, first.outside) as s3,
        RestCatalogServer(tmp_path / "rest", s3.endpoint, KEYS) as rest,
        broker(
            tmp_path, first.outside, STORE.format(endpoint=s3.endpoint, catalog=rest.url), secrets
        ) as node,
    ):
        s3.make_bucket("lake")
        expected = add_table(node, "s3://lake/readings", 1000, format=table_format, **in_catalog)
        with SparkCluster(first, tmp_path / "spark", environ) as cluster:
            for host in (second, third):
                cluster.worker(host, own_disk=own_disk)
            with submitted(node, cluster, {**environ, **secrets}):
                eventually(
                    lambda: table(node)["rows"] == expected, 4 * DEADLINE_S, what=f"{table(node)}"
                )
        assert (table(node)["dead_letters"], table(node)["rows"]) == (0, expected)
        store = Store(s3.endpoint, *KEYS.values())
        n = ("n",)
        if table_format == "delta":
            url = "s3://lake/readings"
            found = [delta_rs(store, url, n), duckdb(store, f"delta_scan('{url}')", n)]
            found.append(spark_with_delta(store, url, tmp_path, n))
        else:
            newest = load_catalog("plant", type="rest", uri=rest.url, token="any").load_table(
                "meters.readings"
            )
            location = newest.metadata_location
            found = [pyiceberg(store, location, n), duckdb(store, f"iceberg_scan('{location}')", n)]
            found.append(spark_with_iceberg(store, rest.url, "meters.readings", tmp_path, n))
        for one in found:
            assert sorted(one["n"].to_pylist()) == list(range(expected))
