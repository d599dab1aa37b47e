"""A broker of several cells in the test's process that has the face of one: tests of one server run on it unchanged.

The cells share listening sockets and pass connections to each other, as those of ``sluice serve --workers`` do. With
TLS the cell that accepts relays.
"""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from types import SimpleNamespace
from typing import Any

from broker.cluster.frames import RouteChanges, encoded
from broker.cluster.links import Links
from broker.cluster.steering import Steering
from broker.cluster.switchboard import Switchboard
from broker.core.cells import Place
from broker.net.settings import NamedListener, SslListenerSettings, TlsSettings
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch, Committed, Store
from tests.support import connections
from tests.support.cells import PLAIN, Heard
from tests.support.certificates import Authority
from tests.support.mqtt_server import GatedStore, MovedClock, Node, Shape, one_process
from tests.support.waiting import until


@cache
def _certified() -> tuple[NamedListener, Path]:
    """A listener with TLS, and the file of the authority that clients trust it by."""
    authority = Authority(Path(mkdtemp(prefix="cells-")))
    files = authority.sign("server", {"CN": "localhost"}, ["localhost", "127.0.0.1"])
    settings = SslListenerSettings(
        bind="127.0.0.1:0", ssl_options=TlsSettings.model_validate(files.settings)
    )
    return NamedListener(settings), authority.file


class _Follower(GatedStore):
    """A further cell's store, which waits and fails with the first cell's."""

    def __init__(self, leader: GatedStore) -> None:
        super().__init__()
        self._leader = leader
        self.allow = leader.allow

    def commit(self, batch: Batch) -> Committed:
        self.fails = self._leader.fails
        return super().commit(batch)


class _Sessions:
    """The sessions of all cells."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._all = [node.server.hub.sessions for node in nodes]
        self.by_client_id = ChainMap(*(sessions.by_client_id for sessions in self._all))

    def get(self, client_id: str) -> Any:
        return self.by_client_id.get(client_id)

    def __len__(self) -> int:
        return sum(map(len, self._all))

    def __iter__(self) -> Iterator[Any]:
        return (session for sessions in self._all for session in sessions)


class _Router:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    @property
    def subscription_count(self) -> int:
        return sum(node.server.hub.router.subscription_count for node in self._nodes)


class _Retained:
    """The retained messages of all cells, each in the cell of its topic."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._all = [node.server.hub.retained for node in nodes]

    def get(self, topic: str) -> Any:
        return next((kept for some in self._all if (kept := some.get(topic))), None)

    @property
    def count(self) -> int:
        return sum(some.count for some in self._all)


class _Hub:
    """What tests look at in the hubs of all cells."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self.sessions = _Sessions(nodes)
        self.router = _Router(nodes)
        self.retained = _Retained(nodes)
        self.pipeline = nodes[0].server.hub.pipeline
        self.context = nodes[0].server.hub.context

    def use_settings(self, settings: Any) -> None:
        for node in self._nodes:
            node.server.hub.use_settings(settings)

    @property
    def connections(self) -> list[Any]:
        return [one for node in self._nodes for one in node.server.hub.connections]

    def tick(self) -> None:
        for node in self._nodes:
            node.server.hub.tick()


class _Server:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self.hub = _Hub(nodes)
        self.publisher = nodes[0].server.publisher

    def use_settings(self, settings: Any) -> None:
        for node in self._nodes:
            node.server.use_settings(settings)


class _Stores:
    """What tests look at in the stores of all cells."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._all = [node.writer.store for node in nodes]

    def scan(self, prefix: bytes) -> Iterator[Any]:
        return (row for store in self._all for row in store.scan(prefix))

    def get(self, key: bytes) -> bytes | None:
        return next((value for store in self._all if (value := store.get(key)) is not None), None)

    def size_of(self, shard: Any) -> int:
        return sum(store.size_of(shard) for store in self._all)


