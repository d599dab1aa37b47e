"""The MQTT server on a loopback socket for tests, with its store in memory and a clock that the test moves."""

from __future__ import annotations

import asyncio
import functools
import os
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any, cast

import uvloop

from broker.admin.clients import ClientService
from broker.admin.tails import MessageTails
from broker.cluster.steering import Steering
from broker.codec.packets import Connect
from broker.connection.connection import Connection
from broker.connection.dead_letters import DeadLetterSettings
from broker.connection.hub import ServerSettings
from broker.connection.settings import MqttSettings
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sys_topics import SysTopicSettings
from broker.core import reason
from broker.core.errors import Unavailable
from broker.core.events import Columns, Events
from broker.core.stage import Gate, Tap
from broker.core.stream import StreamRecord
from broker.net.server import Server
from broker.net.settings import ListenerSettings, NamedListener
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.routing.settings import RetainedSettings
from broker.storage.memory import MemoryStore
from broker.storage.settings import StoreSettings
from broker.storage.store import Batch, Committed, LogShard, Store
from broker.storage.writer import Writer
from broker.streams.service import StreamService
from tests.support.access import MakeAccess
from tests.support.connections import cut_off_at_the_end
from tests.support.waiting import until
from tests.support.wire import WireClient

SESSION_LOG = LogShard(1)
_DEADLINE_S = 60.0


class MovedClock:
    """Stands still until it is moved."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic_s(self) -> float:
        return self._now_ns / 1e9

    def move(self, seconds: float) -> None:
        self._now_ns += int(seconds * 1e9)


class GatedStore(MemoryStore):
    """A store whose commits wait until ``allow`` is set, and fail while ``fails``. While ``failed_reads`` is a list,
    reads fail and are noted there, as those of a store that is being opened again."""

    def __init__(self) -> None:
        super().__init__()
        self.allow = Event()
        self.allow.set()
        self.fails = self._fails_once = False
        self.failed_commits = 0
        self.failed_reads: list[str] | None = None

    def fail_once_then_allow(self) -> None:
        """Let the commit that waits fail, and those after it go through."""
        self._fails_once, self.fails = True, False
        self.allow.set()

    def commit(self, batch: Batch) -> Committed:
        assert self.allow.wait(_DEADLINE_S)
        if self.fails or self._fails_once:
            self._fails_once = False
            self.failed_commits += 1
            raise Unavailable("disk full")
        return super().commit(batch)

    def get(self, key: bytes) -> bytes | None:
        self._read("get")
        return super().get(key)

    def read(
        self, shard: LogShard, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        self._read("read")
        return super().read(shard, from_offset, limit)

    def _read(self, how: str) -> None:
        if self.failed_reads is not None:
            self.failed_reads.append(how)
            raise Unavailable("it is being opened again")


class Node:
    """A running server and what a test wants to reach of it."""

    def __init__(
        self,
        server: Server,
        writer: Writer,
        metrics: Metrics,
        events: Events,
        clock: MovedClock,
        alarms: Alarms,
    ) -> None:
        self.alarms = alarms
        self.server, self.writer, self.metrics, self.events, self.clock = (
            server,
            writer,
            metrics,
            events,
            clock,
        )
        self.port = 0
        self.ports: list[int] = []
        """Those of all listeners, in their order."""
        self.seen: list[tuple[str, Columns]] = []
        events.listen(lambda name, columns, _about: self.seen.append((name, columns)))

    async def client(self, client_id: str, version: int = 4, **connect: Any) -> WireClient:
        """A connected client."""
        return await WireClient.connected(self.port, Connect(client_id, version, **connect))

    def pass_time(self, seconds: float) -> None:
        """Move the clock and let the server notice."""
        self.clock.move(seconds)
        self.server.hub.tick()

    def dropped(self, why: str) -> float:
        """Messages dropped for a reason."""
        return self.metrics.value("messages_dropped", reason=why)

    def kick(self, client_id: str) -> None:
        """Close a client's connection (0x98)."""
        owner = self.server.hub.sessions.by_client_id[client_id].owner
        assert isinstance(owner, Connection)
        owner.disconnect(reason.ADMINISTRATIVE_ACTION, "kicked")

    def end_session(self, client_id: str) -> None:
        """End a session, with its connection where it has one."""
        session = self.server.hub.sessions.by_client_id[client_id]
        if session.owner is not None:
            self.kick(client_id)
        self.server.hub.life.end_session(session)

    async def written(self) -> None:
        """Wait until the store knows what clients have acknowledged."""
        await self.until(lambda: not self.server.hub.records.has_unwritten)
        await self.writer.committed()

    async def settled(self) -> None:
        """Wait until no message is on its way between cells: here there is one."""

    async def until(self, is_so: Callable[[], object]) -> None:
        """Wait for a condition, with a deadline."""
        await until(is_so)


