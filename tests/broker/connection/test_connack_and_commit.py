"""The CONNACK of a stored session leaves after the commit that holds the session."""

import asyncio

from broker.codec.packets import Subscribe, SubscriptionRequest
from tests.support.mqtt_server import GatedStore, on_loop, running

HOUR = {"Session-Expiry-Interval": 3600}


@on_loop
async def test_connack_waits_where_the_session_was_already_to_be_written_in_the_same_commit_group() -> (
    None
):
    store = GatedStore()
    async with running(store) as node:
        first = await node.client("s", 5, clean_start=False, properties=HOUR)
        await node.written()
        session = node.server.hub.sessions.by_client_id["s"]
        owner = session.owner
        store.allow.clear()
        node.writer.touch()
        flying = asyncio.get_running_loop().create_future()
        node.writer.when_committed(lambda error: flying.set_result(error))
        await node.client("first turn")
        first.send(Subscribe(1, [SubscriptionRequest("t", 1)]))
        await node.until(lambda: session.subscriptions)
        assert node.server.hub.records.has_unwritten

        second = asyncio.create_task(node.client("s", 5, clean_start=False, properties=HOUR))
        await node.until(lambda: session.owner is not owner and session.owner is not None)
        await node.client("later turn")
        is_early = second.done()
        store.allow.set()
        await second
        assert await flying is None
        assert not is_early
