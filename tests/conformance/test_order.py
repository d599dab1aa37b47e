"""Order: of deliveries, of what is resent, of answers; retained messages before newer ones. Section 4.6 of MQTT 5.0."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from broker.codec.packets import (
    Connect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.restarts import away, lasting, on_disk, payloads, published, subscribed
from tests.support.wire import WireClient

LASTING = pytest.mark.parametrize("is_lasting", [False, True])


async def subscriber(
    node: Node, is_lasting: bool, *filters: tuple[str, int], version: int = 4
) -> WireClient:
    """A subscriber whose session ends with its connection, or outlives it."""
    client = await lasting(node, version=version) if is_lasting else await node.client("s", version)
    return await subscribed(client, *filters)


@LASTING
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.statement("5:4.6.0-5", "3:4.6.0-5", "5:4.6.0-6", "3:4.6.0-6")
@on_loop
async def test_each_publisher_topic_and_qos_arrives_in_the_order_sent(
    is_lasting: bool, qos: int
) -> None:
    count, publishers = 100, 3
    async with running(max_inflight=5) as node:
        client = await subscriber(node, is_lasting, ("t/#", qos))
        senders = [await node.client(f"p{number}") for number in range(publishers)]
        for number in range(count):
            for index, sender in enumerate(senders):
                topic = f"t/{number % 2}"
                sender.send(
                    Publish(
                        topic, b"%d %d" % (index, number), qos, packet_id=number + 1 if qos else 0
                    )
                )
        seen: dict[tuple[int, str], list[int]] = {}
        for _ in range(count * publishers):
            packet = await client.expect(Publish)
            index, number = map(int, packet.payload.split())
            seen.setdefault((index, packet.topic), []).append(number)
            await finish(client, packet)
        for (_, topic), numbers in seen.items():
            assert numbers == list(range(int(topic[-1]), count, 2))


async def finish(client: WireClient, packet: Publish) -> None:
    """Acknowledge a message; what else arrives meanwhile is left to come."""
    if packet.qos == 1:
        client.send(PubAck(packet.packet_id))
    elif packet.qos == 2:
        client.send(PubRec(packet.packet_id))
        kept = []
        while not isinstance(found := await client.receive(), PubRel):
            kept.append(found)
        client.push_back(kept)
        client.send(PubComp(found.packet_id))


@pytest.mark.parametrize(
    ("is_lasting", "sent"),
    [
        *((lasts, sent) for lasts in (False, True) for sent in ("1110", "1110100110")),
        (False, "2120010"),
    ],
)
@pytest.mark.statement("own:order-across-qos")
@on_loop
async def test_qos_0_does_not_overtake_what_waits_behind_a_full_window(
    is_lasting: bool, sent: str
) -> None:
    """B-75, section 4.9: QoS 0 may be suspended too while the quota is used up."""
    async with running(max_inflight=2) as node:
        client = await subscriber(node, is_lasting, ("t", 2))
        for number, qos in enumerate(map(int, sent)):
            await published(node, b"%d" % number, qos=qos)
        got = [await client.expect(Publish) for _ in range(2)]
        await client.silence()
        for packet in got:
            await finish(client, packet)
            while packet.qos and len(got) < len(sent):
                got.append(await client.expect(Publish))
                if got[-1].qos:
                    break
        assert [(packet.payload, packet.qos) for packet in got] == [
            (b"%d" % n, int(qos)) for n, qos in enumerate(sent)
        ]
        await published(node, b"direct", qos=0)
        assert (await client.expect(Publish)).payload == b"direct"


@LASTING
@pytest.mark.statement("own:order-across-qos", "5:4.9.0-3")
@on_loop
async def test_qos_0_leaves_at_once_while_nothing_waits_behind_the_window(is_lasting: bool) -> None:
    async with running(max_inflight=2) as node:
        client = await subscriber(node, is_lasting, ("t", 1))
        await published(node, b"1", b"2")
        await published(node, b"3", qos=0)
        assert await payloads(client, 3, acknowledge=False) == [b"1", b"2", b"3"]


@LASTING
@pytest.mark.statement("own:order-across-qos")
@on_loop
async def test_qos_0_that_waits_is_bounded_and_takes_no_place_of_others(is_lasting: bool) -> None:
    async with running(max_inflight=1, max_unsent_messages=5, slow_subscriber_wait=0) as node:
        client = await subscriber(node, is_lasting, ("t", 1))
        await published(node, b"a", b"b")
        for number in range(20):
            await published(node, b"%d" % number, qos=0)
        assert node.metrics.value("deliveries_dropped", reason="queue_full") == 15
        await published(node, b"c")
        assert await payloads(client, 8) == [b"a", b"b", b"15", b"16", b"17", b"18", b"19", b"c"]


@LASTING
@pytest.mark.statement("own:order-across-qos")
@on_loop
async def test_qos_0_waits_no_longer_when_what_it_waits_for_was_unsubscribed(
    is_lasting: bool,
) -> None:
    async with running(max_inflight=1) as node:
        client = await subscriber(node, is_lasting, ("t", 1), ("other", 0))
        await published(node, b"a", b"b")
        assert await payloads(client, 1, acknowledge=False) == [b"a"]
        await published(node, b"zero", topic="other", qos=0)
        await client.silence()
        client.send(Unsubscribe(9, ["t"]))
        assert await payloads(client, 1) == [b"zero"]
        await client.expect(UnsubAck)
        await published(node, b"more", topic="other", qos=0)
        assert await payloads(client, 1) == [b"more"]


@pytest.mark.parametrize("waiting", [3, 40])
@pytest.mark.statement("own:order-across-qos")
@on_loop
async def test_qos_0_comes_behind_the_backlog_of_a_session_that_was_away(waiting: int) -> None:
    """Also where more waits in the log than the queue of the session holds."""
    async with running(max_inflight=2, max_queued_messages=4) as node:
        client = await subscriber(node, True, ("t", 1))
        client.abort()
        await away(node)
        before = [b"%d" % number for number in range(waiting)]
        await published(node, *before)
        await node.writer.committed()
        client = await lasting(node)
        first = [await client.expect(Publish) for _ in range(2)]
        await published(node, b"late", qos=0)
        await client.silence()
        client.send(*(PubAck(packet.packet_id) for packet in first))
        assert [packet.payload for packet in first] + await payloads(client, waiting - 1) == [
            *before,
            b"late",
        ]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("acknowledged", [(), (0,), (2,), (1, 3), (4,), (0, 1, 2, 3, 4)], ids=str)
@pytest.mark.statement("5:4.4.0-1", "3:4.4.0-1", "5:4.6.0-1", "3:4.6.0-1", "own:N29")
@on_loop
async def test_what_is_in_flight_comes_again_in_order_before_newer_ones(
    version: int, is_restarted: bool, acknowledged: tuple[int, ...], tmp_path: Path
) -> None:
    async with on_disk(tmp_path, max_inflight=5) as node:
        client = await subscribed(await lasting(node, version=version), ("t", 1))
        await published(node, *(b"%d" % number for number in range(8)))
        first = [await client.expect(Publish) for _ in range(5)]
        for index in acknowledged:
            client.send(PubAck(first[index].packet_id))
        more = [await client.expect(Publish) for _ in range(min(len(acknowledged), 3))]
        await client.silence()
        await node.writer.committed()
        open_ones = [
            packet for index, packet in enumerate(first) if index not in acknowledged
        ] + more
        client.abort()
        await away(node)
        if not is_restarted:
            await _comes_in_order(node, version, open_ones)
    if is_restarted:
        async with on_disk(tmp_path, max_inflight=5) as node:
            await _comes_in_order(node, version, open_ones)


async def _comes_in_order(node: Node, version: int, open_ones: list[Publish]) -> None:
    client = await lasting(node, version=version)
    for expected in open_ones:
        got = await client.expect(Publish)
        assert (got.packet_id, got.payload, got.dup) == (expected.packet_id, expected.payload, True)
        client.send(PubAck(got.packet_id))
    newest = max((int(packet.payload) for packet in open_ones), default=7)
    for number in range(newest + 1, 8):
        got = await client.expect(Publish)
        assert (got.payload, got.dup) == (b"%d" % number, False)
        client.send(PubAck(got.packet_id))
    await client.silence()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.statement("5:4.4.0-1", "3:4.4.0-1", "5:4.6.0-1", "3:4.6.0-1", "own:N29")
@on_loop
async def test_however_acknowledgements_get_lost_nothing_goes_back_but_flagged_repeats(
    version: int, seed: int
) -> None:
    """Each connection drops some acknowledgements, and ends; that goes on until all has been acknowledged."""
    chance, count, topics = random.Random(seed), 60, ("t/a", "t/b")
    async with running(max_inflight=7) as node:
        await (await subscribed(await lasting(node, version=version), ("t/#", 1))).close()
        await away(node)
        for topic in topics:
            await published(node, *(b"%d" % number for number in range(count)), topic=topic)
        newest, left = (
            dict.fromkeys(topics, -1),
            {(topic, number) for topic in topics for number in range(count)},
        )
        while left:
            client = await lasting(node, version=version)
            latest, unanswered = dict.fromkeys(topics, -1), set[tuple[str, int]]()
            client.send(PingReq())
            for _ in range(chance.randrange(10, 40)):
                packet = await client.receive()
                if isinstance(packet, PingResp):
                    if len(unanswered) == 7 or unanswered == left:
                        # nothing more comes on this connection
                        break
                    client.send(PingReq())
                    continue
                assert isinstance(packet, Publish)
                topic, number = packet.topic, int(packet.payload)
                assert number > latest[topic]
                assert number == newest[topic] + 1 or (packet.dup and number <= newest[topic])
                latest[topic], newest[topic] = number, max(newest[topic], number)
                if chance.random() < 0.7:
                    client.send(PubAck(packet.packet_id))
                    left.discard((topic, number))
                else:
                    unanswered.add((topic, number))
            for packet in await _rest(client):
                newest[packet.topic] = max(newest[packet.topic], int(packet.payload))
            client.abort()
            await away(node)


async def _rest(client: WireClient) -> list[Publish]:
    """What is on its way, until the broker has read all that this client sent."""
    found: list[Publish] = []
    client.send(Subscribe(60_000, [SubscriptionRequest("nothing", 0)]))
    while not isinstance(packet := await client.receive(), SubAck):
        if isinstance(packet, Publish):
            found.append(packet)
    return found


@pytest.mark.statement("5:4.4.0-1", "3:4.4.0-1", "own:N29")
@on_loop
async def test_acknowledgements_behind_connect_do_not_let_newer_messages_overtake() -> None:
    async with running(max_inflight=3) as node:
        client = await subscribed(await lasting(node), ("t", 1))
        await published(node, *(b"%d" % number for number in range(6)))
        first = [await client.expect(Publish) for _ in range(3)]
        client.abort()
        await away(node)
        again = await WireClient.open(node.port)
        again.send(Connect("s", 4, False), PubAck(first[1].packet_id))
        await again.receive()
        got = [await again.expect(Publish) for _ in range(3)]
        assert [(found.payload, found.dup) for found in got] == [
            (b"0", True),
            (b"2", True),
            (b"3", False),
        ]


@pytest.mark.statement("5:4.6.0-2", "3:4.6.0-2", "5:4.6.0-3", "3:4.6.0-3", "5:4.6.0-4", "3:4.6.0-4")
@LASTING
@on_loop
async def test_answers_come_in_the_order_of_what_they_answer(is_lasting: bool) -> None:
    async with running() as node:
        await subscribed(await lasting(node, "watcher"), ("stored/#", 2))
        client = await lasting(node, "p") if is_lasting else await node.client("p")
        topics = ["stored/a", "nobody/b", "stored/c", "nobody/d", "nobody/e"]
        for number, topic in enumerate(topics, 1):
            client.send(Publish(topic, b"", 1, packet_id=number))
        assert [(await client.expect(PubAck)).packet_id for _ in topics] == [1, 2, 3, 4, 5]
        for number, topic in enumerate(topics, 1):
            client.send(Publish(topic, b"", 2, packet_id=number))
        assert [(await client.expect(PubRec)).packet_id for _ in topics] == [1, 2, 3, 4, 5]
        client.send(*(PubRel(number) for number in (3, 1, 2, 5, 4)))
        assert [(await client.expect(PubComp)).packet_id for _ in topics] == [3, 1, 2, 5, 4]


@LASTING
@pytest.mark.statement("5:4.6.0-4", "3:4.6.0-4")
@on_loop
async def test_pubrel_comes_in_the_order_of_the_pubrecs(is_lasting: bool) -> None:
    async with running() as node:
        client = await subscriber(node, is_lasting, ("t", 2))
        await published(node, *(b"%d" % number for number in range(4)), qos=2)
        got = [await client.expect(Publish) for _ in range(4)]
        order = [got[index].packet_id for index in (2, 0, 3, 1)]
        client.send(*(PubRec(packet_id) for packet_id in order))
        assert [(await client.expect(PubRel)).packet_id for _ in got] == order


@LASTING
@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("count", [100, 3000])
@pytest.mark.statement("own:N22", "5:3.3.1-9")
@on_loop
async def test_retained_messages_come_first_and_once_each_in_a_storm(
    is_lasting: bool, granted: int, count: int
) -> None:
    """A subscription means the value of that moment and all that follow: none is missing, none goes back."""
    topics = [f"r/{number}" for number in range(count)]
    async with running(max_inflight=20) as node:
        async with await node.client("first") as setter:
            for number, topic in enumerate(topics):
                setter.send(Publish(topic, b"0", 1, retain=True, packet_id=number % 60_000 + 1))
            for _ in topics:
                await setter.expect(PubAck)
        client = await lasting(node) if is_lasting else await node.client("s")
        stop = asyncio.Event()
        last: dict[str, int] = dict.fromkeys(topics, 0)
        storm = asyncio.create_task(_storm(node, topics, last, stop))
        await node.until(lambda: sum(last.values()) > 20)
        codes = await client.subscribe(SubscriptionRequest("r/#", granted))
        assert codes == [granted]
        seen: dict[str, int] = {}
        retained: set[str] = set()
        while len(seen) < count:
            packet = await client.expect(Publish)
            value = int(packet.payload)
            if packet.retain:
                assert packet.topic not in retained
                retained.add(packet.topic)
                assert packet.topic not in seen, "an older value after a newer one"
            elif packet.topic in seen:
                assert value == seen[packet.topic] + 1, "a gap"
            seen[packet.topic] = value
            await finish(client, packet)
        stop.set()
        await storm
        while seen != last:
            packet = await client.expect(Publish)
            assert int(packet.payload) == seen[packet.topic] + 1, "a gap"
            seen[packet.topic] = int(packet.payload)
            await finish(client, packet)


async def _storm(node: Node, topics: list[str], last: dict[str, int], stop: asyncio.Event) -> None:
    """Publish newer retained values, one after the other, until told to stop."""
    async with await node.client("storm") as publisher:
        number = 0
        while not stop.is_set() or number < 50:
            topic = topics[number * 7 % min(len(topics), 90)]
            publisher.send(
                Publish(
                    topic, b"%d" % (last[topic] + 1), 1, retain=True, packet_id=number % 60_000 + 1
                )
            )
            await publisher.expect(PubAck)
            last[topic] += 1
            number += 1


@LASTING
@pytest.mark.statement("own:N22", "own:N33")
@on_loop
async def test_more_retained_messages_than_a_queue_holds_all_arrive(is_lasting: bool) -> None:
    count = 2500
    async with running(max_inflight=10, max_queued_messages=50) as node:
        async with await node.client("first") as setter:
            setter.send(
                *(
                    Publish(f"r/{n}", b"%d" % n, 1, retain=True, packet_id=n + 1)
                    for n in range(count)
                )
            )
            for _ in range(count):
                await setter.expect(PubAck)
        client = await subscriber(node, is_lasting, ("r/+", 1))
        got = await payloads(client, count)
        assert sorted(map(int, got)) == list(range(count))
        await client.silence()
        assert node.metrics.value("deliveries_dropped", reason="queue_full") == 0
