"""The MQTT server on a loopback socket with rules, streams that are lists, and sinks that keep what they are given."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from broker.core.action import CONNECTED, DISABLED, Settlement, SinkDisabled
from broker.core.errors import NotFound, Unavailable
from broker.core.feature import MessagingPort, MonitoringPort, NodePort, Services, StoragePort
from broker.core.message import Message
from broker.core.objects import MemorySection, Spec
from broker.core.stream import Append, StreamRecord
from rules.feature import RulesFeature
from rules.settings import RulesSettings
from tests.support.mqtt_server import Node as Server
from tests.support.mqtt_server import running


class ListStreams:
    """Streams that are lists."""

    def __init__(self, *names: str) -> None:
        self.records: dict[str, list[StreamRecord]] = {name: [] for name in names}

    def appender(self, stream: str) -> Append:
        if stream not in self.records:
            raise NotFound("stream", stream)
        return self.records[stream].append

    def names(self) -> Sequence[str]:
        return list(self.records)

    def trace(self, stream: str, message: Message) -> None:
        """Nobody follows traces."""


@dataclass
class ListSink:
    """A sink that is a list; rows settle when the test says so, or at once."""

    name: str
    state: str = CONNECTED
    settles: bool = True
    has_room: bool = True
    rows: list[dict[str, Any]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    open: list[Callable[[Exception | None], None]] = field(default_factory=list)

    def write(self, row: dict[str, Any], message: Message, settle: Settlement) -> None:
        if self.state == DISABLED:
            raise SinkDisabled(f"bridge '{self.name}' is disabled")
        if self.state != CONNECTED:
            raise Unavailable(f"bridge '{self.name}' is {self.state}")
        self.rows.append(row)
        self.messages.append(message)
        if self.settles:
            settle.succeeded(1)
        else:
            self.open.append(partial(_tell, settle, row, message))


def _tell(
    settle: Settlement, row: dict[str, Any], message: Message, error: Exception | None
) -> None:
    if error is None:
        settle.succeeded(1)
    else:
        settle.failed(row, message, error)


@dataclass
class RulesNode:
    """A running server, its rules, and what they write to."""

    server: Server
    feature: RulesFeature
    services: Services
    section: MemorySection
    streams: ListStreams

    def rule(self, name: str, sql: str, *actions: Any, **members: Any) -> Spec:
        spec: Spec = self.feature.service.create(
            {"name": name, "sql": sql, "actions": list(actions), **members}
        )
        return spec

    def sink(self, name: str, **options: Any) -> ListSink:
        sink = ListSink(name, **options)
        self.services.endpoints.sinks.add(sink)
        return sink

    def shown(self, name: str) -> Spec:
        spec: Spec = self.feature.service.get(name)
        return spec

    def count(self, rule: str, name: str) -> int:
        found: int = self.shown(rule)["metrics"][name]
        return found

    def details(self, rule: str, position: int = 0) -> dict[str, Any]:
        """What is shown of one action of a rule."""
        found: dict[str, Any] = self.shown(rule)["action_details"][position]
        return found


@asynccontextmanager
async def running_rules(
    *stored: Spec, settings: RulesSettings | None = None, **mqtt: Any
) -> AsyncIterator[RulesNode]:
    """A server with rules, those of ``stored`` found in the configuration."""
    async with running(**mqtt) as server:
        section, streams = MemorySection(stored), ListStreams("hot", "cold")
        services = Services(
            NodePort("n1", server.clock),
            MessagingPort(
                server.events,
                server.server.plans,
                server.server.publisher,
                server.server.hub.sys_topics.set_state,
            ),
            StoragePort(lambda _: section, streams),
            MonitoringPort(server.metrics),
        )
        feature = RulesFeature(services, settings)
        feature.start()
        server.server.set_stages(feature.gates, feature.taps)
        yield RulesNode(server, feature, services, section, streams)
