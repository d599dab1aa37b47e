"""SUBSCRIBE and UNSUBSCRIBE of very many filters: a part in each turn of the loop, and to the client as if at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from broker.codec.packets import (
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from broker.connection.scheduler import TURN_S
from broker.core import reason
from broker.session.session import Session
from broker.storage.memory import MemoryStore
from tests.support.mqtt_server import GatedStore, MovedClock, Node, on_loop, running
from tests.support.raw import subscribe
from tests.support.wire import WireClient

MANY = 1500
FILTERS = [f"long/filter/{number}" for number in range(MANY)]


class StepClock(MovedClock):
    """Each look at it takes a tenth of a turn, once it is slow."""

    is_slow = False

    def monotonic_s(self) -> float:
        if self.is_slow:
            self.move(TURN_S / 10)
        return super().monotonic_s()


def requests(qos: int = 1) -> list[SubscriptionRequest]:
    return [SubscriptionRequest(text, qos) for text in FILTERS]


def session_of(node: Node, client_id: str) -> Session:
    session = node.server.hub.sessions.get(client_id)
    assert session is not None
    return session


async def begun(
    node: Node, client: WireClient, *packets: Subscribe | Unsubscribe | PingReq
) -> None:
    """Send these, and wait until the first has taken effect in part."""
    client.send(*packets)
    session = session_of(node, "c")
    before = len(session.subscriptions)
    await node.until(lambda: len(session.subscriptions) != before)
    assert len(session.subscriptions) not in (0, MANY)


class TurnCounter:
    """The most that a number changed by in one turn of the loop."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number, self._last, self.most = number, number(), 0
        self._look()

    def _look(self) -> None:
        self.most, self._last = max(self.most, abs(self._number() - self._last)), self._number()
        asyncio.get_running_loop().call_soon(self._look)


@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_no_turn_of_the_loop_takes_more_than_its_share(version: int) -> None:
    clock = StepClock()
    async with running(clock=clock) as node:
        client = await node.client("c", version)
        session = session_of(node, "c")
        counter = TurnCounter(lambda: len(session.subscriptions))
        clock.is_slow = True
        client.send(Subscribe(1, requests()))
        assert (await client.expect(SubAck)).reason_codes == [1] * MANY
        assert 1 <= counter.most <= 6
        client.send(Unsubscribe(2, FILTERS))
        await client.expect(UnsubAck)
        assert not session.subscriptions
        assert counter.most <= 6
        assert node.server.hub.router.subscription_count == 0


@on_loop
async def test_codes_stand_in_the_order_of_the_filters_and_the_next_packet_is_answered_behind() -> (
    None
):
    clock = StepClock()
    async with running(clock=clock, max_subscriptions=MANY - 100) as node:
        client = await node.client("c", 5)
        clock.is_slow = True
        asked = [
            SubscriptionRequest("a/#/b" if n % 7 == 3 else FILTERS[n], n % 3) for n in range(MANY)
        ]
        wrong, full = reason.TOPIC_FILTER_INVALID, reason.QUOTA_EXCEEDED
        expected = [wrong if n % 7 == 3 else n % 3 for n in range(MANY)]
        left = iter(range(MANY - 100))
        expected = [
            code if code == wrong or next(left, None) is not None else full for code in expected
        ]
        client.send(Subscribe(7, asked), PingReq(), Unsubscribe(8, [*FILTERS[:3], "none", "a/#/b"]))
        assert await client.receive() == SubAck(7, expected, {})
        assert await client.receive() == PingResp()
        codes = [0, 0, 0, reason.NO_SUBSCRIPTION_EXISTED, wrong]
        assert await client.receive() == UnsubAck(8, codes, {})


