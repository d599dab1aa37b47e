"""Sessions by zone: kept in memory they outlive their connection and not the process; from one zone to another."""

from __future__ import annotations

import pytest

from broker.codec.packets import (
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed
from tests.support.mqtt_server import SESSION_LOG, GatedStore, MovedClock, Node, on_loop
from tests.support.publishing import numbered, publish
from tests.support.wire import WireClient
from tests.support.zoned import ZonedNode, zoned


class WatchedStore(MemoryStore):
    """A store that notes what it was given to write."""

    def __init__(self) -> None:
        super().__init__()
        self.keys: list[bytes] = []
        self.logged = 0

    def commit(self, batch: Batch) -> Committed:
        self.keys += batch.puts
        self.logged += len(batch.appends.get(SESSION_LOG, ()))
        return super().commit(batch)


def dropped(node: Node, why: str) -> float:
    """Messages that sessions did not get, for a reason."""
    return node.metrics.value("deliveries_dropped", reason=why)


async def take(
    client: WireClient, count: int, *, acknowledged: bool = True
) -> list[tuple[bytes, bool]]:
    """The payloads of the next messages, and whether they came again."""
    got = []
    for _ in range(count):
        packet = await client.expect(Publish)
        got.append((packet.payload, packet.dup))
        if acknowledged:
            client.send(PubAck(packet.packet_id))
    return got


async def subscribed(
    zoned_node: ZonedNode, zone: str, version: int = 5, qos: int = 1
) -> WireClient:
    client = await zoned_node.client(zone, "s", version)
    await client.subscribe(SubscriptionRequest("t/#", qos))
    return client


@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_a_session_in_memory_gets_what_came_while_it_was_away_and_nothing_is_written(
    version: int,
) -> None:
    store = WatchedStore()
    async with zoned(store) as there:
        client = await subscribed(there, "memory", version)
        await publish(there.node, *numbered(1))
        assert await take(client, 1) == [(b"1", False)]
        await there.away(client, "s")
        await publish(there.node, *numbered(2, 3))
        client = await there.client("memory", "s", version)
        assert client.connack.session_present
        assert await take(client, 2) == [(b"2", False), (b"3", False)]
        client.send(Unsubscribe(9, ["t/#"]))
        await client.expect(UnsubAck)
        client.send(Disconnect())
        await client.closed()
        await there.node.written()
        assert (store.keys, store.logged) == ([], 0)


@on_loop
async def test_a_restart_shows_which_zone_keeps_sessions_on_disk() -> None:
    store = MemoryStore()
    async with zoned(store) as there:
        for zone in ("default", "memory"):
            client = await there.client(zone, zone)
            await client.subscribe(SubscriptionRequest("t/#", 1))
            await there.away(client, zone)
        await publish(there.node, *numbered(1))
    async with zoned(store) as there:
        kept, lost = (
            await there.client("default", "default"),
            await there.client("memory", "memory"),
        )
        assert (kept.connack.session_present, lost.connack.session_present) == (True, False)
        assert await take(kept, 1) == [(b"1", False)]
        await lost.silence()


@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_what_is_in_flight_in_memory_is_sent_again_under_its_identifier_before_the_rest(
    version: int,
) -> None:
    async with zoned(max_inflight=3) as there:
        client = await subscribed(there, "memory", version)
        # as it comes, without a look at it
        await publish(there.node, *numbered(1, 2, 3, 4, 5), version=version)
        first = [await client.expect(Publish) for _ in range(3)]
        client.send(PubAck(first[1].packet_id))
        fourth = await client.expect(Publish)
        await there.away(client, "s")
        client = await there.client("memory", "s", version)
        for expected in (first[0], first[2], fourth):
            got = await client.expect(Publish)
            assert (got.packet_id, got.payload, got.dup) == (
                expected.packet_id,
                expected.payload,
                True,
            )
            client.send(PubAck(got.packet_id))
        assert await take(client, 1) == [(b"5", False)]


@on_loop
async def test_qos_2_goes_on_where_it_was_in_both_directions() -> None:
    async with zoned() as there:
        client = await subscribed(there, "memory", qos=2)
        client.send(Publish("t/own", b"once", 2, packet_id=7))
        own = await client.expect(Publish)
        await client.expect(PubRec)
        client.send(PubRec(own.packet_id))
        await client.expect(PubRel)
        await there.away(client, "s")
        client = await there.client("memory", "s")
        assert await client.expect(PubRel) == PubRel(own.packet_id)
        client.send(PubComp(own.packet_id), Publish("t/own", b"once", 2, dup=True, packet_id=7))
        assert await client.expect(PubRec) == PubRec(7)
        client.send(PubRel(7))
        assert await client.expect(PubComp) == PubComp(7)
        await client.silence()


@on_loop
async def test_a_session_in_memory_that_is_taken_over_loses_nothing() -> None:
    async with zoned(max_inflight=1) as there:
        old = await subscribed(there, "memory")
        await publish(there.node, *numbered(1, 2, 3))
        assert await take(old, 1, acknowledged=False) == [(b"1", False)]
        new = await there.client("memory", "s")
        assert (await old.expect(Disconnect)).reason_code == 0x8E
        assert new.connack.session_present
        assert await take(new, 3) == [(b"1", True), (b"2", False), (b"3", False)]


@pytest.mark.parametrize(("when_full", "left"), [("drop_oldest", [3, 4]), ("drop_newest", [1, 2])])
@on_loop
async def test_what_waits_in_memory_is_bounded_by_the_settings_of_the_zone(
    when_full: str, left: list[int]
) -> None:
    async with zoned(memory={"max_queued_messages": 2, "queue_full": when_full}) as there:
        await there.away(await subscribed(there, "memory"), "s")
        await publish(there.node, *numbered(1, 2, 3, 4))
        assert dropped(there.node, "queue_full") == 2
        client = await there.client("memory", "s")
        assert await take(client, 2) == [(b"%d" % number, False) for number in left]
        await client.silence()


@on_loop
async def test_qos_0_waits_in_memory_where_the_zone_says_so() -> None:
    async with zoned(memory={"queue_qos0": True}) as there:
        for zone in ("default", "memory"):
            client = await there.client(zone, zone)
            await client.subscribe(SubscriptionRequest("t", 0))
            await there.away(client, zone)
        async with await there.node.client("p") as publisher:
            publisher.send(Publish("t", b"x"))
            await publisher.silence()
        assert dropped(there.node, "qos0_msg") == 1
        assert (await (await there.client("memory", "memory")).expect(Publish)).payload == b"x"


@on_loop
async def test_a_session_in_memory_ends_when_its_expiry_has_passed() -> None:
    async with zoned() as there:
        await there.away(await subscribed(there, "memory"), "s")
        await publish(there.node, *numbered(1))
        there.node.pass_time(3599)
        assert there.node.server.hub.sessions.get("s") is not None
        there.node.pass_time(2)
        assert there.node.server.hub.sessions.get("s") is None
        assert dropped(there.node, "session_ended") == 1
        assert not (await there.client("memory", "s")).connack.session_present


@pytest.mark.parametrize("is_restarted", [False, True])
@on_loop
async def test_a_will_of_a_session_in_memory_waits_for_its_delay_or_the_end_of_the_process(
    is_restarted: bool,
) -> None:
    store, clock = MemoryStore(), MovedClock()
    will = Will("t/will", b"gone", 1, properties={"Will-Delay-Interval": 60})
    connect = Connect(
        "w", 5, clean_start=False, will=will, properties={"Session-Expiry-Interval": 3600}
    )
    async with zoned(store, clock=clock) as there:
        watcher = await subscribed(there, "default")
        client = await WireClient.connected(there.ports["memory"], connect)
        await there.away(client, "w")
        there.node.pass_time(59)
        await watcher.silence()
        if not is_restarted:
            there.node.pass_time(2)
            assert await take(watcher, 1) == [(b"gone", False)]
        await there.node.written()
    if is_restarted:
        async with zoned(store, clock=clock) as there:
            watcher = await there.client("default", "s")
            assert await take(watcher, 1) == [(b"gone", False)]


@on_loop
async def test_retained_messages_that_a_lost_connection_cut_short_come_when_the_client_is_back() -> (
    None
):
    async with zoned(max_inflight=2) as there:
        retained = [
            Publish(f"t/{number}", b"%d" % number, 1, True, packet_id=number)
            for number in range(1, 6)
        ]
        await publish(there.node, *retained)
        client = await subscribed(there, "memory")
        assert len(await take(client, 2, acknowledged=False)) == 2
        await there.away(client, "s")
        client = await there.client("memory", "s")
        got = await take(client, 5)
        assert sorted(got) == [
            (b"1", True),
            (b"2", True),
            (b"3", False),
            (b"4", False),
            (b"5", False),
        ]


# -- from zone to zone --


@pytest.mark.parametrize("is_restarted", [False, True])
@on_loop
async def test_a_session_in_memory_goes_to_disk_with_its_client(is_restarted: bool) -> None:
    store = MemoryStore()
    async with zoned(store, max_inflight=2) as there:
        client = await subscribed(there, "memory")
        await publish(there.node, *numbered(1, 2, 3, 4))
        flying = [await client.expect(Publish) for _ in range(2)]
        await there.away(client, "s")
        client = await there.client("default", "s")
        assert client.connack.session_present
        again = [await client.expect(Publish) for _ in range(2)]
        expected = [(one.packet_id, one.payload, True) for one in flying]
        assert [(one.packet_id, one.payload, one.dup) for one in again] == expected
        if not is_restarted:
            client.send(*(PubAck(one.packet_id) for one in again))
            assert await take(client, 2) == [(b"3", False), (b"4", False)]
            await client.silence()
            await there.node.written()
            assert store.range_of(SESSION_LOG).next_offset == 4
        assert there.node.server.hub.sessions.by_client_id["s"].is_durable
    if is_restarted:
        async with zoned(store, max_inflight=2) as there:
            client = await there.client("default", "s")
            assert client.connack.session_present
            again = [await client.expect(Publish) for _ in range(2)]
            assert [(one.packet_id, one.payload, one.dup) for one in again] == expected
            await publish(there.node, *numbered(5))
            client.send(*(PubAck(one.packet_id) for one in again))
            got = await take(client, 3)
            assert [payload for payload, _ in got] == [b"3", b"4", b"5"]
            await client.silence()


@on_loop
async def test_what_goes_to_disk_keeps_its_qos_and_its_retain_flag() -> None:
    store = MemoryStore()
    async with zoned(store) as there:
        client = await there.client("memory", "s")
        await client.subscribe(
            SubscriptionRequest("t", 1), SubscriptionRequest("kept", 2, retain_as_published=True)
        )
        await there.away(client, "s")
        async with await there.node.client("p") as publisher:
            publisher.send(
                Publish("t", b"", 2, True, packet_id=1), Publish("kept", b"x", 2, True, packet_id=2)
            )
            assert [await publisher.expect(PubRec) for _ in range(2)] == [PubRec(1), PubRec(2)]
        there.node.server.hub.sessions.by_client_id["s"].window.inflight.clear()
        await there.away(await there.client("default", "s"), "s")
        await there.node.written()
    async with zoned(store) as there:
        client = await there.client("default", "s")
        got = [await client.expect(Publish) for _ in range(2)]
        assert [(one.topic, one.qos, one.retain) for one in got] == [
            ("t", 1, False),
            ("kept", 2, True),
        ]


@pytest.mark.parametrize("waiting", [0, 2])
@on_loop
async def test_a_session_that_cannot_be_stored_stays_in_memory_with_all_it_has(
    waiting: int,
) -> None:
    store = GatedStore()
    async with zoned(store, max_inflight=1) as there:
        client = await subscribed(there, "memory")
        numbers = range(1, waiting + 2) if waiting else ()
        await publish(there.node, *numbered(*numbers))
        if waiting:
            await client.expect(Publish)
        await there.away(client, "s")
        store.fails = True
        refused = await WireClient.open(there.ports["default"], 5)
        refused.send(
            Connect("s", 5, clean_start=False, properties={"Session-Expiry-Interval": 3600})
        )
        await refused.closed()
        session = there.node.server.hub.sessions.by_client_id["s"]
        assert (session.is_durable, len(session.window.inflight), len(session.queue)) == (
            False,
            min(waiting, 1),
            waiting,
        )
        store.fails = False
        client = await there.client("default", "s")
        assert client.connack.session_present
        taken = [(b"%d" % number, number == 1) for number in numbers]
        assert await take(client, len(taken)) == taken
        assert session.is_durable


@on_loop
async def test_a_session_on_disk_stays_there_until_it_ends() -> None:
    store = MemoryStore()
    async with zoned(store) as there:
        await there.away(await subscribed(there, "default"), "s")
        await there.away(await there.client("memory", "s"), "s")
        await publish(there.node, *numbered(1))
    async with zoned(store) as there:
        assert there.node.server.hub.sessions.by_client_id["s"].zone == "memory"
        client = await there.client("memory", "s")
        assert client.connack.session_present
        assert await take(client, 1) == [(b"1", False)]
        client = await there.client("memory", "s", clean=True)
        assert not there.node.server.hub.sessions.by_client_id["s"].is_durable
        await there.node.written()
    async with zoned(store) as there:
        assert not (await there.client("memory", "s")).connack.session_present


@on_loop
async def test_a_session_that_is_to_end_with_its_connection_does_not_go_to_disk() -> None:
    async with zoned() as there:
        await there.away(await subscribed(there, "memory"), "s")
        await publish(there.node, *numbered(1))
        client = await WireClient.connected(
            there.ports["default"], Connect("s", 5, clean_start=False)
        )
        assert client.connack.session_present
        assert not there.node.server.hub.sessions.by_client_id["s"].is_durable
        assert await take(client, 1) == [(b"1", False)]
        client.abort()
        await there.node.until(lambda: there.node.server.hub.sessions.get("s") is None)


# -- share groups --


@on_loop
async def test_a_share_group_of_sessions_in_memory_waits_in_memory_while_all_are_away() -> None:
    store = WatchedStore()
    async with zoned(store) as there:
        client = await there.client("memory", "s")
        await client.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        await publish(there.node, *numbered(1))
        assert await take(client, 1, acknowledged=False) == [(b"1", False)]
        await there.away(client, "s")
        await publish(there.node, *numbered(2, 3))
        client = await there.client("memory", "s")
        assert await take(client, 3) == [(b"1", True), (b"2", False), (b"3", False)]
        await client.silence()
        assert (store.keys, store.logged) == ([], 0)


@on_loop
async def test_what_a_member_in_memory_leaves_behind_goes_to_another() -> None:
    async with zoned() as there:
        one, two = await there.client("memory", "s"), await there.client("memory", "two")
        await one.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        await publish(there.node, *numbered(1))
        await take(one, 1, acknowledged=False)
        await two.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        await there.away(one, "s")
        assert await take(two, 1) == [(b"1", True)]
        one = await there.client("memory", "s")
        await one.silence()


@on_loop
async def test_a_share_group_goes_to_disk_with_its_member() -> None:
    store = MemoryStore()
    async with zoned(store) as there:
        client = await there.client("memory", "s")
        await client.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        await there.away(client, "s")
        client = await there.client("default", "s")
        await client.silence()
        await there.away(client, "s")
        await publish(there.node, *numbered(1))
    async with zoned(store) as there:
        assert await take(await there.client("default", "s"), 1) == [(b"1", False)]


async def member_in_memory(there: ZonedNode) -> tuple[WireClient, WireClient, Publish]:
    """A publisher, a member ``s`` of a group that another member keeps on disk, and what of QoS 2 the member has."""
    keeper, client = await there.client("default", "keeper"), await there.client("memory", "s")
    await keeper.subscribe(SubscriptionRequest("$share/g/t/#", 2))
    await there.away(keeper, "keeper")
    await client.subscribe(SubscriptionRequest("$share/g/t/#", 2))
    publisher = await there.node.client("p")
    publisher.send(Publish("t/a", b"x", 2, packet_id=1))
    await publisher.expect(PubRec)
    packet = await client.expect(Publish)
    return publisher, client, packet


@on_loop
async def test_qos_2_of_a_group_on_disk_that_a_reconnection_overtakes_is_sent_once() -> None:
    store = GatedStore()
    async with zoned(store) as there:
        publisher, client, packet = await member_in_memory(there)
        store.allow.clear()
        publisher.send(Publish("t/a", b"y", 2, packet_id=2))
        await publisher.silence()
        await there.away(client, "s")
        client = await there.client("memory", "s")
        assert (await client.expect(Publish)).packet_id == packet.packet_id
        store.allow.set()
        assert (await client.expect(Publish)).payload == b"y"
        await client.silence()


@pytest.mark.parametrize("is_moved", [False, True])
@on_loop
async def test_qos_2_that_a_member_in_memory_has_is_its_own_and_goes_to_disk_with_it(
    is_moved: bool,
) -> None:
    store = MemoryStore()
    async with zoned(store) as there:
        _, client, packet = await member_in_memory(there)
        [group] = there.node.server.hub.share_groups.groups.values()
        assert group.in_flight == 1
        if is_moved:
            await there.away(client, "s")
            client = await there.client("default", "s")
            await client.expect(Publish)
        else:
            client.send(PubRec(packet.packet_id))
            await client.expect(PubRel)
            client.send(PubComp(packet.packet_id))
            await client.silence()
        assert (group.in_flight, group.outstanding) == (0, 0)
    if is_moved:
        async with zoned(store) as there:
            client = await there.client("default", "s")
            again = await client.expect(Publish)
            assert (again.packet_id, again.payload, again.qos, again.dup) == (
                packet.packet_id,
                b"x",
                2,
                True,
            )
