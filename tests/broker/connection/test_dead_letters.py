"""Dead letters: each cause leads to one, says what happened, and leads to no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from pydantic import ValidationError

from broker.codec.packets import Connect, PubAck, Publish, PubRec, SubscriptionRequest
from broker.connection.dead_letters import Cause, DeadLetterSettings
from broker.connection.sharing.settings import SharedSettings
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

ALL: list[Cause] = [
    "queue_full",
    "expired",
    "rejected",
    "packet_too_large",
    "away",
    "session_ended",
    "no_subscribers",
]
Provoke = Callable[[Node], Awaitable[object]]
"""Loses a message; gives the client that must stay connected until it is seen to be lost."""


async def _subscriber(node: Node, qos: int = 1, **properties: int) -> WireClient:
    client = await node.client(
        "s", 5, properties={name.replace("_", "-"): value for name, value in properties.items()}
    )
    await client.subscribe(SubscriptionRequest("t/#", qos))
    return client


async def _publish(node: Node, *payloads: bytes, qos: int = 1, **members: object) -> None:
    publisher = await node.client("p", 5)
    for number, payload in enumerate(payloads, 1):
        publisher.send(Publish("t/1", payload, qos, packet_id=number if qos else 0, **members))  # type: ignore[arg-type]
        if qos:
            await publisher.expect(PubAck)
    await publisher.silence()


async def queue_full(node: Node) -> object:
    subscriber = await _subscriber(node, Receive_Maximum=1)
    await _publish(node, b"in flight", b"lost", b"waits")
    return subscriber


async def queue_full_on_disk(node: Node) -> object:
    subscriber = await _subscriber(node, Session_Expiry_Interval=60)
    await subscriber.close()
    await node.until(lambda: node.server.hub.sessions.by_client_id["s"].is_away)
    await _publish(node, b"lost", b"waits")
    return subscriber


async def expired(node: Node) -> object:
    subscriber = await _subscriber(node, Receive_Maximum=1)
    await _publish(node, b"in flight", b"lost", properties={"Message-Expiry-Interval": 5})
    in_flight = await subscriber.expect(Publish)
    node.pass_time(6)
    subscriber.send(PubAck(in_flight.packet_id))
    return subscriber


async def rejected(node: Node) -> object:
    subscriber = await _subscriber(node)
    await _publish(node, b"lost")
    subscriber.send(PubAck((await subscriber.expect(Publish)).packet_id, 0x83))
    return subscriber


async def packet_too_large(node: Node) -> object:
    subscriber = await _subscriber(node, Maximum_Packet_Size=40)
    await _publish(node, b"lost" + b" " * 100)
    return subscriber


async def away(node: Node) -> object:
    subscriber = await _subscriber(node, Session_Expiry_Interval=60)
    await subscriber.close()
    await node.until(lambda: node.server.hub.sessions.by_client_id["s"].is_away)
    await _publish(node, b"lost", qos=0)
    return subscriber


async def session_ended(node: Node) -> object:
    subscriber = await _subscriber(node, Session_Expiry_Interval=60)
    await subscriber.close()
    await node.until(lambda: node.server.hub.sessions.by_client_id["s"].is_away)
    await _publish(node, b"lost")
    node.end_session("s")
    return subscriber


async def no_subscribers(node: Node) -> object:
    await _publish(node, b"lost", qos=0)
    return None


_PROVOKED: list[tuple[str, Provoke]] = [
    ("queue_full", queue_full),
    ("queue_full", queue_full_on_disk),
    ("expired", expired),
    ("rejected", rejected),
    ("packet_too_large", packet_too_large),
    ("away", away),
    ("session_ended", session_ended),
    ("no_subscribers", no_subscribers),
]
_LIMITS = {
    "max_queued_messages": 1,
    "max_stored_messages": 1,
    "slow_subscriber": "drop",
    "slow_subscriber_wait": 0,
}


@pytest.mark.parametrize(
    ("cause", "provoke"), _PROVOKED, ids=lambda value: getattr(value, "__name__", None)
)
@on_loop
async def test_what_is_lost_is_published_again_with_what_happened_to_it(
    cause: str, provoke: Provoke
) -> None:
    letters = DeadLetterSettings(causes=ALL)
    async with running(dead_letter=letters, **_LIMITS) as node:  # type: ignore[arg-type]  # settings, as they are named
        reader = await node.client("r", 5)
        await reader.subscribe(SubscriptionRequest("$dead/#", 1))
        subscriber = await provoke(node)
        letter = await reader.expect(Publish)
        assert letter.topic == f"$dead/{cause}/t/1"
        assert letter.payload.strip() == b"lost"
        assert letter.qos == 1
        told = dict(letter.properties["User-Property"])
        assert (told["dead-letter-reason"], told["dead-letter-topic"]) == (cause, "t/1")
        assert told["dead-letter-publisher"] == "p"
        assert told.get("dead-letter-client") == (None if cause == "no_subscribers" else "s")
        assert "Message-Expiry-Interval" not in letter.properties
        await reader.silence()
        assert (
            node.metrics.value(
                "dead_letters", cause=cause, strategy="at_least_once", queue="session"
            )
            == 1
        )
        assert node.metrics.value("dead_letters_published") == 1
        del subscriber


@pytest.mark.parametrize(
    ("cause", "provoke"), _PROVOKED, ids=lambda value: getattr(value, "__name__", None)
)
@on_loop
async def test_what_is_lost_is_counted_by_cause_without_dead_letters_too(
    cause: str, provoke: Provoke
) -> None:
    async with running(**_LIMITS) as node:  # type: ignore[arg-type]  # settings, as they are named
        subscriber = await provoke(node)
        await node.until(
            lambda: node.metrics.value(
                "dead_letters", cause=cause, strategy="disabled", queue="session"
            )
        )
        assert node.metrics.value("dead_letters_published") == 0
        del subscriber


@on_loop
async def test_a_dead_letter_that_is_lost_leads_to_no_other() -> None:
    letters = DeadLetterSettings(causes=ALL, topic="dead", qos=0)
    async with running(dead_letter=letters) as node:
        await _publish(node, b"nobody wants it", qos=0)
        assert node.dropped("no_subscribers") == 2
        assert node.metrics.value("dead_letters_published") == 1
        assert (
            node.metrics.value(
                "dead_letters", cause="no_subscribers", strategy="at_most_once", queue="session"
            )
            == 2
        )


@on_loop
async def test_what_nobody_of_a_share_group_gets_is_one_and_an_event() -> None:
    letters = DeadLetterSettings(causes=["queue_full"], topic="dead/${clientid}/${topic}")
    shared = SharedSettings(max_waiting_messages=1)
    async with running(dead_letter=letters, shared=shared) as node:
        node.events.want(frozenset(("delivery.dropped",)))
        reader = await node.client("r", 5)
        await reader.subscribe(SubscriptionRequest("dead/#", 1))
        member = await node.client("m", 5, properties={"Session-Expiry-Interval": 60})
        await member.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        await member.close()
        await node.until(lambda: node.server.hub.sessions.by_client_id["m"].is_away)
        await _publish(node, b"lost", b"waits")
        letter = await reader.expect(Publish)
        assert (letter.topic, letter.payload) == ("dead/g/t/1", b"lost")
        assert dict(letter.properties["User-Property"])["dead-letter-client"] == "g"
        assert (
            node.metrics.value(
                "dead_letters", cause="queue_full", strategy="at_least_once", queue="group"
            )
            == 1
        )
        [columns] = [columns for name, columns in node.seen if name == "delivery.dropped"]
        assert (columns["clientid"], columns["reason"], columns["payload"]) == (
            "$share/g/t/#",
            "group_full",
            "lost",
        )


@on_loop
async def test_a_qos_2_delivery_that_is_refused_is_one_too() -> None:
    async with running(
        dead_letter=DeadLetterSettings(causes=["rejected"], topic="dead/${clientid}")
    ) as node:
        reader = await node.client("r", 5)
        await reader.subscribe(SubscriptionRequest("dead/s", 1))
        subscriber = await _subscriber(node, qos=2)
        publisher = await node.client("p")
        publisher.send(Publish("t/1", b"x", 2, packet_id=1))
        subscriber.send(PubRec((await subscriber.expect(Publish)).packet_id, 0x97))
        assert (await reader.expect(Publish)).payload == b"x"
        await subscriber.silence()


@on_loop
async def test_the_ones_that_fall_off_the_log_come_in_their_order() -> None:
    letters = DeadLetterSettings(causes=["queue_full"], topic="dead")
    async with running(dead_letter=letters, max_stored_messages=5) as node:
        reader = await node.client("r")
        await reader.subscribe(SubscriptionRequest("dead", 1))
        subscriber = await _subscriber(node, Session_Expiry_Interval=60)
        await subscriber.close()
        await node.until(lambda: node.server.hub.sessions.by_client_id["s"].is_away)
        await _publish(node, *(b"%d" % number for number in range(1, 41)))
        for number in range(1, 36):
            letter = await reader.expect(Publish)
            assert letter.payload == b"%d" % number
            reader.send(PubAck(letter.packet_id))
        back = await WireClient.connected(
            node.port, Connect("s", 5, False, properties={"Session-Expiry-Interval": 60})
        )
        assert [(await back.expect(Publish)).payload for _ in range(5)] == [
            b"%d" % number for number in range(36, 41)
        ]


@pytest.mark.parametrize("topic", ["dead/#", "", "dead/${why}", "dead/${.}"])
def test_a_template_that_makes_no_topic_is_refused(topic: str) -> None:
    with pytest.raises(ValidationError, match=r"dead|topic"):
        DeadLetterSettings(topic=topic)
