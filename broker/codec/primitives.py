"""The primitive types of MQTT on the wire, MQTT 5.0 section 1.5, and a reader that cannot run over its end.

Lengths are compared with the remaining bytes before anything is sliced, so a packet never makes the reader allocate
more than the packet's own size.
"""

from __future__ import annotations

from struct import Struct

from broker.core import reason
from broker.core.errors import PeerError

MAX_VARIABLE_INTEGER = 268_435_455
MAX_STRING_BYTES = 65_535

U16 = Struct("!H")
U32 = Struct("!I")
# Every packet identifier as two bytes: an index costs 20 ns, ``Struct.pack`` 70.
PACKET_ID_BYTES: tuple[bytes, ...] = tuple(U16.pack(value) for value in range(65_536))


def malformed(message: str) -> PeerError:
    """The error for bytes that cannot be parsed by the rules."""
    return PeerError(reason.MALFORMED_PACKET, message)


def protocol_error(message: str) -> PeerError:
    """Error for a packet that parses but is not allowed here or now."""
    return PeerError(reason.PROTOCOL_ERROR, message)


def end_of_topic(data: bytes, body: int) -> int:
    """End of the topic of the PUBLISH whose body begins at ``body``: its length is in the first two bytes.

    Where a call costs too much, ``PacketReader.read_packets`` and ``Arrivals.take`` do the same inline.
    """
    return body + 2 + (data[body] << 8 | data[body + 1])


def encode_variable_integer(value: int) -> bytes:
    """The fewest bytes that hold the value [MQTT-1.5.5-1].

    Raises:
        ValueError: the value is negative or above 268,435,455.
    """
    if value < 0 or value > MAX_VARIABLE_INTEGER:
        raise ValueError(
            f"{value} does not fit a variable byte integer (0 to {MAX_VARIABLE_INTEGER})"
        )
    if value < 128:
        return bytes((value,))
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_binary(data: bytes) -> bytes:
    """Two bytes of length, then the data.

    Raises:
        ValueError: the data is longer than 65,535 bytes.
    """
    if len(data) > MAX_STRING_BYTES:
        raise ValueError(f"{len(data)} bytes do not fit a field of at most {MAX_STRING_BYTES}")
    return PACKET_ID_BYTES[len(data)] + data


def encode_string(text: str) -> bytes:
    """Two bytes of length, then UTF-8.

    Raises:
        ValueError: longer than 65,535 bytes, or not representable in UTF-8.
    """
    return encode_binary(text.encode())


def decode_text(data: bytes, what: str) -> str:
    """UTF-8 to text; U+FEFF is kept [MQTT-1.5.4-3].

    Raises:
        PeerError: 0x81 for ill-formed UTF-8 [MQTT-1.5.4-1] or U+0000 [MQTT-1.5.4-2].
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"{what} is not UTF-8 at byte {error.start}") from None
    if "\0" in text:
        raise malformed(f"{what} contains U+0000")
    return text


class Reader:
    """Reads fields of one packet from ``data``, between ``position`` and ``end``.

    Every method raises ``PeerError`` 0x81 when the packet ends before the field does. ``what`` names the packet in
    those messages.
    """

    __slots__ = ("data", "end", "position", "what")

    def __init__(self, data: bytes, position: int, end: int, what: str) -> None:
        self.data = data
        self.position = position
        self.end = end
        self.what = what

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return self.end - self.position

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        start = self.position
        stop = start + size
        if stop > self.end:
            raise malformed(
                f"{self.what} is cut short: {size} bytes expected, {self.remaining} there"
            )
        self.position = stop
        return self.data[start:stop]

    def byte(self) -> int:
        """One byte."""
        position = self.position
        if position >= self.end:
            raise malformed(f"{self.what} is cut short")
        self.position = position + 1
        return self.data[position]

    def u16(self) -> int:
        """Two bytes, big endian."""
        data = self.data
        position = self.position
        if position + 2 > self.end:
            self.take(2)  # says what is missing
        self.position = position + 2
        return data[position] << 8 | data[position + 1]

    def u32(self) -> int:
        """Four bytes, big endian."""
        return int.from_bytes(self.take(4))

    def variable_integer(self) -> int:
        """A variable byte integer; five bytes and needlessly long forms are refused [MQTT-1.5.5-1]."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                if byte == 0 and shift:
                    raise malformed(
                        f"{self.what} has a variable byte integer in more bytes than needed"
                    )
                return value
        raise malformed(f"{self.what} has a variable byte integer of more than four bytes")

    def binary(self) -> bytes:
        """Two bytes of length and as many bytes."""
        return self.take(self.u16())

    def text(self, field: str) -> str:
        """A UTF-8 string; ``field`` names it in errors."""
        return decode_text(self.binary(), f"{field} of {self.what}")

    def packet_id(self) -> int:
        """A packet identifier, never 0 [MQTT-2.2.1-3]."""
        value = self.u16()
        if value == 0:
            raise malformed(f"{self.what} has packet identifier 0")
        return value

    def rest(self) -> bytes:
        """All bytes up to the end."""
        return self.take(self.remaining)

    def finish(self) -> None:
        """Refuse bytes left over."""
        if self.position != self.end:
            raise malformed(f"{self.what} has {self.remaining} bytes too many")
