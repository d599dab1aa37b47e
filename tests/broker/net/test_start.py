"""A node with many sessions begins: meanwhile it answers, says that it is not ready, and takes no connections."""

from __future__ import annotations

import asyncio
import gc

from broker.connection.hub import ServerSettings
from broker.core.events import Events
from broker.core.subscription import Subscription
from broker.core.topic import TopicFilter
from broker.net.server import Server
from broker.net.settings import ListenerSettings, NamedListener
from broker.observe.metrics import Metrics
from broker.storage.memory import MemoryStore
from broker.storage.writer import Writer
from tests.support.mqtt_server import SESSION_LOG, MovedClock, on_loop, running

_SESSIONS = 2000
_STEPS = 7
"""At least so many turns of the loop."""


@on_loop
async def test_the_loop_has_its_turns_while_sessions_are_restored() -> None:
    store = MemoryStore()
    async with running(store) as node:
        hub = node.server.hub
        for number in range(_SESSIONS):
            session = hub.life.new_session(f"s{number}", hub.zones.default, is_durable=True)
            session.expiry_s = 3600
            subscription = Subscription(TopicFilter.parse(f"dev/{number}/cmd"), 1)
            session.subscriptions[subscription.filter.text] = subscription
            hub.subscriptions.changed(session)
            hub.life.detached(session, is_will_due=False)
        await node.written()
    metrics = Metrics()
    server = Server(
        settings=ServerSettings(),
        listeners=[NamedListener(ListenerSettings(bind="127.0.0.1:0"))],
        writer=Writer(store, asyncio.get_running_loop(), metrics=metrics),
        session_log=SESSION_LOG,
        metrics=metrics,
        events=Events(),
        clock=MovedClock(),
    )
    starting = asyncio.create_task(server.start())
    turns = 0
    while not starting.done():
        await asyncio.sleep(0)
        if not server.is_loaded and len(server.hub.sessions):
            turns += 1
            assert not server.listeners.links
            assert not gc.isenabled()
    assert turns >= _STEPS
    assert server.is_loaded
    assert gc.isenabled()
    assert len(server.hub.sessions) == server.hub.router.subscription_count == _SESSIONS
    await server.stop(1)
