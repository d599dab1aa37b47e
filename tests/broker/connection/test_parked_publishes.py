"""Publishes that a gate decides only when another process has answered: the client waits, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.codec.packets import (
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    Will,
)
from broker.core.client import Client
from broker.core.message import Message
from broker.core.stage import Refusal, WaitingGateCall
from tests.support.mqtt_server import Node, on_loop, running
from tests.support.wire import WireClient

Verdict = Message | Refusal


class Judge:
    """A gate that waits on ``slow/...`` until the test has said what becomes of each message."""

    name = "judge"

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.cancelled: list[bytes] = []
        self._verdicts: dict[bytes, asyncio.Future[Verdict | None]] = {}

    def plan(self, topic: str) -> WaitingGateCall | None:
        return WaitingGateCall(self._judge) if topic.startswith("slow/") else None

    async def _judge(self, message: Message) -> Verdict:
        self.asked.append(message.payload)
        try:
            verdict = await self._future(message.payload)
        except asyncio.CancelledError:
            self.cancelled.append(message.payload)
            raise
        return message if verdict is None else verdict

    def say(self, payload: bytes, verdict: Verdict | None = None) -> None:
        """Let the message with this payload pass, or what is given become of it."""
        self._future(payload).set_result(verdict)

    def fail(self, payload: bytes) -> None:
        self._future(payload).set_exception(ValueError("broken"))

    def _future(self, payload: bytes) -> asyncio.Future[Verdict | None]:
        found = self._verdicts.get(payload)
        if found is None or found.cancelled():
            found = self._verdicts[payload] = asyncio.get_running_loop().create_future()
        return found


@asynccontextmanager
async def judged(**settings: Any) -> AsyncIterator[tuple[Node, Judge, WireClient]]:
    """A broker with a judge, and a client that subscribes to everything."""
    judge = Judge()
    async with running(gates=[judge], **settings) as node:
        reader = await node.client("reader")
        await reader.subscribe(SubscriptionRequest("#", 0))
        yield node, judge, reader


async def got(reader: WireClient, count: int) -> list[bytes]:
    return [(await reader.expect(Publish)).payload for _ in range(count)]


def published(
    payload: bytes, qos: int = 1, packet_id: int = 1, topic: str = "slow/a", **members: Any
) -> Publish:
    return Publish(topic, payload, qos, packet_id=packet_id if qos else 0, **members)


@pytest.mark.parametrize("version", [4, 5])
@on_loop
async def test_what_a_parked_client_sent_behind_keeps_its_order(version: int) -> None:
    async with judged() as (node, judge, reader):
        client = await node.client("p", version)
        client.send(
            published(b"1", 0, topic="fast/a"), published(b"2", 1, 2), published(b"3", 0), published(b"4", 2, 4),
            published(b"5", 1, 5, "fast/a"), PingReq(),
        )  # fmt: skip
        await node.until(lambda: judge.asked == [b"2"])
        assert await got(reader, 1) == [b"1"]
        for payload in (b"2", b"3", b"4"):
            judge.say(payload)
        assert (await client.expect(PubAck)).packet_id == 2
        assert (await client.expect(PubRec)).packet_id == 4
        assert (await client.expect(PubAck)).packet_id == 5
        await client.expect(PingResp)
        client.send(PubRel(4))
        assert (await client.expect(PubComp)).packet_id == 4
        assert await got(reader, 4) == [b"2", b"3", b"4", b"5"]
        assert judge.asked == [b"2", b"3", b"4"]
        await client.silence()


@on_loop
async def test_nobody_else_waits_for_a_parked_client() -> None:
    async with judged() as (node, judge, reader):
        parked, other = await node.client("p"), await node.client("q")
        parked.send(published(b"held"))
        await node.until(lambda: judge.asked)
        assert node.metrics.value("connections_parked") == 1
        other.send(*(published(b"%d" % number, 1, number, "fast/a") for number in range(1, 51)))
        for number in range(1, 51):
            assert (await other.expect(PubAck)).packet_id == number
        assert await got(reader, 50) == [b"%d" % number for number in range(1, 51)]
        other.send(published(b"later", 1, 60))
        await node.until(lambda: judge.asked == [b"held", b"later"])
        judge.say(b"later")
        assert (await other.expect(PubAck)).packet_id == 60
        judge.say(b"held")
        await parked.expect(PubAck)
        assert await got(reader, 2) == [b"later", b"held"]
        assert node.metrics.value("connections_parked") == 0
        assert node.metrics.value("publishes_parked") == 2


@on_loop
async def test_a_subscriber_hears_what_is_decided_after_it_came() -> None:
    async with judged() as (node, judge, _):
        client, late = await node.client("p"), await node.client("late")
        client.send(published(b"x", retain=True))
        await node.until(lambda: judge.asked)
        await late.subscribe(SubscriptionRequest("slow/#", 0))
        judge.say(b"x")
        assert await got(late, 1) == [b"x"]


@on_loop
async def test_a_message_that_gets_another_topic_goes_there() -> None:
    async with judged() as (node, judge, reader):
        client = await node.client("p")
        client.send(published(b"x"))
        judge.say(b"x", Message("moved/a", b"y", 1, False, Client("p"), 1))
        await client.expect(PubAck)
        packet = await reader.expect(Publish)
        assert (packet.topic, packet.payload) == ("moved/a", b"y")


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_refusal_is_told_as_ever(qos: int) -> None:
    refusal = Refusal("judge", "judge", "validation_failed", 0x99, "it does not fit")
    async with judged() as (node, judge, reader):
        new, old = await node.client("new", 5), await node.client("old", 4)
        for client, payload in ((new, b"n"), (old, b"o")):
            client.send(published(payload, qos))
            judge.say(payload, refusal)
        kind: type[PubAck | PubRec] = PubAck if qos == 1 else PubRec
        told = await new.expect(kind)
        assert (told.reason_code, told.properties) == (0x99, {"Reason-String": "it does not fit"})
        assert (await old.expect(kind)).reason_code == 0
        assert node.dropped("validation_failed") == 2
        await reader.silence()


@pytest.mark.parametrize("qos", [0, 1, 2])
@on_loop
async def test_a_refusal_may_disconnect_and_what_came_behind_is_not_read(qos: int) -> None:
    refusal = Refusal(
        "judge", "judge", "validation_failed", 0x99, "it does not fit", disconnect=True
    )
    async with judged() as (node, judge, reader):
        client = await node.client("p", 5)
        client.send(published(b"x", qos), published(b"y", qos, 2, "fast/a"))
        judge.say(b"x", refusal)
        assert (await client.expect(Disconnect)).reason_code == 0x83
        await client.closed()
        await reader.silence()


@on_loop
async def test_a_gate_that_breaks_refuses_the_message() -> None:
    async with judged() as (node, judge, reader):
        client = await node.client("p", 5)
        client.send(published(b"x"))
        judge.fail(b"x")
        assert (await client.expect(PubAck)).reason_code == 0x80
        assert node.dropped("internal_error") == 1
        await reader.silence()


@on_loop
async def test_a_client_that_says_goodbye_behind_its_message_is_heard() -> None:
    async with judged() as (node, judge, reader):
        client = await node.client("p")
        client.send(published(b"1", 0), published(b"2", 0), Disconnect())
        await client.close()
        await node.until(lambda: judge.asked)
        judge.say(b"1")
        judge.say(b"2")
        assert await got(reader, 2) == [b"1", b"2"]
        await node.until(lambda: node.metrics.value("connections") == 1)
        assert node.dropped("publisher_gone") == 0


@on_loop
async def test_keep_alive_does_not_run_while_a_client_is_parked() -> None:
    async with judged() as (node, judge, _):
        client = await node.client("p", keep_alive_s=10)
        client.send(published(b"x"))
        await node.until(lambda: judge.asked)
        node.pass_time(60)
        judge.say(b"x")
        await client.expect(PubAck)
        node.pass_time(10)
        client.send(PingReq())
        await client.expect(PingResp)


@on_loop
async def test_a_parked_client_that_is_taken_over_takes_its_message_with_it() -> None:
    """It was not acknowledged, so the client sends it again; the will is not overtaken."""
    async with judged() as (node, judge, reader):
        old = await node.client("p", 5, will=Will("fast/will", b"will"))
        old.send(published(b"x", 1, 7), published(b"y", 1, 8))
        await node.until(lambda: judge.asked)
        new = await node.client("p", 5)
        assert (await old.expect(Disconnect)).reason_code == 0x8E
        assert await got(reader, 1) == [b"will"]
        await node.until(lambda: judge.cancelled == [b"x"])
        assert node.dropped("publisher_gone") == 1
        new.send(published(b"x", 1, 7, dup=True), published(b"y", 1, 8))
        judge.say(b"x")
        judge.say(b"y")
        assert [(await new.expect(PubAck)).packet_id for _ in range(2)] == [7, 8]
        assert await got(reader, 2) == [b"x", b"y"]
        await new.silence()


@on_loop
async def test_a_parked_client_can_be_kicked() -> None:
    async with judged() as (node, judge, reader):
        client = await node.client("p", 5)
        client.send(published(b"x", 2))
        await node.until(lambda: judge.asked)
        node.kick("p")
        assert (await client.expect(Disconnect)).reason_code == 0x98
        await node.until(lambda: judge.cancelled)
        assert node.metrics.value("connections_parked") == 0
        await reader.silence()


@on_loop
async def test_stopping_waits_for_parked_clients_and_not_for_ever() -> None:
    async with judged() as (node, judge, reader):
        quick, stuck = await node.client("quick", 5), await node.client("stuck", 5)
        quick.send(published(b"quick"), published(b"behind", 1, 2))
        stuck.send(published(b"stuck"))
        node.server.publisher.publish(Message("slow/lane", b"lane", 0, False, Client("api"), 1))
        await node.until(lambda: len(judge.asked) == 3)
        stopping = asyncio.create_task(node.server.stop(0.6))
        await asyncio.sleep(0)
        judge.say(b"quick")
        await quick.expect(PubAck)
        assert await got(reader, 1) == [b"quick"]
        assert (await quick.expect(Disconnect)).reason_code == 0x8B
        assert (await stuck.expect(Disconnect)).reason_code == 0x8B
        await stopping
        assert sorted(judge.cancelled) == [b"lane", b"stuck"]
        assert b"behind" not in judge.asked
        assert node.dropped("publisher_gone") == 1
        assert node.dropped("shutting_down") == 1


def made(number: int, topic: str = "slow/a") -> Message:
    return Message(topic, b"%d" % number, 0, False, Client("api"), 1)


@on_loop
async def test_messages_made_inside_wait_in_the_order_of_their_topic() -> None:
    async with judged() as (node, judge, reader):
        publish = node.server.publisher.publish
        assert [publish(made(number)).is_waiting for number in (1, 2, 3)] == [True] * 3
        assert publish(made(9, "slow/other")).is_waiting
        await node.until(lambda: judge.asked == [b"1", b"9"])
        assert node.metrics.value("messages_waiting") == 4
        for number in (9, 3, 2, 1):
            judge.say(b"%d" % number)
        assert await got(reader, 4) == [b"9", b"1", b"2", b"3"]
        assert node.metrics.value("messages_waiting") == 0
        assert not node.server.publisher.lanes.topics


@on_loop
async def test_a_publisher_can_wait_for_what_becomes_of_its_message() -> None:
    refusal = Refusal("judge", "judge", "validation_failed", 0x99, "it does not fit")
    async with judged() as (node, judge, _):
        publisher = node.server.publisher
        judge.say(b"1")
        assert (await publisher.publish_and_wait(made(1))).receivers == 1
        judge.say(b"2", refusal)
        assert (await publisher.publish_and_wait(made(2))).refusal == refusal
        assert (await publisher.publish_and_wait(made(3, "fast/a"))).receivers == 1


@on_loop
async def test_what_stands_behind_a_waiting_message_stays_there_when_nobody_waits_any_more() -> (
    None
):
    async with judged() as (node, judge, reader):
        publish = node.server.publisher.publish
        publish(made(1))
        await node.until(lambda: judge.asked)
        node.server.set_stages([], [])
        assert publish(made(2)).is_waiting
        judge.say(b"1")
        assert await got(reader, 2) == [b"1", b"2"]
        await node.until(lambda: not node.server.publisher.lanes.topics)
        assert not publish(made(3)).is_waiting


@on_loop
async def test_full_lanes_refuse_and_count() -> None:
    async with judged(max_waiting_messages=2) as (node, judge, reader):
        publish = node.server.publisher.publish
        outcomes = [publish(made(number, f"slow/{number}")) for number in range(4)]
        assert [outcome.refusal and outcome.refusal.reason for outcome in outcomes] == [
            None, None, "waiting_full", "waiting_full",
        ]  # fmt: skip
        assert node.dropped("waiting_full") == 2
        judge.say(b"0")
        judge.say(b"1")
        assert sorted(await got(reader, 2)) == [b"0", b"1"]


@on_loop
async def test_a_will_waits_like_any_message() -> None:
    async with judged() as (node, judge, reader):
        client = await node.client("p", will=Will("slow/will", b"will"))
        await client.close()
        await node.until(lambda: judge.asked == [b"will"])
        judge.say(b"will")
        assert await got(reader, 1) == [b"will"]
