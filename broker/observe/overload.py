"""Overload: noticed by a thread of its own, acted upon on the event loop.

Every ``interval`` the thread looks at how late the loop is by the broker's own doing, and at the memory. Other programs
that keep the CPUs busy do not overload the node: the queue for the CPUs is only a further reason. When a limit was
passed in ``polls`` looks in a row the node is overloaded; when all was below ``clear_ratio`` of the limits in
``clear_polls`` looks in a row it no longer is. The thread needs nothing of the loop to notice that it stops.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Final

from broker.core.clock import Clock
from broker.core.signals import Signal
from broker.observe.alarms import Alarms
from broker.observe.load import Load, LoopLag, Machine, Processor
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.observe.settings import OverloadSettings

_log = get_logger(__name__)

ALARM: Final = "overload"
_NO_LOAD: Final = Load(0.0, 0, 0, 0.0)


class Judge:
    """Judgement whether a node is overloaded, over successive looks."""

    def __init__(self, settings: OverloadSettings) -> None:
        self._settings = settings
        self._bad = self._good = 0
        self.is_overloaded = False
        self.reasons: tuple[str, ...] = ()
        """Names of the figures that the latest look found above their limit."""

    def look(self, load: Load) -> bool:
        """Take one look into account; whether the node is overloaded now."""
        settings = self._settings
        self.reasons = self._above(load, 1.0)
        is_well = not self._above(load, settings.clear_ratio)
        self._bad = self._bad + 1 if self.reasons else 0
        self._good = self._good + 1 if is_well else 0
        if self._bad >= settings.polls:
            self.is_overloaded = True
        elif self.is_overloaded and self._good >= settings.clear_polls:
            self.is_overloaded = False
        return self.is_overloaded

    def because(self, load: Load) -> tuple[str, ...]:
        """Return a clause for each of ``reasons``, with the figures of ``load``."""
        settings = self._settings
        share = load.memory_bytes / max(load.memory_limit_bytes, 1)
        clauses = {
            "event_loop": f"the event loop is {load.own_lag_s:.1f} s late (limit {settings.max_loop_lag:g} s)",
            "memory": f"the process uses {share:.0%} of its memory (limit {settings.max_memory:.0%})",
            "run_queue": f"{load.run_queue:.0f} threads wait for each CPU (limit {settings.max_run_queue:g})",
        }
        return tuple(clauses[name] for name in self.reasons)

    def _above(self, load: Load, ratio: float) -> tuple[str, ...]:
        settings = self._settings
        limits = (
            ("event_loop", load.own_lag_s, settings.max_loop_lag),
            ("memory", load.memory_bytes, load.memory_limit_bytes * settings.max_memory),
            ("run_queue", load.run_queue, settings.max_run_queue),
        )
        reasons = tuple(name for name, value, limit in limits if limit and value > limit * ratio)
        return () if reasons == ("run_queue",) else reasons


class Overload:
    """The guard of a node."""

    def __init__(
        self,
        settings: OverloadSettings,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        alarms: Alarms,
        metrics: Metrics,
        machine: Machine | None = None,
    ) -> None:
        self.settings = settings
        self._loop = loop
        self._clock = clock
        self._alarms = alarms
        self.machine = machine or Machine(settings.memory_limit)
        self._lag, self._judge = LoopLag(loop), Judge(settings)
        self._processor = Processor(self.machine, self._lag)
        self.on_change = Signal[bool]()
        """Signal on the loop, with whether the node has become overloaded (True) or no longer is (False)."""
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None
        self.is_active = False
        self.since_s = 0.0
        self.since_ns = 0
        self.load = _NO_LOAD
        self.reasons: tuple[str, ...] = ()
        """Names of the figures that were above their limit at the last check that found any."""
        self.because: tuple[str, ...] = ()
        """The same as clauses with figures."""
        self._times = metrics.counter("overload_times", "times that the node became overloaded")
        metrics.gauge("overloaded", lambda: int(self.is_active), "1 while the node is overloaded")
        metrics.gauge(
            "event_loop_lag_seconds",
            lambda: self.load.loop_lag_s,
            "maximum lateness of the event loop since the last check",
        )
        metrics.gauge(
            "event_loop_own_lag_seconds",
            lambda: self._lag.own_s,
            "what of that was its own work; the rest it waited for a processor",
        )
        metrics.gauge("memory_bytes", self.machine.memory_bytes, "resident memory of the process")
        metrics.gauge(
            "memory_limit_bytes",
            lambda: self.machine.memory_limit_bytes,
            "memory that the process may use",
        )
        metrics.total("cpu_seconds", time.process_time, "processor time that the process has used")
        metrics.gauge(
            "run_queue", self.machine.run_queue, "runnable threads of the machine for each CPU"
        )

    def start(self) -> None:
        """Begin to watch, unless the settings say not to."""
        if not self.settings.enable:
            return
        self._lag.start()
        self._thread = threading.Thread(target=self._watch, name="overload monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more."""
        self._lag.stop()
        self._ends.set()
        if self._thread is not None:
            self._thread.join(timeout=1.0)

    def take(self, load: Load) -> None:
        """Act on one look; on the loop."""
        self.load = load
        was_active = self.is_active
        self.is_active = self._judge.look(load)
        if self._judge.reasons or not self.is_active:
            self.reasons, self.because = self._judge.reasons, self._judge.because(load)
        if self.is_active is not was_active:
            self._changed()
        if self.is_active and self._clock.monotonic_s() - self.since_s >= self.settings.alarm_after:
            message = (
                f"the node is overloaded: {', '.join(self.reasons)}: {'; '.join(self.because)}"
            )
            self._alarms.activate(ALARM, message, **self.figures())

    def figures(self) -> dict[str, float]:
        """The latest look, for display and alarms."""
        load = self.load
        return {
            "loop_lag_s": round(load.loop_lag_s, 3),
            "memory_bytes": load.memory_bytes,
            "memory_limit_bytes": load.memory_limit_bytes,
            "run_queue": round(load.run_queue, 2),
            "cpu_share": round(load.cpu_share, 3),
        }

    def _changed(self) -> None:
        self.since_s, self.since_ns = self._clock.monotonic_s(), self._clock.now_ns()
        if self.is_active:
            self._times.value += 1
            _log.warning("overload.begins", reasons=list(self.reasons), **self.figures())
        else:
            _log.warning("overload.ends", **self.figures())
            self._alarms.deactivate(ALARM)
        self.on_change(self.is_active)

    def _watch(self) -> None:
        """Runs on the thread."""
        while not self._ends.wait(self.settings.interval):
            load = self._processor.look()
            with suppress(RuntimeError):  # the loop was closed in between
                self._loop.call_soon_threadsafe(self.take, load)
