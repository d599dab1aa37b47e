"""Time as an argument: the server passes real clocks, tests move their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Wall clock for what people read, monotonic clock for what waits."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970-01-01T00:00:00Z."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    now_ns = staticmethod(time.time_ns)
    monotonic_s = staticmethod(time.monotonic)
