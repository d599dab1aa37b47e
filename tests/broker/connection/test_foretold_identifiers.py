"""A QoS 1 message leaves with the commit that holds it, and after a crash it has the identifier it had before."""

from __future__ import annotations

from random import Random

import pytest

from broker.codec.packets import (
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed
from tests.support.mqtt_server import SESSION_LOG, GatedStore, MovedClock, Node, on_loop, running
from tests.support.wire import WireClient

HOUR = {"Session-Expiry-Interval": 3600}


class CutStore(GatedStore):
    """Remembers its commits. After ``commits_left`` more of them nothing is stored until ``allow`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Batch] = []
        self.commits_left = -1

    def commit(self, batch: Batch) -> Committed:
        committed = super().commit(batch)
        self.batches.append(batch)
        self.commits_left -= 1
        if self.commits_left == 0:
            self.allow.clear()
        return committed

    @property
    def is_cut(self) -> bool:
        """Whether nothing more is stored."""
        return not self.allow.is_set()

    def as_found_after_a_crash(self) -> MemoryStore:
        """What is stored, in a store of its own."""
        found = MemoryStore()
        for batch in list(self.batches):
            found.commit(batch)
        return found


async def lasting(node: Node) -> WireClient:
    return await node.client("s", 5, clean_start=False, properties=HOUR)


@on_loop
async def test_a_message_leaves_with_the_commit_that_holds_it() -> None:
    store = CutStore()
    async with running(store) as node:
        subscriber = await lasting(node)
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        publisher = await node.client("p")
        await node.written()
        before = len(store.batches)
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        await publisher.expect(PubAck)
        got = await subscriber.expect(Publish)
        assert len(store.batches) == before + 1
        subscriber.send(PubAck(got.packet_id))
        await node.written()
        assert len(store.batches) <= before + 3


class Publisher:
    """Publishes numbered messages: to a plain filter or a share group, QoS 1 or 2, some for a second only."""

    def __init__(
        self, client: WireClient, random: Random, *, is_qos2: bool, is_shared: bool
    ) -> None:
        self._client, self._random, self.number = client, random, 0
        self._qos = (1, 1, 1, 2) if is_qos2 else (1,)
        self._topics = ("t", "t", "s") if is_shared else ("t",)

    def send(self) -> None:
        """Publish one more, without awaiting its acknowledgement."""
        self.number += 1
        random = self._random
        topic, qos = f"{random.choice(self._topics)}/{self.number % 3}", random.choice(self._qos)
        expiry = {"Message-Expiry-Interval": 1} if random.random() < 0.1 else {}
        self._client.send(
            Publish(topic, b"%d" % self.number, qos, packet_id=self.number, properties=expiry)
        )

    async def acknowledged(self) -> None:
        """Wait for the end of the one that was sent last."""
        if isinstance(answer := await self._client.receive(), PubRec):
            self._client.send(PubRel(answer.packet_id))
            await self._client.expect(PubComp)


class Subscriber:
    """What a client saw of messages: the identifier of each, and which QoS 2 ones it has completed."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.identifiers: dict[bytes, int] = {}
        self.completed: set[bytes] = set()

    async def take(self, client: WireClient) -> None:
        """Receive what there is; acknowledge some of it."""
        names = {packet_id: payload for payload, packet_id in self.identifiers.items()}
        client.send(PingReq())
        while not isinstance(packet := await client.receive(), PingResp):
            if isinstance(packet, Publish):
                assert (
                    self.identifiers.setdefault(packet.payload, packet.packet_id)
                    == packet.packet_id
                )
                names[packet.packet_id] = packet.payload
                if self._random.random() < 0.8:
                    client.send(
                        PubAck(packet.packet_id) if packet.qos == 1 else PubRec(packet.packet_id)
                    )
            elif isinstance(packet, PubRel):
                client.send(PubComp(packet.packet_id))
                self.completed.add(names.get(packet.packet_id, b"from before"))


async def until_cut(node: Node, store: CutStore) -> None:
    """Wait until the store keeps nothing more, and what its last commit lets leave has left."""
    await node.until(lambda: store.is_cut)
    await node.until(
        lambda: node.server.hub.session_log.log_next == store.range_of(SESSION_LOG).next_offset
    )


@pytest.mark.parametrize("seed", range(40))
@on_loop
async def test_messages_have_the_identifiers_they_had(seed: int) -> None:
    """A crash right behind a commit: the record that follows it is lost, and all that left by then has been seen."""
    random, store, clock = Random(seed), CutStore(), MovedClock()
    seen = Subscriber(random)
    async with running(store, clock=clock, max_inflight=random.choice((3, 20))) as node:
        client = await lasting(node)
        await client.subscribe(
            SubscriptionRequest("t/#", 2), SubscriptionRequest("$share/g/s/#", 1)
        )
        publisher = Publisher(
            await node.client("p", 5), random, is_qos2=seed % 2 == 1, is_shared=seed % 4 >= 2
        )
        if seed % 3 == 0:
            session = node.server.hub.sessions.by_client_id["s"]
            session.window.next_id = 65_530
            node.server.hub.records.changed(session)
            await node.written()
        for _ in range(random.randrange(20)):
            publisher.send()
            await publisher.acknowledged()
            if random.random() < 0.1:
                node.pass_time(2)
            if random.random() < 0.2:
                await node.written()
            if random.random() < 0.7:
                await node.writer.committed()
                await seen.take(client)
        store.commits_left = random.choice((1, 1, 2))
        for _ in range(random.randrange(1, 12)):
            publisher.send()
        while not store.is_cut:  # one commit may have held all of it
            await seen.take(client)
            if not store.is_cut:
                publisher.send()
        await until_cut(node, store)
        for _ in range(3):
            await seen.take(client)
        found = store.as_found_after_a_crash()
        store.allow.set()
    await check_after_the_crash(found, clock, seen)


async def check_after_the_crash(store: MemoryStore, clock: MovedClock, seen: Subscriber) -> None:
    again = Subscriber(Random(0))
    async with running(store, clock=clock) as node:
        client = await lasting(node)
        for _ in range(3):
            await node.writer.committed()
            await again.take(client)
    expected = {
        payload: seen.identifiers.get(payload, again.identifiers[payload])
        for payload in again.identifiers
    }
    assert again.identifiers == expected
    assert seen.completed.isdisjoint(again.identifiers), (
        "a QoS 2 message that was completed came again"
    )
