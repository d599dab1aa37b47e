"""Rates per second from counters, on request: nothing runs in between."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from broker.core.clock import Clock


class Sampler:
    """Keeps samples of named counts over the last ``window_s`` seconds, at most one each ``step_s``.

    The first answer after a pause longer than the window is the average since the last sample, which is what is known.
    """

    def __init__(self, clock: Clock, window_s: float = 5.0, step_s: float = 0.5) -> None:
        self._clock = clock
        self._window_s = window_s
        self._step_s = step_s
        self._samples: deque[tuple[float, dict[str, float]]] = deque()

    def rates(self, counts: Mapping[str, float]) -> dict[str, float]:
        """Per second, since the oldest sample in the window; 0 for a name first seen now."""
        now_s = self._clock.monotonic_s()
        while len(self._samples) > 1 and now_s - self._samples[1][0] >= self._window_s:
            self._samples.popleft()
        since_s, earlier = self._samples[0] if self._samples else (now_s, dict(counts))
        passed_s = now_s - since_s
        if not self._samples or now_s - self._samples[-1][0] >= self._step_s:
            self._samples.append((now_s, dict(counts)))
        if passed_s <= 0:
            return dict.fromkeys(counts, 0.0)
        return {
            name: max(0.0, (count - earlier.get(name, count)) / passed_s)
            for name, count in counts.items()
        }
