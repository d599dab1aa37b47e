"""Events that rules can select from: ``$events/schema_validation/failed`` and similar.

Emitting is free when no one listens: an emitter asks ``name in events.wanted`` first and builds columns only then.

Connectors that bring messages in from elsewhere raise events too, which rules read as ``$bridges/<type>:<name>`` or
``$sources/<type>:<name>``::

    if events.wants_from("mqtt:plant"):
        events.came_in("mqtt:plant", {"id": ..., "server": ..., "payload": ..., "topic": ..., "qos": ..., ...})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.core.client import Client
from broker.core.message import Message, Properties

Columns = dict[str, Any]

# Called with the name of an event, its columns, and the message it is about, where it is about one.
Listener = Callable[[str, Columns, Message | None], None]

# The prefixes of ``<type>:<name>`` where a rule reads what a connector brings in.
SOURCE_PREFIXES: Final = ("$bridges/", "$sources/")


@dataclass(frozen=True, slots=True)
class EventType:
    """An event: ``name`` is its ``event`` column, ``topic`` what FROM names; ``old_topic`` is accepted there too."""

    name: str
    topic: str
    old_topic: str | None


_TOPICS: Final = {
    "message.delivered": "message/delivered",
    "message.acked": "message/acked",
    "message.dropped": "message/dropped",
    "delivery.dropped": "message/delivery_dropped",
    "client.connected": "client/connected",
    "client.disconnected": "client/disconnected",
    "client.connack": "client/connack",
    "client.ping": "client/ping",
    "client.check_authn_complete": "auth/check_authn_complete",
    "client.check_authz_complete": "auth/check_authz_complete",
    "session.subscribed": "session/subscribed",
    "session.unsubscribed": "session/unsubscribed",
    "schema.validation_failed": "schema_validation/failed",
    "message.transformation_failed": "message_transformation/failed",
    "alarm.activated": "sys/alarm_activated",
    "alarm.deactivated": "sys/alarm_deactivated",
}
_WITHOUT_OLD_TOPIC: Final = frozenset(("client.ping", "alarm.activated", "alarm.deactivated"))
# Every event by name; columns are listed in the rule language's reference.
EVENT_TYPES: Final[Mapping[str, EventType]] = {
    name: EventType(
        name,
        f"$events/{topic}",
        None if name in _WITHOUT_OLD_TOPIC else f"$events/{name.replace('.', '_')}",
    )
    for name, topic in _TOPICS.items()
}


def message_columns(message: Message) -> Columns:
    """The columns that every event about a publish has: the message as it is, its client, its properties."""
    client = message.client
    try:
        payload: str | bytes = message.payload.decode()
    except UnicodeDecodeError:
        payload = message.payload
    return {
        "id": message.id,
        "clientid": client.client_id,
        "username": client.username,
        "peerhost": client.peer_host,
        "peername": client.peer_name,
        "topic": message.topic,
        "payload": payload,
        "qos": message.qos,
        "flags": flag_columns(message),
        "pub_props": property_columns(message.properties),
        "publish_received_at": message.received_ns // 1_000_000,
    }


def client_columns(client: Client) -> Columns:
    """Columns that identify a client, in every event about a client."""
    return {"clientid": client.client_id, "username": client.username, "peername": client.peer_name}


def session_columns(client: Client) -> Columns:
    """Columns that identify the client of a session, in every event about a subscription."""
    return {
        **client_columns(client),
        "peerhost": client.peer_host,
        "client_attrs": dict(client.attributes),
    }


def delivery_columns(message: Message, receiver: Client) -> Columns:
    """The message on its way to one receiver: the publisher is ``from_clientid``, the receiver ``clientid``."""
    return {
        **message_columns(message),
        "from_clientid": message.client.client_id,
        "from_username": message.client.username,
        **client_columns(receiver),
        "peerhost": receiver.peer_host,
    }


def flag_columns(message: Message) -> dict[str, bool]:
    """Its flags; ``sys`` is there on messages of the broker about itself."""
    flags = {"retain": message.retain, "dup": message.dup}
    return {**flags, "sys": True} if message.topic.startswith("$SYS/") else flags


def property_columns(properties: Properties | None) -> Columns:
    """Properties as a map; ``User-Property`` is a map too (last duplicate wins), next to the pairs in order."""
    columns = {} if properties is None else dict(properties)
    pairs = columns.pop("User-Property", None)
    columns["User-Property"] = dict(pairs or ())
    if pairs:
        columns["User-Property-Pairs"] = [{"key": key, "value": value} for key, value in pairs]
    return columns


class Events:
    """Carries events from their sources to listeners (the rule engine). One per node, used on the loop."""

    __slots__ = ("_listeners", "_patterns", "wanted")

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()
        self._patterns: tuple[str, ...] = ()
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call ``listener(event name, columns, message)`` for every event emitted."""
        self._listeners.append(listener)

    def want(self, names: frozenset[str]) -> None:
        """Set the events that have a reader; the others are not built. Names of sources may end with ``*``."""
        self.wanted = names
        self._patterns = tuple(name[:-1] for name in names if name.endswith("*"))

    def emit(self, name: str, columns: Columns, about: Message | None = None) -> None:
        """Hand an event to the listeners. ``columns`` need not hold ``event``, ``node`` and ``timestamp``.

        ``about`` is the message that the event is about: with it a rule that publishes the cause of the event that it
        reads is detected as a loop and stopped.
        """
        for listener in self._listeners:
            listener(name, columns, about)

    def wants_from(self, source: str) -> bool:
        """True if a rule reads the events of the connector ``<type>:<name>``."""
        names = [prefix + source for prefix in SOURCE_PREFIXES]
        return any(name in self.wanted or name.startswith(self._patterns) for name in names)

    def came_in(self, source: str, columns: Columns, about: Message | None = None) -> None:
        """Hand on what the connector ``<type>:<name>`` brought in; a rule that reads it by both names gets it once."""
        self.emit(SOURCE_PREFIXES[0] + source, columns, about)
