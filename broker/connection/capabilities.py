"""What this broker offers and what it has been told not to: announced in the CONNACK, and held to afterwards.

A version 5 client that uses what was announced as not available breaks the protocol, and is told so by the reason code
of its own (section 3.2.2.3). Versions below have no announcement: there a CONNECT or PUBLISH that cannot be taken as it
is closes the connection, and a subscription fails with 0x80.
"""

from __future__ import annotations

from typing import Any

from broker.codec import packets
from broker.codec.properties import SUBSCRIPTION_IDENTIFIER
from broker.connection.settings import MqttSettings
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.topic import SHARE_PREFIX

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
        "Subscription-Identifier-Available": None if settings.subscription_identifier_available else 0,
        "Shared-Subscription-Available": None if settings.shared_subscription_available else 0,
    }
    return {name: value for name, value in limits.items() if value is not None}


def response_information(settings: MqttSettings, asked: packets.Properties, client_id: str) -> dict[str, Any]:
    """Where the client may have its responses sent, when it asked and there is an answer [MQTT-3.1.2-28]."""
    if not settings.response_information or asked.get("Request-Response-Information", 0) != 1:
        return {}
    return {"Response-Information": settings.response_information.replace("${clientid}", client_id)}


def check_will(settings: MqttSettings, will: packets.Will) -> None:
    """Refuse a will that could not be published.

    Raises:
        PeerError: 0x9B [MQTT-3.2.2-12], 0x9A [MQTT-3.2.2-13] or 0x99.
    """
    if will.qos > settings.maximum_qos:
        raise PeerError(reason.QOS_NOT_SUPPORTED, f"the will has QoS {will.qos}; the maximum is {settings.maximum_qos}")
    if will.retain and not settings.retain_available:
        raise PeerError(reason.RETAIN_NOT_SUPPORTED, "the will has RETAIN; retained messages are switched off")
    if settings.check_payload_format and not is_as_claimed(will.payload, will.properties):
        text = "the payload of the will is not UTF-8, as its Payload Format Indicator says"
        raise PeerError(reason.PAYLOAD_FORMAT_INVALID, text)


def check_publish(settings: MqttSettings, qos: int, *, retain: bool) -> None:
    """Refuse a PUBLISH that is above what is offered.

    Raises:
        PeerError: 0x9B [MQTT-3.2.2-11] or 0x9A [MQTT-3.2.2-14].
    """
    if qos > settings.maximum_qos:
        raise PeerError(reason.QOS_NOT_SUPPORTED, f"PUBLISH has QoS {qos}; the maximum is {settings.maximum_qos}")
    if retain and not settings.retain_available:
        raise PeerError(reason.RETAIN_NOT_SUPPORTED, "PUBLISH has RETAIN; retained messages are switched off")


def is_as_claimed(payload: bytes, properties: packets.Properties | None) -> bool:
    """Whether a payload that is said to be text is UTF-8 (section 3.3.2.3.2)."""
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


def check_subscription(settings: MqttSettings, request: packets.SubscriptionRequest, identifier: int) -> None:
    """As ``check_subscribe``, for one filter."""
    text = request.filter
    if identifier and not settings.subscription_identifier_available:
        raise PeerError(reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, "subscription identifiers are switched off")
    if not settings.shared_subscription_available and text.startswith(SHARE_PREFIX):
        raise PeerError(reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, "shared subscriptions are switched off")
    if not settings.wildcard_subscription_available and ("+" in text or "#" in text):
        raise PeerError(reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED, "filters with wildcards are switched off")
