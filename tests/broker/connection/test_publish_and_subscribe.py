"""Messages from client to client, in every QoS and version."""

from __future__ import annotations

import pytest

from broker.codec.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from tests.support.mqtt_server import on_loop, running
from tests.support.wire import WireClient


async def publish(client: WireClient, packet: Publish) -> int:
    """Publish with all steps of the QoS; the reason code of the PUBACK or PUBREC."""
    client.send(packet)
    if packet.qos == 0:
        return 0
    if packet.qos == 1:
        ack = await client.expect(PubAck)
        assert ack.packet_id == packet.packet_id
        return ack.reason_code
    rec = await client.expect(PubRec)
    if rec.reason_code < 0x80:
        client.send(PubRel(packet.packet_id))
        assert (await client.expect(PubComp)).packet_id == packet.packet_id
    return rec.reason_code


async def take(client: WireClient) -> Publish:
    """Receive a message with all steps of its QoS."""
    packet = await client.expect(Publish)
    if packet.qos == 1:
        client.send(PubAck(packet.packet_id))
    elif packet.qos == 2:
        client.send(PubRec(packet.packet_id))
        await client.expect(PubRel)
        client.send(PubComp(packet.packet_id))
    return packet


@pytest.mark.parametrize("to_version", [3, 4, 5])
@pytest.mark.parametrize("from_version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@on_loop
async def test_a_message_arrives_with_the_lower_qos(
    qos: int, granted: int, from_version: int, to_version: int
) -> None:
    async with running() as node:
        subscriber, publisher = (
            await node.client("s", to_version),
            await node.client("p", from_version),
        )
        assert await subscriber.subscribe(SubscriptionRequest("a/+", granted)) == [granted]
        assert await publish(publisher, Publish("a/b", b"hi", qos, packet_id=9 if qos else 0)) == 0
        got = await take(subscriber)
        assert (got.topic, got.payload, got.qos, got.retain, got.dup) == (
            "a/b",
            b"hi",
            min(qos, granted),
            False,
            False,
        )
        await subscriber.silence()


@pytest.mark.parametrize("to_version", [4, 5])
@pytest.mark.parametrize("from_version", [4, 5])
@on_loop
async def test_many_packets_in_one_piece_arrive_in_order(
    from_version: int, to_version: int
) -> None:
    async with running() as node:
        subscriber, publisher = (
            await node.client("s", to_version),
            await node.client("p", from_version),
        )
        await subscriber.subscribe(SubscriptionRequest("#", 1))
        sent = [
            Publish(f"t/{n // 5 % 3}", f"{n:04}".encode() * (1 + n % 7 // 6), 0) for n in range(500)
        ]
        publisher.send(*sent)
        assert [(await subscriber.expect(Publish)).payload for _ in sent] == [
            packet.payload for packet in sent
        ]
        assert node.metrics.value("messages_received", qos="0") == 500


@on_loop
async def test_packets_cut_anywhere_arrive() -> None:
    async with running() as node:
        subscriber, publisher = await node.client("s"), await node.client("p")
        await subscriber.subscribe(SubscriptionRequest("#", 0))
        data = b"\x30\x09\0\3a/bhell" * 3 + b"\x30\xcb\1\0\1t" + b"x" * 200
        for place in range(0, len(data), 7):
            publisher.send_bytes(data[place : place + 7])
        assert [len((await subscriber.expect(Publish)).payload) for _ in range(4)] == [4, 4, 4, 200]


@on_loop
async def test_all_properties_are_forwarded_and_none_of_the_connection() -> None:
    async with running() as node:
        subscriber, publisher = await node.client("s", 5), await node.client("p", 5)
        await subscriber.subscribe(SubscriptionRequest("a", 1), identifier=7)
        properties = {
            "Payload-Format-Indicator": 1,
            "Message-Expiry-Interval": 100,
            "Content-Type": "text",
            "Response-Topic": "r",
            "Correlation-Data": b"\0\1",
            "User-Property": [("a", "1"), ("b", "2"), ("a", "3")],
        }
        await publish(
            publisher,
            Publish("a", b"x", 1, packet_id=1, properties=properties | {"Topic-Alias": 3}),
        )
        assert (await take(subscriber)).properties == properties | {"Subscription-Identifier": [7]}
        await publish(publisher, Publish("", b"y", 1, packet_id=2, properties={"Topic-Alias": 3}))
        got = await take(subscriber)
        assert (got.topic, got.payload, got.properties) == (
            "a",
            b"y",
            {"Subscription-Identifier": [7]},
        )


@on_loop
async def test_subscription_options_of_version_5() -> None:
    async with running() as node:
        client, other = await node.client("c", 5), await node.client("o", 5)
        await publish(other, Publish("a", b"old", 1, retain=True, packet_id=1))
        request = SubscriptionRequest(
            "a", 1, no_local=True, retain_as_published=True, retain_handling=1
        )
        assert await client.subscribe(request) == [1]
        assert (await take(client)).payload == b"old"
        assert await client.subscribe(request) == [1]
        client.send(Publish("a", b"own"))
        await client.silence()
        await publish(other, Publish("a", b"new", 1, retain=True, packet_id=2))
        got = await take(client)
        assert (got.payload, got.retain) == (b"new", True)


@on_loop
async def test_nobody_subscribed_is_told_to_version_5() -> None:
    async with running() as node:
        new, old = await node.client("n", 5), await node.client("o", 4)
        assert await publish(new, Publish("a", b"", 1, packet_id=1)) == 0x10
        assert await publish(new, Publish("a", b"", 2, packet_id=2)) == 0x10
        assert await publish(old, Publish("a", b"", 2, packet_id=2)) == 0
        assert node.dropped("no_subscribers") == 3


@on_loop
async def test_unsubscribing_ends_delivery_and_says_what_there_was() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("a"), SubscriptionRequest("b"))
        client.send(Unsubscribe(5, ["a", "x"]))
        assert (await client.expect(UnsubAck)).reason_codes == [0, 0x11]
        client.send(Publish("a", b""), Publish("b", b""))
        assert (await client.expect(Publish)).topic == "b"


@pytest.mark.parametrize(("version", "codes"), [(4, [0x80, 1]), (5, [0x8F, 1])])
@on_loop
async def test_a_bad_filter_does_not_refuse_the_good_one(version: int, codes: list[int]) -> None:
    async with running() as node:
        client = await node.client("c", version)
        assert (
            await client.subscribe(SubscriptionRequest("a/#/b", 1), SubscriptionRequest("a", 1))
            == codes
        )


@on_loop
async def test_the_window_bounds_what_is_in_flight() -> None:
    async with running() as node:
        subscriber = await node.client("s", 5, properties={"Receive-Maximum": 2})
        publisher = await node.client("p")
        await subscriber.subscribe(SubscriptionRequest("a", 1))
        for number in range(1, 6):
            await publish(publisher, Publish("a", b"%d" % number, 1, packet_id=number))
        first, second = await subscriber.expect(Publish), await subscriber.expect(Publish)
        await subscriber.silence()
        subscriber.send(PubAck(first.packet_id))
        third = await subscriber.expect(Publish)
        await subscriber.silence()
        assert [packet.payload for packet in (first, second, third)] == [b"1", b"2", b"3"]
        assert third.packet_id not in (first.packet_id, second.packet_id)


@on_loop
async def test_a_packet_above_the_clients_maximum_is_not_sent() -> None:
    async with running() as node:
        subscriber = await node.client("s", 5, properties={"Maximum-Packet-Size": 50})
        publisher = await node.client("p")
        await subscriber.subscribe(SubscriptionRequest("a", 1))
        publisher.send(Publish("a", b"x" * 60), Publish("a", b"small"))
        await publish(publisher, Publish("a", b"y" * 60, 1, packet_id=1))
        await publish(publisher, Publish("a", b"tiny", 1, packet_id=2))
        assert [(await take(subscriber)).payload for _ in range(2)] == [b"small", b"tiny"]
        assert node.metrics.value("deliveries_dropped", reason="packet_too_large") == 2


@on_loop
async def test_a_message_that_expired_while_it_waited_is_dropped() -> None:
    async with running() as node:
        publisher = await node.client("p", 5)
        for name, expiry_s in (("short", 5), ("long", 60)):
            packet = Publish(
                name, b"x", 1, True, packet_id=1, properties={"Message-Expiry-Interval": expiry_s}
            )
            await publish(publisher, packet)
        node.pass_time(10)
        subscriber = await node.client("s", 5)
        await subscriber.subscribe(SubscriptionRequest("#", 0))
        got = await subscriber.expect(Publish)
        assert (got.topic, got.properties) == ("long", {"Message-Expiry-Interval": 50})
        await subscriber.silence()


@on_loop
async def test_retained_messages_are_sent_to_new_subscriptions_until_deleted() -> None:
    async with running() as node:
        publisher = await node.client("p")
        await publish(publisher, Publish("a/b", b"one", 1, True, packet_id=1))
        await publish(publisher, Publish("a/b", b"two", 2, True, packet_id=2))
        first = await node.client("s1")
        await first.subscribe(SubscriptionRequest("a/#", 1))
        got = await take(first)
        assert (got.payload, got.qos, got.retain) == (b"two", 1, True)
        publisher.send(Publish("a/b", b"", retain=True))
        got = await take(first)
        assert (got.payload, got.retain) == (b"", False)
        second = await node.client("s2")
        await second.subscribe(SubscriptionRequest("a/#", 1))
        await second.silence()


@on_loop
async def test_a_qos_2_message_sent_twice_is_passed_on_once() -> None:
    async with running() as node:
        subscriber, publisher = await node.client("s"), await node.client("p")
        await subscriber.subscribe(SubscriptionRequest("a", 0))
        for dup in (False, True):
            publisher.send(Publish("a", b"x", 2, dup=dup, packet_id=4))
            await publisher.expect(PubRec)
        publisher.send(PubRel(4))
        await publisher.expect(PubComp)
        await publish(publisher, Publish("a", b"y", 2, packet_id=4))
        assert [(await take(subscriber)).payload for _ in range(2)] == [b"x", b"y"]
        await subscriber.silence()


@pytest.mark.parametrize(("version", "code"), [(4, 0), (5, 0x92)])
@on_loop
async def test_unknown_identifiers_are_answered_and_the_connection_stays(
    version: int, code: int
) -> None:
    async with running() as node:
        client = await node.client("c", version)
        client.send(PubRel(77))
        assert await client.expect(PubComp) == PubComp(77, code)
        client.send(PubRec(78))
        assert await client.expect(PubRel) == PubRel(78, code)
        client.send(PubAck(79), PubComp(80))
        await client.silence()


@on_loop
async def test_a_share_group_serves_its_members_in_turn() -> None:
    async with running() as node:
        members = [await node.client(name) for name in ("m1", "m2")]
        for member in members:
            await member.subscribe(SubscriptionRequest("$share/g/t", 1))
        publisher = await node.client("p")
        for number in range(1, 5):
            await publish(publisher, Publish("t", b"%d" % number, 1, packet_id=number))
        for member in members:
            for _ in range(2):
                await take(member)
            await member.silence()


@on_loop
async def test_the_ledger_closes() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("a", 1))
        client.send(*[Publish("a", b"x") for _ in range(10)], Publish("b", b"x"))
        for number in range(1, 4):
            client.send(Publish("a", b"x", 1, packet_id=number))
        client.send(
            Publish("a", b"x", 2, packet_id=9),
            Publish("a", b"x", 2, dup=True, packet_id=9),
            Disconnect(),
        )
        await client.closed()
        received = sum(node.metrics.value("messages_received", qos=str(qos)) for qos in range(3))
        again = node.metrics.value("messages_resent_already_taken")
        assert received == 16
        assert received == node.metrics.value("messages_passed") + again
        assert again == 1
