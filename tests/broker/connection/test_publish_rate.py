"""How much clients may publish in a second, on the server's clock."""

from __future__ import annotations

from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PubAck,
    Publish,
    SubscriptionRequest,
    Will,
)
from broker.connection.settings import MqttSettings
from broker.net.listener import Listener
from broker.net.settings import ListenerSettings, NamedListener
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient


def exceeded(node: Node, scope: str) -> float:
    return node.metrics.value("publish_rate_exceeded", scope=scope)


@on_loop
async def test_a_client_above_its_rate_is_not_read_from_until_it_is_within_it() -> None:
    async with running(max_publish_rate=10, publish_rate_burst=1) as node:
        fast, other = await node.client("f"), await node.client("o")
        fast.send(*(Publish("t", b"x", 1, packet_id=number) for number in range(1, 13)))
        assert [(await fast.expect(PubAck)).packet_id for _ in range(12)] == list(range(1, 13))
        await node.until(lambda: exceeded(node, "client") == 1)
        fast.send(Publish("t", b"x", 1, packet_id=13))
        other.send(Publish("t", b"x", 1, packet_id=1))
        await other.expect(PubAck)
        assert node.metrics.value("messages_received", qos="1") == 13
        node.pass_time(1)
        assert (await fast.expect(PubAck)).packet_id == 13
        assert exceeded(node, "client") == 1


@on_loop
async def test_a_client_above_its_rate_is_disconnected_where_the_settings_say_so() -> None:
    async with running(max_publish_bytes_rate=1000, publish_rate_exceeded="disconnect") as node:
        fast, old = await node.client("f", 5), await node.client("o", 4)
        for client in (fast, old):
            client.send(Publish("t", b"x" * 2000))
        assert await fast.closed() == [Disconnect(0x96)]
        assert await old.closed() == []


@on_loop
async def test_clients_of_a_listener_share_its_rate_and_others_do_not() -> None:
    async with running() as node:
        named = NamedListener(ListenerSettings(bind="127.0.0.1:0", max_publish_rate=4), "shared")
        listener = Listener(named, node.server.hub, node.metrics)
        _, port = await listener.open()
        first, second = [await WireClient.connected(port, Connect(name, 4)) for name in "ab"]
        elsewhere = await node.client("e")
        subscriber = await node.client("s")
        await subscriber.subscribe(SubscriptionRequest("t"))
        for client in (first, second):
            client.send(*(Publish("t", b"x") for _ in range(3)))
        for _ in range(6):
            await subscriber.expect(Publish)
        await node.until(lambda: exceeded(node, "listener") == 1)
        elsewhere.send(*(Publish("t", b"y") for _ in range(50)))
        for _ in range(50):
            await subscriber.expect(Publish)
        listener.close()
        await first.close()
        await second.close()


@on_loop
async def test_a_client_that_waits_for_its_rate_is_not_taken_for_silent() -> None:
    async with running(max_publish_rate=1, max_publish_bytes_rate=100) as node:
        client = await node.client("c", keep_alive_s=2)
        client.send(Publish("t", b"x" * 1000))
        await node.until(lambda: exceeded(node, "client") == 1)
        node.pass_time(5)
        assert len(node.server.hub.connections) == 1
        node.pass_time(6)
        client.send(PingReq())
        await client.receive()


@on_loop
async def test_what_is_too_long_or_too_many_is_refused_with_its_code() -> None:
    async with running(
        max_client_id_bytes=23,
        max_subscriptions=1,
        max_topic_bytes=10,
        max_topic_levels=3,
        max_will_payload=4,
        max_user_properties=2,
    ) as node:

        async def connack(**connect: object) -> int:
            client = await WireClient.open(node.port, 5)
            client.send(Connect(**{"client_id": "c", "version": 5, **connect}))  # type: ignore[arg-type]  # as each case names
            return (await client.expect(ConnAck)).reason_code

        three = {"User-Property": [("a", "b")] * 3}
        assert await connack(client_id="x" * 24) == 0x85
        assert await connack(will=Will("t", b"12345")) == 0x97
        assert await connack(will=Will("a/b/c/d", b"")) == 0x90
        assert await connack(properties=three) == 0x97
        assert await connack(will=Will("t", b"1234", properties=three)) == 0x97
        assert await connack(will=Will("t", b"1234")) == 0
        client = await node.client("d", 5)
        codes = [
            await client.subscribe(SubscriptionRequest(text))
            for text in ("a", "b", "a/b/c/d", "x" * 11)
        ]
        assert codes == [[0], [0x97], [0x8F], [0x8F]]
        refused = ("quota_exceeded", "topic_filter_invalid")
        assert [node.metrics.value("subscriptions_refused", reason=why) for why in refused] == [
            1,
            2,
        ]
        for publish, code in (
            (Publish("x" * 11, b""), 0x90),
            (Publish("t", b"", properties=three), 0x97),
        ):
            client = await node.client("p", 5)
            client.send(publish)
            [said] = await client.closed()
            assert isinstance(said, Disconnect)
            assert said.reason_code == code
        ended = ("topic_name_invalid", "quota_exceeded")
        assert [node.metrics.value("disconnections", reason=why) for why in ended] == [1, 1]


@on_loop
async def test_limits_change_for_clients_that_are_connected() -> None:
    async with running() as node:
        client = await node.client("c")
        node.server.use_settings(
            MqttSettings(max_publish_rate=1, max_queued_messages=7, queue_full="drop_newest")
        )
        client.send(Publish("t", b"1"), Publish("t", b"2"), Publish("t", b"3", 1, packet_id=3))
        await client.expect(PubAck)
        await node.until(lambda: exceeded(node, "client") == 1)
        node.server.use_settings(MqttSettings())
        node.pass_time(3)
        for number in range(10, 20):
            client.send(Publish("t", b"x", 1, packet_id=number))
            await client.expect(PubAck)
        assert exceeded(node, "client") == 1
