"""A job that ends, however it ends, leaves nothing of what it started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from bridges.spark.driver.orphan import GRACE_S, PARENT_VARIABLE
from tests.support.node import eventually

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="asks the kernel for the end of the parent"
)
ROOT = Path(__file__).parents[3]

_JOB = """
import subprocess
from bridges.spark.driver.orphan import die_with_parent
die_with_parent()
print("child", subprocess.Popen(["sleep", "600"]).pid, flush=True)
input()
"""
_BROKER = f"""
import os, subprocess, sys
job = subprocess.Popen([sys.executable, "-c", {_JOB!r}], start_new_session=True, stdin=subprocess.PIPE,
    env=os.environ | {{"{PARENT_VARIABLE}": str(os.getpid())}})
print("job", job.pid, flush=True)
job.wait()
input()
"""


@pytest.mark.parametrize("victim", ["broker", "job"])
def test_nothing_that_the_job_started_outlives_it(victim: str) -> None:
    broker = subprocess.Popen(
        [sys.executable, "-c", _BROKER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    )
    try:
        assert broker.stdout is not None
        pids = dict(broker.stdout.readline().split() for _ in range(2))
        job = psutil.Process(int(pids["job"]))
        family = [job, *job.children(recursive=True)]
        assert int(pids["child"]) in [process.pid for process in family]
        os.kill(broker.pid if victim == "broker" else job.pid, 9)
        eventually(
            lambda: not any(map(_runs, family)), GRACE_S + 60, what="the end of the job's family"
        )
    finally:
        broker.kill()
        broker.communicate()


def test_a_job_whose_parent_has_gone_already_does_not_begin() -> None:
    code = (
        "from bridges.spark.driver.orphan import die_with_parent; die_with_parent(); print('began')"
    )
    environ = os.environ | {PARENT_VARIABLE: "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
