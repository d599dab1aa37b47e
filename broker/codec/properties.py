"""The properties of MQTT 5.0 as one table, section 2.2.2.

Properties are a dictionary by their MQTT name. ``User-Property`` is a list of ``(name, value)`` pairs in the order
sent; ``Subscription-Identifier`` is a list of integers in PUBLISH and an integer in SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from broker.codec.primitives import (
    U16,
    U32,
    Reader,
    encode_binary,
    encode_string,
    encode_variable_integer,
    malformed,
    protocol_error,
)
from broker.core import reason
from broker.core.errors import PeerError

CONNECT: Final = 1
CONNACK: Final = 2
PUBLISH: Final = 3
PUBACK: Final = 4
PUBREC: Final = 5
PUBREL: Final = 6
PUBCOMP: Final = 7
SUBSCRIBE: Final = 8
SUBACK: Final = 9
UNSUBSCRIBE: Final = 10
UNSUBACK: Final = 11
PINGREQ: Final = 12
PINGRESP: Final = 13
DISCONNECT: Final = 14
AUTH: Final = 15
WILL: Final = 0
# Packet types, section 2.1.2; ``WILL`` is for the will properties inside CONNECT, ``CLIENT_PUBLISH`` for a PUBLISH
# that a client sends.
CLIENT_PUBLISH: Final = 16

NAMES: Final = (
    "will", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
    "SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH",
)  # fmt: skip

USER_PROPERTY: Final = "User-Property"
SUBSCRIPTION_IDENTIFIER: Final = "Subscription-Identifier"
# Maximum in one part of a packet, some 15 ms to read: a packet of a megabyte could hold twenty times as many.
MOST_USER_PROPERTIES: Final = 10_000
# Maximum in one PUBLISH of a server, some 10 ms to read.
MOST_SUBSCRIPTION_IDENTIFIERS: Final = 10_000
_USER_PROPERTY_ID: Final = 0x26
_SUBSCRIPTION_IDENTIFIER_ID: Final = 0x0B

_MOST_REASON: Final = 1000

PropertyMap = Mapping[str, Any]


class PropertyType(NamedTuple):
    """Encoding of one property, and the packets that may have it."""

    identifier: int
    name: str
    read: Callable[[Reader], Any]
    write: Callable[[Any], bytes]
    packets: frozenset[int]


def _read_flag(reader: Reader) -> int:
    value = reader.byte()
    if value > 1:
        raise protocol_error(f"{reader.what} has a property that must be 0 or 1 and is {value}")
    return value


def _read_text(reader: Reader) -> str:
    return reader.text("a property")


def _read_subscription_identifier(reader: Reader) -> int:
    value = reader.variable_integer()
    if value == 0:
        raise protocol_error(f"{reader.what} has subscription identifier 0")
    return value


def _read_not_zero(read: Callable[[Reader], int], name: str) -> Callable[[Reader], int]:
    def checked(reader: Reader) -> int:
        value = read(reader)
        if value == 0:
            raise protocol_error(f"{reader.what} has {name} 0")
        return value

    return checked


def _read_response_topic(reader: Reader) -> str:
    text = reader.text("Response-Topic")
    if not text or "+" in text or "#" in text:
        raise protocol_error(
            f"{reader.what} has response topic {text!r}, which is not a topic name"
        )
    return text


def _byte(value: int) -> bytes:
    return bytes((value,))


def _write_reason(text: str) -> bytes:
    """Encode a reason string, which may quote the peer and then be longer than a string can be: it is cut."""
    return encode_string(text if len(text) <= _MOST_REASON else f"{text[:_MOST_REASON]}…")


_ACKS: Final = (PUBACK, PUBREC, PUBREL, PUBCOMP)
_MESSAGE: Final = (PUBLISH, CLIENT_PUBLISH, WILL)

_TABLE: Final = (
    (0x01, "Payload-Format-Indicator", _read_flag, _byte, _MESSAGE),
    (0x02, "Message-Expiry-Interval", Reader.u32, U32.pack, _MESSAGE),
    (0x03, "Content-Type", _read_text, encode_string, _MESSAGE),
    (0x08, "Response-Topic", _read_response_topic, encode_string, _MESSAGE),
    (0x09, "Correlation-Data", Reader.binary, encode_binary, _MESSAGE),
    (_SUBSCRIPTION_IDENTIFIER_ID, SUBSCRIPTION_IDENTIFIER, _read_subscription_identifier, encode_variable_integer,
     (PUBLISH, SUBSCRIBE)),
    (0x11, "Session-Expiry-Interval", Reader.u32, U32.pack, (CONNECT, CONNACK, DISCONNECT)),
    (0x12, "Assigned-Client-Identifier", _read_text, encode_string, (CONNACK,)),
    (0x13, "Server-Keep-Alive", Reader.u16, U16.pack, (CONNACK,)),
    (0x15, "Authentication-Method", _read_text, encode_string, (CONNECT, CONNACK, AUTH)),
    (0x16, "Authentication-Data", Reader.binary, encode_binary, (CONNECT, CONNACK, AUTH)),
    (0x17, "Request-Problem-Information", _read_flag, _byte, (CONNECT,)),
    (0x18, "Will-Delay-Interval", Reader.u32, U32.pack, (WILL,)),
    (0x19, "Request-Response-Information", _read_flag, _byte, (CONNECT,)),
    (0x1A, "Response-Information", _read_text, encode_string, (CONNACK,)),
    (0x1C, "Server-Reference", _read_text, encode_string, (CONNACK, DISCONNECT)),
    (0x1F, "Reason-String", _read_text, _write_reason, (CONNACK, *_ACKS, SUBACK, UNSUBACK, DISCONNECT, AUTH)),
    (0x21, "Receive-Maximum", _read_not_zero(Reader.u16, "receive maximum"), U16.pack, (CONNECT, CONNACK)),
    (0x22, "Topic-Alias-Maximum", Reader.u16, U16.pack, (CONNECT, CONNACK)),
    (0x23, "Topic-Alias", Reader.u16, U16.pack, (PUBLISH, CLIENT_PUBLISH)),
    (0x24, "Maximum-QoS", _read_flag, _byte, (CONNACK,)),
    (0x25, "Retain-Available", _read_flag, _byte, (CONNACK,)),
    (0x27, "Maximum-Packet-Size", _read_not_zero(Reader.u32, "maximum packet size"), U32.pack, (CONNECT, CONNACK)),
    (0x28, "Wildcard-Subscription-Available", _read_flag, _byte, (CONNACK,)),
    (0x29, "Subscription-Identifier-Available", _read_flag, _byte, (CONNACK,)),
    (0x2A, "Shared-Subscription-Available", _read_flag, _byte, (CONNACK,)),
)  # fmt: skip

_BY_ID: Final = {
    row[0]: PropertyType(row[0], row[1], row[2], row[3], frozenset(row[4])) for row in _TABLE
}
# Every property but ``User-Property``, by name.
PROPERTY_TYPES: Final = {row.name: row for row in _BY_ID.values()}

_USER_PROPERTY_PACKETS: Final = frozenset((
    WILL, CONNECT, CONNACK, PUBLISH, CLIENT_PUBLISH, *_ACKS, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, DISCONNECT, AUTH,
))  # fmt: skip


def decode_properties(reader: Reader, packet_type: int) -> dict[str, Any]:
    """Read the property length and the properties of a packet; an empty dictionary when there are none.

    Raises:
        PeerError: 0x81 for an unknown property or one cut short; 0x82 for one that has no place in this packet, occurs
            twice, or has a value that the standard forbids; 0x97 for more user properties or subscription identifiers
            than are ever read.
    """
    length = reader.variable_integer()
    properties: dict[str, Any] = {}
    if length == 0:
        return properties
    outer_end = reader.end
    stop = reader.position + length
    if stop > outer_end:
        raise malformed(
            f"{reader.what} has {length} bytes of properties announced and {reader.remaining} there"
        )
    reader.end = stop
    while reader.position < stop:
        _decode_one(reader, packet_type, properties)
    reader.end = outer_end
    return properties


def _decode_one(reader: Reader, packet_type: int, properties: dict[str, Any]) -> None:
    identifier = reader.variable_integer()
    if identifier == _USER_PROPERTY_ID:
        pairs = properties.setdefault(USER_PROPERTY, [])
        pairs.append(
            (reader.text("a user property's name"), reader.text("a user property's value"))
        )
        _check_number(reader, pairs, MOST_USER_PROPERTIES, "user properties")
        return
    kind = _BY_ID.get(identifier)
    if kind is None:
        raise malformed(f"{reader.what} has unknown property 0x{identifier:02X}")
    if packet_type not in kind.packets:
        raise protocol_error(f"{reader.what} must not carry {kind.name}")
    value = kind.read(reader)
    if identifier == _SUBSCRIPTION_IDENTIFIER_ID and packet_type == PUBLISH:
        identifiers = properties.setdefault(SUBSCRIPTION_IDENTIFIER, [])
        identifiers.append(value)
        _check_number(
            reader, identifiers, MOST_SUBSCRIPTION_IDENTIFIERS, "subscription identifiers"
        )
        return
    if kind.name in properties:
        raise protocol_error(f"{reader.what} carries {kind.name} twice")
    properties[kind.name] = value


def _check_number(reader: Reader, items: list[Any], most: int, name: str) -> None:
    if len(items) > most:
        raise PeerError(reason.QUOTA_EXCEEDED, f"{reader.what} has more than {most} {name}")


def encode_properties(properties: PropertyMap, packet_type: int) -> bytes:
    """The property length and the properties, in the order of the mapping.

    Raises:
        ValueError: a property has no place in this packet or a value that does not fit; the caller's mistake.
    """
    if not properties:
        return b"\0"
    body = b"".join([_encode_one(name, value, packet_type) for name, value in properties.items()])
    return encode_variable_integer(len(body)) + body


def _encode_one(name: str, value: Any, packet_type: int) -> bytes:
    if name == USER_PROPERTY and packet_type in _USER_PROPERTY_PACKETS:
        return b"".join([b"\x26" + encode_string(key) + encode_string(text) for key, text in value])
    kind = PROPERTY_TYPES.get(name)
    if kind is None or packet_type not in kind.packets:
        raise ValueError(f"{NAMES[packet_type]} has no property {name!r}")
    prefix = bytes((kind.identifier,))
    try:
        if name == SUBSCRIPTION_IDENTIFIER and packet_type == PUBLISH:
            return b"".join([prefix + kind.write(identifier) for identifier in value])
        return prefix + kind.write(value)
    except Exception as error:
        raise ValueError(f"property {name} cannot be {value!r}: {error}") from error
