"""Listeners, limits, back-pressure and stopping."""

from __future__ import annotations

import asyncio
import socket

import pytest

from broker.codec.packets import Disconnect, PubAck, Publish, SubscriptionRequest
from broker.core.errors import ConfigError, Unavailable
from broker.net.listener import Listener, check_exposure
from broker.net.settings import ListenerSettings, NamedListener
from tests.support.mqtt_server import on_loop, running
from tests.support.wire import WireClient


@pytest.mark.parametrize(
    ("bind", "is_loopback"),
    [
        ("127.0.0.1:1883", True),
        ("localhost:0", True),
        ("[::1]:1883", True),
        ("0.0.0.0:1883", False),
        ("[::]:1883", False),
        ("broker.example:1883", False),
    ],
)
def test_a_listener_beyond_this_machine_needs_an_authenticator_or_permission(
    bind: str, is_loopback: bool
) -> None:
    listener = NamedListener(ListenerSettings(bind=bind))
    assert listener.settings.is_loopback is is_loopback
    check_exposure([listener], allow_anonymous=True, has_authenticator=False)
    check_exposure([listener], allow_anonymous=False, has_authenticator=True)
    if is_loopback:
        check_exposure([listener], allow_anonymous=False, has_authenticator=False)
        return
    with pytest.raises(ConfigError, match=r"access\.allow_anonymous = true"):
        check_exposure([listener], allow_anonymous=False, has_authenticator=False)


@pytest.mark.parametrize("bind", ["1883", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", ":1883"])
def test_an_address_must_have_host_and_port(bind: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        ListenerSettings(bind=bind)


@on_loop
async def test_a_port_in_use_is_one_clear_sentence() -> None:
    async with running() as node:
        taken = NamedListener(ListenerSettings(bind=f"127.0.0.1:{node.port}"), "other")
        listener = Listener(taken, node.server.hub, node.metrics)
        with pytest.raises(
            Unavailable, match=f"127.0.0.1:{node.port}: another program listens there"
        ):
            await listener.open()


@on_loop
async def test_stopping_tells_clients_why_and_publishes_no_will() -> None:
    async with running() as node:
        new, old = await node.client("n", 5), await node.client("o", 4)
        await node.server.stop(1.0)
        assert await new.closed() == [Disconnect(0x8B)]
        assert await old.closed() == []
        with pytest.raises(OSError):
            await WireClient.open(node.port)


@on_loop
async def test_a_subscriber_that_stops_reading_loses_qos_0_and_delays_others_for_a_bounded_time_only() -> (
    None
):
    async with running(max_unsent_bytes=64 * 1024) as node:
        stuck = await _stuck_subscriber(node.port)
        reader, publisher = await node.client("r"), await node.client("p")
        await reader.subscribe(SubscriptionRequest("#", 0))
        payload, sent, received = b"x" * 50_000, 0, 0
        while node.metrics.value("deliveries_dropped", reason="queue_full") == 0:
            publisher.send(Publish("t", payload))
            sent += 1
            node.pass_time(1)  # patience with the stuck one runs out on the server's clock
            await reader.expect(Publish)
            received += 1
            assert sent < 2000
        assert received == sent
        stuck.close()


async def _stuck_subscriber(port: int) -> socket.socket:
    """A subscriber of everything that never reads after its SUBACK."""
    loop = asyncio.get_running_loop()
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.setblocking(False)
    await loop.sock_connect(link, ("127.0.0.1", port))
    await loop.sock_sendall(link, b"\x10\x11\0\4MQTT\4\2\0\0\0\5stuck\x82\6\0\1\0\1#\0")
    received = b""
    while len(received) < 9:
        received += await loop.sock_recv(link, 9 - len(received))
    return link


@on_loop
async def test_publishers_are_held_back_so_that_a_subscriber_a_little_slower_loses_nothing() -> (
    None
):
    async with running(max_queued_messages=20, max_inflight=2) as node:
        subscriber, publisher = await node.client("s"), await node.client("p")
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        count, sent = 300, 0

        async def publish() -> None:
            nonlocal sent
            for number in range(1, count + 1):
                publisher.send(Publish("t", b"%d" % number, 1, packet_id=number))
                await publisher.expect(PubAck)
                sent += 1

        publishing = asyncio.create_task(publish())
        for number in range(1, count + 1):
            packet = await subscriber.expect(Publish)
            assert packet.payload == b"%d" % number
            subscriber.send(PubAck(packet.packet_id))
        await publishing
        assert sent == count
