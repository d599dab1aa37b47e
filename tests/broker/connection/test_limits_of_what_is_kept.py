"""What clients can have the broker keep is bounded, for each and for all together, and is free again when it goes."""

from __future__ import annotations

from dataclasses import replace

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
    UnsubAck,
    Unsubscribe,
    Will,
)
from broker.core import reason
from broker.routing.delayed import DelayedSettings
from broker.routing.settings import RetainedSettings
from broker.session.subscriptions import size_of
from broker.storage.memory import MemoryStore
from tests.support.mqtt_server import GatedStore, Node, on_loop, running
from tests.support.wire import WireClient

FULL = reason.QUOTA_EXCEEDED
LASTING = {"Session-Expiry-Interval": 100}


async def connected(node: Node, connect: Connect) -> int:
    """The code of the CONNACK."""
    wire = await WireClient.open(node.port, connect.version)
    wire.send(connect)
    code = (await wire.expect(ConnAck)).reason_code
    await wire.close()
    return code


def reached(node: Node, limit: str) -> float:
    return node.metrics.value("limits_reached", limit=limit)


@on_loop
async def test_sessions() -> None:
    async with running(max_sessions=2) as node:
        for name in ("a", "b"):
            assert await connected(node, Connect(name, 5, properties=LASTING)) == 0
        assert await connected(node, Connect("c", 5)) == FULL
        assert await connected(node, Connect("c", 4)) == 3
        assert await connected(node, Connect("a", 5, clean_start=False, properties=LASTING)) == 0
        assert reached(node, "max_sessions") == 2
        assert node.metrics.value("connections_refused", reason="quota_exceeded") == 2
        await node.until(lambda: all(session.is_away for session in node.server.hub.sessions))
        node.pass_time(101)
        assert await connected(node, Connect("c", 5)) == 0


@on_loop
async def test_client_identifiers_have_1024_bytes_unless_set() -> None:
    async with running() as node:
        assert await connected(node, Connect("é" * 512, 5)) == 0
        assert (
            await connected(node, Connect("é" * 512 + "x", 5)) == reason.CLIENT_IDENTIFIER_NOT_VALID
        )
        assert await connected(node, Connect("é" * 512 + "x", 4)) == 2
        assert reached(node, "max_client_id_bytes") == 2


@on_loop
async def test_client_identifiers_that_the_broker_makes_have_as_many_bytes_as_others() -> None:
    async with running(max_client_id_bytes=30, clientid_override="concat(['é', clientid])") as node:
        assert await connected(node, Connect("x" * 28, 5)) == 0
        assert await connected(node, Connect("x" * 29, 5)) == reason.CLIENT_IDENTIFIER_NOT_VALID
        assert await connected(node, Connect("x" * 29, 4)) == 2
        assert reached(node, "max_client_id_bytes") == 2
    async with running(max_client_id_bytes=30, clientid_override="'short'") as node:
        assert await connected(node, Connect("x" * 31, 5)) == reason.CLIENT_IDENTIFIER_NOT_VALID
    async with running(max_client_id_bytes=23) as node:
        client = await node.client("", 5)
        assert len(client.connack.properties["Assigned-Client-Identifier"]) == 23


@on_loop
async def test_wills() -> None:
    store = MemoryStore()
    async with running(store, max_will_bytes_total=3000) as node:
        will = Will(
            "w",
            b"x" * 900,
            properties={"User-Property": [("a", "b" * 50)], "Will-Delay-Interval": 50},
        )
        for name in ("a", "b"):
            assert await connected(node, Connect(name, 5, will=will, properties=LASTING)) == 0
        assert await connected(node, Connect("c", 5, will=will)) == FULL
        # in place of its own
        assert await connected(node, Connect("b", 5, will=will, properties=LASTING)) == 0
        assert reached(node, "max_will_bytes_total") == 1
        await node.written()
        taken = node.metrics.value("will_bytes")
        assert 2000 < taken < 3000
    async with running(store, clock=node.clock, max_will_bytes_total=3000) as node:
        assert node.metrics.value("will_bytes") == taken
        node.pass_time(200)
        assert node.metrics.value("will_bytes") == 0
        assert await connected(node, Connect("c", 5, will=will)) == 0


