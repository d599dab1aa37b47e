"""Connected subscribers that acknowledge or read nothing: how they are shown, and the alarm."""

from __future__ import annotations

import asyncio
import socket
from functools import partial

import pytest

from broker.codec.packets import (
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from broker.connection.withholding import SILENT_ALARM
from broker.session.session import Session
from tests.support.mqtt_server import Node, clients_of, on_loop, running
from tests.support.wire import WireClient

TIMEOUT_S = 30


async def subscribed(node: Node, topic: str, qos: int) -> WireClient:
    client = await node.client("s", 5, clean_start=True)
    client.send(Subscribe(1, [SubscriptionRequest(topic, qos)]))
    await client.expect(SubAck)
    return client


def shown(node: Node) -> tuple[bool, bool]:
    """Whether the client is shown as slow, and an alarm names it."""
    row = clients_of(node).show("s")
    named = [one.details["subscribers"] for one in node.alarms.active() if one.name == SILENT_ALARM]
    return row["is_slow"], named == [["s"]]


def has_in_flight(session: Session, count: int) -> bool:
    return len(session.window.inflight) == count


@pytest.mark.parametrize("topic", ["t", "$share/g/t"])
@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_who_acknowledges_nothing_is_slow_although_more_is_sent(qos: int, topic: str) -> None:
    async with running() as node:
        client, publisher = await subscribed(node, topic, qos), await node.client("p", 5)

        async def publish(number: int) -> int:
            publisher.send(Publish("t", b"x", qos, packet_id=number))
            await publisher.expect(PubAck if qos == 1 else PubRec)
            if qos == 2:
                publisher.send(PubRel(number))
                await publisher.expect(PubComp)
            packet = await client.expect(Publish)
            assert packet.qos == qos
            assert packet.packet_id is not None
            return packet.packet_id

        ids = [await publish(number) for number in range(1, 21)]
        node.pass_time(1)
        assert shown(node) == (False, False)
        node.pass_time(TIMEOUT_S - 1)
        ids.append(await publish(21))
        assert shown(node) == (False, False)
        node.pass_time(1)
        assert shown(node) == (True, True)
        assert clients_of(node).show("s")["silent_s"] == TIMEOUT_S
        assert node.metrics.value("subscribers_stalled") == 1
        client.send(PubAck(ids[3]) if qos == 1 else PubRec(ids[3]))
        if qos == 2:
            await client.receive()
            client.send(PubComp(ids[3]))
        await node.until(lambda: shown(node)[0] is False)
        node.pass_time(1)
        assert shown(node) == (False, False)


@on_loop
async def test_who_acknowledges_is_not_slow_however_much_is_in_flight() -> None:
    async with running() as node:
        client, publisher = await subscribed(node, "t", 1), await node.client("p", 5)
        for number in range(1, 5):
            for _ in range(2):
                publisher.send(Publish("t", b"x", 1, packet_id=number))
                await publisher.expect(PubAck)
            first = await client.expect(Publish)
            await client.expect(Publish)
            assert first.packet_id is not None
            client.send(PubAck(first.packet_id))
            session = node.server.hub.sessions.by_client_id["s"]
            await node.until(partial(has_in_flight, session, number))
            node.pass_time(TIMEOUT_S - 1)
            assert shown(node) == (False, False)


@on_loop
async def test_who_does_not_read_is_slow_without_any_qos() -> None:
    async with running(max_unsent_bytes=256 * 1024 * 1024, max_packet_size=2 * 1024 * 1024) as node:
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", node.port))
        reader, writer = await asyncio.open_connection(sock=link, limit=1024)
        client = WireClient(reader, writer, 5)
        client.send(Connect("s", 5))
        await client.receive()
        client.send(Subscribe(1, [SubscriptionRequest("t", 0)]))
        await client.expect(SubAck)
        publisher = await node.client("p", 5)
        for number in range(1, 21):
            publisher.send(Publish("t", bytes(1024 * 1024), 1, packet_id=number))
            await publisher.expect(PubAck)
        node.pass_time(1)
        assert clients_of(node).show("s")["unsent_bytes"] > 0
        assert shown(node) == (False, False)
        node.pass_time(TIMEOUT_S)
        assert shown(node) == (True, True)
        writer.transport.abort()


@on_loop
async def test_who_has_left_is_not_told() -> None:
    async with running() as node:
        client, publisher = await subscribed(node, "t", 1), await node.client("p", 5)
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        await publisher.expect(PubAck)
        await client.expect(Publish)
        node.pass_time(1)
        node.pass_time(TIMEOUT_S)
        assert shown(node) == (True, True)
        await client.close()
        await node.until(lambda: "s" not in node.server.hub.sessions.by_client_id)
        node.pass_time(1)
        assert not [one for one in node.alarms.active() if one.name == SILENT_ALARM]
