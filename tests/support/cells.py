"""Several cells in the test's process: real servers that pass real sockets, with the lines that a supervisor has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker.cluster.channel import Ready
from broker.cluster.steering import Steering
from broker.cluster.switchboard import Switchboard
from broker.connection.connection import Connection
from broker.core.cells import Place
from broker.net.settings import ListenerSettings, NamedListener
from tests.support.mqtt_server import Node, running

PLAIN = (NamedListener(ListenerSettings(bind="127.0.0.1:0")),)


class Heard:
    """What a supervisor would hear."""

    def __init__(self) -> None:
        self.pids: dict[int, int] = {}
        self.ready: dict[int, Ready] = {}

    def greeted(self, cell: int, pid: int) -> None:
        self.pids[cell] = pid

    def is_ready(self, cell: int, ready: Ready) -> None:
        self.ready[cell] = ready


class Cells:
    """Running cells."""

    def __init__(self, run: Path, count: int) -> None:
        self.run = run
        self.count = count
        self.nodes: list[Node] = []
        self.steerings: list[Steering] = []
        self.heard = Heard()
        self.switchboard = Switchboard(run, self.heard)

    def place(self, number: int) -> Place:
        return Place(number, self.count, self.run)

    @property
    def ports(self) -> list[int]:
        return self.nodes[0].ports

    def node_of(self, client_id: str) -> Node:
        """The node that has to have a client."""
        return self.nodes[self.place(0).cell_of(client_id)]

    def connection(self, client_id: str) -> Connection:
        """The connection of a client in its own cell; it is in no other."""
        for node in self.nodes:
            session = node.server.hub.sessions.get(client_id)
            assert (session is not None) is (node is self.node_of(client_id)), client_id
        session = self.node_of(client_id).server.hub.sessions.by_client_id[client_id]
        assert isinstance(session.owner, Connection)
        return session.owner

    def accept_only_in(self, cell: int) -> None:
        """Let one cell accept all connections from now on."""
        for number, node in enumerate(self.nodes):
            for listener in node.server.listeners._all.values() if number != cell else ():
                for accepting in listener._accepting:
                    accepting.close()

    def identifiers(self, number: int, cell: int) -> list[str]:
        """So many client identifiers of a cell."""
        place = self.place(cell)
        names = (f"client-{index}" for index in range(100_000))
        own = (name for name in names if place.has(name))
        return [next(own) for _ in range(number)]


@asynccontextmanager
async def cells(
    directory: Path,
    count: int = 2,
    *,
    listeners: Sequence[NamedListener] = PLAIN,
    begins: Callable[[int], bool] = lambda _number: True,
    **settings: Any,
) -> AsyncIterator[Cells]:
    """So many cells with the same listeners. Those that do not begin take no connections from others."""
    started = Cells(directory, count)
    async with AsyncExitStack() as stack:
        stack.callback(lambda: started.switchboard.close())
        for number in range(count):
            started.switchboard.prepare(number)
        for number in range(count):
            steering = Steering(started.place(number))
            await steering.start()
            stack.push_async_callback(steering.stop, 1.0)
            node = await stack.enter_async_context(
                running(steering=steering, listeners=listeners, **settings)
            )
            if begins(number):
                steering.begin(node.server.listeners)
            started.nodes.append(node)
            started.steerings.append(steering)
        yield started
