"""Taking a session over: by one connection after the other, by many at once, in a storm of messages."""

from __future__ import annotations

import asyncio

import pytest

from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from tests.support.mqtt_server import GatedStore, Node, on_loop, running
from tests.support.raw import RawClient, connect
from tests.support.restarts import HOUR, away, lasting, payloads, published, subscribed
from tests.support.wire import WireClient

_JAIL_S = 1.1
"""An identifier that goes from one connection to the next does so once a second at most."""


@pytest.mark.parametrize("old", [3, 4, 5])
@pytest.mark.parametrize("new", [3, 4, 5])
@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.statement("own:N2", "5:3.1.4-3", "3:3.1.4-2")
@on_loop
async def test_the_older_connection_is_told_and_closed_and_the_newer_one_lives(
    old: int, new: int, is_clean: bool
) -> None:
    async with running() as node:
        first = await RawClient.connected(
            node.port, connect(old, "c", b"\x11\0\0\0\x64", clean=is_clean)
        )
        second = await RawClient.connected(
            node.port, connect(new, "c", b"\x11\0\0\0\x64", clean=is_clean)
        )
        assert second.connack[2] == (0 if is_clean or new == 3 else 1)
        said = await first.closed()
        assert [packet[:1] + packet[2:3] for packet in said] == ([b"\xe0\x8e"] if old == 5 else [])
        await second.silence()
        assert len(node.server.hub.connections) == 1


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:N4", "own:N2")
@on_loop
async def test_of_fifty_at_once_one_is_left(is_lasting: bool, version: int) -> None:
    properties = HOUR if version == 5 and is_lasting else {}
    async with running() as node:
        clients = await asyncio.gather(*(WireClient.open(node.port, version) for _ in range(50)))
        for client in clients:
            client.send(Connect("c", version, not is_lasting, properties=properties))
        await node.until(lambda: _is_settled(node))
        ends = await asyncio.gather(*(_fate(client) for client in clients))
        assert sorted(ends) == [*["closed"] * 49, "lives"]
        assert len(node.server.hub.sessions) == 1


def _is_settled(node: Node) -> bool:
    """Whether one connection is left; time goes on meanwhile."""
    node.pass_time(0.1)
    return len(node.server.hub.connections) == 1


async def _takes_over(node: Node, version: int = 4) -> WireClient:
    """Connect in place of the one that is there, some time after it did."""
    node.pass_time(_JAIL_S)
    client = await lasting(node, version=version)
    assert client.connack.session_present is (version > 3)  # CONNACK of 3.1 does not say
    return client


async def _fate(client: WireClient) -> str:
    """Whether it was left. Every CONNECT is answered first, whatever comes after it."""
    assert isinstance(await client.receive(), ConnAck)
    try:
        await client.silence()
    except (AssertionError, ConnectionError, OSError):
        return "closed"
    return "lives"


@pytest.mark.statement("own:N4", "own:N8")
@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_who_is_taken_over_while_its_session_is_stored_is_answered(version: int) -> None:
    store = GatedStore()
    async with running(store) as node:
        store.allow.clear()
        properties = HOUR if version == 5 else {}
        first, second = (
            await WireClient.open(node.port, version),
            await WireClient.open(node.port, version),
        )
        first.send(Connect("c", version, False, properties=properties))
        await node.until(lambda: "c" in node.server.hub.sessions.by_client_id)
        second.send(Connect("c", version, False, properties=properties))
        [said] = await first.closed()
        assert isinstance(said, ConnAck)
        assert said.reason_code >= (0x80 if version == 5 else 3)
        store.allow.set()
        assert (await second.expect(ConnAck)).reason_code == 0
        await second.silence()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:N2", "5:4.4.0-1", "5:4.6.0-5", "3:4.6.0-5")
@on_loop
async def test_taking_over_in_a_storm_leaves_no_gap_and_changes_no_order(
    qos: int, version: int
) -> None:
    """QoS 2: each exactly once; QoS 1: only flagged repeats."""
    count, most = 1200, 60
    async with running(max_inflight=10, max_queued_messages=40) as node:
        client = await subscribed(await lasting(node, version=version), ("t", qos))
        publishing = asyncio.create_task(_publish(node, count))
        done: list[int] = []
        started: set[int] = set()
        takeovers = 0
        while len(done) < count:
            if takeovers < most and len(done) >= takeovers * 15:
                client = await _takes_over(node, version)
                takeovers += 1
            packet = await client.receive()
            if isinstance(packet, PubRel):
                client.send(PubComp(packet.packet_id))
                continue
            assert isinstance(packet, Publish), packet
            number = int(packet.payload)
            if number not in started:
                assert number == len(started), "a gap, or another order"
                started.add(number)
                done.append(number)
            else:
                assert packet.dup
            client.send(PubAck(packet.packet_id) if qos == 1 else PubRec(packet.packet_id))
        await publishing
        assert takeovers == most
        assert done == list(range(count))


