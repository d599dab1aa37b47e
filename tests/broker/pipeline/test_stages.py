"""Gates and taps on the path of a publish."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from msgspec.structs import replace

from broker.codec.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
)
from broker.core import reason
from broker.core.client import Client
from broker.core.message import Message
from broker.core.stage import GateCall, Refusal, TapCall
from broker.routing.rewrite import RewriteSpec
from tests.support.access import access
from tests.support.mqtt_server import on_loop, running


@dataclass
class OneGate:
    """Calls one function for messages on topics that begin with a text."""

    call: GateCall
    name: str = "gate"
    start: str = ""

    def plan(self, topic: str) -> GateCall | None:
        return self.call if topic.startswith(self.start) else None


@dataclass
class OneTap:
    """The same for a tap."""

    call: TapCall
    name: str = "tap"
    start: str = ""

    def plan(self, topic: str) -> TapCall | None:
        return self.call if topic.startswith(self.start) else None


def refuse(disconnect: bool = False) -> Callable[[Message], Message | Refusal]:
    refusal = Refusal(
        "validation", "v", "validation_failed", 0x99, "not what the schema says", disconnect
    )
    return lambda _message: refusal


def fail(_message: Message) -> None:
    raise RuntimeError("a bug")


def fail_gate(_message: Message) -> Message | Refusal:
    raise RuntimeError("a bug")


@on_loop
async def test_a_refused_message_is_answered_with_the_reason_and_counted() -> None:
    async with running(gates=[OneGate(refuse(), start="bad")]) as node:
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("#"))
        client.send(
            Publish("bad", b"", 1, packet_id=1),
            Publish("bad", b"", 2, packet_id=2),
            Publish("bad", b""),
        )
        text = {"Reason-String": "not what the schema says"}
        assert await client.expect(PubAck) == PubAck(1, 0x99, text)
        assert await client.expect(PubRec) == PubRec(2, 0x99, text)
        client.send(PubRel(2))
        assert await client.expect(PubComp) == PubComp(2, 0x92)
        assert node.dropped("validation_failed") == 3
        assert node.metrics.value("messages_refused", reason="validation_failed") == 3


@on_loop
async def test_no_reason_is_given_to_whoever_asked_for_none() -> None:
    async with running(gates=[OneGate(refuse())]) as node:
        client = await node.client("c", 5, properties={"Request-Problem-Information": 0})
        client.send(Publish("bad", b"", 1, packet_id=1))
        assert await client.expect(PubAck) == PubAck(1, 0x99)


@on_loop
async def test_version_3_1_1_gets_a_plain_acknowledgement_for_what_is_refused() -> None:
    async with running(gates=[OneGate(refuse())]) as node:
        client = await node.client("c", 4)
        client.send(Publish("bad", b"", 1, packet_id=1), Publish("bad", b"", 2, packet_id=2))
        assert await client.expect(PubAck) == PubAck(1)
        assert await client.expect(PubRec) == PubRec(2)
        client.send(PubRel(2))
        assert await client.expect(PubComp) == PubComp(2)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_a_refusal_may_disconnect(version: int, qos: int) -> None:
    async with running(gates=[OneGate(refuse(disconnect=True))]) as node:
        client = await node.client("c", version)
        client.send(Publish("bad", b"", qos, packet_id=1 if qos else 0))
        said = await client.closed()
        if version == 4:
            assert said == []
        else:
            [packet] = said
            assert isinstance(packet, Disconnect)
            assert packet.reason_code == 0x83


@on_loop
async def test_a_gate_that_raises_refuses_and_a_tap_that_raises_is_skipped() -> None:
    gates, taps = [OneGate(fail_gate, start="gate")], [OneTap(fail, start="tap")]
    async with running(gates=gates, taps=taps) as node:
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("#"))
        client.send(Publish("gate", b"", 1, packet_id=1), Publish("tap", b"x", 1, packet_id=2))
        ack = await client.expect(PubAck)
        assert (ack.packet_id, ack.reason_code) == (1, 0x80)
        packets = [await client.receive() for _ in range(2)]
        assert PubAck(2) in packets
        assert node.dropped("internal_error") == 1
        assert node.metrics.value("stage_errors", stage="tap") == 1


@on_loop
async def test_a_gate_that_renames_sends_taps_retained_and_subscribers_to_the_new_topic() -> None:
    seen: list[str] = []
    rename = OneGate(lambda message: replace(message, topic="new/" + message.topic), start="old")
    tap_old = OneTap(lambda message: seen.append("old"), start="old")
    tap_new = OneTap(lambda message: seen.append(message.topic), start="new")
    async with running(gates=[rename], taps=[tap_old, tap_new]) as node:
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("#"))
        client.send(Publish("old", b"x", retain=True))
        assert (await client.expect(Publish)).topic == "new/old"
        assert seen == ["new/old"]
        late = await node.client("l", 5)
        await late.subscribe(SubscriptionRequest("#"))
        assert (await late.expect(Publish)).topic == "new/old"


@on_loop
async def test_gates_run_in_order_and_before_taps() -> None:
    seen: list[bytes] = []
    gates = [
        OneGate(lambda message: replace(message, payload=message.payload + b"1")),
        OneGate(lambda message: replace(message, payload=message.payload + b"2")),
    ]
    async with running(
        gates=gates, taps=[OneTap(lambda message: seen.append(message.payload))]
    ) as node:
        client = await node.client("c", 5)
        client.send(Publish("t", b"0", 1, packet_id=1))
        assert await client.expect(PubAck) == PubAck(1)  # a tap took it: somebody was there
        assert seen == [b"012"]


@on_loop
async def test_stages_may_change_while_messages_flow() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        await client.subscribe(SubscriptionRequest("#"))
        client.send(Publish("t", b"1"))
        await client.expect(Publish)
        node.server.set_stages([OneGate(refuse())], [])
        client.send(Publish("t", b"2", 1, packet_id=1))
        assert (await client.expect(PubAck)).reason_code == 0x99


@on_loop
async def test_messages_made_inside_take_the_same_way() -> None:
    async with running(gates=[OneGate(refuse(), start="bad")]) as node:
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("#"))
        publisher = node.server.publisher
        made = Message("t", b"x", 0, False, Client("rule"), 1)
        assert publisher.publish(made).receivers == 1
        assert (await client.expect(Publish)).payload == b"x"
        refused = publisher.publish(replace(made, topic="bad"))
        assert refused.refusal is not None
        assert refused.refusal.reason == "validation_failed"
        unusable = publisher.publish(replace(made, topic="a/#"))
        assert unusable.refusal is not None
        assert unusable.refusal.reason_code == 0x90


@on_loop
async def test_the_plan_cache_is_bounded() -> None:
    async with running(max_cached_plans=16) as node:
        client = await node.client("c")
        client.send(*[Publish(f"t/{number}", b"") for number in range(100)])
        await client.silence()
        assert len(node.server.hub.plans.by_topic) <= 16


# -- what plans take --


@on_loop
async def test_plans_are_bounded_by_bytes_and_those_of_long_topics_are_not_kept() -> None:
    async with running(
        max_cached_plan_bytes=256 * 1024, max_unsent_bytes=1 << 24, max_unsent_messages=2000
    ) as node:
        plans = node.server.hub.plans
        reader = await node.client("r")
        await reader.subscribe(SubscriptionRequest("#", 0))
        client = await node.client("c")
        for number in range(1000):
            client.send(
                Publish(
                    f"{number}/" + "x" * 900,
                    b"",
                    number & 1,
                    packet_id=number + 1 if number & 1 else 0,
                )
            )
            assert plans.size_bytes < 300 * 1024
        for number in range(50):
            client.send(*(Publish(f"{number}/" + "y" * 60_000, b"") for _ in range(3)))
        for number in range(1150):
            topic = (await reader.expect(Publish)).topic
            assert len(topic) < 1000 or topic.startswith(f"{(number - 1000) // 3}/")
        assert max(map(len, plans.by_topic), default=0) < 1000
        assert max(map(len, plans.by_head), default=0) < 1000


@pytest.mark.parametrize("qos", [0, 1])
@on_loop
async def test_what_a_client_may_not_publish_takes_no_room_among_plans(qos: int) -> None:
    rules = [{"permission": "allow", "topics": ["ok/#"]}, {"permission": "deny", "topics": ["#"]}]
    rewrite = {
        "name": "r",
        "action": "publish",
        "source_topic": "in/#",
        "dest_topic": "out/x",
        "re": "^in/(.+)$",
    }
    async with running(access=access(rules=rules, trusts_anonymous=True)) as node:
        node.server.hub.rewrites.use([RewriteSpec.model_validate(rewrite)])
        plans, client = node.server.hub.plans, await node.client("c", 5)
        before = plans.size_bytes
        for number in range(200):
            identifier = number + 1 if qos else 0
            client.send(
                Publish(f"{'in' if number & 1 else 'no'}/{number}", b"", qos, packet_id=identifier)
            )
        if qos:
            assert {(await client.expect(PubAck)).reason_code for _ in range(200)} == {
                reason.NOT_AUTHORIZED
            }
        client.send(Publish("ok/1", b"", 1, packet_id=300))
        assert (await client.expect(PubAck)).reason_code == reason.NO_MATCHING_SUBSCRIBERS
        assert set(plans.by_topic) == {b"ok/1"}
        assert plans.size_bytes - before < 1000
        assert node.dropped("not_authorized") == 200


class GateOfObjects:
    """A gate with objects that act on topics by their first level; counts the calls it makes."""

    name = "gate"

    def __init__(self) -> None:
        self.objects = {"a": object(), "b": object()}
        self.planned: list[str] = []

    def acting(self, topic: str) -> tuple[object, ...] | None:
        first = topic.partition("/")[0]
        return None if first == "own" else (self.objects[first],)

    def plan(self, topic: str) -> GateCall | None:
        self.planned.append(topic)
        return lambda message: message


@on_loop
async def test_topics_on_which_the_same_objects_act_share_a_call_until_the_configuration_changes() -> (
    None
):
    gate = GateOfObjects()
    async with running(gates=[gate]) as node:
        client = await node.client("c", 5)
        plans = node.server.hub.plans

        async def publish(*topics: str) -> None:
            for number, topic in enumerate(topics, 1):
                client.send(Publish(topic, b"x", 1, packet_id=number))
                await client.expect(PubAck)

        await publish("a/1", "a/2", "b/1", "own/1", "own/2", "a/3")
        assert gate.planned == ["a/1", "b/1", "own/1", "own/2"]
        assert plans.plan(b"a/1").gates[0][1] is plans.plan(b"a/2").gates[0][1]
        await client.subscribe(SubscriptionRequest("#", 0))
        client.send(Publish("a/1", b"x", 0))
        await client.expect(Publish)
        assert gate.planned == ["a/1", "b/1", "own/1", "own/2"]
        plans.invalidate()
        client.send(Publish("a/2", b"x", 0))
        await client.expect(Publish)
        assert gate.planned[4:] == ["a/2"]
