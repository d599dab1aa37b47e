"""A byte stream cut into packets, for either end of a connection.

The server's own connections cut PUBLISH out of the buffer inline (``broker.connection``); this is the plain form, used
by clients (the MQTT bridge) and tests, and the two share ``frame_at``.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.codec.decode import decode_packet
from broker.codec.packets import Connect, Packet
from broker.codec.primitives import MAX_VARIABLE_INTEGER, malformed
from broker.core import reason
from broker.core.errors import PeerError

_MAX_HEADER_BYTES = 5
_QOS_BITS = 0x06


def frame_at(
    data: bytes | bytearray, position: int, max_packet_bytes: int
) -> tuple[int, int] | None:
    """Start and end of the body of the packet at ``position``; None while its fixed header is incomplete.

    The end may lie beyond the data. Nothing is allocated for the announced length.

    Raises:
        PeerError: 0x81 for a remaining length of five bytes or in more bytes than needed, 0x95 for a packet above
            ``max_packet_bytes``.
    """
    length = 0
    shift = 0
    at = position + 1
    while True:
        if at >= len(data):
            return None
        byte = data[at]
        at += 1
        length |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 21:
            raise malformed("a packet has a remaining length of more than four bytes")
    if byte == 0 and shift:
        raise malformed("a packet has its remaining length in more bytes than needed")
    if at - position + length > max_packet_bytes:
        raise PeerError(
            reason.PACKET_TOO_LARGE,
            f"a packet of {at - position + length} bytes is larger than the maximum of {max_packet_bytes}",
        )
    return at, at + length


def plain_publishes(chunk: bytes, *, is_v5: bool) -> Iterator[tuple[int, bytes, int, int]]:
    """The PUBLISH packets without properties that a chunk consists of, as connections forward them.

    Yields the position of each packet, its topic, the position of its payload, and its end.
    """
    position = 0
    end = len(chunk)
    extra = 1 if is_v5 else 0
    while position < end:
        length = chunk[position + 1]
        body = position + 2
        if length < 128:  # most are, or have two bytes: a call less
            stop = body + length
        elif chunk[body] < 128:
            body += 1
            stop = body + (length & 127 | chunk[body - 1] << 7)
        else:
            body, stop = frame_at(chunk, position, end) or (end, end)
        topic_end = payload_at = body + 2 + (chunk[body] << 8 | chunk[body + 1])
        if chunk[position] & _QOS_BITS:
            payload_at += 2
        yield position, chunk[body + 2 : topic_end], payload_at + extra, stop
        position = stop


class Decoder:
    """Takes bytes in any pieces and gives packets.

    ``version`` is 3, 4 or 5 and may be set at any time; a CONNECT sets it.
    """

    def __init__(
        self, version: int = 4, max_packet_bytes: int = MAX_VARIABLE_INTEGER + _MAX_HEADER_BYTES
    ) -> None:
        self.version = version
        self.max_packet_bytes = max_packet_bytes
        self._buffer = bytearray()
        self._wanted = 2

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Every packet that is complete now, in order; iterate to the end before feeding again.

        Raises:
            PeerError: the current packet breaks the rules; the packets before it have been given, and the stream
                cannot be read any further.
        """
        self._buffer += data
        if len(self._buffer) < self._wanted:
            return
        whole = bytes(self._buffer)
        position = 0
        self._wanted = 2
        try:
            while position < len(whole):
                frame = frame_at(whole, position, self.max_packet_bytes)
                if frame is None:
                    break
                start, stop = frame
                if stop > len(whole):
                    self._wanted = stop - position
                    break
                packet = decode_packet(whole[position], whole, start, stop, self.version)
                position = stop
                if type(packet) is Connect:
                    self.version = packet.version
                yield packet
        finally:
            del self._buffer[:position]
