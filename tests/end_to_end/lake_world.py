"""Tables that a cluster fills whose hosts share nothing, with a way to break every part of it, and the account that is
taken afterwards: each message that was published is in each table once, as each reader finds it, and nothing else is in
the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import paho.mqtt.client as paho
import psutil
import pyarrow as pa
import pyarrow.fs as fs
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from tests.end_to_end import readings
from tests.end_to_end.meters import Meter, payload, reason
from tests.support.failing_proxy import FailingProxy
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
from tests.support.network import Network
from tests.support.node import TOKEN, Node, eventually, sluice
from tests.support.processes import ServerProcess
from tests.support.s3_server import KEYS, S3Server
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.spark_cluster import ROOT, SparkCluster

DEADLINE_S: Final = 420.0
DISK_MB: Final = 64
RATE_S: Final = 0.01
"""Between two messages."""
FORMATS: Final = {"delta": "delta", "iceberg": "iceberg", "ruled": "delta", "keyed": "delta"}
"""The tables: rows of a stream in both formats, a rule that Spark runs, a table with a key."""
CATALOG_TABLE: Final = "plant.iceberg"
STORE: Final = """
lake.stores = [{{
  url = "s3://lake", endpoint = "{store}", region = "us-east-1"
  access_key_id = "${{env:SLUICE_SECRET_ACCESS_KEY_ID}}", secret_access_key = "${{env:SLUICE_SECRET_SECRET_ACCESS_KEY}}"
}}]
lake.catalogs = [{{ name = "plant", uri = "{catalog}" }}]
"""
SECRETS: Final = {f"SLUICE_SECRET_{name.upper()}": value for name, value in KEYS.items()}


class Publishing:
    """Messages with numbers, one after the other, until it is paused; the broker may be away meanwhile."""

    def __init__(self, port: int) -> None:
        self._meter = Meter("meter", paho.MQTTv5, 1, 0, port)
        self._going, self._ended = threading.Event(), threading.Event()
        self.sent = 0
        self._client = self._meter.connect()
        self._thread = threading.Thread(target=self._publish, name="publishing")
        self._thread.start()

    def _publish(self) -> None:
        while not self._ended.wait(RATE_S):
            if self._going.wait(0.1):
                self._meter.publish(self._client, self.sent)
                self.sent += 1

    def go_on(self) -> None:
        self._going.set()

    def pause(self) -> None:
        """Publish no more, and wait until the broker has acknowledged everything."""
        self._going.clear()
        eventually(lambda: self._meter.settled == self.sent, DEADLINE_S, what="acknowledgements")
        assert self._meter.refused == {
            number for number in range(self.sent) if payload(number)[0] == "invalid"
        }

    def some_more(self, count: int) -> None:
        """Wait until so many further messages were sent."""
        wanted = self.sent + count
        eventually(lambda: self.sent >= wanted, DEADLINE_S, what="further messages")

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._client.disconnect()
        self._client.loop_stop()

    def expected(self, name: str) -> tuple[dict[int, readings.Row], dict[int, str]]:
        """Rows and reasons of dead letters in a table of this name once it has everything, by number."""
        kinds = {number: payload(number)[0] for number in range(self.sent)}
        taken = [number for number, kind in kinds.items() if kind != "invalid"]
        letters = {number: reason(number) for number in taken if kinds[number] == "misfit"}
        rows = readings.rows_of(taken, in_broker=name != "ruled")
        rows = {number: row for number, row in rows.items() if number not in letters}
        if name == "keyed":
            in_order = sorted(rows.values(), key=lambda row: abs(int(row["n"])))
            rows = {row["n"]: row for row in {row["k"]: row for row in in_order}.values()}
        return rows, letters


class Driver:
    """A lake job in a process of its own, with a JVM."""

    def __init__(self, world: World, name: str, master: str) -> None:
        self.directory, self.log = world.directory / name, world.directory / f"{name}.log"
        command = [
            sys.executable,
            "-m",
            "bridges.spark.job",
            "--url",
            world.node.url,
            "--master",
            master,
        ]
        environ = {
            **os.environ,
            **world.environ,
            **SECRETS,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
        }
        environ |= {"SLUICE_API_TOKEN": TOKEN, "SPARK_CONF_DIR": str(world.conf)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, "--directory", str(self.directory)],
                env=environ, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._began = self.log.stat().st_size

    @property
    def said(self) -> str:
        """Its log since it was started."""
        with self.log.open("rb") as log:
            log.seek(self._began)
            return log.read().decode(errors="replace")

    def kill(self) -> None:
        """``kill -9`` of the driver and its JVM."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()


