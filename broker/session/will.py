"""A will message and when it is due."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from broker.codec import packets
from broker.core.client import Client
from broker.core.message import Message

_DELAY = "Will-Delay-Interval"
_WILL_BYTES = 400


@dataclass(frozen=True, slots=True)
class Will:
    """The will of one session. ``client`` is who left it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    client: Client
    delay_s: int = 0
    properties: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, will: packets.Will, client: Client) -> Will:
        """The will inside a CONNECT."""
        properties = {name: value for name, value in will.properties.items() if name != _DELAY}
        delay_s = will.properties.get(_DELAY, 0)
        return cls(will.topic, will.payload, will.qos, will.retain, client, delay_s, properties)

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes."""
        user_properties = self.properties.get("User-Property", ())
        return (
            _WILL_BYTES
            + len(self.topic)
            + len(self.payload)
            + sum(len(n) + len(v) for n, v in user_properties)
        )

    def message(self, now_ns: int) -> Message:
        """The message to publish; its expiry counts from now."""
        return Message(
            self.topic,
            self.payload,
            self.qos,
            self.retain,
            self.client,
            now_ns,
            self.properties or None,
        )
