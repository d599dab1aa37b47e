"""Many retained messages for one subscriber: all of them, once, at its pace, and nobody else waits."""

from __future__ import annotations

import pytest

from broker.codec.packets import (
    PingReq,
    PubAck,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Unsubscribe,
)
from broker.core.client import Client
from broker.core.message import Message
from broker.routing.settings import RetainedSettings
from broker.storage.memory import MemoryStore
from broker.storage.store import Store
from tests.support.mqtt_server import MovedClock, Node, on_loop, running
from tests.support.wire import WireClient

_MANY = 3000
"""More than a session may have waiting in memory."""
_LASTING = {"Session-Expiry-Interval": 1000}


async def fill(node: Node, count: int = _MANY, qos: int = 1, size: int = 20) -> None:
    retained = node.server.hub.retained
    for number in range(count):
        payload = b"%d" % number
        retained.retain(
            Message(
                f"r/{number:05d}", payload.ljust(size), qos, True, Client("p"), node.clock.now_ns()
            )
        )
    await node.writer.committed()


async def take(client: WireClient, count: int) -> list[Publish]:
    """That many messages, each acknowledged."""
    found: list[Publish] = []
    while len(found) < count:
        packet = await client.expect(Publish)
        found.append(packet)
        if packet.qos:
            client.send(PubAck(packet.packet_id))
    return found


def numbers(found: list[Publish]) -> list[int]:
    return [int(packet.payload) for packet in found]


@on_loop
async def test_all_of_many_reach_a_subscriber_in_order_and_none_is_dropped() -> None:
    async with running() as node:
        await fill(node)
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("r/#", 1))
        assert numbers(await take(client, _MANY)) == list(range(_MANY))
        await client.silence()
        assert node.metrics.value("deliveries_dropped", reason="queue_full") == 0
        assert len(node.server.hub.replays) == 0


@on_loop
async def test_a_slow_reader_of_qos_0_gets_all_and_little_waits_in_memory() -> None:
    async with running(max_unsent_bytes=64 * 1024) as node:
        await fill(node, 2000, qos=0, size=4000)
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("#", 0))
        await node.until(lambda: node.server.hub.sessions.by_client_id["c"].is_slow)
        assert numbers(await take(client, 2000)) == list(range(2000))
        assert node.metrics.value("deliveries_dropped", reason="queue_full") == 0


@on_loop
async def test_others_are_served_between_slices() -> None:
    async with running() as node:
        await fill(node, qos=0)
        greedy, other = await node.client("greedy"), await node.client("other")
        await other.subscribe(SubscriptionRequest("live", 0))
        await greedy.subscribe(SubscriptionRequest("r/#", 0))
        node.server.publisher.publish(Message("live", b"now", 0, False, Client("p"), 1))
        assert (await other.expect(Publish)).payload == b"now"
        assert len(await take(greedy, _MANY)) == _MANY


@on_loop
async def test_what_is_retained_meanwhile_comes_once_and_never_before_an_older_one() -> None:
    async with running() as node:
        await fill(node)
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("r/#", 1))
        late = Message("r/02999", b"777777", 1, True, Client("p"), node.clock.now_ns())
        node.server.publisher.publish(late)
        found = await take(client, _MANY)
        await client.silence()
        assert [packet.payload for packet in found if packet.topic == "r/02999"] == [b"777777"]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("is_clean", [True, False])
@on_loop
async def test_one_replay_a_filter_however_often_one_subscribe_repeats_it(
    is_clean: bool, qos: int
) -> None:
    async with running() as node:
        await fill(node)
        client = await node.client("c", clean_start=is_clean)
        replays, session = node.server.hub.replays, node.server.hub.sessions.by_client_id["c"]
        await client.subscribe(*[SubscriptionRequest("r/#", qos)] * 200)
        assert len(replays) == (qos and not is_clean)
        assert numbers(await take(client, _MANY)) == list(range(_MANY))
        await node.until(lambda: session.retained_queue is None and not replays)
        assert node.metrics.value("messages_sent", qos=str(qos)) == _MANY


