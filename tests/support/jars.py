"""Jars of servers that tests run, through the Ivy that PySpark brings: once, into a cache."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bridges.spark.driver.java import find_java

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice-tests"

SHORT_LIVED: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of a JVM that lives for seconds or minutes: its second compiler and other collectors cost it a third of its
processor time."""


def jars(name: str, dependencies: str) -> Path:
    """The directory of the jars of a server, fetched when it is not there; ``dependencies`` as Ivy has them.

    Raises:
        AssertionError: they cannot be fetched; says where they belong.
    """
    target = CACHE / name
    with one_at_a_time(name):
        if not target.is_dir():
            _fetch(target, dependencies)
    return target


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Wait until no other process or thread is in a block of this name: two that fill one cache spoil each other's
    files."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def pyspark_jars() -> Path:
    """The jars that PySpark brings."""
    import pyspark

    return Path(pyspark.__file__).parent / "jars"


def java() -> str:
    """A Java that works."""
    return str(find_java(CACHE).home / "bin" / "java")


def _fetch(target: Path, dependencies: str) -> None:
    [ivy] = pyspark_jars().glob("ivy-*.jar")
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        module = Path(scratch) / "ivy.xml"
        module.write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven"><info organisation="sluice" '
            f'module="tests"/><configurations><conf name="default"/></configurations><dependencies>{dependencies}'
            "</dependencies></ivy-module>"
        )
        pattern = f"{scratch}/jars/[artifact]-[revision](-[classifier]).[ext]"
        command = [
            java(),
            "-jar",
            str(ivy),
            "-ivy",
            str(module),
            "-confs",
            "default",
            "-retrieve",
            pattern,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (
            f"jars cannot be fetched: put those of {dependencies} into {target}\n"
            f"{done.stdout[-2000:]}{done.stderr[-1000:]}"
        )
        (Path(scratch) / "jars").rename(target)
