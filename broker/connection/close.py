"""The end of a connection, whoever ends it: what is said, what becomes of the session and its will."""

from __future__ import annotations

from logging import getLogger
from typing import TYPE_CHECKING, Any, Final

from broker.codec.codes import CLIENT_DISCONNECT
from broker.codec.decode import connect_version
from broker.codec.encode import encode_fitting, encode_packet
from broker.codec.packets import ConnAck, Disconnect
from broker.codec.wire import protocol_error
from broker.connection import announce
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.stage import Refusal

if TYPE_CHECKING:
    from broker.connection.connection import Connection

_log = getLogger(__name__)

RETURN_CODES: Final = {
    reason.UNSUPPORTED_PROTOCOL_VERSION: 1,
    reason.CLIENT_IDENTIFIER_NOT_VALID: 2,
    reason.KEEP_ALIVE_TIMEOUT: 2,
    reason.SERVER_UNAVAILABLE: 3,
    reason.SERVER_BUSY: 3,
    reason.QUOTA_EXCEEDED: 3,
    reason.CONNECTION_RATE_EXCEEDED: 3,
    reason.USE_ANOTHER_SERVER: 3,
    reason.BAD_USER_NAME_OR_PASSWORD: 4,
    reason.NOT_AUTHORIZED: 5,
    reason.BANNED: 5,
}
"""CONNACK return codes of 3.1.1, section 3.2.2.3, for reason codes of 5.0."""
_CONNACK_CODES: Final = frozenset((0x81, 0x82, 0x87, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9F))
"""Codes of a DISCONNECT that a CONNACK may carry in its place; SERVER_UNAVAILABLE stands for the others."""
_PROTOCOLS: Final = (b"\0\4MQTT", b"\0\6MQIsdp")
_MAXIMUM_PACKET_SIZE: Final = b"\x27"
_MOST_HEADER: Final = 5
_VERSION_BYTES: Final = 9
"""So far reaches the level behind the longer protocol name."""
_EXPIRY: Final = "Session-Expiry-Interval"


def take_disconnect(c: Connection, packet: Disconnect) -> None:
    """The client says goodbye; the will is forgotten only with code 0x00 [MQTT-3.14.4-3]."""
    if packet.reason_code not in CLIENT_DISCONNECT:
        raise protocol_error(f"DISCONNECT of a client has reason code 0x{packet.reason_code:02X}")
    asked_s = packet.properties.get(_EXPIRY)
    if asked_s is not None:
        if asked_s and not c.session.expiry_s:
            raise protocol_error("DISCONNECT raises a session expiry interval of 0")
        c.session.expiry_s = min(asked_s, int(c.terms.max_session_expiry))
    if c.connack:
        c.box.chunks.clear()
        welcome(c)
    if not c.unacknowledged:
        c.hub.settle_inbound(c.session)
    end(c, "normal", is_will_due=packet.reason_code != reason.SUCCESS, properties=packet.properties)


def welcome(c: Connection) -> None:
    """Send the CONNACK that was kept until the session is stored, and what waits behind it."""
    connack, c.connack = c.connack, b""
    c.hub.figures.note_sent(connack)
    c.box.uncork(connack)


def on_peer_error(c: Connection, error: PeerError) -> None:
    """The client broke the protocol: tell it which way, as far as its version has words for it."""
    if c.is_connected:
        disconnect(c, error.reason_code, reason.name_of(error.reason_code), text=str(error))
    else:
        refuse_silently(c, reason.name_of(error.reason_code), str(error))


def on_bad_connect(c: Connection, error: PeerError, data: bytes, start: int, stop: int) -> None:
    """A CONNECT that breaks the rules: a CONNACK where the standard allows one, else just the end."""
    version = connect_version(data, start, stop)
    if version == 5:
        c.version, c.is_v5 = 5, True
        may_limit_us = _MAXIMUM_PACKET_SIZE in data[start:stop]  # cannot be looked up in what cannot be read
        refuse_connect(c, error.reason_code, "" if may_limit_us else str(error))
    elif error.reason_code == reason.UNSUPPORTED_PROTOCOL_VERSION and data.startswith(_PROTOCOLS, start):
        c.version = 4
        refuse_connect(c, error.reason_code)
    else:
        on_peer_error(c, error)


def on_bad_connect_header(c: Connection, error: PeerError, data: bytes) -> int:
    """As ``on_bad_connect``, for one whose length is the trouble: its first bytes tell the version, the rest is not
    read. Returns how many bytes were used: none while the version has not come."""
    start = next((at + 1 for at in range(1, _MOST_HEADER) if data[at] < 128), 0)
    if error.reason_code != reason.PACKET_TOO_LARGE or not start:
        on_peer_error(c, error)
    elif connect_version(data, start, len(data)) is None and len(data) < start + _VERSION_BYTES:
        c.wanted = start + _VERSION_BYTES
        return 0
    else:
        on_bad_connect(c, error, data, start, len(data))
    return len(data)


def refuse_silently(c: Connection, why: str, text: str) -> None:
    """The end of who has no CONNECT that could be answered."""
    _note_refused(c, why, text, "")
    end(c, why, is_will_due=False)


