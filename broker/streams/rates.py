"""How fast streams grow, from counts noted now and then."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class _Growth:
    count: int
    at_s: float
    per_second: float = 0.0


class Rates:
    """Growth by name, over the time between the last two notes."""

    def __init__(self) -> None:
        self._growth: dict[str, _Growth] = {}

    def note(self, name: str, count: int, now_s: float) -> None:
        """A count that only grows, at a monotonic time in seconds."""
        before = self._growth.get(name)
        if before is None or count < before.count or now_s <= before.at_s:
            self._growth[name] = _Growth(count, now_s)
            return
        self._growth[name] = _Growth(count, now_s, (count - before.count) / (now_s - before.at_s))

    def per_second(self, name: str) -> float:
        """The growth of a name, 0 while it was noted less than twice."""
        known = self._growth.get(name)
        return 0.0 if known is None else known.per_second

    def forget(self, name: str) -> None:
        """The name is gone."""
        self._growth.pop(name, None)
