"""A QoS 1 message leaves with the commit that holds it, and after a crash it has the identifier it had before."""

from __future__ import annotations

from random import Random

import pytest

from broker.codec.packets import PingReq, PingResp, PubAck, PubComp, Publish, PubRec, PubRel, SubscriptionRequest
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed
from tests.support.mqtt_server import MovedClock, Node, on_loop, running
from tests.support.wire import WireClient

HOUR = {"Session-Expiry-Interval": 3600}


class CountingStore(MemoryStore):
    """Counts commits."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = 0

    def commit(self, batch: Batch) -> Committed:
        self.commits += 1
        return super().commit(batch)


async def lasting(node: Node) -> WireClient:
    return await node.client("s", 5, clean_start=False, properties=HOUR)


@on_loop
async def test_a_message_leaves_with_the_commit_that_holds_it() -> None:
    store = CountingStore()
    async with running(store) as node:
        subscriber = await lasting(node)
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        publisher = await node.client("p")
        await node.written()
        before = store.commits
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        await publisher.expect(PubAck)
        got = await subscriber.expect(Publish)
        assert store.commits == before + 1
        subscriber.send(PubAck(got.packet_id))
        await node.written()
        assert store.commits <= before + 3


@pytest.mark.parametrize("seed", range(25))
@on_loop
async def test_messages_have_the_identifiers_they_had(seed: int) -> None:
    random, store, clock = Random(seed), MemoryStore(), MovedClock()
    first: dict[bytes, int] = {}
    completed: set[bytes] = set()
    async with running(store, clock=clock, max_inflight=random.choice((3, 20))) as node:
        subscriber, publisher = await lasting(node), await node.client("p", 5)
        await subscriber.subscribe(SubscriptionRequest("t/#", 2), SubscriptionRequest("$share/g/s/#", 1))
        if seed % 3 == 0:
            node.server.hub.sessions.by_client_id["s"]._next_id = 65_530
        for number in range(random.randrange(5, 60)):
            qos = random.choice((1, 1, 1, 2)) if seed % 2 else 1
            expiry = {"Message-Expiry-Interval": 1} if random.random() < 0.1 else {}
            topic = f"s/{number}" if seed % 5 == 2 and random.random() < 0.3 else f"t/{number % 3}"
            publisher.send(Publish(topic, b"%d" % number, qos, packet_id=number + 1, properties=expiry))
            answer = await publisher.receive()
            if isinstance(answer, PubRec):
                publisher.send(PubRel(answer.packet_id))
                await publisher.expect(PubComp)
            if random.random() < 0.1:
                node.pass_time(2)
            if random.random() < 0.2:
                await node.written()
            if random.random() < 0.3:
                continue
            await take(node, subscriber, first, completed, random)
        before_the_crash = dict(first)
    async with running(store, clock=clock) as node:
        again: dict[bytes, int] = {}
        subscriber = await lasting(node)
        await take(node, subscriber, again, set(), random)
        assert {payload: before_the_crash.get(payload, again[payload]) for payload in again} == again
        assert completed.isdisjoint(again), "a QoS 2 message that was completed came again"


async def take(node: Node, client: WireClient, seen: dict[bytes, int], completed: set[bytes], random: Random) -> None:
    """Receive what there is; acknowledge some of it."""
    names = {packet_id: payload for payload, packet_id in seen.items()}
    await node.writer.committed()
    client.send(PingReq())
    while not isinstance(packet := await client.receive(), PingResp):
        if isinstance(packet, Publish):
            assert seen.setdefault(packet.payload, packet.packet_id) == packet.packet_id
            names[packet.packet_id] = packet.payload
            if random.random() < 0.8:
                client.send(PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
            completed.add(names.get(packet.packet_id, b"from before"))
