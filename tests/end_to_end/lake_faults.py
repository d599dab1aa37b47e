"""What is done to a lakehouse while its tables fill. Each fault is seen to have happened, else it proves nothing.

A fault is a context: entering it does the harm, leaving it ends the harm.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import psutil
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyiceberg.exceptions import CommitFailedException

from tests.end_to_end.lake_world import CATALOG_TABLE, DEADLINE_S, FORMATS, Driver, World
from tests.support.downloads import pyspark
from tests.support.jars import jars
from tests.support.lake_readers import ICEBERG_JARS, ICEBERG_SPARK
from tests.support.node import eventually
from tests.support.s3_server import KEYS
from tests.support.small_disk import SmallDisk

Harm = Callable[[World, Random], AbstractContextManager[None]]
COMMITS: Final[dict[str, Any]] = {"method": "PUT", "parts": ["_delta_log/0"]}
"""Of Delta tables, at the store."""
CATALOG_COMMITS: Final[dict[str, Any]] = {"method": "POST", "parts": ["/tables/iceberg"]}
_CONFLICT: Final = json.dumps(
    {"error": {"message": "changed", "type": "CommitFailedException", "code": 409}}
)
_UNAVAILABLE: Final = (
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_ATTEMPTS: Final = 20
_CONTENDED_S: Final = 30.0
"""So long another engine rewrites a table that the job goes on to fill."""
WORKERS_DISK: Final = "disk of a worker full"


# -- processes --


@contextmanager
def executor_killed(world: World, chance: Random) -> Iterator[None]:
    """The JVM of an executor, by ``kill -9``."""
    victim = chance.choice(eventually(world.executors, DEADLINE_S, what="executors"))
    victim.kill()
    eventually(lambda: not _is_alive(victim), what="the end of the executor")
    yield


@contextmanager
def python_killed(world: World, chance: Random) -> Iterator[None]:
    """The Python workers of an executor, by ``kill -9``, while they write or wait."""

    def pythons() -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            children = [
                one for executor in world.executors() for one in executor.children(recursive=True)
            ]
            return [one for one in children if one.name().startswith("python")]
        return []

    victims = eventually(pythons, DEADLINE_S, what="Python workers")
    for victim in victims:
        with suppress(psutil.NoSuchProcess):  # with its parent
            victim.kill()
    eventually(lambda: not any(map(_is_alive, victims)), what="the end of the workers")
    yield


@contextmanager
def host_killed(world: World, chance: Random) -> Iterator[None]:
    """A host with its worker and its executors; it comes back at the end."""
    host = chance.choice(world.hosts)
    world.stop_worker(host)
    yield
    world.start_worker(host)


@contextmanager
def driver_killed(world: World, chance: Random) -> Iterator[None]:
    """The driver, at any moment."""
    world.publishing.some_more(chance.randint(1, 200))
    world.driver.kill()
    yield
    world.start_driver()


@contextmanager
def driver_killed_at_a_commit(
    world: World, chance: Random, *, of: str = "table", holds: Literal["before", "after"] = "after"
) -> Iterator[None]:
    """The driver, while a commit to a table or to its dead letters is about to be done, or was just done.

    The commit that was not done yet may reach the store or the catalog late, when the next driver works.
    """
    name = chance.choice(("delta", "ruled", "keyed", "iceberg"))
    table = name if of == "table" else f"{name}__dead_letters"
    is_late = holds == "before" and chance.random() < 0.5
    proxy, request = world.store, {"method": "PUT", "parts": [f"/{table}/_delta_log/0"]}
    if name == "iceberg":
        proxy, request = world.catalog, {"method": "POST", "end": f"/tables/{table}"}
    fault = proxy.fail(
        **request, times=1, holds=holds, is_dropped=holds == "before" and not is_late
    )
    eventually(lambda: proxy.met_by(fault), DEADLINE_S, what=f"a commit to {table}")
    world.driver.kill()
    if not is_late:
        proxy.heal(fault)
    yield
    world.start_driver()
    if is_late:
        eventually(lambda: "lake.started" in world.driver.said, DEADLINE_S, what="the next driver")
        proxy.heal(fault)


@contextmanager
def scratch_removed(world: World, chance: Random) -> Iterator[None]:
    """The scratch files of Spark, while the driver is down."""
    scratch = world.driver.directory / "_spark"
    assert eventually(lambda: list(scratch.glob("scratch-*")), DEADLINE_S, what="scratch files")
    world.driver.kill()
    shutil.rmtree(scratch)
    assert not scratch.exists()
    yield
    world.start_driver()


@contextmanager
def two_drivers(world: World, chance: Random) -> Iterator[None]:
    """Another driver fills the same tables, with executors of its own."""
    second = Driver(world, f"second-{chance.randrange(1 << 30)}", "local[1,4]")
    try:
        all_started = [f"lake.started table={name}" for name in FORMATS]
        eventually(
            lambda: all(one in second.said for one in all_started),
            DEADLINE_S,
            what="the second driver",
        )
        world.publishing.some_more(100)
        yield
    finally:
        second.stop()
        shutil.rmtree(second.directory, ignore_errors=True)


@contextmanager
def broker_killed(world: World, chance: Random) -> Iterator[None]:
    """The broker, by ``kill -9``; it starts again at once."""
    world.publishing.some_more(chance.randint(1, 100))
    before = world.node.pid
    world.node.kill()
    world.node.start()
    assert world.node.pid != before
    yield


# -- store and catalog --


@contextmanager
def store_fails(world: World, chance: Random, **given: Any) -> Iterator[None]:
    """The store does so with some requests, until the end of the fault."""
    fault = world.store.fail(**given)
    eventually(lambda: world.store.met_by(fault), DEADLINE_S, what=f"the store to meet {given}")
    yield
    world.store.heal(fault)


@contextmanager
def catalog_fails(world: World, chance: Random, **given: Any) -> Iterator[None]:
    """The catalog does."""
    fault = world.catalog.fail(**CATALOG_COMMITS, **given)
    eventually(lambda: world.catalog.met_by(fault), DEADLINE_S, what=f"the catalog to meet {given}")
    yield
    world.catalog.heal(fault)


# -- other writers --


@contextmanager
def foreign_optimize(world: World, chance: Random) -> Iterator[None]:
    """delta-rs joins small files of a table, as another engine would."""
    name = chance.choice(("delta", "ruled"))
    for _ in range(_ATTEMPTS):
        table = DeltaTable(f"s3://lake/{name}", storage_options=world.options())
        if len(table.file_uris()) < 2:
            world.publishing.some_more(100)
            continue
        try:
            done = table.optimize.compact()
        except CommitFailedError:  # the job was first
            continue
        assert done["numFilesRemoved"] > 1, done
        yield
        return
    raise AssertionError(f"{name} was never optimized")


@contextmanager
def foreign_expiry(world: World, chance: Random) -> Iterator[None]:
    """pyiceberg removes all snapshots but the newest."""
    for _ in range(_ATTEMPTS):
        table = world.iceberg()
        current = table.current_snapshot()
        old = [one.snapshot_id for one in table.metadata.snapshots if one != current]
        if not old:
            world.publishing.some_more(100)
            continue
        try:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        except CommitFailedException:  # the job was first
            continue
        left = {one.snapshot_id for one in world.iceberg().metadata.snapshots}
        assert left.isdisjoint(old)
        yield
        return
    raise AssertionError("no snapshot was expired")


@contextmanager
def foreign_rewrite(world: World, chance: Random) -> Iterator[None]:
    """Spark with Iceberg's jars rewrites all data files and manifests, and expires snapshots."""
    files = ",".join(map(str, jars("iceberg-spark-aws-4.1", ICEBERG_JARS).glob("*.jar")))
    environ = {
        **os.environ,
        **world.environ,
        "PYTHONPATH": str(pyspark(ICEBERG_SPARK)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    arguments = [world.s3.endpoint, *KEYS.values(), world.rest.url, files, CATALOG_TABLE]
    command = [sys.executable, "-c", _REWRITE, *arguments]
    with subprocess.Popen(
        command,
        env=environ,
        cwd=world.directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            said, errors = process.communicate(timeout=_CONTENDED_S)
        except subprocess.TimeoutExpired:
            # a table that commits twice a second is quicker than any rewrite
            world.publishing.pause()
            said, errors = process.communicate()
            world.publishing.go_on()
    assert process.returncode == 0, errors[-4000:]
    assert int(said.split()[-1]) > 0, "no file was rewritten"
    yield


_REWRITE = """
import sys
from pyspark.sql import SparkSession
endpoint, key, secret, uri, files, table = sys.argv[1:]
lake = "spark.sql.catalog.lake"
settings = {
    "spark.jars": files, "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",  # of 200 for a few hundred names of files, each is a task
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    lake: "org.apache.iceberg.spark.SparkCatalog", f"{lake}.type": "rest", f"{lake}.uri": uri,
    f"{lake}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO", f"{lake}.s3.endpoint": endpoint,
    f"{lake}.s3.path-style-access": "true", f"{lake}.client.region": "us-east-1",
    f"{lake}.s3.access-key-id": key, f"{lake}.s3.secret-access-key": secret, f"{lake}.cache-enabled": "false",
}
builder = SparkSession.builder.master("local[1]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()

def call(text):
    for attempt in range(50):
        try:
            return spark.sql(f"CALL lake.system.{text}").collect()
        except Exception as error:  # the job was first
            failure = error
    raise failure

rewritten = call(f"rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
call(f"rewrite_manifests('{table}')")
call(f"expire_snapshots(table => '{table}', older_than => now(), retain_last => 1)")
print(rewritten[0]["rewritten_data_files_count"])
"""


# -- machines --


@contextmanager
def worker_disk_full(world: World, chance: Random) -> Iterator[None]:
    """Where an executor of a new driver keeps what it is sent."""
    world.driver.kill()
    disk = world.disk_of(chance.choice(world.hosts))
    with _full(disk):
        world.start_driver()
        eventually(lambda: "lake." in world.driver.said, DEADLINE_S, what="the driver")
        world.publishing.some_more(200)
        assert disk.free_bytes == 0
        yield


@contextmanager
def driver_disk_full(world: World, chance: Random) -> Iterator[None]:
    """Where Spark keeps scratch files."""
    with _full(world.driver_disk):
        eventually(
            lambda: "failed" in {one["state"] for one in world.tables().values()},
            DEADLINE_S,
            what="a failure",
        )
        assert world.driver_disk.free_bytes == 0
        yield


@contextmanager
def _full(disk: SmallDisk) -> Iterator[None]:
    disk.fill()
    try:
        yield
    finally:
        disk.free()


@contextmanager
def clock_moved(world: World, chance: Random) -> Iterator[None]:
    """A host whose clock is an hour ahead or behind; it keeps it until the host is killed."""
    host, hours = chance.choice(world.hosts), chance.choice((-1, 1))
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    world.stop_worker(host)
    # Without the last one, waits of Java end at once: the host did nothing else, and kept both cores busy with it.
    only_date = {"FAKETIME_DONT_FAKE_MONOTONIC": "1", "FAKETIME_FORCE_MONOTONIC_FIX": "0"}
    world.start_worker(host, LD_PRELOAD=str(library), FAKETIME=f"{3600 * hours:+d}", **only_date)
    log = world.workers[host.name].log.read_text()
    assert "faketime" not in log, log[-2000:]
    yield


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


FAST: Final[dict[str, Harm]] = {
    "executor killed": executor_killed,
    "Python workers killed": python_killed,
    "driver killed": driver_killed,
    "driver killed before dead letters": partial(
        driver_killed_at_a_commit, of="dead letters", holds="before"
    ),
    "driver killed between the commits": partial(
        driver_killed_at_a_commit, of="dead letters", holds="after"
    ),
    "driver killed before the commit": partial(driver_killed_at_a_commit, holds="before"),
    "driver killed after the commit": partial(driver_killed_at_a_commit, holds="after"),
    "broker killed": broker_killed,
    "store answers 500": partial(store_fails, every=4, status=500),
    "store answers 503": partial(store_fails, every=3, status=503, body=_UNAVAILABLE),
    "store loses answers": partial(store_fails, **COMMITS, every=2, is_lost=True),
    "store loses any answers": partial(store_fails, method="PUT", every=5, is_lost=True),
    "catalog answers 409": partial(catalog_fails, every=2, status=409, body=_CONFLICT),
    "catalog answers 500": partial(catalog_fails, every=2, status=500, body="{}"),
    "catalog loses answers": partial(catalog_fails, every=2, is_lost=True),
    "foreign OPTIMIZE": foreign_optimize,
    "foreign expiry": foreign_expiry,
    "scratch files removed": scratch_removed,
}
"""Each takes seconds."""
FAULTS: Final[dict[str, Harm]] = {
    **FAST,
    "host killed": host_killed,
    "two drivers": two_drivers,
    "store hangs": partial(store_fails, every=3, times=6, holds="before", is_dropped=True),
    "store hangs after commits": partial(
        store_fails, **COMMITS, times=2, holds="after", is_lost=True
    ),
    "catalog hangs": partial(catalog_fails, times=1, holds="before", is_dropped=True),
    "foreign rewrite": foreign_rewrite,
    WORKERS_DISK: worker_disk_full,
    "disk of the driver full": driver_disk_full,
    "clock moved": clock_moved,
}
