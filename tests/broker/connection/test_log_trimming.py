"""The session log is trimmed once the records that no longer need it are in the store."""

from __future__ import annotations

from broker.codec.packets import PubAck, Publish, SubscriptionRequest
from broker.session import backlog
from broker.session.record import restore_session
from broker.storage.memory import MemoryStore
from broker.storage.store import LogShard
from tests.support.mqtt_server import SESSION_LOG, Node, on_loop, running
from tests.support.session_bench import SessionBench
from tests.support.wire import WireClient

HOUR = {"Session-Expiry-Interval": 3600}


class TrimmedStore(MemoryStore):
    """Notes of each trim how far the session had come in the store at that moment."""

    def __init__(self) -> None:
        super().__init__()
        self.trims: list[tuple[int, int]] = []

    def trim(self, shard: LogShard, before_offset: int) -> None:
        session = SessionBench(is_durable=True).session
        record = self.get(b"session/s")
        assert record is not None
        restore_session(session, record)
        self.trims.append((before_offset, backlog.low_offset(session, 1 << 62)))
        super().trim(shard, before_offset)


async def deliver(
    node: Node, subscriber: WireClient, publisher: WireClient, numbers: range
) -> None:
    """Messages that are taken, acknowledged, and in flight no more."""
    for number in numbers:
        publisher.send(Publish("t", b"x", 1, packet_id=number))
        subscriber.send(PubAck((await subscriber.expect(Publish)).packet_id))
        await publisher.expect(PubAck)
    await node.until(lambda: not node.server.hub.sessions.by_client_id["s"].window.inflight)


@on_loop
async def test_what_a_session_no_longer_needs_goes_after_the_record_that_says_so() -> None:
    store = TrimmedStore()
    async with running(store) as node:
        subscriber, publisher = (
            await node.client("s", 5, clean_start=False, properties=HOUR),
            await node.client("p"),
        )
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        await node.written()
        for first in (1, 4):
            await deliver(node, subscriber, publisher, range(first, first + 3))
            node.server.hub.session_log.trim(node.server.hub.session_log.log_next)
            await node.until(
                lambda: (
                    store.range_of(SESSION_LOG).first_offset == node.server.hub.session_log.log_next
                )
            )
        assert store.trims == [(3, 3), (6, 6)]


@on_loop
async def test_where_the_log_holds_nothing_to_forget_nothing_is_written() -> None:
    store = TrimmedStore()
    async with running(store) as node:
        await node.client("s", 5, clean_start=False, properties=HOUR)
        await node.written()
        before = node.writer.appended
        node.server.hub.session_log.trim(node.server.hub.session_log.log_next)
        assert node.writer.appended == before
        await node.writer.committed()
    assert store.trims == []
