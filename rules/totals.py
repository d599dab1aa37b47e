"""What all rules of a node did since it started: sums that only grow, whatever becomes of single rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.observe.metrics import Metrics
from rules.counts import Counts


class Totals:
    """``rules.matched`` and ``actions.messages``. Read when asked for: a message adds to its rule's counters alone."""

    def __init__(self, present: Callable[[], Iterable[Counts]]) -> None:
        self._present = present
        self._matched_before = self._actions_before = 0

    def retire(self, counts: Counts) -> None:
        """Keep what counters hold that go away, or are set to zero now."""
        self._matched_before += counts.matched.value
        self._actions_before += _actions(counts)

    @property
    def matched(self) -> int:
        """Messages and events that rules ran on; one that three rules ran on counts three times."""
        return self._matched_before + sum(counts.matched.value for counts in self._present())

    @property
    def actions(self) -> int:
        """Rows handed to actions; one that two actions took counts twice."""
        return self._actions_before + sum(map(_actions, self._present()))

    def register(self, metrics: Metrics) -> None:
        """Show them with the node's metrics."""
        metrics.total("rules_matched", lambda: self.matched, "Messages and events that rules ran on, of all rules.")
        metrics.total("actions_messages", lambda: self.actions, "Rows handed to actions, of all rules.")


def _actions(counts: Counts) -> int:
    return sum(action.total.value for action in counts.actions)
