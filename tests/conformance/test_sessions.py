"""Sessions, QoS and order: section 4 of MQTT 5.0 and 3.1.1, with reconnections, versions and restarts in between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import pytest

from broker.codec.packets import (
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubscriptionRequest,
    Unsubscribe,
)
from broker.core.stream import StreamRecord
from broker.storage.store import LogShard
from tests.support.mqtt_server import GatedStore, Node, on_loop, running
from tests.support.raw import PUBLISH, RawClient, connect, publish
from tests.support.restarts import (
    HOUR,
    away,
    lasting,
    on_disk,
    payloads,
    published,
    subscribed,
    waiting_bytes,
)
from tests.support.wire import WireClient

VERSIONS = pytest.mark.parametrize("version", [3, 4, 5])
RESTARTED = pytest.mark.parametrize("is_restarted", [False, True])


# -- what a session is --


@VERSIONS
@RESTARTED
@pytest.mark.statement(
    "5:4.1.0-1", "3:4.1.0-1", "3:4.1.0-2", "own:N1", "5:4.5.0-1", "3:4.5.0-1", "5:3.1.2-5"
)
@on_loop
async def test_a_session_is_found_again_with_all_it_holds(
    version: int, is_restarted: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path) as node:
        client = await subscribed(await lasting(node, version=version), ("a", 1), ("b", 2))
        assert not client.connack.session_present
        client.abort()
        await away(node)
        await published(node, b"1", topic="a")
        await published(node, b"2", topic="b", qos=2)
        if not is_restarted:
            await _has_all(node, version)
    if is_restarted:
        async with on_disk(tmp_path) as node:
            await _has_all(node, version)


async def _has_all(node: Node, version: int) -> None:
    client = await lasting(node, version=version)
    assert client.connack.session_present is (version > 3)  # CONNACK of 3.1 does not say
    got = [await client.expect(Publish) for _ in range(2)]
    assert [(found.payload, found.qos, found.dup) for found in got] == [
        (b"1", 1, False),
        (b"2", 2, False),
    ]
    assert node.server.hub.router.subscription_count == 2


@pytest.mark.parametrize("versions", list(permutations((3, 4, 5), 2)), ids=str)
@RESTARTED
@pytest.mark.statement("own:R26", "own:R10", "own:R25")
@on_loop
async def test_a_session_goes_on_in_another_version(
    versions: tuple[int, int], is_restarted: bool, tmp_path: Path
) -> None:
    before, after = versions
    async with on_disk(tmp_path, max_inflight=2) as node:
        client = await lasting(node, version=before)
        if before == 5:
            await client.subscribe(SubscriptionRequest("t", 2, True, True, 2), identifier=5)
        else:
            await client.subscribe(SubscriptionRequest("t", 2))
        await published(node, b"1", version=5, properties={"User-Property": [("k", "v")]})
        first = await client.expect(Publish)
        client.abort()
        await away(node)
        await published(
            node,
            b"2",
            version=5,
            properties={"User-Property": [("k", "v")], "Correlation-Data": b"\0"},
        )
        await published(node, b"3")
        if not is_restarted:
            await _goes_on(node, after, before, first)
    if is_restarted:
        async with on_disk(tmp_path, max_inflight=2) as node:
            await _goes_on(node, after, before, first)


async def _goes_on(node: Node, version: int, before: int, first: Publish) -> None:
    client = await lasting(node, version=version)
    assert client.connack.session_present is (version > 3)  # CONNACK of 3.1 does not say
    again = await client.expect(Publish)
    assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"1")
    client.send(PubAck(again.packet_id))
    got = []
    for _ in range(2):
        got.append(await client.expect(Publish))
        client.send(PubAck(got[-1].packet_id))
    assert [found.payload for found in got] == [b"2", b"3"]
    properties = got[0].properties
    assert ("User-Property" in properties) == ("Correlation-Data" in properties) == (version == 5)
    # versions differ: one of them has none
    assert "Subscription-Identifier" not in got[1].properties
    [kept] = node.server.hub.sessions.by_client_id["s"].subscriptions.values()
    options = (kept.no_local, kept.retain_as_published, kept.identifier)
    assert options == ((True, True, 5) if before == 5 else (False, False, 0))
    await client.silence()


@VERSIONS
@pytest.mark.statement("own:N7", "3:3.1.2-6", "5:3.1.2-4")
@on_loop
async def test_a_clean_session_leaves_nothing_behind(version: int) -> None:
    async with running() as node:
        client = await subscribed(await node.client("c", version), ("t", 2))
        client.send(Publish("t", b"x", 1, packet_id=1))
        await client.receive()
        client.abort()
        await node.until(lambda: not len(node.server.hub.sessions))
        await node.writer.committed()
        for prefix in (b"session/", b"subscriptions/", b"wills/", b"replay/"):
            assert not list(node.writer.store.scan(prefix))
        assert node.server.hub.router.subscription_count == 0
        again = await lasting(node, "c", version)
        assert not again.connack.session_present
        await again.silence()


@RESTARTED
@pytest.mark.statement("5:3.1.2-4", "3:3.1.2-6")
@on_loop
async def test_a_clean_start_gets_nothing_from_before(is_restarted: bool, tmp_path: Path) -> None:
    async with on_disk(tmp_path, max_inflight=2) as node:
        client = await subscribed(await lasting(node), ("t", 2))
        await published(node, *(b"old" for _ in range(10)))
        await client.expect(Publish)
        client.send(Publish("elsewhere", b"", 2, packet_id=9))
        while not isinstance(await client.receive(), PubRec):
            pass
        client.abort()
        await away(node)
        if not is_restarted:
            await _is_new(node)
    if is_restarted:
        async with on_disk(tmp_path, max_inflight=2) as node:
            await _is_new(node)


async def _is_new(node: Node) -> None:
    client = await node.client("s", 4, clean_start=True)
    assert not client.connack.session_present
    await published(node, b"new")
    await subscribed(client, ("t", 2))
    client.send(PubRel(9))
    await client.expect(PubComp)
    await published(node, b"newer")
    assert await payloads(client, 1) == [b"newer"]


@pytest.mark.statement("own:N24", "5:2.2.1-4", "3:2.3.1-4")
@on_loop
async def test_identifiers_belong_to_the_session_and_the_direction() -> None:
    async with running() as node:
        clients = [await subscribed(await node.client(name), ("t", 1)) for name in "ab"]
        await published(node, b"x")
        assert [(await client.expect(Publish)).packet_id for client in clients] == [1, 1]
        clients[0].send(Publish("elsewhere", b"", 1, packet_id=1))
        assert await clients[0].expect(PubAck) == PubAck(1)


# -- deliveries --


@VERSIONS
@pytest.mark.statement("5:4.3.1-1", "3:4.3.1-1", "5:3.3.1-2", "3:3.3.1-2")
@on_loop
async def test_qos_0_comes_once_without_dup_and_is_not_kept(version: int) -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(version, "s", clean=False))
        await client.subscribed(version, ("t", 2))
        await published(node, b"x", qos=0)
        await client.expect(publish(version, "t", b"x"))
        client.abort()
        if version < 5:
            await away(node)
            await published(node, b"y", qos=0)
            again = await RawClient.connected(node.port, connect(version, "s", clean=False))
            await again.silence()
            assert node.metrics.value("deliveries_dropped", reason="qos0_msg") in (0, 1)


@VERSIONS
@pytest.mark.statement(
    "5:4.3.2-1",
    "5:4.3.2-2",
    "5:4.3.2-3",
    "3:4.3.2-1",
    "own:N28",
    "own:N31",
    "own:choice-unknown-acknowledgement",
)
@on_loop
async def test_qos_1_out_stays_open_until_its_puback_and_is_not_sent_twice_on_a_connection(
    version: int,
) -> None:
    async with running() as node:
        client = await subscribed(await lasting(node, version=version), ("t", 1))
        await published(node, b"x")
        first = await client.expect(Publish)
        assert (first.dup, first.packet_id > 0) == (False, True)
        node.pass_time(60)
        client.send(PubAck(first.packet_id + 1), PubComp(first.packet_id + 2))
        await client.silence()
        client.abort()
        await away(node)
        client = await lasting(node, version=version)
        again = await client.expect(Publish)
        assert (again.packet_id, again.dup) == (first.packet_id, True)
        client.send(PubAck(again.packet_id))
        await client.silence()
        client.abort()
        await away(node)
        client = await lasting(node, version=version)
        await client.silence()


@VERSIONS
@RESTARTED
@pytest.mark.parametrize("step", ["PUBLISH", "PUBREC", "PUBREL", "PUBCOMP"])
@pytest.mark.statement(
    "5:4.3.3-1", "5:4.3.3-2", "5:4.3.3-3", "5:4.3.3-4", "5:4.3.3-5", "5:4.3.3-6", "3:4.3.3-1"
)
@pytest.mark.statement("own:N14", "own:N34", "own:N31", "5:4.4.0-1", "3:4.4.0-1")
@on_loop
async def test_qos_2_out_goes_on_at_the_step_at_which_it_was_cut(
    version: int, step: str, is_restarted: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path) as node:
        client = await subscribed(await lasting(node, version=version), ("t", 2))
        await published(node, b"x", qos=2)
        first = await client.expect(Publish)
        if step != "PUBLISH":
            client.send(PubRec(first.packet_id))
            await client.expect(PubRel)
        if step in ("PUBREL", "PUBCOMP"):
            client.send(PubRec(first.packet_id))  # again: PUBREL again, never PUBLISH
            await client.expect(PubRel)
        if step == "PUBCOMP":
            client.send(PubComp(first.packet_id))
            await client.silence()
            await node.writer.committed()
        client.abort()
        await away(node)
        if not is_restarted:
            await _finishes(node, version, step, first)
    if is_restarted:
        async with on_disk(tmp_path) as node:
            await _finishes(node, version, step, first)


async def _finishes(node: Node, version: int, step: str, first: Publish) -> None:
    client = await lasting(node, version=version)
    if step == "PUBLISH":
        again = await client.expect(Publish)
        assert (again.packet_id, again.dup, again.payload) == (first.packet_id, True, b"x")
        client.send(PubRec(first.packet_id))
    if step != "PUBCOMP":
        assert (await client.expect(PubRel)).packet_id == first.packet_id
        client.send(PubComp(first.packet_id))
    await client.silence()
    assert not node.server.hub.sessions.by_client_id["s"].window.inflight


@VERSIONS
@RESTARTED
@pytest.mark.statement(
    "5:4.3.3-8", "5:4.3.3-10", "5:4.3.3-11", "5:4.3.3-12", "3:4.3.3-2", "own:N12", "own:N13"
)
@pytest.mark.statement("own:choice-qos2-passed-on")
@on_loop
async def test_qos_2_in_is_passed_on_once_whatever_is_cut(
    version: int, is_restarted: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path) as node:
        await subscribed(await lasting(node, "watcher"), ("t", 2))
        client = await lasting(node, "p", version)
        for dup in (False, True, True):
            client.send(Publish("t", b"once", 2, False, dup, 7))
            await client.expect(PubRec)
        client.abort()
        await away(node, "p")
        if not is_restarted:
            await _is_once(node, version)
    if is_restarted:
        async with on_disk(tmp_path) as node:
            await _is_once(node, version)


async def _is_once(node: Node, version: int) -> None:
    client = await lasting(node, "p", version)
    client.send(Publish("t", b"once", 2, False, True, 7))
    await client.expect(PubRec)
    client.send(PubRel(7))
    assert (await client.expect(PubComp)).reason_code == 0
    client.send(Publish("t", b"twice", 2, False, False, 7))  # the identifier is free
    await client.expect(PubRec)
    watcher = await lasting(node, "watcher")
    got = [await watcher.expect(Publish) for _ in range(2)]
    assert [found.payload for found in got] == [b"once", b"twice"]
    await watcher.silence()


@pytest.mark.statement("5:4.3.2-4", "5:4.3.2-5", "3:4.3.2-2")
@on_loop
async def test_an_identifier_that_was_acknowledged_is_a_new_message_whatever_dup_says() -> None:
    async with running() as node:
        watcher = await subscribed(await node.client("w"), ("t", 1))
        client = await node.client("p")
        for payload, dup in ((b"1", False), (b"2", True), (b"2", False)):
            client.send(Publish("t", payload, 1, False, dup, 1))
            await client.expect(PubAck)
        assert await payloads(watcher, 3) == [b"1", b"2", b"2"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.statement("5:4.3.2-4", "3:4.3.2-2", "5:4.3.3-8", "3:4.3.3-2", "5:3.12.4-1", "own:N8")
@on_loop
async def test_with_a_slow_disk_the_acknowledgement_waits_and_pingresp_does_not(qos: int) -> None:
    store = GatedStore()
    async with running(store) as node:
        await subscribed(await lasting(node), ("t", qos))
        client = await node.client("p")
        await node.writer.committed()
        store.allow.clear()
        client.send(Publish("t", b"x", qos, packet_id=1), PingReq())
        await client.expect(PingResp)
        await client.silence()
        store.allow.set()
        assert isinstance(await client.receive(), PubAck if qos == 1 else PubRec)


# -- UNSUBSCRIBE --


@pytest.mark.parametrize("qos", [1, 2])
@RESTARTED
@pytest.mark.statement("5:3.10.4-3", "3:3.10.4-3", "own:N30")
@on_loop
async def test_what_is_in_flight_is_finished_after_unsubscribe(
    qos: int, is_restarted: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path, max_inflight=1) as node:
        client = await subscribed(await lasting(node), ("t", qos))
        await published(node, b"x", qos=qos)
        first = await client.expect(Publish)
        client.send(Unsubscribe(5, ["t"]))
        await client.receive()
        await published(node, b"later", qos=qos)
        if is_restarted:
            await node.writer.committed()
        else:
            await _is_finished(client, first, qos, is_resent=False)
    if is_restarted:
        async with on_disk(tmp_path, max_inflight=1) as node:
            await _is_finished(await lasting(node), first, qos, is_resent=True)


async def _is_finished(client: WireClient, first: Publish, qos: int, *, is_resent: bool) -> None:
    if is_resent:
        again = await client.expect(Publish)
        assert (again.packet_id, again.dup) == (first.packet_id, True)
    if qos == 1:
        client.send(PubAck(first.packet_id))
    else:
        client.send(PubRec(first.packet_id))
        await client.expect(PubRel)
        client.send(PubComp(first.packet_id))
    await client.silence()


# -- negative acknowledgements --


@pytest.mark.parametrize(("qos", "code"), [(1, 0x80), (1, 0x83), (2, 0x97), (2, 0x99)])
@RESTARTED
@pytest.mark.statement("5:4.4.0-2", "own:R32", "own:M-note-5")
@on_loop
async def test_a_message_that_the_client_refuses_is_done_and_counted(
    qos: int, code: int, is_restarted: bool, tmp_path: Path
) -> None:
    async with on_disk(tmp_path, max_inflight=1) as node:
        node.events.want(frozenset(("delivery.dropped",)))
        client = await subscribed(await lasting(node, version=5), ("t", qos))
        await published(node, b"bad", b"good", qos=qos)
        first = await client.expect(Publish)
        client.send((PubAck if qos == 1 else PubRec)(first.packet_id, code))
        assert (await client.expect(Publish)).payload == b"good"  # no PUBREL, and its place is free
        assert node.metrics.value("deliveries_dropped", reason="refused_by_client") == 1
        assert [(name, columns["reason"]) for name, columns in node.seen] == [
            ("delivery.dropped", "refused_by_client")
        ]
        await client.silence()
        await node.writer.committed()
        client.abort()
        await away(node)
        if not is_restarted:
            assert (await (await lasting(node, version=5)).expect(Publish)).payload == b"good"
    if is_restarted:
        async with on_disk(tmp_path) as node:
            assert (await (await lasting(node, version=5)).expect(Publish)).payload == b"good"


# -- the store --


@pytest.mark.one_process("counts records; each cell with sessions has its own")
@pytest.mark.statement("own:N15", "own:N16")
@on_loop
async def test_a_message_is_stored_once_however_many_wait_for_it_and_no_longer_than_they_do(
    tmp_path: Path,
) -> None:
    async with on_disk(tmp_path) as node:
        count, payload = 200, b"x" * 100_000
        for number in range(count):
            client = await subscribed(await lasting(node, f"s{number}"), ("t", 1))
            client.send(Disconnect())
        await node.until(lambda: all(session.is_away for session in node.server.hub.sessions))
        records, size = node.metrics.value("store_records"), node.metrics.value("store_bytes")
        await published(node, payload)
        assert node.metrics.value("store_records") - records == 1
        assert node.metrics.value("store_bytes") - size < 110_000
        for number in range(count):
            client = await lasting(node, f"s{number}")
            assert await payloads(client, 1) == [payload]
            client.send(Disconnect())
            await client.closed()
        assert waiting_bytes(node) > len(payload)
        await node.until(lambda: waiting_bytes(node, after_s=1) < 1000)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.statement("own:N16", "own:R24")
@on_loop
async def test_nothing_is_stored_where_no_lasting_session_asks_for_it(qos: int) -> None:
    async with running() as node:
        watcher = await subscribed(await node.client("clean"), ("t", 2))
        await subscribed(await lasting(node), ("t", 0), ("u", 2))
        before = node.metrics.value("store_records")
        await published(node, b"x", qos=qos)
        assert (await watcher.expect(Publish)).payload == b"x"
        assert node.metrics.value("store_records") == before


@pytest.mark.statement("own:N15")
@on_loop
async def test_the_log_is_read_for_sessions_that_were_away_only() -> None:
    async with running() as node:
        client = await subscribed(await lasting(node), ("t", 1))
        for number in range(50):
            await published(node, b"%d" % number)
            assert await payloads(client, 1) == [b"%d" % number]
        assert node.metrics.value("session_log_reads") == 0
        client.abort()
        await away(node)
        await published(node, b"x")
        client = await lasting(node)
        assert await payloads(client, 1) == [b"x"]
        assert node.metrics.value("session_log_reads") == 1


@pytest.mark.parametrize(
    "client_id",
    [
        "../../x",
        "/",
        ".",
        "a/b",
        "session/",
        "\u00e9\u4e2d\U0001f600",
        " ",
        "%2e",
        "x" * 65_535,
        "\u0001\u007f",
    ],
    ids=[
        "parent",
        "slash",
        "dot",
        "levels",
        "prefix",
        "unicode",
        "space",
        "escape",
        "longest",
        "control",
    ],
)
@pytest.mark.statement("own:N27", "5:3.1.3-5")
@on_loop
async def test_any_client_identifier_is_safe_on_disk(client_id: str, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    settings = {"max_packet_size_before_connect": 100_000, "max_client_id_bytes": 65_535}
    async with on_disk(directory, **settings) as node:
        await subscribed(await lasting(node, client_id), ("t", 1))
        await subscribed(await lasting(node, client_id[:-1] + "y"), ("t", 0))
        await published(node, b"x")
    assert os.listdir(tmp_path) == ["store"]
    async with on_disk(directory, **settings) as node:
        client = await lasting(node, client_id)
        assert client.connack.session_present
        assert await payloads(client, 1) == [b"x"]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:N8", "5:3.2.0-1", "3:3.2.0-1", "own:N6")
@on_loop
async def test_a_store_that_cannot_be_written_refuses_lasting_sessions_with_a_code(
    version: int,
) -> None:
    store = GatedStore()
    async with running(store) as node:
        store.fails = True
        client = await WireClient.open(node.port, version)
        client.send(Connect("s", version, False, properties=HOUR if version == 5 else {}))
        [said] = await client.closed()
        assert (said.session_present, said.reason_code) == (False, 0x88 if version == 5 else 3)  # type: ignore[union-attr]
        store.fails = False
        again = await lasting(node, version=version)
        assert again.connack.reason_code == 0


class Unreadable(GatedStore):
    """A store that loses its session log."""

    is_readable = True

    def read(
        self, shard: LogShard, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        if not self.is_readable:
            raise OSError("no such file")
        return super().read(shard, from_offset, limit)


@pytest.mark.one_process("one store fails, other cells have theirs")
@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.statement("own:N8")
@on_loop
async def test_a_store_that_cannot_be_read_refuses_those_whose_session_needs_it(
    version: int,
) -> None:
    store = Unreadable()
    async with running(store) as node:
        await subscribed(await lasting(node, version=version), ("t", 1))
        await published(node, b"x")
        await node.writer.committed()
    async with running(store) as node:
        store.is_readable = False
        bystander = await node.client("b")
        client = await WireClient.open(node.port, version)
        client.send(Connect("s", version, False, properties=HOUR if version == 5 else {}))
        said = await client.closed()
        if said and getattr(said[0], "reason_code", 0) == 0:
            # nothing was in flight: it fails when the backlog is read
            assert version == 4 or getattr(said[1], "reason_code", 0) == 0x80
        else:
            assert [getattr(packet, "reason_code", None) for packet in said] == [
                0x88 if version == 5 else 3
            ]
        await bystander.silence()
        store.is_readable = True
        client = await lasting(node, version=version)
        assert (await client.expect(Publish)).payload == b"x"


@pytest.mark.one_process("looks at offsets in the log of one cell")
@pytest.mark.statement("own:N6")
@on_loop
async def test_offsets_that_were_lost_with_their_group_do_not_swallow_what_follows() -> None:
    store = GatedStore()
    async with running(store) as node:
        await subscribed(await lasting(node, "first"), ("t", 1))
        client = await node.client("p", 5)
        await node.writer.committed()
        store.allow.clear()
        client.send(*(Publish("t", b"lost", 1, packet_id=number) for number in range(1, 6)))
        hub = node.server.hub
        await node.until(lambda: hub.session_log.since_offset - hub.session_log.log_next == 5)
        late = await WireClient.open(node.port)
        late.send(Connect("s", 4, False))
        await node.until(lambda: "s" in hub.sessions.by_client_id)
        store.fail_once_then_allow()
        assert (await late.receive()).reason_code == 0  # type: ignore[union-attr]
        for _ in range(5):
            assert (await client.expect(PubAck)).reason_code == 0x97
        await subscribed(late, ("t", 1))
        late.abort()
        await away(node)
        client.send(Publish("t", b"kept", 1, packet_id=9))
        assert (await client.expect(PubAck)).reason_code == 0
        assert await payloads(await lasting(node), 1) == [b"kept"]


@pytest.mark.statement("5:4.3.1-1", "3:4.3.1-1")
@on_loop
async def test_first_bytes_of_deliveries_are_those_of_the_standard() -> None:
    async with running() as node:
        client = await RawClient.connected(node.port, connect(4))
        await client.subscribed(4, ("t", 2))
        for qos in (0, 1, 2):
            await published(node, b"x", qos=qos)
            assert (await client.read())[0] == PUBLISH | qos << 1
