"""How many messages a second rules match: now, at most, and on average over five minutes.

One tick of ``STEP_S`` reads the counters of all rules; nothing is done per message. A rate is that of the last full
step, so that two people who ask see the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

STEP_S: Final = 5.0
WINDOW_S: Final = 300.0
_STEPS: Final = round(WINDOW_S / STEP_S)


class MatchRate:
    """The rate of one counter, from samples that come about every ``STEP_S``."""

    __slots__ = ("_counts", "_times", "last", "most")

    def __init__(self) -> None:
        self.last = 0.0
        """Matches a second in the last step."""
        self.most = 0.0
        """The highest there was of those."""
        self._counts, self._times = array("q"), array("d")

    def note(self, count: int, now_s: float) -> None:
        """Take a sample of the counter."""
        if self._counts and count < self._counts[-1]:  # set to zero meanwhile
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
        """Matches a second over the last five minutes, or as long as the rule is known."""
        passed_s = self._times[-1] - self._times[0] if self._times else 0.0
        return (self._counts[-1] - self._counts[0]) / passed_s if passed_s > 0 else 0.0

    def reset(self) -> None:
        """Begin anew."""
        self.last = self.most = 0.0
        del self._counts[:], self._times[:]

    def as_dict(self) -> dict[str, float]:
        """By the names people know."""
        return {
            "matched.rate": round(self.last, 2),
            "matched.rate.max": round(self.most, 2),
            "matched.rate.last5m": round(self.average, 2),
        }


class MatchRates:
    """The rates of all rules of a node, by name. Used on the event loop."""

    def __init__(self) -> None:
        self._rates: dict[str, MatchRate] = {}

    def tick(self, counts: Iterable[tuple[str, int]], now_s: float) -> None:
        """Sample all rules, each with what it matched; those that are not there any more are forgotten."""
        rates: dict[str, MatchRate] = {}
        for name, count in counts:
            rate = rates[name] = self._rates.get(name) or MatchRate()
            rate.note(count, now_s)
        self._rates = rates

    def of(self, name: str) -> MatchRate:
        """The rate of a rule; a new one has had no message yet."""
        return self._rates.get(name) or MatchRate()

    def forget(self, name: str) -> None:
        """Begin anew, as when a rule's counters are set to zero."""
        self._rates.pop(name, None)
