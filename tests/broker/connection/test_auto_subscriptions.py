"""Subscriptions that the broker makes for clients that connect."""

from __future__ import annotations

from typing import Any

from broker.codec.packets import PubAck, Publish, SubscriptionRequest, UnsubAck, Unsubscribe
from broker.routing.automatic import AutoSubscriptionSpec
from tests.support.access import access
from tests.support.mqtt_server import Node, on_loop, running

_LASTING: dict[str, Any] = {"properties": {"Session-Expiry-Interval": 600}}


def _use(node: Node, *specs: dict[str, Any]) -> None:
    node.server.hub.subscribing.automatic.use(
        [
            AutoSubscriptionSpec.model_validate({"name": f"s{number}", **spec})
            for number, spec in enumerate(specs)
        ]
    )


@on_loop
async def test_a_client_gets_what_is_published_to_its_own_topic_without_asking() -> None:
    async with running() as node:
        _use(node, {"topic": "to/${clientid}", "qos": 1}, {"topic": "users/${username}/#"})
        client = await node.client("c1", 5, username="ann")
        other = await node.client("c2", 5)
        for topic in ("to/c1", "users/ann/x", "to/nobody"):
            other.send(Publish(topic, b"", 1, packet_id=1))
            await other.expect(PubAck)
        assert [((found := await client.expect(Publish)).topic, found.qos) for _ in range(2)] == [
            ("to/c1", 1), ("users/ann/x", 0),
        ]  # fmt: skip
        await client.silence()
        assert node.metrics.value("auto_subscriptions_skipped") == 1  # c2 has no user name


@on_loop
async def test_retained_messages_come_after_the_connack_as_the_options_say() -> None:
    async with running() as node:
        publisher = await node.client("p")
        for topic in ("news", "never"):
            publisher.send(Publish(topic, b"old", 0, True))
        await publisher.silence()
        _use(node, {"topic": "news", "rh": 1}, {"topic": "never", "rh": 2})
        client = await node.client("c", 5, clean_start=False, **_LASTING)
        assert (await client.expect(Publish)).topic == "news"
        await client.silence()
        client.abort()
        await node.until(lambda: node.server.hub.sessions.by_client_id["c"].is_away)
        again = await node.client("c", 5, clean_start=False, **_LASTING)
        await again.silence()  # the subscription is there already: rh 1 sends nothing


@on_loop
async def test_it_is_a_subscription_like_others_and_comes_back_at_the_next_connect() -> None:
    async with running() as node:
        _use(node, {"topic": "t", "nl": True, "rap": True})
        client = await node.client("c", 5)
        [made] = node.server.hub.sessions.by_client_id["c"].subscriptions.values()
        assert (made.filter.text, made.no_local, made.retain_as_published) == ("t", True, True)
        client.send(Unsubscribe(1, ["t"]))
        assert (await client.expect(UnsubAck)).reason_codes == [0]
        assert not node.server.hub.sessions.by_client_id["c"].subscriptions
        await node.client("c", 5)
        assert list(node.server.hub.sessions.by_client_id["c"].subscriptions) == ["t"]


@on_loop
async def test_a_name_that_would_reach_other_topics_is_left_out() -> None:
    async with running() as node:
        _use(node, {"topic": "to/${clientid}"})
        for number, name in enumerate(("#", "+", "a/b"), 1):
            await node.client(name, 5)
            assert not node.server.hub.sessions.by_client_id[name].subscriptions
            assert node.metrics.value("auto_subscriptions_skipped") == number


@on_loop
async def test_what_the_client_asks_for_itself_replaces_it() -> None:
    async with running() as node:
        _use(node, {"topic": "t", "qos": 0})
        client = await node.client("c", 5)
        assert await client.subscribe(SubscriptionRequest("t", 2)) == [2]
        [made] = node.server.hub.sessions.by_client_id["c"].subscriptions.values()
        assert made.qos == 2


@on_loop
async def test_access_rules_and_limits_hold_for_it_and_refusals_are_counted() -> None:
    rules = [
        {"permission": "deny", "topics": ["secret/#"]},
        {"permission": "allow", "topics": ["#"]},
    ]
    async with running(access=access(rules=rules), max_subscriptions=1) as node:
        _use(node, {"topic": "secret/${clientid}"}, {"topic": "open"}, {"topic": "more"})
        client = await node.client("c", 5)
        await client.silence()
        assert list(node.server.hub.sessions.by_client_id["c"].subscriptions) == ["open"]
        refused = ("not_authorized", "quota_exceeded")
        assert [node.metrics.value("subscriptions_refused", reason=why) for why in refused] == [
            1,
            1,
        ]
