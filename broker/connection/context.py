"""Objects that all parts of this package share: time and its division, the store's writer, metrics, events, the active
settings."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Final

from broker.connection.metrics import Figures
from broker.connection.scheduler import Scheduler
from broker.connection.settings import MqttSettings
from broker.connection.timelines import Timelines
from broker.core.cells import Place
from broker.core.clock import Clock, Defer, Later
from broker.core.events import Events
from broker.core.memory import MemoryUse
from broker.core.origin import UNNAMED, Identity
from broker.core.room import Guest, Lobby
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.session.outbox import PendingWrites
from broker.storage.writer import Writer

# Interval of ``Hub.tick``; keep-alive is enforced with this precision.
TICK_S: Final = 0.5
# Sessions or connections ended in one turn of the loop: some milliseconds.
AT_ONCE: Final = 200
_MOST_QOS: Final = 2
# Connections that have not authenticated. With a millisecond for each handshake of TLS, more would wait too long.
_MOST_UNAUTHENTICATED: Final = 4096


@dataclass(slots=True)
class Admission:
    """Connections and messages that the node accepts now. Set by the listeners and by overload protection."""

    most: float
    """Maximum clients; the server lowers it to the file descriptors available."""
    descriptors: float = inf
    """Maximum connections of clients and of those that have not authenticated."""
    admitted: int = 0
    """Clients that have authenticated."""
    lobby: Lobby[Guest] = field(default_factory=lambda: Lobby(_MOST_UNAUTHENTICATED))
    """Connections that have not authenticated, on all listeners."""
    refused_with: int = 0
    """Reason code that new connections are refused with during overload, else 0."""
    server_reference: str | None = None
    """Address for clients that are refused with 0x9C, use another server."""
    drops_qos0: bool = False
    """True if QoS 0 messages of clients are dropped on arrival, because of overload."""

    relayed: Collection[object] = ()
    """Connections that are relayed to other cells."""

    def wait(self, guest: Guest, host: str | None) -> None:
        """Let a connection authenticate; an older one that has not makes room where there are too many."""
        if self.admitted + len(self.lobby) + len(self.relayed) >= self.descriptors:
            self.lobby.make_room()
        self.lobby.enter(guest, host)


class Context:
    """Objects that all connections of a node share. ``settings`` are those of the default zone.

    ``defer`` runs a callable in a later turn of the loop, ``later`` after some seconds. ``place`` is the cell of this
    process, None in a broker of one process.
    """

    settings: MqttSettings
    restricts_publish: bool
    """True if some publishes are forbidden to all clients, by QoS or RETAIN."""

    def __init__(
        self,
        settings: MqttSettings,
        *,
        writer: Writer,
        metrics: Metrics,
        events: Events,
        clock: Clock,
        defer: Defer,
        later: Later,
        alarms: Alarms | None = None,
        identity: Identity = UNNAMED,
        place: Place | None = None,
    ) -> None:
        self.alarms = alarms
        self.place = place
        self.identity = identity
        self.writer = writer
        self.metrics = metrics
        self.events = events
        self.clock = clock
        self.defer = defer
        self.later = later
        self.scheduler = Scheduler(clock, defer)
        self.figures = Figures(metrics)
        self.timelines = Timelines(clock, metrics)
        self.pending_writes = PendingWrites(defer, self.scheduler.leave_writes)
        self.admission = Admission(self.most_clients(settings))
        self.now_s = clock.monotonic_s()
        """The monotonic clock at the last tick."""
        self.is_stopping = False
        self.aliased, self.greeted, self.subscribed = MemoryUse(), MemoryUse(), MemoryUse()
        """Memory held for clients: topics of aliases, user properties of CONNECTs, subscriptions."""
        gauge = metrics.gauge
        gauge(
            "topic_alias_bytes",
            lambda: self.aliased.bytes,
            "topics behind the aliases that clients set",
        )
        gauge(
            "user_property_bytes",
            lambda: self.greeted.bytes,
            "memory of the user properties of connected clients",
        )
        gauge(
            "subscription_bytes",
            lambda: self.subscribed.bytes,
            "memory of the subscriptions of all sessions",
        )
        self.use(settings)

    def most_clients(self, settings: MqttSettings) -> float:
        """Maximum clients of this process."""
        most = settings.max_connections
        return (most if self.place is None else self.place.part_of(most)) or inf

    def use(self, settings: MqttSettings) -> None:
        """Apply these settings from now on."""
        self.settings = settings
        self.restricts_publish = settings.maximum_qos < _MOST_QOS or not settings.retain_available
