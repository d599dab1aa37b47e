"""Flow control, sections 4.9 and 3.1.2.11.3 of MQTT 5.0, and what is resent when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.codec.packets import PubAck, PubComp, Publish, PubRec, PubRel, SubscriptionRequest
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.restarts import HOUR, away, lasting, on_disk, payloads, published, subscribed
from tests.support.wire import WireClient

RECEIVE_MAXIMUM = "Receive-Maximum"


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize(
    ("version", "asked", "limit", "expected"),
    [(5, 3, 10, 3), (5, 65_535, 10, 10), (5, None, 10, 10), (4, None, 7, 7), (3, None, 7, 7)],
)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.statement("5:4.9.0-1", "5:4.9.0-2", "5:3.3.4-9", "own:R27")
@on_loop
async def test_no_more_are_open_than_the_client_and_the_server_allow(
    version: int, asked: int | None, limit: int, expected: int, qos: int, is_lasting: bool
) -> None:
    async with running(max_inflight=limit) as node:
        properties = {RECEIVE_MAXIMUM: asked} if asked else {}
        if is_lasting:
            client = await lasting(node, version=version, properties=properties)
        else:
            client = await node.client("s", version, properties=properties)
        await subscribed(client, ("t", qos))
        await published(node, *(b"%d" % number for number in range(25)), qos=qos)
        got = [await client.expect(Publish) for _ in range(expected)]
        await client.silence()
        for number in range(25 - expected):
            first = got.pop(0)
            if qos == 1:
                client.send(PubAck(first.packet_id))
            else:
                client.send(PubRec(first.packet_id))
                await client.expect(PubRel)
                await client.silence()  # the place is free at PUBCOMP only
                client.send(PubComp(first.packet_id))
            got.append(await client.expect(Publish))
            assert got[-1].payload == b"%d" % (expected + number)


@pytest.mark.statement("5:4.9.0-2", "own:qos2-slot")
@on_loop
async def test_a_qos_2_place_is_free_at_pubcomp_or_at_a_refusing_pubrec() -> None:
    async with running() as node:
        client = await node.client("s", 5, properties={RECEIVE_MAXIMUM: 1})
        await subscribed(client, ("t", 2))
        await published(node, b"1", b"2", b"3", qos=2)
        first = await client.expect(Publish)
        client.send(PubRec(first.packet_id))
        await client.expect(PubRel)
        await client.silence()
        client.send(PubComp(first.packet_id))
        second = await client.expect(Publish)
        client.send(PubRec(second.packet_id, 0x80))
        assert (await client.expect(Publish)).payload == b"3"


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("5:4.9.0-3", "5:3.3.4-10", "5:3.12.4-1", "3:3.12.4-1")
@on_loop
async def test_everything_else_goes_on_while_the_quota_is_used_up(is_lasting: bool) -> None:
    async with running() as node:
        properties = {RECEIVE_MAXIMUM: 1, **(HOUR if is_lasting else {})}
        client = await node.client("s", 5, properties=properties)
        await subscribed(client, ("t", 1), ("zero", 0))
        await published(node, b"1", b"2")
        first = await client.expect(Publish)
        await client.silence()
        # suspended too, as 4.9 allows: it came after b"2"
        await published(node, b"0", topic="zero", qos=0)
        await client.subscribe(SubscriptionRequest("other", 1))
        client.send(
            Publish("elsewhere", b"", 1, packet_id=1), Publish("elsewhere", b"", 2, packet_id=2)
        )
        assert isinstance(await client.receive(), PubAck)
        assert isinstance(await client.receive(), PubRec)
        client.send(PubAck(first.packet_id))
        assert [(await client.expect(Publish)).payload for _ in range(2)] == [b"2", b"0"]


@pytest.mark.parametrize("maximum", [1, 2, 4, 9])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.statement("5:4.9.0-2", "own:R28")
@on_loop
async def test_resending_keeps_within_the_receive_maximum_of_the_new_connection(
    maximum: int, is_restarted: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path) as node:
        client = await lasting(node, version=5, properties={RECEIVE_MAXIMUM: 6})
        await subscribed(client, ("t", 2))
        await published(node, *(b"%d" % number for number in range(5)), qos=2)
        await published(node, *(b"%d" % number for number in range(5, 9)))
        got = [await client.expect(Publish) for _ in range(6)]
        client.send(PubRec(got[3].packet_id))
        await client.expect(PubRel)
        await client.silence()
        await node.writer.committed()
        client.abort()
        await away(node)
        if not is_restarted:
            await _comes_within(node, maximum)
    if is_restarted:
        async with on_disk(tmp_path) as node:
            await _comes_within(node, maximum)


async def _comes_within(node: Node, maximum: int) -> None:
    client = await lasting(node, version=5, properties={RECEIVE_MAXIMUM: maximum})
    open_ids: dict[int, bytes] = {}
    done: list[bytes] = []
    while len(done) < 8 or open_ids:
        await asyncio.sleep(0)
        packet = await client.receive()
        if isinstance(packet, PubRel):
            client.send(PubComp(packet.packet_id))
            open_ids.pop(packet.packet_id, None)
            continue
        assert isinstance(packet, Publish)
        assert packet.packet_id not in open_ids
        open_ids[packet.packet_id] = packet.payload
        done.append(packet.payload)
        assert len(open_ids) <= maximum
        if packet.qos == 1:
            client.send(PubAck(packet.packet_id))
            del open_ids[packet.packet_id]
        else:
            client.send(PubRec(packet.packet_id))
    assert done == [b"0", b"1", b"2", b"4", b"5", b"6", b"7", b"8"]
    await client.silence()


@pytest.mark.statement("5:4.9.0-2", "own:R28")
@on_loop
async def test_a_larger_receive_maximum_takes_effect_with_the_connection() -> None:
    async with running() as node:
        client = await lasting(node, version=5, properties={RECEIVE_MAXIMUM: 2})
        await subscribed(client, ("t", 1))
        await published(node, *(b"%d" % number for number in range(8)))
        for _ in range(2):
            await client.expect(Publish)
        await client.silence()
        client.abort()
        await away(node)
        client = await lasting(node, version=5, properties={RECEIVE_MAXIMUM: 5})
        assert [(await client.expect(Publish)).dup for _ in range(5)] == [
            True,
            True,
            False,
            False,
            False,
        ]
        await client.silence()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.statement("5:3.1.2-24", "5:3.1.2-25", "own:R37")
@on_loop
async def test_what_is_too_large_for_the_new_connection_counts_as_delivered(qos: int) -> None:
    async with running(max_inflight=2) as node:
        client = await subscribed(await lasting(node, version=5), ("t", qos))
        await published(node, b"x" * 500, b"small", b"y" * 500, b"last", qos=qos)
        for _ in range(2):
            await client.expect(Publish)
        client.abort()
        await away(node)
        client = await lasting(node, version=5, properties={"Maximum-Packet-Size": 100})
        got = await client.expect(Publish)
        assert (got.payload, got.dup) == (b"small", True)
        assert (await client.expect(Publish)).payload == b"last"
        assert node.metrics.value("deliveries_dropped", reason="packet_too_large") == 2


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("interval_s", [0, 20])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.statement("own:N28", "5:4.4.0-1", "3:4.4.0-1")
@on_loop
async def test_resending_on_a_living_connection_is_a_setting_for_older_versions(
    version: int, is_lasting: bool, interval_s: int, qos: int
) -> None:
    async with running(retry_interval=interval_s) as node:
        client = (
            await lasting(node, version=version) if is_lasting else await node.client("s", version)
        )
        await subscribed(client, ("t", qos))
        await published(node, b"1", qos=qos)
        node.pass_time(5)
        await published(node, b"2", qos=qos)
        first, second = [await client.expect(Publish) for _ in range(2)]
        node.pass_time(14)
        await client.silence()
        is_resent = bool(interval_s) and version < 5
        node.pass_time(1)
        if is_resent:
            again = await client.expect(Publish)
            assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"1")
        await client.silence()
        client.send(PubAck(second.packet_id) if qos == 1 else PubRec(second.packet_id))
        if qos == 2:
            await client.expect(PubRel)
        await client.silence()
        node.pass_time(30)
        if is_resent:
            again = await client.expect(Publish)
            assert (again.packet_id, again.payload) == (first.packet_id, b"1")
            if qos == 2:
                assert (await client.expect(PubRel)).packet_id == second.packet_id
        await client.silence()
        client.send(PubAck(first.packet_id) if qos == 1 else PubRec(first.packet_id))
        if qos == 2:
            await client.expect(PubRel)
            client.send(PubComp(first.packet_id), PubComp(second.packet_id))
        await client.silence()
        node.pass_time(100)
        await client.silence()


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("5:2.2.1-4", "3:2.3.1-4", "own:N24")
@on_loop
async def test_identifiers_go_round_without_meeting_those_that_are_open(is_lasting: bool) -> None:
    count, slow = 70_000, 40
    async with running(max_inflight=64, max_queued_messages=100_000) as node:
        client = await lasting(node) if is_lasting else await node.client("s")
        await subscribed(client, ("t", 1))
        publishing = asyncio.create_task(_publish_fast(node, count))
        kept: set[int] = set()
        received = 0
        while received < count:
            packet = await client.expect(Publish)
            assert packet.packet_id > 0
            assert packet.packet_id not in kept
            assert int(packet.payload) == received
            received += 1
            if len(kept) < slow:
                kept.add(packet.packet_id)  # these stay open to the end
            else:
                client.send(PubAck(packet.packet_id))
        await publishing
        session = node.server.hub.sessions.by_client_id["s"]
        await client.silence()
        assert set(session.window.inflight) == kept


async def _publish_fast(node: Node, count: int) -> None:
    async with await node.client("p") as publisher:
        for start in range(0, count, 500):
            publisher.send(
                *(
                    Publish("t", b"%d" % number, 1, packet_id=number % 60_000 + 1)
                    for number in range(start, start + 500)
                )
            )
            for _ in range(500):
                await publisher.expect(PubAck)


async def _flooded(node: Node, client: WireClient, count: int) -> None:
    """Publish QoS 0 messages to a client that does not read, large ones."""
    publisher = await node.client("flood", client.version)
    for number in range(count):
        publisher.send(Publish("t", b"%06d" % number + b"x" * 20_000))
        node.pass_time(2)  # nobody is waited for longer than a moment
        await publisher.silence()


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:R1", "own:R2")
@on_loop
async def test_a_slow_subscriber_gets_the_newest_qos_0_messages_once_it_reads_again(
    version: int,
) -> None:
    count = 1500
    async with running(max_unsent_bytes=200_000) as node:
        client = await node.client("s", version)
        await subscribed(client, ("t", 0))
        client.stop_reading()
        await _flooded(node, client, count)
        dropped = node.metrics.value("deliveries_dropped", reason="queue_full")
        assert dropped > 0
        session = node.server.hub.sessions.by_client_id["s"]
        assert session.is_slow
        client.go_on_reading()
        numbers: list[int] = []
        while not numbers or numbers[-1] < count - 1:
            numbers.append(int((await client.expect(Publish)).payload[:6]))
        assert numbers == sorted(numbers)
        assert len(numbers) + dropped == count
        # the oldest of what waited went, not the newest
        assert numbers[-9:] == list(range(count - 9, count))
        await client.silence()


@pytest.mark.statement("own:R1", "own:R2")
@on_loop
async def test_what_waited_for_a_slow_subscriber_counts_as_dropped_when_it_leaves() -> None:
    async with running(max_unsent_bytes=200_000) as node:
        client = await node.client("s", 5)
        await subscribed(client, ("t", 0))
        client.stop_reading()
        await _flooded(node, client, 1000)
        client.abort()
        await node.until(lambda: "s" not in node.server.hub.sessions.by_client_id)
        assert node.metrics.value("deliveries_dropped", reason="connection_closed") > 0


@pytest.mark.parametrize("count", [60])
@pytest.mark.statement("own:R27")
@on_loop
async def test_deliveries_go_on_after_a_window_of_one(count: int) -> None:
    async with running(max_inflight=1, max_queued_messages=5) as node:
        client = await subscribed(await lasting(node), ("t", 1))
        await published(node, *(b"%d" % number for number in range(count)))
        assert await payloads(client, count) == [b"%d" % number for number in range(count)]
