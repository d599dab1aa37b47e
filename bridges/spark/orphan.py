"""A child that must not outlive its parent, even one that was killed, and takes its own children with it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Final

from broker.core.process import ask_to_die_with_parent

PARENT_VARIABLE = "SLUICE_PARENT_PID"
"""Names the process to die with; not set when the job is run by hand."""
GRACE_S: Final = 2.0
"""How long a JVM whose driver has gone may take to tidy up."""


def die_with_parent(environ: Mapping[str, str] = os.environ) -> None:
    """Ask the kernel to kill this process when its parent ends; ends at once when that has happened already.

    The JVM that PySpark starts ends by itself when the pipe from this process closes, and the Python workers with it;
    on a busy machine that takes many seconds, so a guard that outlives this process ends the JVM after ``GRACE_S``.
    Called before threads are started, by the leader of a process group.
    """
    parent = environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    ask_to_die_with_parent()
    if os.getppid() != int(parent):
        raise SystemExit(1)
    if os.getpgrp() == os.getpid():
        _start_guard()


def _start_guard() -> None:
    """Fork a process that waits for the end of this one and kills the group; no one closes its pipe but the kernel."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(reading)
        return
    try:
        os.close(writing)
        for stream in (0, 1, 2):  # a reader of the job's output waits for its end
            os.close(stream)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        os.read(reading, 1)
        time.sleep(GRACE_S)
    finally:
        # The group's number is not given to others while this process is in it, so this kills nothing else.
        os.killpg(os.getpgrp(), signal.SIGKILL)
