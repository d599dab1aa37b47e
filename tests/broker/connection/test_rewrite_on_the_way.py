"""Topics that clients name, rewritten on their way in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from broker.codec.packets import PubAck, Publish, SubscriptionRequest, UnsubAck, Unsubscribe, Will
from broker.routing.rewrite import RewriteSpec
from tests.support.access import access
from tests.support.mqtt_server import Node, on_loop, running


def _use(node: Node, *specs: dict[str, Any]) -> None:
    node.server.hub.rewrites.use(
        [
            RewriteSpec.model_validate({"name": f"r{number}", **spec})
            for number, spec in enumerate(specs)
        ]
    )


_A_TO_B: dict[str, Any] = {"source_topic": "a", "dest_topic": "b", "action": "publish"}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_publish_reaches_subscribers_of_the_mapped_topic_only(qos: int, version: int) -> None:
    async with running() as node:
        _use(node, _A_TO_B)
        old = await node.client("old", version)
        new = await node.client("new", version)
        await old.subscribe(SubscriptionRequest("a", 0))
        await new.subscribe(SubscriptionRequest("b", 0))
        publisher = await node.client("p", version)
        for payload in (b"1", b"2"):
            publisher.send(Publish("a", payload, qos, packet_id=1 if qos else 0))
            if qos:
                await publisher.expect(PubAck)
        assert [(await new.expect(Publish)).payload for _ in range(2)] == [b"1", b"2"]
        await old.silence()


@on_loop
async def test_messages_under_way_before_a_rewrite_and_after_it_go_where_they_should() -> None:
    async with running() as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("#", 0))
        publisher = await node.client("p")
        steps: list[Callable[[], None]] = [
            lambda: None,
            lambda: _use(node, _A_TO_B),
            lambda: _use(node),
        ]
        for step in steps:
            step()
            publisher.send(Publish("a", b"x"))
            await publisher.silence()
        assert [(await watcher.expect(Publish)).topic for _ in range(3)] == ["a", "b", "a"]


@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_a_rewrite_made_later_leads_nobody_to_a_topic_that_rules_deny(qos: int) -> None:
    rules = [
        {"permission": "deny", "topics": ["b"], "action": "publish"},
        {"permission": "allow", "topics": ["#"]},
    ]
    async with running(access=access(trusts_anonymous=True, rules=rules)) as node:
        watcher, publisher = await node.client("w", 5), await node.client("p", 5)
        await watcher.subscribe(SubscriptionRequest("#", 0))
        packets = [Publish("a", b"x", qos, packet_id=number if qos else 0) for number in (1, 2)]
        publisher.send(*packets)
        for _ in packets:
            assert (await watcher.expect(Publish)).topic == "a"
        _use(node, _A_TO_B)
        publisher.send(*packets)
        await node.until(lambda: node.dropped("not_authorized") == 2)
        await watcher.silence()
        _use(node)
        publisher.send(*packets)
        for _ in packets:
            assert (await watcher.expect(Publish)).topic == "a"


@on_loop
async def test_retained_messages_are_kept_under_the_new_name() -> None:
    async with running() as node:
        _use(node, _A_TO_B)
        publisher = await node.client("p")
        publisher.send(Publish("a", b"kept", 1, True, packet_id=1))
        await publisher.expect(PubAck)
        late = await node.client("late")
        await late.subscribe(SubscriptionRequest("a", 0), SubscriptionRequest("b", 0))
        found = await late.expect(Publish)
        assert (found.topic, found.payload, found.retain) == ("b", b"kept", True)


@on_loop
async def test_filters_are_rewritten_when_subscribed_and_unsubscribed() -> None:
    async with running() as node:
        _use(
            node,
            {"action": "all", "source_topic": "old/#", "re": "^old/(.+)$", "dest_topic": "new/$1"},
        )
        client = await node.client("c", 5)
        await client.subscribe(
            SubscriptionRequest("old/+/x", 0), SubscriptionRequest("$share/g/old/y", 0)
        )
        assert list(node.server.hub.sessions.by_client_id["c"].subscriptions) == [
            "new/+/x",
            "$share/g/new/y",
        ]
        client.send(Publish("old/1/x", b"hi"))
        assert (await client.expect(Publish)).topic == "new/1/x"
        client.send(Unsubscribe(9, ["old/+/x", "old/z"]))
        assert (await client.expect(UnsubAck)).reason_codes == [0, 0x11]


@on_loop
async def test_the_first_rewrite_that_matches_decides() -> None:
    async with running() as node:
        _use(
            node,
            {"source_topic": "x/#", "re": r"^x/y/(\d+)$", "dest_topic": "z/$1"},
            {"source_topic": "x/+/+", "dest_topic": "never"},
        )
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("#", 0))
        for topic in ("x/y/7", "x/y/seven", "y"):
            client.send(Publish(topic, b""))
        assert [(await client.expect(Publish)).topic for _ in range(3)] == ["z/7", "x/y/seven", "y"]


@on_loop
async def test_names_of_clients_go_into_topics_and_cannot_reach_beyond() -> None:
    async with running() as node:
        _use(
            node, {"source_topic": "mine/#", "re": "^mine/(.*)$", "dest_topic": "of/${clientid}/$1"}
        )
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("of/#", 0))
        for name in ("a", "b"):
            client = await node.client(name)
            client.send(Publish("mine/t", b""))
            assert (await watcher.expect(Publish)).topic == f"of/{name}/t"
        sly = await node.client("b/../#", 5)
        sly.send(Publish("mine/t", b"", 1, packet_id=1))
        assert (await sly.expect(PubAck)).reason_code == 0x90
        assert await sly.subscribe(SubscriptionRequest("mine/t", 0)) == [0x8F]
        assert node.dropped("rewrite_failed") == 1
        await watcher.silence()


@on_loop
async def test_wills_are_rewritten() -> None:
    async with running() as node:
        _use(node, _A_TO_B)
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("#", 0))
        (await node.client("dying", will=Will("a", b"gone"))).abort()
        assert (await watcher.expect(Publish)).topic == "b"


@pytest.mark.parametrize(
    "topic", ["$SYS/broker/version", "$share/g/x", "$events/client/connected", "$file/a/init"]
)
@on_loop
async def test_clients_may_not_publish_where_the_broker_does(topic: str) -> None:
    async with running() as node:
        newer, older = await node.client("five", 5), await node.client("four", 4)
        for client, code in ((newer, 0x87), (older, 0)):
            client.send(Publish(topic, b"false", 1, packet_id=1))
            assert (await client.expect(PubAck)).reason_code == code
            client.send(Publish(topic, b"false"))
            await client.silence()
        assert node.dropped("reserved_topic") == 4


@on_loop
async def test_a_will_on_a_reserved_topic_is_dropped() -> None:
    async with running() as node:
        (await node.client("dying", will=Will("$SYS/broker/version", b"false"))).abort()
        await node.until(lambda: node.dropped("reserved_topic") == 1)


@on_loop
async def test_a_client_cannot_write_itself_into_a_reserved_topic() -> None:
    async with running() as node:
        _use(
            node,
            {"action": "publish", "source_topic": "in/#", "re": "^in/(.+)$", "dest_topic": "$1"},
        )
        publisher = await node.client("p", 5)
        for number, topic in enumerate(
            ["in/$SYS/broker/version", "in/$events/client_connected", "$delayed/1/in/$SYS/x"], 1
        ):
            publisher.send(Publish(topic, b"x", 1, packet_id=number))
            assert (await publisher.expect(PubAck)).reason_code == 0x87
