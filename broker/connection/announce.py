"""Events about a connection that rules may read: connack, connected, ping, disconnected. None is built unwanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import NOBODY, Decision
from broker.codec.packets import Connect
from broker.core import reason
from broker.core.client import Client
from broker.core.events import Columns, property_columns
from broker.pipeline.columns import client_columns

if TYPE_CHECKING:
    from broker.connection.connection import Connection

_NS_PER_MS: Final = 1_000_000
_CREDENTIALS: Final = "Authentication-Data"


class Greeting(NamedTuple):
    """What later events repeat of the CONNECT; ``properties`` is None when there were none."""

    clean_start: bool
    keep_alive_s: int
    expiry_s: int
    properties: dict[str, Any] | None

    @classmethod
    def of(cls, packet: Connect, expiry_s: int) -> Greeting:
        """Without the credentials among its properties: tokens, and what SCRAM exchanges."""
        shown = {name: value for name, value in packet.properties.items() if name != _CREDENTIALS}
        return cls(packet.clean_start, packet.keep_alive_s, expiry_s, shown or None)


def connack(c: Connection, packet: Connect, client: Client, code: int, expiry_s: int) -> None:
    """A CONNACK was sent, with success or a refusal."""
    if "client.connack" not in c.hub.events.wanted:
        return
    columns = {
        **_greeting_columns(c, client, Greeting.of(packet, expiry_s)),
        "reason_code": reason.name_of(code),
        "connected_at": c.now_ns // _NS_PER_MS,
    }
    c.hub.events.emit("client.connack", columns)


def authenticated(c: Connection, attempt: ConnectAttempt, decision: Decision) -> None:
    """It was decided whether a client may connect."""
    if "client.check_authn_complete" not in c.hub.events.wanted:
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
    c.hub.events.emit("client.check_authn_complete", columns)


def connected(c: Connection) -> None:
    """A client is connected."""
    c.hub.sys_topics.connected(c)
    if "client.connected" not in c.hub.events.wanted:
        return
    columns = {
        **_greeting_columns(c, c.client, c.greeting),
        "mountpoint": None,
        "receive_maximum": c.session.window.size,
        "is_bridge": False,
        "connected_at": c.connected_ns // _NS_PER_MS,
        "client_attrs": dict(c.client.attributes),
    }
    c.hub.events.emit("client.connected", columns)


def ping(c: Connection) -> None:
    """A client sent a PINGREQ."""
    if "client.ping" in c.hub.events.wanted:
        c.hub.events.emit("client.ping", _greeting_columns(c, c.client, c.greeting))


def disconnected(c: Connection, why: str, properties: dict[str, Any] | None) -> None:
    """A connection has ended; ``properties`` are those of the client's DISCONNECT."""
    c.hub.sys_topics.disconnected(c, why)
    if "client.disconnected" not in c.hub.events.wanted:
        return
    columns = {
        **_protocol_columns(c, c.client),
        "reason": why,
        "disconn_props": property_columns(properties),
        "disconnected_at": c.hub.clock.now_ns() // _NS_PER_MS,
        "connected_at": c.connected_ns // _NS_PER_MS,
        "client_attrs": dict(c.client.attributes),
    }
    c.hub.events.emit("client.disconnected", columns)


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
