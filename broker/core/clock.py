"""Time as an argument: the server passes real clocks, tests move their own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """Wall clock for timestamps shown to users, monotonic clock for time-outs."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970-01-01T00:00:00Z."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic_s = staticmethod(time.monotonic)


# Runs a callable with arguments after a number of seconds: ``later(delay_s, callback, *arguments)``.
Later = Callable[..., object]
# Runs a callable with arguments in a later turn of the loop: ``defer(callback, *arguments)``.
Defer = Callable[..., object]
