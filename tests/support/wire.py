"""The wire as tests see it: packets as bytes with their meaning, and a client that says exactly what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from tests.support.connections import dial
from tests.support.waiting import within

DEADLINE_S = 60.0

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Case:
    """A packet and its bytes, the same in both directions."""

    name: str
    version: int
    data: bytes
    packet: Packet


CASES = [
    Case(
        "CONNECT 3.1.1, clean", 4, b"\x10\x0f\0\4MQTT\4\2\0\x3c\0\3abc", Connect("abc", 4, True, 60)
    ),
    Case("CONNECT 3.1", 3, b"\x10\x11\0\6MQIsdp\3\2\0\0\0\3abc", Connect("abc", 3)),
    Case(
        "CONNECT 5 with expiry",
        5,
        b"\x10\x15\0\4MQTT\5\0\0\0\5\x11\0\0\0\x0a\0\3abc",
        Connect("abc", 5, False, 0, properties={"Session-Expiry-Interval": 10}),
    ),
    Case(
        "CONNECT 3.1.1 with will, user name and password",
        4,
        b"\x10\x1a\0\4MQTT\4\xee\0\0\0\1c\0\1w\0\2hi\0\1u\0\1p",
        Connect("c", 4, True, 0, Will("w", b"hi", 1, True), "u", b"p"),
    ),
    Case(
        "CONNECT 5 with will delay",
        5,
        b"\x10\x1a\0\4MQTT\5\6\0\0\0\0\1c\5\x18\0\0\0\1\0\1w\0\1x",
        Connect("c", 5, will=Will("w", b"x", properties={"Will-Delay-Interval": 1})),
    ),
    Case("CONNACK 3.1.1", 4, b"\x20\2\1\0", ConnAck(True, 0)),
    Case(
        "CONNACK 5", 5, b"\x20\6\0\x85\3\x21\0\x20", ConnAck(False, 0x85, {"Receive-Maximum": 32})
    ),
    Case("PUBLISH QoS 0", 4, b"\x30\7\0\3a/bhi", Publish("a/b", b"hi")),
    Case(
        "PUBLISH QoS 2, DUP, RETAIN",
        4,
        b"\x3d\x09\0\3a/b\0\7hi",
        Publish("a/b", b"hi", 2, True, True, 7),
    ),
    Case(
        "PUBLISH 5 with user properties",
        5,
        b"\x30\x15\0\1t\x0e\x26\0\1k\0\1v\x26\0\1k\0\1wxyz",
        Publish("t", b"xyz", properties={"User-Property": [("k", "v"), ("k", "w")]}),
    ),
    Case("PUBACK", 4, b"\x40\2\0\1", PubAck(1)),
    Case("PUBACK 5, no subscribers", 5, b"\x40\3\0\1\x10", PubAck(1, 0x10)),
    Case("PUBREC", 4, b"\x50\2\0\1", PubRec(1)),
    Case("PUBREL", 4, b"\x62\2\0\1", PubRel(1)),
    Case("PUBREL 5, unknown", 5, b"\x62\3\0\1\x92", PubRel(1, 0x92)),
    Case("PUBCOMP", 4, b"\x70\2\0\1", PubComp(1)),
    Case(
        "SUBSCRIBE 3.1.1",
        4,
        b"\x82\x0c\0\1\0\1a\1\0\3b/#\2",
        Subscribe(1, [SubscriptionRequest("a", 1), SubscriptionRequest("b/#", 2)]),
    ),
    Case(
        "SUBSCRIBE 5 with options and identifier",
        5,
        b"\x82\x09\0\1\2\x0b\5\0\1a\x2d",
        Subscribe(1, [SubscriptionRequest("a", 1, True, True, 2)], {"Subscription-Identifier": 5}),
    ),
    Case("SUBACK", 4, b"\x90\4\0\1\1\x80", SubAck(1, [1, 0x80])),
    Case("UNSUBSCRIBE", 4, b"\xa2\5\0\1\0\1a", Unsubscribe(1, ["a"])),
    Case("UNSUBACK 3.1.1", 4, b"\xb0\2\0\1", UnsubAck(1)),
    Case("UNSUBACK 5", 5, b"\xb0\4\0\1\0\x11", UnsubAck(1, [0x11])),
    Case("PINGREQ", 4, b"\xc0\0", PingReq()),
    Case("PINGRESP", 4, b"\xd0\0", PingResp()),
    Case("DISCONNECT 3.1.1", 4, b"\xe0\0", Disconnect()),
    Case(
        "DISCONNECT 5 with reason",
        5,
        b"\xe0\6\x81\4\x1f\0\1x",
        Disconnect(0x81, {"Reason-String": "x"}),
    ),
    Case("AUTH 5", 5, b"\xf0\6\x18\4\x15\0\1m", Auth(0x18, {"Authentication-Method": "m"})),
]


@dataclass(frozen=True, slots=True)
class BadCase:
    """Bytes that break the rules, and the reason code that says how."""

    name: str
    version: int
    data: bytes
    reason_code: int


BAD_CASES = [
    BadCase("type 0", 4, b"\0\0", 0x81),
    BadCase("type 15 below version 5", 4, b"\xf0\0", 0x81),
    BadCase("remaining length of five bytes", 4, b"\x30\x80\x80\x80\x80\1", 0x81),
    BadCase("remaining length in more bytes than needed", 4, b"\x30\x80\0", 0x81),
    BadCase("PINGREQ with a body", 4, b"\xc0\1\0", 0x81),
    BadCase("PINGREQ with flags", 4, b"\xc1\0", 0x81),
    BadCase("SUBSCRIBE with wrong flags", 4, b"\x80\6\0\1\0\1a\0", 0x81),
    BadCase("SUBSCRIBE without a filter", 4, b"\x82\2\0\1", 0x82),
    BadCase("SUBSCRIBE with packet identifier 0", 4, b"\x82\6\0\0\0\1a\0", 0x81),
    BadCase("SUBSCRIBE with QoS 3", 4, b"\x82\6\0\1\0\1a\3", 0x81),
    BadCase("SUBSCRIBE with a reserved option", 5, b"\x82\7\0\1\0\0\1a\x40", 0x81),
    BadCase("SUBSCRIBE with identifier 0", 5, b"\x82\x09\0\1\2\x0b\0\0\1a\0", 0x82),
    BadCase(
        "SUBSCRIBE with No Local on a share group", 5, b"\x82\x11\0\1\0\0\x0b$share/g/ab\4", 0x82
    ),
    BadCase("UNSUBSCRIBE without a filter", 4, b"\xa2\2\0\1", 0x82),
    BadCase("PUBLISH with QoS 3", 4, b"\x36\5\0\1a\0\1", 0x81),
    BadCase("PUBLISH with DUP and QoS 0", 4, b"\x38\3\0\1a", 0x81),
    BadCase("PUBLISH with packet identifier 0", 4, b"\x32\5\0\1a\0\0", 0x81),
    BadCase("PUBLISH with a topic longer than the packet", 4, b"\x30\3\0\5a", 0x81),
    BadCase("PUBLISH with a wildcard", 4, b"\x30\3\0\1#", 0x90),
    BadCase("PUBLISH with an empty topic", 4, b"\x30\2\0\0", 0x90),
    BadCase("PUBLISH 5 without topic and alias", 5, b"\x30\3\0\0\0", 0x82),
    BadCase("PUBLISH with a surrogate", 4, b"\x30\5\0\3\xed\xa0\x80", 0x81),
    BadCase("PUBLISH with an overlong character", 4, b"\x30\4\0\2\xc0\xaf", 0x81),
    BadCase("PUBLISH with U+0000", 4, b"\x30\3\0\1\0", 0x81),
    BadCase("PUBLISH with an unknown property", 5, b"\x30\6\0\1a\2\x7f\0", 0x81),
    BadCase("PUBLISH with a property of CONNECT", 5, b"\x30\x07\0\1a\3\x21\0\1", 0x82),
    BadCase("PUBLISH with a property twice", 5, b"\x30\x08\0\1a\4\1\0\1\0", 0x82),
    BadCase("PUBLISH with payload format 2", 5, b"\x30\x06\0\1a\2\1\2", 0x82),
    BadCase("PUBLISH with properties longer than the packet", 5, b"\x30\5\0\1a\x09\1", 0x81),
    BadCase("UNSUBACK 3.1.1 with reason codes", 4, b"\xb0\4\0\1\0\x11", 0x81),
    BadCase("PUBACK with a code of SUBACK", 5, b"\x40\3\0\1\1", 0x81),
    BadCase("PUBREL with wrong flags", 4, b"\x60\2\0\1", 0x81),
    BadCase("CONNECT with an unknown protocol", 4, b"\x10\x0d\0\4MQTT\x09\2\0\0\0\1a", 0x84),
    BadCase("CONNECT with its reserved flag", 4, b"\x10\x0d\0\4MQTT\4\3\0\0\0\1a", 0x81),
    BadCase("CONNECT with will QoS and no will", 4, b"\x10\x0d\0\4MQTT\4\x0a\0\0\0\1a", 0x81),
    BadCase(
        "CONNECT with a password and no user name", 4, b"\x10\x10\0\4MQTT\4\x42\0\0\0\1a\0\1p", 0x81
    ),
    BadCase("CONNECT with bytes left over", 4, b"\x10\x0e\0\4MQTT\4\2\0\0\0\1a!", 0x81),
    BadCase(
        "CONNECT 5 with receive maximum 0", 5, b"\x10\x11\0\4MQTT\5\2\0\0\3\x21\0\0\0\1a", 0x82
    ),
    BadCase(
        "CONNECT 5 with authentication data only",
        5,
        b"\x10\x12\0\4MQTT\5\2\0\0\4\x16\0\1x\0\1a",
        0x82,
    ),
]


class WireClient:
    """A client on a real socket. It answers nothing by itself: what a test wants to say, it sends."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int
    ) -> None:
        self._reader, self._writer, self.version = reader, writer, version
        self._decoder = Decoder(version)
        self._received: list[Packet] = []
        self._next_id = 0

    @classmethod
    async def open(cls, port: int, version: int = 4) -> Self:
        """A connected socket, nothing sent."""
        reader, writer = await dial(port)
        return cls(reader, writer, version)

    @classmethod
    async def connected(cls, port: int, connect: Connect) -> Self:
        """A client whose CONNECT was accepted."""
        client = await cls.open(port, connect.version)
        client.send(connect)
        connack = await client.expect(ConnAck)
        assert connack.reason_code == 0, connack
        client.connack = connack
        return client

    connack: ConnAck

    def send(self, *packets: Packet) -> None:
        """Send packets in one piece."""
        self.send_bytes(b"".join(encode_packet(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._writer.write(data)

    @property
    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._writer.is_closing()

    async def drain(self) -> None:
        """Wait until the system has taken what was sent, but for a little."""
        await self._writer.drain()

    async def receive(self, deadline_s: float | None = DEADLINE_S) -> Packet:
        """The next packet.

        Raises:
            ConnectionError: the server closed the connection; this side is closed then, too.
            TimeoutError: nothing came in time.
        """
        while not self._received:
            try:
                data = await within(self._reader.read(65_536), deadline_s)
                if not data:
                    raise ConnectionError("closed by the server")
            except ConnectionError:
                self._writer.close()
                raise
            self._received.extend(self._decoder.feed(data))
        return self._received.pop(0)

    async def expect(self, kind: type[P]) -> P:
        """The next packet, which must be of a kind."""
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    def push_back(self, packets: Sequence[Packet]) -> None:
        """Let these be received next, again."""
        self._received[:0] = packets

    async def subscribe(self, *requests: SubscriptionRequest, identifier: int = 0) -> list[int]:
        """Subscribe; the reason codes. Packets that came before the SUBACK are kept."""
        self._next_id += 1
        self.send(
            Subscribe(
                self._next_id,
                list(requests),
                {"Subscription-Identifier": identifier} if identifier else {},
            )
        )
        before: list[Packet] = []
        while not isinstance(packet := await self.receive(), SubAck):
            before.append(packet)
        self._received = before + self._received
        return packet.reason_codes

    async def silence(self) -> None:
        """Make sure that nothing is on its way: a PINGREQ is answered with nothing before it."""
        self.send(PingReq())
        await self.expect(PingResp)

    async def closed(self) -> list[Packet]:
        """Wait until the server closes, and close too; what it said before."""
        packets = []
        try:
            while True:
                packets.append(await self.receive())
        except (ConnectionError, OSError):
            self._writer.close()
            return packets

    async def close(self) -> None:
        """Close the socket without a word."""
        self._writer.close()

    def stop_reading(self) -> None:
        """Read nothing from the socket, as a client that hangs."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]  # one for both directions

    def go_on_reading(self) -> None:
        """Read again."""
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]

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
