"""Subscriptions of which rules deny a part: granted, and messages of that part are withheld, however they come."""

from __future__ import annotations

from typing import Any

import pytest

from broker.codec.packets import ConnAck, Connect, PubAck, Publish, SubscriptionRequest, Will
from broker.connection.dead_letters import DeadLetterSettings
from broker.connection.sharing.settings import SharedSettings
from broker.routing.rewrite import RewriteSpec
from broker.storage.memory import MemoryStore
from tests.support.access import BUILTIN, access, use_rules
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

KEPT = {"Session-Expiry-Interval": 3600}
ANN: dict[str, Any] = {"username": "ann", "password": b"pencil"}
DEV: dict[str, Any] = {"username": "dev", "password": b"ruler"}
ROOT: dict[str, Any] = {"username": "root", "password": b"paper"}
SECRET: dict[str, Any] = {
    "permission": "deny", "who": {"username": "ann"}, "topics": ["t/secret/#"], "action": "subscribe",
}  # fmt: skip
REST: dict[str, Any] = {"permission": "allow", "topics": ["#", "$SYS/#"]}
GUARDED = access(BUILTIN, rules=[SECRET, REST])
TOPICS = ("t/1", "t/secret", "t/secret/x", "t/2")
OPEN = ["t/1", "t/2"]


async def publish(
    client: WireClient, *topics: str, qos: int = 0, retain: bool = False, payload: bytes = b"x"
) -> None:
    for number, topic in enumerate(topics, 1):
        client.send(Publish(topic, payload, qos, retain, packet_id=number if qos else 0))
        if qos:
            await client.expect(PubAck)
    await client.silence()


async def topics_of(client: WireClient, count: int) -> list[str]:
    """The topics of the next messages, which are acknowledged; nothing comes behind them."""
    found = []
    for _ in range(count):
        packet = await client.expect(Publish)
        found.append(packet.topic)
        if packet.qos:
            client.send(PubAck(packet.packet_id))
    await client.silence()
    return found


async def back(node: Node, client_id: str = "a", **login: Any) -> WireClient:
    """A client that goes on with its session."""
    client = await WireClient.open(node.port, 5)
    client.send(Connect(client_id, 5, False, **login, properties=KEPT))
    assert (await client.expect(ConnAck)).session_present
    return client


async def leaves(node: Node, client: WireClient, client_id: str = "a") -> None:
    client.abort()
    await node.until(lambda: node.server.hub.sessions.by_client_id[client_id].is_away)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_others_get_everything_and_the_client_what_is_not_denied(
    version: int, qos: int
) -> None:
    async with running(access=GUARDED) as node:
        ann, root = await node.client("a", version, **ANN), await node.client("r", version, **ROOT)
        assert await ann.subscribe(SubscriptionRequest("t/#", 1)) == [1]
        assert (
            await ann.subscribe(
                SubscriptionRequest("t/secret/#", 1), SubscriptionRequest("t/secret", 1)
            )
            == [0x87 if version == 5 else 0x80] * 2
        )
        await root.subscribe(SubscriptionRequest("t/#", 1))
        publisher = await node.client("p", version, **ROOT)
        await publish(publisher, *TOPICS, qos=qos)
        assert await topics_of(ann, 2) == OPEN
        assert await topics_of(root, 4) == list(TOPICS)
        assert node.metrics.value("subscriptions_filtered") == 1


@on_loop
async def test_strict_subscriptions_are_refused_as_a_whole() -> None:
    async with running(
        access=access(BUILTIN, rules=[SECRET, REST], strict_subscriptions=True)
    ) as node:
        ann = await node.client("a", 5, **ANN)
        assert await ann.subscribe(SubscriptionRequest("t/#"), SubscriptionRequest("t/1")) == [
            0x87,
            0,
        ]


@pytest.mark.parametrize("properties", [{}, KEPT])
@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_retained_messages_are_withheld_too(qos: int, properties: dict[str, Any]) -> None:
    async with running(access=GUARDED) as node:
        await publish(await node.client("p", 5, **ROOT), *TOPICS, qos=1, retain=True)
        ann = await node.client("a", 5, **ANN, properties=properties)
        await ann.subscribe(SubscriptionRequest("t/#", qos))
        assert sorted(await topics_of(ann, 2)) == OPEN


