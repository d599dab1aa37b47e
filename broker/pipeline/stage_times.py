"""Durations of stages: of the messages that have stages, at most one in ten milliseconds is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from broker.observe.metrics import Metrics
from broker.observe.timing import RecentTiming, measured
from broker.pipeline.plan import TopicPlan

# To measure a message takes 10 µs, so that this costs a thousandth of a processor at most.
TIMED_EVERY_NS: Final = 10_000_000


class _Routes(NamedTuple):
    """``deliver`` of other routes, measured."""

    deliver: Callable[..., int]


class StageTimes:
    """The recent times of each stage, shown as gauges once it was measured. Delivery is the stage ``routing``."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics, self._timings = metrics, dict[str, RecentTiming]()

    def timed(self, plan: TopicPlan) -> TopicPlan:
        """The same plan with stages that are measured."""
        gates = tuple((name, self._measured(name, gate)) for name, gate in plan.gates)
        taps = tuple((name, self._measured(name, tap)) for name, tap in plan.taps)
        routes: Any = _Routes(self._measured("routing", plan.routes.deliver))
        return TopicPlan(plan.topic, plan.topic_bytes, gates, taps, routes, plan.resolve)

    def _measured(self, name: str, run: Any) -> Any:
        return measured(run, self._timings.get(name) or self._add(name))

    def _add(self, name: str) -> RecentTiming:
        timing = self._timings[name] = RecentTiming()
        self._metrics.gauge(
            "stage_p50_seconds",
            lambda: timing.quantile_s(0.5) or float("nan"),
            "median of the time that a stage takes for a message, in the last 10 to 20 seconds",
            stage=name,
        )
        self._metrics.gauge(
            "stage_p99_seconds",
            lambda: timing.quantile_s(0.99) or float("nan"),
            "99th percentile of the time that a stage takes for a message, in the last 10 to 20 seconds",
            stage=name,
        )
        return timing
