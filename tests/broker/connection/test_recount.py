"""What waits for sessions is the same after a restart as it was before, though no record says how much that is."""

from __future__ import annotations

import pytest

from broker.codec.packets import PubAck, Publish, SubscriptionRequest
from broker.connection.sessions import recount
from broker.storage.memory import MemoryStore
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

HOUR = {"Session-Expiry-Interval": 3600}
LETTERS = "abcde"


async def durable(
    node: Node, client_id: str, *filters: str, qos: int = 1, no_local: bool = False
) -> WireClient:
    client = await node.client(
        client_id, 5, clean_start=False, properties=HOUR | {"Receive-Maximum": 3}
    )
    if filters:
        await client.subscribe(*(SubscriptionRequest(text, qos, no_local) for text in filters))
    return client


async def publish(client: WireClient, count: int, *, retain: bool = False) -> None:
    """Publish so many messages of different sizes to all topics in turn, and wait for the acknowledgements."""
    topics = [f"{LETTERS[n % 5]}/{n % 7}" for n in range(count)]
    client.send(
        *(Publish(topic, b"x" * n, 1, retain, packet_id=n + 1) for n, topic in enumerate(topics))
    )
    acknowledged = 0
    while acknowledged < count:
        acknowledged += isinstance(await client.receive(), PubAck)


async def away(node: Node, *clients: WireClient) -> None:
    for client in clients:
        await client.close()
    await node.until(
        lambda: sum(session.is_away for session in node.server.hub.sessions) >= len(clients)
    )


def waiting(node: Node) -> dict[str, tuple[int, int]]:
    """Messages and bytes that wait for each session that is away."""
    shares = {
        one.client_id: one.log
        for one in node.server.hub.sessions
        if one.is_away and one.log is not None
    }
    return {client_id: (share.messages, share.size_bytes) for client_id, share in shares.items()}


@pytest.mark.parametrize("at_once", [1, 7, 2048])
@on_loop
async def test_counts_are_those_from_before(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recount, "_AT_ONCE", at_once)
    store = MemoryStore()
    async with running(store) as node:
        publisher = await node.client("publisher")
        await publish(publisher, 12, retain=True)
        gone = [
            await durable(node, "all", "#"),
            await durable(node, "some", "a/+", "+/3", "b/2"),
            await durable(node, "overlapping", "a/#", "a/+", "+/1"),
            await durable(node, "lower", "c/#", qos=0),
            await durable(node, "mixed", "d/#"),
        ]
        own = await durable(node, "own", "a/#", no_local=True)
        own_too = await durable(node, "own too", "e/#", no_local=True)
        await own_too.subscribe(SubscriptionRequest("e/1", 1))
        await gone[-1].subscribe(SubscriptionRequest("e/#", 0))
        await publish(publisher, 20)
        await away(node, *gone)
        await publish(own, 30)
        await publish(own_too, 30)
        await away(node, own, own_too)
        late = await durable(node, "late", "+/+")
        await publish(publisher, 25)
        await away(node, late)
        await publish(publisher, 35)
        await node.written()
        before = waiting(node)
        in_flight = {
            one.client_id: len(one.window.inflight)
            for one in node.server.hub.sessions
            if one.is_durable
        }
    assert before["lower"] == (0, 0)
    assert in_flight["all"] == in_flight["late"] == 3
    assert len({messages for messages, _ in before.values()}) == len(before)
    async with running(store) as node:
        assert waiting(node) == before


@on_loop
async def test_what_is_waited_for_beyond_a_lowered_bound_is_passed_over() -> None:
    store = MemoryStore()
    async with running(store) as node:
        client = await durable(node, "c", "#")
        await away(node, client)
        await publish(await node.client("publisher"), 50)
        await node.written()
        assert waiting(node)["c"][0] == 50
    async with running(store, max_stored_messages=20) as node:
        assert waiting(node)["c"][0] == 20
        client = await durable(node, "c")
        received = 0
        while received < 20:
            message = await client.expect(Publish)
            assert len(message.payload) == 30 + received
            client.send(PubAck(message.packet_id))
            received += 1
        await client.silence()
