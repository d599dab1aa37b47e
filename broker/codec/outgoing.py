"""A publish on its way to many subscribers: encoded once per version, QoS and RETAIN, its bytes shared by all."""

from __future__ import annotations

from typing import Final

from broker.codec import properties as p
from broker.codec.encode import publish_parts
from broker.codec.properties import PropertyMap, encode_properties
from broker.core.message import Message

_EXPIRY: Final = "Message-Expiry-Interval"
_NS: Final = 1_000_000_000

Parts = tuple[bytes, bytes]
"""The bytes before and after the packet identifier of an encoded PUBLISH."""


class Outgoing:
    """One message as subscribers get it. ``expires_ns`` is wall clock, 0 when it never expires."""

    __slots__ = ("_encoded", "expires_ns", "message", "topic")

    def __init__(self, message: Message, topic: bytes | None = None) -> None:
        self.message = message
        self.topic = message.topic.encode() if topic is None else topic
        self._encoded: dict[int | tuple[int, tuple[int, ...]], Parts] = {}
        self.expires_ns = 0
        if message.properties and (expiry_s := message.properties.get(_EXPIRY)) is not None:
            self.expires_ns = message.received_ns + expiry_s * _NS

    @property
    def size_bytes(self) -> int:
        """What the message counts for in a queue's bound."""
        return len(self.message.payload) + len(self.topic)

    def is_expired(self, now_ns: int) -> bool:
        """Whether its expiry interval has passed [MQTT-3.3.2-5]."""
        return 0 < self.expires_ns <= now_ns

    def parts(self, is_v5: bool, qos: int, retain: bool) -> Parts:
        """The encoded PUBLISH, made when first asked for; the expiry is the one that arrived."""
        key = qos | (4 if retain else 0) | (8 if is_v5 else 0)
        found = self._encoded.get(key)
        if found is None:
            found = self._encoded[key] = self._encode(is_v5, qos, retain, self.message.properties or {})
        return found

    def parts_for(
        self, is_v5: bool, qos: int, retain: bool, identifiers: tuple[int, ...], now_ns: int, dup: bool = False
    ) -> Parts:
        """The encoded PUBLISH with what differs per subscriber or with time.

        That is: subscription identifiers, the expiry less the whole seconds waited [MQTT-3.3.2-6], DUP. Subscribers
        with equal identifiers share one encoding.
        """
        waited_s = (now_ns - self.message.received_ns) // _NS if self.expires_ns else 0
        if not (is_v5 and (identifiers or waited_s > 0)):
            if not dup:
                return self.parts(is_v5, qos, retain)
            return self._encode(is_v5, qos, retain, self.message.properties or {}, dup)
        key = (qos | (4 if retain else 0), identifiers)
        is_shared = waited_s <= 0 and not dup
        if is_shared and (found := self._encoded.get(key)) is not None:
            return found
        properties = dict(self.message.properties or {})
        if waited_s > 0:
            properties[_EXPIRY] = max(properties[_EXPIRY] - waited_s, 0)
        if identifiers:
            properties[p.SUBSCRIPTION_IDENTIFIER] = list(identifiers)
        parts = self._encode(is_v5, qos, retain, properties, dup)
        if is_shared:
            self._encoded[key] = parts
        return parts

    def _encode(self, is_v5: bool, qos: int, retain: bool, properties: PropertyMap, dup: bool = False) -> Parts:
        block = encode_properties(properties, p.PUBLISH) if is_v5 else b""
        first = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
        return publish_parts(self.topic, self.message.payload, first, block, qos > 0)
