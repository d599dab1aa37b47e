"""Wills: when they are due, with what, and what outlives what. Sections 3.1.2.5, 3.1.3.2 and 3.14 of MQTT 5.0."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.codec.packets import (
    Connect,
    Disconnect,
    PubAck,
    Publish,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from tests.support.mqtt_server import MovedClock, Node, on_loop, running
from tests.support.restarts import away, lasting, on_disk, payloads, published, subscribed
from tests.support.wire import WireClient


def will(
    delay_s: int = 0,
    *,
    qos: int = 1,
    retain: bool = False,
    payload: bytes = b"gone",
    **properties: Any,
) -> Will:
    """A will on ``will/x``."""
    named = {name.replace("_", "-"): value for name, value in properties.items()}
    return Will(
        "will/x",
        payload,
        qos,
        retain,
        ({"Will-Delay-Interval": delay_s} if delay_s else {}) | named,
    )


async def watching(node: Node) -> WireClient:
    """A client that sees all wills."""
    return await subscribed(await node.client("watcher", 5), ("will/#", 2))


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.statement(
    "own:N9", "5:3.1.2-8", "3:3.1.2-8", "5:3.1.2-14", "3:3.1.2-16", "5:3.1.2-15", "3:3.1.2-17"
)
@on_loop
async def test_a_will_carries_qos_and_retain(version: int, qos: int, retain: bool) -> None:
    async with running() as node:
        watcher = await watching(node)
        client = await node.client("c", version, will=will(qos=qos, retain=retain))
        client.abort()
        got = await watcher.expect(Publish)
        assert (got.payload, got.qos, got.retain) == (b"gone", qos, False)
        late = await node.client("late")
        await late.subscribe(SubscriptionRequest("will/#", 2))
        if retain:
            assert (await late.expect(Publish)).retain
        await late.silence()


ENDINGS: dict[str, tuple[Callable[[WireClient], None], bool]] = {
    "cut": (lambda client: client.abort(), True),
    "DISCONNECT": (lambda client: client.send(Disconnect()), False),
    "protocol error": (lambda client: client.send_bytes(b"\xc1\0"), True),
    "second CONNECT": (lambda client: client.send(Connect("c", client.version)), True),
}


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.statement(
    "own:N9", "5:3.1.2-8", "3:3.1.2-8", "5:3.14.4-3", "3:3.14.4-3", "5:3.1.2-10", "3:3.1.2-10"
)
@on_loop
async def test_every_end_but_goodbye_publishes_the_will_once(version: int, ending: str) -> None:
    end, is_due = ENDINGS[ending]
    async with running() as node:
        watcher = await watching(node)
        client = await node.client("c", version, will=will(qos=0))
        end(client)
        await node.until(lambda: "c" not in node.server.hub.sessions.by_client_id)
        if is_due:
            assert (await watcher.expect(Publish)).payload == b"gone"
        await watcher.silence()
        await node.writer.committed()
        assert not list(node.writer.store.scan(b"wills/"))


@pytest.mark.statement("5:3.1.2-8", "own:N9")
@on_loop
async def test_silence_and_taking_over_publish_the_will() -> None:
    async with running() as node:
        watcher = await watching(node)
        silent = await node.client("silent", keep_alive_s=10, will=will(qos=0, payload=b"silent"))
        first = await node.client("twice", will=will(qos=0, payload=b"first"))
        second = await node.client("twice")
        await first.closed()
        assert (await watcher.expect(Publish)).payload == b"first"
        node.pass_time(16)
        assert (await watcher.expect(Publish)).payload == b"silent"
        assert await silent.closed() == []
        await second.silence()


@pytest.mark.statement("own:R17", "5:3.1.3-10", "5:3.3.2-15")
@on_loop
async def test_properties_of_a_will_arrive_unaltered() -> None:
    properties = {
        "Payload-Format-Indicator": 1,
        "Content-Type": "text/plain",
        "Response-Topic": "answer",
        "Correlation-Data": b"\0\xff" * 150,
        "User-Property": [("b", "2"), ("a", "1"), ("b", "2")],
    }
    async with running() as node:
        watcher = await watching(node)
        delayed = {"Will-Delay-Interval": 5} | properties
        client = await node.client(
            "c",
            5,
            will=Will("will/x", b"p", 1, properties=delayed),
            properties={"Session-Expiry-Interval": 9},
        )
        client.abort()
        await away(node, "c")
        node.pass_time(5)
        assert dict((await watcher.expect(Publish)).properties) == properties


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("delay_s", "expiry_s", "due_s"),
    [(10, 100, 10), (100, 10, 10), (10, 10, 10), (10, 0xFFFFFFFF, 10), (5, 0, 0)],
)
@pytest.mark.statement("own:R19", "5:3.1.2-8", "own:choice-take-over-and-will")
@on_loop
async def test_whichever_of_delay_and_session_ends_first(
    delay_s: int, expiry_s: int, due_s: int, is_restarted: bool, tmp_path: Path
) -> None:
    clock = MovedClock()
    async with on_disk(tmp_path, clock=clock, max_session_expiry=0xFFFFFFFF) as node:
        watcher = await lasting(node, "watcher", 5)
        await subscribed(watcher, ("will/#", 1))
        client = await node.client(
            "c", 5, will=will(delay_s), properties={"Session-Expiry-Interval": expiry_s}
        )
        client.abort()
        if due_s == 0:
            assert await payloads(watcher, 1) == [b"gone"]
            return
        await away(node, "c")
        node.pass_time(due_s - 1)
        await watcher.silence()
        await node.writer.committed()
        if not is_restarted:
            node.pass_time(1)
            assert await payloads(watcher, 1) == [b"gone"]
            node.pass_time(1000)
            await watcher.silence()
    if is_restarted:
        clock.move(1)  # while it is down
        async with on_disk(tmp_path, clock=clock, max_session_expiry=0xFFFFFFFF) as node:
            watcher = await lasting(node, "watcher", 5)
            node.pass_time(0)
            assert await payloads(watcher, 1) == [b"gone"]
            node.pass_time(1000)
            await watcher.silence()


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.statement("5:3.1.3-9", "5:3.1.2-8")
@on_loop
async def test_coming_back_in_time_cancels_a_delayed_will(version: int) -> None:
    async with running() as node:
        watcher = await watching(node)
        client = await node.client(
            "c", 5, will=will(10), properties={"Session-Expiry-Interval": 100}
        )
        client.abort()
        await away(node, "c")
        node.pass_time(9)
        again = await lasting(node, "c", version)
        assert again.connack.session_present is (version > 3)  # CONNACK of 3.1 does not say
        node.pass_time(100)
        await watcher.silence()
        again.send(Disconnect())
        await away(node, "c")
        node.pass_time(1000)
        await watcher.silence()
        await node.writer.committed()
        assert not list(node.writer.store.scan(b"wills/"))


@pytest.mark.statement("5:3.1.2-4", "5:3.1.2-8")
@on_loop
async def test_a_clean_start_in_between_publishes_a_delayed_will_now() -> None:
    async with running() as node:
        watcher = await watching(node)
        client = await node.client(
            "c", 5, will=will(10), properties={"Session-Expiry-Interval": 100}
        )
        client.abort()
        await away(node, "c")
        again = await node.client("c", 5, clean_start=True)
        assert (await watcher.expect(Publish)).payload == b"gone"
        await again.silence()


@pytest.mark.parametrize("is_resumed", [False, True])
@pytest.mark.statement("own:choice-take-over-and-will", "5:3.1.2-8")
@on_loop
async def test_taking_over_cancels_a_will_only_if_it_was_delayed_and_the_session_goes_on(
    is_resumed: bool,
) -> None:
    async with running() as node:
        watcher = await watching(node)
        first = await node.client(
            "c", 5, will=will(10), properties={"Session-Expiry-Interval": 100}
        )
        second = await node.client(
            "c", 5, clean_start=not is_resumed, properties={"Session-Expiry-Interval": 100}
        )
        assert [getattr(found, "reason_code", None) for found in await first.closed()] == [0x8E]
        if not is_resumed:
            assert (await watcher.expect(Publish)).payload == b"gone"
        node.pass_time(50)
        await watcher.silence()
        await second.silence()


@pytest.mark.parametrize(("asked_s", "due_s"), [(3, 3), (100, 10), (0, 0)])
@pytest.mark.statement("own:R30", "5:3.14.2.2.2")
@on_loop
async def test_disconnect_changes_how_long_a_delayed_will_waits(asked_s: int, due_s: int) -> None:
    async with running() as node:
        watcher = await watching(node)
        client = await node.client(
            "c", 5, will=will(10), properties={"Session-Expiry-Interval": 50}
        )
        client.send(Disconnect(0x04, {"Session-Expiry-Interval": asked_s}))
        await client.closed()
        if due_s:
            node.pass_time(due_s - 1)
            await watcher.silence()
            node.pass_time(1)
        assert (await watcher.expect(Publish)).payload == b"gone"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.statement("own:R20", "5:3.1.2-15")
@on_loop
async def test_a_delayed_and_retained_will_is_retained_when_it_fires(
    is_restarted: bool, tmp_path: Path
) -> None:
    clock = MovedClock()
    async with on_disk(tmp_path, clock=clock) as node:
        client = await node.client(
            "c", 5, will=will(10, retain=True), properties={"Session-Expiry-Interval": 100}
        )
        client.abort()
        await away(node, "c")
        await node.writer.committed()
        if not is_restarted:
            await _is_retained_later(node)
    if is_restarted:
        async with on_disk(tmp_path, clock=clock) as node:
            await _is_retained_later(node)


async def _is_retained_later(node: Node) -> None:
    node.pass_time(11)
    late = await node.client("late")
    await late.subscribe(SubscriptionRequest("will/#", 1))
    got = await late.expect(Publish)
    assert (got.payload, got.retain, got.qos) == (b"gone", True, 1)


@pytest.mark.parametrize("is_retained", [False, True])
@pytest.mark.statement("own:R18", "own:R5")
@on_loop
async def test_a_large_will_of_a_client_that_only_publishes_survives_and_is_written_once(
    tmp_path: Path, is_retained: bool
) -> None:
    clock, payload = MovedClock(), b"x" * 60_000
    async with on_disk(tmp_path, clock=clock) as node:
        await subscribed(await lasting(node, "watcher"), ("will/#", 1))
        client = await node.client(
            "c",
            5,
            will=will(60, payload=payload, retain=is_retained),
            properties={"Session-Expiry-Interval": 600},
        )
        client.send(*(Publish("t", b"", 2, packet_id=number) for number in range(1, 30)))
        for _ in range(29):
            await client.receive()
        assert len(node.writer.store.get(b"session/c") or b"") < 1000
        client.abort()
        await away(node, "c")
        await node.writer.committed()
    async with on_disk(tmp_path, clock=clock) as node:
        watcher = await lasting(node, "watcher")
        node.pass_time(59)
        await watcher.silence()
        node.pass_time(1)
        assert await payloads(watcher, 1) == [payload]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("5:3.1.2-8", "3:3.1.2-8", "5:3.1.2-7")
@on_loop
async def test_a_kill_of_the_broker_cuts_connections_and_their_wills_are_due(
    version: int, is_lasting: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path) as node:
        await subscribed(await lasting(node, "awatcher"), ("will/#", 1))
        await subscribed(await lasting(node, "zwatcher"), ("will/#", 1))
        if is_lasting:
            client = await lasting(node, "c", version, will=will())
        else:
            client = await node.client("c", version, will=will())
        await client.silence()
    async with on_disk(tmp_path) as node:
        for name in ("awatcher", "zwatcher"):
            watcher = await lasting(node, name)
            assert await payloads(watcher, 1) == [b"gone"]
            await watcher.silence()
        await node.written()
    async with on_disk(tmp_path) as node:
        watcher = await lasting(node, "awatcher")
        await watcher.silence()


@pytest.mark.parametrize("ending", ["goodbye", "cut"])
@pytest.mark.statement("5:3.1.2-10", "3:3.1.2-10", "own:N7")
@on_loop
async def test_a_will_that_was_published_or_forgotten_does_not_come_back_after_a_kill(
    ending: str, tmp_path: Path
) -> None:
    async with on_disk(tmp_path) as node:
        watcher = await subscribed(await lasting(node, "watcher"), ("will/#", 1))
        client = await node.client("c", will=will())
        if ending == "cut":
            client.abort()
            assert await payloads(watcher, 1) == [b"gone"]
        else:
            client.send(Disconnect())
            await client.closed()
        await watcher.silence()
        await node.written()
    async with on_disk(tmp_path) as node:
        watcher = await lasting(node, "watcher")
        await watcher.silence()
        await node.writer.committed()
        assert not list(node.writer.store.scan(b"wills/"))


@pytest.mark.statement("5:3.1.2-7", "3:3.1.2-8")
@on_loop
async def test_the_will_of_the_connection_before_is_replaced() -> None:
    async with running() as node:
        watcher = await watching(node)
        first = await lasting(node, "c", 5, will=will(payload=b"old"))
        first.send(Disconnect())
        await first.closed()
        second = await lasting(node, "c", 5, will=will(payload=b"new", qos=0))
        second.abort()
        assert (await watcher.expect(Publish)).payload == b"new"
        third = await lasting(node, "c", 4)
        third.abort()
        await away(node, "c")
        await watcher.silence()


@pytest.mark.statement("own:N9")
@on_loop
async def test_a_will_passes_through_what_publishes_pass_through() -> None:
    async with running() as node:
        watcher = await watching(node)
        client = await node.client("c", will=Will("$SYS/broker/x", b"x", 1))
        client.abort()
        await node.until(lambda: "c" not in node.server.hub.sessions.by_client_id)
        await subscribed(watcher, ("$SYS/broker/x", 1))
        await watcher.silence()
        await published(node, b"y", topic="will/y")
        assert await payloads(watcher, 1) == [b"y"]
        assert node.dropped("reserved_topic") == 1


@pytest.mark.statement("5:3.1.2-10")
@on_loop
async def test_a_client_gets_its_own_will_when_it_comes_back() -> None:
    async with running() as node:
        client = await lasting(node, "c", 5, will=will(2))
        client.send(Subscribe(1, [SubscriptionRequest("will/#", 1)]))
        await client.receive()
        client.abort()
        await away(node, "c")
        node.pass_time(3)
        again = await lasting(node, "c", 5)
        got = await again.expect(Publish)
        again.send(PubAck(got.packet_id))
        assert got.payload == b"gone"
