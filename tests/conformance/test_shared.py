"""Shared subscriptions: section 4.8.2 of MQTT 5.0, and what was proposed before (MQTT-234).

Members of the publisher's cell come first. So where several have to get something, `max_inflight` is as small as what
one of them is to have.
"""

from __future__ import annotations

import pytest

from broker.codec.packets import (
    Disconnect,
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
from tests.support.raw import SUBACK, RawClient, connect, subscribe
from tests.support.restarts import away, lasting, payloads, published, subscribed
from tests.support.wire import WireClient

GROUP = "$share/g/t"
VERSIONS = pytest.mark.parametrize("version", [4, 5])


async def member(
    node: Node, client_id: str, version: int = 5, qos: int = 1, text: str = GROUP
) -> WireClient:
    return await subscribed(await node.client(client_id, version), (text, qos))


async def lasting_member(node: Node, client_id: str, qos: int = 1) -> WireClient:
    return await subscribed(await lasting(node, client_id, 5), (GROUP, qos))


async def unsubscribe(client: WireClient, text: str = GROUP) -> int:
    client.send(Unsubscribe(77, [text]))
    return (await client.expect(UnsubAck)).reason_codes[0]


BAD_NAMES = [
    "$share//t",
    "$share/a+/t",
    "$share/#/t",
    "$share/+/t",
    "$share/g",
    "$share/g/",
    "$share/g/a#",
    "$share/",
]


@pytest.mark.parametrize("text", BAD_NAMES)
@pytest.mark.statement("5:4.8.2-1", "5:4.8.2-2", "own:C1")
@on_loop
async def test_a_share_name_is_not_empty_and_has_no_wildcard_and_a_filter_follows(
    text: str,
) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(subscribe(5, 9, (text, 1)))
        suback = await client.read()
        assert (suback[0], suback[-1]) == (SUBACK, 0x8F)
        assert node.server.hub.router.subscription_count == 0


@VERSIONS
@pytest.mark.statement("5:4.8.2-1", "5:4.8.2-2", "own:M4")
@on_loop
async def test_a_leading_slash_belongs_to_the_filter(version: int) -> None:
    async with running() as node:
        one = await member(node, "one", version, text="$share/consumer1//finance")
        await published(node, b"not this", topic="finance")
        await published(node, b"this", topic="/finance")
        assert await payloads(one, 1) == [b"this"]


@pytest.mark.parametrize("text", ["$share:name:t", "name:/t", "consumer1://t", "$shared/g/t"])
@pytest.mark.statement("own:M2", "own:C1")
@on_loop
async def test_other_ways_to_write_a_group_are_ordinary_filters(text: str) -> None:
    async with running() as node:
        first, second = [await member(node, name, text=text) for name in ("first", "second")]
        await published(node, b"x", topic=text)
        for client in (first, second):
            assert await payloads(client, 1) == [b"x"]


@VERSIONS
@pytest.mark.one_process  # members of the publisher's cell come first
@pytest.mark.statement("own:share-group")
@on_loop
async def test_a_queue_is_a_group_without_a_name(version: int) -> None:
    async with running() as node:
        members = [
            await member(node, name, version, text="$queue/t") for name in ("first", "second")
        ]
        named = await member(node, "named", version)
        await published(node, *[b"%d" % number for number in range(10)])
        assert [await payloads(client, 5) for client in members] == [
            [b"0", b"2", b"4", b"6", b"8"],
            [b"1", b"3", b"5", b"7", b"9"],
        ]
        assert len(await payloads(named, 10)) == 10
        for client in (*members, named):
            await client.silence()
        members[0].send(Unsubscribe(77, ["$queue/t"]))
        await members[0].expect(UnsubAck)
        await published(node, b"x", b"y")
        assert await payloads(members[1], 2) == [b"x", b"y"]


@pytest.mark.parametrize("text", ["$queue/", "$queue/a#", "$queue//#/t"])
@on_loop
async def test_a_queue_needs_a_filter(text: str) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(subscribe(5, 9, (text, 1)))
        assert (await client.read())[-1] == 0x8F


@on_loop
async def test_a_queue_has_no_no_local() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5))
        client.send(subscribe(5, 9, ("$queue/t", 4)))
        await client.ended(5, 0x82)


