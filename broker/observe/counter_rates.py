"""Growth rates of counters: now, at most, and on average over five minutes.

One tick of ``STEP_S`` reads the counters; nothing is done per message. A rate is that of the last full step, so that
two readers see the same.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Final

STEP_S: Final = 5.0
WINDOW_S: Final = 300.0
_STEPS: Final = round(WINDOW_S / STEP_S)
_TURN_S: Final = 0.005


class CounterRate:
    """The rate of one counter, from samples that come about every ``STEP_S``."""

    __slots__ = ("_counts", "_times", "last", "most")

    def __init__(self) -> None:
        self.last = 0.0
        """A second, in the last step."""
        self.most = 0.0
        """The highest there was of those."""
        self._counts, self._times = array("q"), array("d")

    def note(self, count: int, now_s: float) -> None:
        """Take a sample of the counter."""
        if self._counts and count < self._counts[-1]:  # reset in between
            self.reset()
        if self._counts and now_s > self._times[-1]:
            self.last = (count - self._counts[-1]) / (now_s - self._times[-1])
            self.most = max(self.most, self.last)
        self._counts.append(count)
        self._times.append(now_s)
        if len(self._counts) > _STEPS + 1:
            del self._counts[0], self._times[0]

    @property
    def average(self) -> float:
        """A second, over the last five minutes, or as long as the counter is known."""
        passed_s = self._times[-1] - self._times[0] if self._times else 0.0
        return (self._counts[-1] - self._counts[0]) / passed_s if passed_s > 0 else 0.0

    def reset(self) -> None:
        """Start again at zero."""
        self.last = self.most = 0.0
        del self._counts[:], self._times[:]


class Ticks:
    """Calls a function every ``step_s`` on the event loop that runs at its start; where none runs, never.

    What it gives is iterated a few milliseconds at a time, so that others have their turn.
    """

    def __init__(self, call: Callable[[], Iterator[None] | None], step_s: float = STEP_S) -> None:
        self._call = call
        self._step_s = step_s
        self._next: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Call it now, and from now on."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no event loop runs; there are no rates then
            return
        self._tick(loop)

    def stop(self) -> None:
        """Call it no more."""
        if self._next is not None:
            self._next.cancel()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        steps = self._call()
        self._next = loop.call_later(self._step_s, self._tick, loop)
        if steps is not None:
            self._go_on(loop, steps)

    def _go_on(self, loop: asyncio.AbstractEventLoop, steps: Iterator[None]) -> None:
        until_s = perf_counter() + _TURN_S
        for _ in steps:
            if perf_counter() > until_s:
                loop.call_soon(self._go_on, loop, steps)
                return
