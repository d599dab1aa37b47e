"""``$SYS`` topics: what is told, to whom, and when."""

from __future__ import annotations

import json

import pytest

from broker.codec.packets import (
    PingReq,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from broker.connection.sys_topics import SysTopicSettings
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient


async def _told(client: WireClient) -> dict[str, Publish]:
    """What the client has got until now, by topic."""
    found = {}
    client.send(PingReq())
    while isinstance(packet := await client.receive(), Publish):
        found[packet.topic] = packet
    return found


@on_loop
async def test_who_subscribes_gets_all_values_at_once_as_if_retained() -> None:
    async with running(sys_interval_s=10) as node:
        client = await node.client("c", 5)
        node.pass_time(1)
        await client.subscribe(SubscriptionRequest("$SYS/#", 2), identifier=7)
        told = await _told(client)
        texts = {
            topic.removeprefix("$SYS/broker/"): packet.payload.decode()
            for topic, packet in told.items()
        }
        assert texts["version"].startswith("sluice version ")
        assert texts["uptime"] == "1 seconds"
        assert [
            texts[f"clients/{name}"] for name in ("connected", "total", "maximum", "disconnected")
        ] == [
            "1",
            "1",
            "1",
            "0",
        ]
        assert texts["subscriptions/count"] == "1"
        assert int(texts["heap/maximum"]) >= int(texts["heap/current"]) > 1_000_000
        assert texts["load/publish/received/1min"] == "0.00"
        assert all(packet.retain and packet.qos == 0 for packet in told.values())
        assert told["$SYS/broker/version"].properties == {"Subscription-Identifier": [7]}


@on_loop
async def test_afterwards_only_what_changed_is_told_every_interval() -> None:
    async with running(sys_interval_s=10) as node:
        client = await node.client("c")
        await client.subscribe(
            SubscriptionRequest("$SYS/broker/clients/+", 0),
            SubscriptionRequest("$SYS/broker/version", 0),
        )
        await _told(client)
        node.pass_time(10)
        await _told(client)  # the first time each value is new
        node.pass_time(9)
        assert await _told(client) == {}
        await node.client("d")
        node.pass_time(1)
        told = await _told(client)
        assert {topic.rpartition("/")[2] for topic in told} == {
            "active",
            "connected",
            "maximum",
            "total",
        }
        assert not any(packet.retain for packet in told.values())


@pytest.mark.parametrize("topic_filter", ["#", "+/broker/version", "a/#"])
@on_loop
async def test_filters_that_do_not_name_sys_get_nothing_of_it(topic_filter: str) -> None:
    async with running(sys_interval_s=10) as node:
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest(topic_filter, 0))
        node.pass_time(20)
        assert await _told(client) == {}


@on_loop
async def test_an_interval_of_0_switches_them_off() -> None:
    async with running(sys_interval_s=10) as node:
        node.server.hub.sys_topics.settings = SysTopicSettings(interval=0)
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("$SYS/#", 0))
        node.pass_time(20)
        assert await _told(client) == {}