@VERSIONS
@pytest.mark.statement("own:share-group", "own:M-note-1")
@on_loop
async def test_each_message_goes_to_one_member_and_a_plain_subscription_has_its_own_copy(
    version: int,
) -> None:
    async with running() as node:
        both = await subscribed(await node.client("both", version), (GROUP, 1), ("t", 1))
        other = await member(node, "other", version)
        await published(node, *[b"%d" % number for number in range(10)])
        assert sorted(await payloads(both, 15)) == sorted(
            [b"%d" % n for n in range(10)] + [b"0", b"2", b"4", b"6", b"8"]
        )
        assert await payloads(other, 5) == [b"1", b"3", b"5", b"7", b"9"]
        await both.silence()
        await other.silence()


@pytest.mark.statement("own:share-group", "own:M3")
@on_loop
async def test_another_name_or_another_filter_is_another_group() -> None:
    async with running() as node:
        clients = [
            await member(node, name, text=text)
            for name, text in (("a", GROUP), ("b", "$share/h/t"), ("c", "$share/g/+"))
        ]
        await published(node, b"1", b"2")
        for client in clients:
            assert await payloads(client, 2) == [b"1", b"2"]


@pytest.mark.statement("own:share-no-retained", "own:M8", "own:M9")
@on_loop
async def test_nobody_of_a_group_is_sent_retained_messages() -> None:
    async with running() as node:
        await published(node, b"kept", retain=True)
        first, second = [await member(node, name) for name in ("first", "second")]
        await first.subscribe(SubscriptionRequest(GROUP, 1, retain_handling=0))
        await first.silence()
        await second.silence()


@pytest.mark.statement("own:share-membership", "own:M-note-6", "own:M-note-2", "5:4.8.2-3")
@on_loop
async def test_a_second_subscribe_changes_the_qos_and_counts_once_and_one_unsubscribe_leaves() -> (
    None
):
    async with running() as node:
        one, two = [await member(node, name) for name in ("one", "two")]
        await one.subscribe(SubscriptionRequest(GROUP, 0))
        await published(node, *[b"%d" % number for number in range(8)])
        assert [(await one.expect(Publish)).qos for _ in range(4)] == [0] * 4
        assert len(await payloads(two, 4)) == 4
        assert await unsubscribe(one) == 0
        assert await unsubscribe(one) == 0x11
        await published(node, b"8", b"9")
        assert await payloads(two, 2) == [b"8", b"9"]
        await one.silence()


@pytest.mark.statement("own:share-membership", "own:M10", "own:C2")
@on_loop
async def test_a_group_survives_its_creator_and_ends_with_its_last_member() -> None:
    async with running() as node:
        creator, other = await lasting_member(node, "creator"), await lasting_member(node, "other")
        await unsubscribe(creator)
        await published(node, b"1")
        assert await payloads(other, 1) == [b"1"]
        await other.close()
        await away(node, "other")
        await published(node, b"2", b"3")
        other = await lasting(node, "other", 5)
        assert (await other.expect(Publish)).payload == b"2"
        assert (await other.expect(Publish)).payload == b"3"
        await unsubscribe(other)
        await other.close()
        await away(node, "other")
        back = await lasting(node, "third", 5)
        await subscribed(back, (GROUP, 1))
        await back.silence()


@pytest.mark.statement("own:M5")
@on_loop
async def test_unsubscribe_compares_the_whole_filter() -> None:
    async with running() as node:
        one = await subscribed(await node.client("one", 5), (GROUP, 1), ("t", 1))
        assert await unsubscribe(one, "t") == 0
        await published(node, b"shared")
        assert await payloads(one, 1) == [b"shared"]
        assert await unsubscribe(one, GROUP) == 0
        await published(node, b"none")
        await one.silence()


@pytest.mark.statement("5:4.8.2-3", "own:M-note-2", "own:A1")
@on_loop
async def test_each_member_has_its_own_qos_and_subscription_identifier() -> None:
    async with running() as node:
        clients = [await node.client(f"m{qos}", 5) for qos in range(3)]
        for qos, client in enumerate(clients):
            await client.subscribe(SubscriptionRequest(GROUP, qos), identifier=qos + 1)
        await published(node, b"1", b"2", b"3", qos=2)
        for qos, client in enumerate(clients):
            packet = await client.expect(Publish)
            assert (packet.qos, packet.properties["Subscription-Identifier"]) == (qos, [qos + 1])


@pytest.mark.statement("5:4.8.2-4", "5:4.8.2-5", "own:M-note-3", "own:C4")
@on_loop
async def test_qos_2_is_finished_with_the_member_that_has_it() -> None:
    async with running(max_inflight=1) as node:
        one, other = await lasting_member(node, "one", 2), await member(node, "other", qos=2)
        await published(node, b"1", b"2", qos=2)
        packet = await one.expect(Publish)
        one.send(PubRec(packet.packet_id))
        await one.expect(PubRel)
        mine = packet.payload
        theirs = await other.expect(Publish)
        assert {mine, theirs.payload} == {b"1", b"2"}
        await one.close()
        await away(node, "one")
        await other.silence()
        one = await lasting(node, "one", 5)
        assert (await one.expect(PubRel)).packet_id == packet.packet_id
        one.send(PubComp(packet.packet_id))
        await one.silence()


