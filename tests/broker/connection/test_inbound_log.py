"""What clients may send again is restored from entries of commit groups and states stored whole."""

from __future__ import annotations

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.connection.context import Context
from broker.connection.sessions.inbounds import StoredInbounds
from broker.connection.settings import MqttSettings
from broker.core.clock import SystemClock
from broker.core.errors import Unavailable
from broker.core.events import Events
from broker.observe.metrics import Metrics
from broker.session.inbound import Inbound, digest
from broker.session.registry import SessionRegistry
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed
from broker.storage.writer import Writer

CLIENTS = ("a", "b", "client-ü")
ACTIONS = ("take", "take", "take", "open", "release", "settle", "forget", "commit")


class Clients:
    """Clients that publish, on a store of their own."""

    def __init__(self, store: MemoryStore, max_log_bytes: int = 200) -> None:
        loop = asyncio.get_running_loop()
        self.store, self.writer = store, Writer(store, loop)
        settings: Any = MqttSettings()
        context = Context(
            settings,
            writer=self.writer,
            metrics=Metrics(),
            events=Events(),
            clock=SystemClock(),
            defer=loop.call_soon,
            later=loop.call_later,
        )
        self.inbounds = StoredInbounds(context, SessionRegistry(), max_log_bytes)
        self.inbounds.load()
        self._numbers = count(1)
        self._sessions: dict[str, Any] = {}

    def act(self, client_id: str, action: str) -> None:
        """Do as a connection does."""
        session = self._sessions.setdefault(
            client_id,
            SimpleNamespace(client_id=client_id, inbound=self.inbounds.get(client_id), expiry_s=0),
        )
        inbounds = self.inbounds
        if action == "take":
            self.writer.touch()
            inbound, number = inbounds.of(session), next(self._numbers)
            inbounds.took(
                client_id,
                inbound,
                inbound.remember(number % 65_535 + 1, digest(b"t", b"%d" % number), 1),
            )
        elif action == "open":
            inbounds.of(session).open(7)
            inbounds.changed(session)
        elif action == "release" and session.inbound is not None:
            session.inbound.release(7, forget=True)
            inbounds.changed(session)
        elif action == "settle":
            inbounds.settle(session)
            session.inbound = inbounds.get(client_id)
        elif action == "forget" and client_id in inbounds:
            inbounds.forget(client_id)
            session.inbound = None

    async def __aenter__(self) -> Clients:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.writer.close()


def known(inbounds: StoredInbounds) -> dict[str, tuple[dict[int, bytes], set[int]]]:
    """What is remembered of each client of which there is something."""
    return {
        name: (one.recent, one.open_qos2)
        for name, one in inbounds.items()
        if one.recent or one.open_qos2
    }


@given(st.lists(st.tuples(st.sampled_from(CLIENTS), st.sampled_from(ACTIONS)), max_size=60))
def test_what_was_committed_is_restored_whatever_happened(steps: list[tuple[str, str]]) -> None:
    async def run() -> None:
        store = MemoryStore()
        async with Clients(store) as clients:
            for client_id, action in steps:
                if action == "commit":
                    await clients.writer.committed()
                clients.act(client_id, action)
            await clients.writer.committed()
            expected = known(clients.inbounds)
        async with Clients(store) as restored:
            assert known(restored.inbounds) == expected

    asyncio.run(run())


def test_the_log_is_bounded_and_a_client_is_stored_whole_once_in_its_length() -> None:
    async def run() -> None:
        store = MemoryStore()
        async with Clients(store, max_log_bytes=2000) as clients:
            whole = 0
            for _ in range(300):
                before = store.get(b"inbound/a")
                clients.act("a", "take")
                await clients.writer.committed()
                whole += store.get(b"inbound/a") != before
                assert sum(len(value) for _, value in store.scan(b"inbound-log/")) <= 2000
            assert 2 <= whole <= 5
            expected = known(clients.inbounds)["a"]
        async with Clients(store, max_log_bytes=2000) as restored:
            recent, _ = known(restored.inbounds)["a"]
            assert recent.items() >= expected[0].items()

    asyncio.run(run())


def test_the_state_that_a_release_before_stored_is_restored() -> None:
    async def run() -> None:
        store, inbound = MemoryStore(), Inbound()
        inbound.remember(5, digest(b"t", b"x"), 1)
        value = inbound.encode()
        store.commit(Batch(puts={b"inbound/a": value}))
        async with Clients(store) as clients:
            assert clients.inbounds["a"].taken_with(5, digest(b"t", b"x"), 1) == 0

    asyncio.run(run())


def test_a_group_that_could_not_be_written_loses_nothing_of_earlier_ones() -> None:
    class Failing(MemoryStore):
        is_failing = False

        def commit(self, batch: Batch) -> Committed:
            if self.is_failing:
                raise Unavailable("full")
            return super().commit(batch)

    async def run() -> None:
        store = Failing()
        async with Clients(store, max_log_bytes=100) as clients:
            for _ in range(4):
                clients.act("a", "take")
                await clients.writer.committed()
            committed = dict(known(clients.inbounds)["a"][0])
            store.is_failing = True
            for _ in range(5):
                clients.act("b", "take")
                with pytest.raises(Unavailable):
                    await clients.writer.committed()
            store.is_failing = False
            clients.act("b", "take")
            await clients.writer.committed()
        async with Clients(store, max_log_bytes=100) as restored:
            assert known(restored.inbounds)["a"][0] == committed

    asyncio.run(run())
