"""What a CONNECT may hold: lengths and counts, each a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.codec.packets import Connect, Will
from broker.connection.settings import MqttSettings
from broker.connection.user_properties import check_user_properties
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.topic import check_topic_name

if TYPE_CHECKING:
    from broker.connection.connection import Connection


def over_limit(c: Connection, packet: Connect) -> int:
    """The reason code that a CONNECT is refused with since something in it is too long or too many, else 0."""
    settings = c.hub.settings
    if len(packet.client_id.encode()) > settings.max_client_id_bytes:
        return reason.CLIENT_IDENTIFIER_NOT_VALID
    try:
        check_user_properties(c, packet.properties, {} if packet.will is None else packet.will.properties)
        if packet.will is not None:
            _check_will(packet.will, settings)
    except PeerError as error:
        return error.reason_code
    return 0


def _check_will(will: Will, settings: MqttSettings) -> None:
    check_topic_name(will.topic, settings.max_topic_levels, settings.max_topic_bytes)
    if len(will.payload) > settings.max_will_payload:
        raise PeerError(reason.QUOTA_EXCEEDED, f"the payload of a will may have {settings.max_will_payload} bytes")
