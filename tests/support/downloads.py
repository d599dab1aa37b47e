"""Other versions of PySpark than the environment's: once, into a cache."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.jars import CACHE


def pyspark(version: str) -> Path:
    """A directory with a PySpark, to put on PYTHONPATH before the environment's own.

    Raises:
        AssertionError: it cannot be downloaded; says where it belongs.
    """
    target = CACHE / f"pyspark-{version}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
                into = Path(scratch, "packages")
                command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(into)]
                done = subprocess.run(
                    [*command, f"pyspark=={version}"], capture_output=True, text=True, check=False
                )
                said = f"{done.stdout[-2000:]}{done.stderr[-1000:]}"
                assert done.returncode == 0, (
                    f"cannot be downloaded: put pyspark=={version} into {target}\n{said}"
                )
                into.rename(target)
    return target