class World:
    """A broker, a store, a catalog, a cluster of two workers, a driver, and the way to each; enter it by ``world``."""

    def __init__(self, directory: Path, host: Network, environ: dict[str, str]) -> None:
        self.directory, self.host, self.environ = directory, host, environ
        self.conf = directory / "conf"
        self.conf.mkdir()
        settings = {
            "spark.driver.host": host.outside,
            "spark.driver.bindAddress": host.outside,
            "spark.executor.memory": "512m",
            "spark.executor.defaultJavaOptions": " ".join(SHORT_LIVED),
            "spark.executorEnv.SSL_CERT_FILE": environ["SSL_CERT_FILE"],
        }
        (self.conf / "spark-defaults.conf").write_text(
            "".join(f"{name} {value}\n" for name, value in settings.items())
        )
        self.workers: dict[str, ServerProcess] = {}
        self._started = 0
        self.node: Node
        self.s3: S3Server
        self.store: FailingProxy
        self.rest: RestCatalogServer
        self.catalog: FailingProxy
        self.cluster: SparkCluster
        self.hosts: list[Network]
        self.driver_disk: SmallDisk
        self.driver: Driver
        self.publishing: Publishing

    def define(self) -> None:
        """Streams, rules and tables."""
        call = self.node.call
        call("POST", "/streams", {"name": "readings"})
        call("POST", "/streams", {"name": "messages", "topics": ["meters/#"]})
        readings.define(call)
        actions = [{"type": "stream", "stream": "readings"}]
        call("POST", "/rules", {"name": "rows", "sql": readings.IN_BROKER, "actions": actions})
        call("POST", "/rules", {"name": "items", "sql": readings.ITEMS, "actions": actions})
        call("POST", "/rules", {"name": "later", "sql": readings.IN_SPARK})
        given: dict[str, dict[str, Any]] = {
            "iceberg": {"catalog": "plant", "catalog_table": CATALOG_TABLE},
            "ruled": {"rule": "later", "stream": "messages"},
            "keyed": {"key": ["k"]},
        }
        for name, table_format in FORMATS.items():
            base = {
                "name": name,
                "stream": "readings",
                "format": table_format,
                "path": f"s3://lake/{name}",
            }
            call("POST", "/lake/tables", {**base, "commit_interval": 0.5, **given.get(name, {})})

    # -- parts --

    def start_worker(self, host: Network, **environ: str) -> None:
        """A worker with a disk of its own, and nothing of what the broker and the driver write."""
        own = [
            self.directory / "node",
            self.directory / "driver",
            ROOT / "broker",
            ROOT / "bridges",
        ]
        self.workers[host.name] = self.cluster.worker(
            host, own_disk=own, environ=environ, disk_mb=DISK_MB
        )

    def stop_worker(self, host: Network) -> None:
        """``kill -9`` of all that runs on a host."""
        worker = self.workers[host.name]
        for process in psutil.Process(worker.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        worker.kill()

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run the driver's tasks."""
        children = [
            one for worker in self.workers.values() for one in psutil.Process(worker.pid).children()
        ]
        return [one for one in children if "CoarseGrainedExecutorBackend" in _command_of(one)]

    def start_driver(self) -> None:
        self.driver = Driver(self, "driver", self.cluster.url)

    def disk_of(self, host: Network) -> SmallDisk:
        """The disk of a worker's scratch files, by way of its mount namespace."""
        worker = self.workers[host.name]
        return SmallDisk(Path(f"/proc/{worker.pid}/root{worker.log.parent}"), DISK_MB)

    def tables(self) -> dict[str, dict[str, Any]]:
        """How the tables are doing."""
        return {one["name"]: one for one in self.node.call("GET", "/lake/tables")["items"]}

    def settled(self) -> None:
        """Wait until every table is filled, after whatever happened before."""
        for name in FORMATS:
            eventually(lambda name=name: self._is_whole(name), DEADLINE_S, 0.2, f"table {name}")  # type: ignore[misc]

    def _is_whole(self, name: str) -> bool:
        if self.driver.process.poll() is not None:  # as whatever supervises it would do
            self.start_driver()
        table = self.tables()[name]
        # A query that has started since, and found no new record, has shown nothing yet.
        known = {
            member: table.get(member) for member in ("state", "reason", "lag_records", "offsets")
        }
        assert table["state"] in ("running", "starting"), known
        assert table["lag_records"] == 0, known
        return True

    # -- the account --

    def options(self) -> dict[str, str]:
        """The store without the proxy, as delta-rs takes it."""
        keys = {f"aws_{name}": value for name, value in KEYS.items()}
        return {
            **keys,
            "aws_endpoint": self.s3.endpoint,
            "aws_region": "us-east-1",
            "aws_allow_http": "true",
        }

    def iceberg(self) -> Table:
        """The Iceberg table without the proxies."""
        properties = {f"s3.{name.replace('_', '-')}": value for name, value in KEYS.items()}
        catalog = load_catalog(
            "plant",
            type="rest",
            uri=self.rest.url,
            **properties,
            **{"s3.endpoint": self.s3.endpoint},
        )
        return catalog.load_table(CATALOG_TABLE)

    def account(self, *, has_all_readers: bool) -> None:
        """Publish no more, and find every message in every table once, and nothing else in the store."""
        self.publishing.pause()
        self.settled()
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(self._account_of, has_all_readers=has_all_readers), FORMATS))
        eventually(self._is_clean, DEADLINE_S, 0.5, "no file left over")

    def _account_of(self, name: str, *, has_all_readers: bool) -> None:
        rows, letters = self.publishing.expected(name)
        for reader, found in self._read(name, has_all_readers=has_all_readers).items():
            # Where an array or a map of structs is null, pyiceberg reads an empty one.
            readings.check(found, rows, has_empty=reader != "pyiceberg")
        assert readings.errors_of(self._letters(name)) == letters, f"dead letters of {name}"
        audit = sluice(self.node, "audit", name)
        assert audit.returncode == 0, audit.stdout + audit.stderr
        cleaned = sluice(self.node, "lake", "tables", "clean", name, "--older-than", "0s")
        assert cleaned.returncode == 0, cleaned.stdout + cleaned.stderr

    def _read(self, name: str, *, has_all_readers: bool) -> dict[str, pa.Table]:
        """The rows that each reader finds."""
        store, url = Store(self.s3.endpoint, *KEYS.values()), f"s3://lake/{name}"
        if FORMATS[name] == "delta":
            found = {
                "delta-rs": delta_rs(store, url),
                "duckdb": duckdb(store, f"delta_scan('{url}')"),
            }
            if has_all_readers:
                found["spark"] = spark_with_delta(store, url, self.directory)
            return found
        newest = self.iceberg().metadata_location
        found = {
            "pyiceberg": pyiceberg(store, newest),
            "duckdb": duckdb(store, f"iceberg_scan('{newest}')"),
        }
        if has_all_readers:
            found["spark"] = spark_with_iceberg(store, self.rest.url, CATALOG_TABLE, self.directory)
        return found

    def _letters(self, name: str) -> pa.Table:
        """Dead letters of a table."""
        store = Store(self.s3.endpoint, *KEYS.values())
        if FORMATS[name] == "delta":
            return delta_rs(store, f"s3://lake/{name}__dead_letters")
        letters = self.iceberg().catalog.load_table(f"{CATALOG_TABLE}__dead_letters")
        return pyiceberg(store, letters.metadata_location)

    def _is_clean(self) -> bool:
        """A table that was just cleaned may be starting: its check of the executors removes its own files."""
        left = self.orphans()
        assert left == [], left
        return True

    def orphans(self) -> list[str]:
        """Objects of tables and their dead letters that the live metadata does not refer to."""
        live = self._live_of(self.iceberg())
        letters = self.iceberg().catalog.load_table(f"{CATALOG_TABLE}__dead_letters")
        live |= self._live_of(letters)
        for name in (one for one, table_format in FORMATS.items() if table_format == "delta"):
            for url in (f"s3://lake/{name}", f"s3://lake/{name}__dead_letters"):
                live |= {
                    _key(one) for one in DeltaTable(url, storage_options=self.options()).file_uris()
                }
        there = self.s3.files.get_file_info(fs.FileSelector("lake", recursive=True))
        files = {one.path for one in there if one.type is fs.FileType.File}
        return sorted(
            one
            for one in files - live
            if "/_delta_log/" not in one and not one.startswith("lake/_ledger/")
        )

    @staticmethod
    def _live_of(table: Table) -> set[str]:
        metadata = table.metadata
        live = {table.metadata_location, *(one.metadata_file for one in metadata.metadata_log)}
        for snapshot in metadata.snapshots:
            live.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                live.add(manifest.manifest_path)
                live |= {
                    one.data_file.file_path for one in manifest.fetch_manifest_entry(table.io, True)
                }
        return {_key(one) for one in live}


