"""MQTT messages' properties as Kafka headers, and back.

========================  ===================================  ==========================
MQTT                      header                               back
========================  ===================================  ==========================
topic                     ``mqtt.topic``                       topic template's default
client id, user name      ``mqtt.clientid``, ``mqtt.username`` user properties, opt-in
QoS, retain               ``mqtt.qos``, ``mqtt.retain``        QoS up to the source's
Content Type              ``content-type``                     Content Type
Correlation Data          ``correlation-id`` (raw bytes)       Correlation Data
Response Topic            ``reply-to``                         Response Topic
Payload Format Indicator  ``mqtt.payload-format``              the same
Message Expiry Interval   ``mqtt.expires-at`` (epoch ms)       what is left, in seconds
User Property             one each, in order                   user properties in order
publish time              the record's time                    ``mqtt.ts``, opt-in
place in the buffer       ``sluice.stream``, ``sluice.shard``, user properties
                          ``sluice.offset``, opt-in
========================  ===================================  ==========================

User properties whose name is one of these get the prefix ``mqtt.up.``, which is taken off on the way back.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bridges.resource.headers import property_headers
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.topic import check_topic_name

# Names and values of a record's headers; null is as empty.
Headers = Sequence[tuple[str, bytes | None]]

_CONTENT_TYPE: Final = "content-type"
_CORRELATION: Final = "correlation-id"
_RESPONSE_TOPIC: Final = "reply-to"
_PAYLOAD_FORMAT: Final = "mqtt.payload-format"
_EXPIRES_AT: Final = "mqtt.expires-at"
_HEADERS: Final = {
    "Content-Type": _CONTENT_TYPE,
    "Correlation-Data": _CORRELATION,
    "Response-Topic": _RESPONSE_TOPIC,
    "Payload-Format-Indicator": _PAYLOAD_FORMAT,
    "Message-Expiry-Interval": _EXPIRES_AT,
}
_TOPIC: Final = "mqtt.topic"
_ESCAPE: Final = "mqtt.up."
# Names that a user property must not take from a property; and so are all that begin as ours.
RESERVED: Final = frozenset((_CONTENT_TYPE, _CORRELATION, _RESPONSE_TOPIC))
_OURS: Final = ("mqtt.", "sluice.")
# A buffer is a stream of one shard.
_SHARD: Final = ("sluice.shard", b"0")

_CLIENT: Final = ("mqtt.clientid", "mqtt.username")
_LONGEST_S: Final = 0xFFFFFFFF
# Largest property in bytes: a packet with a larger one could not be written, and headers of Kafka may be larger.
_LONGEST_BYTES: Final = 0xFFFF
# In characters, each of which is four bytes at most.
_LONGEST_NAME: Final = _LONGEST_BYTES // 4
# Before it is written in base64.
_LONGEST_BINARY: Final = _LONGEST_BYTES // 4 * 3
_MOST_DIGITS: Final = 19
_DIGITS: Final = (b"0", b"1", b"2")
_FLAGS: Final = (b"0", b"1")


# Headers that were made: most clients publish on few topics, and making them takes 1.5 µs.
_plain: dict[tuple[str, str, str | None, int, bool], list[tuple[str, bytes]]] = {}
_KEPT: Final = 16_384


def of_message(message: Message) -> list[tuple[str, bytes]]:
    """The headers of a message; not to be changed, others may have the same."""
    client = message.client
    about = (message.topic, client.client_id, client.username, message.qos, message.retain)
    headers = _plain.get(about)
    if headers is None:
        if len(_plain) >= _KEPT:
            _plain.clear()
        headers = _plain[about] = _made(*about)
    if message.properties:
        of_properties = property_headers(
            message.properties, message.received_ns, _HEADERS, header_name
        )
        return headers + [
            (name, value.encode() if type(value) is str else bytes(value))
            for name, value in of_properties
        ]
    return headers


def _made(
    topic: str, client_id: str, username: str | None, qos: int, retain: bool
) -> list[tuple[str, bytes]]:
    headers = [
        (_TOPIC, topic.encode()),
        ("mqtt.clientid", client_id.encode()),
        ("mqtt.qos", _DIGITS[qos]),
        ("mqtt.retain", _FLAGS[retain]),
    ]
    if username is not None:
        headers.append(("mqtt.username", username.encode()))
    return headers


def of_position(stream: str, offset: int) -> list[tuple[str, bytes]]:
    """The headers of where a row lay in its buffer."""
    return [("sluice.stream", stream.encode()), _SHARD, ("sluice.offset", b"%d" % offset)]


class Restored(NamedTuple):
    """The parts of a message that the headers of its record hold."""

    topic: str
    qos: int | None
    retain: bool
    properties: dict[str, Any]
    left_out: int
    """Headers that no property can hold, or that are not wanted."""


def to_message(
    headers: Headers, now_ns: int, *, with_client: bool, with_binary: bool
) -> Restored | None:
    """The message parts that headers hold; None for an expired message.

    ``with_client`` adds the publisher as user properties, ``with_binary`` adds values that are not UTF-8 in base64.
    """
    topic = ""
    qos = None
    retain = False
    properties = dict[str, Any]()
    pairs: list[tuple[str, str]] = []
    left_out = 0
    for name, data in headers:
        value = b"" if data is None else data
        if name == _TOPIC:
            topic = value.decode(errors="replace")
        elif len(value) > _LONGEST_BYTES or len(name) > _LONGEST_NAME or "\0" in name:
            left_out += 1
        elif name == "mqtt.qos":
            qos = _DIGITS.index(value) if value in _DIGITS else None
        elif name == "mqtt.retain":
            retain = value == b"1"
        elif name == _CORRELATION:
            properties["Correlation-Data"] = value
        elif name == _EXPIRES_AT and value.isdigit() and len(value) <= _MOST_DIGITS:
            left_s = int(value) // 1000 - now_ns // 1_000_000_000
            if left_s <= 0:
                return None
            properties["Message-Expiry-Interval"] = min(left_s, _LONGEST_S)
        elif name == _PAYLOAD_FORMAT:
            properties["Payload-Format-Indicator"] = int(value == b"1")
        elif name in _CLIENT and not with_client:
            continue
        elif (text := _text(value)) is None:
            if with_binary and len(value) <= _LONGEST_BINARY:
                pairs.append((f"{_plain_name(name)};b64", b64encode(value).decode()))
            else:
                left_out += 1
        elif name == _CONTENT_TYPE:
            properties["Content-Type"] = text
        elif name == _RESPONSE_TOPIC and _is_topic(text):
            properties["Response-Topic"] = text
        else:
            pairs.append((_plain_name(name), text))
    if pairs:
        properties["User-Property"] = pairs
    return Restored(topic, qos, retain, properties, left_out)


def _is_topic(text: str) -> bool:
    try:
        check_topic_name(text)
    except PeerError:
        return False
    return True


def _plain_name(name: str) -> str:
    return name.removeprefix(_ESCAPE)


def _text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def header_name(key: str) -> str:
    """The header of a user property."""
    return _ESCAPE + key if key in RESERVED or key.startswith(_OURS) else key