@on_loop
async def test_subscriptions_of_a_session_and_of_all() -> None:
    store = MemoryStore()
    limits = {"max_subscription_bytes": 5000, "max_subscription_bytes_total": 8000}
    async with running(store, **limits) as node:  # type: ignore[arg-type]
        first = await node.client("a", 5, properties=LASTING)
        filters = [f"{number}/" + "x" * 800 for number in range(5)]
        codes = await first.subscribe(*(SubscriptionRequest(one) for one in filters))
        assert codes == [0, 0, FULL, FULL, FULL]
        assert await first.subscribe(SubscriptionRequest("short", 1)) == [1]
        # in place of what is there
        assert await first.subscribe(SubscriptionRequest(filters[0], 1)) == [1]
        second = await node.client("b", 4)
        assert await second.subscribe(*(SubscriptionRequest(one) for one in filters[2:])) == [
            0,
            0x80,
            0x80,
        ]
        assert reached(node, "max_subscription_bytes") == 3
        assert reached(node, "max_subscription_bytes_total") == 2
        hub = node.server.hub
        sizes = [
            size_of(one.filter)
            for session in hub.sessions
            for one in session.subscriptions.values()
        ]
        assert node.metrics.value("subscription_bytes") == sum(sizes)
        first.send(Unsubscribe(9, [filters[0]]))
        await first.expect(UnsubAck)
        assert await second.subscribe(SubscriptionRequest(filters[3])) == [0]
        await second.close()
        await node.until(lambda: hub.sessions.get("b") is None)
        await node.written()
        left = node.metrics.value("subscription_bytes")
        assert (
            left
            == size_of(hub.sessions.by_client_id["a"].subscriptions[filters[1]].filter)
            + 300
            + 10
            + 100
        )
    async with running(store, clock=node.clock, **limits) as node:  # type: ignore[arg-type]
        assert node.metrics.value("subscription_bytes") == left
        node.pass_time(200)
        assert node.metrics.value("subscription_bytes") == 0


