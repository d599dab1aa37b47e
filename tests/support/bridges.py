"""Bridges over a store in memory, and an outside system that does as it is told, for tests of the framework.

``Outside`` is the other side: it can be away, refuse, be slow, lack a target. ``SCRIPTED`` is the connector type that
writes to it and reads from it. ``Bridges`` is the feature with real queues, values, metrics and sinks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Annotated, Any

from pydantic import Field

from bridges.feature import BridgesFeature
from bridges.resource.contract import (
    ALL_DONE,
    Answers,
    Connector,
    ConnectorType,
    Context,
    Feed,
    Incoming,
    ProbeStep,
    Sink,
    Source,
)
from bridges.resource.errors import BadSettings, NeverAgain, ReconnectFirst, TargetMissing, TryAgain
from bridges.resource.settings.secret import SecretText
from bridges.resource.templates import value_template
from broker.config.model import Settings
from broker.config.secret_text import ADDRESS
from broker.core.action import Row
from broker.core.client import Client
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.message import Message
from broker.core.objects import MemorySection
from broker.core.stage import Outcome
from broker.storage.memory import MemoryStore
from broker.storage.store import Store
from broker.storage.writer import Writer
from broker.streams.catalogue import LogKeys
from broker.streams.queues import StoredQueues, StoredValues
from tests.support.features import make_services
from tests.support.waiting import until


class Outside:
    """An outside system with topics. What it was told is in ``arrived``: topic, key, value, in order."""

    def __init__(self) -> None:
        self.is_there = True
        self.password = "open sesame"
        self.topics = {"t"}
        self.arrived: list[tuple[str, str, Any]] = []
        self.batches: list[int] = []
        self.refuses: Callable[[Any], Exception | None] = lambda value: None
        self.answers = asyncio.Event()
        self.answers.set()
        self.connections = 0
        self.backlog: list[Incoming] = []
        self.acknowledged: list[int] = []

    @property
    def values(self) -> list[Any]:
        return [value for _, _, value in self.arrived]

    def must_be_there(self) -> None:
        if not self.is_there:
            raise ReconnectFirst("outside:1: connection refused")

    async def take(self, records: Sequence[tuple[str, str, Any]]) -> Answers:
        self.must_be_there()
        await self.answers.wait()
        self.must_be_there()
        self.batches.append(len(records))
        found: list[Any] = []
        for topic, key, value in records:
            error = (
                TargetMissing(f"no topic '{topic}'")
                if topic not in self.topics
                else self.refuses(value)
            )
            if error is None:
                self.arrived.append((topic, key, value))
            found.append(error)
        return found if any(found) else ALL_DONE


class ScriptedSettings(Settings):
    server: Annotated[str, ADDRESS] = "outside:1"
    password: SecretText | None = None


class ScriptedAction(Settings):
    topic: str = "t"
    key: str = "${key}"
    value: str = Field(default="${n}")


class ScriptedSource(Settings):
    topic: str = "from/outside"


class ScriptedConnector(Connector):
    def __init__(self, outside: Outside, settings: ScriptedSettings, context: Context) -> None:
        self.outside, self.settings, self.context = outside, settings, context
        self.is_open = False

    async def open(self) -> None:
        self.outside.must_be_there()
        password = (
            self.settings.password.reveal() if self.settings.password else self.outside.password
        )
        if password != self.outside.password:
            raise BadSettings(f"outside:1 refuses the user 'sluice' with {password}")
        self.is_open = True
        self.outside.connections += 1

    async def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.outside.connections -= 1

    async def check(self) -> None:
        self.outside.must_be_there()

    def probe(self) -> Sequence[ProbeStep]:
        async def connect() -> str:
            self.outside.must_be_there()
            return "there"

        async def authenticate() -> str:
            await self.open()
            return "welcome"

        return [ProbeStep("connect", connect), ProbeStep("authenticate", authenticate)]

    def sink(self, settings: ScriptedAction, context: Context) -> Sink:
        return ScriptedSink(self.outside, settings)

    def source(self, settings: ScriptedSource, context: Context) -> Source:
        return ScriptedReader(self.outside, settings)


class ScriptedSink(Sink):
    def __init__(self, outside: Outside, settings: ScriptedAction) -> None:
        self.outside, self.settings = outside, settings
        self.key, self.value = value_template(settings.key), value_template(settings.value)

    def record(self, row: Row, message: Message) -> tuple[str, str, Any]:
        if row.get("poison"):
            raise NeverAgain("the row is poison")
        return self.settings.topic, self.key(row), self.value(row)

    async def send(self, records: Sequence[Any]) -> Answers:
        return await self.outside.take(records)

    async def check(self) -> None:
        self.outside.must_be_there()
        if self.settings.topic not in self.outside.topics:
            raise TargetMissing(f"no topic '{self.settings.topic}'")


class ScriptedReader(Source):
    def __init__(self, outside: Outside, settings: ScriptedSource) -> None:
        self.outside, self.settings = outside, settings

    async def run(self, feed: Feed) -> None:
        while True:
            self.outside.must_be_there()
            await feed.ready()
            while self.outside.backlog:
                records, self.outside.backlog = self.outside.backlog, []
                await feed.deliver(records)
                self.outside.acknowledged += [record.position or 0 for record in records]
            await asyncio.sleep(0.005)


def scripted(outside: Outside, **members: Any) -> ConnectorType:
    """The connector type of an outside system."""
    return ConnectorType(
        **{
            "name": "scripted",
            "title": "Scripted",
            "summary": "Does as it is told.",
            "connector": ScriptedSettings,
            "make": lambda settings, context: ScriptedConnector(outside, settings, context),
            "action": ScriptedAction,
            "source": ScriptedSource,
            "batch_size": 10,
            "lanes": 4,
            "key_of": lambda settings: lambda row, message: row.get("key"),
            **members,
        }
    )


class KeptMessages:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def publish(self, message: Message) -> Outcome:
        self.messages.append(message)
        return Outcome(1)

    def dispatch(self, message: Message) -> Outcome:
        return self.publish(message)

    async def decided(self, topic: str) -> Outcome:
        """Nothing waits."""
        return Outcome(1)


class HastyClock(SystemClock):
    """The system's clock, ahead of it by as much as a test says."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s

    def now_ns(self) -> int:
        return super().now_ns() + int(self.ahead_s * 1e9)


