"""What is left behind is cleared away, a little at a time."""

from __future__ import annotations

from broker.connection.sessions import maintenance
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch
from tests.support.mqtt_server import Node, on_loop, running

_LASTING = {"Session-Expiry-Interval": 100}


async def leave(node: Node, client_id: str) -> None:
    """A session that lasts, and its client gone."""
    await (await node.client(client_id, 5, clean_start=False, properties=_LASTING)).close()
    await node.until(lambda: node.server.hub.sessions.by_client_id[client_id].is_away)


@on_loop
async def test_records_without_a_session_are_deleted() -> None:
    store = MemoryStore()
    store.commit(Batch(puts={b"subscriptions/gone": b"x", b"subscriptions/gone/too": b"x"}))
    async with running(store) as node:
        await leave(node, "here")
        node.server.hub.subscriptions.changed(node.server.hub.sessions.by_client_id["here"])
        node.pass_time(1)
        node.pass_time(50)
        for _ in range(20):
            node.pass_time(55)
            if node.server.hub.sessions.get("here") is None:
                await leave(node, "here")
                node.server.hub.subscriptions.changed(node.server.hub.sessions.by_client_id["here"])
        await node.writer.committed()
        assert [key for key, _ in store.scan(b"subscriptions/")] == [b"subscriptions/here"]
        assert node.server.hub.housekeeping.records_swept == 2


@on_loop
async def test_many_that_end_at_once_are_ended_in_parts() -> None:
    store = MemoryStore()
    async with running(store) as node:
        hub = node.server.hub
        for number in range(500):
            session = hub.life.new_session(f"s{number}", hub.zones.default, is_durable=True)
            session.expiry_s = 10
            hub.life.detached(session, is_will_due=False)
        await node.writer.committed()
        node.pass_time(11)
        assert 0 < len(hub.sessions) < 500
        await node.until(lambda: len(hub.sessions) == 0)
        await node.writer.committed()
        assert not list(store.scan(b"session/"))


def test_a_round_begins_when_it_is_due_and_goes_on_until_its_end() -> None:
    begun: list[int] = []

    def work(now_ns: int):  # type: ignore[no-untyped-def]
        begun.append(now_ns)
        yield
        yield

    job = maintenance._Job(work, 100)
    for now_ns in (1, 50, 101, 102, 103, 104, 150, 201, 202):
        job.step(now_ns)
    assert begun == [101, 201]