@on_loop
async def test_what_came_while_the_client_was_away_is_withheld_before_and_after_a_restart() -> None:
    store = MemoryStore()
    async with running(store, access=GUARDED) as node:
        ann, root = (
            await node.client("a", 5, **ANN, properties=KEPT),
            await node.client("r", 5, **ROOT),
        )
        await ann.subscribe(SubscriptionRequest("t/#", 1))
        await leaves(node, ann)
        await publish(root, *TOPICS, qos=1)
        ann = await back(node, **ANN)
        assert await topics_of(ann, 2) == OPEN
        await leaves(node, ann)
        await publish(root, *TOPICS, qos=1)
        await node.written()
    async with running(store, access=GUARDED) as node:
        root = await node.client("r", 5, **ROOT)
        # the rules of one that has not come back are not known yet
        await publish(root, "t/secret", "t/3", qos=1)
        ann = await back(node, **ANN)
        assert await topics_of(ann, 3) == [*OPEN, "t/3"]
        await publish(root, *TOPICS, qos=1)
        assert await topics_of(ann, 2) == OPEN


@on_loop
async def test_rules_that_change_hold_for_subscriptions_that_were_granted() -> None:
    async with running(access=access(BUILTIN)) as node:
        ann, root = await node.client("a", 5, **ANN), await node.client("r", 5, **ROOT)
        await ann.subscribe(SubscriptionRequest("t/#", 1))
        for rules, count in (
            ((), 4),
            ((SECRET, REST), 2),
            ((REST,), 4),
            ((REST, SECRET), 4),
            ((SECRET, REST), 2),
        ):
            use_rules(node, *rules)
            for qos in (0, 1):
                await publish(root, *TOPICS, qos=qos)
                assert await topics_of(ann, count) == (list(TOPICS) if count == 4 else OPEN)
        assert node.metrics.value("subscriptions_revoked") == 0


@pytest.mark.parametrize("properties", [{}, KEPT])
@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_a_share_group_gives_them_to_members_that_may_have_them(
    qos: int, properties: dict[str, Any]
) -> None:
    async with running(access=GUARDED) as node:
        ann = await node.client("a", 5, **ANN, properties=properties)
        assert await ann.subscribe(SubscriptionRequest("$share/g/t/#", 1)) == [1]
        root = await node.client("r", 5, **ROOT)
        await publish(root, *TOPICS, qos=qos)
        assert await topics_of(ann, 2) == OPEN  # alone
        assert node.metrics.value("deliveries_dropped", reason="not_authorized") == 2
        dev = await node.client("dev-1", 5, **DEV, properties=properties)
        await dev.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        await publish(root, *["t/secret"] * 20, "t/1", qos=qos)
        got = 0
        while got < 20:
            packet = await dev.expect(Publish)
            got += packet.topic == "t/secret"
            if packet.qos:
                dev.send(PubAck(packet.packet_id))
        assert node.metrics.value("deliveries_dropped", reason="not_authorized") == 2
        await publish(root, *["t/1"] * 20, qos=qos)
        assert (await ann.expect(Publish)).topic == "t/1"


@on_loop
async def test_a_share_group_by_key_gives_them_to_members_that_may_have_them() -> None:
    async with running(access=GUARDED, shared=SharedSettings(strategy="hash_topic")) as node:
        ann, dev = await node.client("a", 5, **ANN), await node.client("dev-1", 5, **DEV)
        for client in (ann, dev):
            await client.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        root = await node.client("r", 5, **ROOT)
        topics = [f"t/secret/{number}" for number in range(20)]
        for qos in (0, 1):
            await publish(root, *topics, qos=qos)
            assert sorted(await topics_of(dev, 20)) == sorted(topics)
        await ann.silence()


