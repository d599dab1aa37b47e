"""Actions rehearsed: the real ones, bound to recorders in place of publisher, streams and bridges.

Nothing is published, appended, sent or counted with the node's metrics; what would have been done is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from broker.core import jsontext
from broker.core.action import CONNECTED, MISSING, Row, Settle, Sinks
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.stage import Outcome, Refusal
from broker.core.stream import Append, StreamAppender, StreamRecord
from broker.core.wire import message_to_wire, payload_to_wire
from broker.observe.metrics import Metrics
from rules.sql.values import json_text

Effects = list[dict[str, Any]]


def rehearsing(services: Services, effects: Effects) -> Services:
    """Services with which actions are made that only note in ``effects`` what they would do."""
    return replace(
        services,
        messaging=replace(services.messaging, publisher=_Publisher(effects)),
        storage=replace(services.storage, streams=_Streams(services.storage.streams, effects)),
        endpoints=replace(services.endpoints, sinks=_sinks(services.endpoints.sinks, effects)),
        monitoring=replace(services.monitoring, metrics=Metrics()),
    )


class _Publisher:
    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def publish(self, message: Message) -> Outcome:
        self._effects.append({"publish": message_to_wire(message)})
        return Outcome(0)

    def dispatch(self, message: Message) -> Outcome:
        self._effects.append({"publish": message_to_wire(message), "direct_dispatch": True})
        return Outcome(0)

    async def decided(self, topic: str) -> Outcome:
        """Nothing waits here."""
        return Outcome(0)


class _Streams:
    def __init__(self, streams: StreamAppender, effects: Effects) -> None:
        self._streams, self._effects = streams, effects

    def appender(self, stream: str) -> Append:
        self._streams.appender(stream)  # it must be there

        def append(record: StreamRecord) -> None:
            self._effects.append({"append": {"stream": stream, "topic": record.topic, "row": _row(record.payload)}})

        return append

    def names(self) -> Sequence[str]:
        return self._streams.names()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._streams, name)


class _Sink:
    state = CONNECTED

    def __init__(self, name: str, effects: Effects) -> None:
        self.name, self._effects = name, effects

    def write(self, row: Row, message: Message, settle: Settle) -> None:
        self._effects.append({"send": {"bridge": self.name, "row": jsontext.decode(json_text(row))}})
        settle.succeeded(1)


def _sinks(real: Sinks, effects: Effects) -> Sinks:
    """Sinks that find a recorder for each name; the state of a bridge that is away is told, not suffered."""
    sinks = Sinks()
    find: Callable[[str], Any] = lambda name: None if real.state_of(name) == MISSING else _Sink(name, effects)  # noqa: E731
    sinks.find = find
    return sinks


def refused(refusal: Refusal) -> dict[str, Any]:
    """What the action ``drop`` or ``disconnect`` would do."""
    return {"drop": {"reason": refusal.reason, "disconnect": refusal.disconnect}}


def _row(payload: bytes) -> Any:
    try:
        return jsontext.decode(payload)
    except jsontext.JsonError:
        return payload_to_wire(payload)
