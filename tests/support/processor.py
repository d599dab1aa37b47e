"""Time without what a process waited because others had the processors, for which it is not to be blamed."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


class Stopwatch:
    """Runs from when it is made, and stands still while a thread of these processes is ready and has no processor."""

    def __init__(self, *pids: int) -> None:
        self._pids = pids
        self._waited_ns = self._waits_ns()
        self._began_s = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds so far."""
        elapsed_s = time.monotonic() - self._began_s
        waited_ns = sum(now - self._waited_ns.get(thread, 0) for thread, now in self._waits_ns().items())
        return elapsed_s - waited_ns / 1e9

    def _waits_ns(self) -> dict[Path, int]:
        """What each thread has waited in its life."""
        found: dict[Path, int] = {}
        for pid in self._pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):  # it has just ended
                    found[thread] = int((thread / "schedstat").read_text().split()[1])
        return found
