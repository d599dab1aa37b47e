"""Messages published to ``$delayed/SECONDS/TOPIC``."""

from __future__ import annotations

import pytest

from broker.codec.packets import PubAck, Publish, SubscriptionRequest
from broker.core.errors import Unavailable
from broker.core.stage import Refusal
from broker.routing.delayed import DelayedSettings, parse
from broker.routing.rewrite import RewriteSpec
from broker.storage.memory import MemoryStore
from tests.support.mqtt_server import GatedStore, MovedClock, Node, on_loop, running


async def _send(
    node: Node, topic: str, payload: bytes = b"x", version: int = 5, **more: object
) -> int:
    """Publish at QoS 1; the code of the answer."""
    async with await node.client("publisher", version) as client:
        client.send(Publish(topic, payload, 1, packet_id=1, **more))  # type: ignore[arg-type]
        return (await client.expect(PubAck)).reason_code


@on_loop
async def test_a_message_comes_when_its_delay_is_over_and_not_before() -> None:
    async with running() as node:
        watcher = await node.client("w", 5)
        await watcher.subscribe(SubscriptionRequest("#", 1))
        properties = {
            "Content-Type": "text",
            "User-Property": [("a", "1"), ("a", "2")],
            "Correlation-Data": b"\0\1",
        }
        assert await _send(node, "$delayed/10/a/b", b"later", properties=properties) == 0
        node.pass_time(9.9)
        await watcher.silence()
        node.pass_time(0.1)
        found = await watcher.expect(Publish)
        assert (found.topic, found.payload, found.qos, found.properties) == (
            "a/b",
            b"later",
            1,
            properties,
        )
        await node.writer.committed()
        assert not list(node.writer.store.scan(b"delayed/"))


@on_loop
async def test_messages_due_at_one_time_come_in_the_order_in_which_they_were_sent() -> None:
    async with running() as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("t/#", 0))
        for number in range(5):
            await _send(node, f"$delayed/{10 - number}/t/{number}")
            node.clock.move(1)
        node.pass_time(60)
        assert [(await watcher.expect(Publish)).topic for _ in range(5)] == [
            f"t/{number}" for number in range(5)
        ]


@pytest.mark.parametrize("inner", ["$SYS/broker/version", "$events/client_connected", "$share/g/t"])
@on_loop
async def test_what_clients_may_not_publish_now_they_may_not_publish_later(inner: str) -> None:
    async with running() as node:
        assert await _send(node, f"$delayed/1/{inner}") == 0x87
        assert node.dropped("reserved_topic") == 1
        assert len(node.server.hub.delayed) == 0


@on_loop
async def test_retain_counts_when_the_message_is_due() -> None:
    async with running() as node:
        await _send(node, "$delayed/5/kept", b"v", retain=True)
        assert node.server.hub.retained.count == 0
        node.pass_time(5)
        late = await node.client("late")
        await late.subscribe(SubscriptionRequest("#", 0))
        found = await late.expect(Publish)
        assert (found.topic, found.retain) == ("kept", True)


@on_loop
async def test_expiry_counts_from_when_the_message_was_sent() -> None:
    async with running() as node:
        watcher = await node.client("w", 5)
        await watcher.subscribe(SubscriptionRequest("#", 0))
        await _send(node, "$delayed/10/old", properties={"Message-Expiry-Interval": 5})
        await _send(node, "$delayed/10/young", properties={"Message-Expiry-Interval": 30})
        node.pass_time(10)
        found = await watcher.expect(Publish)
        assert (found.topic, found.properties["Message-Expiry-Interval"]) == ("young", 20)


@pytest.mark.parametrize(
    "topic", ["$delayed/x/t", "$delayed/-1/t", "$delayed/4294968/t", "$delayed/5", "$delayed/5/"]
)
@on_loop
async def test_delays_that_are_none_are_refused(topic: str) -> None:
    async with running() as node:
        assert await _send(node, topic) == 0x90
        assert node.dropped("delayed_invalid") == 1


def test_the_longest_delay_is_emqxs() -> None:
    assert parse("$delayed/4294967/t") == (4_294_967, "t")


