"""Counters of actions and sources, under EMQX's names.

Of every action, at every moment: matched = success + failed + dropped by reason + queuing + inflight. A dead letter
that is sent again counts as matched once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import Any, ClassVar, Final, NamedTuple

from typing_extensions import TypedDict

from bridges.resource.contract import Lag
from broker.core.times import rfc3339
from broker.observe.counter_rates import CounterRate
from broker.observe.metrics import Counter, Metrics

DROP_REASONS: Final = (
    "expired",
    "queue_full",
    "resource_not_found",
    "resource_stopped",
    "not_stored",
    "other",
)
LOSS_REASONS: Final = (
    "failed",
    "expired",
    "queue_full",
    "resource_stopped",
    "other",
    "dead_letters_full",
)
DEAD_CAUSES: Final = ("failed", "expired", "queue_full")


class SourceMetrics(TypedDict):
    """Counters of a source since their reset: records that came in, were taken and committed (``success``),
    came again, were refused by a stage, or could not be taken; records per second in the last 5 s, over 5 minutes, at
    most. ``lag_records`` is the number of records that waited in the outside system at ``lag_as_of``. Both are null if
    unknown, as for a source that is stopped or whose system does not answer."""

    received: int
    success: int
    duplicates: int
    refused: int
    failed: int
    lag_records: int | None
    lag_as_of: str | None
    rate: float
    rate_last5m: float
    rate_max: float


ActionMetrics = TypedDict(
    "ActionMetrics",
    {
        "matched": int,
        "success": int,
        "failed": int,
        "retried": int,
        "retried.success": int,
        "retried.failed": int,
        "late_reply": int,
        "dropped": int,
        "dropped.expired": int,
        "dropped.queue_full": int,
        "dropped.resource_not_found": int,
        "dropped.resource_stopped": int,
        "dropped.not_stored": int,
        "dropped.other": int,
        "dead_letters.failed": int,
        "dead_letters.expired": int,
        "dead_letters.queue_full": int,
        "lost": int,
        "queuing": int,
        "queuing_bytes": int,
        "inflight": int,
        "lag_s": float | None,
        "rate": float,
        "rate_last5m": float,
        "rate_max": float,
    },
)
ActionMetrics.__doc__ = """What an action did since its counters were reset: matched = success + failed + dropped +
queuing + inflight. Rows that were ``lost`` are in no fallback or dead letter. ``lag_s`` is the age of the oldest row
that is not confirmed, 0 if all are, null if unknown. Rows per second in the last 5 s, over 5
minutes, at most."""


class Waiting(NamedTuple):
    """Contents of an action's buffer."""

    rows: int
    """Rows that are not in a request."""
    size_bytes: int
    inflight: int
    lag_s: float | None


class Figures:
    """Counters of one action or source, and the rate of the first; each counter is an attribute."""

    kind: ClassVar[str]
    counted: ClassVar[Mapping[str, str]]
    """The counters and their help; those of an action are called ``action_<name>``."""

    def __init__(self, metrics: Metrics, name: str) -> None:
        self._metrics = metrics
        self._labels = {self.kind: name}
        self._all: list[Counter] = []
        for counter, help in self.counted.items():
            setattr(self, counter, self._counter(counter, help))
        self.rate = CounterRate()

    def _counter(self, name: str, help: str, **labels: str) -> Counter:
        metric = self._metrics.counter(f"{self.kind}_{name}", help, **self._labels, **labels)
        metric.value = 0  # an earlier object of that name has nothing to do with this one
        self._all.append(metric)
        return metric

    def sample(self, now_s: float) -> None:
        """Take a sample for the rates; called every ``counter_rates.STEP_S``."""
        self.rate.note(self._all[0].value, now_s)

    def reset(self) -> None:
        """Set all counters to zero."""
        for counter in self._all:
            counter.value = 0
        self.rate.reset()

    def as_dict(self) -> dict[str, Any]:
        """Counters, and rates per second: in the last step, over five minutes, the highest."""
        rate = self.rate
        return {
            **{
                name.replace("retried_", "retried."): getattr(self, name).value
                for name in self.counted
            },
            "rate": round(rate.last, 2),
            "rate_last5m": round(rate.average, 2),
            "rate_max": round(rate.most, 2),
        }


