"""Use of the machine by the process: lateness of the event loop, memory, CPUs and the queue for them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

# Interval of the measurement of the loop's lateness. The loop's own work in it has the same precision: 50 times
# a second cost 0.05 % of a processor.
_STEP_S: Final = 0.02
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# Control groups of version 1 say a number near 2^63 when there is no limit.
_NO_LIMIT: Final = 1 << 60


# Share of the CPUs above which the process itself is what its threads wait for.
_MOST_OF_THE_CPUS: Final = 0.5
# Lateness of the loop, in seconds, that began before a look and continues after it.
_LATE_S: Final = 0.1


class Load(NamedTuple):
    """One look. ``loop_lag_s`` is the worst since the look before, ``worked_s`` the part of it that the loop worked,
    ``waited_s`` how long threads of the process waited for a CPU in that time; ``run_queue`` counts threads for each
    CPU, ``cpu_share`` is the process's part of all CPUs that it may use."""

    loop_lag_s: float
    memory_bytes: int
    memory_limit_bytes: int
    run_queue: float
    worked_s: float = 0.0
    waited_s: float = 0.0
    cpu_share: float = 0.0

    @property
    def own_lag_s(self) -> float:
        """The lag without the time that other programs had the CPUs."""
        if self.cpu_share > _MOST_OF_THE_CPUS:
            return self.loop_lag_s
        return max(self.worked_s, self.loop_lag_s - self.waited_s)


class LoopLag:
    """Lateness of the event loop. Measured on the loop; ``worst_s`` may be read from any thread, also while
    the loop does not turn at all.

    ``own_s`` is what the loop's own work was of that, in the time up to the last call of ``worst_s``: its thread cannot
    have worked for longer than it used a processor. The rest was spent waiting for one that others had.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now_s: Callable[[], float] = time.monotonic,
        used_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._loop = loop
        self._now_s = now_s
        self._used_s = used_s
        self._worst_s = self._worst_own_s = self.own_s = self._used_before_s = 0.0
        self._expected_s = now_s() + _STEP_S
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to measure, fifty times a second."""
        self._expected_s, self._used_before_s = self._now_s() + _STEP_S, self._used_s()
        self._timer = self._loop.call_later(_STEP_S, self._tick)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def worst_s(self) -> float:
        """The most it was late since the last call, or is now."""
        worst_s = max(self._worst_s, self._now_s() - self._expected_s, 0.0)
        self._worst_s = 0.0
        self.own_s = self._worst_own_s
        self._worst_own_s = 0.0
        return worst_s

    def late_s(self) -> float:
        """Seconds by which the loop is late now; may be read from any thread."""
        return max(0.0, self._now_s() - self._expected_s)

    def is_late(self) -> bool:
        """Return whether the loop is late now, so that its lateness continues beyond this look."""
        return self._now_s() - self._expected_s > _LATE_S

    def _tick(self) -> None:
        late_s = self._now_s() - self._expected_s
        self._worst_s = max(self._worst_s, late_s)
        self._worst_own_s = max(
            self._worst_own_s, min(late_s, self._used_s() - self._used_before_s)
        )
        self.start()


class Machine:
    """Reads the figures of the system. What the system does not report is 0."""

    def __init__(self, memory_limit: int = 0, root: Path = Path("/")) -> None:
        self._root = root
        self.memory_limit_bytes = memory_limit or self._found_limit()
        self._cpus = (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )

    def look(self, loop_lag_s: float) -> Load:
        """The figures of this moment, and the loop's."""
        return Load(loop_lag_s, self.memory_bytes(), self.memory_limit_bytes, self.run_queue())

    def allowed_cpus(self) -> float:
        """The CPUs that the process may use: those it may run on, and the quota of its control group."""
        quota, _, period = self._read("sys/fs/cgroup/cpu.max").strip().partition(" ")
        return (
            min(self._cpus, int(quota) / int(period))
            if quota.isdigit() and period.isdigit()
            else self._cpus
        )

    def waited_s(self) -> float:
        """The time that all threads of this process have waited for a CPU, since each of them began."""
        waits = map(str.split, map(self._read_path, self._root.glob("proc/self/task/*/schedstat")))
        return sum(int(fields[1]) for fields in waits if len(fields) > 1) / 1e9

    def memory_bytes(self) -> int:
        """The resident set of this process."""
        words = self._read("proc/self/statm").split()
        return int(words[1]) * _PAGE_BYTES if len(words) > 1 else 0

    def run_queue(self) -> float:
        """Threads of all programs that run or want to, for each CPU."""
        words = self._read("proc/loadavg").split()
        return int(words[3].partition("/")[0]) / self._cpus if len(words) > 3 else 0.0

    def _found_limit(self) -> int:
        """The minimum of the limits that control groups (version 2, then 1) and the machine set."""
        limits = [
            self._number("sys/fs/cgroup/memory.max"),
            self._number("sys/fs/cgroup/memory/memory.limit_in_bytes"),
        ]
        lines = self._read("proc/meminfo").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
        return min((limit for limit in limits if 0 < limit < _NO_LIMIT), default=0)

    def _number(self, path: str) -> int:
        text = self._read(path).strip()
        return int(text) if text.isdigit() else 0

    def _read(self, path: str) -> str:
        return self._read_path(self._root / path)

    @staticmethod
    def _read_path(path: Path) -> str:
        try:
            return path.read_text()
        except OSError:
            return ""


class Processor:
    """CPU use of the process, and its waits for CPUs, between two looks."""

    def __init__(self, machine: Machine, lag: LoopLag) -> None:
        self._machine = machine
        self._lag = lag
        self._at_s, self._used_s, self._waited_s = (
            time.monotonic(),
            time.process_time(),
            machine.waited_s(),
        )

    def look(self) -> Load:
        """Return the load since the last call. Waiting counts from the last call that found the loop on time."""
        now_s = time.monotonic()
        used_s = time.process_time()
        waited_s = self._machine.waited_s()
        is_late = self._lag.is_late()
        load = self._machine.look(self._lag.worst_s())._replace(
            worked_s=self._lag.own_s,
            waited_s=max(0.0, waited_s - self._waited_s),
            cpu_share=(used_s - self._used_s)
            / max(now_s - self._at_s, 1e-3)
            / self._machine.allowed_cpus(),
        )
        self._at_s = now_s
        self._used_s = used_s
        if not is_late:
            self._waited_s = waited_s
        return load
