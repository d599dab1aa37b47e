"""Registry of metrics: each by name, with its kind and help, as plain counters.

The hot path does ``counter.value += 1`` and nothing else; reading walks the registry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import isnan
from typing import ClassVar

from broker.observe.log import get_logger

_log = get_logger(__name__)


@dataclass(slots=True)
class Counter:
    """A number that only grows while the process lives. Owners add to ``value`` directly."""

    name: str
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)
    value: int = 0
    grows: ClassVar[bool] = True

    def read(self) -> int:
        """The present value."""
        return self.value


@dataclass(slots=True)
class Gauge:
    """A number that is read when it is shown; ``grows`` when it is a sum that never falls."""

    name: str
    help: str
    read: Callable[[], float]
    labels: Mapping[str, str] = field(default_factory=dict)
    grows: bool = False


class Histogram:
    """Number of values up to each of some bounds, as in Prometheus: sums that never fall."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = (*bounds, float("inf"))
        self.counts = [0] * len(self.bounds)
        """Number of values up to each bound and above the one before."""
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def note(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def up_to(self, number: int) -> int:
        """Number of values up to the bound of this number."""
        return list(accumulate(self.counts))[number]


Metric = Counter | Gauge


def known(metric: Metric) -> float | None:
    """The value of a metric, 0 or 1 of one that is false or true; None where it is not known.

    A gauge that fails to read is logged.
    """
    try:
        value = +metric.read()
        return None if isnan(value) else value
    except Exception as error:  # noqa: BLE001  one broken gauge must not hide the other metrics
        _log.warning("metrics.gauge_failed", metric=metric.name, reason=repr(error))
        return None


# Names and values of labels, sorted by name.
Labels = tuple[tuple[str, str], ...]


class Metrics:
    """The registry of a node."""

    def __init__(self) -> None:
        self._families: dict[str, dict[Labels, Metric]] = {}
        self.histograms: dict[str, tuple[Histogram, str]] = {}
        """Histograms and their help, by name."""

    def counter(self, name: str, help: str = "", **labels: str) -> Counter:
        """The counter of that name and those labels, created on first use."""
        counter = self.family(name).get(_sorted(labels))
        if counter is None:
            counter = self._put(Counter(name, help, labels))
        if not isinstance(counter, Counter):
            raise TypeError(f"metric {name!r} is a gauge")
        return counter

    def add(self, counter: Counter) -> None:
        """Show a counter of its owner; replaces one of the same name and labels."""
        self._put(counter)

    def gauge(self, name: str, read: Callable[[], float], help: str = "", **labels: str) -> None:
        """Register a number to be read on demand; replaces one of the same name and labels."""
        self._put(Gauge(name, help, read, labels))

    def total(self, name: str, read: Callable[[], float], help: str = "", **labels: str) -> None:
        """Register a sum to be read on demand that never falls: a counter without a ``Counter``."""
        self._put(Gauge(name, help, read, labels, grows=True))

    def histogram(self, name: str, bounds: Sequence[float], help: str = "") -> Histogram:
        """Make a histogram, shown as ``NAME_bucket``, ``NAME_sum`` and ``NAME_count``."""
        histogram = Histogram(bounds)
        self.histograms[name] = histogram, help
        for number, bound in enumerate(histogram.bounds):
            le = "+Inf" if bound == float("inf") else str(bound)
            self.total(f"{name}_bucket", partial(histogram.up_to, number), help, le=le)
        self.total(f"{name}_sum", lambda: histogram.sum, help)
        self.total(f"{name}_count", lambda: histogram.count, help)
        return histogram

    def remove(self, **labels: str) -> None:
        """Forget all metrics that carry these labels, as those of a deleted rule."""
        first, *others = labels.items()
        for family in self._families.values():
            for key in [
                key for key in family if first in key and all(other in key for other in others)
            ]:
                del family[key]

    def family(self, name: str) -> Mapping[Labels, Metric]:
        """The metrics of one name, by their labels."""
        return self._families.get(name, {})

    def __iter__(self) -> Iterator[Metric]:
        return iter(
            [metric for family in list(self._families.values()) for metric in list(family.values())]
        )

    def value(self, name: str, **labels: str) -> float:
        """The present value of one metric, 0 when it does not exist yet."""
        metric = self.family(name).get(_sorted(labels))
        return 0 if metric is None else metric.read()

    def _put(self, metric: Metric) -> Metric:
        self._families.setdefault(metric.name, {})[_sorted(metric.labels)] = metric
        return metric


def _sorted(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))
