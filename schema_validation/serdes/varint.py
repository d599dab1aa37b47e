"""Numbers in base 128, as Avro, protobuf and Confluent's tags write them."""

from __future__ import annotations

_MOST_BYTES = 10


class LongVarint(Exception):
    """A number has more than 10 bytes."""


def read_varint(data: bytes, at: int, end: int | None = None) -> tuple[int, int]:
    """A number, and where it ends.

    Raises:
        IndexError: the data ends first, at ``end`` where that is given.
        LongVarint: it has more than 10 bytes.
    """
    value = 0
    stop = len(data) if end is None else end
    for place in range(at, at + _MOST_BYTES):
        if place >= stop:
            raise IndexError
        byte = data[place]
        value |= (byte & 0x7F) << 7 * (place - at)
        if byte < 0x80:
            return value, place + 1
    raise LongVarint


def varint(value: int) -> bytes:
    """A number of 0 or more, written."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def signed(value: int) -> int:
    """The number that its zigzag form stands for: 0, -1, 1, -2, ..."""
    return (value >> 1) ^ -(value & 1)


def zigzag(value: int) -> int:
    """The zigzag form of a number."""
    return value << 1 if value >= 0 else (-value << 1) - 1
