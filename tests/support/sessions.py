"""A data directory with the sessions of clients that are away."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time_ns

from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.storage.rocksdb.store import RocksStore
from tests.support.mqtt_server import MovedClock, running


def fill(data_dir: Path, sessions: int) -> None:
    """Store so many sessions, each with a subscription of its own."""
    with ThreadPoolExecutor() as pool:  # this thread may have a loop, as Playwright's
        pool.submit(lambda: asyncio.run(_fill(data_dir, sessions))).result()


async def _fill(data_dir: Path, sessions: int) -> None:
    store = RocksStore(data_dir)
    async with running(store, clock=MovedClock(time_ns())) as node:  # else they have expired
        hub = node.server.hub
        for number in range(sessions):
            session = hub.life.new_session(f"client-{number}", hub.zones.default, is_durable=True)
            session.expiry_s = 86_400
            subscription = Subscription(TopicFilter.parse(f"fleet/{number}/commands"), 1)
            hub.subscriptions.add(session, subscription, is_new=True)
            hub.subscriptions.changed(session)
            hub.life.detached(session, is_will_due=False)
        await node.written()
    store.close()
