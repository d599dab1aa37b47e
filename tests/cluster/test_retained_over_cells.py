"""Retained messages over several cells: each has those of its topics, and clients see one broker."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from broker.cluster.frames import FrameType
from broker.codec.packets import (
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from broker.core.cells import Place
from broker.core.client import Client
from broker.core.message import Message
from broker.routing.settings import RetainedSettings
from tests.support.linked_cells import Cell, cells, linked
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from tests.support.wire import WireClient

_KEEPS: dict[str, Any] = {
    "clean_start": False,
    "properties": {"Session-Expiry-Interval": 3600},
}


def topics_of(place: Place, cell: int, number: int, prefix: str = "t") -> list[str]:
    """So many topics whose retained messages a cell has."""
    names = (f"{prefix}/{at}" for at in count())
    own = (name for name in names if place.cell_of(name) == cell)
    return [next(own) for _ in range(number)]


async def retain(
    client: WireClient, topic: str, payload: bytes, qos: int = 1, packet_id: int = 1, **more: Any
) -> int:
    """Publish with RETAIN and wait for the acknowledgement; its reason code."""
    client.send(Publish(topic, payload, qos, True, packet_id=packet_id if qos else 0, **more))
    if not qos:
        return 0
    heard: Any = await client.expect(PubAck if qos == 1 else PubRec)
    if qos == 2 and heard.reason_code < 0x80:
        client.send(PubRel(packet_id))
        await client.expect(PubComp)
    return int(heard.reason_code)


async def found(
    client: WireClient, topic_filter: str, number: int, qos: int = 1
) -> dict[str, bytes]:
    """So many retained messages that a subscription brings, and nothing more."""
    assert await client.subscribe(SubscriptionRequest(topic_filter, qos)) == [qos]
    received: dict[str, bytes] = {}
    while len(received) < number:
        packet = await client.expect(Publish)
        assert packet.retain
        assert packet.topic not in received
        received[packet.topic] = packet.payload
        if packet.qos == 1:
            client.send(PubAck(packet.packet_id))
        elif packet.qos == 2:
            client.send(PubRec(packet.packet_id))
            await client.expect(PubRel)
            client.send(PubComp(packet.packet_id))
    await client.silence()
    return received


def counts(joined: list[Cell]) -> list[int]:
    return [cell.node.server.hub.retained.count for cell in joined]


@pytest.mark.parametrize("keeps", [{}, _KEEPS], ids=["clean", "durable"])
@on_loop
async def test_each_cell_has_the_messages_of_its_topics_and_all_are_found_anywhere(
    keeps: dict[str, Any], tmp_path: Path
) -> None:
    async with cells(3, tmp_path) as joined:
        topics = [topics_of(joined[0].place, cell, 3) for cell in range(3)]
        publishers = [await cell.node.client("p", 5) for cell in joined]
        expected = {}
        for cell in range(3):
            for number, publisher in enumerate(publishers):
                topic = topics[cell][number]
                expected[topic] = f"{cell} by {number}".encode()
                assert await retain(publisher, topic, expected[topic], number) in (0, 0x10)
        await joined[0].node.until(lambda: counts(joined) == [3, 3, 3])
        for number, at in enumerate(joined):
            client = await at.node.client(f"s{number}", 5, **keeps)
            assert await found(client, "t/#", 9) == expected
            [topic] = topics_of(joined[0].place, (number + 1) % 3, 1)
            other = await at.node.client(f"o{number}", 5, **keeps)
            assert await found(other, topic, 1) == {topic: expected[topic]}


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_message_that_cannot_be_sent_to_the_cell_of_its_topic_is_refused(
    qos: int, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as joined:
        one = joined[0]
        topic, later = topics_of(one.place, 1, 2)
        publisher = await one.node.client("p", 5)
        await one.node.writer.committed()
        one.store.fails = True
        assert await retain(publisher, topic, b"x", qos) == 0x97
        one.store.fails = False
        assert one.node.metrics.value("acknowledgements_withheld") == 0
        assert await retain(publisher, later, b"y", qos, 2) in (0, 0x10)


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_message_is_acknowledged_once_the_cell_of_its_topic_has_it_stored(
    qos: int, tmp_path: Path
) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        [topic] = topics_of(one.place, 1, 1)
        publisher = await one.node.client("p", 5)
        two.store.allow.clear()
        publisher.send(Publish(topic, b"x", qos, True, packet_id=1))
        await publisher.silence()
        two.store.allow.set()
        heard: Any = await publisher.expect(PubAck if qos == 1 else PubRec)
        assert heard.reason_code == 0
        assert two.node.server.hub.retained.waiting == 0


@on_loop
async def test_the_message_that_was_acknowledged_last_is_retained(tmp_path: Path) -> None:
    async with cells(3, tmp_path) as joined:
        [topic] = topics_of(joined[0].place, 2, 1)
        publishers = [await cell.node.client("p", 5) for cell in joined]
        for number in range(30):
            payload = b"%d" % number
            await retain(publishers[number * 7 % 3], topic, payload, 1 + number % 2, number + 1)
            client = await joined[number % 3].node.client(f"s{number}", 5)
            assert await found(client, topic, 1) == {topic: payload}


@on_loop
async def test_an_empty_payload_deletes(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        [topic] = topics_of(joined[0].place, 1, 1)
        publisher = await joined[0].node.client("p", 5)
        await retain(publisher, topic, b"x")
        assert counts(joined) == [0, 1]
        await retain(publisher, topic, b"")
        assert counts(joined) == [0, 0]
        client = await joined[0].node.client("s", 5)
        await found(client, "#", 0)


@on_loop
async def test_messages_of_a_publisher_keep_their_order_whatever_their_qos(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        [topic] = topics_of(joined[0].place, 1, 1)
        publisher = await joined[0].node.client("p", 5)
        for number in range(1, 60):
            qos = number % 3
            publisher.send(
                Publish(topic, b"%d" % number, qos, True, packet_id=number if qos else 0)
            )
        await retain(publisher, topic, b"last", 0)
        retained = joined[1].node.server.hub.retained
        await joined[0].node.until(
            lambda: (message := retained.get(topic)) is not None and message.payload == b"last"
        )


@on_loop
async def test_a_will_is_retained_by_the_cell_of_its_topic(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        [topic] = topics_of(joined[0].place, 1, 1)
        client = await joined[0].node.client("w", 5, will=Will(topic, b"gone", 1, True))
        client.abort()
        await joined[0].node.until(lambda: counts(joined) == [0, 1])


@on_loop
async def test_all_of_a_message_is_retained(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        [topic] = topics_of(joined[0].place, 1, 1)
        publisher = await joined[0].node.client("p", 5)
        properties = {
            "Content-Type": "text",
            "Correlation-Data": b"\0\1",
            "Message-Expiry-Interval": 100,
            "User-Property": [("k", "v"), ("k", "w")],
        }
        await retain(publisher, topic, b"x", properties=properties)
        message = joined[1].node.server.hub.retained.get(topic)
        assert message is not None
        assert (message.client.client_id, message.qos, message.retain) == ("p", 1, True)
        joined[0].node.clock.move(10)
        client = await joined[0].node.client("s", 5)
        await client.subscribe(SubscriptionRequest(topic, 0))
        packet = await client.expect(Publish)
        assert (packet.qos, packet.retain) == (0, True)
        assert packet.properties == {**properties, "Message-Expiry-Interval": 90}
        joined[0].node.clock.move(100)
        late = await joined[0].node.client("late", 5)
        await found(late, topic, 0)
        joined[1].node.pass_time(1)
        assert counts(joined) == [0, 0]


@on_loop
async def test_limits_are_of_all_cells_and_the_publisher_hears_of_them(tmp_path: Path) -> None:
    async with cells(2, tmp_path, retained=RetainedSettings(max_messages=3)) as joined:
        first, second = (topics_of(joined[0].place, cell, 3) for cell in range(2))
        publisher = await joined[0].node.client("p", 5)
        assert await retain(publisher, first[0], b"x", 1) in (0, 0x10)
        assert await retain(publisher, second[0], b"x", 2) == 0
        assert await retain(publisher, second[1], b"x", 1) == 0
        for qos in (1, 2):
            await joined[0].node.until(
                lambda: [cell.links.retained.count for cell in joined] == [2, 1]
            )
            assert await retain(publisher, second[2], b"x", qos, 10 + qos) == 0x97
            assert await retain(publisher, first[2], b"x", qos, 20 + qos) == 0x97
        assert await retain(publisher, second[1], b"y", 1) == 0
        await retain(publisher, second[2], b"x", 0)
        await retain(publisher, second[1], b"z", 1)
        assert joined[0].node.metrics.value("messages_refused", reason="retained_full") == 5
        old = await joined[0].node.client("old", 4)
        assert await retain(old, second[2], b"x", 2) == 0
        assert counts(joined) == [1, 2]
        assert await retain(publisher, second[1], b"", 1) == 0
        assert await retain(publisher, second[2], b"x", 2) == 0


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("lost", [(FrameType.KEPT,), (FrameType.KEPT, FrameType.RETAINED_TOLD)])
@on_loop
async def test_the_publisher_hears_of_a_limit_although_the_link_breaks(
    lost: tuple[FrameType, ...], commits: bool, tmp_path: Path
) -> None:
    async with cells(2, tmp_path, retained=RetainedSettings(max_messages=1)) as joined:
        one, two = joined
        first, second = topics_of(one.place, 1, 2)
        publisher = await one.node.client("p", 5)
        assert await retain(publisher, first, b"x") == 0
        [link] = two.links
        write: Any = link._peer._write
        link._peer._write = lambda data: None if data[4] in lost else write(data)
        two.store.allow.set() if commits else two.store.allow.clear()
        publisher.send(Publish(second, b"x", 1, True, packet_id=2))
        await until(lambda: (link.receiver.kept if commits else link.receiver.came) == 2)
        await publisher.silence()
        one.cut(1)
        await linked(joined)
        two.store.allow.set()
        heard = await publisher.expect(PubAck)
        assert (heard.packet_id, heard.reason_code) == (2, 0x97)
        assert await retain(publisher, first, b"y") == 0
        one.cut(1)
        await linked(joined)
        assert await retain(publisher, first, b"z") == 0
        assert one.node.metrics.value("messages_refused", reason="retained_full") == 1


@on_loop
async def test_retain_handling(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        [topic] = topics_of(joined[0].place, 1, 1)
        publisher = await joined[0].node.client("p", 5)
        await retain(publisher, topic, b"x")
        client = await joined[0].node.client("s", 5)
        for handling, expected in ((2, 0), (1, 0), (0, 1), (1, 0), (0, 1)):
            request = SubscriptionRequest(topic, 1, retain_handling=handling)
            await client.subscribe(request)
            for _ in range(expected):
                packet = await client.expect(Publish)
                client.send(PubAck(packet.packet_id))
            await client.silence()
        fresh = await joined[0].node.client("fresh", 5)
        await fresh.subscribe(SubscriptionRequest(topic, 1, retain_handling=1))
        assert (await fresh.expect(Publish)).retain


@on_loop
async def test_the_suback_comes_first_then_what_is_retained_then_what_is_live(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as joined:
        [topic] = topics_of(joined[0].place, 1, 1)
        publisher = await joined[1].node.client("p", 5)
        await retain(publisher, topic, b"retained")
        for number, keeps in enumerate(({}, _KEEPS) * 10):
            client = await joined[0].node.client(f"s{number}", 5, **keeps)
            client.send(Subscribe(1, [SubscriptionRequest("t/+", 1)]))
            assert isinstance(await client.receive(), SubAck)
            publisher.send(Publish(topic, b"live", 1, packet_id=9))
            heard: list[Any] = [await client.receive() for _ in range(2)]
            assert [(packet.payload, packet.retain) for packet in heard] == [
                (b"retained", True),
                (b"live", False),
            ], number
            await publisher.expect(PubAck)
            await client.close()
            joined[0].node.end_session(f"s{number}") if keeps else None


@on_loop
async def test_many_come_in_slices(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        for number in range(1500):
            topic = f"t/{number}"
            [owner] = [cell for cell in joined if cell.place.has(topic)]
            owner.node.server.hub.retained.retain(
                Message(topic, b"%d" % number, 1, True, Client("x"), owner.node.clock.now_ns())
            )
        for cell in joined:
            await cell.node.writer.committed()
        for name, keeps in (("clean", {}), ("durable", _KEEPS)):
            client = await joined[0].node.client(name, 5, **keeps)
            assert len(await found(client, "t/+", 1500)) == 1500


@on_loop
async def test_a_cell_that_is_away_does_not_hold_a_session_up_and_its_messages_come_later(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        [here], [there] = (topics_of(one.place, cell, 1) for cell in range(2))
        publisher = await one.node.client("p", 5)
        await retain(publisher, here, b"here")
        await retain(publisher, there, b"there")
        await two.kill()
        await one.node.until(lambda: not any(link.is_up for link in one.links))
        clean = await one.node.client("clean", 5)
        durable = await one.node.client("durable", 5, **_KEEPS)
        for client in (clean, durable):
            assert await found(client, "t/#", 1) == {here: b"here"}
        await two.start()
        await linked(joined)
        for client in (clean, durable):
            packet = await client.expect(Publish)
            assert (packet.topic, packet.payload, packet.retain) == (there, b"there", True)
            client.send(PubAck(packet.packet_id))
            await client.silence()


@on_loop
async def test_cells_that_come_back_one_right_after_the_other_send_what_they_have(
    tmp_path: Path,
) -> None:
    """Both were lost while they were asked; the second one is back while all settle for the first one."""
    async with cells(4, tmp_path) as joined:
        one, slow, *lost = joined
        topics = [topics_of(one.place, cell, 1)[0] for cell in range(4)]
        late = topics_of(one.place, 1, 2)[1]
        publisher = await one.node.client("p", 5)
        for topic in topics:
            await retain(publisher, topic, b"x")
        for cell in lost:
            cell.links.retained.look_ups.answer = lambda *_: None  # type: ignore[method-assign]
        subscriber = await one.node.client("s", 5)
        assert await subscriber.subscribe(SubscriptionRequest("t/#", 0)) == [0]
        received = [(await subscriber.expect(Publish)).topic for _ in range(2)]
        assert sorted(received) == sorted(topics[:2])
        for cell in lost:
            await cell.kill()
        await one.node.until(lambda: sum(link.is_up for link in one.links) == 1)
        slow.store.allow.clear()
        publisher.send(Publish(late, b"x", 1, True, packet_id=9))
        await until(lambda: slow.node.server.hub.retained.waiting)
        for cell in lost:
            await cell.start()
        await one.node.until(lambda: all(link.is_up for link in one.links))
        slow.store.allow.set()
        later = [(await subscriber.expect(Publish)).topic for _ in range(3)]
        assert sorted(later) == sorted([late, *topics[2:]])
        await subscriber.silence()


@on_loop
async def test_a_look_up_waits_for_no_record_whose_commit_failed(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        [topic] = topics_of(one.place, 0, 1)
        publisher = await two.node.client("p", 5)
        two.store.allow.clear()
        publisher.send(Publish(topic, b"x", 1, True, packet_id=1))
        await publisher.silence()
        subscriber = await one.node.client("s", 5)
        subscriber.send(Subscribe(1, [SubscriptionRequest("t/#", 0)]))
        await until(lambda: two.node.server.hub.router.remote(topic))
        two.store.fails = True
        two.store.allow.set()
        await subscriber.expect(SubAck)
        assert two.links.retained._settling == []


@on_loop
async def test_what_was_asked_over_a_connection_is_answered_by_no_later_one(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        [topic] = topics_of(one.place, 1, 1)
        publisher = await two.node.client("p", 5)
        two.store.allow.clear()
        publisher.send(Publish(topic, b"x", 1, True, packet_id=1))
        await until(lambda: two.node.server.hub.retained.waiting)
        look_ups = two.links.retained.look_ups
        answer = look_ups.answer
        asked: list[Any] = []
        look_ups.answer = lambda *request: [asked.append(request), answer(*request)]  # type: ignore[assignment, method-assign, func-returns-value]
        question = asyncio.create_task(one.links.retained.among([topic]))
        await until(lambda: asked)
        one.cut(1)
        assert await question == set()
        await linked(joined)
        two.store.allow.set()
        assert (await publisher.expect(PubAck)).reason_code in (0, 0x10)
        assert await one.links.retained.among([topic]) == {topic}
        assert one.node.metrics.value("cell_bad_frames") == 0


@on_loop
async def test_what_is_published_while_the_cell_of_the_topic_is_away_is_retained_when_it_is_back(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        [topic] = topics_of(one.place, 1, 1)
        publisher = await one.node.client("p", 5)
        await two.kill()
        await one.node.until(lambda: not any(link.is_up for link in one.links))
        publisher.send(Publish(topic, b"x", 1, True, packet_id=1))
        publisher.send(Publish(topic, b"y", 0, True))
        await publisher.silence()
        client = await one.node.client("s", 5)
        await client.subscribe(SubscriptionRequest("#", 0))
        await two.start()
        assert (await publisher.expect(PubAck)).reason_code in (0, 0x10)
        await linked(joined)
        retained = two.node.server.hub.retained
        await one.node.until(
            lambda: (message := retained.get(topic)) is not None and message.payload == b"y"
        )


@on_loop
async def test_a_killed_publisher_cell_sends_what_it_had_stored(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        [topic] = topics_of(one.place, 1, 1)
        publisher = await one.node.client("p", 5)
        two.cut(0)
        two.store.allow.clear()
        publisher.send(Publish(topic, b"x", 1, True, packet_id=1))
        await one.node.until(lambda: one.node.server.hub.session_log.records)
        await one.kill()
        two.store.allow.set()
        await one.start()
        await linked(joined)
        await one.node.until(lambda: counts(joined) == [0, 1])


@on_loop
async def test_a_message_that_comes_while_the_store_cannot_be_read_comes_again(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        topics = topics_of(one.place, 1, 2)
        publisher = await one.node.client("p", 5)
        failed: list[str] = []
        two.store.failed_reads = failed
        for packet_id, topic in enumerate(topics, 1):
            publisher.send(Publish(topic, b"kept", 1, True, packet_id=packet_id))
        await until(lambda: len(failed) > 1)
        two.store.failed_reads = None
        for packet_id in (1, 2):
            assert (await publisher.expect(PubAck)).packet_id == packet_id
        reader = await two.node.client("s", 5)
        assert await found(reader, "t/#", 2) == dict.fromkeys(topics, b"kept")


@on_loop
async def test_a_subscribe_with_long_filters_breaks_no_link(tmp_path: Path) -> None:
    async with cells(2, tmp_path, max_packet_size=2 * 1024 * 1024) as joined:
        one, two = joined
        [topic] = topics_of(one.place, 1, 1)
        publisher = await one.node.client("p", 5)
        await retain(publisher, topic, b"x")
        client = await one.node.client("s", 5)
        long = [SubscriptionRequest(f"{at:02}/{'x' * 20_000}/+", 0) for at in range(63)]
        assert set(await client.subscribe(*long, SubscriptionRequest("t/#", 0))) == {0}
        assert (await client.expect(Publish)).topic == topic
        assert two.node.metrics.value("cell_bad_frames") == 0
