"""QoS 0 packets that follow each other are forwarded as one piece: nobody must get more, less, or another order."""

from __future__ import annotations

from random import Random

import pytest

from broker.codec.packets import Publish, SubscriptionRequest, UnsubAck, Unsubscribe
from broker.core.message import Message
from broker.core.stage import GateCall
from tests.support.access import access
from tests.support.mqtt_server import on_loop, running

TOPICS = ("a/one", "a/two", "a/tri", "b/one", "b/two", "nobody", "staged/1", "staged/2", "a/longer")
"""Some of one length, so that what differs is the topic alone."""
ENDS = ("end/a", "end/b", "end/c")


class Passing:
    """A gate that looks at some topics and changes nothing."""

    name = "passing"

    def plan(self, topic: str) -> GateCall | None:
        return _same if topic.startswith("staged/") else None


def _same(message: Message) -> Message:
    return message


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(12))
@on_loop
async def test_each_subscriber_gets_its_messages_in_order(seed: int, version: int) -> None:
    random = Random(seed)
    sent = [
        Publish(random.choice(TOPICS), b"%04d" % number + b"x" * random.choice((0, 0, 0, 7, 200)))
        for number in range(400)
    ]
    async with running(gates=[Passing()]) as node:
        wanted = {"a": ("a/", "end/a"), "b": ("b/", "staged/", "end/b"), "all": ("",)}
        readers = {
            "a": await node.client("ra", version),
            "b": await node.client("rb", 9 - version),
            "all": await node.client("rall", version),
        }
        await readers["a"].subscribe(SubscriptionRequest("a/#"), SubscriptionRequest("end/a"))
        await readers["b"].subscribe(
            *(SubscriptionRequest(topic_filter) for topic_filter in ("b/+", "staged/#", "end/b"))
        )
        await readers["all"].subscribe(SubscriptionRequest("#"))
        publisher = await node.client("p", version)
        for again in range(2):  # the second time every topic has its plan
            packets = [*sent, *(Publish(topic, b"%d" % again) for topic in ENDS)]
            publisher.send(*packets)
            for name, reader in readers.items():
                for packet in (
                    packet for packet in packets if packet.topic.startswith(wanted[name])
                ):
                    got = await reader.expect(Publish)
                    assert (got.topic, got.payload) == (packet.topic, packet.payload)


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_restricted", [False, True])
@on_loop
async def test_a_change_of_subscriptions_counts_from_the_next_packet_on(
    is_restricted: bool, version: int
) -> None:
    deny = {"permission": "deny", "action": "publish", "topics": ["a/2"]}
    rules = [deny, {"permission": "allow", "topics": ["#"]}] if is_restricted else []
    sent = [Publish(f"a/{number % 4}", b"x") for number in range(40)]
    allowed = [packet.topic for packet in sent if not (is_restricted and packet.topic == "a/2")]
    async with running(access=access(rules=rules)) as node:
        everything, one = await node.client("all", version), await node.client("one", version)
        publisher = await node.client("p", version)
        await everything.subscribe(SubscriptionRequest("a/+"))
        for is_subscribed in (False, False, True, True, False):
            if is_subscribed:
                await one.subscribe(SubscriptionRequest("a/1"))
            else:
                one.send(Unsubscribe(9, ["a/1"]))
                await one.expect(UnsubAck)
            publisher.send(*sent)
            assert [(await everything.expect(Publish)).topic for _ in allowed] == allowed
            if is_subscribed:
                assert [(await one.expect(Publish)).topic for _ in range(10)] == ["a/1"] * 10
        await one.silence()
