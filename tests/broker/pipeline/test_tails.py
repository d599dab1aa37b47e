"""Tails on a real server: what they take, what they skip, and that nothing is looked at while none is open."""

from __future__ import annotations

import random

import pytest

from broker.codec.packets import PingReq, PingResp, PubAck, Publish, SubscriptionRequest
from broker.core.client import Client
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.topic import TopicFilter
from broker.pipeline.tails import MAX_PAYLOAD_BYTES, MAX_TAILS, Publishers, Tail, Tails
from broker.routing.router import WatchedRoutes
from tests.broker.pipeline.test_stages import OneGate, OneTap
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient


def open_tail(
    node: Node, topic_filter: str, per_s: int = 200, bytes_per_s: int = 1024 * 1024
) -> Tail:
    return node.server.hub.plans.tails.open(TopicFilter.parse(topic_filter), per_s, bytes_per_s)


async def publish(client: WireClient, *packets: Publish) -> None:
    """Publish, and wait until the broker has it all."""
    client.send(*packets, PingReq())
    while not isinstance(await client.receive(), PingResp):
        pass


@on_loop
async def test_only_topics_that_an_open_tail_matches_are_looked_at() -> None:
    async with running() as node:
        plans, tails = node.server.hub.plans, node.server.hub.plans.tails
        assert type(plans.plan(b"a/1").routes) is not WatchedRoutes
        one, other = open_tail(node, "a/#"), open_tail(node, "a/+")
        watched = plans.plan(b"a/1")
        assert type(watched.routes) is WatchedRoutes
        assert plans.plan(b"a/2").routes is watched.routes
        assert not watched.is_staged
        assert watched.routes.is_plain
        assert type(plans.plan(b"b/1").routes) is not WatchedRoutes
        tails.close(one)
        tails.close(other)
        tails.close(other)
        assert type(plans.plan(b"a/1").routes) is not WatchedRoutes
        assert plans.plan(b"a/1").gates == ()


@on_loop
async def test_what_is_skipped_and_taken_is_all_that_matched_on_every_way() -> None:
    chance = random.Random(7)
    stages = [OneGate(lambda message: message, start="a/staged")]
    async with (
        running(gates=stages) as node,
        await node.client("p") as old,
        await node.client("q", 5) as new,
    ):
        await old.subscribe(SubscriptionRequest("a/1", 1), SubscriptionRequest("a/2", 0))
        everything, some = open_tail(node, "#", 50), open_tail(node, "a/1", 7)
        topics, sent, of_one, taken = ["a/1", "a/2", "a/staged"], 0, 0, 0
        for _ in range(40):
            packets = []
            for number in range(chance.randrange(30)):
                topic, qos = chance.choice(topics), chance.choice((0, 0, 1))
                packets.append(
                    Publish(
                        topic, b"x" * chance.randrange(100), qos, packet_id=number + 1 if qos else 0
                    )
                )
                sent += 1
                of_one += topic == "a/1"
            await publish(chance.choice((old, new)), *packets)
            node.clock.move(0.03)
            taken += len(everything.take())
        tails = node.server.hub.plans.tails
        assert tails.matched(everything) == sent
        assert tails.matched(some) == of_one
        assert 50 <= taken <= 50 + 50 * 1.2
        assert 7 <= len(some.take()) <= 7 + 7 * 1.2


@on_loop
async def test_a_tail_of_some_publishers_takes_and_counts_only_their_messages_on_every_way() -> (
    None
):
    chance = random.Random(11)
    stages = [OneGate(lambda message: message, start="a/staged")]
    async with (
        running(gates=stages) as node,
        await node.client("meter-1") as meter,
        await node.client("gate-1", 5) as gate,
    ):
        await meter.subscribe(SubscriptionRequest("a/1", 0))
        tails = node.server.hub.plans.tails

        def opened(publishers: Publishers) -> Tail:
            return tails.open(TopicFilter.parse("a/#"), 20, publishers=publishers)

        of_meters = opened(Publishers("meter-*"))
        of_gates = opened(Publishers("gate-?", "127.0.0.0/8"))
        of_others = opened(Publishers(None, "10.0.0.0/8"))
        everything = open_tail(node, "a/#", 20)
        sent = {"meter-1": 0, "gate-1": 0}
        taken: dict[str, set[str]] = {"meters": set(), "gates": set()}
        for _ in range(30):
            number = chance.randrange(30)
            client, name = chance.choice(((meter, "meter-1"), (gate, "gate-1")))
            topic = chance.choice(("a/1", "a/2", "a/staged"))
            await publish(client, *[Publish(topic, b"x", 0)] * number)
            sent[name] += number
            node.clock.move(0.05)
            taken["meters"] |= {tailed.message.client.client_id for tailed in of_meters.take()}
            taken["gates"] |= {tailed.message.client.client_id for tailed in of_gates.take()}
        assert taken == {"meters": {"meter-1"}, "gates": {"gate-1"}}
        assert tails.matched(of_meters) == sent["meter-1"]
        assert tails.matched(of_gates) == sent["gate-1"]
        assert (tails.matched(of_others), of_others.take()) == (0, [])
        assert tails.matched(everything) == sum(sent.values())


