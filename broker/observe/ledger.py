"""Balance of every publish: received = passed on + dropped, by reason; what remains must be 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.observe.metrics import Counter, Metrics

# Counters of messages that came in: from clients, and from rules, the API and bridges.
RECEIVED = ("messages_received", "messages_internal")
# Counter of messages that passed all gates.
PASSED = "messages_passed"
# Counters of messages dropped, with the label ``reason``.
DROPPED = "messages_dropped"
# Counter of messages that a client resent and that had been accepted before; shown as the reason ``already_taken``.
RESENT = "messages_resent_already_taken"
# The reasons of messages that passed all gates, and then no one took, or the store could not hold.
LATE = ("no_subscribers", "not_stored")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts since start. ``residual`` is what is not accounted for: 0, unless a message is under way this instant."""

    received: int
    accepted: int
    dropped: int
    residual: int
    dropped_by_reason: dict[str, int]

    def as_dict(self) -> dict[str, Any]:
        """Ledger in the API's form."""
        return {
            "received": self.received,
            "accepted": self.accepted,
            "dropped": self.dropped,
            "residual": self.residual,
            "dropped_by_reason": dict(self.dropped_by_reason),
        }


def ledger(metrics: Metrics) -> Ledger:
    """The ledger of this instant; read it on the loop that counts, where nothing changes it in between."""
    counters = [metric for metric in metrics if isinstance(metric, Counter)]
    received = sum(counter.value for counter in counters if counter.name in RECEIVED)
    passed = sum(counter.value for counter in counters if counter.name == PASSED)
    by_reason = {
        "already_taken"
        if counter.name == RESENT
        else counter.labels.get("reason", ""): counter.value
        for counter in counters
        if counter.name in (DROPPED, RESENT) and counter.value
    }
    accepted = passed - sum(by_reason.get(reason, 0) for reason in LATE)
    dropped = sum(by_reason.values())
    return Ledger(received, accepted, dropped, received - accepted - dropped, by_reason)
