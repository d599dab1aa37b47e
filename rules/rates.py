"""How many messages a second rules match: now, at most, and on average over five minutes."""

from __future__ import annotations

from collections.abc import Iterable

from broker.observe.counter_rates import STEP_S, CounterRate

__all__ = ["STEP_S", "MatchRate", "MatchRates"]


class MatchRate(CounterRate):
    """The rate of a rule's ``matched``."""

    __slots__ = ()

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