class Settled:
    """What became of rows, one after the other: None or an error."""

    def __init__(self) -> None:
        self.results: list[Exception | None] = []

    def succeeded(self, rows: int) -> None:
        self.results += [None] * rows

    def failed(self, row: Row, message: Message, error: Exception) -> None:
        self.results.append(error)


class Bridges:
    """The feature over a store; another may be made over the same ``store`` and ``sections``, as after a restart."""

    def __init__(
        self,
        *kinds: ConnectorType,
        store: Store | None = None,
        sections: Any = None,
        data_dir: Any = None,
    ):
        self.store = MemoryStore() if store is None else store
        self.sections: dict[str, MemorySection] = {} if sections is None else sections
        self.writer = Writer(self.store, asyncio.get_running_loop())
        self.clock = HastyClock()
        self.services = make_services(self.sections, self.clock)
        self.services.storage.queues = StoredQueues(
            LogKeys(self.writer), self.services.node.clock, self.services.monitoring.metrics
        )
        self.services.storage.values = StoredValues(self.writer)
        self.services.node.data_dir = data_dir
        self.published = KeptMessages()
        self.services.messaging.publisher = self.published
        self.feature = BridgesFeature(self.services)
        for kind in kinds:
            self.feature.registry.add(kind)
        self.connectors, self.actions, self.sources = (
            self.feature.connectors,
            self.feature.actions,
            self.feature.sources,
        )
        self.settle = Settled()
        self.settled = self.settle.results

    def begin(self) -> None:
        self.feature.start()
        self.feature.resources.begin()

    async def end(self) -> None:
        await self.feature.disconnect()
        await self.feature.close()
        await self.writer.close()

    async def crash(self) -> None:
        """Everything ends as it stands; what is committed is there."""
        hub = self.feature.resources
        for ticks in self.feature.ticks:
            ticks.stop()
        for owner in hub.supervisors.values():
            await owner.end()
        for running in hub.actions.values():
            await running.end()
        await self.writer.close()

    def send(self, row: Row, action: str = "scripted:out", client: str = "c1") -> Exception | None:
        """Hand a row to an action, as a rule does; what it raised."""
        sink = self.services.endpoints.sinks.find(action)
        assert sink is not None
        message = Message(
            "in", b"payload", 1, False, Client(client), self.services.node.clock.now_ns()
        )
        try:
            sink.write(row, message, self.settle)
        except Unavailable as error:
            return error
        return None

    def send_many(self, count: int, start: int = 0, keys: int = 3, **options: Any) -> None:
        for number in range(start, start + count):
            self.send({"n": number, "key": f"k{number % keys}"}, **options)

    def counts(self, action: str = "out") -> dict[str, Any]:
        return self.actions.metrics(action)

    def assert_adds_up(self, action: str = "out") -> None:
        counts = self.counts(action)
        ends = (
            counts["success"]
            + counts["failed"]
            + counts["dropped"]
            + counts["queuing"]
            + counts["inflight"]
        )
        assert counts["matched"] == ends, counts

    async def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """The first true value of a condition. The counters of all actions must add up all the while."""

        def found_while_adding_up() -> Any:
            found = condition()
            for name in () if found else self.feature.resources.actions:
                self.assert_adds_up(name)
            return found

        try:
            return await until(found_while_adding_up, what or str(condition))
        except AssertionError as error:
            error.add_note(
                f"actions: {[self.actions.get(name) for name in self.feature.resources.actions]}"
            )
            raise

    async def until_sent(self, count: int, action: str = "out") -> None:
        await self.until(lambda: self.counts(action)["success"] >= count, f"{count} rows sent")

    async def until_failed(self, count: int, action: str = "out") -> None:
        await self.until(lambda: self.counts(action)["failed"] == count, f"{count} rows failed")


FAST = {"health_check_interval": "50ms", "retry_interval": "5ms", "resume_interval": "50ms"}
"""``resource_opts`` of an action for tests."""
FAST_CONNECTOR = {"health_check_interval": "50ms", "reconnect_interval": "5ms"}


@contextlib.asynccontextmanager
async def scripted_bridges(
    outside: Outside,
    options: dict[str, Any] | None = None,
    *,
    action: dict[str, Any] | None = None,
    **kind: Any,
) -> AsyncIterator[Bridges]:
    """A connector ``plant`` and an action ``out`` to an outside system."""
    bridges = Bridges(scripted(outside, **kind))
    bridges.begin()
    try:
        bridges.connectors.create(
            {"name": "plant", "type": "scripted", "resource_opts": FAST_CONNECTOR}
        )
        bridges.actions.create(
            {
                "name": "out",
                "type": "scripted",
                "connector": "plant",
                "resource_opts": {**FAST, **(options or {})},
                **(action or {}),
            }
        )
        yield bridges
    finally:
        await bridges.end()


__all__ = [
    "FAST", "FAST_CONNECTOR", "Bridges", "NeverAgain", "Outside", "TryAgain", "scripted", "scripted_bridges",
]  # fmt: skip
