"""A subscriber that stops reading a real socket: what it costs the broker, the others, and itself."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import psutil

from broker.codec.framing import Decoder
from broker.codec.packets import PingReq, PingResp, PubAck, Publish, SubscriptionRequest
from broker.connection.dead_letters import DeadLetterSettings
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.processor import is_within
from tests.support.wire import WireClient

_CONNECT = b"\x10\x11\0\4MQTT\4\2\0\0\0\5stuck"
_MIB = 1024 * 1024


class StuckSubscriber:
    """A subscriber that reads nothing after its SUBACK until it is told to."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._decoder = Decoder(4)

    @classmethod
    async def open(cls, port: int, topic: bytes = b"t", qos: int = 0) -> StuckSubscriber:
        loop, link = asyncio.get_running_loop(), socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.setblocking(False)
        await loop.sock_connect(link, ("127.0.0.1", port))
        filter_bytes = bytes((0, len(topic))) + topic
        subscribe = bytes((0x82, 3 + len(filter_bytes), 0, 1)) + filter_bytes + bytes((qos,))
        await loop.sock_sendall(link, _CONNECT + subscribe)
        received = b""
        while len(received) < 9:
            received += await loop.sock_recv(link, 9 - len(received))
        return cls(link)

    async def read_until(self, last: int) -> list[int]:
        """Read again: the numbers of the messages up to that one."""
        found: list[int] = []
        async with asyncio.timeout(60):
            while not found or found[-1] != last:
                data = await asyncio.get_running_loop().sock_recv(self._link, 1 << 16)
                assert data, "closed by the server"
                found += [
                    int(packet.payload[:8])
                    for packet in self._decoder.feed(data)
                    if isinstance(packet, Publish)
                ]
        return found

    def close(self) -> None:
        self._link.close()


async def flood(publisher: WireClient, first: int, count: int, size: int) -> None:
    """QoS 0 messages on t, numbered, then a ping that shows that all were taken."""
    padding = b"x" * (size - 8)
    for start in range(first, first + count, 100):
        publisher.send(
            *(Publish("t", b"%08d" % number + padding) for number in range(start, start + 100))
        )
        publisher.send(PingReq())
        await publisher.expect(PingResp)


def lost(node: Node) -> int:
    return int(node.metrics.value("deliveries_dropped", reason="queue_full"))


@on_loop
async def test_a_stuck_subscriber_keeps_the_newest_and_every_message_it_loses_is_counted() -> None:
    async with running(max_unsent_bytes=256 * 1024, max_unsent_messages=500) as node:
        stuck, publisher = await StuckSubscriber.open(node.port), await node.client("p")
        count = 40_000
        await flood(publisher, 0, 1000, 1000)
        before = psutil.Process().memory_info().rss
        await flood(publisher, 1000, count - 1000, 1000)
        assert psutil.Process().memory_info().rss - before < 16 * _MIB
        session = node.server.hub.sessions.by_client_id["stuck"]
        assert 0 < session.waiting_messages <= 500
        assert session.waiting_bytes <= 256 * 1024
        found = await stuck.read_until(count - 1)
        assert found == sorted(set(found))
        assert found[-100:] == list(range(count - 100, count))
        await node.until(lambda: session.waiting_messages == 0)
        assert len(found) + lost(node) == count
        stuck.close()


@on_loop
async def test_publishers_are_held_back_once_for_a_moment_and_then_go_on_at_full_speed() -> None:
    async with running(max_unsent_bytes=64 * 1024, slow_subscriber_wait=0.05) as node:
        stuck, publisher, bystander = (
            await StuckSubscriber.open(node.port),
            await node.client("p"),
            await node.client("b"),
        )
        while node.metrics.value("slow_subscribers") == 0:
            await flood(publisher, 0, 100, 10_000)
        for number in range(1, 201):
            for client in (publisher, bystander):
                client.send(Publish("t", b"%08d" % number, 1, packet_id=number))
                await client.expect(PubAck)
        await flood(publisher, 0, 2000, 1000)
        assert node.metrics.value("slow_subscribers") == 1
        stuck.close()


@on_loop
async def test_nobody_is_ever_held_back_where_the_setting_is_0() -> None:
    async with running(max_unsent_bytes=64 * 1024, slow_subscriber_wait=0) as node:
        stuck, publisher = await StuckSubscriber.open(node.port), await node.client("p")
        while lost(node) == 0:
            await flood(publisher, 0, 100, 10_000)
        assert node.metrics.value("slow_subscribers") == 0
        stuck.close()


@on_loop
async def test_a_stuck_subscriber_with_qos_1_has_its_window_its_queue_and_no_more() -> None:
    limits: dict[str, Any] = {"max_inflight": 10, "max_queued_messages": 50}
    async with running(**limits, slow_subscriber="drop", slow_subscriber_wait=0.01) as node:
        stuck, publisher = await StuckSubscriber.open(node.port, qos=1), await node.client("p")
        for number in range(1, 1001):
            publisher.send(Publish("t", b"%08d" % number, 1, packet_id=number))
            await publisher.expect(PubAck)
        session = node.server.hub.sessions.by_client_id["stuck"]
        assert (len(session.window.inflight), session.waiting_messages, lost(node)) == (10, 50, 940)
        stuck.close()


@on_loop
async def test_one_flood_does_not_keep_others_from_being_heard() -> None:
    async with running() as node:
        flooder, other = await node.client("f"), await node.client("o")
        block = b"".join(b"\x30\x0b\0\1t%08d" % number for number in range(2000))

        async def publish() -> None:
            for _ in range(200):
                flooder.send_bytes(block)
                await flooder.drain()

        flooding = asyncio.create_task(publish())
        worst_s = 0.0
        while not flooding.done():
            began_s = time.process_time()
            other.send(PingReq())
            await other.expect(PingResp)
            worst_s = max(worst_s, time.process_time() - began_s)
        await flooding
        await node.until(lambda: node.metrics.value("messages_received", qos="0") == 400_000)
        assert is_within(worst_s, 1.0)


@on_loop
async def test_qos_0_messages_that_a_slow_client_loses_become_dead_letters() -> None:
    letters = DeadLetterSettings(causes=["queue_full"], topic="dead/${clientid}")
    async with running(
        max_unsent_bytes=64 * 1024, slow_subscriber_wait=0, dead_letter=letters
    ) as node:
        stuck, publisher, reader = (
            await StuckSubscriber.open(node.port),
            await node.client("p"),
            await node.client("r"),
        )
        await reader.subscribe(SubscriptionRequest("dead/stuck", 0))
        while lost(node) == 0:
            await flood(publisher, 0, 100, 10_000)
        assert (await reader.expect(Publish)).topic == "dead/stuck"
        assert node.metrics.value("dead_letters_published") == lost(node)
        stuck.close()