@on_loop
async def test_packets_are_counted_by_type_and_publishes_by_their_bytes() -> None:
    async with running(sys_interval_s=10) as node:
        figures, client = node.server.hub.context.figures, await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("t", 2))
        client.send(Unsubscribe(1, ["nothing"]))
        await client.expect(UnsubAck)
        received, sent = figures.published_bytes_received.value, figures.published_bytes_sent
        client.send(Publish("t", b"12345"), Publish("t", b"12345", 1, packet_id=1))
        messages = [await client.expect(Publish), await client.expect(Publish)]
        await client.expect(PubAck)
        client.send(PubAck(messages[1].packet_id), Publish("t", b"12345", 2, packet_id=2))
        again = await client.expect(Publish)
        await client.expect(PubRec)
        client.send(PubRec(again.packet_id))
        await client.expect(PubRel)
        client.send(PubComp(again.packet_id), PubRel(2), Publish("nobody", b"", 1, packet_id=3))
        await client.expect(PubComp)
        await client.expect(PubAck)
        assert figures.published_bytes_received.value - received == 11 + 13 + 13 + 13
        assert figures.published_bytes_sent - sent == 11 + 13 + 13
        await client.subscribe(SubscriptionRequest("$SYS/broker/mqtt/#", 0))
        told = await _told(client)
        counts = {
            topic.removeprefix("$SYS/broker/mqtt/"): int(one.payload) for topic, one in told.items()
        }
        assert counts.pop("publish/sent") >= 3  # and what was told of $SYS before
        assert {name: count for name, count in counts.items() if count} == {
            "connect/received": 1, "publish/received": 4, "puback/received": 1, "pubrec/received": 1,
            "pubrel/received": 1, "pubcomp/received": 1, "subscribe/received": 2, "unsubscribe/received": 1,
            "connack/sent": 1, "puback/sent": 2, "pubrec/sent": 1, "pubrel/sent": 1,
            "pubcomp/sent": 1, "suback/sent": 2, "unsuback/sent": 1,
        }  # fmt: skip
        assert {
            "pingreq/received",
            "pingresp/sent",
            "disconnect/received",
            "disconnect/sent",
        } <= counts.keys()


@on_loop
async def test_sessions_that_expired_are_counted() -> None:
    async with running(sys_interval_s=10) as node:
        async with await node.client("c", 5, properties={"Session-Expiry-Interval": 5}):
            pass
        await node.until(lambda: not node.server.hub.connections)
        node.pass_time(6)
        client = await node.client("d")
        await client.subscribe(SubscriptionRequest("$SYS/broker/clients/expired", 0))
        assert [packet.payload for packet in (await _told(client)).values()] == [b"1"]


@on_loop
async def test_load_averages_are_mosquittos() -> None:
    async with running(sys_interval_s=10) as node:
        client = await node.client("c")
        node.pass_time(10)
        for _ in range(100):
            client.send(Publish("t", b""))
        await client.silence()
        node.pass_time(10)
        await client.subscribe(SubscriptionRequest("$SYS/broker/load/publish/received/+", 0))
        told = await _told(client)
        # 100 in 10 s are 600 a minute; 600 + e^(-10/60)(0 - 600), and likewise for 300 s and 900 s
        assert [told[f"$SYS/broker/load/publish/received/{name}"].payload for name in ("1min", "5min", "15min")] == [
            b"92.11", b"19.67", b"6.63",
        ]  # fmt: skip


async def _events(node: Node, *, client_events: bool) -> list[str]:
    node.server.hub.sys_topics.settings = SysTopicSettings(client_events=client_events)
    watcher = await node.client("w")
    await watcher.subscribe(SubscriptionRequest("$SYS/brokers/+/clients/#", 0))
    async with await node.client("guest"):
        pass
    await node.until(lambda: len(node.server.hub.connections) == 1)
    told = await _told(watcher)
    for packet in told.values():
        assert json.loads(packet.payload)["clientid"] == "guest"
    return [topic.rpartition("/")[2] for topic in told]


@pytest.mark.parametrize("client_events", [False, True])
@on_loop
async def test_clients_that_come_and_go_are_told_if_so_set(client_events: bool) -> None:
    async with running(sys_interval_s=10) as node:
        expected = ["connected", "disconnected"] if client_events else []
        assert await _events(node, client_events=client_events) == expected


@on_loop
async def test_states_of_others_are_shown_and_taken_away() -> None:
    async with running(sys_interval_s=10) as node:
        topics = node.server.hub.sys_topics
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("$SYS/broker/connection/#", 0))
        topics.set_state("connection/plant/state", "1")
        topics.set_state("connection/plant/state", "1")
        assert {topic: packet.payload for topic, packet in (await _told(client)).items()} == {
            "$SYS/broker/connection/plant/state": b"1"
        }
        topics.set_state("connection/plant/state", None)
        await client.subscribe(SubscriptionRequest("$SYS/broker/connection/#", 0))
        assert await _told(client) == {}
