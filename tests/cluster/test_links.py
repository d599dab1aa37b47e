"""Messages between cells: what a client of one cell publishes reaches those of others as on one machine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import Mock

import pytest

from broker.cluster.connection import Channel
from broker.cluster.frames import (
    MARK_LETTER,
    MARK_TRACE,
    MARK_V3,
    MARK_V5,
    Frame,
    FrameDecoder,
    FrameError,
    FrameType,
    Hello,
    Kept,
    LoggedRecord,
    LogRecords,
    S,
    Taken,
    decoded,
    encoded,
)
from broker.cluster.inbox import Inbox, OwnRoutes
from broker.cluster.peer import Peer
from broker.cluster.positions import Positions
from broker.cluster.routes import Kind
from broker.codec.encode import encode_packet
from broker.codec.packets import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from broker.connection.dead_letters import DeadLetterSettings
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.frames import CorruptFrame
from broker.storage.store import LogShard
from tests.support.linked_cells import Cell, cells, linked
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from tests.support.wire import WireClient

_KEEPS: dict[str, Any] = {
    "clean_start": False,
    "properties": {"Session-Expiry-Interval": 3600},
}


async def publish(client: WireClient, topic: str, payload: bytes, qos: int, packet_id: int) -> int:
    """Publish and wait for the acknowledgement; its reason code."""
    client.send(Publish(topic, payload, qos, packet_id=packet_id if qos else 0))
    if not qos:
        return 0
    heard: Any = await client.expect(PubAck if qos == 1 else PubRec)
    if qos == 2:
        client.send(PubRel(packet_id))
        await client.expect(PubComp)
    return int(heard.reason_code)


async def receive(client: WireClient, count: int) -> list[Publish]:
    """So many messages, acknowledged."""
    received: list[Publish] = []
    while len(received) < count:
        packet = await client.receive()
        if isinstance(packet, Publish):
            received.append(packet)
            if packet.qos:
                client.send((PubAck if packet.qos == 1 else PubRec)(packet.packet_id))
        elif isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
    return received


@on_loop
async def test_a_client_gets_what_one_of_another_cell_publishes(tmp_path: Path) -> None:
    async with cells(3, tmp_path) as (one, two, three):
        publisher = await one.node.client("p", 5)
        subscribers = [await cell.node.client("s", 5) for cell in (one, two, three)]
        for subscriber in subscribers:
            assert await subscriber.subscribe(SubscriptionRequest("a/+", 2)) == [2]
        for qos in (0, 1, 2):
            assert await publish(publisher, "a/b", b"qos %d" % qos, qos, 1 + qos) == 0
            for subscriber in subscribers:
                [packet] = await receive(subscriber, 1)
                assert (packet.topic, packet.payload, packet.qos) == ("a/b", b"qos %d" % qos, qos)
        for subscriber in subscribers:
            while isinstance(await subscriber.receive(), PubRel):
                subscriber.send(PubComp(3))
                break
            await subscriber.silence()


@on_loop
async def test_the_highest_qos_and_retain_as_published_are_what_travels(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        low = await two.node.client("low", 4)
        high = await two.node.client("high", 5)
        await low.subscribe(SubscriptionRequest("#", 0))
        await high.subscribe(SubscriptionRequest("a/b", 1, retain_as_published=True))
        properties = {"Content-Type": "text", "User-Property": [("k", "v"), ("k", "w")]}
        publisher.send(Publish("a/b", b"x", 2, True, packet_id=7, properties=properties))
        assert (await publisher.expect(PubRec)).reason_code == 0
        [at_low], [at_high] = await receive(low, 1), await receive(high, 1)
        assert (at_low.qos, at_low.retain) == (0, False)
        assert (at_high.qos, at_high.retain, at_high.properties) == (1, True, properties)


@pytest.mark.parametrize("subscribed_qos", [0, 1])
@on_loop
async def test_packets_of_all_versions_come_in_order_in_the_subscribers_version(
    subscribed_qos: int, tmp_path: Path
) -> None:
    total = 40
    async with cells(2, tmp_path) as (one, two):
        publishers = {
            f"{version}": await one.node.client(f"p{version}", version) for version in (4, 5)
        }
        subscribers = [
            await cell.node.client(f"s{version}", version)
            for cell in (one, two)
            for version in (4, 5)
        ]
        for subscriber in subscribers:
            await subscriber.subscribe(SubscriptionRequest("+/x", subscribed_qos))
        for number in range(1, total + 1):
            for name, publisher in publishers.items():
                qos = number // 3 % 2
                properties = {"Content-Type": "c"} if name == "5" and number % 7 == 0 else {}
                publisher.send(
                    Publish(
                        f"{name}/x",
                        b"%d" % number,
                        qos,
                        packet_id=number if qos else 0,
                        properties=properties,
                    )
                )
                if number % 5 == 0:
                    await publisher.drain()
        for subscriber in subscribers:
            packets = await receive(subscriber, 2 * total)
            for name in publishers:
                of_one = [packet for packet in packets if packet.topic == f"{name}/x"]
                assert [int(packet.payload) for packet in of_one] == list(range(1, total + 1))
                assert {packet.qos for packet in of_one} == {0, subscribed_qos}
            assert sum("Content-Type" in packet.properties for packet in packets) == (
                total // 7 if subscriber.version == 5 else 0
            )
        wanted = [number for number in range(1, total + 1) if number // 3 % 2]
        for publisher in publishers.values():
            assert [(await publisher.expect(PubAck)).packet_id for _ in wanted] == wanted


@on_loop
async def test_a_live_body_of_other_bytes_is_messages_or_one_error(tmp_path: Path) -> None:
    chance = Random(7)
    whole = [
        encode_packet(Publish(f"t/{number}", b"x" * number, qos, packet_id=qos), version)
        for number in (0, 1, 200)
        for qos in (0, 1)
        for version in (4, 5)
    ]
    errors = 0
    async with cells(1, tmp_path) as (one,):
        hub = one.node.server.hub
        subscriber = await one.node.client("s", 5)
        await subscriber.subscribe(SubscriptionRequest("#", 1))
        for _ in range(2000):
            marks = (MARK_V3, MARK_V5, MARK_LETTER, MARK_TRACE + chance.randbytes(24))
            pieces = [*chance.choices(whole, k=3), *chance.choices(marks, k=2)]
            chance.shuffle(pieces)
            body = bytearray(b"".join(pieces))
            if chance.random() < 0.2:
                del body[chance.randrange(1, len(body)) :]
            for _ in range(chance.randrange(4)):
                body[chance.randrange(len(body))] = chance.randrange(256)
            inbox = Inbox(hub, OwnRoutes(hub), lambda _key: None)
            try:
                count, held = inbox.take_live(bytes(body), 0)
            except FrameError:
                errors += 1
            else:
                assert len(held) <= count
        assert 200 < errors < 1800


@on_loop
async def test_acknowledgements_keep_their_order_behind_messages_that_cross(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 4)
        near = await one.node.client("near", 4)
        away = await two.node.client("away", 4)
        await near.subscribe(SubscriptionRequest("near", 1))
        await near.subscribe(SubscriptionRequest("near0", 0))
        await away.subscribe(SubscriptionRequest("away", 1))
        topics = ("away", "near", "near0", "no one", "away", "near")
        for turn in range(10):
            ids = range(1, len(topics) + 1)
            publisher.send(
                *(
                    Publish(topic, b"%d" % turn, 1, packet_id=packet_id)
                    for topic, packet_id in zip(topics, ids, strict=True)
                )
            )
            assert [(await publisher.expect(PubAck)).packet_id for _ in ids] == list(ids)
        assert len(await receive(near, 30)) == 30
        assert len(await receive(away, 20)) == 20


@on_loop
async def test_a_filter_that_no_client_has_is_no_longer_sent(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        first, second = await two.node.client("1", 5), await two.node.client("2", 5)
        for subscriber in (first, second):
            await subscriber.subscribe(SubscriptionRequest("t", 1))
        first.send(Unsubscribe(9, ["t"]))
        await first.expect(UnsubAck)
        assert await publish(publisher, "t", b"x", 1, 1) == 0
        assert [packet.payload for packet in await receive(second, 1)] == [b"x"]
        await first.silence()
        await second.close()
        await one.node.until(lambda: not one.node.server.hub.router.remote("t"))
        assert await publish(publisher, "t", b"y", 1, 2) == 0x10


@on_loop
async def test_cells_are_no_clients(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        subscriber = await two.node.client("s", 5)
        await subscriber.subscribe(SubscriptionRequest("t", 1), SubscriptionRequest("$SYS/#", 1))
        router = one.node.server.hub.router
        assert [cell.name for cell, _ in router.remote("t")] == ["cell 1"]
        assert router.remote("$SYS/x") == []
        assert router.matching("t") == router.subscribed("t") == []
        assert router.subscription_count == 0
        publisher = await one.node.client("p", 5)
        await publish(publisher, "t", b"x", 0, 0)
        await receive(subscriber, 1)
        assert one.node.metrics.value("messages_sent", qos="0") == 0


@on_loop
async def test_a_will_reaches_the_clients_of_other_cells(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        subscriber = await two.node.client("s", 5)
        await subscriber.subscribe(SubscriptionRequest("gone", 1))
        leaver = await one.node.client("l", 5, will=Will("gone", b"l", 1))
        leaver.abort()
        assert [packet.payload for packet in await receive(subscriber, 1)] == [b"l"]


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_session_that_is_away_gets_everything_once_and_in_order(
    qos: int, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        subscriber = await two.node.client("s", 5, **_KEEPS)
        await subscriber.subscribe(SubscriptionRequest("t", 2))
        await subscriber.close()
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("#", 1))
        for number in range(1, 21):
            if number in (5, 6, 13):
                one.cut(1)
            assert await publish(publisher, "t", b"%d" % number, qos, number) == 0
        expected = [b"%d" % number for number in range(1, 21)]
        assert [packet.payload for packet in await receive(live, 20)] == expected
        await two.node.until(lambda: two.node.server.hub.session_log.log_next == 20)
        subscriber = await two.node.client("s", 5, **_KEEPS)
        assert [packet.payload for packet in await receive(subscriber, 20)] == expected
        await live.silence()


@pytest.mark.parametrize("killed", ["source", "receiver", "both"])
@on_loop
async def test_kills_lose_and_double_nothing_for_a_durable_session(
    killed: str, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as (one, two):
        subscriber = await two.node.client("s", 5, **_KEEPS)
        await subscriber.subscribe(SubscriptionRequest("t", 2))
        await subscriber.close()
        publisher = await one.node.client("p", 5, **_KEEPS)
        number = 0
        for _ in range(3):
            for _ in range(7):
                number += 1
                assert await publish(publisher, "t", b"%d" % number, 2, number) == 0
            for cell in (one, two):
                if killed in ("both", "source" if cell is one else "receiver"):
                    await cell.kill()
            for cell in (one, two):
                if not cell.is_running:
                    await cell.start()
            if killed != "receiver":
                await publisher.close()
                publisher = await one.node.client("p", 5, **_KEEPS)
        await linked([one, two])
        await two.node.until(lambda: two.node.server.hub.session_log.log_next >= number)
        subscriber = await two.node.client("s", 5, **_KEEPS)
        expected = [b"%d" % position for position in range(1, number + 1)]
        assert [packet.payload for packet in await receive(subscriber, number)] == expected


@pytest.mark.parametrize("killed", [False, True])
@on_loop
async def test_a_cell_sends_no_message_back_to_where_it_came_from(
    killed: bool, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as (one, two):
        names = {one: "one-1", two: "two-3"}
        assert [one.place.cell_of(name) for name in names.values()] == [0, 1]
        for cell, name in names.items():
            subscriber = await cell.node.client(name, 5, **_KEEPS)
            await subscriber.subscribe(SubscriptionRequest("t", 1))
            await subscriber.close()
        await linked([one, two])
        publisher = await one.node.client("p", 5)
        for number in range(1, 4):
            assert await publish(publisher, "t", b"%d" % number, 1, number) == 0
        await two.node.until(lambda: two.node.server.hub.session_log.log_next == 3)
        if killed:
            await one.kill()
            await one.start()
        else:
            two.cut(0)
        await linked([one, two])
        publisher = await two.node.client("p", 5)
        assert await publish(publisher, "t", b"4", 1, 4) == 0
        for cell, name in names.items():
            log = cell.node.server.hub.session_log
            await cell.node.until(lambda log=log: log.log_next >= 4)  # type: ignore[misc]
            subscriber = await cell.node.client(name, 5, **_KEEPS)
            got = [packet.payload for packet in await receive(subscriber, 4)]
            assert got == [b"1", b"2", b"3", b"4"]
            await subscriber.silence()


@pytest.mark.parametrize("keeps", [{}, _KEEPS], ids=["live", "durable"])
@on_loop
async def test_a_dead_letter_leads_to_no_other_in_another_cell(
    keeps: dict[str, Any], tmp_path: Path
) -> None:
    letters = DeadLetterSettings(causes=["rejected"])
    async with cells(2, tmp_path, dead_letter=letters) as (one, two):
        refusing = [
            (await one.node.client("s", 5), "t"),
            (await one.node.client("one-1", 5, **keeps), "$dead/#"),
            (await two.node.client("two-3", 5, **keeps), "$dead/#"),
        ]
        for client, topic_filter in refusing:
            await client.subscribe(SubscriptionRequest(topic_filter, 1))
        await linked([one, two])
        publisher = await one.node.client("p", 5)
        assert await publish(publisher, "t", b"lost", 1, 1) == 0
        for client, _ in refusing:
            packet = await client.expect(Publish)
            client.send(PubAck(packet.packet_id, 0x83))
        for client, _ in refusing:
            await client.silence()
        for cell, published in ((one, 1), (two, 0)):
            assert cell.node.metrics.value("dead_letters_published") == published


@on_loop
async def test_what_is_published_while_a_cell_is_away_waits_for_it(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        subscriber = await two.node.client("s", 5, **_KEEPS)
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        await subscriber.close()
        await two.kill()
        publisher = await one.node.client("p", 5)
        assert await publish(publisher, "t", b"1", 1, 1) == 0
        await one.kill()  # the filters of the other cell are in this one's store
        await one.start()
        publisher = await one.node.client("p", 5)
        assert await publish(publisher, "t", b"2", 1, 1) == 0
        await two.start()
        subscriber = await two.node.client("s", 5, **_KEEPS)
        assert [packet.payload for packet in await receive(subscriber, 2)] == [b"1", b"2"]


@on_loop
async def test_a_publisher_waits_for_a_slow_subscriber_of_another_cell_and_others_do_not(
    tmp_path: Path,
) -> None:
    limits = {"max_inflight": 1, "max_queued_messages": 4}
    async with cells(2, tmp_path, **limits) as (one, two):
        slow = await two.node.client("slow", 5)
        quick = await two.node.client("quick", 5)
        await slow.subscribe(SubscriptionRequest("slow", 1))
        await quick.subscribe(SubscriptionRequest("quick", 1))
        publisher = await one.node.client("p", 5)
        publisher.send(*(Publish("slow", b"%d" % n, 1, packet_id=n) for n in range(1, 21)))
        other = await one.node.client("o", 5)
        for number in range(1, 31):
            assert await publish(other, "quick", b"%d" % number, 1, number) == 0
            await receive(quick, 1)
        acknowledged = 0
        while one.node.metrics.value("acknowledgements_withheld") > 20 - acknowledged:
            acknowledged += 1
            await publisher.expect(PubAck)
        assert 0 < one.node.metrics.value("acknowledgements_withheld") < 20
        got = await receive(slow, 20)
        assert [packet.payload for packet in got] == [b"%d" % n for n in range(1, 21)]
        for packet_id in range(acknowledged + 1, 21):
            assert (await publisher.expect(PubAck)).packet_id == packet_id
        assert two.node.metrics.value("deliveries_dropped", reason="queue_full") == 0


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("seed", range(3))
@on_loop
async def test_a_cut_link_loses_doubles_and_reorders_nothing(
    seed: int, qos: int, tmp_path: Path
) -> None:
    chance = Random(seed)
    total = 60
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5 - (seed + qos) % 2)
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 2))
        if seed:  # by the session log, and not live
            kept = await two.node.client("kept", 5, **_KEEPS)
            await kept.subscribe(SubscriptionRequest("+", 2))
        for number in range(1, total + 1):
            publisher.send(Publish("t", b"%d" % number, qos, packet_id=number))
            if number % 6 == 0:
                await publisher.drain()
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                chance.choice((partial(one.cut, 1), partial(two.cut, 0)))()
                if chance.random() < 0.7:
                    await linked([one, two])
        expected = list(range(1, total + 1))
        for subscriber in (live, kept) if seed else (live,):
            packets = await receive(subscriber, total)
            assert [int(packet.payload) for packet in packets] == expected
        for number in expected:
            heard = await publisher.expect(PubAck if qos == 1 else PubRec)
            assert heard.packet_id == number
        if qos == 1:
            await live.silence()


@pytest.mark.parametrize(("qos", "options"), [(1, _KEEPS), (2, {})])
@on_loop
async def test_messages_keep_their_order_when_those_who_get_them_by_the_log_come_and_go(
    qos: int, options: dict[str, Any], tmp_path: Path
) -> None:
    total = 200
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 1))
        other = await two.node.client("other", 5, **options)
        for number in range(1, total + 1):
            publisher.send(Publish("t", b"%d" % number, qos, packet_id=number))
            if number % 20 == 10:
                await other.subscribe(SubscriptionRequest("t", qos))
            if number % 20 == 0:
                other.send(Unsubscribe(number, ["t"]))
        packets = await receive(live, total)
        assert [int(packet.payload) for packet in packets] == list(range(1, total + 1))


@on_loop
async def test_what_comes_live_waits_for_what_came_by_the_log_before(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 1))
        once = await two.node.client("once", 5)
        await once.subscribe(SubscriptionRequest("t", 2))
        await linked([one, two])
        one.store.allow.clear()
        publisher.send(Publish("t", b"1", 2, packet_id=1))
        await publisher.silence()
        once.send(Unsubscribe(1, ["t"]))
        await once.expect(UnsubAck)
        await linked([one, two])
        publisher.send(Publish("t", b"2", 2, packet_id=2))
        await publisher.silence()
        one.store.allow.set()
        assert [packet.payload for packet in await receive(live, 2)] == [b"1", b"2"]


async def fail_commits(cell: Cell, publisher: WireClient, count: int) -> None:
    """Let the commits that wait fail, with so many messages of a publisher, and those after them go through."""
    cell.store.fails = True
    cell.store.allow.set()
    for _ in range(count):
        assert (await publisher.expect(PubAck)).reason_code == 0x97
    cell.store.fails = False
    cell.node.writer.touch()
    await until(lambda: cell.node.writer.failure is None)


@on_loop
async def test_what_comes_live_waits_for_no_record_whose_commit_failed(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 1))
        kept = await two.node.client("kept", 5, **_KEEPS)
        await kept.subscribe(SubscriptionRequest("t", 1))
        await linked([one, two])
        one.store.allow.clear()
        publisher.send(Publish("t", b"1", 1, packet_id=1))
        await publisher.silence()
        kept.send(Unsubscribe(1, ["t"]))
        router = one.node.server.hub.router
        await until(lambda: [cell.is_durable for cell, _ in router.remote("t")] == [False])
        await fail_commits(one, publisher, 1)
        assert await publish(publisher, "t", b"2", 1, 2) == 0
        assert [packet.payload for packet in await receive(live, 1)] == [b"2"]


@on_loop
async def test_a_qos2_message_whose_commit_failed_comes_once_to_those_of_any_cell(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 4, clean_start=False)
        here, there = await one.node.client("here", 5), await two.node.client("there", 5)
        for client in (here, there):
            await client.subscribe(SubscriptionRequest("t", 2))
        await linked([one, two])
        await one.node.written()
        one.store.allow.clear()
        message = Publish("t", b"1", 2, packet_id=1)
        publisher.send(message)
        assert (await here.expect(Publish)).payload == b"1"
        one.store.fail_once_then_allow()
        await publisher.closed()
        await until(lambda: one.store.failed_commits and one.node.writer.failure is None)
        publisher = await one.node.client("p", 4, clean_start=False)
        publisher.send(replace(message, dup=True))
        assert await publisher.expect(PubRec) == PubRec(1)
        assert (await there.expect(Publish)).payload == b"1"
        for client in (here, there):
            await client.silence()


@pytest.mark.parametrize("restarts", [False, True])
@on_loop
async def test_a_filter_that_came_behind_records_whose_commit_failed_holds_from_their_offsets_on(
    restarts: bool, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as (one, two):
        near = await one.node.client("near", 5, **_KEEPS)
        await near.subscribe(SubscriptionRequest("near", 1))
        publisher = await one.node.client("p", 5)
        await linked([one, two])
        await one.node.written()
        one.store.allow.clear()
        publisher.send(*(Publish("near", b"x", 1, packet_id=n) for n in range(1, 4)))
        await publisher.silence()
        kept = await two.node.client("kept", 5, **_KEEPS)
        kept.send(Subscribe(1, [SubscriptionRequest("t", 1)]))
        await until(lambda: one.node.server.hub.router.remote("t"))
        await two.node.written()
        await two.kill()
        await fail_commits(one, publisher, 3)
        if restarts:
            await one.kill()
            await one.start()
            publisher = await one.node.client("p", 5)
        for number in (1, 2):
            assert await publish(publisher, "t", b"%d" % number, 1, number) == 0
        await two.start()
        kept = await two.node.client("kept", 5, **_KEEPS)
        assert [packet.payload for packet in await receive(kept, 2)] == [b"1", b"2"]


@on_loop
async def test_a_cell_that_restarts_knows_the_filters_of_others_before_it_takes_clients(
    tmp_path: Path,
) -> None:
    async with cells(3, tmp_path) as joined:
        for source in joined:
            subscribers = [
                await cell.node.client(f"s{source.place.number}", 5)
                for cell in joined
                if cell is not source
            ]
            for subscriber in subscribers:
                await subscriber.subscribe(SubscriptionRequest("t", 1))
            await source.kill()
            await source.start()
            publisher = await source.node.client("p", 5)
            assert await publish(publisher, "t", b"x", 1, 1) == 0
            for subscriber in subscribers:
                assert [packet.payload for packet in await receive(subscriber, 1)] == [b"x"]


@on_loop
async def test_live_subscribers_of_a_cell_that_restarts_are_gone(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        publisher = await one.node.client("p", 5)
        subscriber = await two.node.client("s", 5)
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        await two.kill()
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        await two.start()
        assert (await publisher.expect(PubAck)).reason_code == 0
        await linked(joined)
        await one.node.until(lambda: not one.node.server.hub.router.remote("t"))
        assert one.node.metrics.value("cell_messages_dropped", peer="1", reason="link_lost") == 1


@on_loop
async def test_what_one_cell_has_sent_the_other_has_received(tmp_path: Path) -> None:
    """Live messages in runs, alone, with properties and of each QoS, and records for a session on disk."""
    chance = Random(3)
    async with cells(2, tmp_path) as joined:
        for here, there in (joined, reversed(joined)):
            publisher = await here.node.client("p", 5)
            for number, keeps in enumerate(({}, _KEEPS)):
                subscriber = await there.node.client(f"s{number}", 5, **keeps)
                await subscriber.subscribe(SubscriptionRequest("t/#", 2))
            await here.node.until(partial(_is_told, here))
            for number in range(300):
                properties = {"Content-Type": "x"} if chance.random() < 0.2 else {}
                topic = f"t/{chance.choice((1, 1, 1, 2))}"
                qos = chance.choice((0, 0, 0, 0, 1, 2))
                publisher.send(
                    Publish(
                        topic, b"%d" % number, qos, packet_id=number + 1 if qos else 0,
                        retain=chance.random() < 0.1, properties=properties,
                    )
                )  # fmt: skip
            for word in ("messages", "records"):
                await here.node.until(partial(_are_even, word, here, there))


def _are_even(word: str, here: Cell, there: Cell) -> bool:
    sent = here.node.metrics.value(f"cell_{word}_sent", peer=str(there.place.number))
    came = there.node.metrics.value(f"cell_{word}_received", peer=str(here.place.number))
    return sent == came > 0


def _is_told(cell: Cell) -> bool:
    return bool(cell.node.server.hub.router.remote("t/1"))


@on_loop
async def test_records_that_come_again_after_a_failed_commit_come_to_no_live_subscriber_again(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        live = await two.node.client("live", 5)
        kept = await two.node.client("kept", 5, **_KEEPS)
        for subscriber in (live, kept):
            await subscriber.subscribe(SubscriptionRequest("t", 2))
        await linked([one, two])
        two.store.fails = True
        assert await publish(publisher, "t", b"once", 2, 1) == 0
        failed = two.node.metrics.value
        await until(lambda: failed("store_groups_failed") > 1)
        two.store.fails = False
        for subscriber in (live, kept):
            [packet] = await receive(subscriber, 1)
            assert (packet.payload, packet.qos) == (b"once", 2)
            subscriber.send(PubComp((await subscriber.expect(PubRel)).packet_id))
        await live.silence()


@on_loop
async def test_a_log_that_cannot_be_read_for_a_moment_is_read_on(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        kept = await two.node.client("kept", 5, **_KEEPS)
        await kept.subscribe(SubscriptionRequest("t", 1))
        await linked([one, two])
        failed: list[str] = []
        one.store.failed_reads = failed
        one.cut(1)
        assert await publish(publisher, "t", b"once", 1, 1) == 0
        await until(lambda: "read" in failed)
        one.store.failed_reads = None
        [packet] = await receive(kept, 1)
        assert packet.payload == b"once"


class _Transport:
    """A connection of a link whose other end is the test."""

    def __init__(self) -> None:
        self.written: list[Frame] = []
        self.is_aborted = False
        self._decoder = FrameDecoder()

    def write(self, data: bytes) -> None:
        self.written.extend(self._decoder.feed(data))

    def abort(self) -> None:
        self.is_aborted = True

    def is_closing(self) -> bool:
        return self.is_aborted

    def set_write_buffer_limits(self, _high: int) -> None:
        pass

    def bodies(self, kind: type[S]) -> list[S]:
        """The structs of a kind that were written."""
        name = {Hello: FrameType.HELLO, Kept: FrameType.KEPT, Taken: FrameType.TAKEN}[kind]
        return [decoded(kind, frame) for frame in self.written if frame.type is name]


async def connecting(one: Cell, two: Cell) -> tuple[Channel, _Transport, Hello]:
    """A connection over which the first cell has said HELLO, and the answer of the second one, which is killed."""
    [link], [other] = one.links, two.links
    answer = other.hello()
    await two.kill()
    await until(lambda: not link.is_up)
    channel = Channel(one.links._common, link)
    transport = _Transport()
    channel.connection_made(cast(Any, transport))
    return channel, transport, answer


@pytest.mark.parametrize("fails", [False, True])
@on_loop
async def test_a_commit_that_ends_between_both_hello(fails: bool, tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        subscriber = await one.node.client("s", 5, **_KEEPS)
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        publisher = await two.node.client("p", 5)
        await linked([one, two])
        await one.node.written()
        one.store.allow.clear()
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        [link] = one.links
        await until(lambda: link.receiver.came == 1)
        channel, transport, answer = await connecting(one, two)
        [said] = transport.bodies(Hello)
        assert (said.kept, said.came) == (0, 1)
        one.store.fail_once_then_allow() if fails else one.store.allow.set()
        groups = "store_groups_failed" if fails else "store_groups"
        before = one.node.metrics.value(groups)
        await until(lambda: one.node.metrics.value(groups) > before)
        if fails:  # the record would not be sent again
            assert transport.is_aborted
            return
        channel.data_received(encoded(answer))
        assert [kept.offset for kept in transport.bodies(Kept)] == [1]
        channel.connection_lost(None)


@on_loop
async def test_what_slow_subscribers_take_between_both_hello_is_told(tmp_path: Path) -> None:
    async with cells(2, tmp_path, max_inflight=1, max_queued_messages=4) as (one, two):
        slow = await one.node.client("slow", 5)
        await slow.subscribe(SubscriptionRequest("t", 1))
        publisher = await two.node.client("p", 5)
        publisher.send(*(Publish("t", b"%d" % n, 1, packet_id=n) for n in range(1, 9)))
        [link] = one.links
        await until(lambda: link.receiver.live_count == 8 and link.receiver.held)
        channel, transport, answer = await connecting(one, two)
        [said] = transport.bodies(Hello)
        await receive(slow, 8)
        await until(lambda: not link.receiver.held)
        channel.data_received(encoded(answer))
        await until(lambda: transport.bodies(Taken))
        [taken] = transport.bodies(Taken)
        assert (taken.before, sorted(taken.released)) == (8, said.held)
        channel.connection_lost(None)


@on_loop
async def test_a_filter_is_removed_without_a_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cells(2, tmp_path) as (one, two):
        live = await two.node.client("live", 5)
        await live.subscribe(*(SubscriptionRequest(f"live/{n}", 0) for n in range(1000)))
        kept = await two.node.client("kept", 5, **_KEEPS)
        names = [f"kept/{n}" for n in range(20)]
        await kept.subscribe(*(SubscriptionRequest(name, 1) for name in names))
        await linked([one, two])
        kind_of = Mock(wraps=Kind.of)
        monkeypatch.setattr(Kind, "of", kind_of)
        kept.send(Unsubscribe(1, names))
        await kept.expect(UnsubAck)
        await one.node.until(lambda: not one.node.server.hub.router.remote(names[-1]))
        assert kind_of.call_count < 1000


@on_loop
async def test_a_cell_whose_durable_sessions_ended_keeps_no_records_while_it_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.cluster.link.GRACE_S", 0)
    async with cells(2, tmp_path) as (one, two):
        remote = one.node.server.hub.router.remote
        for cell in (one, two):
            client = await cell.node.client(f"kept-{cell.place.number}", 5, **_KEEPS)
            await client.subscribe(SubscriptionRequest("t", 1))
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 1))
        two.node.end_session("kept-1")
        await one.node.until(lambda: not any(cell.is_durable for cell, _ in remote("t")))
        async with one.apart(two):
            await one.node.until(lambda: not remote("t"))
            publisher = await one.node.client("p", 5)
            assert await publish(publisher, "t", b"x", 1, 1) == 0
            [link] = one.links
            assert link.log.needed_from(0) == one.node.server.hub.session_log.log_next == 1


@on_loop
async def test_topics_of_as_many_levels_as_the_settings_allow_cross_cells(tmp_path: Path) -> None:
    topic = "/".join("x" * 150)
    async with cells(2, tmp_path, max_topic_levels=200) as (one, two):
        filters = ["#", topic, f"+{topic[1:]}", f"$share/g/{topic}"]
        subscribers = [
            await two.node.client(f"s{number}", 5, **_KEEPS) for number in range(len(filters))
        ]
        for subscriber, topic_filter in zip(subscribers, filters, strict=True):
            await subscriber.subscribe(SubscriptionRequest(topic_filter, 1))
        one.cut(1)
        await linked([one, two])
        publisher = await one.node.client("p", 5, will=Will(topic, b"2", 1))
        assert await publish(publisher, topic, b"1", 1, 1) == 0
        publisher.abort()
        for subscriber in subscribers:
            assert [packet.payload for packet in await receive(subscriber, 2)] == [b"1", b"2"]
        await two.kill()
        await two.start()
        for cell in (one, two):
            assert cell.node.metrics.value("cell_bad_frames") == 0
        assert len(two.node.server.hub.sessions.by_client_id["s1"].subscriptions) == 1


@on_loop
async def test_records_before_one_that_breaks_the_rules_do_not_come_again(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (_, two):
        kept = await two.node.client("kept", 5, **_KEEPS)
        await kept.subscribe(SubscriptionRequest("t", 2))
        [link] = two.links
        records = [LoggedRecord(at, 0, "t#"[at], b"x", 2, False, "p") for at in range(2)]
        [frame] = FrameDecoder().feed(encoded(LogRecords(records, 2)))
        with pytest.raises(FrameError):
            link.take(frame)
        assert len(await receive(kept, 1)) == 1
        await two.node.writer.committed()
        assert Positions(two.node.writer).at(0)[1] == 1


@on_loop
async def test_live_subscribers_get_what_was_published_with_qos_2_while_their_cell_was_away(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 2))
        async with one.apart(two):
            assert await publish(publisher, "t", b"once", 2, 1) == 0
            for _ in range(3):
                one.node.pass_time(31)
            await one.node.writer.committed()
        assert [packet.payload for packet in await receive(live, 1)] == [b"once"]
        await live.expect(PubRel)
        await live.silence()


@pytest.mark.parametrize("kind", ["live", "removed"])
@on_loop
async def test_live_subscribers_get_what_waited_for_a_durable_session_that_ended(
    kind: str, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        kept = await two.node.client("kept", 5, **_KEEPS)
        await kept.subscribe(SubscriptionRequest("t", 1))
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t" if kind == "live" else "#", 1))
        async with one.apart(two):
            assert await publish(publisher, "t", b"1", 1, 1) == 0
            two.node.end_session("kept")
        await linked([one, two])
        assert await publish(publisher, "t", b"2", 1, 1) == 0
        for expected in (b"1", b"2"):
            assert [packet.payload for packet in await receive(live, 1)] == [expected]
        await live.silence()


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_durable_session_that_comes_doubles_nothing_for_live_subscribers(
    qos: int, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as (one, two):
        own = await one.node.client("own", 5, **_KEEPS)
        await own.subscribe(SubscriptionRequest("t", 2))
        publisher = await one.node.client("p", 5)
        live = await two.node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 2))
        kept = await two.node.client("kept", 5, **_KEEPS)
        async with one.apart(two):
            publisher.send(Publish("t", b"1", qos, packet_id=1))
            assert [packet.payload for packet in await receive(own, 1)] == [b"1"]
            await kept.subscribe(SubscriptionRequest("t", 2))
        await linked([one, two])
        publisher.send(Publish("t", b"2", qos, packet_id=2))
        assert [packet.payload for packet in await receive(live, 2)] == [b"1", b"2"]


@on_loop
async def test_many_filters_are_told_and_removed_in_many_turns_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = 500
    monkeypatch.setattr("broker.cluster.link.GRACE_S", 0)
    monkeypatch.setattr("broker.cluster.remote_routes._FILTERS", 100)
    async with cells(2, tmp_path) as (one, two):
        live = await two.node.client("live", 5)
        names = [f"t/{number}" for number in range(total)]
        await live.subscribe(*(SubscriptionRequest(name, 0) for name in names))
        router = one.node.server.hub.router
        clock = one.clock.monotonic_s
        turn = 0
        told: Counter[int] = Counter()
        removed: Counter[int] = Counter()

        def count(counted: Counter[int]) -> None:
            counted[turn] += 1
            asyncio.get_running_loop().call_soon(end_turn)

        def end_turn() -> None:
            nonlocal turn
            turn += 1

        def later() -> float:
            one.clock.move(0.001)
            return clock()

        def send(peer: Peer, frame: bytes) -> None:
            if frame[4] == FrameType.ROUTES and peer.hub is two.node.server.hub:
                count(told)
            sent(peer, frame)

        def remove(cell: Any, topic_filter: TopicFilter) -> None:
            count(removed)
            taken(cell, topic_filter)

        sent = Peer.send
        taken = router.remove_remote
        monkeypatch.setattr(one.clock, "monotonic_s", later)
        monkeypatch.setattr(Peer, "send", send)
        monkeypatch.setattr(router, "remove_remote", remove)
        async with one.apart(two):
            await until(lambda: not router.remote(names[-1]))
        await linked([one, two])
        assert all(map(router.remote, names))
        assert sum(told.values()) == len(told) > 4
        assert sum(removed.values()) == total
        assert max(removed.values()) < 20
        removed.clear()
        await two.kill()
        await two.start()
        await until(lambda: not any(map(router.remote, names)))
        assert max(removed.values()) < 20


@on_loop
async def test_a_log_with_a_record_that_does_not_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        kept = await two.node.client("kept", 5, **_KEEPS)
        await kept.subscribe(SubscriptionRequest("t", 1))
        monkeypatch.setattr("broker.cluster.log_sender._AGAIN_S", 0)
        read = Mock(side_effect=CorruptFrame("log 1", 0, "the frame is missing"))
        async with one.apart(two):
            assert await publish(publisher, "t", b"once", 1, 1) == 0
            monkeypatch.setattr(one.store, "read", read)
        await until(lambda: read.called)
        monkeypatch.undo()
        assert [packet.payload for packet in await receive(kept, 1)] == [b"once"]


@on_loop
async def test_no_more_of_the_log_is_read_than_the_other_cell_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total, size = 60, 4096
    monkeypatch.setattr("broker.cluster.log_sender.MAX_UNKEPT_BYTES", 8 * size)
    async with cells(2, tmp_path) as (one, two):
        [link] = one.links
        publisher = await one.node.client("p", 5)
        kept = await two.node.client("kept", 5, **_KEEPS)
        await kept.subscribe(SubscriptionRequest("t", 1))
        counts: list[int] = []
        unkept: list[int] = []
        read = one.store.read
        send = link.log.flush

        def reading(shard: LogShard, start: int, limit: int) -> Sequence[tuple[int, StreamRecord]]:
            records = read(shard, start, limit)
            counts.append(len(records))
            return records

        def sending() -> None:
            unkept.append(link.log._unkept_bytes)
            send()

        async with one.apart(two):
            for number in range(1, total + 1):
                assert await publish(publisher, "t", bytes(size), 1, number) == 0
            monkeypatch.setattr(one.store, "read", reading)
            monkeypatch.setattr(link.log, "flush", sending)
        assert len(await receive(kept, total)) == total
        assert max(unkept) < 10 * size
        assert sum(counts) < 3 * total


@on_loop
async def test_cells_link_however_many_messages_slow_subscribers_hold(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        [link] = two.links
        link.receiver.held.update(range(70_000))
        two.cut(0)
        await until(lambda: not one.links.has(1))
        await linked([one, two])
        for cell in (one, two):
            assert cell.node.metrics.value("cell_bad_frames") == 0