@on_loop
async def test_more_than_may_be_kept_are_refused_by_name() -> None:
    async with running() as node:
        node.server.hub.delayed.settings = DelayedSettings(max_delayed_messages=1)
        assert await _send(node, "$delayed/5/t") == 0
        assert await _send(node, "$delayed/5/t") == 0x97
        node.server.hub.delayed.settings = DelayedSettings(max_delayed_bytes=10)
        assert await _send(node, "$delayed/5/t") == 0x97
        assert node.dropped("delayed_full") == 2
        node.server.hub.delayed.settings = DelayedSettings(enable=False)
        assert await _send(node, "$delayed/5/t") == 0x90


@on_loop
async def test_a_kill_loses_and_doubles_nothing() -> None:
    store, clock = MemoryStore(), MovedClock()
    async with running(store, clock=clock) as node:
        for delay in (30, 10, 20, 500):
            await _send(node, f"$delayed/{delay}/t/{delay}")
    clock.move(60)
    async with running(store, clock=clock) as node:
        watcher = await node.client("w")
        assert node.metrics.value("delayed_messages") == 1  # what was overdue went at once
        await watcher.subscribe(SubscriptionRequest("#", 0))
    async with running(store, clock=clock) as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("#", 0))
        node.pass_time(500)
        assert (await watcher.expect(Publish)).topic == "t/500"
        await watcher.silence()


@on_loop
async def test_overdue_messages_come_to_sessions_that_wait_in_the_order_in_which_they_were_due() -> (
    None
):
    store, clock = MemoryStore(), MovedClock()
    async with running(store, clock=clock) as node:
        waiting = await node.client(
            "waiting", 5, clean_start=True, properties={"Session-Expiry-Interval": 3600}
        )
        await waiting.subscribe(SubscriptionRequest("t/#", 1))
        for delay in (30, 10, 20):
            await _send(node, f"$delayed/{delay}/t/{delay}")
    clock.move(60)
    async with running(store, clock=clock) as node:
        again = await node.client(
            "waiting", 5, clean_start=False, properties={"Session-Expiry-Interval": 3600}
        )
        assert [(await again.expect(Publish)).topic for _ in range(3)] == ["t/10", "t/20", "t/30"]


@on_loop
async def test_a_message_that_cannot_be_stored_is_refused_and_never_comes() -> None:
    store = GatedStore()
    async with running(store) as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("#", 0))
        store.fails = True
        assert await _send(node, "$delayed/5/t") == 0x97
        store.fails = False
        assert len(node.server.hub.delayed) == 0
        node.pass_time(10)
        await watcher.silence()


@on_loop
async def test_gates_see_the_message_when_it_is_due() -> None:
    class Refusing:
        name = "no"

        def plan(self, topic: str) -> object:
            return lambda message: Refusal("no", "no", "no", 0x99, f"not {topic}")

    async with running(gates=[Refusing()]) as node:
        assert await _send(node, "$delayed/5/t") == 0
        node.pass_time(5)
        assert node.dropped("no") == 1


@on_loop
async def test_messages_can_be_listed_and_deleted() -> None:
    async with running() as node:
        delayed = node.server.hub.delayed
        for delay in (30, 10, 20):
            await _send(node, f"$delayed/{delay}/t/{delay}", b"p")
        first = delayed.page(None, 2)
        assert [kept.message.topic for kept in first] == ["t/10", "t/20"]
        assert [kept.message.topic for kept in delayed.page(first[-1].id, 2)] == ["t/30"]
        delayed.delete(first[0].id)
        assert (len(delayed), node.metrics.value("delayed_deleted")) == (2, 1)
        node.pass_time(60)
        assert node.metrics.value("delayed_published") == 2


@on_loop
async def test_the_topic_behind_the_delay_is_rewritten() -> None:
    async with running() as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("#", 0))
        node.server.hub.rewrites.use(
            [RewriteSpec(name="r", source_topic="a", dest_topic="b", action="publish")]
        )
        await _send(node, "$delayed/1/a")
        node.pass_time(1)
        assert (await watcher.expect(Publish)).topic == "b"


@on_loop
async def test_a_deletion_that_could_not_be_stored_deletes_nothing() -> None:
    store = GatedStore()
    async with running(store) as node:
        delayed = node.server.hub.delayed
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("#", 0))
        assert await _send(node, "$delayed/10/t") == 0
        store.fails = True
        delayed.delete(delayed.page(None, 1)[0].id)
        with pytest.raises(Unavailable):
            await node.writer.committed()
        store.fails = False
        assert len(delayed) == 1
        node.pass_time(10)
        assert (await watcher.expect(Publish)).topic == "t"
        await watcher.silence()
