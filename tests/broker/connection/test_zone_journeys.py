"""A client that comes and goes through two zones, at random, under a publisher: nothing is lost, nor out of order."""

from __future__ import annotations

import random

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
from tests.support.mqtt_server import on_loop
from tests.support.wire import WireClient
from tests.support.zoned import ZonedNode, zoned

STEPS = 60


class Journey:
    """The client, and what it has seen. ``received`` are numbers in the order in which each was new."""

    def __init__(self, seed: int, qos: int) -> None:
        self.chance, self.qos = random.Random(seed), qos
        self.client: WireClient | None = None
        self.received: list[int] = []
        self.under: dict[int, int] = {}
        """Numbers by the packet identifier that they came under, while that is in use."""
        self.published = 0

    async def step(self, there: ZonedNode) -> None:
        """Something that may happen."""
        what = self.chance.choice(("publish", "publish", "read", "leave", "come", "come"))
        if what == "publish":
            await self._publish(there, self.chance.randint(1, 6))
        elif what == "read" and self.client is not None:
            await self.read()
        elif what == "leave":
            await self.leave(there)
        elif what == "come":
            await self.come(there, self.chance.choice(("default", "memory", "memory")))

    async def leave(self, there: ZonedNode) -> None:
        """Be cut off, with answers that nobody hears."""
        if self.client is not None:
            await there.away(self.client, "s")
            self.client = None

    async def come(self, there: ZonedNode, zone: str) -> bool:
        """Connect, maybe in place of a connection that is there; whether the session was there."""
        there.node.pass_time(10)  # who is taken over faster than that has to wait
        old, self.client = self.client, await there.client(zone, "s")
        if old is not None:
            old.abort()
        return self.client.connack.session_present

    async def read(self, *, all_of_it: bool = False) -> None:
        """Take what is there; acknowledge it, or some of it."""
        assert self.client is not None
        self.client.send(PingReq())
        while not isinstance(packet := await self.client.receive(), PingResp):
            is_answered = all_of_it or self.chance.random() < 0.7
            if isinstance(packet, Publish):
                self._note(packet)
                if is_answered:
                    self.client.send(
                        PubAck(packet.packet_id) if self.qos == 1 else PubRec(packet.packet_id)
                    )
            elif isinstance(packet, PubRel) and is_answered:
                self.client.send(PubComp(packet.packet_id))

    def _note(self, packet: Publish) -> None:
        number, known = int(packet.payload), self.under.get(packet.packet_id)
        assert packet.qos == self.qos
        if packet.dup:
            assert known in (number, None), f"{packet.packet_id} was {known} and is {number}"
        self.under[packet.packet_id] = number
        if number not in self.received:
            self.received.append(number)
        else:
            assert packet.dup, f"{number} came twice"

    async def _publish(self, there: ZonedNode, count: int) -> None:
        async with await there.node.client("p") as publisher:
            for _ in range(count):
                self.published += 1
                publisher.send(Publish("t", b"%d" % self.published, 2, packet_id=self.published))
                await publisher.expect(PubRec)
                publisher.send(PubRel(self.published))
                await publisher.expect(PubComp)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(6))
@on_loop
async def test_nothing_is_lost_on_the_way_between_zones(seed: int, qos: int) -> None:
    journey, store = Journey(seed, qos), MemoryStore()
    async with zoned(store, max_inflight=4, max_queued_messages=1000) as there:
        await journey.come(there, "memory")
        assert journey.client is not None
        await journey.client.subscribe(SubscriptionRequest("t", qos))
        for _ in range(STEPS):
            await journey.step(there)
        await journey.leave(there)
        assert await journey.come(there, "default")
        await journey.leave(there)
    async with zoned(store, max_inflight=4) as there:
        assert await journey.come(there, journey.chance.choice(("default", "memory")))
        session = there.node.server.hub.sessions.by_client_id["s"]
        while session.window.inflight or session.waiting_messages or session.is_behind:
            await journey.read(all_of_it=True)
        await journey.leave(there)
    assert journey.received == list(range(1, journey.published + 1))
