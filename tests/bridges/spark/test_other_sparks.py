"""The source and the lake job on the other versions of Spark that the product supports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bridges.spark.conftest import ROOT
from tests.support.downloads import pyspark

pytestmark = [pytest.mark.spark, pytest.mark.heavy, pytest.mark.timeout(1800)]

LEAKS = ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
"""PySpark 4.1 leaves sockets to the garbage collector."""


@pytest.mark.parametrize("version", ["4.1.4", "4.3.0"])
@pytest.mark.parametrize("suite", ["test_source.py", "test_lake_job.py"])
def test_the_same_tests_pass_on_another_spark(version: str, suite: str) -> None:
    paths = os.pathsep.join(map(str, (pyspark(version), ROOT)))
    environment = {**os.environ, "PYTHONPATH": paths}
    found = [sys.executable, "-c", "import pyspark; print(pyspark.__version__)"]
    assert subprocess.check_output(found, cwd=ROOT, env=environment, text=True).strip() == version
    ignored = [word for leak in LEAKS for word in ("-W", f"ignore::{leak}")]
    tests = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "not heavy", *ignored]
    command = [*tests, str(Path(__file__).with_name(suite))]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
