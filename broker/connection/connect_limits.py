"""What a CONNECT may hold: lengths and counts, each a setting; and who is refused for it, in words."""

from __future__ import annotations

from typing import NamedTuple

from broker.auth.bans import Ban
from broker.codec import packets
from broker.codec.packets import Connect
from broker.connection.capabilities import check_will
from broker.connection.figures import Figures
from broker.connection.settings import MqttSettings
from broker.connection.user_properties import check_user_properties
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.topic import check_topic_name


class ConnectRefusal(NamedTuple):
    """Why a CONNECT is not taken: ``text`` is told to the client, ``detail`` to the log alone."""

    code: int
    text: str = ""
    detail: str = ""


def over_limit(settings: MqttSettings, figures: Figures, packet: Connect, client_id: str) -> ConnectRefusal | None:
    """What is too long or too many in a CONNECT, or in a will that could never be published. ``client_id`` is the one
    that the client has here, which may be another than that of its CONNECT."""
    will = packet.will
    size = max(len(name.encode(errors="replace")) for name in (packet.client_id, client_id))
    if size > settings.max_client_id_bytes:
        text = f"the client identifier has {size} bytes; it may have {settings.max_client_id_bytes}"
        figures.limit_reached("max_client_id_bytes")
        return ConnectRefusal(reason.CLIENT_IDENTIFIER_NOT_VALID, text)
    try:
        check_user_properties(settings, figures, packet.properties, {} if will is None else will.properties)
        if will is not None:
            _check_will_size(will, settings, figures)
            check_will(settings, will)
    except PeerError as error:
        return ConnectRefusal(error.reason_code, str(error))
    return None


def banned(ban: Ban) -> ConnectRefusal:
    """Of a client that is banned; it is not told who banned it, nor why."""
    shown = ban.as_shown()
    about = f" ({ban.reason})" if ban.reason else ""
    return ConnectRefusal(reason.BANNED, detail=f"banned as {ban.kind} {ban.who!r} until {shown['until']}{about}")


def _check_will_size(will: packets.Will, settings: MqttSettings, figures: Figures) -> None:
    check_topic_name(will.topic, settings.max_topic_levels, settings.max_topic_bytes)
    size = len(will.payload)
    if size > settings.max_will_payload:
        figures.limit_reached("max_will_payload")
        text = f"the payload of the will has {size} bytes; it may have {settings.max_will_payload}"
        raise PeerError(reason.QUOTA_EXCEEDED, text)
