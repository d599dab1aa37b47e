"""The interface between the broker and its features, built-in ones and plugins alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from broker.core.action import Sinks
from broker.core.clock import Clock
from broker.core.contributor import Contributors
from broker.core.events import Events
from broker.core.objects import ObjectSection, ObjectService
from broker.core.queue import Queues
from broker.core.receivers import Receivers
from broker.core.schema import SchemaLookup
from broker.core.stage import Gate, Plans, Publisher, Tap, WithRoom, without_waiting
from broker.core.stream import StreamAppender, StreamHistory, no_positions
from broker.core.tracing import Spans
from broker.core.values import Values


@dataclass(slots=True)
class NodePort:
    """The node itself. ``origin`` is a name that no other node has (``broker.core.origin``); ``data_dir`` is where a
    feature may store files under its name, None where nothing is stored; ``backtest`` starts the process of a
    back-test, empty where there are no streams. ``cell`` is the number of this process among ``cells``; ``moves`` is
    true if other machines, whose nodes have other names, take it over."""

    name: str
    clock: Clock
    origin: str = field(default_factory=lambda: uuid4().hex)
    data_dir: Path | None = None
    backtest: Sequence[str] = ()
    cell: int = 0
    cells: int = 1
    moves: bool = False


@dataclass(slots=True)
class MessagingPort:
    """Messages and events. ``set_state`` shows a state under ``$SYS/broker/``, as ``connection/NAME/state``; None
    removes it. ``with_room`` is for publishers that can wait for slow subscribers."""

    events: Events
    plans: Plans
    publisher: Publisher
    set_state: Callable[[str, str | None], None]
    with_room: WithRoom = without_waiting


@dataclass(slots=True)
class StoragePort:
    """Storage that outlives the process. ``section`` is the place of a kind of objects in the configuration, by its
    path, as ``rule_engine.rules``; ``positions`` are a stream's, as the API shows them, now or at a time in µs."""

    section: Callable[[str], ObjectSection]
    streams: StreamAppender
    positions: Callable[..., Mapping[str, Any]] = no_positions
    history: StreamHistory = field(default_factory=StreamHistory)
    queues: Queues = field(default_factory=Queues)
    values: Values = field(default_factory=Values)


@dataclass(slots=True)
class MonitoringPort:
    """``broker.observe.metrics.Metrics`` and ``broker.observe.alarms.Alarms``; no alarms where no bridge runs."""

    metrics: Any
    alarms: Any = None
    spans: Spans = field(default_factory=Spans)


@dataclass(slots=True)
class EndpointsPort:
    """Registries for bridges: actions that rules write rows to, and sources that take HTTP requests from the API."""

    sinks: Sinks = field(default_factory=Sinks)
    receivers: Receivers = field(default_factory=Receivers)


@dataclass(slots=True)
class Services:
    """Services of the node for features. ``schemas`` is set by the feature that has the registry."""

    node: NodePort
    messaging: MessagingPort
    storage: StoragePort
    monitoring: MonitoringPort
    endpoints: EndpointsPort = field(default_factory=EndpointsPort)
    schemas: SchemaLookup = field(default_factory=SchemaLookup)
    contributors: Contributors = field(default_factory=Contributors)


class Feature:
    """A part of the product that plugs in: schema validation, transformations, rules, bridges, tables.

    The broker calls ``start``, ``open`` and ``connect`` in this order, features in the order of their list; at the end
    ``disconnect`` and ``close``, features in reverse order. A failed start is followed by ``close``.
    """

    name: str
    gates: Sequence[Gate] = ()
    taps: Sequence[Tap] = ()
    services: Sequence[ObjectService] = ()

    def start(self) -> None:
        """Load the objects of the configuration. Raises ``ConfigError`` with every problem found."""

    def open(self) -> None:
        """Begin background work. On the event loop, once all features are loaded and before clients connect."""

    async def connect(self, api_url: str, token: str) -> None:
        """Connect to other systems. Clients can connect, and the management API is at ``api_url``."""

    async def disconnect(self) -> None:
        """Bring no more data in. Clients are still connected."""

    async def close(self) -> None:
        """Finish background work and release everything. No client is connected; the store is still open."""