def refuse_connect(c: Connection, code: int, text: str = "", client_id: str = "", *, detail: str = "") -> None:
    """CONNACK with the reason, then the end [MQTT-3.2.2-6, -7]. ``detail`` is for the log, where the client is not to
    know it."""
    _note_refused(c, reason.name_of(code), detail or text, client_id)
    if c.is_v5:
        properties = {"Reason-String": text} if text else {}
        if code == reason.USE_ANOTHER_SERVER and c.hub.admission.server_reference is not None:
            properties["Server-Reference"] = c.hub.admission.server_reference
        connack = encode_fitting(ConnAck(False, code, properties), 5, c.max_sent_bytes)
        if len(connack) <= c.max_sent_bytes:  # else nothing may be said [MQTT-3.1.2-24]
            c.reply(connack)
    elif code in RETURN_CODES:
        c.reply(encode_packet(ConnAck(False, RETURN_CODES[code]), c.version))
    end(c, reason.name_of(code), is_will_due=False, lingers=True)


def _refuse_late(c: Connection, code: int) -> None:
    """What was accepted cannot be kept, and the CONNACK has not left: let it say so."""
    c.box.chunks.clear()
    c.connack = b""
    if c.is_v5 or code in RETURN_CODES:
        connack = encode_packet(ConnAck(False, code if c.is_v5 else RETURN_CODES[code]), c.version)
        c.hub.figures.note_sent(connack)
        c.box.uncork(connack)


def refused(c: Connection, refusal: Refusal) -> None:
    """A stage stopped a message and wants its publisher gone."""
    is_forbidden = refusal.reason_code == reason.NOT_AUTHORIZED
    code = reason.NOT_AUTHORIZED if is_forbidden else reason.IMPLEMENTATION_SPECIFIC_ERROR
    disconnect(c, code, refusal.reason, text=refusal.text)


def taken_over(c: Any) -> None:
    """Another connection has come with the client identifier."""
    disconnect(c, reason.SESSION_TAKEN_OVER, "takenover")


def on_silence(c: Connection) -> None:
    """Keep-alive ran out, or no CONNECT came in time."""
    if c.is_connected:
        disconnect(c, reason.KEEP_ALIVE_TIMEOUT, "keepalive_timeout")
    else:
        refuse_silently(c, "connect_timeout", "no CONNECT came in time")


def on_internal_error(c: Connection) -> None:
    """A fault of the broker's own, or of its store."""
    if c.version and not c.is_connected and not c.is_closed:
        refuse_connect(c, reason.SERVER_UNAVAILABLE)
    disconnect(c, reason.UNSPECIFIED_ERROR, "internal_error")


def disconnect(c: Connection, code: int, why: str, *, text: str = "", is_will_due: bool = True) -> None:
    """DISCONNECT with a reason code to version 5 clients, then the end."""
    if c.is_closed:
        return
    if not c.hub.is_stopping:
        _log.info(
            "connection.cut_off client_id=%.200s peer=%s listener=%s reason=%s detail=%.300s",
            c.client.client_id if c.is_connected else "", _address(c), c.link.listener, why, text,
        )  # fmt: skip
    if c.connack:  # a DISCONNECT may not come before it [MQTT-3.14.0-1]
        _refuse_late(c, code if code in _CONNACK_CODES else reason.SERVER_UNAVAILABLE)
    elif c.is_v5 and c.is_connected:
        properties = {"Reason-String": text} if text else {}
        c.reply(encode_fitting(Disconnect(code, properties), 5, c.max_sent_bytes))
    end(c, why, is_will_due=is_will_due, lingers=c.is_v5 and not c.hub.is_stopping)


def end(
    c: Connection, why: str, *, is_will_due: bool, properties: dict[str, Any] | None = None, lingers: bool = False
) -> None:
    """Close the link and let the session go; nothing that comes after is heeded. ``lingers`` where the client may be
    in the middle of sending: it must be able to read what it is told."""
    c.is_closed = True
    hub = c.hub
    if c.is_parked:
        hub.parking.abandon(c)
        hub.logins.abandon(c)
        hub.turns.abandon(c)
    hub.reauthenticating.discard(c)
    hub.expiries.forget(c)
    hub.connections.discard(c)
    hub.aliased.bytes -= c.alias_bytes
    hub.greeted.bytes -= c.user_property_bytes
    c.alias_bytes = c.user_property_bytes = 0
    c.aliases.clear()
    hub.paused.discard(c)
    c.box.flush()
    c.link.close(lingers=lingers)
    if not c.is_connected:
        return
    hub.figures.closed.value += 1
    hub.figures.disconnected(why)
    hub.access.flapping.disconnected(c.client.client_id)
    hub.figures.connected_by_version[c.version] -= 1
    if c.session.owner is c:
        hub.detached(c.session, is_will_due=is_will_due)
    announce.disconnected(c, why, properties)


def _note_refused(c: Connection, why: str, text: str, client_id: str) -> None:
    c.hub.figures.refused_connection(why)
    _log.info(
        "connection.refused client_id=%.200s peer=%s listener=%s reason=%s detail=%.300s",
        client_id, _address(c), c.link.listener, why, text,
    )  # fmt: skip


def _address(c: Connection) -> str:
    return f"{c.link.peer_host}:{c.link.peer_port}"
