"""A rules feature with real parts around it: lists instead of streams, and a publisher that keeps what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field

import pytest

from broker.core.client import Client
from broker.core.events import Events
from broker.core.feature import MessagingPort, MonitoringPort, NodePort, Services, StoragePort
from broker.core.message import Message
from broker.core.objects import MemorySection
from broker.core.schema import FieldType, SchemaLookup
from broker.core.stage import Outcome
from broker.observe.metrics import Metrics
from rules.feature import RulesFeature
from rules.service import RuleService
from rules.settings import RulesSettings
from tests.support.rules_server import ListStreams

NOW_NS = 1_700_000_000_123_456_789


class FixedClock:
    """It is always the same time."""

    def now_ns(self) -> int:
        return NOW_NS

    def monotonic_s(self) -> float:
        return 0.0


class CountedPlans:
    """Counts invalidations."""

    def __init__(self) -> None:
        self.invalidated = 0

    def invalidate(self) -> None:
        self.invalidated += 1


class BoundSchemas(SchemaLookup):
    """Payload types by topic filter; no serdes."""

    def __init__(self) -> None:
        self.types: dict[str, FieldType] = {}

    def payload_type(self, topic_filter: str) -> FieldType | None:
        return self.types.get(topic_filter)


@dataclass
class Node:
    """A rules feature and what it talks to. Published messages run through the rules, as in a broker."""

    feature: RulesFeature = field(init=False)
    streams: ListStreams = field(default_factory=lambda: ListStreams("hot", "cold"))
    events: Events = field(default_factory=Events)
    metrics: Metrics = field(default_factory=Metrics)
    plans: CountedPlans = field(default_factory=CountedPlans)
    schemas: BoundSchemas = field(default_factory=BoundSchemas)
    section: MemorySection = field(default_factory=MemorySection)
    published: list[Message] = field(default_factory=list)
    settings: RulesSettings = field(default_factory=RulesSettings)

    def __post_init__(self) -> None:
        self.services = Services(
            NodePort("n1", FixedClock()),
            MessagingPort(self.events, self.plans, self, lambda _name, _value: None),
            StoragePort(lambda _: self.section, self.streams),
            MonitoringPort(self.metrics),
            schemas=self.schemas,
        )
        self.feature = RulesFeature(self.services, self.settings)
        self.feature.start()

    @property
    def service(self) -> RuleService:
        return self.feature.service

    def publish(self, message: Message) -> Outcome:
        self.published.append(message)
        call = self.feature.taps[-1].plan(message.topic)
        if call is not None:
            call(message)
        return Outcome(1)

    def dispatch(self, message: Message) -> Outcome:
        self.published.append(message)
        return Outcome(1)

    def decided(self, topic: str) -> Awaitable[Outcome]:
        raise AssertionError("no gate waits here")

    def send(self, topic: str, payload: bytes, qos: int = 0) -> None:
        """A message from a client."""
        self.publish(
            Message(topic, payload, qos, False, Client("c1", "u1", "10.0.0.1", 1234), NOW_NS)
        )

    def publish_with(self, pairs: list[tuple[str, str]]) -> None:
        """A message from a client with user properties."""
        self.publish(Message("in", b"x", 0, False, Client("c1"), NOW_NS, {"User-Property": pairs}))

    def rule(self, sql: str, *actions: Mapping[str, object], name: str = "r1") -> None:
        self.service.create({"name": name, "sql": sql, "actions": list(actions)})

    def count(self, name: str, rule: str = "r1") -> int:
        metrics: dict[str, int] = self.service.get(rule)["metrics"]
        return metrics[name]


@pytest.fixture
def node() -> Node:
    return Node()
