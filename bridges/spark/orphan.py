"""A child that must not outlive its parent, even one that was killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "SLUICE_PARENT_PID"
"""Names the process to die with; not set when the job is run by hand."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(environ: os._Environ[str] | dict[str, str] = os.environ) -> None:
    """Ask the kernel to kill this process when its parent ends; ends at once when that has happened already.

    The JVM that PySpark starts ends by itself when the pipe from this process closes, and the workers with it.
    """
    parent = environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit(1)
