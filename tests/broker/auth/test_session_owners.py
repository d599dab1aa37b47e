"""Whose a session is: it goes on with its user, and only with what its user may have."""

from __future__ import annotations

from typing import Any

import pytest

from broker.codec.packets import ConnAck, Connect, PubAck, Publish, SubscriptionRequest
from broker.core import reason
from broker.core.client import Client, Proof
from broker.storage.memory import MemoryStore
from tests.support.access import BUILTIN, access, use_rules
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

KEPT = {"Session-Expiry-Interval": 3600}
ANN: dict[str, Any] = {"username": "ann", "password": b"pencil"}
ROOT: dict[str, Any] = {"username": "root", "password": b"paper"}
DEV: dict[str, Any] = {"username": "dev", "password": b"ruler"}


async def connack(node: Node, connect: Connect) -> ConnAck:
    """The answer to a CONNECT."""
    wire = await WireClient.open(node.port, connect.version)
    wire.send(connect)
    return await wire.expect(ConnAck)


async def leaves(node: Node, client: WireClient, client_id: str) -> None:
    """Cut a client off and wait until the server knows."""
    client.abort()
    await node.until(lambda: node.server.hub.sessions.by_client_id[client_id].is_away)


@pytest.mark.parametrize("clean_start", [True, False])
@on_loop
async def test_another_user_is_refused_and_the_session_stays_as_it_is(clean_start: bool) -> None:
    store = MemoryStore()
    async with running(store, access=access(BUILTIN)) as node:
        ann = await node.client("s", 5, **ANN, properties=KEPT)
        await ann.subscribe(SubscriptionRequest("t", 1))
        for version, code in ((5, reason.NOT_AUTHORIZED), (4, 5)):
            refused = await connack(node, Connect("s", version, clean_start=clean_start, **ROOT))
            assert refused.reason_code == code
        await ann.silence()
        await leaves(node, ann, "s")
        assert (
            await connack(node, Connect("s", 5, clean_start=clean_start, **ROOT))
        ).reason_code == 0x87
        other = await node.client("o", 5, **ROOT)
        other.send(Publish("t", b"for ann", 1, packet_id=1))
        await other.expect(PubAck)
        await node.written()
    async with running(store, access=access(BUILTIN)) as node:  # the store knows as well
        assert (
            await connack(node, Connect("s", 5, clean_start=clean_start, **ROOT))
        ).reason_code == 0x87
        ann = await WireClient.open(node.port, 5)
        ann.send(Connect("s", 5, clean_start=False, **ANN, properties=KEPT))
        assert (await ann.expect(ConnAck)).session_present
        assert (await ann.expect(Publish)).payload == b"for ann"


@on_loop
async def test_a_client_that_proved_its_identifier_gets_it_but_nothing_of_another_user() -> None:
    async with running(access=access(BUILTIN)) as node:
        ann = await node.client("dev-1", 5, **ANN, properties=KEPT)
        await ann.subscribe(SubscriptionRequest("t", 1))
        answer = await connack(node, Connect("dev-1", 5, clean_start=False, **DEV, properties=KEPT))
        assert (answer.reason_code, answer.session_present) == (0, False)
        session = node.server.hub.sessions.get("dev-1")
        assert session is not None
        assert not session.subscriptions
        assert (
            await connack(node, Connect("dev-1", 5, **ANN))
        ).reason_code == reason.NOT_AUTHORIZED


@on_loop
async def test_where_nobody_authenticates_clients_sessions_are_everybodys() -> None:
    store = MemoryStore()
    async with running(store) as node:
        await node.client("s", 5, username="ann", properties=KEPT)
        assert (
            await connack(node, Connect("s", 5, False, username="bob", properties=KEPT))
        ).session_present
        await node.written()
    async with running(store, access=access(BUILTIN)) as node:
        # authentication is switched on: the first user has it
        assert (await connack(node, Connect("s", 5, False, **ANN, properties=KEPT))).session_present
        assert (
            await connack(node, Connect("s", 5, False, **ROOT))
        ).reason_code == reason.NOT_AUTHORIZED


