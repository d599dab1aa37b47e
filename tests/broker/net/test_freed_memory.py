"""Memory that one turn of the loop frees serves the next: it does not go back to the system in between."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource
from broker.app.loops import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def turns(count):
    for _ in range(count):
        kept = [b"x" * 250_000 for _ in range(4)]
        kept.clear()

keep_freed_memory()
turns(10)
before = faults()
turns(1000)
print(faults() - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="other C libraries have no such setting"
)
def test_reads_of_a_busy_socket_cause_no_page_faults() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 1000
