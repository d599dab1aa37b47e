"""Events about a connection that rules may read: connack, connected, ping, disconnected. None is built unwanted."""

from __future__ import annotations

from typing import Any, Final

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import NOBODY, Decision
from broker.codec import packets
from broker.codec.packets import Connect
from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.link import Greeting
from broker.connection.sys_topics import SysTopics
from broker.connection.timelines import EventKind
from broker.core import reason
from broker.core.client import Client
from broker.core.events import (
    Columns,
    Events,
    client_columns,
    delivery_columns,
    property_columns,
    session_columns,
)
from broker.core.kinds import counted
from broker.core.message import Message, Properties
from broker.session.state import SessionState

_NS_PER_MS: Final = 1_000_000
_NAMES: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5.0"}


class ClientEvents:
    """Raises events about connections; ``$SYS`` topics show connects and disconnects as well."""

    def __init__(self, context: Context, sys_topics: SysTopics) -> None:
        self._events = context.events
        self._clock = context.clock
        self._sys_topics = sys_topics
        self._timelines = context.timelines

    def connack(
        self, c: Connection, packet: Connect, client: Client, code: int, expiry_s: int
    ) -> None:
        """A CONNACK was sent, with success or a refusal."""
        if "client.connack" not in self._events.wanted:
            return
        columns = {
            **_greeting_columns(c, client, Greeting.of(packet, expiry_s, c.now_ns)),
            "reason_code": reason.name_of(code),
            "connected_at": c.now_ns // _NS_PER_MS,
        }
        self._events.emit("client.connack", columns)

    def authenticated(self, c: Connection, attempt: ConnectAttempt, decision: Decision) -> None:
        """Authentication of a client has ended."""
        if "client.check_authn_complete" not in self._events.wanted:
            return
        columns = {
            "clientid": attempt.client_id,
            "username": attempt.username,
            "peerhost": attempt.peer_host,
            "peername": attempt.peer_name,
            "reason_code": reason.name_of(decision.reason_code),
            "is_superuser": decision.is_superuser,
            "is_anonymous": decision.is_allowed and decision.mechanism == NOBODY,
            "client_attrs": dict(attempt.attributes),
        }
        self._events.emit("client.check_authn_complete", columns)

    def connected(self, c: Connection, *, is_present: bool) -> None:
        """A client is connected, with the session that it left where that ``is_present``."""
        self._sys_topics.connected(c.client, c.greeting)
        waiting = c.session.waiting_messages if is_present else 0
        state = (
            f"its session continues, {counted(waiting, 'message')} waiting"
            if is_present
            else "new session"
        )
        through = f"from {c.client.peer_name} through {c.client.listener}"
        self._timelines.add(
            c.client.client_id,
            "connected",
            "",
            f"{through}, {_NAMES.get(c.version, 'MQTT')}, {state}",
        )
        if "client.connected" not in self._events.wanted:
            return
        columns = {
            **_greeting_columns(c, c.client, c.greeting),
            "mountpoint": None,
            "receive_maximum": c.session.window.size,
            "is_bridge": c.client.is_bridge,
            "connected_at": c.greeting.connected_ns // _NS_PER_MS,
            "client_attrs": dict(c.client.attributes),
        }
        self._events.emit("client.connected", columns)

    def ping(self, c: Connection) -> None:
        """A client sent a PINGREQ."""
        if "client.ping" in self._events.wanted:
            self._events.emit("client.ping", _greeting_columns(c, c.client, c.greeting))

    def disconnected(
        self, c: Connection, why: str, properties: dict[str, Any] | None, text: str
    ) -> None:
        """A connection has ended; ``properties`` are those of the client's DISCONNECT."""
        self._sys_topics.disconnected(c.client, c.greeting, why)
        detail = text or str((properties or {}).get("Reason-String", ""))
        kind: EventKind = "taken_over" if why == "takenover" else "disconnected"
        self._timelines.add(c.client.client_id, kind, why, detail)
        if "client.disconnected" not in self._events.wanted:
            return
        columns = {
            **_protocol_columns(c, c.client),
            "reason": why,
            "disconn_props": property_columns(properties),
            "disconnected_at": self._clock.now_ns() // _NS_PER_MS,
            "connected_at": c.greeting.connected_ns // _NS_PER_MS,
            "client_attrs": dict(c.client.attributes),
        }
        self._events.emit("client.disconnected", columns)


def _greeting_columns(c: Connection, client: Client, greeting: Greeting) -> Columns:
    return {
        **_protocol_columns(c, client),
        "clean_start": greeting.clean_start,
        "keepalive": greeting.keep_alive_s,
        "expiry_interval": greeting.expiry_s,
        "conn_props": property_columns(greeting.properties),
    }


def _protocol_columns(c: Connection, client: Client) -> Columns:
    return {
        **client_columns(client),
        "sockname": c.link.sock_name,
        "proto_name": "MQIsdp" if c.version == 3 else "MQTT",
        "proto_ver": c.version,
    }


class SessionEvents:
    """Callers have checked that the event has a listener."""

    def __init__(self, events: Events) -> None:
        self._events = events

    def delivery(
        self,
        name: str,
        session: SessionState,
        message: Message,
        why: str,
        properties: Properties | None = None,
    ) -> None:
        """``message.delivered``, ``message.acked`` and ``delivery.dropped``; ``why`` is the reason of the last."""
        columns = delivery_columns(message, session.client)
        if name == "message.acked":
            columns["puback_props"] = property_columns(properties)
        if why:
            columns["reason"] = why
        self._events.emit(name, columns, message)

    def subscription(
        self, name: str, session: SessionState, topic: str, qos: int, properties: packets.Properties
    ) -> None:
        """``session.subscribed`` and ``session.unsubscribed``."""
        member = "sub_props" if name == "session.subscribed" else "unsub_props"
        columns = {"topic": topic, "qos": qos, member: property_columns(properties)}
        self._events.emit(name, {**session_columns(session.client), **columns})
