"""Every metric by name, with unit and help, as plain counters.

The hot path does ``counter.value += 1`` and nothing else; reading walks the registry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate


@dataclass(slots=True)
class Counter:
    """A number that only grows while the process lives. Owners add to ``value`` directly."""

    name: str
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: int = 0


@dataclass(slots=True)
class Gauge:
    """A number that is read when it is shown; ``grows`` when it is a sum that never falls."""

    name: str
    help: str
    read: Callable[[], float]
    labels: Mapping[str, str] = field(default_factory=dict)
    grows: bool = False


class Histogram:
    """How many values there were up to each of some bounds, as Prometheus has it: sums that never fall."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = (*bounds, float("inf"))
        self._counts = [0] * len(self.bounds)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def note(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def up_to(self, number: int) -> int:
        """How many values were no larger than the bound of this number."""
        return list(accumulate(self._counts))[number]


_Key = tuple[str, tuple[tuple[str, str], ...]]


class Metrics:
    """The registry of a node."""

    def __init__(self) -> None:
        self._metrics: dict[_Key, Counter | Gauge] = {}

    def counter(self, name: str, help: str = "", **labels: str) -> Counter:
        """The counter of that name and those labels, created on first use."""
        key = (name, tuple(sorted(labels.items())))
        found = self._metrics.get(key)
        if found is None:
            found = self._metrics[key] = Counter(name, help, labels)
        if not isinstance(found, Counter):
            raise TypeError(f"metric {name!r} is a gauge")
        return found

    def add(self, counter: Counter) -> None:
        """Show a counter of its owner; replaces one of the same name and labels."""
        self._metrics[(counter.name, tuple(sorted(counter.labels.items())))] = counter

    def gauge(self, name: str, read: Callable[[], float], help: str = "", **labels: str) -> None:
        """Register a number to be read on demand; replaces one of the same name and labels."""
        self._metrics[(name, tuple(sorted(labels.items())))] = Gauge(name, help, read, labels)

    def total(self, name: str, read: Callable[[], float], help: str = "", **labels: str) -> None:
        """Register a sum to be read on demand that never falls: a counter without a ``Counter``."""
        self._metrics[(name, tuple(sorted(labels.items())))] = Gauge(name, help, read, labels, grows=True)

    def histogram(self, name: str, bounds: Sequence[float], help: str = "") -> Histogram:
        """Make a histogram, shown as ``NAME_bucket``, ``NAME_sum`` and ``NAME_count``."""
        made = Histogram(bounds)
        for number, bound in enumerate(made.bounds):
            le = "+Inf" if bound == float("inf") else str(bound)
            self.total(f"{name}_bucket", partial(made.up_to, number), help, le=le)
        self.total(f"{name}_sum", lambda: made.sum, help)
        self.total(f"{name}_count", lambda: made.count, help)
        return made

    def remove(self, **labels: str) -> None:
        """Forget all metrics that carry these labels, as those of a deleted rule."""
        wanted = labels.items()
        self._metrics = {k: m for k, m in self._metrics.items() if not wanted <= m.labels.items()}

    def __iter__(self) -> Iterator[Counter | Gauge]:
        return iter(list(self._metrics.values()))

    def value(self, name: str, **labels: str) -> float:
        """The present value of one metric, 0 when it does not exist yet."""
        found = self._metrics.get((name, tuple(sorted(labels.items()))))
        if found is None:
            return 0
        return found.value if isinstance(found, Counter) else found.read()
