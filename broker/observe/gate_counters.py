"""How validations and transformations are counted, and how their failures are logged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from broker.observe.log import Logger
from broker.observe.metrics import Counter, Metrics


@dataclass(frozen=True, slots=True)
class GateCounters:
    """What one validation or transformation did since the node started."""

    matched: Counter
    succeeded: Counter
    failed: Counter

    @classmethod
    def of(cls, metrics: Metrics, gate: str, label: str, name: str) -> GateCounters:
        """The counters ``<gate>_matched``, ``_succeeded`` and ``_failed`` of the object that ``label`` names."""

        def counter(what: str, help: str) -> Counter:
            return metrics.counter(f"{gate}_{what}", help, **{label: name})

        return cls(
            counter("matched", "messages on its topics"),
            counter("succeeded", "messages it let through"),
            counter("failed", "messages that failed"),
        )

    def as_dict(self) -> dict[str, int]:
        """Present values by name."""
        return {"matched": self.matched.value, "succeeded": self.succeeded.value, "failed": self.failed.value}

    def reset(self) -> None:
        """Back to zero."""
        self.matched.value = self.succeeded.value = self.failed.value = 0


def write_failure(log: Logger, level: str, event: str, **fields: Any) -> None:
    """Log a failure at a level of ``log_failure``; ``none`` writes nothing."""
    writers: Mapping[str, Callable[..., None]] = {
        "error": log.error,
        "warning": log.warning,
        "notice": log.info,
        "info": log.info,
        "debug": log.debug,
    }
    if write := writers.get(level):
        write(event, **fields)
