"""What an overloaded server does: new clients are refused, old ones are not touched."""

from __future__ import annotations

from broker.codec.packets import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    SubscriptionRequest,
)
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient


async def _connack(node: Node, version: int) -> ConnAck:
    client = await WireClient.open(node.port, version)
    client.send(Connect("new", version))
    return await client.expect(ConnAck)


@on_loop
async def test_new_connections_are_refused_and_existing_ones_go_on() -> None:
    async with running() as node:
        old = await node.client("old")
        node.server.hub.context.admission.refused_with = 0x89
        assert (await _connack(node, 5)).reason_code == 0x89
        assert (await _connack(node, 4)).reason_code == 3
        old.send(PingReq())
        await old.expect(PingResp)
        assert node.metrics.value("connections_refused", reason="overload") == 2
        node.server.hub.context.admission.refused_with = 0
        assert (await _connack(node, 5)).reason_code == 0


@on_loop
async def test_clients_are_sent_to_another_server_where_one_is_named() -> None:
    async with running() as node:
        (
            node.server.hub.context.admission.refused_with,
            node.server.hub.context.admission.server_reference,
        ) = (
            0x9C,
            "b:1883 c:1883",
        )
        connack = await _connack(node, 5)
        assert (connack.reason_code, connack.properties["Server-Reference"]) == (
            0x9C,
            "b:1883 c:1883",
        )
        assert (await _connack(node, 4)).reason_code == 3


@on_loop
async def test_qos_0_is_dropped_and_counted_and_qos_1_goes_through() -> None:
    async with running() as node:
        publisher, subscriber = await node.client("p", 5), await node.client("s")
        await subscriber.subscribe(SubscriptionRequest("#", 1))
        node.server.hub.context.admission.drops_qos0 = True
        alias = {"Topic-Alias": 1}
        publisher.send(
            Publish("t", b"0", properties=alias),
            Publish("t", b"0"),
            Publish("t", b"1", 1, packet_id=1),
        )
        await publisher.expect(PubAck)
        node.server.hub.context.admission.drops_qos0 = False
        publisher.send(Publish("", b"2", properties=alias))
        assert [(await subscriber.expect(Publish)).payload for _ in range(2)] == [b"1", b"2"]
        assert node.dropped("overload") == 2
        received = sum(node.metrics.value("messages_received", qos=str(qos)) for qos in range(3))
        assert received == node.metrics.value("messages_passed") + node.dropped("overload")