@on_loop
async def test_codes_of_a_long_unsubscribe() -> None:
    clock = StepClock()
    async with running(clock=clock) as node:
        client = await node.client("c", 5)
        await client.subscribe(*(SubscriptionRequest(text, 0) for text in FILTERS[::2]))
        clock.is_slow = True
        client.send(Unsubscribe(8, FILTERS), PingReq())
        assert await client.receive() == UnsubAck(
            8, [0, reason.NO_SUBSCRIPTION_EXISTED] * (MANY // 2), {}
        )
        assert await client.receive() == PingResp()


@on_loop
async def test_others_are_served_meanwhile_and_their_messages_come_from_the_moment_a_filter_is_granted() -> (
    None
):
    clock = StepClock()
    async with running(clock=clock) as node:
        client, other = await node.client("c"), await node.client("other")
        clock.is_slow = True
        await begun(node, client, Subscribe(1, requests()))
        other.send(
            Publish(FILTERS[0], b"early", 1, packet_id=1),
            Publish(FILTERS[-1], b"none yet", 1, packet_id=2),
        )
        for number in (1, 2):
            assert await other.expect(PubAck) == PubAck(number)
        assert len(node.server.hub.context.scheduler) >= 1  # the SUBSCRIBE is still under way
        early = await client.expect(Publish)
        assert (early.topic, early.payload) == (FILTERS[0], b"early")
        assert (await client.expect(SubAck)).reason_codes == [1] * MANY
        client.send(PubAck(early.packet_id))
        other.send(Publish(FILTERS[-1], b"late", 1, packet_id=3))
        assert (await client.expect(Publish)).payload == b"late"


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("is_clean", [True, False])
@on_loop
async def test_a_retained_message_never_comes_after_a_newer_one_published_meanwhile(
    is_clean: bool, qos: int
) -> None:
    clock = StepClock()
    async with running(clock=clock) as node:
        other = await node.client("other")
        other.send(
            *(Publish(text, b"old", 1, True, packet_id=n + 1) for n, text in enumerate(FILTERS[:3]))
        )
        for _ in range(3):
            await other.expect(PubAck)
        client = await node.client("c", clean_start=is_clean)
        clock.is_slow = True
        await begun(node, client, Subscribe(1, requests(qos)))
        other.send(Publish(FILTERS[0], b"new", 1, True, packet_id=9))
        await other.expect(PubAck)
        seen: dict[str, list[tuple[bytes, bool]]] = {text: [] for text in FILTERS[:3]}
        is_answered = False
        while (b"new", False) not in seen[FILTERS[0]] or not all(seen.values()) or not is_answered:
            packet = await client.receive()
            is_answered = is_answered or isinstance(packet, SubAck)
            if isinstance(packet, Publish):
                if packet.qos:
                    client.send(PubAck(packet.packet_id))
                seen[packet.topic].append((packet.payload, packet.retain))
        await client.silence()
        # "new" may have replaced "old" before it was read
        assert seen.pop(FILTERS[0]) in ([(b"old", True), (b"new", False)], [(b"new", False)])
        assert list(seen.values()) == [[(b"old", True)]] * 2


@on_loop
async def test_what_was_granted_stays_with_a_durable_session_whose_connection_is_taken_over() -> (
    None
):
    clock, store = StepClock(), MemoryStore()
    async with running(store, clock=clock) as node:
        client = await node.client("c", clean_start=False)
        clock.is_slow = True
        await begun(node, client, Subscribe(1, requests()), PingReq())
        second = await node.client("c", clean_start=False)
        assert await client.closed() == []
        assert not node.server.hub.context.scheduler
        held = dict(session_of(node, "c").subscriptions)
        assert 0 < len(held) < MANY
        assert list(held) == FILTERS[: len(held)]
        assert await second.subscribe(SubscriptionRequest(FILTERS[0], 2)) == [2]
        assert node.server.hub.router.subscription_count == len(held)
    async with running(store) as node:
        assert list(session_of(node, "c").subscriptions) == list(held)


@on_loop
async def test_nothing_stays_of_a_session_that_ends_with_its_connection() -> None:
    clock = StepClock()
    async with running(clock=clock) as node:
        client = await node.client("c")
        clock.is_slow = True
        await begun(node, client, Subscribe(1, requests()))
        second = await node.client("c")
        assert await client.closed() == []
        assert session_of(node, "c").subscriptions == {}
        await second.silence()
        assert node.server.hub.router.subscription_count == 0


@on_loop
async def test_what_was_given_up_before_a_connection_ended_is_gone_for_good() -> None:
    clock, store = StepClock(), MemoryStore()
    async with running(store, clock=clock) as node:
        client = await node.client("c", clean_start=False)
        client.send(Subscribe(1, requests()))
        await client.expect(SubAck)
        clock.is_slow = True
        await begun(node, client, Unsubscribe(2, FILTERS))
        second = await node.client("c", clean_start=False)
        await node.written()
        await second.silence()
        left = list(session_of(node, "c").subscriptions)
        assert left == FILTERS[MANY - len(left) :]
    async with running(store) as node:
        assert list(session_of(node, "c").subscriptions) == left


@on_loop
async def test_a_packet_that_is_malformed_at_its_end_has_no_effect() -> None:
    async with running(clock=StepClock()) as node:
        client = await node.client("c", 5)
        client.send_bytes(subscribe(5, 1, *((text, 1) for text in FILTERS), ("last", 3)))
        last = (await client.closed())[-1]
        assert isinstance(last, Disconnect)
        assert last.reason_code == reason.MALFORMED_PACKET
        assert node.server.hub.router.subscription_count == 0
        assert not any(name == "session.subscribed" for name, _ in node.seen)


@on_loop
async def test_the_suback_waits_for_the_commit() -> None:
    clock, store = StepClock(), GatedStore()
    async with running(store, clock=clock) as node:
        client = await node.client("c", clean_start=False)
        session = session_of(node, "c")
        await node.written()
        store.allow.clear()
        clock.is_slow = True
        client.send(Subscribe(1, requests()))
        await node.until(
            lambda: len(session.subscriptions) == MANY and not node.server.hub.context.scheduler
        )
        await client.silence()
        store.allow.set()
        assert (await client.expect(SubAck)).reason_codes == [1] * MANY


@on_loop
async def test_clients_share_the_time_of_a_turn() -> None:
    """Eight that have long lists get on together, in no more of a turn than one alone."""
    clock = StepClock()
    async with running(clock=clock) as node:
        clients = [
            await WireClient.connected(node.port, Connect(f"c{number}", 4)) for number in range(8)
        ]
        router = node.server.hub.router
        counter = TurnCounter(lambda: router.subscription_count)
        clock.is_slow = True
        for client in clients:
            client.send(Subscribe(1, requests()[:300]))
        for client in clients:
            assert len((await client.expect(SubAck)).reason_codes) == 300
        assert counter.most <= 6


@pytest.mark.parametrize("wild", ["", "/+"])
@on_loop
async def test_a_session_of_very_many_subscriptions_ends_at_once_and_leaves_over_many_turns(
    wild: str,
) -> None:
    clock = StepClock()
    async with running(clock=clock) as node:
        router, topics = node.server.hub.router, [f"{text}/x" if wild else text for text in FILTERS]
        first, other = await node.client("c"), await node.client("other")
        assert (
            await first.subscribe(*(SubscriptionRequest(text + wild, 0) for text in FILTERS))
            == [0] * MANY
        )
        other.send(Publish(topics[-1], b"before"))
        assert (await first.expect(Publish)).payload == b"before"
        clock.is_slow = True
        second = await node.client("c")
        assert await first.closed() == []
        assert router.subscription_count == 0
        assert router.leaving == 1
        other.send(*(Publish(topics[-1], b"nobody's", 1, packet_id=1 + n) for n in range(2)))
        for number in (1, 2):
            assert await other.expect(PubAck) == PubAck(number)
        assert node.dropped("no_subscribers") == 2
        await second.subscribe(
            SubscriptionRequest(FILTERS[-1] + wild, 1), SubscriptionRequest(FILTERS[0] + wild, 1)
        )
        await node.until(lambda: not router.leaving)
        other.send(Publish(topics[-1], b"mine"), Publish(topics[0], b"mine too"))
        assert (await second.expect(Publish)).payload == b"mine"
        assert (await second.expect(Publish)).payload == b"mine too"
        assert router.subscription_count == 2
