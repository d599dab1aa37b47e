"""The Spark that the lake's jobs run in, made lean: no SQL, no web page, a small heap, code compiled once."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bridges.spark.driver.executors import send_code
from bridges.spark.driver.java import find_java
from broker.core.errors import MissingDependency, SluiceError
from broker.core.process import ROOT

# Options of a JVM that only hands out tasks: Java's second compiler and a large first heap cost 1.3 s of processor
# time and 95 MB, and save nothing.
JAVA_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms64m"


@dataclass(frozen=True, slots=True)
class TaskSession:
    """A Spark that runs tasks. It has no SQL, which takes 1.2 s of processor time and 65 MB to start."""

    sparkContext: Any

    def stop(self) -> None:
        """End it, and its JVM."""
        self.sparkContext.stop()


def not_installed(package: str | None) -> MissingDependency:
    """A hint for a package of Spark's extra that is missing."""
    return MissingDependency(
        f"lake tables need Spark, and the package {package!r} is not installed; install it with "
        f"pip install 'sluicemq[spark]'"
    )


def require_pyspark() -> str:
    """The version of PySpark.

    Raises:
        MissingDependency: it, or what it needs to write tables, is not installed.
    """
    try:
        import deltalake  # noqa: F401  # only whether it is there
        import pandas  # noqa: F401  # mapInArrow asks for it
        import pyspark
    except ImportError as error:
        raise not_installed(error.name) from error
    return str(pyspark.__version__)


@contextmanager
def lake_session(directory: Path, master: str, driver_memory: str) -> Iterator[TaskSession]:
    """A Spark for a block, with Java and scratch files in ``directory``.

    Raises:
        MissingDependency: PySpark or Java is not there; says what to install.
        SluiceError: the master is none.
    """
    require_pyspark()
    if remote := next(
        (
            entry
            for entry in (os.environ.get("SPARK_REMOTE", ""), master)
            if entry.startswith("sc://")
        ),
        None,
    ):
        raise SluiceError(
            f"Spark's master: expected a cluster manager such as spark://HOST:7077, got {remote}: Spark Connect reads "
            f"streams, but does not fill tables. Try: spark-submit --master."
        )
    from py4j.protocol import Py4JError

    prepare_environment(directory, os.environ)
    scratch = scratch_of(directory)
    session = TaskSession(start_context(master, driver_memory=driver_memory, work_dir=scratch))
    try:
        yield session
    finally:
        # A signal to the whole process group has ended the JVM already.
        with suppress(OSError, Py4JError):
            session.stop()
        shutil.rmtree(scratch, ignore_errors=True)


def prepare_environment(directory: Path, environ: MutableMapping[str, str]) -> None:
    """Make Spark's processes find a Java that works, and these packages in whatever directory they start.

    Raises:
        MissingDependency: no Java works.
    """
    directory.mkdir(parents=True, exist_ok=True)
    find_java(directory / "_spark").apply(environ)
    paths = [str(ROOT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def start_session(
    master: str, *, driver_memory: str, work_dir: Path, java_options: str = JAVA_OPTIONS
) -> Any:
    """A session with SQL on a context of ``start_context``."""
    require_pyspark()
    from pyspark.sql import SparkSession

    start_context(master, driver_memory=driver_memory, work_dir=work_dir, java_options=java_options)
    return SparkSession.builder.getOrCreate()


def start_context(
    master: str, *, driver_memory: str, work_dir: Path, java_options: str = JAVA_OPTIONS
) -> Any:
    """A Spark context. What the user configured for Spark wins over our settings; where spark-submit did not start this
    process, the arguments win over both.

    JAVA_HOME must name a Java that works, see ``bridges.spark.driver.java``. ``work_dir`` takes Spark's scratch files.
    """
    from pyspark import SparkConf, SparkContext

    # Workers are started as PYSPARK_PYTHON, else as whatever python3 is on PATH, which lacks our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    launch = {
        "spark.app.name": "sluice lake",
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.driver.extraJavaOptions": java_options,
        "spark.ui.showConsoleProgress": "false",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    configured = _given(launch)
    settings = {**launch, **_settings(work_dir)}
    if configured.get("spark.master", master).startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    context = SparkContext.getOrCreate(SparkConf().setAll(list({**settings, **configured}.items())))
    context.setLogLevel("WARN")
    if not context._jsc.isLocal():
        send_code(context, work_dir)
    return context


def _given(launch: dict[str, str]) -> dict[str, str]:
    """The user's configuration: spark-submit's options, spark-defaults.conf, PYSPARK_SUBMIT_ARGS. A JVM that
    spark-submit did not start is started with ``launch``."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(
        conf=SparkConf(loadDefaults=False).setAll(list(launch.items()))
    )
    configured = dict(SparkConf().getAll())
    return configured if "PYSPARK_GATEWAY_PORT" in os.environ else {**configured, **launch}


def scratch_of(directory: Path) -> Path:
    """A directory for this process's scratch files; those of processes that were killed are removed."""
    directory = directory / "_spark"
    for left in directory.glob("scratch-*"):
        pid = left.name.removeprefix("scratch-")
        if not pid.isdigit() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    mine = directory / f"scratch-{os.getpid()}"
    mine.mkdir(parents=True, exist_ok=True)
    return mine


def _settings(work_dir: Path) -> dict[str, str]:
    work_dir.mkdir(parents=True, exist_ok=True)
    return {
        "spark.local.dir": str(work_dir),
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.hadoop.fs.permissions.umask-mode": "077",  # of files that Spark sets rights of, whatever the umask
        "spark.ui.enabled": "false",
        "spark.scheduler.mode": "FAIR",  # for replays: each pool gets its share of the workers
        "spark.ui.retainedJobs": "100",  # for the page and the check of executors
        "spark.ui.retainedStages": "100",
        "spark.ui.retainedTasks": "1000",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        # Large Arrow batches: fewer crossings between the JVM and Python.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
        "spark.cleaner.periodicGC.interval": "10min",
    }
