"""What outlives a connection and the process. Leaving ``running`` is like a kill: the store is all that stays."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker.cluster.nats import log as nats_log
from broker.cluster.nats.line import Servers
from broker.cluster.nats.log import NatsLog
from broker.codec.packets import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    Will,
)
from broker.core.errors import Unavailable
from broker.core.message import Message
from broker.core.stage import GateCall, Refusal
from broker.core.stream import StreamRecord
from broker.observe.ledger import ledger
from broker.storage.memory import MemoryStore
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, Committed, LogShard
from broker.storage.writer import Writer
from tests.support.jetstream_model import Fault, ModelLine, Stream
from tests.support.mqtt_server import SESSION_LOG, GatedStore, MovedClock, Node, on_loop, running
from tests.support.publishing import numbered, publish
from tests.support.wire import WireClient

HOUR = {"Session-Expiry-Interval": 3600}


async def durable(node: Node, client_id: str = "d", version: int = 4) -> WireClient:
    """A client whose session outlives it."""
    return await node.client(
        client_id, version, clean_start=False, properties=HOUR if version == 5 else {}
    )


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("is_restarted", [False, True])
@on_loop
async def test_a_session_gets_what_was_published_while_it_was_away(
    version: int, is_restarted: bool
) -> None:
    store = MemoryStore()
    async with running(store) as node:
        async with await durable(node, version=version) as client:
            assert not client.connack.session_present
            await client.subscribe(SubscriptionRequest("t/+", 1))
        await node.until(lambda: node.server.hub.sessions.by_client_id["d"].is_away)
        await publish(node, *numbered(1, 2, 3))
        if not is_restarted:
            await _takes_numbers(node, version)
    if is_restarted:
        async with running(store) as node:
            await _takes_numbers(node, version)


async def _takes_numbers(node: Node, version: int) -> None:
    client = await durable(node, version=version)
    assert client.connack.session_present
    got = [await client.expect(Publish) for _ in range(3)]
    assert [(packet.payload, packet.dup) for packet in got] == [
        (b"1", False),
        (b"2", False),
        (b"3", False),
    ]
    await client.silence()


@on_loop
async def test_more_than_the_queue_holds_waits_on_disk_and_arrives_in_order() -> None:
    async with running(max_queued_messages=10, max_inflight=4) as node:
        client = await durable(node)
        await client.subscribe(SubscriptionRequest("#", 1))
        count = 700
        await publish(node, *numbered(*range(1, count + 1)))
        for number in range(1, count + 1):
            packet = await client.expect(Publish)
            assert packet.payload == b"%d" % number
            client.send(PubAck(packet.packet_id))
        await client.silence()
        await publish(node, *numbered(9999))
        assert (await client.expect(Publish)).payload == b"9999"


@pytest.mark.parametrize("is_restarted", [False, True])
@on_loop
async def test_what_is_in_flight_is_sent_again_with_its_identifier_before_newer_messages(
    is_restarted: bool,
) -> None:
    store = MemoryStore()
    async with running(store, max_inflight=3) as node:
        client = await durable(node)
        await client.subscribe(SubscriptionRequest("#", 1))
        await publish(node, *numbered(1, 2, 3, 4, 5))
        first = [await client.expect(Publish) for _ in range(3)]
        client.send(PubAck(first[1].packet_id))
        fourth = await client.expect(Publish)
        client.abort()
        await node.until(lambda: node.server.hub.sessions.by_client_id["d"].is_away)
        if not is_restarted:
            await _takes_again(node, [first[0], first[2], fourth])
    if is_restarted:
        async with running(store, max_inflight=3) as node:
            await _takes_again(node, [first[0], first[2], fourth])


async def _takes_again(node: Node, open_packets: list[Publish]) -> None:
    client = await durable(node)
    for expected in open_packets:
        got = await client.expect(Publish)
        assert (got.packet_id, got.payload, got.dup) == (expected.packet_id, expected.payload, True)
        client.send(PubAck(got.packet_id))
    got = await client.expect(Publish)
    assert (got.payload, got.dup) == (b"5", False)


@on_loop
async def test_qos_2_out_goes_on_with_pubrel_after_a_restart() -> None:
    store = MemoryStore()
    async with running(store) as node:
        client = await durable(node)
        await client.subscribe(SubscriptionRequest("t", 2))
        async with await node.client("p") as publisher:
            publisher.send(Publish("t", b"x", 2, packet_id=1))
            await publisher.expect(PubRec)
        packet = await client.expect(Publish)
        client.send(PubRec(packet.packet_id))
        await client.expect(PubRel)
    async with running(store) as node:
        client = await durable(node)
        assert await client.expect(PubRel) == PubRel(packet.packet_id)
        client.send(PubComp(packet.packet_id))
        await client.silence()


@pytest.mark.parametrize("is_clean", [False, True])
@on_loop
async def test_a_qos_2_publish_is_not_doubled_by_a_restart_before_its_pubrec_arrived(
    is_clean: bool,
) -> None:
    store = MemoryStore()
    async with running(store) as node:
        subscriber = await durable(node)
        await subscriber.subscribe(SubscriptionRequest("t", 2))
        publisher = await node.client("p", clean_start=is_clean)
        publisher.send(Publish("t", b"x", 2, packet_id=7))
        await publisher.expect(PubRec)
    async with running(store) as node:
        publisher = await node.client("p", clean_start=is_clean)
        publisher.send(Publish("t", b"x", 2, dup=True, packet_id=7))
        await publisher.expect(PubRec)
        publisher.send(PubRel(7))
        await publisher.expect(PubComp)
        subscriber = await durable(node)
        await subscriber.expect(Publish)
        await subscriber.silence()


@on_loop
async def test_a_qos_1_publish_resent_after_a_restart_is_not_doubled() -> None:
    store = MemoryStore()
    async with running(store) as node:
        subscriber = await durable(node)
        await subscriber.subscribe(SubscriptionRequest("t/#", 1))
        await publish(node, *numbered(1, 2))
    async with running(store) as node:
        resent = [
            Publish("t/a", b"%d" % number, 1, dup=True, packet_id=number) for number in (1, 2, 3)
        ]
        await publish(node, *resent)
        assert node.metrics.value("messages_resent_already_taken") == 2
        await publish(node, Publish("t/a", b"2", 1, packet_id=2))  # without DUP it is a new message
        subscriber = await durable(node)
        got = [(await subscriber.expect(Publish)).payload for _ in range(4)]
        assert got == [b"1", b"2", b"3", b"2"]
        await subscriber.silence()


@on_loop
async def test_acknowledgements_wait_for_the_commit_and_leave_in_order() -> None:
    store = GatedStore()
    async with running(store) as node:
        subscriber, publisher = await durable(node), await node.client("p")
        await subscriber.subscribe(SubscriptionRequest("kept", 1))
        store.allow.clear()
        publisher.send(Publish("kept", b"1", 1, packet_id=1), Publish("loose", b"", 1, packet_id=2))
        await publisher.silence()
        publisher.send(Publish("loose", b"", 1, packet_id=3))
        await publisher.silence()
        await subscriber.silence()
        store.allow.set()
        assert [(await publisher.expect(PubAck)).packet_id for _ in range(3)] == [1, 2, 3]
        assert (await subscriber.expect(Publish)).payload == b"1"


@on_loop
async def test_what_cannot_be_stored_is_refused_and_can_be_sent_again() -> None:
    store = GatedStore()
    async with running(store) as node:
        subscriber = await durable(node)
        await subscriber.subscribe(SubscriptionRequest("t", 2))
        new, old = await node.client("n", 5), await node.client("o", 4)
        store.fails = True
        new.send(Publish("t", b"n", 1, packet_id=1), Publish("t", b"m", 2, packet_id=2))
        assert await new.expect(PubAck) == PubAck(1, 0x97)
        assert await new.expect(PubRec) == PubRec(2, 0x97)
        old.send(Publish("t", b"o", 1, packet_id=1))
        assert await old.closed() == []
        store.fails = False
        new.send(Publish("t", b"n", 1, dup=True, packet_id=1))
        assert await new.expect(PubAck) == PubAck(1)
        assert (await subscriber.expect(Publish)).payload == b"n"
        await subscriber.silence()


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_publish_that_the_commit_log_may_have_is_not_refused_but_sent_again(
    qos: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_log, "_PAUSE_S", 0.0)
    stream = Stream()
    faults: list[Fault] = ["none"]  # the last of them first, and the first from then on

    def store_of(machine: str) -> RocksStore:
        log = NatsLog(Servers([]), "plant", 0, machine, 0.0)
        log._line = ModelLine(  # type: ignore[assignment]
            stream,
            lambda: faults.pop() if len(faults) > 1 else faults[0],
            lambda: stream.last,
            1 << 20,
        )
        return RocksStore(tmp_path / machine, log=log)

    resent = Publish("t", b"x", qos, dup=True, packet_id=7)
    store = store_of("a")
    async with running(store) as node:
        async with await durable(node) as subscriber:
            await subscriber.subscribe(SubscriptionRequest("t", 2))
        publisher, resending = await durable(node, "p", 5), await durable(node, "q", 5)
        await node.written()
        faults[:] = ["no leader", "answer lost"]
        publisher.send(replace(resent, dup=False))
        assert await publisher.closed() == [Disconnect(0x80)]
        resending.send(resent)  # its group is not in the log, but an earlier one may be
        assert await resending.closed() == [Disconnect(0x80)]
    store.close()
    faults[:] = ["none"]
    other = store_of("b")
    async with running(other) as node:
        publisher = await durable(node, "p", 5)
        publisher.send(resent)
        assert await publisher.receive() == (PubAck(7) if qos == 1 else PubRec(7))
        async with await durable(node) as subscriber:
            assert (await subscriber.expect(Publish)).payload == b"x"
            await subscriber.silence()
    other.close()


@on_loop
async def test_what_was_stored_before_is_not_doubled_when_its_resend_meets_a_full_disk() -> None:
    store = GatedStore()
    async with running(store) as node:
        subscriber = await durable(node)
        await subscriber.subscribe(SubscriptionRequest("t", 2))
        await publish(node, Publish("t", b"x", 1, packet_id=7), client_id="p")
        assert (await subscriber.expect(Publish)).payload == b"x"
        again = await node.client("p", 4)
        store.fails = True
        again.send(Publish("t", b"y", 1, packet_id=8), Publish("t", b"x", 1, dup=True, packet_id=7))
        assert await again.closed() == []  # 3.1.1 has no word for what the disk refused
        store.fails = False
        again = await node.client("p", 4)
        again.send(
            Publish("t", b"x", 1, dup=True, packet_id=7),
            Publish("t", b"y", 1, dup=True, packet_id=8),
        )
        assert [(await again.expect(PubAck)).packet_id for _ in range(2)] == [7, 8]
        assert (await subscriber.expect(Publish)).payload == b"y"
        await subscriber.silence()


@on_loop
async def test_a_resend_is_not_acknowledged_when_the_first_one_is_lost_while_it_waits() -> None:
    store = GatedStore()
    async with running(store) as node:
        subscriber, other = await durable(node), await node.client("o")
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        first = await node.client("p", 4)
        store.allow.clear()
        store.fails = True
        first.send(Publish("t", b"x", 1, packet_id=7))
        await node.until(
            lambda: "p" in node.server.hub.inbounds and node.server.hub.inbounds["p"].recent
        )
        await first.silence()  # its group is on its way to the store
        other.send(Publish("t", b"z", 1, packet_id=1))
        await other.silence()  # and another one gathers behind it
        again = await node.client("p", 4)
        again.send(Publish("t", b"x", 1, dup=True, packet_id=7))
        await again.silence()
        store.fail_once_then_allow()
        assert await again.closed() == []
        assert (await other.expect(PubAck)).packet_id == 1
        again = await node.client("p", 4)
        again.send(Publish("t", b"x", 1, dup=True, packet_id=7))
        assert (await again.expect(PubAck)).packet_id == 7
        assert [(await subscriber.expect(Publish)).payload for _ in range(2)] == [b"z", b"x"]


@pytest.mark.parametrize("is_restarted", [False, True])
@on_loop
async def test_a_subscription_behind_records_that_are_lost_has_those_that_get_their_offsets(
    is_restarted: bool,
) -> None:
    store = GatedStore()
    async with running(store) as node:
        first, publisher = await durable(node, "first"), await node.client("p", 5)
        await first.subscribe(SubscriptionRequest("t", 1))
        client = await durable(node)
        await node.written()
        session_log, sessions = node.server.hub.session_log, node.server.hub.sessions
        store.allow.clear()
        publisher.send(Publish("t", b"lost", 1, packet_id=1))
        await node.until(lambda: session_log._flying)
        client.send(Subscribe(1, [SubscriptionRequest("t", 1)]))
        await node.until(lambda: sessions.by_client_id["d"].subscriptions)
        publisher.send(Publish("t", b"kept", 1, packet_id=2))
        await node.until(lambda: session_log._open)
        client.abort()
        await node.until(lambda: sessions.by_client_id["d"].is_away)
        store.fail_once_then_allow()
        assert await publisher.expect(PubAck) == PubAck(1, 0x97)
        assert await publisher.expect(PubAck) == PubAck(2)
        if not is_restarted:
            await _takes_kept(node)
    if is_restarted:
        async with running(store) as node:
            await _takes_kept(node)


async def _takes_kept(node: Node) -> None:
    client = await durable(node)
    assert (await client.expect(Publish)).payload == b"kept"
    await client.silence()


@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("is_known", [False, True])  # whether anything but the identifier was kept
@on_loop
async def test_a_qos2_message_that_was_not_committed_comes_again_only_to_who_lacks_it(
    granted: int, is_known: bool
) -> None:
    store = GatedStore()
    async with running(store) as node:
        live, in_group = await node.client("live", 5), await node.client("group", 5)
        await live.subscribe(SubscriptionRequest("t", granted))
        await in_group.subscribe(SubscriptionRequest("$share/g/t", granted))
        kept = await durable(node, "kept")
        await kept.subscribe(SubscriptionRequest("t" if is_known else "else", 2))
        publisher = await durable(node, "p")
        await node.written()
        store.allow.clear()
        first = Publish("t", b"first", 2, packet_id=7)
        publisher.send(first)
        for client in (live, in_group):
            assert (await client.expect(Publish)).payload == b"first"
        store.fail_once_then_allow()
        await publisher.closed()
        publisher = await durable(node, "p")
        publisher.send(replace(first, dup=True))
        assert await publisher.expect(PubRec) == PubRec(7)
        publisher.send(PubRel(7))
        await publisher.expect(PubComp)
        # a new message under that identifier, also where only its second attempt arrives
        publisher.send(Publish("t", b"second", 2, packet_id=7, dup=True))
        assert await publisher.expect(PubRec) == PubRec(7)
        for client in (live, in_group):
            assert (await client.expect(Publish)).payload == b"second"
        if is_known:
            assert [(await kept.expect(Publish)).payload for _ in range(2)] == [b"first", b"second"]
            await kept.silence()


@on_loop
async def test_a_qos1_message_under_the_identifier_of_one_that_was_not_committed_is_another() -> (
    None
):
    store = GatedStore()
    async with running(store) as node:
        live = await node.client("live", 5)
        await live.subscribe(SubscriptionRequest("t", 1))
        publisher = await durable(node, "p")
        await node.written()
        store.allow.clear()
        publisher.send(Publish("t", b"x", 2, packet_id=7))
        await live.expect(Publish)
        store.fail_once_then_allow()
        await publisher.closed()
        publisher = await durable(node, "p")
        publisher.send(Publish("t", b"x", 1, packet_id=7, dup=True))
        assert await publisher.expect(PubAck) == PubAck(7)
        assert (await live.expect(Publish)).payload == b"x"


@pytest.mark.parametrize("is_will", [False, True])
@on_loop
async def test_a_will_or_delayed_message_that_was_not_committed_comes_again_only_to_who_lacks_it(
    is_will: bool,
) -> None:
    store = GatedStore()
    async with running(store) as node:
        live, kept = await node.client("live"), await durable(node, "kept")
        for client in (live, kept):
            await client.subscribe(SubscriptionRequest("t", 2))
        client = await node.client("c", 5, will=Will("t", b"left", 2))
        client.send(Publish("$delayed/60/t", b"left", 2, packet_id=1))
        assert await client.expect(PubRec) == PubRec(1)
        await node.written()
        store.allow.clear()
        if is_will:
            client.abort()
        else:
            node.pass_time(61)
        assert (await live.expect(Publish)).payload == b"left"
        await node.until(lambda: node.server.hub.session_log._flying)
        store.fail_once_then_allow()
        await node.until(
            lambda: store.failed_commits and node.server.hub.context.writer.failure is None
        )
        node.pass_time(1)
        assert (await kept.expect(Publish)).payload == b"left"
        await live.silence()
        await kept.silence()


@on_loop
async def test_the_ledger_knows_what_could_not_be_stored() -> None:
    store = GatedStore()
    async with running(store) as node:
        subscriber = await durable(node)
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        publisher = await node.client("n", 5)
        store.fails = True
        publisher.send(Publish("t", b"x", 1, packet_id=1), Publish("loose", b"", 1, packet_id=2))
        assert await publisher.expect(PubAck) == PubAck(1, 0x97)
        assert await publisher.expect(PubAck) == PubAck(2, 0x10)  # nothing of it was to be stored
        books = ledger(node.metrics)
        assert (books.received, books.accepted, books.residual) == (2, 0, 0)
        assert books.dropped_by_reason == {"not_stored": 1, "no_subscribers": 1}


@on_loop
async def test_retained_messages_survive_a_restart() -> None:
    store = MemoryStore()
    async with running(store) as node:
        await publish(
            node, Publish("a", b"x", 1, True, packet_id=1), Publish("b", b"y", 1, True, packet_id=2)
        )
        await publish(node, Publish("b", b"", 1, True, packet_id=3))
    async with running(store) as node:
        client = await node.client("c")
        await client.subscribe(SubscriptionRequest("#", 1))
        assert (await client.expect(Publish)).payload == b"x"
        await client.silence()


@on_loop
async def test_what_was_sent_before_two_kills_comes_again_as_a_duplicate() -> None:
    store = MemoryStore()
    async with running(store) as node:
        client = await durable(node)
        await client.subscribe(SubscriptionRequest("t/#", 1))
        await publish(node, *numbered(1, 2))
        first = [await client.expect(Publish) for _ in range(2)]
    async with running(store) as node:
        await node.writer.committed()
    async with running(store) as node:
        client = await durable(node)
        again = [await client.expect(Publish) for _ in range(2)]
    assert [(one.packet_id, one.payload, one.dup) for one in again] == [
        (one.packet_id, one.payload, True) for one in first
    ]


@pytest.mark.parametrize("qos", [1, 2])
@on_loop
async def test_a_deletion_of_nothing_that_is_sent_again_does_not_delete_what_was_retained_after_it(
    qos: int,
) -> None:
    store = MemoryStore()
    sent = [Publish("r", b"", qos, True, packet_id=1), Publish("r", b"new", qos, True, packet_id=2)]
    for is_resent in (False, True):
        async with running(store) as node:
            publisher = await durable(node, "p")
            publisher.send(*[replace(one, dup=is_resent) for one in sent])
            for _ in sent:
                await (publisher.expect(PubAck) if qos == 1 else publisher.expect(PubRec))
            client = await node.client("c")
            await client.subscribe(SubscriptionRequest("#", 1))
            assert (await client.expect(Publish)).payload == b"new"


@on_loop
async def test_a_session_ends_when_its_expiry_has_passed_also_across_a_restart() -> None:
    store, clock = MemoryStore(), MovedClock()
    async with running(store, clock=clock) as node:
        await (
            await node.client("d", 5, clean_start=False, properties={"Session-Expiry-Interval": 10})
        ).close()
        await node.until(lambda: node.server.hub.sessions.by_client_id["d"].is_away)
        node.pass_time(5)
        async with await node.client(
            "d", 5, clean_start=False, properties={"Session-Expiry-Interval": 10}
        ) as client:
            assert client.connack.session_present
        await node.until(lambda: node.server.hub.sessions.by_client_id["d"].is_away)
    clock.move(11)
    async with running(store, clock=clock) as node:
        node.pass_time(0)
        assert node.server.hub.sessions.get("d") is None


@on_loop
async def test_a_clean_start_forgets_the_session_for_good() -> None:
    store = MemoryStore()
    async with running(store) as node:
        async with await durable(node) as client:
            await client.subscribe(SubscriptionRequest("t", 1))
        await (await node.client("d")).close()
        await node.until(lambda: node.server.hub.sessions.get("d") is None)
    assert dict(store.scan(b"session/")) == {}
    assert dict(store.scan(b"subscriptions/")) == {}


@on_loop
async def test_a_will_that_waits_for_its_delay_survives_a_restart() -> None:
    store, clock = MemoryStore(), MovedClock()
    will = Will("w", b"gone", 1, True, {"Will-Delay-Interval": 30})
    async with running(store, clock=clock) as node:
        client = await node.client("d", 5, clean_start=False, will=will, properties=HOUR)
        client.abort()
        await node.until(lambda: node.server.hub.sessions.by_client_id["d"].is_away)
    async with running(store, clock=clock) as node:
        watcher = await node.client("w")
        await watcher.subscribe(SubscriptionRequest("w", 1))
        node.pass_time(20)
        await watcher.silence()
        node.pass_time(11)
        assert (await watcher.expect(Publish)).payload == b"gone"
        node.pass_time(60)
        await watcher.silence()


@pytest.mark.parametrize("expiry", [0, 3600])
@pytest.mark.parametrize("is_failing", [False, True])  # when the client is lost, or only its commit
@pytest.mark.parametrize("is_restarted", [False, True])
@on_loop
async def test_a_will_that_is_due_while_nothing_can_be_stored_is_published_after_that(
    expiry: int, is_failing: bool, is_restarted: bool
) -> None:
    store = GatedStore()
    async with running(store) as node:
        async with await durable(node) as watcher:
            await watcher.subscribe(SubscriptionRequest("w", 1))
        properties = {"Session-Expiry-Interval": expiry}
        client = await node.client(
            "c", 5, clean_start=False, will=Will("w", b"gone", 1), properties=properties
        )
        await node.written()
        store.fails = True
        if is_failing:
            node.writer.touch()
            await node.until(lambda: node.writer.failure)
        client.abort()
        hub = node.server.hub
        await node.until(lambda: node.writer.failure and not len(hub.connections))
        if is_restarted:  # what follows is stored, but for the will
            hub.wills.tick = lambda: None  # type: ignore[method-assign]
        store.fails = False
        await _stores_again(node)
        if not is_restarted:
            await _takes_will(node)
    if is_restarted:
        async with running(store) as node:
            await _takes_will(node)


async def _stores_again(node: Node) -> None:
    for _ in range(2):  # the first of them may be on its way
        node.writer.touch()
        with suppress(Unavailable):
            await node.writer.committed()
    assert node.writer.failure is None


async def _takes_will(node: Node) -> None:
    node.server.hub.tick()
    async with await durable(node) as watcher:
        assert (await watcher.expect(Publish)).payload == b"gone"
        await node.writer.committed()
        node.server.hub.tick()
        await watcher.silence()
    assert not node.metrics.value("will_bytes")


@on_loop
async def test_a_will_that_is_cancelled_while_nothing_can_be_stored_is_not_published() -> None:
    store = GatedStore()
    async with running(store) as node:
        watcher = await durable(node)
        await watcher.subscribe(SubscriptionRequest("w", 1))
        client = await node.client(
            "c", 5, clean_start=False, will=Will("w", b"x", 1), properties=HOUR
        )
        await node.written()
        store.fails = True
        client.send(Disconnect())
        await node.until(lambda: node.writer.failure and not node.metrics.value("will_bytes"))
        store.fails = False
        await _stores_again(node)
        assert store.get(b"wills/c") is None
        node.server.hub.tick()
        await watcher.silence()


@on_loop
async def test_a_connect_that_cannot_be_stored_leaves_no_will() -> None:
    store = GatedStore()
    async with running(store) as node:
        store.fails = True
        client = await WireClient.open(node.port, 5)
        client.send(Connect("c", 5, will=Will("w", b"x", 1)))
        assert await client.expect(ConnAck) == ConnAck(False, 0x88)
        assert not node.metrics.value("will_bytes")


@on_loop
async def test_the_log_is_trimmed_to_what_sessions_still_need() -> None:
    store = MemoryStore()
    async with running(store) as node:
        client = await durable(node)
        await client.subscribe(SubscriptionRequest("#", 1))
        for number in range(1, 6):
            await publish(node, *numbered(number))
            packet = await client.expect(Publish)
            if number < 4:
                client.send(PubAck(packet.packet_id))
        await client.silence()
        node.pass_time(1)
        node.pass_time(31)
        await node.until(lambda: store.range_of(SESSION_LOG).first_offset == 3)


@on_loop
async def test_what_a_share_group_of_absent_sessions_kept_goes_to_the_first_that_returns() -> None:
    async with running() as node:
        for name in ("m1", "m2"):
            async with await durable(node, name) as member:
                await member.subscribe(SubscriptionRequest("$share/g/t/#", 1))
        await publish(node, *numbered(1, 2, 3, 4))
        first = await durable(node, "m1")
        assert [(await first.expect(Publish)).payload for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        async with await durable(node, "m2") as second:
            await second.silence()


@on_loop
async def test_the_record_of_a_share_group_is_written_again_when_its_commit_failed() -> None:
    store = GatedStore()
    async with running(store) as node:
        client = await durable(node)
        await client.subscribe(SubscriptionRequest("$share/g/t", 2))
        other = await durable(node, "o")
        async with await node.client("p") as publisher:
            publisher.send(Publish("t", b"x", 2, packet_id=1))
            await publisher.expect(PubRec)
        packet = await client.expect(Publish)
        client.send(PubRec(packet.packet_id))
        await client.expect(PubRel)
        await node.written()
        group = node.server.hub.share_groups.groups["$share/g/t"]
        store.fails = True
        client.send(PubComp(packet.packet_id))
        await node.until(lambda: node.writer.failure and not group.in_flight)
        store.fails = False
        node.writer.touch()
        await node.until(lambda: node.writer.failure is None)
        await other.subscribe(SubscriptionRequest("o", 1))  # another change
    async with running(store) as node:
        client = await durable(node)
        other = await durable(node, "o")
        await other.subscribe(SubscriptionRequest("$share/g/t", 2))
        group = node.server.hub.share_groups.groups["$share/g/t"]
        await client.silence()
        await other.silence()
        assert not group.waiting


@on_loop
async def test_retained_messages_of_qos_1_are_owned_by_a_durable_session() -> None:
    store = MemoryStore()
    async with running(store) as node:
        await publish(node, Publish("r", b"kept", 1, True, packet_id=1))
        client = await durable(node)
        await client.subscribe(SubscriptionRequest("r", 1))
        packet = await client.expect(Publish)
        assert packet.retain
    async with running(store) as node:
        again = await (await durable(node)).expect(Publish)
        assert (again.packet_id, again.payload, again.dup, again.retain) == (
            packet.packet_id,
            b"kept",
            True,
            True,
        )


KEPT = LogShard(20)


class Keeping:
    """A gate that refuses everything and keeps what it refuses, as a quarantine does."""

    name = "keeping"

    def __init__(self) -> None:
        self.writer: Writer | None = None

    def plan(self, topic: str) -> GateCall:
        def refuse(message: Message) -> Message | Refusal:
            assert self.writer is not None
            self.writer.append(KEPT, StreamRecord(1, message.topic, message.payload, 0, False, "c"))
            return Refusal("validation", "v", "validation_failed", 0x99, "it does not fit")

        return refuse


def kept(store: MemoryStore) -> list[bytes]:
    return [record.payload for _, record in store.read(KEPT, 0, 100)]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(("version", "code"), [(4, 0), (5, 0x99)])
@pytest.mark.parametrize("clean_start", [True, False])
@on_loop
async def test_what_was_refused_and_kept_is_not_kept_again_when_it_is_resent(
    qos: int, version: int, code: int, clean_start: bool
) -> None:
    store = MemoryStore()
    message = Publish("t", b"x", qos, packet_id=7)
    properties = HOUR if version == 5 and not clean_start else {}
    for is_resent in (False, True):
        gate = Keeping()
        async with running(store, gates=[gate]) as node:
            gate.writer = node.writer
            client = await node.client("p", version, clean_start=clean_start, properties=properties)
            client.send(replace(message, dup=is_resent))
            told: PubAck | PubRec = (
                await client.expect(PubAck) if qos == 1 else await client.expect(PubRec)
            )
            assert (told.packet_id, told.reason_code) == (7, code)
    assert kept(store) == [b"x"]


@on_loop
async def test_what_was_refused_and_could_not_be_kept_is_kept_when_it_is_resent() -> None:
    store, gate = GatedStore(), Keeping()
    async with running(store, gates=[gate]) as node:
        gate.writer = node.writer
        client = await node.client("p", 5)
        store.fails = True
        client.send(Publish("t", b"x", 1, packet_id=7))
        assert (await client.expect(PubAck)).reason_code == 0x99
        store.fails = False
        client.send(Publish("t", b"x", 1, dup=True, packet_id=7))
        assert (await client.expect(PubAck)).reason_code == 0x99
        await node.until(lambda: kept(store) == [b"x"])


class CountingStore(GatedStore):
    """Counts how often a key is written."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: Counter[bytes] = Counter()

    def commit(self, batch: Batch) -> Committed:
        self.puts.update(batch.puts.keys())
        return super().commit(batch)


