"""A retained message as the store keeps it: what the store itself looks at in front, the rest packed behind."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Any, Final

import msgspec

from broker.core.client import Client
from broker.core.message import Message, with_pairs

_HEAD: Final = Struct(">BQQ")
_VERSION: Final = 2
_EXPIRY: Final = "Message-Expiry-Interval"
_NS: Final = 1_000_000_000


class _Body(msgspec.Struct, array_like=True, frozen=True):
    payload: bytes
    qos: int
    received_ns: int
    client_id: str
    username: str | None
    properties: dict[str, Any] | None


class _Publisher(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a body, its payload left as it is."""

    payload: msgspec.Raw
    qos: int
    received_ns: int
    client_id: str


class _FirstVersion(msgspec.Struct, array_like=True, frozen=True):
    """The whole of a value as the first version had it."""

    version: int
    payload: bytes
    qos: int
    received_ns: int
    client_id: str
    username: str | None
    properties: dict[str, Any] | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Body).decode
_decode_publisher = msgspec.msgpack.Decoder(_Publisher).decode
_decode_first_version = msgspec.msgpack.Decoder(_FirstVersion).decode


def encode_retained(message: Message, stamp: int) -> bytes:
    """The value of a message's topic; ``stamp`` grows with every retained message that the node takes."""
    properties = dict(message.properties) if message.properties else None
    client = message.client
    body = _Body(message.payload, message.qos, message.received_ns, client.client_id, client.username, properties)
    return _HEAD.pack(_VERSION, stamp, expires_ns_of(message)) + _encode(body)


def decode_retained(topic: str, value: bytes) -> Message:
    """The message of a value."""
    body = _decode(memoryview(value)[_HEAD.size :])
    client = Client(body.client_id, body.username)
    return Message(topic, body.payload, body.qos, True, client, body.received_ns, with_pairs(body.properties))


def client_id_of(value: bytes) -> str:
    """Of the client that published the message of a value."""
    return _decode_publisher(memoryview(value)[_HEAD.size :]).client_id


def stamp_of(value: bytes) -> int:
    """When the message was taken, as the order of the node's retained messages."""
    stamp: int = _HEAD.unpack_from(value)[1]
    return stamp


def expiry_of(value: bytes) -> int:
    """When the message expires, nanoseconds of the wall clock; 0 is never."""
    expires_ns: int = _HEAD.unpack_from(value)[2]
    return expires_ns


def expires_ns_of(message: Message) -> int:
    """The same of a message that is not stored yet."""
    expiry_s = message.properties.get(_EXPIRY) if message.properties else None
    return 0 if expiry_s is None else message.received_ns + int(expiry_s) * _NS


def is_first_version(value: bytes) -> bool:
    """Whether the value is laid out as in the first version, without a head."""
    return value[0] != _VERSION


def from_first_version(topic: str, value: bytes, stamp: int) -> bytes:
    """Such a value as it is laid out now."""
    old = _decode_first_version(value)
    client = Client(old.client_id, old.username)
    message = Message(topic, old.payload, old.qos, True, client, old.received_ns, old.properties)
    return encode_retained(message, stamp)


_ACCOUNTS: Final = 65_536


def account_of(client_id: str) -> int:
    """The account of a client."""
    return hash(client_id) % _ACCOUNTS


class Accounts:
    """Bytes of retained messages that each client published. Messages with a stamp above ``since`` are counted."""

    __slots__ = ("_bytes", "since")

    def __init__(self) -> None:
        self._bytes = array("q", bytes(8 * _ACCOUNTS))
        self.since = 0

    def of(self, value: bytes) -> int | None:
        """The account that a stored message is on, None for one that is on none."""
        return account_of(client_id_of(value)) if stamp_of(value) > self.since else None

    def bytes_on(self, account: int) -> int:
        """What is on an account."""
        return self._bytes[account]

    def add(self, account: int, size: int) -> None:
        """Bytes that came to an account, or went if negative."""
        self._bytes[account] += size
