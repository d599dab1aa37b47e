"""Share groups with members in several cells: each message goes to one of them, as on one machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from broker.cluster import granted as granted_messages
from broker.cluster.frames import FrameType, Granted, Notice
from broker.cluster.shares import CellShares
from broker.codec.packets import (
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
from tests.support.linked_cells import Cell, cells, linked
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from tests.support.wire import WireClient

GROUP = "$share/g/t"
_KEEPS: dict[str, Any] = {
    "clean_start": False,
    "properties": {"Session-Expiry-Interval": 3600},
}


async def member(
    cell: Cell, name: str, qos: int = 1, text: str = GROUP, **connect: Any
) -> WireClient:
    client = await cell.node.client(name, 5, **connect)
    assert await client.subscribe(SubscriptionRequest(text, qos)) == [qos]
    return client


async def publish(client: WireClient, qos: int, *payloads: bytes, topic: str = "t") -> None:
    """Publish, and wait for each acknowledgement."""
    for number, payload in enumerate(payloads, 1):
        client.send(Publish(topic, payload, qos, packet_id=number if qos else 0))
        if qos == 1:
            assert (await client.expect(PubAck)).reason_code == 0
        elif qos == 2:
            assert (await client.expect(PubRec)).reason_code == 0
            client.send(PubRel(number))
            await client.expect(PubComp)


async def received(client: WireClient, count: int) -> list[Publish]:
    """So many messages, with every handshake finished."""
    packets: list[Publish] = []
    open_ids = set[int]()
    while len(packets) < count or open_ids:
        packet = await client.receive()
        if isinstance(packet, Publish):
            packets.append(packet)
            if packet.qos == 1:
                client.send(PubAck(packet.packet_id))
            elif packet.qos == 2:
                open_ids.add(packet.packet_id)
                client.send(PubRec(packet.packet_id))
        elif isinstance(packet, PubRel):
            open_ids.discard(packet.packet_id)
            client.send(PubComp(packet.packet_id))
    return packets


async def payloads(client: WireClient, count: int) -> list[bytes]:
    return [packet.payload for packet in await received(client, count)]


def held(cell: Cell, key: str = GROUP) -> int:
    """Messages of a group that this cell's part has, given out or not."""
    group = cell.node.server.hub.share_groups.groups[key]
    return group.waiting + group.in_flight


def granted(cell: Cell) -> float:
    """Messages that a cell sent for members of others."""
    metrics = cell.node.metrics
    return sum(counter.read() for counter in metrics.family("cell_shared_sent").values())


async def quiet(*joined: Cell, key: str = GROUP) -> None:
    """Wait until no part has anything unsettled."""
    await until(lambda: not any(held(cell, key) for cell in joined))


@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_a_member_in_another_cell_gets_each_message_once(tmp_path: Path, qos: int) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        client = await member(two, "m", qos)
        await publish(publisher, qos, *(b"%d" % n for n in range(20)))
        packets = await received(client, 20)
        assert [packet.payload for packet in packets] == [b"%d" % n for n in range(20)]
        assert not any(packet.dup for packet in packets)
        await client.silence()
        await quiet(one, two)


@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_a_group_with_members_in_each_cell_crosses_nothing(tmp_path: Path, qos: int) -> None:
    async with cells(2, tmp_path) as (one, two):
        members = [await member(one, "m1", qos), await member(two, "m2", qos)]
        for cell, client in zip((one, two), members, strict=True):
            publisher = await cell.node.client(f"p{cell.place.number}", 5)
            await publish(publisher, qos, b"a", b"b", b"c")
            assert await payloads(client, 3) == [b"a", b"b", b"c"]
        for client in members:
            await client.silence()
        for cell in (one, two):
            assert not granted(cell)