@on_loop
async def test_topics_behind_aliases_of_a_client_and_of_all() -> None:
    limits = {"max_topic_alias_bytes": 1000, "max_topic_alias_bytes_total": 1500}
    async with running(**limits) as node:  # type: ignore[arg-type]
        first, second = await node.client("a", 5), await node.client("b", 5)
        for client, topic in (
            (first, "x" * 600),
            (first, "y" * 900),
            (second, "z" * 500),
        ):
            # one alias, set again
            client.send(Publish(topic, b"", 1, packet_id=1, properties={"Topic-Alias": 1}))
            await client.expect(PubAck)
        assert node.metrics.value("topic_alias_bytes") == 1400
        second.send(Publish("z" * 200, b"", properties={"Topic-Alias": 2}))
        assert (await second.expect(Disconnect)).reason_code == FULL
        first.send(Publish("x" * 200, b"", properties={"Topic-Alias": 2}))
        assert (await first.expect(Disconnect)).reason_code == FULL
        assert reached(node, "max_topic_alias_bytes") == 1
        assert reached(node, "max_topic_alias_bytes_total") == 1
        await node.until(lambda: node.metrics.value("topic_alias_bytes") == 0)


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("letter", ["v", "é", "€", "😀"])
@on_loop
async def test_user_properties_of_a_packet(letter: str, count: int) -> None:
    async with running(max_user_property_bytes=1200) as node:
        pairs = [("k" * 12, letter * ((1200 // count - 12) // len(letter.encode())))] * count
        client = await node.client("a", 5, properties={"User-Property": pairs})
        client.send(Publish("t", b"", 1, packet_id=1, properties={"User-Property": pairs}))
        await client.expect(PubAck)
        client.send(
            Publish("t", b"", 1, packet_id=2, properties={"User-Property": [*pairs, ("", "v")]})
        )
        assert (await client.expect(Disconnect)).reason_code == FULL
        will = Will("w", b"", properties={"User-Property": [("a", "b")]})
        assert (
            await connected(node, Connect("b", 5, will=will, properties={"User-Property": pairs}))
            == FULL
        )
        assert reached(node, "max_user_property_bytes") == 2


@on_loop
async def test_retained_messages_of_one_client() -> None:
    async with running(retained=RetainedSettings(max_bytes_per_client=2500)) as node:
        first, second = await node.client("a", 5), await node.client("b", 5)

        async def retain(client: WireClient, topic: str, size: int = 1000) -> int:
            client.send(Publish(topic, b"x" * size, 1, True, packet_id=1))
            code = (await client.expect(PubAck)).reason_code
            return 0 if code == reason.NO_MATCHING_SUBSCRIBERS else code

        assert [await retain(first, topic) for topic in "tuvt"] == [0, 0, FULL, 0]
        assert [await retain(second, topic) for topic in "vwx"] == [0, 0, FULL]
        assert node.dropped("retained_full_for_client") == 2
        assert [
            await retain(first, "t", 0),
            await retain(first, "x"),
            await retain(first, "y"),
        ] == [0, 0, FULL]


@on_loop
async def test_user_properties_of_all_connected_clients() -> None:
    async with running(max_user_property_bytes_total=3000) as node:
        named = Connect("a", 5, properties={"User-Property": [("k" * 10, "v" * 1000)], **LASTING})
        first = await WireClient.connected(node.port, named)
        taken = node.metrics.value("user_property_bytes")
        assert 1010 < taken < 1300
        second = await WireClient.connected(node.port, replace(named, client_id="b"))
        assert await connected(node, replace(named, client_id="c")) == FULL
        assert await connected(node, Connect("c", 5)) == 0
        assert reached(node, "max_user_property_bytes_total") == 1
        again = await WireClient.connected(node.port, named)  # in place of its own
        assert (await first.expect(Disconnect)).reason_code == reason.SESSION_TAKEN_OVER
        assert node.metrics.value("user_property_bytes") == 2 * taken
        await again.close()
        await second.close()
        await node.until(lambda: node.metrics.value("user_property_bytes") == 0)


@on_loop
async def test_delayed_messages_of_one_client() -> None:
    store = MemoryStore()
    async with running(store) as node:
        node.server.hub.delayed.settings = DelayedSettings(max_delayed_bytes_per_client=2500)
        first, second = await node.client("a", 5), await node.client("b", 5)

        async def delay(client: WireClient) -> int:
            client.send(Publish("$delayed/10/t", b"x" * 1000, 1, packet_id=1))
            return (await client.expect(PubAck)).reason_code

        assert [await delay(first) for _ in range(3)] == [0, 0, FULL]
        assert [await delay(second) for _ in range(3)] == [0, 0, FULL]
        assert node.dropped("delayed_full_for_client") == 2
        await node.written()
    async with running(store, clock=node.clock) as node:
        node.server.hub.delayed.settings = DelayedSettings(max_delayed_bytes_per_client=2500)
        first = await node.client("a", 5)
        assert await delay(first) == FULL
        node.pass_time(11)
        assert [await delay(first) for _ in range(3)] == [0, 0, FULL]


@on_loop
async def test_what_clients_that_are_gone_may_send_again() -> None:
    """The oldest is forgotten, in memory and on disk, and not what a connected client sent."""
    store = MemoryStore()
    async with running(store, max_inbound_bytes_total=4000) as node:
        hub = node.server.hub
        lasting = await node.client("lasting", 5, properties=LASTING)
        await lasting.subscribe(SubscriptionRequest("t", 1))
        connected = await node.client("connected", 5)
        connected.send(Publish("t", b"x", 1, packet_id=1))
        await connected.expect(PubAck)
        away = await node.client("away", 5, properties=LASTING)
        away.send(Publish("none", b"x", 2, packet_id=1))
        await away.expect(PubRec)
        await away.close()
        await node.until(lambda: hub.sessions.by_client_id["away"].is_away)
        for number in range(20):
            client = await node.client(f"gone-{number}", 5)
            client.send(Publish("t", b"x", 1, packet_id=1))
            await client.expect(PubAck)
            await client.close()
            await node.until(lambda name=f"gone-{number}": hub.sessions.get(name) is None)  # type: ignore[misc]
        await node.written()
        kept = ["connected", *(f"gone-{number}" for number in (15, 16, 17, 18, 19))]
        assert list(hub.inbounds) == kept
        assert 3000 < node.metrics.value("inbound_bytes") < 4000
        assert node.metrics.value("inbounds_forgotten") == 16

        async def send_again(name: str, qos: int) -> int:
            again = await node.client(name, 5, clean_start=False, properties=LASTING)
            taken = node.metrics.value("messages_resent_already_taken")
            again.send(Publish("t", b"x", qos, dup=True, packet_id=1))
            await again.expect(PubAck if qos == 1 else PubRec)
            return int(node.metrics.value("messages_resent_already_taken") - taken)

        assert await send_again("gone-19", 1) == 1
        assert await send_again("gone-3", 1) == 0
        assert await send_again("away", 2) == 0
        await node.written()
        kept = sorted(hub.inbounds)
    async with running(store, clock=node.clock) as node:
        assert sorted(node.server.hub.inbounds) == kept
    async with running(store, clock=node.clock, max_inbound_bytes_total=2000) as node:
        assert len(node.server.hub.inbounds) == 2
        assert 1000 < node.metrics.value("inbound_bytes") < 2000
        assert node.metrics.value("inbounds_forgotten") == len(kept) - 2 > 0
        node.pass_time(10_000)
        for _ in range(5):
            node.pass_time(200)
        assert node.metrics.value("inbound_bytes") == 0
        await node.written()
        assert not list(store.scan(b"inbound/"))
    async with running(store, clock=node.clock) as node:
        assert not node.server.hub.inbounds


@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_what_connected_clients_may_send_again(version: int) -> None:
    """Above the bound acknowledged messages are forgotten early; no open QoS 2 identifier ever is."""
    async with running(max_inbound_bytes_connected=64 * (120 + 70)) as node:
        hub = node.server.hub
        greedy, other = await node.client("greedy", version), await node.client("other", version)
        for number in range(1, 70):
            other.send(Publish("r", b"%d" % number, 1, True, packet_id=number))
            await other.expect(PubAck)
        assert node.metrics.value("inbound_connected_bytes") == 64 * 120
        for number in range(1, 64 + 1):
            greedy.send(Publish("t", b"x", 2, packet_id=number))
            await greedy.expect(PubRec)
        assert node.metrics.value("inbound_connected_bytes") == 64 * (120 + 70)
        assert reached(node, "max_inbound_bytes_connected") == 0
        hub.inbounds.max_connected_bytes = 1000
        other.send(Publish("r", b"70", 1, True, packet_id=70))
        await other.expect(PubAck)
        assert reached(node, "max_inbound_bytes_connected") == 1
        assert (
            node.metrics.value("inbound_connected_bytes")
            == 64 * 70 + len(hub.inbounds["other"].recent) * 120
        )
        assert len(hub.inbounds["other"].recent) <= 2
        greedy.send(Publish("t", b"x", 2, dup=True, packet_id=1), PubRel(2))  # known ones go on
        assert (await greedy.expect(PubRec)).packet_id == 1
        assert (await greedy.expect(PubComp)).packet_id == 2
        other.send(Publish("t", b"x", 2, packet_id=71))  # and so does a client that has few
        await other.expect(PubRec)
        greedy.send(*(Publish("t", b"x", 2, packet_id=100 + number) for number in range(2)))
        ended = await greedy.closed()
        assert [packet.packet_id for packet in ended if isinstance(packet, PubRec)] == [100]
        assert [packet.reason_code for packet in ended if isinstance(packet, Disconnect)] == [
            FULL
        ] * (version == 5)
        assert reached(node, "max_inbound_bytes_connected") == 2
        assert node.metrics.value("inbound_connected_bytes") == 70 + 120 * len(
            hub.inbounds["other"].recent
        )


@on_loop
async def test_what_is_forgotten_while_it_waits_for_its_commit_does_not_come_back() -> None:
    store = GatedStore()
    async with running(store, max_inbound_bytes_total=0) as node:
        lasting = await node.client("lasting", 5, properties=LASTING)
        await lasting.subscribe(SubscriptionRequest("t", 1))
        client = await node.client("gone", 5)
        store.allow.clear()
        client.send(Publish("t", b"x", 1, packet_id=1))
        await node.until(lambda: "gone" in node.server.hub.inbounds)
        await client.close()
        await node.until(lambda: node.server.hub.sessions.get("gone") is None)
        assert "gone" not in node.server.hub.inbounds
        store.allow.set()
        await node.written()
        assert not list(store.scan(b"inbound/"))
