"""Bytes of one packet to a packet. Nothing but ``PeerError`` comes out for bytes from outside.

0x81 where the bytes cannot be parsed by the rules, 0x82 where they parse and are not allowed, a more specific code
where there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any, Final, Generic, NamedTuple, TypeVar

from broker.codec import packets
from broker.codec import properties as p
from broker.codec.codes import CODES
from broker.codec.primitives import Reader, malformed, protocol_error
from broker.codec.properties import decode_properties
from broker.core import reason
from broker.core.errors import PeerError
from broker.core.topic import SHARE_PREFIXES, check_topic_name

# by packet type [MQTT-2.1.3-1]
_REQUIRED_FLAGS: Final = (
    None,
    0,
    0,
    None,
    0,
    0,
    2,
    0,
    2,
    0,
    2,
    0,
    0,
    0,
    0,
    0,
)
_MQTT_3_1: Final = 3
# Levels 3 and 4 with the bit by which mosquitto's bridges say that they are bridges.
_BRIDGE_LEVELS: Final = (0x83, 0x84)
# Flags that MQTT 3.1 reads where other versions require all flags: DUP marks a SUBSCRIBE, UNSUBSCRIBE or PUBREL that is
# sent again, and what 3.1 does not use may have any value.
_QOS_FLAGS: Final = 6


def decode_packet(first: int, data: bytes, start: int, stop: int, version: int) -> packets.Packet:
    """The packet whose fixed header began with ``first`` and whose body is ``data[start:stop]``.

    ``version`` is 3, 4 or 5; CONNECT carries its own and ignores it.

    Raises:
        PeerError: with the reason code that says how the packet breaks the rules.
    """
    packet_type = first >> 4
    decoder = _DECODERS[packet_type]
    if decoder is None or (packet_type == p.AUTH and version < 5):
        raise malformed(f"there is no packet type {packet_type}")
    if packet_type != p.CONNECT:  # whose version is not known yet
        _check_header_flags(packet_type, first & 15, version)
    reader = Reader(data, start, stop, p.NAMES[packet_type])
    packet = decoder(reader, version, first & 15)
    reader.finish()
    return packet


def _check_header_flags(packet_type: int, flags: int, version: int) -> None:
    required = _REQUIRED_FLAGS[packet_type]
    if required is None or flags == required:
        return
    if version != _MQTT_3_1 or (required and flags & _QOS_FLAGS != required):
        raise malformed(
            f"{p.NAMES[packet_type]} has header flags {flags}, which must be {required}"
        )


P = TypeVar("P")
Item = TypeVar("Item")


class Listing(NamedTuple, Generic[P, Item]):
    """A packet of topic filters that have not been read yet: ``packet`` has none."""

    packet: P
    items: Callable[[], Iterator[Item]]
    """Reads them, from the first one on, as often as it is called. Raises ``PeerError`` where the bytes are not right,
    or there is none."""


def open_subscribe(
    data: bytes, start: int, stop: int, version: int
) -> Listing[packets.Subscribe, packets.SubscriptionRequest]:
    """Decode a SUBSCRIBE like ``decode_packet``, but read its filters, which may be very many, later.

    Raises:
        PeerError: the part before the filters breaks the rules.
    """
    packet_id, properties, rest = _head(data, start, stop, p.SUBSCRIBE, version)
    return Listing(
        packets.Subscribe(packet_id, [], properties), lambda: _requests(copy(rest), version)
    )


def open_unsubscribe(
    data: bytes, start: int, stop: int, version: int
) -> Listing[packets.Unsubscribe, str]:
    """Decode an UNSUBSCRIBE as ``open_subscribe`` does a SUBSCRIBE."""
    packet_id, properties, rest = _head(data, start, stop, p.UNSUBSCRIBE, version)
    return Listing(
        packets.Unsubscribe(packet_id, [], properties), lambda: _filters(copy(rest), version)
    )


def _head(
    data: bytes, start: int, stop: int, packet_type: int, version: int
) -> tuple[int, dict[str, Any], Reader]:
    reader = Reader(data, start, stop, p.NAMES[packet_type])
    return (
        reader.packet_id(),
        decode_properties(reader, packet_type) if version == 5 else {},
        reader,
    )


def connect_version(data: bytes, start: int, stop: int) -> int | None:
    """The protocol level a CONNECT body asks for, valid or not; None when it cannot even be read."""
    try:
        reader = Reader(data, start, stop, "CONNECT")
        reader.binary()
        return reader.byte()
    except PeerError:
        return None


def connecting_client(data: bytes, start: int, stop: int) -> str | None:
    """The client identifier in a CONNECT body, which is read no further; None where it has none that can be read.

    Of a CONNECT that ``decode_packet`` takes it is that packet's.
    """
    reader = Reader(data, start, stop, "CONNECT")
    try:
        reader.binary()
        level = reader.byte()
        reader.take(3)  # flags and keep alive
        if level == 5:
            reader.take(reader.variable_integer())
        return reader.text("client identifier")
    except PeerError:
        return None


def _connect(reader: Reader, _version: int, header_flags: int) -> packets.Connect:
    name = reader.binary()
    level = reader.byte()
    is_bridge = level in _BRIDGE_LEVELS
    if is_bridge:
        level &= 0x7F
    if (name, level) not in ((b"MQTT", 4), (b"MQTT", 5), (b"MQIsdp", 3)):
        raise PeerError(
            reason.UNSUPPORTED_PROTOCOL_VERSION,
            f"protocol {name[:20]!r} level {level} is not spoken here; MQTT 3.1, 3.1.1 and 5.0 are",
        )
    _check_header_flags(p.CONNECT, header_flags, level)
    flags = reader.byte()
    keep_alive_s = reader.u16()
    _check_connect_flags(flags, level)
    properties = decode_properties(reader, p.CONNECT) if level == 5 else {}
    if "Authentication-Data" in properties and "Authentication-Method" not in properties:
        raise protocol_error("CONNECT carries Authentication-Data without Authentication-Method")
    client_id = reader.text("client identifier")
    will = _will(reader, level, flags) if flags & 0x04 else None
    return packets.Connect(
        client_id, level, bool(flags & 0x02), keep_alive_s, will, reader.text("user name") if flags & 0x80 else None,
        reader.binary() if flags & 0x40 else None, properties, is_bridge,
    )  # fmt: skip


def _check_connect_flags(flags: int, level: int) -> None:
    if level > _MQTT_3_1:  # which reads neither
        if flags & 0x01:
            raise malformed("CONNECT has its reserved flag set")  # [MQTT-3.1.2-3]
        if not flags & 0x04 and flags & 0x38:
            # [MQTT-3.1.2-11, -13]
            raise malformed("CONNECT has will QoS or will retain without a will")
    if flags & 0x1C == 0x1C:
        raise malformed("CONNECT has will QoS 3")  # [MQTT-3.1.2-12]
    if level < 5 and flags & 0xC0 == 0x40:
        raise malformed("CONNECT has a password without a user name")  # 3.1.1 [MQTT-3.1.2-22]


def _will(reader: Reader, level: int, flags: int) -> packets.Will:
    properties = decode_properties(reader, p.WILL) if level == 5 else {}
    topic = reader.text("will topic")
    check_topic_name(topic)
    return packets.Will(topic, reader.binary(), flags >> 3 & 3, bool(flags & 0x20), properties)


def _connack(reader: Reader, version: int, _flags: int) -> packets.ConnAck:
    flags = reader.byte()
    code = reader.byte()
    if flags > 1:
        raise malformed("CONNACK has reserved flags set")
    return packets.ConnAck(
        bool(flags), code, decode_properties(reader, p.CONNACK) if version == 5 else {}
    )


def _publish(reader: Reader, version: int, flags: int) -> packets.Publish:
    qos = flags >> 1 & 3
    dup = bool(flags & 8)
    if qos == 3:
        raise malformed("PUBLISH has QoS 3")  # [MQTT-3.3.1-4]
    if dup and not qos:
        raise malformed("PUBLISH has DUP with QoS 0")  # [MQTT-3.3.1-2]
    topic = reader.text("topic")
    packet_id = reader.packet_id() if qos else 0
    properties = decode_properties(reader, p.PUBLISH) if version == 5 else {}
    if topic or version < 5:
        check_topic_name(topic)
    elif "Topic-Alias" not in properties:
        raise protocol_error("PUBLISH has neither a topic nor a topic alias")
    return packets.Publish(topic, reader.rest(), qos, bool(flags & 1), dup, packet_id, properties)


def _acknowledgement(
    make: Callable[[int, int, dict[str, Any]], packets.Packet], packet_type: int
) -> Callable[[Reader, int, int], packets.Packet]:
    codes = CODES[packet_type]

    def decode(reader: Reader, version: int, _flags: int) -> packets.Packet:
        packet_id = reader.packet_id()
        if version < 5 or not reader.remaining:
            return make(packet_id, 0, {})
        code = reader.byte()
        if code not in codes:
            raise malformed(f"{reader.what} has reason code 0x{code:02X}, which it cannot have")
        return make(
            packet_id, code, decode_properties(reader, packet_type) if reader.remaining else {}
        )

    return decode


def _subscribe(reader: Reader, version: int, _flags: int) -> packets.Subscribe:
    packet_id = reader.packet_id()
    properties = decode_properties(reader, p.SUBSCRIBE) if version == 5 else {}
    return packets.Subscribe(packet_id, list(_requests(reader, version)), properties)


def _requests(reader: Reader, version: int) -> Iterator[packets.SubscriptionRequest]:
    if not reader.remaining:
        raise protocol_error("SUBSCRIBE has no topic filter")  # [MQTT-3.8.3-2]
    reserved, used = (0xC0, 0x3F) if version == 5 else (0xFC if version > _MQTT_3_1 else 0, 3)
    while reader.position < reader.end:
        text = _filter(reader, version)
        options = reader.byte()
        if options & reserved:
            raise malformed("SUBSCRIBE has reserved option bits set")  # [MQTT-3.8.3-5]
        options &= used
        qos = options & 3
        handling = options >> 4 & 3
        if qos == 3 or handling == 3:
            raise malformed("SUBSCRIBE has QoS 3 or retain handling 3")
        if options & 4 and text.startswith(SHARE_PREFIXES):
            # [MQTT-3.8.3-4]
            raise protocol_error("SUBSCRIBE has No Local on a shared subscription")
        yield packets.SubscriptionRequest(text, qos, options & 4 != 0, options & 8 != 0, handling)


def _suback(reader: Reader, version: int, _flags: int) -> packets.SubAck:
    packet_id = reader.packet_id()
    properties = decode_properties(reader, p.SUBACK) if version == 5 else {}
    return packets.SubAck(packet_id, list(reader.rest()), properties)


def _unsubscribe(reader: Reader, version: int, _flags: int) -> packets.Unsubscribe:
    packet_id = reader.packet_id()
    properties = decode_properties(reader, p.UNSUBSCRIBE) if version == 5 else {}
    return packets.Unsubscribe(packet_id, list(_filters(reader, version)), properties)


def _filters(reader: Reader, version: int) -> Iterator[str]:
    if not reader.remaining:
        raise protocol_error("UNSUBSCRIBE has no topic filter")  # [MQTT-3.10.3-2]
    while reader.position < reader.end:
        yield _filter(reader, version)


def _filter(reader: Reader, version: int) -> str:
    """A topic filter. An empty one [MQTT-4.7.3-1] has a reason code in version 5 alone: below it closes."""
    text = reader.text("topic filter")
    if not text and version < 5:
        raise malformed(f"{reader.what} has an empty topic filter")
    return text


def _unsuback(reader: Reader, version: int, _flags: int) -> packets.UnsubAck:
    packet_id = reader.packet_id()
    if version < 5:
        return packets.UnsubAck(packet_id)
    properties = decode_properties(reader, p.UNSUBACK)
    return packets.UnsubAck(packet_id, list(reader.rest()), properties)


def _disconnect(reader: Reader, version: int, _flags: int) -> packets.Disconnect:
    code, properties = _code_and_properties(reader, version, p.DISCONNECT)
    return packets.Disconnect(code, properties)


def _auth(reader: Reader, version: int, _flags: int) -> packets.Auth:
    code, properties = _code_and_properties(reader, version, p.AUTH)
    return packets.Auth(code, properties)


def _code_and_properties(
    reader: Reader, version: int, packet_type: int
) -> tuple[int, dict[str, Any]]:
    if version < 5 or not reader.remaining:
        return 0, {}
    code = reader.byte()
    if code not in CODES[packet_type]:
        raise protocol_error(f"{reader.what} has reason code 0x{code:02X}, which it cannot have")
    return code, decode_properties(reader, packet_type) if reader.remaining else {}


_DECODERS: Final[tuple[Callable[[Reader, int, int], packets.Packet] | None, ...]] = (
    None,
    _connect,
    _connack,
    _publish,
    _acknowledgement(packets.PubAck, p.PUBACK),
    _acknowledgement(packets.PubRec, p.PUBREC),
    _acknowledgement(packets.PubRel, p.PUBREL),
    _acknowledgement(packets.PubComp, p.PUBCOMP),
    _subscribe,
    _suback,
    _unsubscribe,
    _unsuback,
    lambda _reader, _version, _flags: packets.PingReq(),
    lambda _reader, _version, _flags: packets.PingResp(),
    _disconnect,
    _auth,
)
