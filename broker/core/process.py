"""Processes that work for the broker: their environment and private files, and how they end with it, even when it is
killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import Final

import broker

# Rights that no one but the owner has.
OTHERS: Final = 0o077
_PR_SET_PDEATHSIG: Final = 1


def keep_files_private() -> None:
    """Make files and directories for this user only, also in child processes: files of a data directory hold every
    message."""
    os.umask(OTHERS)


# The directory of Sluice's packages.
ROOT: Final = Path(broker.__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """The environment of such a process: this one's, with Sluice's modules on the path wherever it was started from."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def ask_to_die_with_parent() -> None:
    """Ask Linux to send SIGKILL when the parent dies, which covers ``kill -9`` of it; other systems cannot."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def die_with_parent(parent: int) -> None:
    """The same, and end at once when that process has died before; elsewhere the end of input does it."""
    ask_to_die_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def end_with_input() -> None:
    """Wait for the end of standard input, which the parent holds open, and end: for a thread of its own, in a process
    that has nothing to save."""
    while sys.stdin.readline():
        pass
    os._exit(0)
