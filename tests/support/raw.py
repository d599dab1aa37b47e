"""MQTT as bytes: a client that sends exactly these and sees exactly what comes back, packet by packet.

For conformance tests, which must not trust the broker's own codec.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from tests.support.connections import dial

DEADLINE_S = 60.0
PINGREQ, PINGRESP = b"\xc0\0", b"\xd0\0"

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = 0x20, 0x30, 0x40, 0x50, 0x62, 0x70
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, DISCONNECT, AUTH = 0x82, 0x90, 0xA2, 0xB0, 0xE0, 0xF0


def varint(value: int) -> bytes:
    """A variable byte integer in the fewest bytes."""
    encoded = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        encoded.append(low | (0x80 if value else 0))
        if not value:
            return bytes(encoded)


def text(value: str | bytes) -> bytes:
    """A string or binary data: two bytes of length and the bytes, valid or not."""
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2) + data


def packet(first: int, *body: bytes) -> bytes:
    """A packet with its remaining length."""
    data = b"".join(body)
    return bytes((first,)) + varint(len(data)) + data


def props(version: int, *properties: bytes) -> bytes:
    """The block of properties with its length; nothing below version 5."""
    data = b"".join(properties)
    return varint(len(data)) + data if version == 5 else b""


def connect(
    version: int,
    client_id: str | bytes = "c",
    *properties: bytes,
    clean: bool = True,
    keep_alive: int = 0,
    flags: int = 0,
    rest: bytes = b"",
    level: int | None = None,
    name: str | None = None,
) -> bytes:
    """A CONNECT. ``flags`` are added to clean start; ``rest`` is what stands behind the client identifier."""
    protocol = name if name is not None else ("MQIsdp" if version == 3 else "MQTT")
    head = text(protocol) + bytes(
        (version if level is None else level, flags | (2 if clean else 0))
    )
    return packet(
        0x10, head, keep_alive.to_bytes(2), props(version, *properties), text(client_id), rest
    )


def publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    *properties: bytes,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """A PUBLISH; the packet identifier is sent with QoS above 0."""
    first = PUBLISH | (8 if dup else 0) | qos << 1 | (1 if retain else 0)
    identifier = packet_id.to_bytes(2) if qos else b""
    return packet(first, text(topic), identifier, props(version, *properties), payload)


def subscribe(
    version: int, packet_id: int, *filters: tuple[str, int], properties: tuple[bytes, ...] = ()
) -> bytes:
    """A SUBSCRIBE; each filter with its option byte."""
    body = b"".join(text(name) + bytes((options,)) for name, options in filters)
    return packet(SUBSCRIBE, packet_id.to_bytes(2), props(version, *properties), body)


def unsubscribe(version: int, packet_id: int, *filters: str) -> bytes:
    """An UNSUBSCRIBE."""
    return packet(UNSUBSCRIBE, packet_id.to_bytes(2), props(version), *map(text, filters))


def ack(first: int, packet_id: int, *rest: bytes) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; ``rest`` is the reason code and properties."""
    return packet(first, packet_id.to_bytes(2), *rest)


class RawClient:
    """A socket to the broker. It answers nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.connack = b""

    @classmethod
    async def open(cls, port: int) -> Self:
        """A connected socket, nothing sent."""
        return cls(*await dial(port))

    @classmethod
    async def connected(cls, port: int, data: bytes) -> Self:
        """A client whose CONNECT was accepted; ``connack`` is the answer."""
        client = await cls.open(port)
        client.send(data)
        client.connack = await client.read()
        assert client.connack[0] == CONNACK, client.connack
        assert client.connack[3] == 0, client.connack
        return client

    def send(self, *data: bytes) -> None:
        """Send in one piece."""
        self._writer.write(b"".join(data))

    async def read(self) -> bytes:
        """The next whole packet.

        Raises:
            ConnectionError: the server closed the connection.
            TimeoutError: nothing came in time.
        """
        async with asyncio.timeout(DEADLINE_S):
            head = await self._reader.read(1)
            if not head:
                raise ConnectionError("closed by the server")
            length = shift = 0
            while True:
                byte = await self._reader.readexactly(1)
                head += byte
                length |= (byte[0] & 0x7F) << shift
                shift += 7
                if byte[0] < 0x80:
                    return head + await self._reader.readexactly(length)

    async def expect(self, *packets: bytes) -> None:
        """Exactly these packets come next."""
        for wanted in packets:
            got = await self.read()
            assert got == wanted, f"{got!r} instead of {wanted!r}"

    async def subscribed(
        self, version: int, *filters: tuple[str, int], properties: tuple[bytes, ...] = ()
    ) -> None:
        """Subscribe and take the SUBACK, which must be the next packet."""
        self.send(subscribe(version, 65_000, *filters, properties=properties))
        got = await self.read()
        assert got[0] == SUBACK, got
        assert not any(code & 0x80 for code in got[-len(filters) :]), got

    async def silence(self) -> None:
        """Nothing is on its way: a PINGREQ is answered with nothing before it."""
        self.send(PINGREQ)
        await self.expect(PINGRESP)

    async def closed(self) -> list[bytes]:
        """Wait until the server closes, and close too; the packets that it sent before."""
        packets = []
        try:
            while True:
                packets.append(await self.read())
        except (ConnectionError, asyncio.IncompleteReadError):
            self._writer.close()
            return packets

    async def read_bytes(self, size: int) -> bytes:
        """So many bytes of whatever comes."""
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.readexactly(size)

    async def drain(self) -> None:
        """Let what was sent go out before more is."""
        await self._writer.drain()
        await asyncio.sleep(0)

    async def refused(self, version: int, code: int, return_code: int | None = None) -> None:
        """A CONNACK with the reason code, or the return code below version 5 (None: nothing), and the end."""
        said = await self.closed()
        if version < 5:
            assert said == ([] if return_code is None else [bytes((CONNACK, 2, 0, return_code))])
            return
        assert len(said) == 1, said
        assert said[0][0] == CONNACK, said
        at = 3 if said[0][1] > 127 else 2
        assert said[0][at : at + 2] == bytes((0, code)), said

    async def ended(self, version: int, *codes: int) -> None:
        """The server says goodbye with one of these codes, below version 5 with nothing, and closes."""
        said = await self.closed()
        if version < 5:
            assert said == []
            return
        assert len(said) == 1, said
        assert said[0][0] == DISCONNECT, said
        at = 3 if said[0][1] > 127 else 2
        assert (said[0][at] if said[0][1] else 0) in codes, said

    def close(self) -> None:
        """Close the socket without a word."""
        self._writer.close()

    def abort(self) -> None:
        """Cut the connection off."""
        self._writer.transport.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close()
