"""What an action did, under EMQX's names.

Of every action, at every moment: matched = success + failed + dropped by reason + queuing + inflight. A dead letter
that is sent again counts as matched once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.observe.counter_rates import CounterRate
from broker.observe.metrics import Counter, Metrics

_COUNTERS: Final = {
    "matched": "rows handed to an action",
    "success": "rows that the target has confirmed",
    "failed": "rows that the target will never take, or that could not be rendered",
    "retried": "rows sent more than once",
    "retried_success": "of those, the ones that were confirmed in the end",
    "retried_failed": "of those, the ones that were given up",
    "late_reply": "answers that came for rows given up meanwhile",
}
DROP_REASONS: Final = ("expired", "queue_full", "resource_not_found", "resource_stopped", "not_stored", "other")
LOSS_REASONS: Final = ("failed", "expired", "queue_full", "resource_stopped", "other", "dead_letters_full")
DEAD_CAUSES: Final = ("failed", "expired", "queue_full")
ACTION_LABEL: Final = "action"
SOURCE_LABEL: Final = "source"


class ActionFigures:
    """The counters of one action; the owner of the buffer says how much is in it."""

    __slots__ = (
        "_read_queue", "dead_letters", "dropped", "failed", "late_reply", "lost", "matched", "rate", "retried",
        "retried_failed", "retried_success", "success",
    )  # fmt: skip

    def __init__(self, metrics: Metrics, name: str, read_queue: Callable[[], tuple[int, int, int]]) -> None:
        """``read_queue`` gives queuing, queuing bytes and inflight."""
        self._read_queue = read_queue

        def counter(what: str, help: str, **labels: str) -> Counter:
            made = metrics.counter(f"action_{what}", help, **{ACTION_LABEL: name, **labels})
            made.value = 0  # an earlier action of that name has nothing to do with this one
            return made

        self.matched = counter("matched", _COUNTERS["matched"])
        self.success = counter("success", _COUNTERS["success"])
        self.failed = counter("failed", _COUNTERS["failed"])
        self.retried = counter("retried", _COUNTERS["retried"])
        self.retried_success = counter("retried_success", _COUNTERS["retried_success"])
        self.retried_failed = counter("retried_failed", _COUNTERS["retried_failed"])
        self.late_reply = counter("late_reply", _COUNTERS["late_reply"])
        self.dropped = {
            reason: counter("dropped", "rows dropped by an action, by reason", reason=reason) for reason in DROP_REASONS
        }
        self.dead_letters = {
            cause: counter("dead_letters", "rows that an action kept as dead letters, by cause", cause=cause)
            for cause in DEAD_CAUSES
        }
        self.lost = {
            reason: counter("lost", "rows that an action gave up and no fallback or dead letter holds", reason=reason)
            for reason in LOSS_REASONS
        }
        labels = {ACTION_LABEL: name}
        metrics.gauge("action_queuing", lambda: read_queue()[0], "rows that wait in an action's buffer", **labels)
        metrics.gauge(
            "action_queuing_bytes", lambda: read_queue()[1], "bytes that wait in an action's buffer", **labels
        )
        metrics.gauge(
            "action_inflight", lambda: read_queue()[2], "rows in requests that the target has not answered", **labels
        )
        self.rate = CounterRate()

    def sample(self, now_s: float) -> None:
        """Take a sample for the rates; called every ``counter_rates.STEP_S``."""
        self.rate.note(self.matched.value, now_s)

    def dead_letters_lost(self, count: int) -> None:
        """So many dead letters made room for newer ones."""
        self.lost["dead_letters_full"].value += count

    def reset(self) -> None:
        """Begin anew; what waits has been matched, so that the counters still add up."""
        queuing, _, inflight = self._read_queue()
        for counter in self._all():
            counter.value = 0
        self.matched.value = queuing + inflight
        self.rate.reset()

    def lost_by_reason(self) -> dict[str, int]:
        """Rows that nothing holds any more, for the reasons there were."""
        return {reason: counter.value for reason, counter in self.lost.items() if counter.value}

    def as_dict(self) -> dict[str, Any]:
        """Counters, gauges and rates by the names people know."""
        queuing, queuing_bytes, inflight = self._read_queue()
        return {
            "matched": self.matched.value,
            "success": self.success.value,
            "failed": self.failed.value,
            "dropped": sum(counter.value for counter in self.dropped.values()),
            **{f"dropped.{reason}": counter.value for reason, counter in self.dropped.items()},
            "retried": self.retried.value,
            "retried.success": self.retried_success.value,
            "retried.failed": self.retried_failed.value,
            "late_reply": self.late_reply.value,
            **{f"dead_letters.{cause}": counter.value for cause, counter in self.dead_letters.items()},
            "lost": sum(counter.value for counter in self.lost.values()),
            "queuing": queuing,
            "queuing_bytes": queuing_bytes,
            "inflight": inflight,
            **rates(self.rate),
        }

    def _all(self) -> list[Counter]:
        named = [self.matched, self.success, self.failed, self.retried, self.retried_success, self.retried_failed]
        return [*named, self.late_reply, *self.dropped.values(), *self.dead_letters.values(), *self.lost.values()]


def rates(rate: CounterRate) -> Mapping[str, float]:
    """A second: in the last step, over five minutes, at most."""
    return {"rate": round(rate.last, 2), "rate_last5m": round(rate.average, 2), "rate_max": round(rate.most, 2)}
