"""Behaviours that users know from RabbitMQ's MQTT 5.0; those of sessions, wills, expiry and flow are in their files."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest

from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from broker.core.message import Message
from broker.core.stage import GateCall, Refusal
from tests.support.mqtt_server import on_loop, running
from tests.support.raw import RawClient, connect, packet, publish
from tests.support.restarts import lasting, published, subscribed
from tests.support.wire import WireClient


@dataclass
class Refusing:
    """A gate that takes nothing on ``bad``."""

    disconnect: bool
    name: str = "refusing"

    def plan(self, topic: str) -> GateCall | None:
        return self._refuse if topic == "bad" else None

    def _refuse(self, message: Message) -> Message | Refusal:
        return Refusal(
            "validation",
            "v",
            "validation_failed",
            0x83,
            "not what the schema says",
            self.disconnect,
        )


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("disconnect", [False, True])
@pytest.mark.statement("own:R3")
@on_loop
async def test_a_message_that_is_not_taken_is_told_as_far_as_the_version_can(
    version: int, qos: int, disconnect: bool
) -> None:
    async with running(gates=[Refusing(disconnect)]) as node:
        client = await node.client("c", version)
        client.send(Publish("bad", b"x", qos, packet_id=1))
        if disconnect:
            said = await client.closed()
            assert [getattr(found, "reason_code", None) for found in said] == (
                [0x83] if version == 5 else []
            )
            return
        got = await client.receive()
        assert isinstance(got, PubAck if qos == 1 else PubRec)
        assert got.reason_code == (0x83 if version == 5 else 0)
        assert node.dropped("validation_failed") == 1


@pytest.mark.statement("own:R11", "own:R38")
@on_loop
async def test_an_unknown_method_is_refused_and_errors_later_are_told() -> None:
    async with running() as node:
        client = await WireClient.open(node.port, 5)
        client.send(Connect("c", 5, properties={"Authentication-Method": "SOMETHING"}))
        assert (await client.expect(ConnAck)).reason_code == 0x8C
        later = await node.client("d", 5)
        later.send(Auth(0x18, {"Authentication-Method": "SOMETHING"}))
        [said] = await later.closed()
        assert isinstance(said, Disconnect)
        assert said.reason_code == 0x82


@pytest.mark.statement("own:R12")
@on_loop
async def test_the_first_topics_towards_a_client_get_its_aliases() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(5, "s", b"\x22\0\2"))
        await client.subscribed(5, ("#", 0))
        for topic in ("a/1", "a/2", "a/3"):
            await published(node, b"x", topic=topic, qos=0)
        alias = b"\x23\0"
        await client.expect(
            publish(5, "a/1", b"x", alias + b"\1"),
            publish(5, "a/2", b"x", alias + b"\2"),
            publish(5, "a/3", b"x"),
        )
        await published(node, b"y", topic="a/1", qos=0)
        await client.expect(publish(5, "", b"y", alias + b"\1"))
        await client.silence()


@pytest.mark.statement("own:R13", "5:3.3.2-10", "5:3.3.2-12")
@on_loop
async def test_an_alias_of_a_client_may_be_mapped_anew() -> None:
    async with running() as node:
        watcher = await subscribed(await node.client("w"), ("#", 0))
        client = await node.client("c", 5)
        for topic, sent in (("a", "a"), ("a", ""), ("b", "b"), ("b", "")):
            client.send(Publish(sent, b"x", properties={"Topic-Alias": 1}))
            assert (await watcher.expect(Publish)).topic == topic


@pytest.mark.parametrize(("maximum", "alias"), [(0, 1), (5, 6), (5, 0)])
@pytest.mark.statement("own:R14", "own:R15", "5:3.2.2-17", "5:3.2.2-18")
@on_loop
async def test_an_alias_that_is_not_allowed_closes_and_is_logged(
    maximum: int, alias: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(topic_alias_maximum=maximum) as node:
        client = await node.client("c", 5)
        assert client.connack.properties.get("Topic-Alias-Maximum") == (maximum or None)
        with caplog.at_level(logging.INFO):
            client.send(Publish("t", b"x", properties={"Topic-Alias": alias}))
            [said] = await client.closed()
        assert isinstance(said, Disconnect)
        assert said.reason_code == 0x94
        assert f"alias {alias}" in caplog.text


@pytest.mark.parametrize("maximum", [0, 1])
@pytest.mark.statement("own:R31", "own:R34", "5:3.2.2-9", "5:3.2.2-11", "5:3.2.2-12")
@on_loop
async def test_a_maximum_qos_is_announced_and_held_to(maximum: int) -> None:
    async with running(maximum_qos=maximum) as node:
        refused = await WireClient.open(node.port, 5)
        refused.send(Connect("w", 5, will=Will("t", b"", maximum + 1)))
        assert (await refused.expect(ConnAck)).reason_code == 0x9B
        client = await node.client("c", 5)
        assert client.connack.properties["Maximum-QoS"] == maximum
        assert await client.subscribe(SubscriptionRequest("t", 2)) == [maximum]
        client.send(Publish("t", b"", maximum + 1, packet_id=1))
        [said] = await client.closed()
        assert isinstance(said, Disconnect)
        assert said.reason_code == 0x9B


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.statement("own:R36", "5:3.2.2-15")
@on_loop
async def test_one_size_limit_holds_before_connect_and_another_after(version: int) -> None:
    async with running(max_packet_size_before_connect=1000, max_packet_size=5000) as node:
        early = await RawClient.open(node.port)
        early.send(connect(version, "x" * 1001))
        said = await early.closed()
        assert [found[3] for found in said] == ([0x95] if version == 5 else [])
        client = await RawClient.connected(node.port, connect(version))
        client.send(publish(version, "t", b"x" * 4000))
        await client.silence()
        client.send(publish(version, "t", b"x" * 5001))
        said = await client.closed()
        assert [found[2] for found in said] == ([0x95] if version == 5 else [])


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:choice-malformed-connect", "own:choice-reserved-bits")
@on_loop
async def test_reserved_bits_are_malformed_and_a_connect_of_version_5_is_told(version: int) -> None:
    async with running() as node:
        client = await RawClient.open(node.port)
        client.send(connect(version, flags=1))
        said = await client.closed()
        assert [found[:1] + found[3:4] for found in said] == ([b"\x20\x81"] if version == 5 else [])
        later = await RawClient.connected(node.port, connect(version))
        later.send(packet(0xC1))
        said = await later.closed()
        assert [found[:1] + found[2:3] for found in said] == ([b"\xe0\x81"] if version == 5 else [])


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement(
    "own:choice-shared-at-disconnect",
    "own:M-note-4",
    "own:C4",
    "own:M-note-3",
    "own:share-reassign",
)
@on_loop
async def test_what_a_lost_member_did_not_acknowledge_goes_on_with_qos_1_and_stays_with_qos_2(
    is_lasting: bool,
) -> None:
    async with running() as node:
        filters = [("$share/g/one", 1), ("$share/g/two", 2)]
        first = await lasting(node, "a") if is_lasting else await node.client("a")
        await subscribed(first, *filters)
        await published(node, b"1", topic="one")
        await published(node, b"2", topic="two", qos=2)
        got = [await first.expect(Publish) for _ in range(2)]
        second = await subscribed(await node.client("b"), *filters)
        first.abort()
        again = await second.expect(Publish)
        assert (again.payload, again.qos) == (b"1", 1)
        second.send(PubAck(again.packet_id))
        await second.silence()
        if is_lasting:
            first = await lasting(node, "a")
            resent = await first.expect(Publish)
            assert (resent.payload, resent.packet_id, resent.dup) == (b"2", got[1].packet_id, True)
            first.send(PubRec(resent.packet_id))
            await first.expect(PubRel)


@pytest.mark.parametrize(("version", "codes"), [(4, [0x80, 1]), (5, [])])
@pytest.mark.statement("own:M7")
@on_loop
async def test_shared_subscriptions_can_be_switched_off(version: int, codes: list[int]) -> None:
    async with running(shared_subscription_available=False) as node:
        client = await node.client("c", version)
        client.send(
            Subscribe(1, [SubscriptionRequest("$share/g/a", 1), SubscriptionRequest("a", 1)])
        )
        if version == 5:
            assert client.connack.properties["Shared-Subscription-Available"] == 0
            [said] = await client.closed()
            assert isinstance(said, Disconnect)
            assert said.reason_code == 0x9E
        else:
            assert (await client.receive()).reason_codes == codes  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["", "a/b", "+", "#", "g#", "+g"])
@pytest.mark.statement("own:C1")
@on_loop
async def test_a_share_name_is_a_plain_word(name: str) -> None:
    async with running() as node:
        client = await node.client("c", 5)
        # the name ends at the first slash: 'a' and the filter 'b/t'
        expected = 1 if name == "a/b" else 0x8F
        assert await client.subscribe(SubscriptionRequest(f"$share/{name}/t", 1)) == [expected]