@dataclass(frozen=True)
class Shape:
    """How ``running`` runs a broker: in so many cells, which a client reaches with TLS or without."""

    cells: int = 1
    is_tls: bool = False


shape = Shape()
"""That of the test that runs; see ``tests/conformance/conftest.py``."""


def use_shape(used: Shape) -> None:
    """Let brokers of tests be run like this."""
    global shape
    shape = used


def tails_of(node: Node) -> MessageTails:
    """The tails of a node without streams and schemas."""
    return MessageTails(node.server.hub, cast(StreamService, None), lambda topic: None)


def clients_of(node: Node) -> ClientService:
    """The clients of a node as administrators see them."""
    return ClientService(node.server.hub, tails_of(node))


@asynccontextmanager
async def running(
    store: Store | None = None, *, more_stores: Sequence[Store] = (), **options: Any
) -> AsyncIterator[Node]:
    """A server on a free port of 127.0.0.1, in as many cells as the test has: see ``one_process`` for its options.
    ``more_stores`` are those of the cells after the first."""
    if shape.cells > 1 and "steering" not in options:
        from tests.support.joined_cells import joined  # else one imports the other

        async with joined(shape, store, more_stores, **options) as cells:
            yield cells
        return
    async with one_process(store, **options) as node:
        yield node


@asynccontextmanager
async def one_process(
    store: Store | None = None,
    *,
    gates: Sequence[Gate] = (),
    taps: Sequence[Tap] = (),
    clock: MovedClock | None = None,
    retained: RetainedSettings | None = None,
    dead_letter: DeadLetterSettings | None = None,
    shared: SharedSettings | None = None,
    storing: StoreSettings | None = None,
    access: MakeAccess | None = None,
    sys_interval_s: float = 0,
    steering: Steering | None = None,
    listeners: Sequence[NamedListener] = (NamedListener(ListenerSettings(bind="127.0.0.1:0")),),
    before_start: Callable[[Node], None] | None = None,
    before_open: Callable[[], Awaitable[None]] | None = None,
    **settings: Any,
) -> AsyncIterator[Node]:
    """A server of one process. Leaving it is like a kill: nothing is said, nothing more is stored."""
    loop, metrics, events = asyncio.get_running_loop(), Metrics(), Events()
    clock = clock or MovedClock()
    writer = Writer(store or MemoryStore(), loop, storing, metrics)
    alarms = Alarms(clock, events, metrics)
    server = Server(
        settings=ServerSettings(
            mqtt=MqttSettings(**settings),
            retained=retained or RetainedSettings(),
            dead_letter=dead_letter or DeadLetterSettings(),
            shared=shared or SharedSettings(),
            sys_topics=SysTopicSettings(interval=sys_interval_s),
        ),
        listeners=listeners,
        writer=writer,
        session_log=SESSION_LOG,
        metrics=metrics,
        events=events,
        clock=clock,
        access=None if access is None else access(writer, metrics, clock, alarms),
        alarms=alarms,
        place=None if steering is None else steering.place,
        cells=steering,
    )
    server.set_stages(gates, taps)
    node = Node(server, writer, metrics, events, clock, alarms)
    if before_start is not None:
        before_start(node)
    node.ports = [port for _, port in await server.start(before_open)]
    node.port = node.ports[0]
    try:
        yield node
    finally:
        await writer.close()
        await server.stop(
            0.1
        )  # seconds in which clients close their side: many tests leave that out


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test that is a coroutine on the loop that the product runs on, or on that of ``SLUICE_TEST_LOOP``."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        factory = (
            asyncio.new_event_loop
            if os.environ.get("SLUICE_TEST_LOOP") == "asyncio"
            else uvloop.new_event_loop
        )
        with warnings.catch_warnings(), asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_within_deadline(test(*arguments, **named)))
            # A closed connection may still wait for the peer's end of TLS. uvloop warns of it as it closes the loop;
            # where the warning is an error it leaves the connection open and waits for the peer without end.
            warnings.filterwarnings(
                "ignore", "unclosed resource <TCPTransport closed=", ResourceWarning
            )

    return run


async def _within_deadline(test: Awaitable[None]) -> None:
    with cut_off_at_the_end():
        async with asyncio.timeout(240):
            await test
