"""How long sessions and messages live, also while the broker is down."""

from __future__ import annotations

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
from tests.support.mqtt_server import MovedClock, Node, on_loop, running
from tests.support.restarts import away, lasting, on_disk, payloads, published, subscribed
from tests.support.wire import WireClient

EXPIRY = "Session-Expiry-Interval"
MESSAGE_EXPIRY = "Message-Expiry-Interval"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(("waited_s", "is_there"), [(3, True), (4.5, True), (5, False), (8, False)])
@pytest.mark.statement("5:4.1.0-2", "5:3.1.2-23", "own:R4")
@on_loop
async def test_a_session_lives_as_long_as_its_expiry_says(
    waited_s: float, is_there: bool, is_restarted: bool, tmp_path: Path
) -> None:
    clock = MovedClock()
    async with on_disk(tmp_path, clock=clock) as node:
        client = await node.client("c", 5, properties={EXPIRY: 5})
        clock.move(100)  # its life begins when the connection ends
        await client.silence()
        client.abort()
        await away(node, "c")
        await node.writer.committed()
        if not is_restarted:
            node.pass_time(waited_s)
            again = await lasting(node, "c", 5)
            assert again.connack.session_present == is_there
    if is_restarted:
        clock.move(waited_s)
        async with on_disk(tmp_path, clock=clock) as node:
            node.pass_time(0)
            again = await lasting(node, "c", 5)
            assert again.connack.session_present == is_there


@pytest.mark.statement("5:3.1.2-23", "own:R4")
@on_loop
async def test_the_longest_interval_never_ends_where_the_operator_has_no_limit() -> None:
    async with running(max_session_expiry=0xFFFFFFFF) as node:
        client = await node.client("c", 5, properties={EXPIRY: 0xFFFFFFFF})
        assert EXPIRY not in client.connack.properties
        client.abort()
        await away(node, "c")
        node.pass_time(100 * 365 * 86_400)
        assert (await lasting(node, "c", 5)).connack.session_present


@pytest.mark.parametrize(
    ("asked_s", "told_s"),
    [(3600, None), (3601, 3600), (86_400, 3600), (0xFFFFFFFF, 3600), (0, None)],
)
@pytest.mark.statement("own:R4", "own:R5", "5:3.2.2.3.2")
@on_loop
async def test_the_operators_limit_is_told_and_holds_for_publishers_too(
    asked_s: int, told_s: int | None
) -> None:
    async with running(max_session_expiry=3600) as node:
        client = await node.client("c", 5, properties={EXPIRY: asked_s})
        assert client.connack.properties.get(EXPIRY) == told_s
        client.send(Publish("t", b"", 1, packet_id=1))
        await client.expect(PubAck)
        client.abort()
        await node.until(lambda: all(session.is_away for session in node.server.hub.sessions))
        node.pass_time(3599)
        assert len(node.server.hub.sessions) == (1 if asked_s else 0)
        node.pass_time(1)
        assert len(node.server.hub.sessions) == 0
        await node.writer.committed()
        assert not list(node.writer.store.scan(b"session/"))


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.statement("own:choice-session-life", "3:3.1.2-4")
@on_loop
async def test_sessions_of_older_versions_live_as_long_as_the_operator_allows(version: int) -> None:
    async with running(max_session_expiry=60) as node:
        for waited_s, is_there in ((59, True), (60, False)):
            client = await lasting(node, "c", version)
            client.abort()
            await away(node, "c")
            node.pass_time(waited_s)
            assert ("c" in node.server.hub.sessions.by_client_id) == is_there


@pytest.mark.statement("own:R4", "3:3.1.2-4")
@on_loop
async def test_a_limit_of_nothing_leaves_no_session_behind() -> None:
    async with running(max_session_expiry=0) as node:
        client = await lasting(node, "c", 5)
        assert client.connack.properties[EXPIRY] == 0
        client.abort()
        older = await lasting(node, "d", 4)
        older.abort()
        await node.until(lambda: not len(node.server.hub.sessions))


@pytest.mark.parametrize(
    ("asked_s", "lives_s"), [(10, 10), (200, 200), (5000, 3600), (0, 0), (None, 100)]
)
@pytest.mark.statement("own:R30", "5:3.14.2.2.2")
@on_loop
async def test_disconnect_changes_the_life_of_the_session(
    asked_s: int | None, lives_s: int
) -> None:
    async with running(max_session_expiry=3600) as node:
        client = await node.client("c", 5, properties={EXPIRY: 100})
        client.send(Disconnect(0, {} if asked_s is None else {EXPIRY: asked_s}))
        assert await client.closed() == []
        if lives_s:
            node.pass_time(lives_s - 1)
            assert len(node.server.hub.sessions) == 1
            node.pass_time(1)
        assert len(node.server.hub.sessions) == 0


