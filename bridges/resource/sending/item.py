"""A row on its way through an action, and how it is on disk."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from broker.core import stored
from broker.core.action import Row, Settlement
from broker.core.errors import SluiceError
from broker.core.message import Message, Properties
from broker.core.stored import StoredMessage
from rules.sql.values import defined

# Marks the identity of a message that had none when it was stored: it is derived from the row's offset, so that it is
# the same whenever the row is read.
_OF_PLACE: Final = 1 << 63
# Added to the payload of every row that waits in memory: about what the row and its message take.
OVERHEAD_BYTES: Final = 512


class Item(msgspec.Struct, eq=False, gc=False):
    """One row. ``settle`` gets the outcome once; None where no rule waits for it, as for rows that were on disk."""

    row: Row
    message: Message
    settle: Settlement | None
    size_bytes: int
    entered_s: float
    """When it was handed to the action; of the clock the buffer was given."""
    offset: int = -1
    """Position on disk."""
    attempts: int = 0
    is_done: bool = False
    """Settled: confirmed, discarded, or dropped while it was on the way."""
    is_fallback: bool = False
    """Came as the fallback of another action: it has no fallbacks itself."""


class _Kept(StoredMessage):
    """A row with the message that it is from; ``payload`` is None where the row holds it under that name."""

    row: dict[str, Any]
    entered_ms: int
    is_fallback: bool


def _of_0_2_0(
    row: Row,
    entered_ms: int,
    topic: str,
    payload: bytes | None,
    qos: int,
    retain: bool,
    dup: bool,
    received_ns: int,
    id: str | None,
    via: list[str],
    properties: dict[str, Any] | None,
    client: list[Any],
    is_fallback: bool = False,
) -> tuple[Any, ...]:
    message = client, topic, received_ns, payload, qos, retain, dup, properties, via, id
    return *message, row, entered_ms, is_fallback  # fmt: skip


_decode: Final = stored.decoder(_Kept, "a row of an action", _of_0_2_0)


def to_bytes(
    row: Row, message: Message, entered_ms: int, is_fallback: bool = False
) -> tuple[Row, bytes]:
    """A row with its message, as bytes; and the row as it will be read, with null for undefined values.

    Raises:
        SluiceError: the row holds what cannot be kept, as a bit string or an integer beyond 64 bits.
    """
    if type(message) is _Placed:
        _ = message.id  # of its first place
    payload = message.payload
    text = row.get("payload")
    is_in_row = text is payload or (
        type(text) is str and len(text) <= len(payload) and text.encode() == payload
    )
    try:
        return row, stored.encode(message, row, entered_ms, is_fallback, has_payload=not is_in_row)
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass
    try:
        row = defined(dict(row))
        return row, stored.encode(message, row, entered_ms, is_fallback, has_payload=not is_in_row)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SluiceError(f"the row cannot be kept: {error}") from None


class _Placed(Message):
    """A message in a buffer on disk that had no identity when it was stored; see ``_OF_PLACE``."""

    place: int = -1

    @property
    def id(self) -> str:
        """See ``Message``."""
        if self._id is None:
            self._id = f"{self.received_ns:016X}{_OF_PLACE | self.place:016X}"
        return self._id

    def changed(
        self, topic: str, payload: bytes, qos: int, retain: bool, properties: Properties | None
    ) -> Message:
        """See ``Message``."""
        _ = self.id
        return super().changed(topic, payload, qos, retain, properties)


def to_be_placed(message: Message) -> Message:
    """The message of an item that is put into a buffer on disk; ``placed`` says where it came to lie."""
    if message._id is not None or type(message) is _Placed:
        return message
    return _Placed(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        message.client,
        message.received_ns,
        message.properties,
        message.dup,
        message.via,
        message._value,
    )


def placed(item: Item, offset: int) -> Item:
    """An item that was put into a buffer on disk a moment ago, as if it had been read from there."""
    item.offset = offset
    message = item.message
    if type(message) is _Placed and message.place < 0:
        message.place = offset
    return item


def from_bytes(
    data: bytes, offset: int, entered_s: float | None = None, now_ms: int = 0, now_s: float = 0.0
) -> Item:
    """The item of bytes that ``to_bytes`` returned. Its age counts from then, unless ``entered_s`` is given."""
    kept = _decode(data)
    if kept.payload is None:
        text = kept.row.get("payload")
        kept.payload = text.encode() if isinstance(text, str) else text
    message = kept.message(Message if kept.id is not None else _Placed)
    if type(message) is _Placed:
        message.place = offset
    if entered_s is None:
        entered_s = now_s - (now_ms - kept.entered_ms) / 1000
    return Item(kept.row, message, None, len(data), entered_s, offset, 0, False, kept.is_fallback)
