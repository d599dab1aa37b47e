"""Packets to bytes, for every version and both roles.

A reason code that a packet of version 5 may not carry leaves as 0x80: the caller meant to refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from broker.codec import packets
from broker.codec import properties as p
from broker.codec.codes import sendable
from broker.codec.primitives import (
    PACKET_ID_BYTES,
    encode_binary,
    encode_string,
    encode_variable_integer,
    end_of_topic,
)
from broker.codec.properties import encode_properties
from broker.core.message import Message

PINGRESP_BYTES: Final = b"\xd0\x00"
_QOS_BITS: Final = 0x06
_NO_TOPIC: Final = b"\0\0"


def encode_packet(packet: packets.Packet | packets.PublishAck, version: int = 4) -> bytes:
    """The packet as it is sent; CONNECT carries its own version and ignores the argument.

    Raises:
        ValueError: a field does not fit the wire format; the caller's mistake, never the peer's.
    """
    first, body = _ENCODERS[type(packet)](packet, version)
    return bytes((first,)) + encode_variable_integer(len(body)) + body


Answer = (
    packets.ConnAck | packets.PublishAck | packets.SubAck | packets.UnsubAck | packets.Disconnect | packets.Auth
)  # fmt: skip


def encode_fitting(packet: Answer, version: int, max_bytes: float) -> bytes:
    """Encode like ``encode_packet``, without the reason string, then the user properties, then the server reference,
    where they make it too large.

    An acknowledgement is never left out itself [MQTT-3.4.2-2, -3].
    """
    encoded = encode_packet(packet, version)
    if len(encoded) <= max_bytes:
        return encoded
    for name in ("Reason-String", p.USER_PROPERTY, "Server-Reference"):
        if len(encoded) > max_bytes and name in packet.properties:
            packet.properties = {
                key: value for key, value in packet.properties.items() if key != name
            }
            encoded = encode_packet(packet, version)
    return encoded


def qos0_packets(run: Sequence[tuple[Message, bytes]], *, is_v5: bool) -> bytes:
    """PUBLISH with QoS 0 and no properties for each message and topic, one after the other."""
    middle = b"\0" if is_v5 else b""
    pieces: list[bytes] = []
    for message, topic in run:
        payload = message.payload
        topic_bytes = len(topic)
        pieces += (
            _qos0_head(topic_bytes, topic_bytes + len(middle) + len(payload)),
            topic,
            middle,
            payload,
        )
    return b"".join(pieces)


@lru_cache(maxsize=4096)
def _qos0_head(topic_bytes: int, rest_bytes: int) -> bytes:
    """The bytes before the topic; few sizes make up most of the messages, and finding one takes 0.05 µs."""
    return b"\x30" + encode_variable_integer(2 + rest_bytes) + PACKET_ID_BYTES[topic_bytes]


def publish_parts(
    topic: bytes, payload: bytes, first: int, properties: bytes, has_packet_id: bool
) -> tuple[bytes, bytes]:
    """A PUBLISH as the bytes before and after its packet identifier.

    ``properties`` is the encoded block with its length, empty below version 5.
    """
    tail = properties + payload if properties else payload
    size = 2 + len(topic) + len(tail) + (2 if has_packet_id else 0)
    return bytes((first,)) + encode_variable_integer(size) + PACKET_ID_BYTES[
        len(topic)
    ] + topic, tail


def publish_topic(packet: bytes) -> bytes:
    """The topic of an encoded PUBLISH."""
    at = _body_at(packet)
    return packet[at + 2 : end_of_topic(packet, at)]


def aliased_publish(packet: bytes, alias: int, *, is_known: bool) -> bytes:
    """An encoded PUBLISH of version 5 with a topic alias, and without its topic when the client knows the alias.

    Reads nothing but the lengths: 1.3 µs, where encoding a message with properties takes 6.
    """
    at = _body_at(packet)
    properties_at = topic_end = end_of_topic(packet, at)
    if packet[0] & _QOS_BITS:
        properties_at += 2
    topic = _NO_TOPIC if is_known else packet[at:topic_end]
    length = 0
    shift = 0
    rest_at = properties_at
    while True:
        byte = packet[rest_at]
        length |= (byte & 127) << shift
        shift = shift + 7
        rest_at = rest_at + 1
        if byte < 128:
            break
    body = b"%b%b%b\x23%b%b" % (
        topic, packet[topic_end:properties_at], encode_variable_integer(length + 3), PACKET_ID_BYTES[alias],
        packet[rest_at:],
    )  # fmt: skip
    return packet[:1] + encode_variable_integer(len(body)) + body


def _body_at(packet: bytes) -> int:
    at = 1
    while packet[at] > 127:
        at += 1
    return at + 1


def _connect(packet: packets.Connect, _version: int) -> tuple[int, bytes]:
    version = packet.version
    will = packet.will
    flags = (2 if packet.clean_start else 0) | (_will_flags(will) if will else 0)
    flags |= (0x80 if packet.username is not None else 0) | (
        0x40 if packet.password is not None else 0
    )
    body = [
        encode_string("MQIsdp" if version == 3 else "MQTT"),
        bytes((version | 0x80 if packet.is_bridge else version, flags)),
        PACKET_ID_BYTES[packet.keep_alive_s],
        encode_properties(packet.properties, p.CONNECT) if version == 5 else b"",
        encode_string(packet.client_id),
    ]
    if will:
        body.append(encode_properties(will.properties, p.WILL) if version == 5 else b"")
        body += (encode_string(will.topic), encode_binary(will.payload))
    if packet.username is not None:
        body.append(encode_string(packet.username))
    if packet.password is not None:
        body.append(encode_binary(packet.password))
    return 0x10, b"".join(body)


def _will_flags(will: packets.Will) -> int:
    return 0x04 | will.qos << 3 | (0x20 if will.retain else 0)


def _connack(packet: packets.ConnAck, version: int) -> tuple[int, bytes]:
    if version < 5:  # 3.1 has no session present: its byte is reserved
        return 0x20, bytes(
            (1 if packet.session_present and version == 4 else 0, packet.reason_code)
        )
    body = bytes((1 if packet.session_present else 0, sendable(packet.reason_code, p.CONNACK)))
    return 0x20, body + encode_properties(packet.properties, p.CONNACK)


def _publish(packet: packets.Publish, version: int) -> tuple[int, bytes]:
    first = 0x30 | (8 if packet.dup else 0) | packet.qos << 1 | (1 if packet.retain else 0)
    body = [
        encode_string(packet.topic),
        PACKET_ID_BYTES[packet.packet_id] if packet.qos else b"",
        encode_properties(packet.properties, p.PUBLISH) if version == 5 else b"",
        packet.payload,
    ]
    return first, b"".join(body)


def _acknowledgement(first: int) -> Callable[[Any, int], tuple[int, bytes]]:
    packet_type = first >> 4

    def encode(packet: packets.PublishAck, version: int) -> tuple[int, bytes]:
        body = PACKET_ID_BYTES[packet.packet_id]
        if version == 5 and (packet.reason_code or packet.properties):
            body += _code_and_properties(packet.reason_code, packet.properties, packet_type)
        return first, body

    return encode


def _code_and_properties(code: int, properties: Mapping[str, Any], packet_type: int) -> bytes:
    first = bytes((sendable(code, packet_type),))
    return first + encode_properties(properties, packet_type) if properties else first


def _subscribe(packet: packets.Subscribe, version: int) -> tuple[int, bytes]:
    body = [PACKET_ID_BYTES[packet.packet_id]]
    if version == 5:
        body.append(encode_properties(packet.properties, p.SUBSCRIBE))
    for request in packet.requests:
        options = (
            request.qos | (4 if request.no_local else 0) | (8 if request.retain_as_published else 0)
        )
        body += (encode_string(request.filter), bytes((options | request.retain_handling << 4,)))
    return 0x82, b"".join(body)


def _suback(packet: packets.SubAck, version: int) -> tuple[int, bytes]:
    body = PACKET_ID_BYTES[packet.packet_id]
    if version < 5:
        return 0x90, body + bytes(packet.reason_codes)
    codes = bytes([sendable(code, p.SUBACK) for code in packet.reason_codes])
    return 0x90, body + encode_properties(packet.properties, p.SUBACK) + codes


def _unsubscribe(packet: packets.Unsubscribe, version: int) -> tuple[int, bytes]:
    properties = encode_properties(packet.properties, p.UNSUBSCRIBE) if version == 5 else b""
    return 0xA2, PACKET_ID_BYTES[packet.packet_id] + properties + b"".join(
        map(encode_string, packet.filters)
    )


def _unsuback(packet: packets.UnsubAck, version: int) -> tuple[int, bytes]:
    body = PACKET_ID_BYTES[packet.packet_id]
    if version == 5:
        codes = bytes([sendable(code, p.UNSUBACK) for code in packet.reason_codes])
        body += encode_properties(packet.properties, p.UNSUBACK) + codes
    return 0xB0, body


def _disconnect(packet: packets.Disconnect, version: int) -> tuple[int, bytes]:
    if version < 5 or not (packet.reason_code or packet.properties):
        return 0xE0, b""
    return 0xE0, _code_and_properties(packet.reason_code, packet.properties, p.DISCONNECT)


def _auth(packet: packets.Auth, _version: int) -> tuple[int, bytes]:
    if not (packet.reason_code or packet.properties):
        return 0xF0, b""
    return 0xF0, _code_and_properties(packet.reason_code, packet.properties, p.AUTH)


_ENCODERS: Final[dict[type, Callable[[Any, int], tuple[int, bytes]]]] = {
    packets.Connect: _connect,
    packets.ConnAck: _connack,
    packets.Publish: _publish,
    packets.PubAck: _acknowledgement(0x40),
    packets.PubRec: _acknowledgement(0x50),
    packets.PubRel: _acknowledgement(0x62),
    packets.PubComp: _acknowledgement(0x70),
    packets.Subscribe: _subscribe,
    packets.SubAck: _suback,
    packets.Unsubscribe: _unsubscribe,
    packets.UnsubAck: _unsuback,
    packets.PingReq: lambda _packet, _version: (0xC0, b""),
    packets.PingResp: lambda _packet, _version: (0xD0, b""),
    packets.Disconnect: _disconnect,
    packets.Auth: _auth,
}
