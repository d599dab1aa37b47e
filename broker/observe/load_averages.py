"""Averages over one, five and fifteen minutes, worked out as mosquitto does (``sys_tree.c``), so that tools agree."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp
from typing import Final

MINUTES: Final = {"1min": 60.0, "5min": 300.0, "15min": 900.0}


class LoadAverages:
    """Exponentially weighted averages of counts per minute; ``note`` is called now and then with sums since start."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._at_s: float | None = None
        self.values: dict[tuple[str, str], float] = {}
        """Per minute, by name of the count and of the average: ``("messages/received", "5min")``."""

    def note(self, sums: Mapping[str, float], now_s: float) -> None:
        """Take the sums of this moment. After the first call all averages are 0."""
        if self._at_s is None:
            self.values = {(name, window): 0.0 for name in sums for window in MINUTES}
        elif (passed_s := now_s - self._at_s) > 0:
            for name, total in sums.items():
                self._average(name, (total - self._sums.get(name, 0)) * 60.0 / passed_s, passed_s)
        else:
            return
        self._sums = dict(sums)
        self._at_s = now_s

    def _average(self, name: str, per_minute: float, passed_s: float) -> None:
        for window, window_s in MINUTES.items():
            earlier = self.values.get((name, window), 0.0)
            self.values[name, window] = per_minute + exp(-passed_s / window_s) * (
                earlier - per_minute
            )