@on_loop
async def test_a_client_that_subscribes_again_is_sent_them_again() -> None:
    async with running() as node:
        await fill(node, 10)
        client = await node.client("c")
        for _ in range(2):
            await client.subscribe(SubscriptionRequest("r/#", 0))
            assert numbers(await take(client, 10)) == list(range(10))


@pytest.mark.parametrize("is_clean", [True, False])
@on_loop
async def test_nothing_is_left_of_filters_that_come_and_go_while_a_client_acknowledges_nothing(
    is_clean: bool,
) -> None:
    async with running(max_inflight=10) as node:
        await fill(node)
        client = await node.client("c", clean_start=is_clean)
        replays, session = node.server.hub.replays, node.server.hub.sessions.by_client_id["c"]
        for number in range(50):
            found = "r/+" if number % 2 else f"r/+/{number}/#"
            client.send(Subscribe(2, [SubscriptionRequest(found, 1)]), Unsubscribe(3, [found]))
        client.send(Subscribe(4, [SubscriptionRequest("r/#", 1)]))
        await node.until(lambda: "r/#" in session.subscriptions)
        assert len(replays) + len(session.retained_queue or ()) == 1


@on_loop
async def test_unsubscribing_ends_it() -> None:
    async with running() as node:
        await fill(node)
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("r/#", 1))
        client.send(Unsubscribe(9, ["r/#"]))
        while isinstance(packet := await client.receive(), Publish):
            client.send(PubAck(packet.packet_id))
        found = 0
        client.send(PingReq())
        while isinstance(await client.receive(), Publish):
            found += 1
        assert found < _MANY // 2


@on_loop
async def test_a_lasting_session_goes_on_after_its_connection_and_after_a_crash() -> None:
    store: Store = MemoryStore()
    clock = MovedClock()
    async with running(store, clock=clock) as node:
        await fill(node)
        client = await node.client("d", 5, clean_start=False, properties=_LASTING)
        await client.subscribe(SubscriptionRequest("r/#", 1))
        found = await take(client, 300)
        await client.close()
        await node.until(lambda: node.server.hub.sessions.by_client_id["d"].is_away)
        client = await node.client("d", 5, clean_start=False, properties=_LASTING)
        found += await take(client, 500)
        await client.close()
        await node.until(lambda: node.server.hub.sessions.by_client_id["d"].is_away)
    assert store.get(b"replay/d") is not None
    async with running(store, clock=clock) as node:
        client = await node.client("d", 5, clean_start=False, properties=_LASTING)
        seen = set(numbers(found))
        while len(seen) < _MANY:
            seen |= set(numbers(await take(client, 1)))
        assert seen == set(range(_MANY))
        await node.until(lambda: len(node.server.hub.replays) == 0)
        await node.writer.committed()
        assert store.get(b"replay/d") is None


@on_loop
async def test_a_session_that_ends_leaves_no_place_behind() -> None:
    store = MemoryStore()
    async with running(store) as node:
        await fill(node)
        client = await node.client("d", 5, clean_start=False, properties=_LASTING)
        await client.subscribe(SubscriptionRequest("r/#", 1))
        await take(client, 10)
        node.end_session("d")
        await node.writer.committed()
        assert store.get(b"replay/d") is None
        assert len(node.server.hub.replays) == 0


@on_loop
async def test_what_waits_for_its_commit_is_sent_to_a_subscriber() -> None:
    async with running() as node:
        client = await node.client("c")
        node.server.publisher.publish(
            Message("r/1", b"1", 0, True, Client("p"), node.clock.now_ns())
        )
        assert node.server.hub.retained.waiting == 1
        await client.subscribe(SubscriptionRequest("r/+", 0))
        [packet] = await take(client, 1)
        assert packet.retain


@on_loop
async def test_a_full_store_refuses_the_publish() -> None:
    async with running(retained=RetainedSettings(max_messages=1)) as node:
        client = await node.client("c", 5)
        for topic, code in (("a", 0), ("b", 0x97), ("a", 0)):
            client.send(Publish(topic, b"x", 1, True, packet_id=7))
            assert (await client.expect(PubAck)).reason_code == code
        assert node.dropped("retained_full") == 1
