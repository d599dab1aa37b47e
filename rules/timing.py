"""How long a rule takes: a small histogram of the runs that are measured."""

from __future__ import annotations

from typing import Final

SAMPLE_MASK: Final = 63
"""Of 64 runs one is measured: two looks at the clock and a count cost 0.2 µs, which is too much for every one."""

_PARTS: Final = 4
"""Each doubling of time is divided in four, so that a quantile is at most a fifth too large."""
_BUCKETS: Final = 40 * _PARTS


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

    def quantile_s(self, share: float) -> float | None:
        """The time, in seconds, within which this share of the runs ended; None when none was measured."""
        if not self.samples:
            return None
        seen, wanted = 0, share * self.samples
        for bucket, count in enumerate(self._buckets):
            seen += count
            if seen >= wanted:
                return _end_ns(bucket) / 1e9
        return None


def _bucket(duration_ns: int) -> int:
    if duration_ns < _PARTS:
        return 0
    magnitude = duration_ns.bit_length() - 3  # the two bits behind the first one choose the part
    return min(magnitude * _PARTS + (duration_ns >> magnitude & _PARTS - 1), _BUCKETS - 1)


def _end_ns(bucket: int) -> int:
    magnitude, part = divmod(bucket, _PARTS)
    return (_PARTS + part + 1) << magnitude
