"""A retained message as the store keeps it: what the store itself looks at in front of the ``StoredMessage``."""

from __future__ import annotations

from array import array
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from broker.core import stored
from broker.core.message import Message
from broker.core.stored import StoredMessage

_HEAD: Final = Struct(">BQQ")
# Values of version 1 have no head; those of version 3 have the origin of a message that another cell sent behind it.
_VERSION: Final = 2
_WITH_ORIGIN: Final = 3
_ORIGIN: Final = Struct(">BQ")
_EXPIRY: Final = "Message-Expiry-Interval"
_NS: Final = 1_000_000_000


class _Publisher(msgspec.Struct, array_like=True, frozen=True):
    """The beginning of a ``StoredMessage``."""

    client: msgspec.Raw


def _of_0_2_0(
    payload: bytes,
    qos: int,
    received_ns: int,
    client_id: str,
    username: str | None,
    properties: dict[str, Any] | None,
) -> tuple[Any, ...]:
    return (client_id, username), "", received_ns, payload, qos, True, False, properties, (), None


_decode = stored.decoder(StoredMessage, "a retained message", _of_0_2_0)
_decode_publisher = msgspec.msgpack.Decoder(_Publisher).decode


class Origin(NamedTuple):
    """The cell that a message was published in, and the message's stamp there."""

    cell: int
    stamp: int


def encode_retained(message: Message, stamp: int, origin: Origin | None = None) -> bytes:
    """The value of a message's topic; ``stamp`` grows with every retained message that the node takes."""
    body = stored.encode_for_subscribers(message)
    expires_ns = expires_ns_of(message)
    if origin is None:
        return _HEAD.pack(_VERSION, stamp, expires_ns) + body
    return _HEAD.pack(_WITH_ORIGIN, stamp, expires_ns) + _ORIGIN.pack(*origin) + body


def decode_retained(topic: str, value: bytes) -> Message:
    """The message of a value. Raises ``CorruptMessage``."""
    body = _decode(_body_of(value))
    body.topic = topic
    return body.message()


def client_id_of(value: bytes) -> str:
    """Identifier of the client that published the message of a value."""
    return stored.client_of(_decode_publisher(_body_of(value)).client).client_id


def origin_of(value: bytes) -> Origin | None:
    """The origin of a message that another cell sent, None for one of this cell."""
    return Origin(*_ORIGIN.unpack_from(value, _HEAD.size)) if value[0] == _WITH_ORIGIN else None


def _body_of(value: bytes) -> memoryview:
    size = _HEAD.size + (_ORIGIN.size if value[0] == _WITH_ORIGIN else 0)
    return memoryview(value)[size:]


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


_ACCOUNTS: Final = 65_536


def account_of(client_id: str) -> int:
    """The account of a client."""
    return hash(client_id) % _ACCOUNTS


class Accounts:
    """Bytes of retained messages that each client published. Messages with a stamp above ``since`` are counted."""

    __slots__ = ("_bytes", "since")

    def __init__(self) -> None:
        self._bytes = array("q", [0]) * _ACCOUNTS
        self.since = 0

    def of(self, value: bytes) -> int | None:
        """The account that a stored message is on, None for one that is on none."""
        return account_of(client_id_of(value)) if stamp_of(value) > self.since else None

    def bytes_on(self, account: int) -> int:
        """Bytes on an account."""
        return self._bytes[account]

    def add(self, account: int, size: int) -> None:
        """Bytes that came to an account, or went if negative."""
        self._bytes[account] += size
