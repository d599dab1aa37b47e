"""The events a broker raises as rules read them: under both names, with exactly the columns that are documented."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
)
from rules.sql.sources import events_of
from tests.support.mqtt_server import on_loop
from tests.support.rules_server import RulesNode, running_rules
from tests.support.wire import WireClient

COMMON = "event timestamp node metadata "
MESSAGE = (
    "id clientid username payload peerhost peername topic qos flags pub_props publish_received_at "
)
CONNECTION = "clientid username peername sockname proto_name proto_ver "
PAIRS = [("k", "1"), ("k", "2")]
PROPS = {
    "User-Property": {"k": "2"},
    "User-Property-Pairs": [{"key": "k", "value": "1"}, {"key": "k", "value": "2"}],
}
HOT = {"type": "stream", "stream": "hot"}

Scene = Callable[[RulesNode], Awaitable[None]]


async def client(node: RulesNode, name: str = "c", **properties: Any) -> WireClient:
    options = {"Session-Expiry-Interval": 60, "User-Property": PAIRS, **properties}
    return await node.server.client(name, 5, username="u", keep_alive_s=30, properties=options)


async def one_delivery(node: RulesNode, qos: int = 1) -> WireClient:
    sender, receiver = await client(node, "sender"), await client(node, "receiver")
    await receiver.subscribe(SubscriptionRequest("t", qos))
    sender.send(
        Publish(
            "t",
            b"hi",
            qos,
            packet_id=1,
            properties={"User-Property": PAIRS, "Content-Type": "text"},
        )
    )
    while not isinstance(await receiver.receive(), Publish):
        pass
    await sender.receive()
    return receiver


async def delivered(node: RulesNode) -> None:
    await one_delivery(node)


async def acked(node: RulesNode) -> None:
    receiver = await one_delivery(node)
    receiver.send(PubAck(1, 0, {"User-Property": PAIRS}))
    await receiver.silence()


async def dropped(node: RulesNode) -> None:
    sender = await client(node)
    sender.send(Publish("nobody", b"hi"))
    await sender.silence()


async def delivery_dropped(node: RulesNode) -> None:
    one = await client(node)
    await one.subscribe(SubscriptionRequest("t", 1, no_local=True))
    one.send(Publish("t", b"hi"))
    await one.silence()


async def delivery_dropped_away(node: RulesNode) -> None:
    receiver = await client(node, "receiver")
    await receiver.subscribe(SubscriptionRequest("t", 1))
    receiver.send(Disconnect())
    await receiver.closed()
    sender = await client(node, "sender")
    sender.send(Publish("t", b"hi"))
    await sender.silence()


async def connected(node: RulesNode) -> None:
    await client(node)


async def connected_bridge(node: RulesNode) -> None:
    await node.server.client("c", 4, username="u", is_bridge=True)


async def disconnected(node: RulesNode) -> None:
    one = await client(node)
    one.send(Disconnect(0, {"User-Property": PAIRS}))
    await one.closed()


async def refused(node: RulesNode) -> None:
    one = await WireClient.open(node.server.port, 5)
    properties = {"Session-Expiry-Interval": 60, "Authentication-Method": "no such method"}
    one.send(Connect("c", 5, username="u", keep_alive_s=30, properties=properties))
    assert (await one.expect(ConnAck)).reason_code == 0x8C


async def ping(node: RulesNode) -> None:
    one = await client(node)
    await one.silence()


async def subscribed(node: RulesNode) -> None:
    one = await client(node)
    one.send(Subscribe(1, [SubscriptionRequest("$share/g/t", 1)], {"User-Property": PAIRS}))
    await one.expect(SubAck)


async def unsubscribed(node: RulesNode) -> None:
    one = await client(node)
    await one.subscribe(SubscriptionRequest("$share/g/t", 1))
    one.send(Unsubscribe(2, ["$share/g/t"], {"User-Property": PAIRS}))
    await one.expect(UnsubAck)


EVENTS: list[tuple[str, str, str, str, Scene, dict[str, Any]]] = [
    (
        "message/delivered", "message_delivered", "message.delivered", "from_clientid from_username " + MESSAGE,
        delivered,
        {"from_clientid": "sender", "clientid": "receiver", "payload": "hi", "flags": {"retain": False, "dup": False},
         "pub_props": {"Content-Type": "text", **PROPS}},
    ),
    (
        "message/acked", "message_acked", "message.acked", "from_clientid from_username puback_props " + MESSAGE, acked,
        {"from_clientid": "sender", "clientid": "receiver", "puback_props": PROPS},
    ),
    (
        "message/dropped", "message_dropped", "message.dropped", "reason " + MESSAGE, dropped,
        {"reason": "no_subscribers", "clientid": "c", "pub_props": {"User-Property": {}}},
    ),
    (
        "message/delivery_dropped", "delivery_dropped", "delivery.dropped",
        "reason from_clientid from_username " + MESSAGE, delivery_dropped, {"reason": "no_local"},
    ),
    (
        "message/delivery_dropped", "delivery_dropped", "delivery.dropped",
        "reason from_clientid from_username " + MESSAGE, delivery_dropped_away,
        {"reason": "qos0_msg", "clientid": "receiver", "from_clientid": "sender"},
    ),
    (
        "client/connected", "client_connected", "client.connected",
        CONNECTION + "keepalive clean_start receive_maximum expiry_interval is_bridge conn_props connected_at "
        "client_attrs", connected,
        {"clientid": "c", "username": "u", "proto_name": "MQTT", "proto_ver": 5, "keepalive": 30, "clean_start": True,
         "expiry_interval": 60, "is_bridge": False, "conn_props": {"Session-Expiry-Interval": 60, **PROPS},
         "client_attrs": {}},
    ),
    (
        "client/connected", "client_connected", "client.connected",
        CONNECTION + "keepalive clean_start receive_maximum expiry_interval is_bridge conn_props connected_at "
        "client_attrs", connected_bridge,
        {"clientid": "c", "proto_ver": 4, "is_bridge": True},
    ),
    (
        "client/disconnected", "client_disconnected", "client.disconnected",
        CONNECTION + "reason disconn_props disconnected_at connected_at client_attrs", disconnected,
        {"reason": "normal", "disconn_props": PROPS},
    ),
    (
        "client/connack", "client_connack", "client.connack",
        CONNECTION + "reason_code clean_start keepalive expiry_interval connected_at conn_props", connected,
        {"reason_code": "success", "keepalive": 30, "expiry_interval": 60, "clean_start": True},
    ),
    (
        "client/connack", "client_connack", "client.connack",
        CONNECTION + "reason_code clean_start keepalive expiry_interval connected_at conn_props", refused,
        {"reason_code": "bad_authentication_method", "username": "u", "expiry_interval": 60},
    ),
    (
        "client/ping", "", "client.ping", CONNECTION + "clean_start keepalive expiry_interval conn_props", ping,
        {"clientid": "c", "keepalive": 30, "expiry_interval": 60},
    ),
    (
        "session/subscribed", "session_subscribed", "session.subscribed",
        "clientid username peerhost peername topic qos sub_props client_attrs", subscribed,
        {"topic": "$share/g/t", "qos": 1, "sub_props": PROPS},
    ),
    (
        "session/unsubscribed", "session_unsubscribed", "session.unsubscribed",
        "clientid username peerhost peername topic qos unsub_props client_attrs", unsubscribed,
        {"topic": "$share/g/t", "qos": 1, "unsub_props": PROPS},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "old_topic", "event", "names", "scene", "some"), EVENTS)
def test_an_event_has_its_columns(
    topic: str, old_topic: str, event: str, names: str, scene: Scene, some: dict[str, Any]
) -> None:
    @on_loop
    async def run() -> None:
        async with running_rules() as node:
            node.rule("r1", f"SELECT * FROM '$events/{topic}'", HOT)
            await scene(node)
            await node.server.until(lambda: node.streams.records["hot"])
            row = json.loads(node.streams.records["hot"][-1].payload)
            assert set(row) == set((COMMON + names).split())
            assert {name: row[name] for name in some} == some
            assert (row["event"], row["node"], row["metadata"]) == (event, "n1", {"rule_id": "r1"})
            for name in ("peername", "sockname"):
                if name in row:
                    host, _, port = row[name].partition(":")
                    assert (host, port.isdigit()) == ("127.0.0.1", True)
            if "sockname" in row:
                assert row["sockname"] == f"127.0.0.1:{node.server.port}"
            for name in ("timestamp", "connected_at", "disconnected_at", "publish_received_at"):
                assert row.get(name, 1_700_000_000_000) == 1_700_000_000_000, "milliseconds"

    run()
    assert events_of(f"$events/{topic}") == {event}
    if old_topic:
        assert events_of(f"$events/{old_topic}") == {event}


@on_loop
async def test_events_nobody_reads_are_not_built() -> None:
    async with running_rules() as node:
        await acked(node)
        assert node.server.seen == []
