"""``$SYS/...``: what the broker says of itself, under the names that mosquitto uses, as plain text.

A client that subscribes gets the values of that moment, with RETAIN as if they were retained; afterwards, every
``interval``, those that have changed. Nothing of it is stored, and a value is worked out only for a subscriber or for
another cell; only the load averages continue without either. With several cells a number is the sum over
them; each tells the others its own at each interval.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from os import sysconf
from pathlib import Path
from typing import Any, Final

from pydantic import Field

from broker.codec.outgoing import Outgoing
from broker.config.model import Settings
from broker.config.units import Duration
from broker.connection.connections import Connections
from broker.connection.context import Context
from broker.connection.link import Greeting
from broker.connection.metrics import PACKET_TYPES
from broker.core import jsontext
from broker.core.client import BROKER, Client
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.signals import Signal
from broker.core.stage import Publisher
from broker.core.subscription import Subscription
from broker.core.times import rfc3339
from broker.core.topic import SYS_PREFIX, is_bridge_state
from broker.observe.load_averages import LoadAverages
from broker.observe.metrics import Counter
from broker.pipeline.plan import Plans
from broker.session.session import Session

_BROKER: Final = f"{SYS_PREFIX}broker/"
_PAGE_BYTES: Final = sysconf("SC_PAGE_SIZE")
_NS_PER_MS: Final = 1_000_000
# The metrics that each load average is of.
_LOADS: Final = {
    "connections": ("connections_accepted",),
    "sockets": ("listener_connections_accepted", "listener_connections_refused"),
    "messages/received": ("packets_received",),
    "messages/sent": ("messages_sent",),
    "publish/received": ("messages_received",),
    "publish/sent": ("messages_sent",),
    "publish/dropped": ("messages_dropped", "deliveries_dropped"),
    "bytes/received": ("bytes_received",),
    "bytes/sent": ("bytes_sent",),
}

Read = Callable[[], str]


class SysTopicSettings(Settings):
    """Section ``sys_topics``."""

    interval: Duration = Field(default=10, ge=0)
    """Seconds between two times that changed values go to subscribers; 0 switches `$SYS` topics off."""
    client_events: bool = False
    """Publish connects and disconnects on `$SYS/brokers/NODE/clients/ID/connected` and `.../disconnected`, in
    JSON."""


class SysTopics:
    """Publishes ``$SYS/...``."""

    def __init__(
        self,
        context: Context,
        settings: SysTopicSettings,
        publisher: Publisher,
        plans: Plans,
        connections: Connections,
    ) -> None:
        self._context = context
        self._clock = context.clock
        self._figures = context.figures
        self._publisher = publisher
        self._plans = plans
        self._connections = connections
        self.settings = settings
        self._identity = context.identity
        self._sums_at_s, self._sums_then = -1.0, dict[str, int]()
        self._started_s = context.now_s
        self._due_s = self._started_s
        self._most_connected = 0
        self._loads = LoadAverages()
        self.on_interval = Signal[()]()
        """Called at each interval, before changes are published."""
        self.others: dict[int, Mapping[str, float]] = {}
        """The latest figures of other cells, by their number."""
        self._numbers = self._made_numbers()
        self._readers = self._made()
        self._published: dict[str, str] = {}
        self._states: dict[str, str] = {}

    def tick(self) -> None:
        """Called with each tick: publishes what has changed when the interval is over."""
        self._most_connected = max(self._most_connected, self._connected())
        now_s = self._clock.monotonic_s()
        if not self.settings.interval or now_s < self._due_s:
            return
        self._due_s = now_s + self.settings.interval
        sums = self._sums()
        self._loads.note(
            {
                name: sum(sums.get(metric, 0) for metric in metrics)
                for name, metrics in _LOADS.items()
            },
            now_s,
        )
        self.on_interval()
        for topic, read in self._all():
            if self._is_wanted(topic):
                self._publish_change(topic, read())
            else:
                self._published.pop(topic, None)

    def show(self, session: Session, subscription: Subscription) -> None:
        """Give a new subscription to ``$SYS/...`` the current values."""
        if not self.settings.interval or subscription.filter.share_group is not None:
            return
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        may_have = session.may_have
        for topic, read in self._all():
            if subscription.filter.matches(topic) and (
                may_have is None or may_have(topic, subscription.qos)
            ):
                outgoing = Outgoing(self._message(topic, read().encode(), retain=True))
                session.deliver(outgoing, 0, True, identifiers)

    def set_state(self, name: str, value: str | None) -> None:
        """Show something that others know, as ``connection/NAME/state`` of a bridge; None takes it away."""
        topic = _BROKER + name
        if value is None:
            self._states.pop(topic, None)
        elif self._states.get(topic) != value:
            self._states[topic] = value
            if self.settings.interval and self._is_wanted(topic):
                self._publish_change(topic, value)

    def connected(self, client: Client, greeting: Greeting) -> None:
        """A client has come."""
        if self.settings.client_events and self.settings.interval:
            more = {"connack": 0, "keepalive": greeting.keep_alive_s, "clean_start": greeting.clean_start,
                    "expiry_interval": greeting.expiry_s}  # fmt: skip
            self._publish_client(client, "connected", greeting.connected_ns, greeting, more)

    def disconnected(self, client: Client, greeting: Greeting, why: str) -> None:
        """A client has gone."""
        if self.settings.client_events and self.settings.interval:
            now_ns = self._clock.now_ns()
            more = {"reason": why, "disconnected_at": now_ns // _NS_PER_MS}
            self._publish_client(client, "disconnected", now_ns, greeting, more)

    def _publish_client(
        self, client: Client, what: str, now_ns: int, greeting: Greeting, more: dict[str, Any]
    ) -> None:
        topic = f"{SYS_PREFIX}brokers/{self._identity.name}/clients/{client.client_id}/{what}"
        if not {"+", "#", "\0"}.isdisjoint(client.client_id) or not self._is_wanted(topic):
            return
        body = {
            "clientid": client.client_id,
            "username": client.username,
            "ipaddress": client.peer_host,
            "proto_ver": client.protocol_version,
            "connected_at": greeting.connected_ns // _NS_PER_MS,
            "ts": now_ns // _NS_PER_MS,
            **more,
        }
        self._publish(topic, jsontext.encode(body))

    # -- values --

    def _all(self) -> Iterator[tuple[str, Read]]:
        yield from self._readers.items()
        for (name, window), value in self._loads.values.items():
            load = f"load/{name}/{window}"
            yield f"{_BROKER}{load}", partial(self._load, load, value)
        for topic, text in self._states.items():
            yield topic, partial(str, text)

    def figures(self) -> dict[str, float]:
        """The numbers of this cell by the name that follows ``$SYS/broker/``."""
        loads = self._loads.values.items()
        return {
            **{name: read() for name, read in self._numbers.items()},
            **{f"load/{name}/{window}": value for (name, window), value in loads},
        }

    def _total(self, name: str, own: float) -> float:
        return own + sum(figures.get(name, 0) for figures in self.others.values())

    def _connected(self) -> int:
        return int(self._total("clients/connected", len(self._connections)))

    def _made(self) -> dict[str, Read]:
        node = self._identity.name
        version = self._identity.version
        own = f"{SYS_PREFIX}brokers/{node}/"  # as EMQX names them
        return {
            f"{_BROKER}version": lambda: f"sluice version {version}",
            f"{_BROKER}uptime": lambda: f"{self._uptime_s()} seconds",
            f"{SYS_PREFIX}brokers": lambda: node,
            f"{own}version": lambda: version,
            f"{own}uptime": lambda: str(self._uptime_s() * 1000),
            f"{own}datetime": lambda: rfc3339(self._clock.now_ns()),
            f"{own}sysdescr": lambda: "Sluice MQTT broker",
            f"{_BROKER}clients/maximum": lambda: str(max(self._most_connected, self._connected())),
            **{
                f"{_BROKER}{name}": partial(self._text, name, read)
                for name, read in self._numbers.items()
            },
        }

    def _load(self, name: str, own: float) -> str:
        return f"{self._total(name, own):.2f}"

    def _text(self, name: str, read: Callable[[], float]) -> str:
        return str(int(self._total(name, read())))

    def _made_numbers(self) -> dict[str, Callable[[], float]]:
        connections = self._connections
        value = self._context.metrics.value
        return {
            "clients/connected": lambda: len(connections),
            "clients/active": lambda: len(connections),
            "clients/disconnected": self._away,
            "clients/inactive": self._away,
            "clients/total": lambda: value("sessions"),
            "clients/expired": lambda: self._sum("sessions_expired"),
            "messages/received": lambda: self._sum("packets_received"),
            "messages/sent": lambda: self._sum("messages_sent"),
            "publish/messages/received": lambda: self._sum("messages_received"),
            "publish/messages/sent": lambda: self._sum("messages_sent"),
            "publish/bytes/received": lambda: self._figures.published_bytes_received.value,
            "publish/bytes/sent": lambda: self._figures.published_bytes_sent,
            "publish/messages/dropped": lambda: self._sum("messages_dropped", "deliveries_dropped"),
            "bytes/received": lambda: self._sum("bytes_received"),
            "bytes/sent": lambda: self._sum("bytes_sent"),
            "packet/out/bytes": lambda: sum(c.link.unsent_bytes() for c in connections),
            "retained messages/count": lambda: value("retained_messages"),
            "store/messages/count": lambda: (
                value("retained_messages") + value("session_log_records")
            ),
            "store/messages/bytes": lambda: value("retained_bytes") + value("session_log_bytes"),
            "subscriptions/count": lambda: value("subscriptions"),
            "shared_subscriptions/count": lambda: value("shared_subscriptions"),
            "heap/current": _resident_bytes,
            "heap/maximum": _most_resident_bytes,
            **self._by_type(),
        }

    def _by_type(self) -> dict[str, Callable[[], float]]:
        """``mqtt/TYPE/received`` and ``.../sent``, of the packet types that go that way."""
        figures = self._figures
        numbers: dict[str, Callable[[], float]] = {
            "mqtt/publish/received": lambda: sum(counter.value for counter in figures.received),
            "mqtt/publish/sent": lambda: sum(counter.value for counter in figures.sent),
        }
        for word, counters in (
            ("received", figures.received_by_type),
            ("sent", figures.sent_by_type),
        ):
            for kind, counter in counters.items():
                numbers[f"mqtt/{PACKET_TYPES[kind]}/{word}"] = partial(getattr, counter, "value")
        return numbers

    def _uptime_s(self) -> int:
        return int(self._clock.monotonic_s() - self._started_s)

    def _away(self) -> float:
        return max(self._context.metrics.value("sessions") - len(self._connections), 0)

    def _sum(self, *names: str) -> int:
        sums = self._sums()
        return sum(sums.get(name, 0) for name in names)

    def _sums(self) -> dict[str, int]:
        """Values of all counters by name, worked out at most once a tick."""
        if self._sums_at_s != self._context.now_s:
            sums: dict[str, int] = {}
            for metric in self._context.metrics:
                if isinstance(metric, Counter):
                    sums[metric.name] = sums.get(metric.name, 0) + metric.value
            self._sums_at_s = self._context.now_s
            self._sums_then = sums
        return self._sums_then

    # -- publishing --

    def _is_wanted(self, topic: str) -> bool:
        place = self._context.place
        if place is not None and is_bridge_state(topic) and not place.has(topic):
            return False  # another cell tells it to the subscribers of all cells
        try:
            plan = self._plans.final(topic.encode())
        except PeerError:  # where topics may be no longer than this one is
            return False
        return bool(plan.taps) or not plan.routes.is_empty

    def _publish_change(self, topic: str, text: str) -> None:
        if self._published.get(topic) != text:
            self._published[topic] = text
            self._publish(topic, text.encode())

    def _publish(self, topic: str, payload: bytes) -> None:
        self._publisher.publish(self._message(topic, payload, retain=False))

    def _message(self, topic: str, payload: bytes, *, retain: bool) -> Message:
        return Message(topic, payload, 0, retain, BROKER, self._clock.now_ns())


def _resident_bytes() -> int:
    """Memory in use, 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _most_resident_bytes() -> int:
    """The maximum that was ever in use. The system counts it a little late, so it may be below the present figure."""
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, _resident_bytes())
