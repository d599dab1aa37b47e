"""What a feature is given and what it gives: the door that built-in features and plugins both use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from broker.core.action import Sinks
from broker.core.clock import Clock
from broker.core.events import Events
from broker.core.objects import ObjectSection, ObjectService
from broker.core.path import PathPart
from broker.core.queue import NoQueues, Queues
from broker.core.receivers import Receivers
from broker.core.schema import FieldType, SchemaEffect, SchemaLookup
from broker.core.stage import Gate, Plans, Publisher, Tap
from broker.core.stream import NoHistory, StreamAppender, StreamHistory
from broker.core.values import NoValues, Values


@dataclass(slots=True)
class Services:
    """What the server offers to features. Filled by ``broker.app.build`` before any feature starts."""

    node: str
    clock: Clock
    events: Events
    plans: Plans
    publisher: Publisher
    streams: StreamAppender
    schemas: SchemaLookup
    section: Callable[[str], ObjectSection]
    """The configuration section of a kind of objects, by its path, as ``rule_engine.rules``."""
    metrics: Any
    """``broker.observe.metrics.Metrics``: counters by name."""
    alarms: Any = None
    """``broker.observe.alarms.Alarms``: activated and deactivated by name; None where no bridge runs."""
    data_dir: Path | None = None
    """Where a feature may keep files of its own, under its name; None where nothing is kept."""
    history: StreamHistory = field(default_factory=NoHistory)
    """What streams hold."""
    sinks: Sinks = field(default_factory=Sinks)
    """Where bridges register what rules hand rows to."""
    receivers: Receivers = field(default_factory=Receivers)
    """Where bridges register what the API hands to them that others post."""
    queues: Queues = field(default_factory=NoQueues)
    """Where a feature keeps work that it puts off."""
    values: Values = field(default_factory=NoValues)
    """Where a feature keeps small values that outlive the process."""
    origin: str = field(default_factory=lambda: uuid4().hex)
    """A name that no other node has (``broker.core.origin``)."""
    tell_state: Callable[[str, str | None], None] = lambda _name, _value: None
    """Shows a state under ``$SYS/broker/``, as ``connection/NAME/state``; None takes it away."""
    path: list[PathPart] = field(default_factory=list)
    """The features' parts of the path of a message, in order, for people who ask what happens to one."""
    users_of_schema: list[Callable[[str], Sequence[str]]] = field(default_factory=list)
    """Asked before a schema is deleted or replaced: who names it (``validation 'meters'``)."""
    effects_of_schema: list[Callable[[str, SchemaLookup], Sequence[SchemaEffect]]] = field(default_factory=list)
    """Asked before a schema is changed: what it would do to whom if schemas were as the lookup has them."""
    payload_changes: list[Callable[[str, FieldType], FieldType | None]] = field(default_factory=list)
    """Asked in order what the type of the payloads on a filter's topics is once a later stage has changed them; None
    when it is not known."""
    users_of_stream: list[Callable[[str], Sequence[str]]] = field(default_factory=list)
    """Asked before a stream is deleted: who names it (``rule 'hot'``)."""
    users_of_sink: list[Callable[[str], Sequence[str]]] = field(default_factory=list)
    """Asked before a bridge ``<type>:<name>`` is deleted: who hands rows to it (``rule 'hot'``)."""
    users_of_source: list[Callable[[str], Sequence[str]]] = field(default_factory=list)
    """Asked before a source ``<type>:<name>`` is deleted: who reads it (``rule 'hot'``)."""
    columns_of_sink: list[Callable[[str], Mapping[str, FieldType]]] = field(default_factory=list)
    """Asked for the types of the columns in the rows that a bridge is handed; ``unknown`` where rules disagree."""


class Feature(Protocol):
    """A part of the product that plugs in: schema validation, transformations, rules, bridges."""

    name: str
    gates: Sequence[Gate]
    taps: Sequence[Tap]
    services: Sequence[ObjectService]

    def start(self) -> None:
        """Load objects from configuration and begin. Raises ``ConfigError`` with every problem found."""
        ...

    def stop(self) -> None:
        """Give up threads, processes and files."""
        ...
