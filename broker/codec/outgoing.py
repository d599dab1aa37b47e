"""A publish on its way to many subscribers: encoded once per version, QoS and RETAIN, its bytes shared by all."""

from __future__ import annotations

from typing import Final

import msgspec

from broker.codec import properties as p
from broker.codec.encode import publish_parts
from broker.codec.properties import PropertyMap, encode_properties
from broker.core.message import Message

_EXPIRY: Final = "Message-Expiry-Interval"
_NS: Final = 1_000_000_000

# The bytes before and after the packet identifier of an encoded PUBLISH.
Parts = tuple[bytes, bytes]


class Outgoing(msgspec.Struct, eq=False, gc=False):
    """One message as subscribers get it. A struct for the reason that ``Message`` is one."""

    message: Message
    topic: bytes = b""
    """UTF-8 of the message's topic; computed if empty."""
    is_as_received: bool = False
    """True once ``adopt`` was called: nothing of the message needs to be known after it was sent."""
    _encoded: dict[int | tuple[int, tuple[int, ...]], Parts] | None = None

    def __post_init__(self) -> None:
        if not self.topic:
            self.topic = self.message.topic.encode()

    def adopt(self, is_v5: bool, head: bytes, tail: bytes) -> None:
        """Hand over a packet of QoS 1 that came the short way, without RETAIN and properties: the parts of the one
        that subscribers of its version get."""
        self.is_as_received = True
        self._encoded = {1 | (8 if is_v5 else 0): (head, tail)}

    @property
    def expires_ns(self) -> int:
        """When it expires, wall clock; 0 for never."""
        properties = self.message.properties
        if not properties or (expiry_s := properties.get(_EXPIRY)) is None:
            return 0
        return self.message.received_ns + int(expiry_s) * _NS

    @property
    def size_bytes(self) -> int:
        """Size of the message in a queue's bound."""
        return len(self.message.payload) + len(self.topic)

    def is_expired(self, now_ns: int) -> bool:
        """True if the message's expiry interval has passed [MQTT-3.3.2-5]."""
        return 0 < self.expires_ns <= now_ns

    def parts(self, is_v5: bool, qos: int, retain: bool) -> Parts:
        """The encoded PUBLISH, made when first asked for; the expiry is the one that arrived."""
        key = qos | (4 if retain else 0) | (8 if is_v5 else 0)
        encoded = self._encoded
        if encoded is None:
            encoded = self._encoded = {}
        parts = encoded.get(key)
        if parts is None:
            parts = encoded[key] = self._encode(is_v5, qos, retain, self.message.properties or {})
        return parts

    def parts_for(
        self,
        is_v5: bool,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        now_ns: int,
        dup: bool = False,
    ) -> Parts:
        """The encoded PUBLISH with the parts that differ by subscriber or over time.

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
        if self._encoded is None:
            self._encoded = {}
        if is_shared and (parts := self._encoded.get(key)) is not None:
            return parts
        properties = dict(self.message.properties or {})
        if waited_s > 0:
            properties[_EXPIRY] = max(properties[_EXPIRY] - waited_s, 0)
        if identifiers:
            properties[p.SUBSCRIPTION_IDENTIFIER] = list(identifiers)
        parts = self._encode(is_v5, qos, retain, properties, dup)
        if is_shared:
            self._encoded[key] = parts
        return parts

    def _encode(
        self, is_v5: bool, qos: int, retain: bool, properties: PropertyMap, dup: bool = False
    ) -> Parts:
        block = encode_properties(properties, p.PUBLISH) if is_v5 else b""
        first = 0x30 | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
        return publish_parts(self.topic, self.message.payload, first, block, qos > 0)