@on_loop
async def test_figures_of_the_broker_are_withheld_too() -> None:
    secret = {"permission": "deny", "topics": ["$SYS/broker/clients/#"]}
    rules = [secret, REST]
    async with running(access=access(rules=rules), sys_interval_s=10) as node:
        client = await node.client("c", 5)
        asked = [SubscriptionRequest("$SYS/broker/clients/+"), SubscriptionRequest("$SYS/broker/#")]
        assert await client.subscribe(*asked) == [0x87, 0]
        found = set[str]()
        while "$SYS/broker/uptime" not in found or len(found) < 20:
            found.add((await client.expect(Publish)).topic)
        assert not any(topic.startswith("$SYS/broker/clients") for topic in found)


# -- dead letters --

ALL_DEAD = DeadLetterSettings(causes=["no_subscribers"])
DEAD_READER: dict[str, Any] = {
    "permission": "allow",
    "action": "subscribe",
    "topics": ["$dead/#", "open/#"],
}
PUBLISHER: dict[str, Any] = {"permission": "allow", "action": "publish", "topics": ["#", "$dead/#"]}


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([SECRET, REST, {"permission": "allow", "topics": ["$dead/#"]}], ["t/1", "open/x"]),
        ([DEAD_READER, PUBLISHER], ["open/x"]),
        ([{**DEAD_READER, "topics": ["$dead/#", "#"]}, PUBLISHER], ["t/secret/x", "t/1", "open/x"]),
    ],
)
@pytest.mark.parametrize(
    "text", ["$dead/#", "$dead/no_subscribers/#", "$dead/+/+/#", "$share/g/$dead/#"]
)
@on_loop
async def test_who_reads_dead_letters_reads_those_of_topics_that_it_may_read(
    text: str, rules: list[dict[str, Any]], expected: list[str]
) -> None:
    async with running(access=access(BUILTIN, rules=rules), dead_letter=ALL_DEAD) as node:
        ann = await node.client("a", 5, **ANN)
        assert await ann.subscribe(SubscriptionRequest(text, 1)) == [1]
        publisher = await node.client("p", 5, **ROOT)
        await publish(publisher, "t/secret/x", "t/1", "open/x")
        assert await topics_of(ann, len(expected)) == [
            f"$dead/no_subscribers/{topic}" for topic in expected
        ]


@on_loop
async def test_a_subscription_to_the_dead_letters_of_a_denied_topic_gives_nothing_or_is_refused() -> (
    None
):
    rules = [SECRET, REST, {"permission": "allow", "topics": ["$dead/#"]}]
    async with running(access=access(BUILTIN, rules=rules), dead_letter=ALL_DEAD) as node:
        ann, publisher = await node.client("a", 5, **ANN), await node.client("p", 5, **ROOT)
        await ann.subscribe(SubscriptionRequest("$dead/+/t/secret/x", 1))
        await publish(publisher, "t/secret/x")
        await ann.silence()
    made = access(BUILTIN, rules=rules, strict_subscriptions=True)
    async with running(access=made, dead_letter=ALL_DEAD) as node:
        ann = await node.client("a", 5, **ANN)
        texts = ("$dead/+/t/secret/x", "$dead/#", "$dead/+/t/1")
        assert await ann.subscribe(*(SubscriptionRequest(text, 1) for text in texts)) == [
            0x87,
            0x87,
            1,
        ]


@pytest.mark.parametrize("topic", ["$dead/expired/t", "$dead/x", "$delayed/1/$dead/expired/t"])
@on_loop
async def test_clients_cannot_forge_dead_letters(topic: str) -> None:
    async with running(access=access(BUILTIN), dead_letter=ALL_DEAD) as node:
        reader, client = await node.client("r", 5, **ROOT), await node.client("a", 5, **ROOT)
        await reader.subscribe(SubscriptionRequest("$dead/#", 1))
        client.send(Publish(topic, b"forged", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == 0x87
        rewrite = {"name": "r", "source_topic": "a", "dest_topic": topic}
        node.server.hub.rewrites.use([RewriteSpec.model_validate(rewrite)])
        client.send(Publish("a", b"forged", 1, packet_id=2))
        assert (await client.expect(PubAck)).reason_code == 0x87
        willing = await node.client("w", 5, **ROOT, will=Will(topic, b"forged", 0, True))
        willing.abort()
        await node.until(lambda: node.dropped("reserved_topic") == 3)
        await reader.silence()
        assert node.server.hub.retained.count == 0