@pytest.mark.statement("own:N2", "5:4.3.3-1", "3:4.3.3-1")
@on_loop
async def test_taking_over_in_a_storm_doubles_no_qos_2_message() -> None:
    count = 600
    async with running(max_inflight=10) as node:
        client = await subscribed(await lasting(node), ("t", 2))
        publishing = asyncio.create_task(_publish(node, count))
        open_ids: dict[int, bytes] = {}
        got: list[int] = []
        while len(got) < count or open_ids:
            if len(got) % 20 == 19 and len(open_ids) > 2:
                client = await _takes_over(node)
            packet = await client.receive()
            if isinstance(packet, PubRel):  # what a client does: the identifier is done
                open_ids.pop(packet.packet_id, None)
                client.send(PubComp(packet.packet_id))
            elif isinstance(packet, Publish):
                if packet.packet_id not in open_ids:
                    got.append(int(packet.payload))
                    open_ids[packet.packet_id] = packet.payload
                assert open_ids[packet.packet_id] == packet.payload
                client.send(PubRec(packet.packet_id))
        await publishing
        assert got == list(range(count))


async def _publish(node: Node, count: int) -> None:
    async with await node.client("p") as publisher:
        for number in range(count):
            publisher.send(Publish("t", b"%d" % number, 2, packet_id=number % 60_000 + 1))
            await publisher.expect(PubRec)
            publisher.send(PubRel(number % 60_000 + 1))
            await publisher.expect(PubComp)


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("5:3.1.2-4", "3:3.1.2-6")
@on_loop
async def test_clean_starts_in_a_storm_get_nothing_from_before(is_lasting: bool) -> None:
    async with running(max_inflight=5) as node:
        stop, sent = asyncio.Event(), [0]
        storm = asyncio.create_task(_count(node, stop, sent))
        properties = HOUR if is_lasting else {}
        for _ in range(40):
            node.pass_time(_JAIL_S)
            client = await node.client("c", 5, clean_start=True, properties=properties)
            assert not client.connack.session_present
            begun = sent[0]
            await subscribed(client, ("t", 1))
            first = await client.expect(Publish)
            assert int(first.payload) >= begun
            assert not first.dup
            assert first.packet_id == 1
        stop.set()
        await storm


async def _count(node: Node, stop: asyncio.Event, sent: list[int]) -> None:
    async with await node.client("p") as publisher:
        while not stop.is_set():
            publisher.send(Publish("t", b"%d" % sent[0], 1, packet_id=sent[0] % 60_000 + 1))
            await publisher.expect(PubAck)
            sent[0] += 1


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:N2", "5:3.1.4-3")
@on_loop
async def test_what_waits_for_the_older_connection_goes_to_the_newer_one(version: int) -> None:
    async with running(max_inflight=2) as node:
        old = await subscribed(await lasting(node, version=version), ("t", 1))
        await published(node, *(b"%d" % number for number in range(6)))
        seen = [await old.expect(Publish) for _ in range(2)]
        new = await lasting(node, version=version)
        again = [await new.expect(Publish) for _ in range(2)]
        assert [found.packet_id for found in again] == [found.packet_id for found in seen]
        assert all(found.dup for found in again)
        for found in again:
            new.send(PubAck(found.packet_id))
        assert await payloads(new, 4) == [b"2", b"3", b"4", b"5"]


@pytest.mark.statement("own:N2")
@on_loop
async def test_coming_back_a_hundred_times_under_load_is_complete_and_in_order() -> None:
    async with running(max_inflight=8) as node:
        stop, sent = asyncio.Event(), [0]
        numbers: list[int] = []
        client = await subscribed(await lasting(node), ("t", 1))
        storm = asyncio.create_task(_count(node, stop, sent))
        for turn in range(100):
            for _ in range(5):
                packet = await client.expect(Publish)
                client.send(PubAck(packet.packet_id))
                if int(packet.payload) == len(numbers):
                    numbers.append(int(packet.payload))
                else:
                    assert packet.dup
                    assert int(packet.payload) < len(numbers)
            if turn % 2:
                client.abort()
            else:
                client.send(Disconnect())
            await away(node)
            client = await lasting(node)
        stop.set()
        await storm
        while len(numbers) < sent[0]:
            packet = await client.expect(Publish)
            client.send(PubAck(packet.packet_id))
            if int(packet.payload) == len(numbers):
                numbers.append(int(packet.payload))
            else:
                assert packet.dup
        assert numbers == list(range(sent[0]))


@pytest.mark.statement("own:N2", "5:3.3.1-9")
@on_loop
async def test_a_replay_of_retained_messages_goes_on_after_taking_over() -> None:
    async with running(max_inflight=4) as node:
        count = 600
        async with await node.client("first") as setter:
            setter.send(
                *(
                    Publish(f"r/{n}", b"%d" % n, 1, retain=True, packet_id=n + 1)
                    for n in range(count)
                )
            )
            for _ in range(count):
                await setter.expect(PubAck)
        client = await lasting(node)
        await client.subscribe(SubscriptionRequest("r/#", 1))
        got = set(await payloads(client, 50))
        client = await lasting(node)
        while len(got) < count:
            packet = await client.expect(Publish)
            got.add(packet.payload)
            client.send(PubAck(packet.packet_id))
        await client.silence()
