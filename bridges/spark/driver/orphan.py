"""A child that must not outlive its parent, even one that was killed, and takes its own children with it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from broker.core.process import ask_to_die_with_parent

# Names the process to die with; not set when the job is run by hand.
PARENT_VARIABLE = "SLUICE_PARENT_PID"
# Seconds that a JVM whose driver has gone may take to tidy up.
GRACE_S: Final = 2.0


def die_with_parent(environ: Mapping[str, str] = os.environ) -> None:
    """Ask the kernel to kill this process when its parent ends; ends at once when that has happened already.

    The JVM that PySpark starts ends when the pipe from this process closes, and the Python workers with it;
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
    """Start a process that waits for the end of this one and kills the group; no one closes its pipe but the kernel.

    A shell, since a fork of this process keeps 50 MB. No other group gets the number while the shell is in this one, so
    it kills nothing else.
    """
    reading, _ = os.pipe()
    script = f"trap '' TERM INT; read -r line; sleep {GRACE_S:g}; kill -KILL 0"
    # A reader of the job's output waits for the end of all that have it open.
    nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    files = [(os.POSIX_SPAWN_DUP2, reading, 0), *nowhere]
    os.posix_spawn("/bin/sh", ["sh", "-c", script], {"PATH": os.defpath}, file_actions=files)
    os.close(reading)
