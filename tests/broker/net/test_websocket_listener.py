"""MQTT over WebSocket on a real socket."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from broker.codec.websocket import binary_frame_head, masked
from broker.net.listener import Listener
from broker.net.settings import NamedListener, WebSocketSettings, WsListenerSettings
from tests.support.connections import dial
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.waiting import within

_REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
_DEADLINE_S = 60.0


@asynccontextmanager
async def listening(
    node: Node, max_connections: int = 0, **options: Any
) -> AsyncIterator[tuple[Listener, int]]:
    web = WebSocketSettings.model_validate(options)
    settings = WsListenerSettings(
        bind="127.0.0.1:0", max_connections=max_connections, websocket=web
    )
    listener = Listener(NamedListener(settings, "w"), node.server.hub, node.metrics)
    _, port = await listener.open()
    try:
        yield listener, port
    finally:
        listener.close()


def frame(payload: bytes, first: int = 0x82) -> bytes:
    head, mask = binary_frame_head(len(payload)), os.urandom(4)
    return bytes((first, head[1] | 0x80)) + head[2:] + mask + masked(payload, mask)


class WebClient:
    """A WebSocket on which a test says what it wants; it answers nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = Decoder(5)

    @classmethod
    async def open(cls, port: int) -> WebClient:
        client = cls(*await dial(port))
        client.send(_REQUEST)
        assert (await client.response()).startswith("HTTP/1.1 101 ")
        return client

    @classmethod
    async def connected(cls, port: int, client_id: str = "w", **connect: Any) -> WebClient:
        client = await cls.open(port)
        client.send(frame(encode_packet(Connect(client_id, 5, **connect), 5)))
        [connack] = await client.packets()
        assert isinstance(connack, ConnAck)
        assert connack.reason_code == 0
        return client

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def response(self) -> str:
        head = await within(self._reader.readuntil(b"\r\n\r\n"), _DEADLINE_S)
        return head.decode()

    async def frame(self) -> tuple[int, bytes]:
        """First byte and payload of the next frame."""
        async with asyncio.timeout(_DEADLINE_S):
            first, length = await self._reader.readexactly(2)
            if length >= 126:
                length = int.from_bytes(await self._reader.readexactly({126: 2, 127: 8}[length]))
            return first, await self._reader.readexactly(length)

    async def packets(self) -> list[Packet]:
        """All packets of the next frame."""
        first, payload = await self.frame()
        assert first == 0x82, (first, payload)
        return list(self._decoder.feed(payload))

    async def rest(self) -> bytes:
        """What comes until the socket is closed."""
        try:
            return await within(self._reader.read(), _DEADLINE_S)
        except ConnectionResetError:  # it was closed before all that was sent had been read
            return b""


@on_loop
async def test_packets_and_frames_have_no_common_boundaries() -> None:
    async with running() as node, listening(node) as (listener, port):
        client = await WebClient.open(port)
        connect = encode_packet(Connect("w", 5), 5)
        subscribe = encode_packet(Subscribe(1, [SubscriptionRequest("t", 1)]), 5)
        publishes = b"".join(encode_packet(Publish("t", b"%d" % number), 5) for number in range(3))
        stream = connect + subscribe + publishes
        client.send(frame(stream[:3], 0x02) + frame(b"", 0x89) + frame(stream[3:20], 0x80))
        client.send(
            b"".join(frame(stream[at : at + 1]) for at in range(20, 40)) + frame(stream[40:])
        )
        kinds: list[Any] = []
        while len(kinds) < 5:
            first, payload = await client.frame()
            if first == 0x82:
                kinds += client._decoder.feed(payload)
            else:
                assert (first, payload) == (0x8A, b"")
        assert [type(kind) for kind in kinds] == [ConnAck, SubAck, Publish, Publish, Publish]
        assert listener.connections == 1
        [session] = node.server.hub.sessions
        assert (session.client_id, session.is_away) == ("w", False)


@on_loop
async def test_what_leaves_in_one_turn_is_one_frame_and_large_messages_arrive() -> None:
    async with running() as node, listening(node) as (_, port):
        client = await WebClient.connected(port)
        client.send(frame(encode_packet(Subscribe(1, [SubscriptionRequest("#", 0)]), 5)))
        assert isinstance((await client.packets())[0], SubAck)
        publisher = await node.client("p")
        publisher.send(*[Publish("t", b"x" * 100) for _ in range(20)])
        assert len(await client.packets()) == 20
        publisher.send(Publish("t", b"y" * 200_000))
        [large] = await client.packets()
        assert isinstance(large, Publish)
        assert large.payload == b"y" * 200_000