@pytest.mark.statement("5:4.8.2-5")
@on_loop
async def test_qos_2_of_a_session_that_has_ended_is_given_to_nobody() -> None:
    async with running(max_inflight=1) as node:
        one, other = [await member(node, name, qos=2) for name in ("one", "other")]
        await published(node, b"1", b"2", qos=2)
        await one.expect(Publish)
        await other.expect(Publish)
        one.abort()
        await node.until(lambda: node.server.hub.sessions.get("one") is None)
        await other.silence()


@VERSIONS
@pytest.mark.statement("own:share-reassign", "own:M-note-4", "own:C4")
@on_loop
async def test_qos_1_that_a_lost_member_has_not_acknowledged_goes_to_another(version: int) -> None:
    async with running(max_inflight=2) as node:
        one, other = [await member(node, name, version) for name in ("one", "other")]
        await published(node, b"1", b"2", b"3", b"4")
        mine = [(await one.expect(Publish)).payload for _ in range(2)]
        await payloads(other, 2)
        one.abort()
        again = [await other.expect(Publish) for _ in range(2)]
        assert [packet.payload for packet in again] == mine
        assert all(packet.dup for packet in again)


@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x97, 0x99])
@pytest.mark.statement("5:4.8.2-6", "own:M-note-5")
@on_loop
async def test_what_a_member_refuses_is_discarded_and_counted(code: int) -> None:
    async with running(max_inflight=1) as node:
        one, other = [await member(node, name, qos=2) for name in ("one", "other")]
        await published(node, b"1", b"2")
        one.send(PubAck((await one.expect(Publish)).packet_id, code))
        other.send(PubAck((await other.expect(Publish)).packet_id))
        await published(node, b"3", b"4", qos=2)
        one.send(PubRec((await one.expect(Publish)).packet_id, code))
        await one.silence()
        one.abort()
        await node.until(lambda: node.server.hub.sessions.get("one") is None)
        await other.expect(Publish)
        await other.silence()
        assert node.metrics.value("deliveries_dropped", reason="refused_by_client") == 2


@pytest.mark.statement("own:share-too-large")
@on_loop
async def test_what_is_too_large_for_one_member_goes_to_another() -> None:
    async with running() as node:
        small = await node.client("small", 5, properties={"Maximum-Packet-Size": 60})
        await subscribed(small, (GROUP, 1))
        large = await member(node, "large")
        await published(node, b"x" * 100, b"y" * 100, b"z" * 100)
        assert [found[:1] for found in await payloads(large, 3)] == [b"x", b"y", b"z"]
        await small.silence()


@pytest.mark.statement("own:share-absent", "own:A2", "own:C3")
@on_loop
async def test_absent_members_are_passed_over_and_the_first_that_returns_has_what_waits() -> None:
    async with running(max_inflight=2) as node:
        one, two = await lasting_member(node, "one"), await lasting_member(node, "two")
        clean = await member(node, "clean")
        await one.close()
        await away(node, "one")
        await published(node, b"1", b"2", b"3", b"4")
        assert sorted(await payloads(two, 2) + await payloads(clean, 2)) == [b"1", b"2", b"3", b"4"]
        sessions = node.server.hub.sessions
        for client, name in ((two, "two"), (clean, "clean")):
            await client.silence()
            await client.close()
            await node.until(lambda name=name: (s := sessions.get(name)) is None or s.is_away)  # type: ignore[misc]
        await published(node, *[b"%d" % number for number in range(5, 10)])
        two = await lasting(node, "two", 5)
        assert await payloads(two, 5) == [b"%d" % number for number in range(5, 10)]


@pytest.mark.statement("own:M7")
@on_loop
async def test_shared_subscriptions_can_be_switched_off_and_clients_are_told() -> None:
    async with running(shared_subscription_available=False) as node:
        old = await node.client("old", 4)
        old.send(Subscribe(1, [SubscriptionRequest(GROUP, 1)]))
        assert (await old.expect(SubAck)).reason_codes == [0x80]
        new = await node.client("new", 5)
        assert new.connack.properties["Shared-Subscription-Available"] == 0
        new.send(Subscribe(1, [SubscriptionRequest(GROUP, 1)]))
        assert (await new.expect(Disconnect)).reason_code == 0x9E  # it had been told
