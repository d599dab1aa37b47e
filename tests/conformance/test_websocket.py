"""Section 15: MQTT inside WebSocket, from the bytes of the handshake on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from broker.net.settings import NamedListener, WsListenerSettings
from tests.support.cells import PLAIN
from tests.support.connections import dial
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.raw import DEADLINE_S, PINGREQ, PINGRESP, RawClient, connect, publish

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
BINARY, TEXT, CONTINUATION, CLOSE, PING, PONG = 2, 1, 0, 8, 9, 10
FIN = 0x80
WEBSOCKET = NamedListener(WsListenerSettings(bind="127.0.0.1:0"), "w")
MASK = b"\x37\xfa\x21\x3d"


def frame(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A masked frame, RFC 6455 section 5.2."""
    size = len(payload)
    length = bytes((0x80 | size,)) if size < 126 else b"\xfe" + size.to_bytes(2)
    body = bytes(byte ^ MASK[at % 4] for at, byte in enumerate(payload))
    return bytes(((FIN if is_last else 0) | opcode,)) + length + MASK + body


class WebSocket:
    """A socket that speaks just as much HTTP and WebSocket as a test needs."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, path: str = "/mqtt", subprotocols: str | None = "mqtt") -> list[str]:
        """Send the handshake; the lines of the response."""
        lines = [
            f"GET {path} HTTP/1.1", "Host: localhost", "Upgrade: websocket", "Connection: Upgrade",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 13",
        ]  # fmt: skip
        if subprotocols is not None:
            lines.append(f"Sec-WebSocket-Protocol: {subprotocols}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")

    def send(self, *data: bytes) -> None:
        """Send in one piece."""
        self.writer.write(b"".join(data))

    async def frame(self) -> tuple[int, bytes]:
        """Opcode and payload of the next frame, which is whole and not masked."""
        async with asyncio.timeout(DEADLINE_S):
            first, length = await self.reader.readexactly(2)
            assert first & 0xF0 == FIN
            assert length < 126
            return first & 15, await self.reader.readexactly(length)

    async def received(self, size: int) -> bytes:
        """So many bytes of MQTT, from binary frames."""
        data = b""
        while len(data) < size:
            opcode, payload = await self.frame()
            assert opcode == BINARY
            data += payload
        assert len(data) == size
        return data

    async def closed(self) -> int:
        """The status of the close frame that ends it."""
        while True:
            opcode, payload = await self.frame()
            if opcode == CLOSE:
                return int.from_bytes(payload[:2])


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Node, int]]:
    """A server with a WebSocket listener as it is by default, and its port."""
    async with running(listeners=(*PLAIN, WEBSOCKET)) as node:
        yield node, node.ports[1]


async def opened(port: int) -> WebSocket:
    """A WebSocket past its handshake."""
    socket = WebSocket(*await dial(port))
    assert (await socket.ask())[0].startswith("HTTP/1.1 101 ")
    return socket


def connack_size(version: int) -> int:
    """Bytes of the CONNACK of a plain CONNECT."""
    return 16 if version == 5 else 4


@pytest.mark.statement("5:6.0.0-1", "3:6.0.0-1")
@VERSIONS
@pytest.mark.parametrize("when", ["first", "later"])
@on_loop
async def test_a_text_frame_closes(version: int, when: str) -> None:
    async with listening() as (node, port):
        watcher = await RawClient.connected(node.port, connect(4, "w"))
        await watcher.subscribed(4, ("#", 0))
        socket = await opened(port)
        if when == "later":
            socket.send(frame(BINARY, connect(version)))
            await socket.received(connack_size(version))
        socket.send(
            frame(TEXT, connect(version) if when == "first" else publish(version, "t", b"x"))
        )
        assert await socket.closed() == 1003
        await watcher.silence()
        assert node.server.hub.sessions.get("c") is None


@pytest.mark.statement("5:6.0.0-2", "3:6.0.0-2")
@VERSIONS
@pytest.mark.parametrize("cut", ["whole", "bytes", "joined", "fragments"])
@on_loop
async def test_packets_and_frames_have_no_common_boundaries(version: int, cut: str) -> None:
    stream = [connect(version), publish(version, "t", b"x" * 50), PINGREQ]
    whole = b"".join(stream)
    frames = {
        "whole": [frame(BINARY, part) for part in stream],
        "bytes": [frame(BINARY, whole[at : at + 1]) for at in range(len(whole))],
        "joined": [frame(BINARY, whole)],
        "fragments": [
            frame(BINARY, whole[:7], is_last=False),
            frame(CONTINUATION, whole[7:20], is_last=False),
            frame(PING, b"between"),
            frame(CONTINUATION, whole[20:]),
        ],
    }[cut]
    async with listening() as (node, port):
        watcher = await RawClient.connected(node.port, connect(version, "w"))
        await watcher.subscribed(version, ("t", 0))
        socket = await opened(port)
        socket.send(*frames)
        if cut == "fragments":
            assert await socket.frame() == (PONG, b"between")
        got = await socket.received(connack_size(version) + 2)
        assert got.endswith(PINGRESP)
        await watcher.expect(publish(version, "t", b"x" * 50))


@pytest.mark.statement("5:6.0.0-4", "3:6.0.0-4")
@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ("mqtt", "mqtt"),
        ("mqttv3.1", "mqttv3.1"),
        ("mqttv3.1, mqtt", "mqtt"),
        ("soap, mqtt", "mqtt"),
        ("soap", None),
        (None, None),
    ],
)
@on_loop
async def test_the_handshake_answers_with_the_name_of_mqtt(
    offered: str | None, chosen: str | None
) -> None:
    async with listening() as (_node, port):
        socket = WebSocket(*await dial(port))
        lines = await socket.ask(subprotocols=offered)
        answered = [
            line.partition(": ")[2]
            for line in lines
            if line.lower().startswith("sec-websocket-protocol:")
        ]
        assert answered == ([chosen] if chosen else [])
        assert lines[0].startswith("HTTP/1.1 101 ") is bool(chosen)
        if chosen == "mqttv3.1":
            socket.send(frame(BINARY, connect(3)))
            assert await socket.received(4) == b"\x20\2\0\0"


@pytest.mark.statement("own:websocket-path", "own:N25")
@on_loop
async def test_any_path_is_accepted_and_control_frames_are_answered() -> None:
    async with listening() as (_node, port):
        for path in ("/", "/ws", "/mqtt", "/a/b?c=d"):
            elsewhere = WebSocket(*await dial(port))
            assert (await elsewhere.ask(path=path))[0].startswith("HTTP/1.1 101 ")
        socket = await opened(port)
        socket.send(frame(PING, b"are you there"))
        assert await socket.frame() == (PONG, b"are you there")
        # the one above is answered once, also when the CONNECT is behind it
        socket.send(frame(PING, b"still there"), frame(BINARY, connect(4)))
        assert await socket.frame() == (PONG, b"still there")
        await socket.received(connack_size(4))
        socket.send(frame(CLOSE, (1000).to_bytes(2)))
        assert await socket.closed() == 1000
        assert await socket.reader.read() == b""


@pytest.mark.statement("5:4.13.1-1", "5:6.0.0-1")
@on_loop
async def test_a_mistake_is_told_before_the_websocket_closes() -> None:
    async with listening() as (_node, port):
        socket = await opened(port)
        socket.send(frame(BINARY, connect(5, "c", b"\x17\0")))
        await socket.received(16)
        socket.send(frame(BINARY, publish(5, "#")))
        opcode, payload = await socket.frame()
        assert (opcode, payload[0], payload[2]) == (BINARY, 0xE0, 0x90)
        assert await socket.closed() == 1000
