"""Counters of validations and transformations, and reports of their failures."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NotRequired, cast

from typing_extensions import TypedDict

from broker.core.message import Message
from broker.core.quarantine import Quarantine
from broker.core.times import rfc3339
from broker.observe.counter_rates import CounterRate
from broker.observe.log import Logger
from broker.observe.metrics import Counter, Metrics

RECENT_FAILURES: Final = 20
# Shapes of failures that are counted; further ones are not.
SHAPES: Final = 20
_INDEX: Final = re.compile(r"\[\d+\]")
_NUMBER: Final = re.compile(r"\d+")
# Interval between logged failures of one object.
LOG_EVERY_NS: Final = 60_000_000_000
_WRITERS: Final = {
    "error": "error",
    "warning": "warning",
    "notice": "info",
    "info": "info",
    "debug": "debug",
}
# Failures of one object in a second that are explained; further ones are counted.
EXPLAINED: Final = 50
_SECOND_NS: Final = 1_000_000_000
# Actions after which a message goes no further.
STOPPING: Final = ("drop", "disconnect")


@dataclass(frozen=True, slots=True)
class GateCounters:
    """Counters of one validation or transformation since the node started."""

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

    def reset(self) -> None:
        """Back to zero."""
        self.matched.value = self.succeeded.value = self.failed.value = self.quarantined.value = 0


class GateMetrics(TypedDict):
    """Counters of a validation or transformation since it was saved or reset, and the number of messages that
    matched per second: in the last 5 s, over 5 minutes, at most. ``since`` is when counting began."""

    since: str
    matched: int
    succeeded: int
    failed: int
    quarantined: int
    rate: float
    rate_last5m: float
    rate_max: float


class FailedCheck(TypedDict):
    """The check that a message failed: its number from 0, its type and its schema."""

    index: int
    type: str
    schema: str | None


class GateFailure(TypedDict):
    """A message that failed, without its payload: when, why, the ``path`` in the payload, and the action. Of a
    validation the check, of a transformation the ``kind`` of failure and the number of the operation from 0.
    ``message_id`` is that of the refused message, where the action stopped it."""

    time_ms: int
    message_id: NotRequired[str]
    topic: str
    clientid: str
    reason: str
    path: str
    action: str
    check: NotRequired[FailedCheck]
    kind: NotRequired[str]
    operation: NotRequired[int | None]


class FailureShape(TypedDict):
    """Failures of the same check or operation at the same path, of the whole payload with the same reason: how many,
    estimated where more than 50 a second fail, and the last of them that was explained."""

    count: int
    last: GateFailure


class GateReadOnly(TypedDict):
    """Counters of a validation or transformation, its last failures, oldest first, and the count of each kind."""

    metrics: GateMetrics
    recent_failures: list[GateFailure]
    failure_shapes: list[FailureShape]


@dataclass(slots=True)
class GateStats:
    """Counters of one validation or transformation, and its quarantine."""

    counters: GateCounters
    since_ns: int
    keep: Quarantine | None = None
    rate: CounterRate = field(default_factory=CounterRate)
    """Rate of the messages that match."""
    recent: deque[GateFailure] = field(default_factory=lambda: deque(maxlen=RECENT_FAILURES))
    """The last failures, oldest first, without payloads."""
    shapes: dict[tuple[Any, ...], FailureShape] = field(default_factory=dict)
    _quiet_until_ns: int = 0
    _unlogged: int = 0
    _second_ns: int = 0
    _explained: int = 0
    """Failures explained in the second that begins at ``_second_ns``."""
    _unexplained: int = 0
    """Failures since the last explained one."""

    def explains(self, message: Message, action: str) -> bool:
        """True if a failed message must be explained and handed to ``failed``, as all are that a quarantine
        keeps; else ``pass_over``."""
        if not 0 <= message.received_ns - self._second_ns < _SECOND_NS:
            self._second_ns = message.received_ns
            self._explained = 0
        self._explained += 1
        return self._explained <= EXPLAINED or (self.keep is not None and action in STOPPING)

    def pass_over(self) -> None:
        """Count a failure that is one of many: it is taken to be like the next one that is explained."""
        self.counters.failed.value += 1
        self._unexplained += 1
        self._unlogged += 1

    def failed(self, message: Message, reason: str, path: str, action: str, **details: Any) -> None:
        """Count a failure and remember it; a message that goes no further is kept where there is a quarantine."""
        self.counters.failed.value += 1
        failed = {
            "time_ms": message.received_ns // 1_000_000,
            "topic": message.topic,
            "clientid": message.client.client_id,
            "reason": reason,
            "path": path,
            "action": action,
            **details,
        }
        if action in STOPPING:
            failed["message_id"] = message.id
        failure = cast(GateFailure, failed)
        self.recent.append(failure)
        count = 1 + self._unexplained
        self._unexplained = 0
        check = details["check"]["index"] if "check" in details else None
        pattern = _NUMBER.sub("0", reason) if path in ("", "payload") else ""
        shape = (
            check,
            details.get("operation"),
            details.get("kind"),
            _INDEX.sub("[]", path),
            pattern,
        )
        if (same_shape := self.shapes.get(shape)) is not None:
            same_shape["count"], same_shape["last"] = same_shape["count"] + count, failure
        elif len(self.shapes) < SHAPES:
            self.shapes[shape] = {"count": count, "last": failure}
        if (
            action in STOPPING
            and self.keep is not None
            and self.keep(message, reason, path, action)
        ):
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
        self._quiet_until_ns = message.received_ns + LOG_EVERY_NS
        self._unlogged = 0
        write(event, topic=message.topic, client_id=message.client.client_id, **fields, **repeated)

    def reset(self, now_ns: int) -> None:
        """Begin again, as when what is counted changes."""
        self.since_ns = now_ns
        self._unexplained = 0
        self.shapes.clear()
        self.counters.reset()
        self.rate.reset()
        self.recent.clear()

    def sample(self, now_s: float) -> None:
        """Take a sample for the rates; called every ``counter_rates.STEP_S``."""
        self.rate.note(self.counters.matched.value, now_s)

    def metrics(self) -> GateMetrics:
        """Counters and rates."""
        counters = self.counters
        return {
            "since": rfc3339(self.since_ns),
            "matched": counters.matched.value,
            "succeeded": counters.succeeded.value,
            "failed": counters.failed.value,
            "quarantined": counters.quarantined.value,
            "rate": round(self.rate.last, 2),
            "rate_last5m": round(self.rate.average, 2),
            "rate_max": round(self.rate.most, 2),
        }

    def as_members(self) -> GateReadOnly:
        """Members of the object as it is shown."""
        shapes = sorted(self.shapes.values(), key=lambda shape: -shape["count"])
        return {
            "metrics": self.metrics(),
            "recent_failures": list(self.recent),
            "failure_shapes": shapes,
        }