@on_loop
async def test_a_group_ends_in_all_cells_with_its_last_member(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        client = await member(two, "m")
        assert GROUP in one.node.server.hub.share_groups.groups
        client.send(Unsubscribe(9, [GROUP]))
        await client.expect(UnsubAck)
        await until(lambda: GROUP not in one.node.server.hub.share_groups.groups)
        assert GROUP not in two.node.server.hub.share_groups.groups
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        assert (await publisher.expect(PubAck)).reason_code == 0x10


@on_loop
async def test_the_messages_of_a_member_that_goes_are_given_to_one_in_another_cell(
    tmp_path: Path,
) -> None:
    async with cells(3, tmp_path) as (one, two, three):
        publisher = await one.node.client("p", 5)
        first = await member(two, "m2")
        await publish(publisher, 1, b"a", b"b")
        assert [(await first.expect(Publish)).payload for _ in range(2)] == [b"a", b"b"]
        other = await member(three, "m3")
        await other.silence()
        first.abort()
        packets = await received(other, 2)
        assert [(packet.payload, packet.dup) for packet in packets] == [(b"a", True), (b"b", True)]
        await quiet(one, three)


@on_loop
async def test_qos_2_stays_with_the_session_that_was_sent_it(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        first = await member(two, "m2", 2, **_KEEPS)
        await publish(publisher, 2, b"a")
        packet = await first.expect(Publish)
        other = await member(one, "m1", 2)
        first.abort()
        await two.node.until(lambda: two.node.server.hub.sessions.by_client_id["m2"].is_away)
        await publish(publisher, 2, b"b")
        assert await payloads(other, 1) == [b"b"]
        await other.silence()
        again = await two.node.client("m2", 5, **_KEEPS)
        resent = await again.expect(Publish)
        assert (resent.payload, resent.packet_id, resent.dup) == (b"a", packet.packet_id, True)
        again.send(PubRec(resent.packet_id))
        await again.expect(PubRel)
        again.send(PubComp(resent.packet_id))
        await quiet(one, two)


@on_loop
async def test_members_with_small_windows_get_what_waits_in_other_cells(tmp_path: Path) -> None:
    async with cells(3, tmp_path) as joined:
        narrow: dict[str, Any] = {"properties": {"Receive-Maximum": 1}}
        client = await member(joined[2], "m", **narrow)
        for cell in joined:
            publisher = await cell.node.client(f"p{cell.place.number}", 5)
            await publish(publisher, 1, *(b"%d-%d" % (cell.place.number, n) for n in range(30)))
        got = await payloads(client, 90)
        for cell in joined:
            own = [payload for payload in got if payload.startswith(b"%d-" % cell.place.number)]
            assert own == [b"%d-%d" % (cell.place.number, n) for n in range(30)]
        await quiet(*joined)


@on_loop
async def test_a_backlog_outlives_its_cell_and_is_drained_from_another(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        client = await member(two, "m", 2, **_KEEPS)
        client.abort()
        await two.node.until(lambda: two.node.server.hub.sessions.by_client_id["m"].is_away)
        publisher = await one.node.client("p", 5)
        for qos in (1, 2):
            await publish(publisher, qos, *(b"%d-%d" % (qos, n) for n in range(50)))
        assert (held(one), held(two)) == (100, 0)
        for cell in (one, two, one):
            await cell.kill()
            await cell.start()
        await linked([one, two])
        assert held(one) == 100
        again = await two.node.client("m", 5, **_KEEPS)
        packets = await received(again, 100)
        assert [packet.payload for packet in packets] == [
            b"%d-%d" % (qos, n) for qos in (1, 2) for n in range(50)
        ]
        await again.silence()
        await quiet(one, two)


@pytest.mark.parametrize("killed", [[0], [1], [0, 1], [1, 0]])
@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_what_a_session_on_disk_has_is_sent_again_after_kills(
    tmp_path: Path, qos: int, killed: list[int]
) -> None:
    async with cells(2, tmp_path) as joined:
        one, two = joined
        client = await member(two, "m", qos, **_KEEPS)
        publisher = await one.node.client("p", 5)
        await publish(publisher, qos, b"a", b"b", b"c")
        sent = [await client.expect(Publish) for _ in range(3)]
        client.send((PubAck if qos == 1 else PubRec)(sent[0].packet_id))
        if qos == 2:
            await client.expect(PubRel)
            client.send(PubComp(sent[0].packet_id))
        await client.silence()
        await two.node.written()
        for number in killed:
            await joined[number].kill()
        if 1 in killed:
            for number in reversed(killed):
                await joined[number].start()
            await linked(joined)
            client = await two.node.client("m", 5, **_KEEPS)
            again = [await client.expect(Publish) for _ in range(2)]
            assert [(p.payload, p.packet_id, p.dup) for p in again] == [
                (p.payload, p.packet_id, True) for p in sent[1:]
            ]
        else:
            await one.start()
            await linked(joined)
        for packet in sent[1:]:
            client.send((PubAck if qos == 1 else PubRec)(packet.packet_id))
            if qos == 2:
                await client.expect(PubRel)
                client.send(PubComp(packet.packet_id))
        await client.silence()
        await quiet(one, two)


@pytest.mark.parametrize("is_killed", [False, True], ids=["cut", "killed"])
@on_loop
async def test_a_refusal_that_was_taken_is_not_repeated_for_what_was_sent_after_it(
    tmp_path: Path, is_killed: bool
) -> None:
    async with cells(2, tmp_path) as (one, two):
        client = await member(two, "m", 2, **_KEEPS)
        part, has_member = _shares_of(one), _shares_of(two)
        part._hear = lambda: None  # type: ignore[method-assign]  # what is taken is not confirmed
        # as if it went and came back: what is on its way is refused
        has_member.held._turns[GROUP, "m"] = 1
        publisher = await one.node.client("p", 5)
        await publish(publisher, 2, b"a")
        packet = await client.expect(Publish)
        if is_killed:
            await one.kill()
            await one.start()
        else:
            one.cut(1)
        await linked([one, two])
        other = await member(one, "o", 2)
        await other.silence()
        client.send(PubRec(packet.packet_id))
        await client.expect(PubRel)
        client.send(PubComp(packet.packet_id))
        await quiet(one, two)
        await other.silence()


@on_loop
async def test_what_a_member_in_memory_refused_is_given_to_a_session_on_disk_once(
    tmp_path: Path,
) -> None:
    async with cells(3, tmp_path) as joined:
        one, two, three = joined
        await member(two, "refuses", 2)
        client = await member(three, "m", 2, **_KEEPS)
        part = _shares_of(two).held

        def refuse(granted: Granted) -> None:
            key, number = granted.group, granted.record.offset
            part._say((Notice.GONE, key, granted.client_id, number, 0))

        part._take_granted = refuse  # type: ignore[method-assign]
        publisher = await one.node.client("p", 5)
        texts = [b"%d" % number for number in range(4)]
        await publish(publisher, 2, *texts)
        for _ in texts:
            await client.expect(Publish)
        await three.node.written()
        await three.kill()
        other = await member(one, "o", 2)
        await three.start()
        await linked(joined)
        await other.silence()
        again = await three.node.client("m", 5, **_KEEPS)
        packets = await received(again, 4)
        assert sorted(packet.payload for packet in packets) == texts
        assert all(packet.dup for packet in packets)
        await quiet(one, three)


def _shares_of(cell: Cell) -> CellShares:
    """What a cell and the first other one tell each other about share groups."""
    link = min(cell.links, key=lambda link: link.number)
    return next(part for part in link.parts if isinstance(part, CellShares))


@on_loop
async def test_what_the_members_of_a_killed_cell_had_is_known_after_a_second_break(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as (one, two):
        client = await member(two, "m2", 2)
        publisher = await one.node.client("p", 5)
        await publish(publisher, 2, b"a")
        await client.expect(Publish)
        await two.kill()
        (link,) = one.links
        take = link.takers[FrameType.ANSWERS]
        link.takers[FrameType.ANSWERS] = lambda _: None  # the link breaks before they come
        await two.start()
        await linked([one, two])
        link.takers[FrameType.ANSWERS] = take
        one.cut(1)
        await linked([one, two])
        other = await member(one, "m1", 2)
        await other.silence()  # it may have been seen
        assert one.node.metrics.value("deliveries_dropped", reason="cell_ended") == 1


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_killed_cell_gives_back_what_its_members_in_memory_had(
    tmp_path: Path, qos: int
) -> None:
    async with cells(2, tmp_path) as (one, two):
        client = await member(two, "m2", qos)
        publisher = await one.node.client("p", 5)
        await publish(publisher, qos, b"a", b"b")
        for _ in range(2):
            await client.expect(Publish)
        other = await member(one, "m1", qos)
        await two.kill()
        await two.start()
        await linked([one, two])
        if qos == 1:
            packets = await received(other, 2)
            assert [(p.payload, p.dup) for p in packets] == [(b"a", True), (b"b", True)]
        else:  # it may have been seen
            await quiet(one)
            assert one.node.metrics.value("deliveries_dropped", reason="cell_ended") == 2
        await other.silence()
        await quiet(one)


@on_loop
async def test_a_cell_that_stays_away_keeps_no_message_of_qos_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_messages, "GRACE_S", 0.2)
    async with cells(2, tmp_path) as (one, two):
        for name, options in (("clean", {}), ("kept", _KEEPS)):
            client = await member(two, name, **options)
            publisher = await one.node.client("p", 5)
            await publish(publisher, 1, b"for " + name.encode())
            await client.expect(Publish)
            client.send(Unsubscribe(9, ["$share/none/t"]))
            await client.expect(UnsubAck)
            if name == "clean":
                client.send(PubAck(1))
                await quiet(one, two)
        other = await member(one, "m1")
        await other.silence()
        await two.kill()
        packets = await received(other, 1)
        assert [(p.payload, p.dup) for p in packets] == [(b"for kept", True)]
        group = one.node.server.hub.share_groups.groups[GROUP]
        await until(lambda: list(group.members) == ["kept", "m1"])
        await two.start()
        await linked([one, two])
        again = await two.node.client("kept", 5, **_KEEPS)
        await quiet(one, two)
        await again.silence()


@on_loop
async def test_answers_that_were_not_confirmed_are_told_again(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        client = await member(two, "m", 2, **_KEEPS)
        publisher = await one.node.client("p", 5)
        await publish(publisher, 2, b"a")
        packet = await client.expect(Publish)
        one.store.fails = True  # so that the answer is never confirmed
        client.send(PubRec(packet.packet_id))
        await client.expect(PubRel)
        client.send(PubComp(packet.packet_id))
        await client.silence()
        await two.node.written()
        await one.stop()
        await two.kill()
        one.store.fails = False
        await one.start()
        await two.start()
        await linked([one, two])
        other = await member(one, "m1", 2)
        await quiet(one, two)
        await other.silence()
        again = await two.node.client("m", 5, **_KEEPS)
        await again.silence()
        await two.node.writer.committed()
        assert not list(two.store.scan(b"share-settled/"))


@pytest.mark.parametrize("is_back", [False, True])
@on_loop
async def test_a_message_that_its_cell_does_not_know_belongs_to_a_group_that_ended(
    tmp_path: Path, is_back: bool
) -> None:
    async with cells(2, tmp_path) as (one, two):
        client = await member(two, "m", 2, **_KEEPS)
        publisher = await one.node.client("p", 5)
        await publish(publisher, 2, b"x")
        await client.expect(Publish)
        await two.node.written()
        await one.stop()
        await two.kill()
        await two.start()
        client = await two.node.client("m", 5, **_KEEPS)
        client.send(Unsubscribe(1, [GROUP]))
        await client.expect(UnsubAck)
        groups = two.node.server.hub.share_groups.groups
        assert GROUP not in groups
        if is_back:
            assert await client.subscribe(SubscriptionRequest(GROUP, 2)) == [2]
        [link] = two.links
        messages: Any = link.takers[FrameType.GRANTS].__self__  # type: ignore[attr-defined]
        [held_message] = messages._held.values()
        messages._forget_held(held_message)
        assert not messages._held
        assert not two.node.server.hub.sessions.by_client_id["m"].window.inflight
        assert [group.in_flight for group in groups.values()] == [0] * is_back


@on_loop
async def test_answers_are_confirmed_once_the_records_of_their_groups_are_written(
    tmp_path: Path,
) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        clients = [
            await member(two, name, 2, f"$share/g/{name}", **_KEEPS) for name in ("first", "second")
        ]
        packets = []
        for name, client in zip(("first", "second"), clients, strict=True):
            await publish(publisher, 2, b"x", topic=name)
            packets.append(await client.expect(Publish))
            client.send(PubRec(packets[-1].packet_id))
            await client.expect(PubRel)
        await one.node.written()
        [link] = one.links
        granted: Any = link.takers[FrameType.ANSWERS].__self__  # type: ignore[attr-defined]
        before = granted.safe
        one.store.allow.clear()
        # the commit group of the first waits, that of the second gathers
        clients[0].send(PubComp(packets[0].packet_id))
        await until(lambda: not held(one, "$share/g/first"))
        clients[1].send(PubComp(packets[1].packet_id))
        await until(lambda: not held(one, "$share/g/second"))
        written = asyncio.create_task(one.node.writer.committed())
        await asyncio.sleep(0)
        one.store.fail_once_then_allow()
        await written
        assert granted.safe == before
        one.node.writer.touch()
        await one.node.writer.committed()
        await until(lambda: granted.safe == granted._answers_taken)
    assert granted.safe > before


@on_loop
async def test_an_answer_whose_commit_failed_is_stored_with_the_next(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        client = await member(two, "m", 2, **_KEEPS)
        publisher = await one.node.client("p", 5)
        await publish(publisher, 2, b"a")
        packet = await client.expect(Publish)
        client.send(PubRec(packet.packet_id))
        await client.expect(PubRel)
        await two.node.written()
        await one.stop()  # so that the answer is not confirmed
        two.store.fails = True
        client.send(PubComp(packet.packet_id))
        window = two.node.server.hub.sessions.by_client_id["m"].window
        await until(lambda: two.node.writer.failure and not window.inflight)
        two.store.fails = False
        two.node.writer.touch()
        await until(lambda: two.node.writer.failure is None)
        await two.node.written()
        assert len(list(two.store.scan(b"share-settled/"))) == 1
        await one.start()
        await linked([one, two])
        await quiet(one, two)
        await client.silence()


@on_loop
async def test_what_is_granted_and_not_settled_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_messages, "MAX_GRANTED", 4)
    async with cells(2, tmp_path, max_inflight=100) as (one, two):
        client = await member(two, "m")
        publisher = await one.node.client("p", 5)
        await publish(publisher, 1, *(b"%d" % n for n in range(20)))
        sent = [await client.expect(Publish) for _ in range(4)]
        await client.silence()
        group = one.node.server.hub.share_groups.groups[GROUP]
        assert (group.in_flight, group.waiting) == (4, 16)
        for packet in sent:
            client.send(PubAck(packet.packet_id))
        assert await payloads(client, 16) == [b"%d" % n for n in range(4, 20)]
        await quiet(one, two)


@on_loop
async def test_qos_0_beyond_the_bound_of_a_link_is_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(granted_messages, "MAX_UNTAKEN_BYTES", 10_000)
    async with cells(2, tmp_path, slow_subscriber_wait=0) as (one, two):
        client = await member(two, "m", 0)
        publisher = await one.node.client("p", 5)
        publisher.send(*(Publish("t", b"x" * 1000, 0) for _ in range(100)))
        await publisher.silence()
        publisher.send(Publish("t", b"last", 0))
        got = 0
        while (await client.expect(Publish)).payload != b"last":
            got += 1
        dropped = one.node.metrics.value("cell_messages_dropped", peer="1", reason="link_full")
        assert 0 < got < 100
        assert got + dropped == 100


@on_loop
async def test_a_share_group_over_cells_does_not_begin_in_the_past(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, _):
        client = await one.node.client("m", 5)
        client.send(
            Subscribe(
                1,
                [SubscriptionRequest(GROUP, 1)],
                {"User-Property": [("stream-offset", "earliest")]},
            )
        )
        answer = await client.expect(SubAck)
        assert answer.reason_codes == [0x83]
        assert "over several cells" in answer.properties["Reason-String"]
