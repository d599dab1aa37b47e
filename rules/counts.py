"""What a rule counts: runs by their outcome, actions by theirs, and how long a run takes."""

from __future__ import annotations

from typing import Final

from broker.observe.metrics import Metrics
from rules.timing import Timing

_COUNTERS: Final = {
    "matched": "Messages and events the rule ran on.",
    "passed": "Runs that gave rows.",
    "failed_exception": "Runs that failed.",
    "failed_no_result": "Runs whose WHERE did not hold, or whose FOREACH gave no row.",
    "actions_total": "Actions started, one per row and action.",
    "actions_success": "Actions that did their work.",
    "actions_failed_out_of_service": "Actions whose target could not be reached.",
    "actions_failed_unknown": "Actions that failed otherwise.",
    "actions_discarded": "Actions not done because their target is disabled.",
}


class Counts:
    """The counters of a rule, in the node's registry under the label ``rule``, and the time its runs take."""

    __slots__ = (*_COUNTERS, "timing")

    def __init__(self, metrics: Metrics, rule: str) -> None:
        self.timing = Timing()
        for name, text in _COUNTERS.items():
            setattr(self, name, metrics.counter(f"rule_{name}", text, rule=rule))

    def reset(self) -> None:
        """Back to zero, as when the rule's SQL or actions change."""
        for name in _COUNTERS:
            getattr(self, name).value = 0
        self.timing.reset()

    def as_dict(self) -> dict[str, int]:
        """The counters by the names people know, with the sums."""
        value: dict[str, int] = {name: getattr(self, name).value for name in _COUNTERS}
        return {
            "matched": value["matched"],
            "passed": value["passed"],
            "failed": value["failed_exception"] + value["failed_no_result"],
            "failed.exception": value["failed_exception"],
            "failed.no_result": value["failed_no_result"],
            "actions.total": value["actions_total"],
            "actions.success": value["actions_success"],
            "actions.failed": value["actions_failed_out_of_service"] + value["actions_failed_unknown"],
            "actions.failed.out_of_service": value["actions_failed_out_of_service"],
            "actions.failed.unknown": value["actions_failed_unknown"],
            "actions.discarded": value["actions_discarded"],
        }