@pytest.mark.statement("5:3.14.2.2.2", "own:R30")
@on_loop
async def test_disconnect_cannot_make_a_session_last_that_was_not_to() -> None:
    async with running() as node:
        client = await node.client("c", 5)
        client.send(Disconnect(0, {EXPIRY: 100}))
        [said] = await client.closed()
        assert isinstance(said, Disconnect)
        assert said.reason_code == 0x82
        assert len(node.server.hub.sessions) == 0


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:R33", "5:3.3.2-5", "5:3.3.2-6")
@on_loop
async def test_queued_messages_expire_and_carry_what_is_left(
    version: int, is_restarted: bool, tmp_path: Path
) -> None:
    clock = MovedClock()
    async with on_disk(tmp_path, clock=clock) as node:
        client = await subscribed(await lasting(node, version=version), ("t", 2))
        client.abort()
        await away(node)
        await published(node, b"short", version=5, properties={MESSAGE_EXPIRY: 2})
        await published(node, b"long", version=5, qos=2, properties={MESSAGE_EXPIRY: 10})
        await published(node, b"forever", version=5)
        if not is_restarted:
            clock.move(3.5)
            await _only_what_lives(await lasting(node, version=version), version)
            assert node.metrics.value("deliveries_dropped", reason="expired") == 1
    if is_restarted:
        clock.move(3.5)
        async with on_disk(tmp_path, clock=clock) as node:
            await _only_what_lives(await lasting(node, version=version), version)


async def _only_what_lives(client: WireClient, version: int) -> None:
    got = [await client.expect(Publish) for _ in range(2)]
    assert [found.payload for found in got] == [b"long", b"forever"]
    assert got[0].properties.get(MESSAGE_EXPIRY) == (7 if version == 5 else None)


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("granted", [0, 1])
@pytest.mark.parametrize("is_lasting", [False, True])
@pytest.mark.statement("own:R33", "own:R35", "5:3.3.2-5", "5:3.3.2-6")
@on_loop
async def test_retained_messages_expire_and_carry_what_is_left(
    is_lasting: bool, granted: int, is_restarted: bool, tmp_path: Path
) -> None:
    clock = MovedClock()
    async with on_disk(tmp_path, clock=clock) as node:
        await published(node, b"r", version=5, retain=True, properties={MESSAGE_EXPIRY: 10})
        clock.move(5)
        if not is_restarted:
            await _retained_for(node, is_lasting, granted, clock)
    if is_restarted:
        async with on_disk(tmp_path, clock=clock) as node:
            await _retained_for(node, is_lasting, granted, clock)


async def _retained_for(node: Node, is_lasting: bool, granted: int, clock: MovedClock) -> None:
    client = await lasting(node, version=5) if is_lasting else await node.client("s", 5)
    await subscribed(client, ("t", granted))
    got = await client.expect(Publish)
    assert (got.properties[MESSAGE_EXPIRY], got.retain, got.qos) == (5, True, granted)
    if granted:
        client.send(PubAck(got.packet_id))
    clock.move(5)
    await subscribed(client, ("t", granted))
    await client.silence()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.statement("5:4.3.3-7", "5:4.3.3-13", "own:choice-expired-in-flight")
@on_loop
async def test_what_is_in_flight_does_not_expire(qos: int) -> None:
    async with running() as node:
        client = await subscribed(await lasting(node, version=5), ("t", qos))
        await published(node, b"x", qos=qos, version=5, properties={MESSAGE_EXPIRY: 2})
        first = await client.expect(Publish)
        client.abort()
        await away(node)
        node.pass_time(60)
        again = await lasting(node, version=5)
        got = await again.expect(Publish)
        assert (got.packet_id, got.dup, got.payload) == (first.packet_id, True, b"x")
        if qos == 1:
            again.send(PubAck(got.packet_id))
        else:
            again.send(PubRec(got.packet_id))
            await again.expect(PubRel)
            again.send(PubComp(got.packet_id))
        await again.silence()


@pytest.mark.statement("5:3.3.2-5")
@on_loop
async def test_what_waits_behind_a_full_window_expires() -> None:
    async with running(max_inflight=1) as node:
        client = await subscribed(await node.client("s", 5), ("t", 1))
        await published(node, b"1")
        await published(node, b"2", version=5, properties={MESSAGE_EXPIRY: 2})
        await published(node, b"3")
        first = await client.expect(Publish)
        node.pass_time(3)
        client.send(PubAck(first.packet_id))
        assert await payloads(client, 1) == [b"3"]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("5:3.1.2-5", "5:3.1.2-23", "own:R26")
@on_loop
async def test_a_session_that_never_was_to_last_ends_when_a_later_connect_says_so(
    version: int,
) -> None:
    async with running() as node:
        await subscribed(await lasting(node, version=version), ("t", 1))
        # no expiry: it ends with this connection
        client = await node.client("s", 5, clean_start=False)
        assert client.connack.session_present
        client.abort()
        await node.until(lambda: not len(node.server.hub.sessions))
        await node.writer.committed()
        assert not list(node.writer.store.scan(b"subscriptions/"))


@pytest.mark.one_process("counts what the registry of one cell keeps")
@pytest.mark.statement("5:4.1.0-2")
@on_loop
async def test_many_ends_at_once_and_many_returns_cost_little() -> None:
    async with running() as node:
        registry = node.server.hub.sessions
        for _ in range(30):
            client = await lasting(node)
            client.abort()
            await away(node)
        assert len(registry._due) <= 1024 + 4
        client = await node.client("other", 5, properties={EXPIRY: 1})
        client.send(Disconnect())
        await client.closed()
        node.pass_time(2)
        assert set(registry.by_client_id) == {"s"}
        again = await node.client("s", 4, clean_start=True)
        assert not again.connack.session_present


@pytest.mark.statement("own:R33")
@on_loop
async def test_retained_expiry_is_announced_to_nobody_after_its_time() -> None:
    async with running() as node:
        await published(node, b"r", version=5, retain=True, properties={MESSAGE_EXPIRY: 1})
        node.pass_time(1)
        client = await node.client("s", 5)
        await client.subscribe(SubscriptionRequest("#", 1))
        await client.silence()
