"""What goes when a session's queue is full, over a real server."""

from __future__ import annotations

from typing import Any

import pytest

from broker.codec.packets import Connect, Disconnect, PubAck, Publish, SubscriptionRequest
from broker.storage.memory import MemoryStore
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient


async def publish(node: Node, first: int, last: int, qos: int = 1, topic: str = "t") -> None:
    """Messages numbered from first to last, each acknowledged before the next."""
    client = await node.client("publisher", 5)
    for number in range(first, last + 1):
        client.send(Publish(topic, b"%d" % number, qos, packet_id=number if qos else 0))
        if qos:
            await client.expect(PubAck)
    await client.silence()
    await client.close()


async def numbers(client: WireClient, count: int) -> list[int]:
    """The next messages by their numbers, acknowledged."""
    found = []
    for _ in range(count):
        packet = await client.expect(Publish)
        found.append(int(packet.payload))
        if packet.qos:
            client.send(PubAck(packet.packet_id))
    return found


def lost(node: Node, why: str = "queue_full") -> float:
    return node.metrics.value("deliveries_dropped", reason=why)


async def away(node: Node, client_id: str = "s") -> None:
    """Make a session that outlives its connection, subscribed to t, and leave."""
    client = await node.client(client_id, clean_start=False)
    await client.subscribe(SubscriptionRequest("t", 1))
    await client.close()
    await node.until(lambda: node.server.hub.sessions.by_client_id[client_id].is_away)


async def back(node: Node, client_id: str = "s") -> WireClient:
    return await WireClient.connected(node.port, Connect(client_id, 4, clean_start=False))


@pytest.mark.parametrize(
    ("policy", "expected"), [("drop_oldest", [1, 4, 5]), ("drop_newest", [1, 2, 3])]
)
@on_loop
async def test_the_setting_says_which_message_goes(policy: str, expected: list[int]) -> None:
    limits: dict[str, Any] = {"max_inflight": 1, "max_queued_messages": 2, "queue_full": policy}
    async with running(**limits, slow_subscriber="drop", slow_subscriber_wait=0) as node:
        subscriber = await node.client("s")
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        await publish(node, 1, 5)
        assert await numbers(subscriber, 3) == expected
        assert lost(node) == 2


@on_loop
async def test_a_subscriber_whose_queue_is_full_is_disconnected_where_the_settings_say_so() -> None:
    limits: dict[str, Any] = {
        "max_inflight": 1,
        "max_queued_messages": 2,
        "queue_full": "disconnect",
    }
    async with running(**limits, slow_subscriber="drop") as node:
        subscriber, other = await node.client("s", 5), await node.client("o", 5)
        for client in (subscriber, other):
            await client.subscribe(SubscriptionRequest("t", 1))
        publishing = await node.client("p")
        for number in range(1, 5):
            publishing.send(Publish("t", b"%d" % number, 1, packet_id=number))
            await publishing.expect(PubAck)
            assert await numbers(other, 1) == [number]
        said = await subscriber.closed()
        assert isinstance(said[-1], Disconnect)
        assert said[-1].reason_code == 0x97
        assert lost(node) == 1
        assert lost(node, "session_ended") == 2


@on_loop
async def test_what_waits_on_disk_is_bounded_and_the_newest_survive() -> None:
    async with running(max_stored_messages=20, max_inflight=5) as node:
        await away(node)
        await publish(node, 1, 100)
        session = node.server.hub.sessions.by_client_id["s"]
        assert (session.waiting_messages, session.waiting_bytes > 0) == (20, True)
        assert lost(node) == 80
        subscriber = await back(node)
        assert await numbers(subscriber, 20) == list(range(81, 101))
        await subscriber.silence()
        assert session.waiting_messages == 0


@on_loop
async def test_bytes_on_disk_are_bounded_for_each_session() -> None:
    async with running(max_stored_bytes=1024) as node:
        await away(node)
        client = await node.client("p")
        for number in range(1, 11):
            client.send(Publish("t", b"%d" % number + b" " * 300, 1, packet_id=number))
            await client.expect(PubAck)
        subscriber = await back(node)
        found = await numbers(subscriber, 10 - int(lost(node)))
        assert found == list(range(11 - len(found), 11))
        assert 1 <= len(found) <= 3


@on_loop
async def test_the_bounds_hold_for_what_waited_before_a_restart() -> None:
    store = MemoryStore()
    async with running(store) as node:
        await away(node)
        await away(node, "other")
        await publish(node, 1, 30)
    async with running(store, max_stored_messages=10) as node:
        session = node.server.hub.sessions.by_client_id["s"]
        assert session.waiting_messages == 10
        assert lost(node) == 40
        await publish(node, 31, 32)
        assert lost(node) == 44
        assert await numbers(await back(node), 10) == list(range(23, 33))


@on_loop
async def test_all_sessions_together_keep_no_more_than_the_log_may_hold() -> None:
    store = MemoryStore()
    async with running(store, max_session_log_bytes=64 * 1024) as node:
        await away(node)
        client = await node.client("p")
        for number in range(1, 201):
            client.send(Publish("t", b"%d" % number + b" " * 1000, 1, packet_id=number))
            await client.expect(PubAck)
        node.pass_time(1)
        assert lost(node) > 0
        subscriber = await back(node)
        found = await numbers(subscriber, 200 - int(lost(node)))
        assert found == list(range(201 - len(found), 201))
        assert 20 <= len(found) <= 64
        await subscriber.silence()


@on_loop
async def test_what_waited_for_a_session_that_ends_is_counted() -> None:
    async with running() as node:
        await away(node)
        await publish(node, 1, 7)
        node.end_session("s")
        assert lost(node, "session_ended") == 7


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_qos_0_waits_for_a_client_that_is_away_only_where_the_settings_say_so(
    keeps: bool, version: int
) -> None:
    async with running(queue_qos0=keeps, max_unsent_messages=3) as node:
        subscriber = await node.client("s", clean_start=False)
        await subscriber.subscribe(SubscriptionRequest("t", 0))
        await subscriber.close()
        await node.until(lambda: node.server.hub.sessions.by_client_id["s"].is_away)
        await publish(node, 1, 5, qos=0)
        assert (lost(node), lost(node, "qos0_msg")) == ((2, 0) if keeps else (0, 5))
        properties = {"Session-Expiry-Interval": 60} if version == 5 else {}
        connect = Connect("s", version, clean_start=False, properties=properties)
        subscriber = await WireClient.connected(node.port, connect)
        assert await numbers(subscriber, 3 if keeps else 0) == ([3, 4, 5] if keeps else [])
        await subscriber.silence()
