"""Spark on other hosts: a Python with the wheel of the source alone, and a standalone cluster, a host per process."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pyspark

from bridges.spark.driver.java import find_java
from tests.support.jars import SHORT_LIVED
from tests.support.network import Network
from tests.support.plain_http import NO_TLS
from tests.support.processes import ServerProcess

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
_WITH_THE_WHEEL = ("pyarrow", "msgspec", "numpy", "numpy.libs")
_WITH_SPARK = ("pyspark", "py4j", "pandas", "dateutil", "pytz", "six.py")
FOR_RULES = (
    "sqlglot",
    "jq*",
    "*re2*",
    "regex",
    "pydantic",
    "pydantic_core",
    "annotated_types",
    "typing_*",
)
"""What tables with a rule need too, of the packages of the broker."""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


def spark_with_the_wheel_alone(directory: Path, others: Sequence[str] = ()) -> dict[str, str]:
    """The environment of a Python that has Spark, the wheel of the source with what it requires, these other packages,
    and nothing of the broker."""
    site = directory / "site"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(build, cwd=ROOT / "pyspark_sluice", capture_output=True, check=True)
    with zipfile.ZipFile(next(directory.glob("pyspark_sluice-*.whl"))) as wheel:
        wheel.extractall(site)
    for name in (*_WITH_SPARK, *_WITH_THE_WHEEL, *others):
        for found in SPARK_HOME.parent.glob(name):
            (site / found.name).symlink_to(found)
    python = directory / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    environ = {"PYTHONPATH": str(site), "PYSPARK_PYTHON": str(python), "PATH": os.environ["PATH"]}
    find_java(directory).apply(environ)
    return environ


class SparkCluster:
    """A master on its host, and workers, each with the Python of ``environ``."""

    def __init__(self, host: Network, directory: Path, environ: Mapping[str, str]) -> None:
        self._directory, self._host = directory, host.addresses[0]
        self._environ = {
            **environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": " ".join(SHORT_LIVED),
        }
        self._server = self._process(
            host, "master", [_MASTER, "--host", self._host, "--port", "7077"], {}
        )
        self._workers: list[ServerProcess] = []

    @property
    def url(self) -> str:
        """The master."""
        return f"spark://{self._host}:7077"

    def worker(
        self,
        host: Network,
        *,
        own_disk: Sequence[Path] = (),
        environ: Mapping[str, str] | None = None,
        disk_mb: int | None = None,
    ) -> ServerProcess:
        """Start a worker, on a host where these directories are on a disk of its own; that of its scratch files has a
        size too, where one is given."""
        address = host.addresses[0]
        command = [_WORKER, "--host", address, "--cores", "1", "--memory", "1g", self.url]
        name = f"worker-{address}-{len(self._workers)}"
        mounts = [
            *(_mount(path) for path in own_disk),
            *([_mount(self._directory / name, disk_mb)] if disk_mb else []),
        ]
        one = self._process(host, name, command, environ or {}, mounts)
        one.start()
        self._workers.append(one)
        return one

    def __enter__(self) -> SparkCluster:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (*self._workers, self._server):
            one.stop()

    def _process(
        self,
        host: Network,
        name: str,
        command: Sequence[str],
        environ: Mapping[str, str],
        mounts: Sequence[str] = (),
    ) -> ServerProcess:
        directory = self._directory / name
        directory.mkdir(parents=True)
        own = ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"]
        full = host.command([*own, str(SPARK_HOME / "bin" / "spark-class"), *command])
        given = {**self._environ, "SPARK_WORKER_DIR": str(directory), **environ}
        address = host.addresses[0]
        return ServerProcess(
            full, directory, lambda: self._is_alive(address), environ=given, deadline_s=180
        )

    def _is_alive(self, host: str) -> bool:
        """Whether the master, or a worker on that host that it knows, answers."""
        try:
            found = httpx.get(
                f"http://{self._host}:8080/json/", trust_env=False, verify=NO_TLS
            ).json()
        except (httpx.HTTPError, ValueError):  # its page comes after the server
            return False
        alive = [one["host"] for one in found["workers"] if one["state"] == "ALIVE"]
        return host in (self._host, *alive)


def _mount(path: Path, size_mb: int | None = None) -> str:
    size = f"-o size={size_mb}m " if size_mb else ""
    return f"mount -t tmpfs {size}none {shlex.quote(str(path))}"
