"""A node's services with real parts in memory, for testing features without a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from broker.core.clock import Clock, SystemClock
from broker.core.errors import Invalid, NotFound
from broker.core.events import Events
from broker.core.feature import MessagingPort, MonitoringPort, NodePort, Services, StoragePort
from broker.core.message import Message
from broker.core.objects import MemorySection, ObjectSection
from broker.core.stage import Gate, Refusal, WaitingGateCall
from broker.core.stream import Append, StreamRecord
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics

Call = Callable[[dict[str, Any]], Mapping[str, Any]]
REFUSED: dict[str, Any] = {"refused": True}
"""In place of the answer of a call that raised ``Invalid``: what the API answers with 422."""


class CountedPlans:
    """A plan cache that only counts how often it is emptied."""

    def __init__(self) -> None:
        self.invalidated = 0

    def invalidate(self) -> None:
        self.invalidated += 1


class Unused:
    """In place of what a feature does not use: using it fails the test."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was not expected to be used")


class KeptRows:
    """Streams of rows that keep what is appended; those of ``captures`` take no rows."""

    def __init__(self, *streams: str, captures: Sequence[str] = ()) -> None:
        self._streams, self._captures = streams, captures
        self.records: list[StreamRecord] = []

    def appender(self, stream: str) -> Append:
        if stream not in self._streams:
            raise NotFound("stream", stream)
        return self.records.append

    def names(self) -> Sequence[str]:
        return [*self._streams, *self._captures]

    def trace(self, stream: str, message: Message) -> None:
        """Nobody follows traces."""


def make_services(
    sections: dict[str, MemorySection] | None = None,
    clock: Clock | None = None,
    section: Callable[[str], ObjectSection] | None = None,
) -> Services:
    """Services of one node; sections of the configuration are made when they are asked for, or given by ``section``."""
    kept = {} if sections is None else sections
    clock, events, metrics = clock or SystemClock(), Events(), Metrics()
    return Services(
        NodePort("n1", clock),
        MessagingPort(events, CountedPlans(), Unused(), lambda _name, _value: None),
        StoragePort(section or (lambda path: kept.setdefault(path, MemorySection())), Unused()),
        MonitoringPort(metrics, Alarms(clock, events, metrics)),
    )


def through(gate: Gate, message: Message) -> Message | Refusal:
    """What a gate that waits for nothing makes of a message."""
    call = gate.plan(message.topic)
    assert not isinstance(call, WaitingGateCall)
    return message if call is None else call(message)


def answered(call: Call, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a call as it crosses HTTP, or ``REFUSED``."""
    try:
        answer: dict[str, Any] = json.loads(json.dumps(call(json.loads(json.dumps(body)))))
    except Invalid:
        return REFUSED
    return answer


def load_vectors(path: Path) -> list[dict[str, Any]]:
    """The vectors of a file."""
    vectors: list[dict[str, Any]] = json.loads(path.read_text())
    return vectors
