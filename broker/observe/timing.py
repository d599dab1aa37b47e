"""Durations: small histograms of the runs that are measured."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final, ParamSpec, TypeVar

# Mask for one measured run in 64: two looks at the clock and a count cost 0.2 µs, which is too much for every one.
SAMPLE_MASK: Final = 63

# Each doubling of time is divided in four, so that a quantile is at most a fifth too large.
_PARTS: Final = 4
_BUCKETS: Final = 40 * _PARTS
_RECENT_NS: Final = 10_000_000_000

P = ParamSpec("P")
R = TypeVar("R")


class Timing:
    """Durations by magnitude, from 1 ns to 18 minutes."""

    __slots__ = ("_buckets", "samples")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what was measured."""
        self.samples = 0
        self._buckets = [0] * _BUCKETS

    def note(self, duration_ns: int) -> None:
        """Add a run."""
        self.samples += 1
        self._buckets[_bucket(duration_ns)] += 1

    def add(self, other: Timing) -> None:
        """Add what another one measured."""
        self.samples += other.samples
        self._buckets = [
            count + more for count, more in zip(self._buckets, other._buckets, strict=True)
        ]

    def quantile_s(self, share: float) -> float | None:
        """The time, in seconds, within which this share of the runs ended; None when none was measured."""
        if not self.samples:
            return None
        seen = 0
        wanted = share * self.samples
        for bucket, count in enumerate(self._buckets):
            seen += count
            if seen >= wanted:
                return _end_ns(bucket) / 1e9
        return None


class RecentTiming:
    """The durations of the last ten to twenty seconds."""

    __slots__ = ("_before", "_began_ns", "_now", "_now_ns")

    def __init__(self, now_ns: Callable[[], int] = perf_counter_ns) -> None:
        self._now_ns, self._began_ns = now_ns, now_ns()
        self._before, self._now = Timing(), Timing()

    def note(self, duration_ns: int) -> None:
        """Add a run that ended now."""
        self._turn()
        self._now.note(duration_ns)

    def quantile_s(self, share: float) -> float | None:
        """Same as ``Timing.quantile_s``."""
        self._turn()
        both = Timing()
        both.add(self._before)
        both.add(self._now)
        return both.quantile_s(share)

    def _turn(self) -> None:
        passed = (self._now_ns() - self._began_ns) // _RECENT_NS
        if passed:
            self._before = self._now if passed == 1 else Timing()
            self._now = Timing()
            self._began_ns += passed * _RECENT_NS


def _bucket(duration_ns: int) -> int:
    if duration_ns < _PARTS:
        return 0
    magnitude = duration_ns.bit_length() - 3  # the two bits behind the first one choose the part
    return min(magnitude * _PARTS + (duration_ns >> magnitude & _PARTS - 1), _BUCKETS - 1)


def _end_ns(bucket: int) -> int:
    magnitude, part = divmod(bucket, _PARTS)
    return (_PARTS + part + 1) << magnitude


def measured(run: Callable[P, R], timing: Timing | RecentTiming) -> Callable[P, R]:
    """The same with a look at the clock before and after."""

    def run_measured(*args: P.args, **named: P.kwargs) -> R:
        started_ns = perf_counter_ns()
        try:
            return run(*args, **named)
        finally:
            timing.note(perf_counter_ns() - started_ns)

    return run_measured
