"""What a CONNECT may hold: lengths and counts, each a setting; and who is refused for it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from broker.auth.bans import Ban
from broker.codec import packets
from broker.codec.packets import Connect
from broker.connection.capabilities import check_will
from broker.connection.settings import MqttSettings
from broker.connection.user_properties import check_user_properties, memory_of
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.topic import check_topic_name
from broker.session.will import Will

if TYPE_CHECKING:
    from broker.connection.connection import Connection


class ConnectRefusal(NamedTuple):
    """Why a CONNECT is not taken: ``text`` is told to the client, ``detail`` to the log alone."""

    code: int
    text: str = ""
    detail: str = ""


def over_limit(c: Connection, packet: Connect, client_id: str) -> ConnectRefusal | None:
    """What is too long or too many in a CONNECT, or in a will that could never be published. ``client_id`` is the one
    that the client has here, which may be another than that of its CONNECT."""
    settings, will = c.hub.settings, packet.will
    size = max(len(name.encode(errors="replace")) for name in (packet.client_id, client_id))
    if size > settings.max_client_id_bytes:
        text = f"the client identifier has {size} bytes; it may have {settings.max_client_id_bytes}"
        c.hub.figures.limit_reached("max_client_id_bytes")
        return ConnectRefusal(reason.CLIENT_IDENTIFIER_NOT_VALID, text)
    try:
        check_user_properties(c, packet.properties, {} if will is None else will.properties)
        if will is not None:
            _check_will_size(c, will, settings)
            check_will(settings, will)
    except PeerError as error:
        return ConnectRefusal(error.reason_code, str(error))
    return None


def no_room(c: Connection, packet: Connect, client_id: str, will: Will | None) -> ConnectRefusal | None:
    """Why what a client would have the broker keep for it cannot be kept, of a client that may connect."""
    hub, settings = c.hub, c.hub.settings
    old = hub.sessions.get(client_id)
    if old is None and len(hub.sessions) >= settings.max_sessions:
        hub.figures.limit_reached("max_sessions")
        return ConnectRefusal(reason.QUOTA_EXCEEDED, f"there are {settings.max_sessions} sessions, the maximum")
    added = memory_of(packet.properties)
    if old is not None and isinstance(old.owner, type(c)):
        added -= old.owner.user_property_bytes
    if added > 0 and hub.greeted.bytes + added > settings.max_user_property_bytes_total:
        hub.figures.limit_reached("max_user_property_bytes_total")
        most = settings.max_user_property_bytes_total
        return ConnectRefusal(reason.QUOTA_EXCEEDED, f"user properties of all clients may take {most} bytes of memory")
    if will is None:
        return None
    kept = hub.wills.size_bytes - (0 if old is None or old.will is None else old.will.size_bytes)
    if kept + will.size_bytes > settings.max_will_bytes_total:
        hub.figures.limit_reached("max_will_bytes_total")
        text = f"the wills of all clients have {settings.max_will_bytes_total} bytes, the maximum"
        return ConnectRefusal(reason.QUOTA_EXCEEDED, text)
    return None


def banned(ban: Ban) -> ConnectRefusal:
    """Of a client that is banned; it is not told who banned it, nor why."""
    shown = ban.as_shown()
    about = f" ({ban.reason})" if ban.reason else ""
    return ConnectRefusal(reason.BANNED, detail=f"banned as {ban.kind} {ban.who!r} until {shown['until']}{about}")


def _check_will_size(c: Connection, will: packets.Will, settings: MqttSettings) -> None:
    check_topic_name(will.topic, settings.max_topic_levels, settings.max_topic_bytes)
    size = len(will.payload)
    if size > settings.max_will_payload:
        c.hub.figures.limit_reached("max_will_payload")
        text = f"the payload of the will has {size} bytes; it may have {settings.max_will_payload}"
        raise PeerError(reason.QUOTA_EXCEEDED, text)