@pytest.mark.parametrize(
    ("hostile", "status"),
    [
        (frame(b"hello", 0x81), 1003),
        (b"\x82\x02ab", 1002),
        (frame(b"a", 0xC2), 1002),
        (b"\x82\xff\0\0\0\xff\0\0\0\0", 1009),
    ],
    ids=["text", "unmasked", "reserved bit", "too large"],
)
@on_loop
async def test_hostile_frames_end_it_with_a_status_and_publish_the_will(
    hostile: bytes, status: int
) -> None:
    async with running() as node, listening(node) as (listener, port):
        watcher = await node.client("watcher")
        await watcher.subscribe(SubscriptionRequest("will", 0))
        client = await WebClient.connected(port, will=Will("will", b"gone"))
        client.send(hostile)
        first, payload = await client.frame()
        assert (first, int.from_bytes(payload[:2])) == (0x88, status)
        client.send(frame(payload[:2], 0x88))
        assert await client.rest() == b""
        assert (await watcher.expect(Publish)).payload == b"gone"
        await node.until(lambda: listener.links == 0)
        assert (
            node.metrics.value(
                "listener_connections_refused", listener="ws:w", reason="websocket_frame"
            )
            == 1
        )


@on_loop
async def test_both_sides_say_goodbye() -> None:
    async with running() as node, listening(node) as (listener, port):
        leaving = await WebClient.connected(port, "leaving")
        leaving.send(frame(b"\x03\xe9going", 0x88))
        assert await leaving.frame() == (0x88, b"\x03\xe9")
        assert await leaving.rest() == b""
        kicked = await WebClient.connected(port, "kicked")
        node.kick("kicked")
        assert await kicked.packets() == [Disconnect(0x98)]
        assert await kicked.frame() == (0x88, b"\x03\xe8")
        kicked.send(frame(b"\x03\xe8", 0x88))
        assert await kicked.rest() == b""
        await node.until(lambda: listener.links == 0)


@on_loop
async def test_a_client_that_answers_no_goodbye_is_cut_off() -> None:
    async with running() as node, listening(node) as (listener, port):
        stuck = await WebClient.connected(port, "stuck")
        node.kick("stuck")
        await stuck.packets()
        assert (await stuck.rest())[:2] == b"\x88\x02"
        await node.until(lambda: listener.links == 0)


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        (_REQUEST.replace(b"/mqtt", b"/chat"), "404"),
        (_REQUEST.replace(b": mqtt", b": chat"), "400"),
        (b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n", "426"),
        (b"GET /mqtt HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
        (b"GET /" + b"x" * 20_000, "431"),
        (b"\x10\x0d\0\4MQTT\5\2\0\0\0\0\1c\r\n\r\n", "400"),
    ],
)
@on_loop
async def test_other_requests_get_an_answer_in_words(request_text: bytes, status: str) -> None:
    async with running() as node, listening(node, path="/mqtt") as (listener, port):
        client = WebClient(*await dial(port))
        client.send(request_text)
        head, _, text = (await client.rest()).decode().partition("\r\n\r\n")
        assert head.split(" ")[1] == status
        assert text.endswith(".\n")
        await node.until(lambda: listener.links == 0)


@on_loop
async def test_one_who_asks_nothing_is_cut_off_like_one_without_connect() -> None:
    async with running() as node, listening(node) as (listener, port):
        client = WebClient(*await dial(port))
        client.send(_REQUEST[:30])
        await node.until(lambda: listener.links == 1)
        node.pass_time(30)
        assert await client.rest() == b""


@on_loop
async def test_a_full_listener_says_so_in_http() -> None:
    async with running() as node, listening(node, max_connections=1) as (_, port):
        await WebClient.connected(port)
        second = WebClient(*await dial(port))
        second.send(_REQUEST)
        assert (await second.response()).startswith("HTTP/1.1 503 ")


@on_loop
async def test_websockets_that_say_nothing_hold_no_place_of_a_client() -> None:
    async with running() as node, listening(node, max_connections=1) as (listener, port):
        for _ in range(5):
            await WebClient.open(port)
            await dial(port)
        await WebClient.connected(port)
        assert listener.connections == 1


@pytest.mark.parametrize("is_connected", [False, True])
@on_loop
async def test_a_client_that_reads_no_pongs_is_not_read_from(is_connected: bool) -> None:
    ping, pong, count = frame(bytes(125), 0x89), b"\x8a\x7d" + bytes(125), 300  # thousands
    async with running(max_unsent_bytes=64 * 1024) as node, listening(node) as (_, port):
        client = await (WebClient.connected(port) if is_connected else WebClient.open(port))
        [connection] = node.server.hub.connections

        async def send() -> None:
            for _ in range(count):
                client.send(ping * 1000)
                await client._writer.drain()

        sending = asyncio.create_task(send())
        await node.until(lambda: sending.done() or connection._holds)
        assert not sending.done()
        assert connection.link.unsent_bytes() < 1024 * 1024
        for _ in range(count):
            assert await client._reader.readexactly(1000 * len(pong)) == pong * 1000
        await sending
