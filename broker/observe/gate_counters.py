"""How validations and transformations are counted, and how their failures are reported."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from broker.core.message import Message
from broker.core.quarantine import Quarantine
from broker.observe.counter_rates import CounterRate
from broker.observe.log import Logger
from broker.observe.metrics import Counter, Metrics

RECENT_FAILURES: Final = 20
LOG_EVERY_NS: Final = 60_000_000_000
"""How often failures of one object are logged."""
_WRITERS: Final = {"error": "error", "warning": "warning", "notice": "info", "info": "info", "debug": "debug"}
STOPPING: Final = ("drop", "disconnect")
"""Actions after which a message goes no further."""


@dataclass(frozen=True, slots=True)
class GateCounters:
    """What one validation or transformation did since the node started."""

    matched: Counter
    succeeded: Counter
    failed: Counter
    quarantined: Counter

    @classmethod
    def of(cls, metrics: Metrics, gate: str, label: str, name: str) -> GateCounters:
        """The counters ``<gate>_matched``, ``_succeeded`` and ``_failed`` of the object that ``label`` names."""

        def counter(what: str, help: str) -> Counter:
            return metrics.counter(f"{gate}_{what}", help, **{label: name})

        return cls(
            counter("matched", "messages on its topics"),
            counter("succeeded", "messages it let through"),
            counter("failed", "messages that failed"),
            counter("quarantined", "messages stopped and kept in the stream of its quarantine"),
        )

    def as_dict(self) -> dict[str, int]:
        """Present values by name."""
        return {
            "matched": self.matched.value,
            "succeeded": self.succeeded.value,
            "failed": self.failed.value,
            "quarantined": self.quarantined.value,
        }

    def reset(self) -> None:
        """Back to zero."""
        self.matched.value = self.succeeded.value = self.failed.value = self.quarantined.value = 0


@dataclass(slots=True)
class GateStats:
    """What one validation or transformation did, and where it keeps what it stops."""

    counters: GateCounters
    keep: Quarantine | None = None
    rate: CounterRate = field(default_factory=CounterRate)
    """Of the messages that match."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT_FAILURES))
    """The last failures, oldest first, without payloads."""
    _quiet_until_ns: int = 0
    _unlogged: int = 0

    def failed(self, message: Message, reason: str, path: str, action: str, **details: Any) -> None:
        """Count a failure and remember it; a message that goes no further is kept where there is a quarantine."""
        self.counters.failed.value += 1
        self.recent.append(
            {
                "time_ms": message.received_ns // 1_000_000,
                "topic": message.topic,
                "clientid": message.client.client_id,
                "reason": reason,
                "path": path,
                "action": action,
                **details,
            }
        )
        if action in STOPPING and self.keep is not None and self.keep(message, reason, path, action):
            self.counters.quarantined.value += 1

    def log(self, log: Logger, level: str, event: str, message: Message, **fields: Any) -> None:
        """Log a failure at a level of ``log_failure``; ``none`` writes nothing.

        One line a minute, however many messages fail: the next one says how many did since (``repeated``).
        """
        write = getattr(log, _WRITERS.get(level, ""), None)
        if write is None:
            return
        if message.received_ns < self._quiet_until_ns:
            self._unlogged += 1
            return
        repeated = {"repeated": self._unlogged} if self._unlogged else {}
        self._quiet_until_ns, self._unlogged = message.received_ns + LOG_EVERY_NS, 0
        write(event, topic=message.topic, client_id=message.client.client_id, **fields, **repeated)

    def reset(self) -> None:
        """Begin again, as when what is counted changes."""
        self.counters.reset()
        self.rate.reset()
        self.recent.clear()

    def sample(self, now_s: float) -> None:
        """Take a sample for the rates; called every ``counter_rates.STEP_S``."""
        self.rate.note(self.counters.matched.value, now_s)

    def metrics(self) -> dict[str, float]:
        """Counters, and how many messages matched a second: in the last step, over five minutes, at most."""
        return {
            **self.counters.as_dict(),
            "rate": round(self.rate.last, 2),
            "rate_last5m": round(self.rate.average, 2),
            "rate_max": round(self.rate.most, 2),
        }

    def as_members(self) -> dict[str, Any]:
        """Members of the object as it is shown."""
        return {"metrics": self.metrics(), "recent_failures": list(self.recent)}