def _command_of(process: psutil.Process) -> str:
    """Its command line, empty where it has ended."""
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def _key(uri: str) -> str:
    return uri.removeprefix("s3://")


@contextmanager
def world(
    directory: Path, hosts: list[Network], environ: dict[str, str], broker: Any
) -> Iterator[World]:
    """Everything started, with an empty table of each kind, on three hosts beside this one; ``broker`` starts one."""
    for name in ("node", "rest", "store", "catalog"):
        (directory / name).mkdir()
    first, *others = hosts
    made = World(directory, first, environ)
    with ExitStack() as stack:
        made.driver_disk = stack.enter_context(small_disk(directory / "driver", DISK_MB))
        made.s3 = stack.enter_context(S3Server(directory, first.outside))
        made.s3.make_bucket("lake")
        made.store = stack.enter_context(
            FailingProxy(made.s3.port, directory / "store", first.outside)
        )
        made.rest = stack.enter_context(
            RestCatalogServer(directory / "rest", made.s3.endpoint, KEYS)
        )
        made.catalog = stack.enter_context(
            FailingProxy(made.rest.port, directory / "catalog", first.outside)
        )
        config = STORE.format(store=made.store.endpoint, catalog=made.catalog.endpoint)
        made.node = stack.enter_context(broker(directory, first.outside, config, SECRETS))
        made.cluster = stack.enter_context(SparkCluster(first, directory / "spark", environ))
        made.hosts = others
        for host in others:
            made.start_worker(host)
        made.define()
        made.publishing = Publishing(made.node.mqtt[1])
        stack.callback(made.publishing.close)
        made.start_driver()
        stack.callback(lambda: made.driver.stop())
        yield made