@pytest.mark.parametrize(
    ("network", "host", "expected"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("10.1.2.3/8", "10.9.9.9", True),  # host bits may be set
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.0.0.0/8", "fe80::1%eth0", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("10.0.0.0/8", None, False),
        ("10.0.0.0/8", "/run/sluice.sock", False),
    ],
)
def test_publishers_are_chosen_by_network(network: str, host: str | None, expected: bool) -> None:
    client = Client("c", peer_host=host)
    assert Publishers(None, network).accept(client) is expected


@on_loop
async def test_messages_close_together_are_taken_up_to_the_rate_of_a_second() -> None:
    async with running() as node, await node.client("p") as client:
        tail = open_tail(node, "a", 5)
        await publish(client, *[Publish("a", b"%d" % number, 0) for number in range(7)])
        assert [one.message.payload for one in tail.take()] == [b"0", b"1", b"2", b"3", b"4"]
        node.clock.move(0.2)
        await publish(client, Publish("a", b"7", 0), Publish("a", b"8", 0))
        assert [one.message.payload for one in tail.take()] == [b"7"]


@on_loop
async def test_an_unread_tail_keeps_bounded_messages_and_bytes() -> None:
    async with running() as node, await node.client("p") as client:
        tail = open_tail(node, "#")
        for _ in range(60):
            await publish(
                client, *[Publish("big", bytes(200_000), 0), *[Publish("small", b"x", 0)] * 30]
            )
            node.clock.move(0.2)
        kept = tail.take()
        assert len(kept) <= 400
        assert sum(len(one.message.payload) for one in kept) <= 2 * 1024 * 1024
        big = next(one for one in kept if one.message.topic == "big")
        assert (len(big.message.payload), big.size_bytes) == (MAX_PAYLOAD_BYTES, 200_000)


@on_loop
async def test_a_message_that_a_tap_stops_is_dropped() -> None:
    stop = Refusal("rule", "r", "rule_drop", 0x80, "stopped")
    async with (
        running(taps=[OneTap(lambda _message: stop)]) as node,
        await node.client("p") as client,
    ):
        tail = open_tail(node, "#")
        client.send(Publish("a", b"1", 1, packet_id=1))
        await client.expect(PubAck)
        [tailed] = tail.take()
        assert tailed.refusal is stop


@on_loop
async def test_a_message_that_moves_is_shown_once_to_each_tail() -> None:
    def move(message: Message) -> Message:
        return message.changed("new/1", message.payload, message.qos, message.retain, None)

    for taps in ([], [OneTap(lambda _message: None, start="new")]):
        async with (
            running(gates=[OneGate(move, start="old")], taps=taps) as node,
            await node.client("p") as client,
        ):
            everything, old, new = (
                open_tail(node, "#"),
                open_tail(node, "old/#"),
                open_tail(node, "new/#"),
            )
            await publish(client, Publish("old/1", b"1", 0))
            for tail, topic in ((everything, "old/1"), (old, "old/1"), (new, "new/1")):
                [tailed] = tail.take()
                assert tailed.message.topic == topic
                assert (tailed.became is None) == (tail is new)


@on_loop
async def test_a_ready_tail_is_announced_once_until_it_is_taken() -> None:
    announced: list[int] = []
    async with running() as node, await node.client("p") as client:
        tails = node.server.hub.plans.tails
        tail = tails.open(TopicFilter.parse("a"), on_ready=lambda: announced.append(1))
        await publish(client, Publish("a", b"1", 0), Publish("a", b"2", 0))
        assert announced == [1]
        assert [one.message.payload for one in tail.take()] == [b"1", b"2"]
        await publish(client, Publish("a", b"3", 0))
        assert announced == [1, 1]
        tails.close_all()
        assert not tail.is_open
        assert announced == [1, 1, 1]


def test_only_so_many_tails_are_open() -> None:
    tails = Tails(SystemClock(), lambda: None)
    for _ in range(MAX_TAILS):
        tails.open(TopicFilter.parse("#"))
    with pytest.raises(Unavailable, match="expected at most 32 open tails"):
        tails.open(TopicFilter.parse("#"))