@on_loop
async def test_the_subscriptions_of_a_session_are_written_once_in_a_group_and_again_when_that_failed() -> (
    None
):
    store = CountingStore()
    async with running(store) as node:
        client = await durable(node)
        await node.written()
        store.puts.clear()
        client.send(*(Subscribe(n, [SubscriptionRequest(f"t/{n}", 1)]) for n in range(1, 101)))
        for number in range(1, 101):
            assert await client.expect(SubAck) == SubAck(number, [1])
        assert store.puts[b"subscriptions/d"] == 1
        store.fails = True
        client.send(Subscribe(101, [SubscriptionRequest("last", 1)]))
        assert await client.closed() == []
        store.fails = False
        await node.until(lambda: not node.writer.failure)
        await node.written()
        again = await durable(node)
        assert again.connack.session_present
    async with running(store) as node:
        session = node.server.hub.sessions.get("d")
        assert session is not None
        assert list(session.subscriptions) == [*(f"t/{n}" for n in range(1, 101)), "last"]


@on_loop
async def test_a_device_that_says_goodbye_after_each_message_is_not_taken_to_repeat_itself() -> (
    None
):
    async with running() as node:
        watcher = await node.client("watcher")
        await watcher.subscribe(SubscriptionRequest("door", 1))
        for _ in range(2):  # the second time its first attempt is lost on the way, and sent again
            async with await node.client("device") as device:
                device.send(Publish("door", b"open", 1, packet_id=1, dup=True))
                await device.expect(PubAck)
                device.send(Disconnect())
                await device.closed()
            assert (await watcher.expect(Publish)).payload == b"open"
            watcher.send(PubAck(1))
        assert "device" not in node.server.hub.inbounds