class _Events:
    """The events of all cells."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes

    def listen(self, hear: Any) -> None:
        for node in self._nodes:
            node.events.listen(hear)

    def want(self, names: frozenset[str]) -> None:
        for node in self._nodes:
            node.events.want(names)


class _Writers:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self._all = [node.writer for node in nodes]
        self.store = _Stores(nodes)

    async def committed(self) -> None:
        await asyncio.gather(*(writer.committed() for writer in self._all))


class JoinedNode(Node):
    """Running cells as one node."""

    def __init__(self, nodes: Sequence[Node], links: Sequence[Links], place: Place) -> None:
        first = nodes[0]
        joined_server: Any = _Server(nodes)
        writers: Any = _Writers(nodes)
        metrics: Any = SimpleNamespace(
            value=lambda name, **labels: sum(node.metrics.value(name, **labels) for node in nodes)
        )
        events: Any = _Events(nodes)
        super().__init__(joined_server, writers, metrics, events, first.clock, first.alarms)
        self._nodes = nodes
        self._links = links
        self.place = place
        self.port = first.port
        self.ports = first.ports

    def of(self, client_id: str) -> Node:
        """The node of a client's cell."""
        return self._nodes[self.place.cell_of(client_id)]

    def kick(self, client_id: str) -> None:
        self.of(client_id).kick(client_id)

    def end_session(self, client_id: str) -> None:
        self.of(client_id).end_session(client_id)

    async def written(self) -> None:
        await asyncio.gather(*(node.written() for node in self._nodes))

    async def settled(self) -> None:
        """Wait until each cell has what others sent: a frame is answered once those before it are taken."""
        for cell in self._links:
            for link in cell:
                if link.is_up:
                    link._routes.routed = 0
                    link.send_in_order(
                        encoded(RouteChanges(cell.interest.version, False, True, []))
                    )
        await self.are_linked()
        await until(
            lambda: all(
                link.log.is_past(cell.hub.session_log.log_next)
                for cell in self._links
                for link in cell
            )
        )
        await self.writer.committed()

    async def are_linked(self) -> None:
        """Wait until all cells are linked, and follow each other's filters."""
        await until(
            lambda: all(
                link.is_up and link.routed >= cell.interest.version
                for cell in self._links
                for link in cell
            )
        )


def _stores(count: int, store: Store | None, more: Sequence[Store]) -> list[Store]:
    first = store or MemoryStore()
    if more:
        return [first, *more]
    if isinstance(first, GatedStore):
        return [first, *(_Follower(first) for _ in range(count - 1))]
    return [first, *(MemoryStore() for _ in range(count - 1))]


@asynccontextmanager
async def joined(
    shape: Shape,
    store: Store | None,
    more_stores: Sequence[Store],
    *,
    before_start: Callable[[Node], None] | None = None,
    clock: MovedClock | None = None,
    listeners: Sequence[NamedListener] = PLAIN,
    **options: Any,
) -> AsyncIterator[JoinedNode]:
    """Cells with the same listeners, linked with each other."""
    nodes: list[Node] = []
    links: list[Links] = []
    clock = clock or MovedClock()
    trusted = None
    if shape.is_tls and listeners is PLAIN:
        listener, trusted = _certified()
        listeners = (listener,)
    async with AsyncExitStack() as stack:
        run = Path(stack.enter_context(TemporaryDirectory(prefix="cells-")))
        switchboard = Switchboard(run, Heard())
        stack.callback(switchboard.close)
        for number in range(shape.cells):
            switchboard.prepare(number)

        def join(node: Node) -> None:
            links.insert(0, Links(place, node.server.hub))
            if before_start is not None:
                before_start(node)

        async def links_of_first() -> None:
            await links[0].start()

        stores = _stores(shape.cells, store, more_stores)
        # cells connect to those with higher numbers, which listen already
        for number in reversed(range(shape.cells)):
            place = Place(number, shape.cells, run)
            steering = Steering(place)
            await steering.start()
            stack.push_async_callback(steering.stop, 1.0)
            node = await stack.enter_async_context(
                one_process(
                    stores[number],
                    steering=steering,
                    listeners=listeners,
                    clock=clock,
                    before_start=join,
                    before_open=links_of_first,
                    **options,
                )
            )
            stack.push_async_callback(links[0].stop)
            steering.begin(node.server.listeners)
            nodes.insert(0, node)
        whole = JoinedNode(nodes, links, Place(0, shape.cells, run))
        await whole.are_linked()
        if trusted is not None:
            connections.tls_ports[whole.port] = trusted
            stack.callback(connections.tls_ports.pop, whole.port, None)
        yield whole
