"""``$SYS`` topics: what is told, to whom, and when."""

from __future__ import annotations

import json

import pytest

from broker.codec.packets import PingReq, Publish, SubscriptionRequest
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
        texts = {topic.removeprefix("$SYS/broker/"): packet.payload.decode() for topic, packet in told.items()}
        assert texts["version"].startswith("sluice version ")
        assert texts["uptime"] == "1 seconds"
        assert [texts[f"clients/{name}"] for name in ("connected", "total", "maximum", "disconnected")] == [
            "1",
            "1",
            "1",
            "0",
        ]
        assert texts["subscriptions/count"] == "1"
        assert int(texts["heap/current"]) > 1_000_000
        assert texts["load/publish/received/1min"] == "0.00"
        assert all(packet.retain and packet.qos == 0 for packet in told.values())
        assert told["$SYS/broker/version"].properties == {"Subscription-Identifier": [7]}


@on_loop
async def test_afterwards_only_what_changed_is_told_every_interval() -> None:
    async with running(sys_interval_s=10) as node:
        client = await node.client("c")
        await client.subscribe(
            SubscriptionRequest("$SYS/broker/clients/+", 0), SubscriptionRequest("$SYS/broker/version", 0)
        )
        await _told(client)
        node.pass_time(10)
        await _told(client)  # the first time each value is new
        node.pass_time(9)
        assert await _told(client) == {}
        await node.client("d")
        node.pass_time(1)
        told = await _told(client)
        assert {topic.rpartition("/")[2] for topic in told} == {"active", "connected", "maximum", "total"}
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
