"""Reason codes that each packet of version 5 may carry (sections 2.4 and 3.x.2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from broker.codec import properties as p
from broker.core import reason

_PUBLISH_ANSWER: Final = frozenset((0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99))
_RELEASE: Final = frozenset((0x00, 0x92))

CODES: Final[Mapping[int, frozenset[int]]] = {
    p.CONNACK: frozenset((0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F)),
    p.PUBACK: _PUBLISH_ANSWER,  # [MQTT-3.4.2-1]
    p.PUBREC: _PUBLISH_ANSWER,  # [MQTT-3.5.2-1]
    p.PUBREL: _RELEASE,  # [MQTT-3.6.2-1]
    p.PUBCOMP: _RELEASE,  # [MQTT-3.7.2-1]
    p.SUBACK: frozenset((0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2)),  # [MQTT-3.9.3-2]
    p.UNSUBACK: frozenset((0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91)),  # [MQTT-3.11.3-2]
    p.DISCONNECT: frozenset((
        0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, *range(0x8C, 0x91), *range(0x93, 0xA3),
    )),  # [MQTT-3.14.2-1]
    p.AUTH: frozenset((0x00, 0x18, 0x19)),  # [MQTT-3.15.2-1]
}  # fmt: skip
# Reason codes of a client's DISCONNECT, section 3.14.2.1.
CLIENT_DISCONNECT: Final = frozenset((0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, *range(0x93, 0x9A)))


def sendable(code: int, packet_type: int) -> int:
    """The code, or the one without a meaning of its own where the packet may not carry it."""
    return code if code in CODES[packet_type] else reason.UNSPECIFIED_ERROR
