"""Nothing is lost for a connected subscriber that acknowledges: publishers wait for their acknowledgements."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.codec.packets import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from broker.connection.dead_letters import DeadLetterSettings
from broker.connection.sharing.settings import SharedSettings
from broker.connection.withholding import SILENT_ALARM, SLOWING_ALARM
from broker.core.client import BROKER, Client
from broker.core.message import Message
from tests.broker.pipeline.test_stages import OneTap
from tests.support.examples import examples
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.pace import Publisher, Subscriber, all_run

_TIMEOUT_S = 30


def lost(node: Node, why: str = "queue_full") -> float:
    return node.metrics.value("deliveries_dropped", reason=why)


def is_active(node: Node, alarm: str) -> bool:
    return any(one.name == alarm for one in node.alarms.active())


def withheld(node: Node) -> float:
    return node.metrics.value("acknowledgements_withheld")


async def publisher_of(node: Node, name: str = "p", topic: str = "t", **how: int) -> Publisher:
    return Publisher(await node.client(name, 5), name, topic, **how)


async def quiet(publisher: Publisher) -> None:
    """Nothing but the answer to a ping comes: no acknowledgement is on its way."""
    publisher.client.send(PingReq())
    await publisher.client.expect(PingResp)


@settings(max_examples=examples(40))
@given(
    is_shared=st.booleans(),
    is_durable=st.booleans(),
    batches=st.lists(st.integers(1, 40), min_size=1, max_size=2),
    qos=st.integers(1, 2),
    inflight=st.integers(1, 20),
    most=st.integers(1, 30),
    publishers=st.lists(
        st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(1, 60)), min_size=1, max_size=5
    ),
)
def test_a_subscriber_gets_all_that_was_acknowledged_at_whatever_pace_it_acknowledges(
    is_shared: bool,
    is_durable: bool,
    batches: list[int],
    qos: int,
    inflight: int,
    most: int,
    publishers: list[tuple[int, int, int]],
) -> None:
    @on_loop
    async def check() -> None:
        limits: dict[str, Any] = {
            "max_inflight": inflight,
            "max_queued_messages": most,
            "max_stored_messages": most,
        }
        shared = SharedSettings(max_queued_messages=most, max_waiting_messages=most)
        async with running(shared=shared, **limits) as node:
            topic = "$share/g/t/+" if is_shared else "t/+"
            subscribers = [
                await Subscriber.on(
                    node,
                    f"s{number}",
                    topic,
                    qos=qos,
                    batch=min(batch, inflight),
                    clean=not is_durable,
                )
                for number, batch in enumerate(batches)
            ]
            made = [
                (
                    await publisher_of(
                        node, f"p{number}", f"t/{number}", qos=with_qos, window=window
                    ),
                    count,
                )
                for number, (with_qos, window, count) in enumerate(publishers)
            ]
            await all_run(node, made, subscribers, is_shared=is_shared)
            assert lost(node) == lost(node, "group_full") == 0
            for publisher, count in made:
                sent = [
                    b"%s:%d" % (publisher.name.encode(), number) for number in range(1, count + 1)
                ]
                assert publisher.acknowledged == sent
                found = [
                    [
                        payload
                        for payload in one.got
                        if payload.startswith(publisher.name.encode() + b":")
                    ]
                    for one in subscribers
                ]
                if is_shared:
                    assert (
                        sorted((payload for one in found for payload in one), key=sent.index)
                        == sent
                    )
                else:
                    assert found == [sent] * len(subscribers)
            await node.until(lambda: withheld(node) == 0)

    check()


@on_loop
async def test_an_acknowledgement_leaves_when_its_message_is_within_the_bound() -> None:
    async with running(max_inflight=1, max_queued_messages=4) as node:
        subscriber, publisher = await Subscriber.on(node, "s", "t"), await publisher_of(node)
        publisher.send(10)
        for _ in range(4):  # one in flight, three quarters of four in the queue
            await publisher.hear()
        await quiet(publisher)
        assert withheld(node) == 6
        for number in range(1, 7):
            assert await subscriber.take(1) == [b"p:%d" % number]
            subscriber.acknowledge()
            await publisher.hear()
            await quiet(publisher)
        assert len(publisher.acknowledged) == 10
        assert (withheld(node), node.metrics.value("withheld_bytes")) == (0, 0)


@on_loop
async def test_only_publishers_to_that_subscriber_wait_and_all_are_heard() -> None:
    async with running(max_inflight=1, max_queued_messages=1) as node:
        await Subscriber.on(node, "s", "t")
        other = await Subscriber.on(node, "o", "elsewhere")
        publisher, free = await publisher_of(node), await publisher_of(node, "f", "elsewhere")
        publisher.send(3)
        await publisher.hear()
        await publisher.hear()
        for _ in range(20):
            free.send()
            await free.hear()
            await other.take(1)
            other.acknowledge()
            await quiet(publisher)
        publisher.client.send(Subscribe(9, [SubscriptionRequest("x", 1)]))
        await publisher.client.expect(SubAck)
        publisher.client.send(Publish("elsewhere", b"qos 0"))
        assert await other.take(1) == [b"qos 0"]


@on_loop
async def test_acknowledgements_of_a_publisher_keep_their_order() -> None:
    async with running(max_inflight=1, max_queued_messages=1) as node:
        subscriber = await Subscriber.on(node, "s", "t", qos=2)
        publisher = (await publisher_of(node)).client
        for number, (topic, qos) in enumerate(
            (("t", 1), ("t", 1), ("t", 1), ("nobody", 1), ("t", 2), ("t", 1)), 1
        ):
            publisher.send(Publish(topic, b"%d" % number, qos, packet_id=number))
        for number in (1, 2):
            assert (await publisher.expect(PubAck)).packet_id == number
        publisher.send(PingReq())
        await publisher.expect(PingResp)
        receiving = asyncio.create_task(subscriber.run())
        answers = [await publisher.receive() for _ in range(4)]
        receiving.cancel()
        found = [(type(one), one.packet_id) for one in answers if isinstance(one, (PubAck, PubRec))]
        assert found == [(PubAck, 3), (PubAck, 4), (PubRec, 5), (PubAck, 6)]


@on_loop
async def test_a_publish_that_is_sent_again_before_its_acknowledgement_is_acknowledged_once() -> (
    None
):
    async with running(max_inflight=1, max_queued_messages=1, max_stored_messages=1) as node:
        subscriber, durable = (
            await Subscriber.on(node, "s", "t"),
            await Subscriber.on(node, "d", "t", clean=False),
        )
        publisher = await publisher_of(node)
        publisher.send(3)
        await publisher.hear()
        await publisher.hear()
        publisher.client.send(Publish("t", b"p:3", 1, dup=True, packet_id=3))
        await quiet(publisher)
        tasks = [asyncio.create_task(one.run()) for one in (subscriber, durable)]
        await publisher.hear()
        await quiet(publisher)
        for task in tasks:
            task.cancel()


@on_loop
async def test_a_client_that_publishes_to_itself_and_is_slow_gets_all() -> None:
    async with running(max_inflight=2, max_queued_messages=2) as node:
        client = await node.client("both")
        await client.subscribe(SubscriptionRequest("t", 1))
        publisher, count = Publisher(client, "both", "t"), 3000
        publisher.send(count, padding=1000)  # more than a publisher may have under way
        got: list[bytes] = []
        acknowledged = 0
        while acknowledged < count or len(got) < count:
            packet = await client.receive()
            if isinstance(packet, Publish):
                got.append(packet.payload.strip())
                client.send(PubAck(packet.packet_id))
            else:
                assert isinstance(packet, PubAck)
                acknowledged += 1
        assert got == [b"both:%d" % number for number in range(1, count + 1)]
        assert lost(node) == 0


@on_loop
async def test_clients_that_publish_to_each_other_without_waiting_do_not_lock_each_other_out() -> (
    None
):
    async with running(max_inflight=2, max_queued_messages=2) as node:
        names, count = ("one", "two"), 3000
        clients = {name: await node.client(name) for name in names}
        for name in names:
            await clients[name].subscribe(SubscriptionRequest(f"to/{name}", 1))

        async def exchange(name: str, other: str) -> list[bytes]:
            client, acknowledged = clients[name], 0
            got: list[bytes] = []
            Publisher(client, name, f"to/{other}").send(count, padding=1000)
            while acknowledged < count or len(got) < count:
                packet = await client.receive()
                if isinstance(packet, Publish):
                    got.append(packet.payload.strip())
                    client.send(PubAck(packet.packet_id))
                else:
                    acknowledged += 1
            return got

        found = list(await asyncio.gather(exchange("one", "two"), exchange("two", "one")))
        assert found == [
            [b"%s:%d" % (name, number) for number in range(1, count + 1)]
            for name in (b"two", b"one")
        ]
        assert lost(node) == 0


@on_loop
async def test_a_publisher_that_does_not_wait_is_not_read_from_for_a_while() -> None:
    async with running(max_inflight=20, max_queued_messages=20) as node:
        subscriber, publisher = (
            await Subscriber.on(node, "s", "t", batch=20),
            await publisher_of(node),
        )
        count, size = 4000, 2000
        publisher.send(count, padding=size)
        await node.until(lambda: node.metrics.value("publishers_slowed") == 1)
        session = node.server.hub.sessions.by_client_id["s"]
        assert session.waiting_bytes < count * size // 2
        receiving = asyncio.create_task(subscriber.run())
        for _ in range(count):
            await publisher.hear()
        await node.until(lambda: len(subscriber.got) == count)
        receiving.cancel()
        assert (lost(node), node.metrics.value("publishers_slowed")) == (0, 0)


@on_loop
async def test_a_subscriber_that_acknowledges_nothing_is_given_up_and_waited_for_when_it_does_again() -> (
    None
):
    letters = DeadLetterSettings(causes=["queue_full"], topic="dead/${clientid}")
    async with running(max_inflight=1, max_queued_messages=4, dead_letter=letters) as node:
        subscriber, publisher = await Subscriber.on(node, "s", "t"), await publisher_of(node)
        dead = await Subscriber.on(node, "dead", "dead/s", qos=0)
        publisher.send(10)
        for _ in range(4):
            await publisher.hear()
        node.pass_time(_TIMEOUT_S - 1)
        await quiet(publisher)
        assert is_active(node, SLOWING_ALARM)
        assert not is_active(node, SILENT_ALARM)
        node.pass_time(1)
        for _ in range(6):
            await publisher.hear()
        assert not is_active(node, SLOWING_ALARM)
        assert is_active(node, SILENT_ALARM)
        await node.until(lambda: lost(node) == 5)
        assert await dead.take(5) == [b"p:%d" % number for number in range(2, 7)]
        publisher.send(2)
        await publisher.hear()
        await publisher.hear()
        assert lost(node) == 7
        await subscriber.take(1)
        subscriber.acknowledge()
        assert await subscriber.take(1) == [b"p:9"]
        node.pass_time(1)
        assert not is_active(node, SILENT_ALARM)
        publisher.send(5)
        await quiet(publisher)
        receiving = asyncio.create_task(subscriber.run())
        subscriber.acknowledge()
        for _ in range(5):
            await publisher.hear()
        await node.until(lambda: subscriber.got[-1] == b"p:17")
        receiving.cancel()
        assert lost(node) == 7


@on_loop
async def test_one_acknowledgement_in_time_is_enough() -> None:
    async with running(max_inflight=1, max_queued_messages=1, subscriber_ack_timeout=5) as node:
        subscriber, publisher = await Subscriber.on(node, "s", "t"), await publisher_of(node)
        publisher.send(10)
        await publisher.hear()
        await publisher.hear()
        for number in range(3, 11):
            node.pass_time(4)
            await quiet(publisher)
            await subscriber.take(1)
            subscriber.acknowledge()
            await publisher.hear()
            assert len(publisher.acknowledged) == number
        assert lost(node) == 0


@on_loop
async def test_publishers_wait_no_more_when_the_subscriber_leaves() -> None:
    for expiry in (0, 60):
        async with running(max_inflight=1, max_queued_messages=4, max_stored_messages=4) as node:
            client = await node.client("s", 5, properties={"Session-Expiry-Interval": expiry})
            await client.subscribe(SubscriptionRequest("t", 1))
            publisher = await publisher_of(node)
            publisher.send(10)
            for _ in range(4):
                await publisher.hear()
            await client.close()
            for _ in range(6):
                await publisher.hear()
            assert withheld(node) == 0


@on_loop
async def test_a_publisher_that_comes_back_again_and_again_brings_no_more_than_may_be_withheld() -> (
    None
):
    async with running(max_inflight=1, max_queued_messages=1, max_withheld_bytes=64 * 1024) as node:
        await Subscriber.on(node, "s", "t")
        is_refused = False
        for number in range(100):
            publisher = await publisher_of(node, f"p{number}")
            publisher.send(1, padding=10_000)
            publisher.client.send(PingReq())
            while not isinstance(
                packet := await publisher.client.receive(), (PingResp, Disconnect)
            ):
                pass
            if isinstance(packet, Disconnect):
                is_refused = True
                assert packet.reason_code == 0x97
            await publisher.client.close()
            assert node.metrics.value("withheld_bytes") < 3 * 64 * 1024
        assert is_refused
        assert node.metrics.value("limits_reached", limit="max_withheld_bytes") > 0


@on_loop
async def test_messages_that_the_broker_makes_take_what_is_left_and_push_nothing_out() -> None:
    async with running(max_inflight=1, max_queued_messages=8, slow_subscriber_wait=0) as node:
        subscriber, publisher = await Subscriber.on(node, "s", "t"), await publisher_of(node)
        publisher.send(9)
        for _ in range(7):
            await publisher.hear()
        await quiet(publisher)
        for number in range(1, 6):
            node.server.hub.pipeline.publish(Message("t", b"own:%d" % number, 1, False, BROKER, 0))
        assert lost(node) == 3
        receiving = asyncio.create_task(subscriber.run())
        await publisher.hear()
        await publisher.hear()
        await node.until(lambda: len(subscriber.got) == 11)
        receiving.cancel()
        assert set(subscriber.got) == {*publisher.acknowledged, b"own:1", b"own:2"}


@on_loop
async def test_with_the_setting_drop_no_acknowledgement_waits() -> None:
    async with running(
        max_inflight=1, max_queued_messages=4, slow_subscriber="drop", slow_subscriber_wait=0
    ) as node:
        await Subscriber.on(node, "s", "t")
        publisher = await publisher_of(node)
        publisher.send(10)
        for _ in range(10):
            await publisher.hear()
        assert lost(node) == 5


@on_loop
async def test_the_api_waits_as_clients_do() -> None:
    async with running(max_inflight=1, max_queued_messages=1) as node:
        subscriber = await Subscriber.on(node, "s", "t")

        async def publish(number: int) -> None:
            message = Message("t", b"api:%d" % number, 1, False, Client("api"), node.clock.now_ns())
            assert (await node.server.publisher.publish_and_wait(message)).receivers == 1

        tasks = [asyncio.create_task(publish(number)) for number in range(1, 6)]
        assert await subscriber.take(1) == [b"api:1"]
        assert [task.done() for task in tasks] == [True, True, False, False, False]
        receiving = asyncio.create_task(subscriber.run())
        subscriber.acknowledge()
        await asyncio.gather(*tasks)
        await node.until(lambda: subscriber.got == [b"api:%d" % number for number in range(1, 6)])
        receiving.cancel()
        assert lost(node) == 0


def _republish(node: Node) -> OneTap:
    """A rule that republishes to t what is on source/1, three times."""

    def tap(message: Message) -> None:
        for number in range(3):
            made = message.changed("t", message.payload + b".%d" % number, 1, False, None)
            node.server.hub.pipeline.publish(made)

    return OneTap(tap, start="source")


@on_loop
async def test_who_sets_off_a_rule_that_republishes_waits_for_the_subscriber_of_its_messages() -> (
    None
):
    async with running(max_inflight=1, max_queued_messages=4) as node:
        node.server.set_stages([], [_republish(node)])
        subscriber, publisher = (
            await Subscriber.on(node, "s", "t"),
            await publisher_of(node, "p", "source/1", window=10),
        )
        publisher.send(20)
        receiving = asyncio.create_task(subscriber.run())
        for _ in range(20):
            await publisher.hear()
        await node.until(lambda: len(subscriber.got) == 60)
        receiving.cancel()
        assert lost(node) == 0


@on_loop
async def test_a_subscriber_whose_own_publishes_are_republished_to_it_is_not_locked_out() -> None:
    async with running(max_inflight=1, max_queued_messages=4) as node:
        node.server.set_stages([], [_republish(node)])
        client = await node.client("s", 5)
        await client.subscribe(SubscriptionRequest("t", 1))
        publisher, count = Publisher(client, "s", "source/1"), 1000
        publisher.send(count, padding=1000)
        got = acknowledged = 0
        while got < 3 * count or acknowledged < count:
            packet = await client.receive()
            if isinstance(packet, Publish):
                got += 1
                client.send(PubAck(packet.packet_id))
            else:
                acknowledged += 1
        assert lost(node) == 0