class ActionFigures(Figures):
    """The counters of one action; the owner of the buffer says how much is in it."""

    kind = "action"
    counted: ClassVar = {
        "matched": "rows handed to an action",
        "success": "rows that the target has confirmed",
        "failed": "rows that the target will never take, or that could not be rendered",
        "retried": "rows sent more than once",
        "retried_success": "of those, the ones that were confirmed in the end",
        "retried_failed": "of those, the ones that were discarded",
        "late_reply": "answers for rows that were discarded before",
    }
    matched: Counter
    success: Counter
    failed: Counter
    retried: Counter
    retried_success: Counter
    retried_failed: Counter
    late_reply: Counter

    def __init__(self, metrics: Metrics, name: str, read_queue: Callable[[], Waiting]) -> None:
        super().__init__(metrics, name)
        self._read_queue = read_queue
        count = self._counter
        given_up = "rows that an action discarded and no fallback or dead letter holds"
        kept = "rows that an action kept as dead letters, by cause"
        self.dropped = {
            cause: count("dropped", "rows dropped by an action, by reason", reason=cause)
            for cause in DROP_REASONS
        }
        self.dead_letters = {
            cause: count("dead_letters", kept, cause=cause) for cause in DEAD_CAUSES
        }
        self.lost = {cause: count("lost", given_up, reason=cause) for cause in LOSS_REASONS}
        gauge = metrics.gauge
        labels = self._labels
        gauge(
            "action_queuing",
            lambda: read_queue().rows,
            "rows that wait in an action's buffer",
            **labels,
        )
        gauge(
            "action_queuing_bytes",
            lambda: read_queue().size_bytes,
            "bytes in an action's buffer",
            **labels,
        )
        gauge(
            "action_inflight",
            lambda: read_queue().inflight,
            "rows in requests without an answer",
            **labels,
        )
        age = "age of the oldest row that an action's target has not confirmed"
        gauge("action_lag_seconds", lambda: _or_nan(read_queue().lag_s), age, **labels)

    def dead_letters_lost(self, count: int) -> None:
        """Count dead letters that made room for newer ones."""
        self.lost["dead_letters_full"].value += count

    def reset(self) -> None:
        """Set all counters to zero; what waits has been matched, so that the counters still add up."""
        super().reset()
        waiting = self._read_queue()
        self.matched.value = waiting.rows + waiting.inflight

    def lost_by_reason(self) -> dict[str, int]:
        """Rows that are lost, by reason."""
        return {reason: counter.value for reason, counter in self.lost.items() if counter.value}

    def as_dict(self) -> dict[str, Any]:
        """Counters, gauges and rates by their public names."""
        waiting = self._read_queue()
        return {
            **super().as_dict(),
            "dropped": sum(counter.value for counter in self.dropped.values()),
            **{f"dropped.{reason}": counter.value for reason, counter in self.dropped.items()},
            **{
                f"dead_letters.{cause}": counter.value
                for cause, counter in self.dead_letters.items()
            },
            "lost": sum(counter.value for counter in self.lost.values()),
            "queuing": waiting.rows,
            "queuing_bytes": waiting.size_bytes,
            "inflight": waiting.inflight,
            "lag_s": None if waiting.lag_s is None else round(waiting.lag_s, 3),
        }


class SourceFigures(Figures):
    """The counters of one source."""

    kind = "source"
    counted: ClassVar = {
        "received": "records that a source brought in",
        "success": "of those, the ones that are taken and committed",
        "duplicates": "records that came again and were left out",
        "refused": "messages of a source that a stage of the pipeline refused",
        "failed": "records that could not be taken and are handed over again",
    }
    received: Counter
    success: Counter
    duplicates: Counter
    refused: Counter
    failed: Counter

    def __init__(self, metrics: Metrics, name: str, read_lag: Callable[[], Lag | None]) -> None:
        super().__init__(metrics, name)
        self._read_lag = read_lag
        text = "records that a source has not read yet"
        metrics.gauge("source_lag_records", self._lag_records, text, **self._labels)

    def as_dict(self) -> dict[str, Any]:
        """Counters, lag and rates by their public names."""
        lag = self._read_lag()
        return {
            **super().as_dict(),
            "lag_records": None if lag is None else lag.records,
            "lag_as_of": None if lag is None else rfc3339(lag.as_of_ns),
        }

    def _lag_records(self) -> float:
        lag = self._read_lag()
        return _or_nan(None if lag is None else lag.records)


def _or_nan(value: float | None) -> float:
    """The value of a gauge; what is not known is not exposed."""
    return nan if value is None else value
