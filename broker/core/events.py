"""Events that rules can select from: ``$events/schema_validation/failed`` and the like.

Emitting is free when nobody listens: an emitter asks ``name in events.wanted`` first and builds columns only then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from broker.core.message import Message

Columns = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventType:
    """An event: ``name`` is its ``event`` column, ``topic`` what FROM names; ``old_topic`` is accepted there too."""

    name: str
    topic: str
    old_topic: str | None = None


EVENT_TYPES: dict[str, EventType] = {
    event.name: event
    for event in (
        EventType("message.delivered", "$events/message/delivered", "$events/message_delivered"),
        EventType("message.acked", "$events/message/acked", "$events/message_acked"),
        EventType("message.dropped", "$events/message/dropped", "$events/message_dropped"),
        EventType("delivery.dropped", "$events/message/delivery_dropped", "$events/delivery_dropped"),
        EventType("client.connected", "$events/client/connected", "$events/client_connected"),
        EventType("client.disconnected", "$events/client/disconnected", "$events/client_disconnected"),
        EventType("client.connack", "$events/client/connack", "$events/client_connack"),
        EventType("client.ping", "$events/client/ping"),
        EventType(
            "client.check_authn_complete",
            "$events/auth/check_authn_complete",
            "$events/client_check_authn_complete",
        ),
        EventType(
            "client.check_authz_complete",
            "$events/auth/check_authz_complete",
            "$events/client_check_authz_complete",
        ),
        EventType("session.subscribed", "$events/session/subscribed", "$events/session_subscribed"),
        EventType("session.unsubscribed", "$events/session/unsubscribed", "$events/session_unsubscribed"),
        EventType("schema.validation_failed", "$events/schema_validation/failed", "$events/schema_validation_failed"),
        EventType(
            "message.transformation_failed",
            "$events/message_transformation/failed",
            "$events/message_transformation_failed",
        ),
        EventType("alarm.activated", "$events/sys/alarm_activated"),
        EventType("alarm.deactivated", "$events/sys/alarm_deactivated"),
    )
}
"""Every event by name; columns are listed in the rule language's reference."""


def message_columns(message: Message) -> Columns:
    """The columns that every event about a publish has: the message as it is, its client, its properties."""
    client = message.client
    properties = {name: dict(v) if name == "User-Property" else v for name, v in (message.properties or {}).items()}
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
        "flags": {"retain": message.retain, "dup": message.dup},
        "pub_props": properties,
        "publish_received_at": message.received_ns // 1_000_000,
    }


class Events:
    """Carries events from whoever notices them to whoever listens (the rule engine). One per node, used on the loop."""

    __slots__ = ("_listeners", "wanted")

    def __init__(self) -> None:
        self.wanted: frozenset[str] = frozenset()
        self._listeners: list[Callable[[str, Columns], None]] = []

    def listen(self, listener: Callable[[str, Columns], None]) -> None:
        """Call ``listener(event name, columns)`` for every event emitted."""
        self._listeners.append(listener)

    def want(self, names: frozenset[str]) -> None:
        """Say which events somebody looks at; the others are not built."""
        self.wanted = names

    def emit(self, name: str, columns: Columns) -> None:
        """Hand an event to the listeners. ``columns`` need not hold ``event``, ``node`` and ``timestamp``."""
        for listener in self._listeners:
            listener(name, columns)
