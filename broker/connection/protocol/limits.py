"""Features and limits that the broker offers: announced in the CONNACK and enforced afterwards.

A version 5 client that uses what was announced as not available breaks the protocol; each case has a reason code of its
own (section 3.2.2.3). Versions below have no announcement: there, a CONNECT or PUBLISH that the broker cannot accept
closes the connection, and a subscription fails with 0x80.
"""

from __future__ import annotations

from typing import Any

from broker.codec import packets
from broker.codec.packets import Connect
from broker.codec.properties import SUBSCRIPTION_IDENTIFIER
from broker.connection.metrics import Figures
from broker.connection.settings import MqttSettings
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.topic import SHARE_PREFIXES, check_topic_name

_FORMAT = "Payload-Format-Indicator"
_TEXT = 1
MOST_QOS = 2


def announced(settings: MqttSettings) -> dict[str, Any]:
    """The CONNACK properties that say what is limited or off; what is not named is available."""
    limits = {
        "Receive-Maximum": settings.receive_maximum,
        "Maximum-QoS": settings.maximum_qos if settings.maximum_qos < MOST_QOS else None,
        "Retain-Available": None if settings.retain_available else 0,
        "Maximum-Packet-Size": settings.max_packet_size,
        "Topic-Alias-Maximum": settings.topic_alias_maximum or None,
        "Wildcard-Subscription-Available": None if settings.wildcard_subscription_available else 0,
        "Subscription-Identifier-Available": None
        if settings.subscription_identifier_available
        else 0,
        "Shared-Subscription-Available": None if settings.shared_subscription_available else 0,
    }
    return {name: value for name, value in limits.items() if value is not None}


def response_information(
    settings: MqttSettings, asked: packets.Properties, client_id: str
) -> dict[str, Any]:
    """Topic prefix under which the client may have its responses sent, when it asked and there is an answer
    [MQTT-3.1.2-28]."""
    if not settings.response_information or asked.get("Request-Response-Information", 0) != 1:
        return {}
    return {"Response-Information": settings.response_information.replace("${clientid}", client_id)}


def check_will(settings: MqttSettings, will: packets.Will) -> None:
    """Refuse a will that could not be published.

    Raises:
        PeerError: 0x9B [MQTT-3.2.2-12], 0x9A [MQTT-3.2.2-13] or 0x99.
    """
    if will.qos > settings.maximum_qos:
        raise PeerError(
            reason.QOS_NOT_SUPPORTED,
            f"the will has QoS {will.qos}; the maximum is {settings.maximum_qos}",
        )
    if will.retain and not settings.retain_available:
        raise PeerError(
            reason.RETAIN_NOT_SUPPORTED, "the will has RETAIN; retained messages are switched off"
        )
    if settings.check_payload_format and not is_as_claimed(will.payload, will.properties):
        text = "the payload of the will is not UTF-8, as its Payload Format Indicator says"
        raise PeerError(reason.PAYLOAD_FORMAT_INVALID, text)


def check_publish(settings: MqttSettings, qos: int, *, retain: bool) -> None:
    """Refuse a PUBLISH that is above what is offered.

    Raises:
        PeerError: 0x9B [MQTT-3.2.2-11] or 0x9A [MQTT-3.2.2-14].
    """
    if qos > settings.maximum_qos:
        raise PeerError(
            reason.QOS_NOT_SUPPORTED,
            f"PUBLISH has QoS {qos}; the maximum is {settings.maximum_qos}",
        )
    if retain and not settings.retain_available:
        raise PeerError(
            reason.RETAIN_NOT_SUPPORTED, "PUBLISH has RETAIN; retained messages are switched off"
        )


def is_as_claimed(payload: bytes, properties: packets.Properties | None) -> bool:
    """True if a payload marked as text is UTF-8 (section 3.3.2.3.2)."""
    if properties is None or properties.get(_FORMAT) != _TEXT:
        return True
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_subscribe(settings: MqttSettings, packet: packets.Subscribe) -> None:
    """Refuse a SUBSCRIBE of version 5 that uses what was announced as not available, before any of it takes effect.

    Raises:
        PeerError: 0x9E, 0xA1 or 0xA2.
    """
    for request in packet.requests:
        check_subscription(settings, request, packet.properties.get(SUBSCRIPTION_IDENTIFIER, 0))


def check_subscription(
    settings: MqttSettings, request: packets.SubscriptionRequest, identifier: int
) -> None:
    """Same as ``check_subscribe``, for one filter."""
    text = request.filter
    if identifier and not settings.subscription_identifier_available:
        raise PeerError(
            reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
            "subscription identifiers are switched off",
        )
    if not settings.shared_subscription_available and text.startswith(SHARE_PREFIXES):
        raise PeerError(
            reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared subscriptions are switched off"
        )
    if not settings.wildcard_subscription_available and ("+" in text or "#" in text):
        raise PeerError(
            reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "filters with wildcards are switched off"
        )


def check_connect(
    settings: MqttSettings, figures: Figures, packet: Connect, client_id: str
) -> None:
    """Refuse a CONNECT in which something is too long or too many, or with a will that could never be published.

    ``client_id`` is the client's identifier in the broker, which may differ from the one in the CONNECT.

    Raises:
        PeerError: 0x85, 0x97, or a code of ``check_will``.
    """
    will = packet.will
    size = max(len(name.encode(errors="replace")) for name in (packet.client_id, client_id))
    if size > settings.max_client_id_bytes:
        figures.limit_reached("max_client_id_bytes")
        text = f"the client identifier has {size} bytes; it may have {settings.max_client_id_bytes}"
        raise PeerError(reason.CLIENT_IDENTIFIER_NOT_VALID, text)
    check_user_properties(
        settings, figures, packet.properties, {} if will is None else will.properties
    )
    if will is None:
        return
    check_topic_name(will.topic, settings.max_topic_levels, settings.max_topic_bytes)
    if (size := len(will.payload)) > settings.max_will_payload:
        text = f"the payload of the will has {size} bytes; it may have {settings.max_will_payload}"
        raise figures.over_limit("max_will_payload", text)
    check_will(settings, will)


def check_user_properties(
    settings: MqttSettings, figures: Figures, *properties: dict[str, Any]
) -> None:
    """Refuse a packet with more user properties than the settings allow, those of all its parts together.

    Raises:
        PeerError: 0x97 with a sentence that says how many there may be.
    """
    count = sum(len(part["User-Property"]) for part in properties if "User-Property" in part)
    if not count:
        return
    if count > (most := settings.max_user_properties):
        text = f"a packet may have {most} user properties, this one has {count}"
        raise figures.over_limit("max_user_properties", text)
    size = sum(
        len(name.encode()) + len(value.encode())
        for part in properties
        for name, value in part.get("User-Property", ())
    )
    if size > (most := settings.max_user_property_bytes):
        text = f"user properties may have {most} bytes, those of this packet have {size}"
        raise figures.over_limit("max_user_property_bytes", text)
