"""Counters of a rule: runs by outcome, actions by outcome, and the time a run takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from typing_extensions import TypedDict

from broker.observe.counter_rates import CounterRate
from broker.observe.metrics import Counter, Metrics
from broker.observe.timing import Timing
from rules.actions.action import ActionCounts, CounterSet, RuleActionView

_COUNTERS: Final = {
    "matched": "Messages and events the rule ran on.",
    "passed": "Runs that gave rows.",
    "failed_exception": "Runs that failed.",
    "failed_no_result": "Runs whose WHERE did not hold, or whose FOREACH gave no row.",
}


class EvaluationTimes(TypedDict):
    """Seconds within which half of the runs, and 99 of 100, end; of the ``timed`` ones, null before the first."""

    p50: float | None
    p99: float | None
    timed: int


RuleMetrics = TypedDict(
    "RuleMetrics",
    {
        "matched": int,
        "passed": int,
        "failed": int,
        "failed.exception": int,
        "failed.no_result": int,
        "actions.total": int,
        "actions.success": int,
        "actions.failed": int,
        "actions.failed.out_of_service": int,
        "actions.failed.unknown": int,
        "actions.discarded": int,
        "matched.rate": float,
        "matched.rate.max": float,
        "matched.rate.last5m": float,
        "passed.rate": float,
        "failed.exception.rate": float,
        "evaluation_s": EvaluationTimes,
    },
)
RuleMetrics.__doc__ = """What a rule did since it was saved or its counters were reset: runs (``matched``) by outcome,
its actions together, what it does per second in the last 5 s, its matches also at most and over 5 minutes, and how
long a run takes."""


class RuleMetricsView(RuleMetrics):
    """Counts of a rule and each of its actions since it was saved or its counters were reset; runs (``matched``) by
    outcome, its actions together, what it does per second in the last 5 s, its matches also at most and over 5 minutes,
    and how long a run takes."""

    actions: list[RuleActionView]


class RuleRate(CounterRate):
    """Messages a second that a rule matches: now, at most, and on average over five minutes; of those that passed
    and failed, only the last."""

    __slots__ = ("_failed", "_passed", "failed", "passed")

    def __init__(self) -> None:
        super().__init__()
        self.passed = self.failed = 0.0
        self._passed = self._failed = 0

    def note_all(self, counts: Counts, now_s: float) -> None:
        """Take a sample of the counters."""
        passed = counts.passed.value
        failed = counts.failed_exception.value
        if self._times and (step_s := now_s - self._times[-1]) > 0:
            self.passed = max(0, passed - self._passed) / step_s
            self.failed = max(0, failed - self._failed) / step_s
        self._passed = passed
        self._failed = failed
        self.note(counts.matched.value, now_s)

    def reset(self) -> None:
        super().reset()
        self.passed = self.failed = 0.0

    def as_dict(self) -> dict[str, float]:
        """Counts by their public names."""
        return {
            "matched.rate": round(self.last, 2),
            "matched.rate.max": round(self.most, 2),
            "matched.rate.last5m": round(self.average, 2),
            "passed.rate": round(self.passed, 2),
            "failed.exception.rate": round(self.failed, 2),
        }


class Counts(CounterSet):
    """The counters of a rule, under the label ``rule``, those of its actions, its rates, and the time its runs take."""

    __slots__ = (*_COUNTERS, "rate", "timing")

    matched: Counter
    passed: Counter
    failed_exception: Counter
    failed_no_result: Counter

    def __init__(self, rule: str) -> None:
        super().__init__("rule_", _COUNTERS, {"rule": rule})
        self.timing, self.rate = Timing(), RuleRate()

    @property
    def actions(self) -> list[ActionCounts]:
        """Counts of each action in order; those of fallbacks are with their steps, and in no sum."""
        return self.parts

    def reset(self) -> None:
        """Back to zero, as when the rule's SQL or actions change."""
        super().reset()
        self.timing.reset()
        self.rate.reset()

    def as_dict(self) -> dict[str, int]:
        """The counters by their public names, with the sums."""
        value: dict[str, int] = {name: getattr(self, name).value for name in _COUNTERS}
        actions: list[Any] = [action.as_dict() for action in self.actions]
        return {
            "matched": value["matched"],
            "passed": value["passed"],
            "failed": value["failed_exception"] + value["failed_no_result"],
            "failed.exception": value["failed_exception"],
            "failed.no_result": value["failed_no_result"],
            **{
                f"actions.{name}": sum(counts[name] for counts in actions)
                for name in ActionCounts.SHOWN
            },
        }


# Counts of all rules of a node since it started: sums that only grow, even when rules are deleted.


class Totals:
    """``rules.matched`` and ``actions.messages``. Read when asked for: a message adds to its rule's counters alone."""

    def __init__(self, present: Callable[[], Iterable[Counts]]) -> None:
        self._present = present
        self._matched_before = self._actions_before = 0

    def retire(self, counts: Counts) -> None:
        """Keep what counters hold that go away, or are set to zero now."""
        self._matched_before += counts.matched.value
        self._actions_before += sum(action.total.value for action in counts.parts)

    @property
    def matched(self) -> int:
        """Messages and events that rules ran on; one that three rules ran on counts three times."""
        return self._matched_before + sum([counts.matched.value for counts in self._present()])

    @property
    def actions(self) -> int:
        """Rows handed to actions; one that two actions took counts twice."""
        present = self._present()
        return self._actions_before + sum(
            [action.total.value for counts in present for action in counts.parts]
        )

    def register(self, metrics: Metrics) -> None:
        """Show them with the node's metrics."""
        metrics.total(
            "rules_matched",
            lambda: self.matched,
            "Messages and events that rules ran on, of all rules.",
        )
        metrics.total(
            "actions_messages", lambda: self.actions, "Rows handed to actions, of all rules."
        )