def test_who_may_resume_whose_session() -> None:
    def client(proof: Proof, username: str | None = "ann") -> Client:
        return Client("s", username, proof=proof)

    may = {
        (left, back)
        for left in Proof
        for back in Proof
        if client(back).may_resume(client(left))
        and (left is back or not client(back, "bob").may_resume(client(left)))
    }
    assert may == {
        (Proof.LOGIN, Proof.LOGIN), (Proof.LOGIN, Proof.USERNAME), (Proof.USERNAME, Proof.USERNAME),
        (Proof.CLIENT_ID, Proof.CLIENT_ID), (Proof.NOTHING, Proof.NOTHING),
    }  # fmt: skip
    assert all(client(back, "bob").may_resume(client(Proof.NOTHING)) for back in Proof)
    assert not client(Proof.USERNAME, "bob").may_resume(client(Proof.USERNAME))


@pytest.mark.parametrize("goes_away", [True, False])
@on_loop
async def test_with_the_setting_another_user_takes_over_but_gets_no_message_that_is_denied_to_it(
    goes_away: bool,
) -> None:
    """In flight, and waiting behind a full window."""
    rules: list[dict[str, Any]] = [
        {"permission": "deny", "who": {"username": "dev"}, "topics": ["secret/#"]},
        {"permission": "allow", "topics": ["#"]},
    ]
    async with running(access=access(BUILTIN, rules=rules), session_takeover="any_user") as node:
        root = await node.client("dev-1", 5, **ROOT, properties={**KEPT, "Receive-Maximum": 2})
        await root.subscribe(SubscriptionRequest("secret/x", 2), SubscriptionRequest("open", 1))
        other = await node.client("o", 5, **ROOT)
        for number, topic in enumerate(("open", "secret/x", "open", "secret/x"), 1):
            other.send(Publish(topic, b"%d" % number, 1, packet_id=number))
            await other.expect(PubAck)
        assert [(await root.expect(Publish)).payload for _ in range(2)] == [b"1", b"2"]
        if goes_away:
            await leaves(node, root, "dev-1")
        dev = await WireClient.open(node.port, 5)
        dev.send(Connect("dev-1", 5, False, **DEV, properties=KEPT))
        assert (await dev.expect(ConnAck)).session_present
        assert [(await dev.expect(Publish)).payload for _ in range(2)] == [b"1", b"3"]
        await dev.silence()
        assert node.metrics.value("deliveries_dropped", reason="not_authorized") >= 1


@on_loop
async def test_rules_that_changed_while_a_client_was_away_hold_for_what_it_is_sent_again() -> None:
    store = MemoryStore()
    everything = [{"permission": "allow", "topics": ["#"]}]
    async with running(store, access=access(BUILTIN, rules=everything)) as node:
        ann = await node.client("s", 5, **ANN, properties=KEPT)
        await ann.subscribe(SubscriptionRequest("a", 1), SubscriptionRequest("b", 1))
        root = await node.client("o", 5, **ROOT)
        for number, topic in enumerate("abab", 1):
            root.send(Publish(topic, b"%d" % number, 1, packet_id=number))
            await root.expect(PubAck)
        for _ in range(4):
            await ann.expect(Publish)
        await leaves(node, ann, "s")
        await node.written()
    rules = [{"permission": "deny", "action": "subscribe", "topics": ["b"]}, *everything]
    async with running(store, access=access(BUILTIN, rules=rules)) as node:
        ann = await WireClient.open(node.port, 5)
        ann.send(Connect("s", 5, False, **ANN, properties=KEPT))
        assert (await ann.expect(ConnAck)).session_present
        assert [(await ann.expect(Publish)).payload for _ in range(2)] == [b"1", b"3"]
        await ann.silence()
        assert node.metrics.value("deliveries_dropped", reason="not_authorized") == 2


@on_loop
async def test_rules_that_change_hold_for_what_waits_for_a_client() -> None:
    async with running(access=access(BUILTIN)) as node:
        use_rules(node, {"permission": "allow", "topics": ["#"]})
        ann = await node.client("s", 5, **ANN, properties={"Receive-Maximum": 1})
        await ann.subscribe(SubscriptionRequest("a", 1), SubscriptionRequest("b", 1))
        root = await node.client("o", 5, **ROOT)
        for number, topic in enumerate("abab", 1):
            root.send(Publish(topic, b"%d" % number, 1, packet_id=number))
            await root.expect(PubAck)
        first = await ann.expect(Publish)
        use_rules(node, {"permission": "allow", "topics": ["a"]})
        assert node.metrics.value("subscriptions_revoked") == 1
        ann.send(PubAck(first.packet_id))
        assert (await ann.expect(Publish)).payload == b"3"
        await ann.silence()
