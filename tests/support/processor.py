"""The processor's time that work takes, and time without what a process waited because others had the processors."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import psutil

from tests.support.zygote import Fork

_WORK: Final = json.dumps([f"a/b{at}" for at in range(150_000)])
_WORK_S: Final = 0.028
"""What ``_work_s`` is on the machine that bounds of processor time are written for."""


def loop_s(pid: int) -> float:
    """The processor time of the main thread of a broker's process, which runs its event loop."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def is_within(took_s: float, most_s: float) -> bool:
    """True if this processor time is below a bound. A core that is slower than the one that bounds are written for, or
    whose caches others use, has as much more: it is asked how long it takes for the same work just now."""
    return took_s < most_s or took_s < most_s * max(_work_s() for _ in range(5)) / _WORK_S


def _work_s() -> float:
    """Decode a large text and look at each of its items: what others do with the memory of a machine counts too."""
    began_s = time.thread_time()
    dict.fromkeys(json.loads(_WORK))
    return time.thread_time() - began_s


class Stopwatch:
    """Runs from when it is made, and stands still while a thread of these processes is ready and has no processor."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._waited_ns = self._waits_ns()
        self._began_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds so far."""
        elapsed_s = time.monotonic() - self._began_s
        waited_ns = sum(
            now - self._waited_ns.get(thread, 0) for thread, now in self._waits_ns().items()
        )
        return elapsed_s - waited_ns / 1e9

    def _waits_ns(self) -> dict[Path, int]:
        """What each thread has waited in its life."""
        found: dict[Path, int] = {}
        for pid in self._pids:
            for thread in Path("/proc").glob(f"{pid}/task/*"):
                with suppress(OSError):  # it has just ended
                    found[thread] = int((thread / "schedstat").read_text().split()[1])
        return found


def family() -> list[int]:
    """The identifiers of this process and of those that it started, directly or not."""
    this = psutil.Process()
    return [process.pid for process in (this, *this.children(recursive=True))]


def ended(process: subprocess.Popen[Any] | Fork) -> float:
    """Ask a process to end with SIGTERM, and wait for it; the seconds that it took without what it waited.

    It is left to be waited for once more, since what it waited is not known after that.
    """
    watch = Stopwatch(process.pid)
    process.terminate()
    if isinstance(process, Fork):
        process.wait_first()
    else:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    return watch.elapsed_s()


@contextmanager
def takes_less_than(seconds: float) -> Iterator[None]:
    """Fail where what is done meanwhile takes that much of this thread's processor time, as ``is_within`` says.

    The garbage of other tests is not collected meanwhile: a broker collects between two turns of its loop.
    """
    gc.disable()
    try:
        began_s = time.thread_time()
        yield
        took_s = time.thread_time() - began_s
    finally:
        gc.enable()
    assert is_within(took_s, seconds), f"{took_s:.3f} s"
