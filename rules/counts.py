"""What a rule counts: runs by their outcome, actions by theirs, and how long a run takes."""

from __future__ import annotations

from typing import Final

from broker.observe.metrics import Counter, Metrics
from rules.actions.action import ActionCounts
from rules.timing import Timing

_COUNTERS: Final = {
    "matched": "Messages and events the rule ran on.",
    "passed": "Runs that gave rows.",
    "failed_exception": "Runs that failed.",
    "failed_no_result": "Runs whose WHERE did not hold, or whose FOREACH gave no row.",
}


class Counts:
    """The counters of a rule, under the label ``rule``, those of its actions, and the time its runs take."""

    __slots__ = (*_COUNTERS, "actions", "timing")

    matched: Counter
    passed: Counter
    failed_exception: Counter
    failed_no_result: Counter

    def __init__(self, rule: str) -> None:
        self.timing = Timing()
        self.actions: list[ActionCounts] = []
        """Of each action in order; those of fallbacks are with their steps, and in no sum."""
        for name, text in _COUNTERS.items():
            setattr(self, name, Counter(f"rule_{name}", text, {"rule": rule}))

    def register(self, metrics: Metrics) -> None:
        """Show them with the node's metrics."""
        for name in _COUNTERS:
            metrics.add(getattr(self, name))
        for action in self.actions:
            action.register(metrics)

    def reset(self) -> None:
        """Back to zero, as when the rule's SQL or actions change."""
        for name in _COUNTERS:
            getattr(self, name).value = 0
        for action in self.actions:
            action.reset()
        self.timing.reset()

    def as_dict(self) -> dict[str, int]:
        """The counters by the names people know, with the sums."""
        value: dict[str, int] = {name: getattr(self, name).value for name in _COUNTERS}
        actions = [action.as_dict() for action in self.actions]
        return {
            "matched": value["matched"],
            "passed": value["passed"],
            "failed": value["failed_exception"] + value["failed_no_result"],
            "failed.exception": value["failed_exception"],
            "failed.no_result": value["failed_no_result"],
            **{f"actions.{name}": sum(one[name] for one in actions) for name in ActionCounts.SHOWN},
        }
