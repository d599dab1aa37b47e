"""Behaviours that users know from the NATS server, and what that does not do; those of sessions are in their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from broker.codec.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from broker.core.client import Client
from broker.core.message import Message
from broker.core.stage import GateCall, Refusal
from tests.support.mqtt_server import on_loop, running
from tests.support.restarts import (
    away,
    lasting,
    on_disk,
    payloads,
    published,
    subscribed,
    waiting_bytes,
)
from tests.support.wire import WireClient


@dataclass
class Renaming:
    """A gate that gives messages on ``old`` the topic ``new``."""

    name: str = "renaming"

    def plan(self, topic: str) -> GateCall | None:
        return self._rename if topic == "old" else None

    def _rename(self, message: Message) -> Message | Refusal:
        return message.changed(
            "new", message.payload, message.qos, message.retain, message.properties
        )


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:N3", "own:N2")
@on_loop
async def test_two_that_fight_over_an_identifier_get_it_in_turns_of_a_second(version: int) -> None:
    async with running() as node:
        first = await node.client("c", version)
        second = await node.client("c", version)
        third = await WireClient.open(node.port, version)
        third.send_bytes(
            b"\x10\x0d\0\4MQTT\4\2\0\0\0\1c" if version == 4 else b"\x10\x0e\0\4MQTT\5\2\0\0\0\0\1c"
        )
        await first.closed()
        await node.until(lambda: len(node.server.hub.connections) == 2)
        node.pass_time(0.5)
        await second.silence()
        assert len(node.server.hub.connections) == 2
        node.pass_time(0.6)
        await second.closed()
        await third.receive()
        await third.silence()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.statement(
    "own:N10",
    "own:N11",
    "own:R35",
    "3:3.1.2-7",
    "5:3.3.1-5",
    "3:3.3.1-5",
    "5:3.3.1-6",
    "3:3.3.1-10",
)
@on_loop
async def test_one_message_a_topic_is_retained_beyond_its_session(
    version: int, is_restarted: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path) as node:
        await published(node, b"1", b"2", topic="kept", retain=True, version=version)
        await published(node, b"1", topic="gone", retain=True, version=version)
        watcher = await subscribed(await node.client("w"), ("gone", 1))
        assert await payloads(watcher, 1) == [b"1"]
        await published(node, b"", topic="gone", retain=True, version=version)
        got = await watcher.expect(Publish)
        assert (got.payload, got.retain) == (b"", False)
        if not is_restarted:
            late = await subscribed(await node.client("late", version), ("#", 2))
            got = await late.expect(Publish)
    if is_restarted:
        async with on_disk(tmp_path) as node:
            late = await subscribed(await node.client("late", version), ("#", 2))
            got = await late.expect(Publish)
            await late.silence()
    assert (got.topic, got.payload, got.qos, got.retain) == ("kept", b"2", 1, True)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("own:N20")
@on_loop
async def test_messages_of_other_inputs_are_like_those_of_clients(
    qos: int, is_lasting: bool
) -> None:
    async with running() as node:
        client = await lasting(node, version=5) if is_lasting else await node.client("s", 5)
        await client.subscribe(SubscriptionRequest("t", 2), identifier=4)
        properties = {"User-Property": [("from", "a rule")]}
        message = Message("t", b"x", qos, True, Client("rule"), node.clock.now_ns(), properties)
        assert node.server.publisher.publish(message).receivers == 1
        got = await client.expect(Publish)
        assert (got.payload, got.qos, got.retain) == (b"x", qos, False)
        assert got.properties == properties | {"Subscription-Identifier": [4]}
        late = await subscribed(await node.client("late", 5), ("t", 2))
        assert (await late.expect(Publish)).qos == qos


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("own:N21")
@on_loop
async def test_a_topic_that_is_changed_on_the_way_is_the_one_that_counts(is_lasting: bool) -> None:
    async with running(gates=[Renaming()]) as node:
        client = await lasting(node) if is_lasting else await node.client("s")
        await subscribed(client, ("new", 1), ("old", 1))
        await published(node, b"x", topic="old", retain=True)
        got = await client.expect(Publish)
        client.send(PubAck(got.packet_id))
        assert (got.topic, got.payload) == ("new", b"x")
        await client.silence()
        late = await node.client("late")
        await late.subscribe(SubscriptionRequest("old", 1))
        await late.silence()
        await late.subscribe(SubscriptionRequest("new", 1))
        assert (await late.expect(Publish)).topic == "new"


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.statement("own:N34", "own:N24")
@on_loop
async def test_qos_2_is_whole_in_every_version_and_both_directions(version: int) -> None:
    async with running() as node:
        client = await subscribed(await lasting(node, version=version), ("t", 2))
        for number in range(1, 4):
            client.send(Publish("t", b"%d" % number, 2, packet_id=number))
            found = [await client.receive() for _ in range(2)]
            [delivery] = [packet for packet in found if isinstance(packet, Publish)]
            assert any(
                isinstance(packet, PubRec) and packet.packet_id == number for packet in found
            )
            client.send(PubRel(number), PubRec(delivery.packet_id))
            found = [await client.receive() for _ in range(2)]
            assert {type(packet) for packet in found} == {PubComp, PubRel}
            client.send(PubComp(delivery.packet_id))
        await client.silence()
        session = node.server.hub.sessions.by_client_id["s"]
        assert not session.window.inflight
        assert session.inbound is not None
        assert not session.inbound.open_qos2


@pytest.mark.statement("own:N16", "own:N7", "5:4.1.0-2")
@on_loop
async def test_what_only_an_ended_session_needed_is_forgotten() -> None:
    async with running() as node:
        client = await node.client("s", 5, properties={"Session-Expiry-Interval": 10})
        await subscribed(client, ("t", 1))
        client.send(Disconnect())
        await away(node)
        await published(node, b"x" * 1000)
        node.pass_time(11)
        await node.until(lambda: waiting_bytes(node, after_s=1) == 0)
        assert not list(node.writer.store.scan(b"session/"))


class RefusingQos2:
    """A gate that refuses the first message."""

    name = "refusing"

    def __init__(self) -> None:
        self.has_refused = False

    def plan(self, topic: str) -> GateCall | None:
        return self._judge

    def _judge(self, message: Message) -> Message | Refusal:
        if self.has_refused:
            return message
        self.has_refused = True
        return Refusal("validation", "v", "validation_failed", 0x83, "not today")


@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("5:4.3.3-9", "own:R3")
@on_loop
async def test_the_identifier_is_free_after_a_refusing_pubrec(is_lasting: bool) -> None:
    async with running(gates=[RefusingQos2()]) as node:
        watcher = await subscribed(await node.client("w"), ("t", 2))
        client = await lasting(node, "p", 5) if is_lasting else await node.client("p", 5)
        client.send(Publish("t", b"1", 2, packet_id=1))
        assert (await client.expect(PubRec)).reason_code == 0x83
        client.send(Publish("t", b"2", 2, packet_id=1))
        assert (await client.expect(PubRec)).reason_code == 0
        client.send(PubRel(1))
        assert (await client.expect(PubComp)).reason_code == 0
        assert (await watcher.expect(Publish)).payload == b"2"
