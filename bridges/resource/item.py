"""A row on its way through an action, and how it lies on disk."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.core.action import Row, Settle
from broker.core.client import Client
from broker.core.errors import SluiceError
from broker.core.message import Message
from rules.sql.values import defined

_OF_PLACE: Final = 1 << 63
"""Set in the identity of a message that had none when it was kept: it is made of the place, so that it is the same
whenever the row is read."""
OVERHEAD_BYTES: Final = 512
"""Added to the payload of every row that waits in memory: about what the row and its message take."""


class Item(msgspec.Struct, eq=False, gc=False):
    """One row. ``settle`` is told once; None where nobody waits any more, as for rows that lay on disk."""

    row: Row
    message: Message
    settle: Settle | None
    size_bytes: int
    entered_s: float
    """When it was handed to the action; of the clock the buffer was given."""
    offset: int = -1
    """Where it lies on disk."""
    attempts: int = 0
    is_done: bool = False
    """Settled: confirmed, given up, or dropped while it was on the way."""
    is_fallback: bool = False
    """Came as the fallback of another action: it has no fallbacks itself."""


class _Kept(msgspec.Struct, array_like=True):
    """``payload`` is None where the row holds it under that name."""

    row: dict[str, Any]
    entered_ms: int
    topic: str
    payload: bytes | None
    qos: int
    retain: bool
    dup: bool
    received_ns: int
    id: str | None
    via: tuple[str, ...]
    properties: dict[str, Any] | None
    client: tuple[str, str | None, str | None, int | None, str, int, dict[str, str]]
    is_fallback: bool = False


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_Kept).decode


def to_bytes(row: Row, message: Message, entered_ms: int, *, is_fallback: bool = False) -> bytes:
    """A row with the message it is from, to be kept.

    Raises:
        SluiceError: the row holds what cannot be kept, as a bit string or an integer beyond 64 bits.
    """
    payload: bytes | None = message.payload
    text = row.get("payload")
    if text is payload or (type(text) is str and len(text) <= len(message.payload) and text.encode() == payload):
        payload = None
    client = message.client
    kept = _Kept(
        row,
        entered_ms,
        message.topic,
        payload,
        message.qos,
        message.retain,
        message.dup,
        message.received_ns,
        message._id,
        message.via,
        None if message.properties is None else dict(message.properties),
        (
            client.client_id,
            client.username,
            client.peer_host,
            client.peer_port,
            client.listener,
            client.protocol_version,
            dict(client.attributes),
        ),
        is_fallback,
    )
    try:
        return _encode(kept)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    try:
        kept.row = defined(dict(row))
        return _encode(kept)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SluiceError(f"the row cannot be kept: {error}") from None


_last: tuple[Any, Client] = ((), Client(""))
"""The client that was made last: rows of one client most often lie one behind the other, and making one takes 1 µs."""


def _client_of(fields: tuple[Any, ...]) -> Client:
    global _last
    if _last[0] != fields:
        _last = (fields, Client(*fields))
    return _last[1]


def from_bytes(data: bytes, offset: int, entered_s: float | None = None, now_ms: int = 0, now_s: float = 0.0) -> Item:
    """What ``to_bytes`` kept. Its age counts from when it was kept, unless ``entered_s`` is given."""
    kept = _decode(data)
    payload = kept.payload
    if payload is None:
        text = kept.row["payload"]
        payload = text.encode() if isinstance(text, str) else text
    properties = kept.properties
    if properties is not None and "User-Property" in properties:
        properties = {**properties, "User-Property": [tuple(pair) for pair in properties["User-Property"]]}
    message = Message(
        kept.topic,
        payload,
        kept.qos,
        kept.retain,
        _client_of(kept.client),
        kept.received_ns,
        properties,
        kept.dup,
        kept.via,
        _id=kept.id or f"{kept.received_ns:016X}{_OF_PLACE | offset:016X}",
    )
    if entered_s is None:
        entered_s = now_s - (now_ms - kept.entered_ms) / 1000
    return Item(kept.row, message, None, len(data), entered_s, offset, is_fallback=kept.is_fallback)
