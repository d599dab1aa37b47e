"""A client whose packets take long: they are taken in several turns of the loop, in order, and others come between."""

from __future__ import annotations

import asyncio

import pytest

from broker.codec.packets import Disconnect, PingReq, PingResp, PubAck, Publish, SubscriptionRequest
from broker.connection.connection import Connection
from broker.connection.scheduler import OWED_S, TURN_S
from broker.connection.sessions.log import ACCEPT_S
from broker.core.stage import GateCall
from tests.support.mqtt_server import GatedStore, MovedClock, Node, on_loop, running
from tests.support.waiting import until


class LongClock(MovedClock):
    """Each look at it takes a third of a turn."""

    is_long = False

    def monotonic_s(self) -> float:
        if self.is_long:
            self.move(TURN_S / 3)
        return super().monotonic_s()


@on_loop
async def test_packets_that_take_long_are_all_taken_in_order_over_several_turns() -> None:
    clock = LongClock()
    async with running(clock=clock) as node:
        client = await node.client("c")
        turns = node.server.hub.context.figures.packets_received.value
        clock.is_long = True
        client.send(*[PingReq()] * 50, Publish("t", b"x", 1, packet_id=7), *[PingReq()] * 50)
        for _ in range(50):
            await client.expect(PingResp)
        assert await client.expect(PubAck) == PubAck(7)
        for _ in range(50):
            await client.expect(PingResp)
        assert node.server.hub.context.figures.packets_received.value == turns + 101


@on_loop
async def test_another_client_is_served_before_the_rest() -> None:
    clock = LongClock()
    async with running(clock=clock) as node:
        flood, other = await node.client("flood"), await node.client("other")
        await other.subscribe(SubscriptionRequest("t", 0))
        clock.is_long = True
        [connection] = [
            one for one in node.server.hub.connections if one.session.client_id == "flood"
        ]
        flood.send(*[PingReq()] * 2000)
        await node.until(lambda: connection.is_parked)
        await other.silence()
        assert connection.is_parked
        for _ in range(2000):
            await flood.expect(PingResp)
        assert not connection.is_parked


@on_loop
async def test_a_client_that_goes_meanwhile_is_gone() -> None:
    clock = LongClock()
    async with running(clock=clock) as node:
        client = await node.client("c")
        [connection] = node.server.hub.connections
        clock.is_long = True
        client.send(*[PingReq()] * 2000)
        await node.until(lambda: connection.is_parked)
        client.abort()
        await node.until(lambda: connection.is_closed)
        await asyncio.sleep(0)
        assert node.server.hub.sessions.get("c") is None


@on_loop
async def test_who_publishes_much_to_many_waits_until_all_were_written_to_and_pings_do_not() -> (
    None
):
    async with running() as node:
        subscribers = [await node.client(f"s-{number}") for number in range(40)]
        for one in subscribers:
            await one.subscribe(SubscriptionRequest("t", 0))
        flood, other = await node.client("flood"), await node.client("other")
        [connection] = [
            one for one in node.server.hub.connections if one.session.client_id == "flood"
        ]
        writes = node.server.hub.context.pending_writes
        flood.send(*[Publish("t", b"%06d" % number * 30) for number in range(4000)])
        # looked at in each turn, since sockets that take all at once end it in the next
        await until(lambda: connection.is_parked and writes.dirty, every_s=0)
        await other.silence()
        for number in range(4000):
            for one in subscribers:
                assert await one.expect(Publish) == Publish("t", b"%06d" % number * 30)
        assert not writes.dirty
        await node.until(lambda: not connection.is_parked)


class _Passing:
    """A gate on the topics below ``gated``, which lets everything pass."""

    name = "passing"

    def plan(self, topic: str) -> GateCall | None:
        return (lambda message: message) if topic.startswith("gated/") else None


@pytest.mark.parametrize(
    "topics",
    [
        pytest.param([f"new/{number}" for number in range(2000)], id="topics never seen before"),
        pytest.param(["gated/one"] * 8000, id="one topic with a gate"),
        pytest.param([f"gated/{number}" for number in range(2000)], id="topics with a gate"),
    ],
)
@on_loop
async def test_qos_0_that_takes_long_does_not_keep_the_loop_either(topics: list[str]) -> None:
    clock = LongClock()
    async with running(clock=clock, gates=[_Passing()]) as node:
        flood, other = await node.client("flood"), await node.client("other")
        watcher = await node.client("watcher")
        await watcher.subscribe(SubscriptionRequest("#", 0))
        [connection] = [
            one for one in node.server.hub.connections if one.session.client_id == "flood"
        ]
        clock.is_long = True
        flood.send(*[Publish(topic, b"%d" % number) for number, topic in enumerate(topics)])
        await node.until(lambda: connection.is_parked)
        await other.silence()
        assert connection.is_parked
        clock.is_long = False
        received = [await watcher.expect(Publish) for _ in topics]
        assert [(one.topic, one.payload) for one in received] == [
            (t, b"%d" % n) for n, t in enumerate(topics)
        ]
        assert not connection.is_parked


async def _away(node: Node, count: int) -> None:
    """Sessions on disk that wait for messages on ``t``."""
    for number in range(count):
        client = await node.client(
            f"away-{number}", 5, clean_start=False, properties={"Session-Expiry-Interval": 600}
        )
        await client.subscribe(SubscriptionRequest("t", 1))
        client.send(Disconnect())
        await client.closed()


def _who_gives_way(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[Connection]:
    """The connections that read on in another turn, from now on: they may be over with it before anybody looks."""
    seen: list[Connection] = []
    give_way = node.server.hub.context.scheduler.give_way

    def noted(c: Connection) -> None:
        seen.append(c)
        give_way(c)

    monkeypatch.setattr(node.server.hub.context.scheduler, "give_way", noted)
    return seen


@on_loop
async def test_one_message_for_many_is_looked_at_on_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = LongClock()
    async with running(clock=clock) as node:
        await _away(node, 40)
        flood = await node.client("flood", 5)
        [connection] = node.server.hub.connections
        clock.is_long = True
        gave_way = _who_gives_way(node, monkeypatch)
        flood.send(*[Publish("t", b"x", 1, packet_id=number) for number in range(1, 31)])
        for number in range(1, 31):
            assert await flood.expect(PubAck) == PubAck(number)
        assert connection in gave_way


@on_loop
async def test_what_commits_will_take_is_owed_until_they_are_done_and_holds_up_who_publishes() -> (
    None
):
    store = GatedStore()
    async with running(store) as node:
        await _away(node, 40)
        turns = node.server.hub.context.scheduler
        await node.until(lambda: turns.owed_s == 0)
        flood, other = await node.client("flood", 5), await node.client("other", 5)
        [connection] = [
            one for one in node.server.hub.connections if one.session.client_id == "flood"
        ]
        store.allow.clear()
        needed = int(OWED_S / (40 * ACCEPT_S)) + 2
        flood.send(*[Publish("t", b"x", 1, packet_id=number) for number in range(1, 3 * needed)])
        await node.until(lambda: turns.owed_s > OWED_S and connection.is_parked)
        await other.silence()
        assert connection.is_parked
        store.allow.set()
        for number in range(1, 3 * needed):
            assert await flood.expect(PubAck) == PubAck(number)
        await node.until(lambda: abs(turns.owed_s) < ACCEPT_S)
        assert not connection.is_parked
