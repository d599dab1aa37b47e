"""A store that is slower than what is published: publishers wait, memory does not grow, others are not disturbed."""

from __future__ import annotations

import asyncio

from broker.codec.packets import PingReq, PingResp, PubAck, Publish, SubscriptionRequest
from broker.storage.settings import StoreSettings
from tests.support.mqtt_server import GatedStore, Node, on_loop, running

_BOUND = 1024 * 1024
_SIZE = 4096
_COUNT = 4000
"""Sixteen times the bound."""


async def _durable_subscriber(node: Node) -> None:
    client = await node.client("s", clean_start=False)
    await client.subscribe(SubscriptionRequest("t", 1))
    await client.close()
    await node.until(lambda: node.server.hub.sessions.by_client_id["s"].is_away)


@on_loop
async def test_publishers_faster_than_the_disk_are_not_read_from_and_get_their_answers_late() -> (
    None
):
    store = GatedStore()
    async with running(store, storing=StoreSettings(max_backlog_bytes=_BOUND)) as node:
        await _durable_subscriber(node)
        fast, other = await node.client("fast"), await node.client("other")
        store.allow.clear()
        payload = b"x" * _SIZE

        async def publish() -> None:
            for number in range(1, _COUNT + 1):
                fast.send(Publish("t", payload, 1, packet_id=number))
                await fast.drain()

        publishing = asyncio.create_task(publish())
        await node.until(lambda: node.writer.is_congested)
        for _ in range(50):
            other.send(PingReq(), Publish("elsewhere", b"", 1, packet_id=1))
            await other.expect(PingResp)
            await other.expect(PubAck)
        assert not publishing.done()
        assert node.writer.backlog_bytes < 2 * _BOUND
        received = node.metrics.value("messages_received", qos="1") - 50
        assert received * _SIZE < 2 * _BOUND
        store.allow.set()
        for number in range(1, _COUNT + 1):
            assert (await fast.expect(PubAck)).packet_id == number
        await publishing
        assert node.server.hub.sessions.by_client_id["s"].waiting_messages == _COUNT
        assert not node.writer.is_congested


@on_loop
async def test_a_publisher_within_the_bound_hears_its_ping_at_once_and_its_puback_after_the_commit() -> (
    None
):
    store = GatedStore()
    async with running(store) as node:
        await _durable_subscriber(node)
        client = await node.client("p")
        store.allow.clear()
        client.send(Publish("t", b"kept", 1, packet_id=1), PingReq())
        await client.expect(PingResp)
        store.allow.set()
        await client.expect(PubAck)
