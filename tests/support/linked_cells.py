"""Several cells in the test's process, each an MQTT server with its own store, joined by their links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from broker.cluster.links import Links
from broker.core.cells import Place
from tests.support.mqtt_server import GatedStore, MovedClock, Node, running
from tests.support.waiting import until


class Cell:
    """A cell that can be killed and started again with its store."""

    def __init__(self, place: Place, store: GatedStore, clock: MovedClock, settings: Any) -> None:
        self.place, self.store, self.clock = place, store, clock
        self._settings = settings
        self._running = AsyncExitStack()
        self.is_running = False

    node: Node
    links: Links

    async def start(self) -> None:
        """Start with what the store holds."""
        self.node = await self._running.enter_async_context(
            running(
                self.store, clock=self.clock, before_start=self._link, before_open=self._join,
                **self._settings,
            )
        )  # fmt: skip
        self.is_running = True

    def _link(self, node: Node) -> None:
        self.links = Links(self.place, node.server.hub)

    async def _join(self) -> None:
        await self.links.join()

    async def stop(self) -> None:
        """End its links and its server, without a word to its clients."""
        if self.is_running:
            self.is_running = False
            await self.links.stop()
            await self._running.aclose()

    async def kill(self) -> None:
        """The same, and nothing more is stored."""
        self.store.fails = True
        await self.stop()
        self.store.fails = False

    def cut(self, other: int) -> None:
        """Cut the link to another cell off."""
        for link in self.links:
            if link.number == other:
                link.hang_up()

    @asynccontextmanager
    async def apart(self, other: Cell) -> AsyncIterator[None]:
        """Cut the link to another cell off, and let neither connect again until the end."""
        listening = max(self, other, key=lambda cell: cell.place.number).place
        path = listening.run / f"link-{listening.number}.sock"
        hidden = path.with_suffix(".hidden")
        path.rename(hidden)
        self.cut(other.place.number)
        await until(lambda: not other.links.has(self.place.number))
        yield
        hidden.rename(path)


@asynccontextmanager
async def cells(count: int, run: Path, **settings: Any) -> AsyncIterator[list[Cell]]:
    """Linked cells."""
    clock = MovedClock()
    started = [
        Cell(Place(number, count, run), GatedStore(), clock, settings) for number in range(count)
    ]
    try:
        for cell in started:
            await cell.start()
        await linked(started)
        yield started
    finally:
        for cell in started:
            await cell.stop()


async def linked(joined: list[Cell]) -> None:
    """Wait until each cell is linked with each other, and they know each other's filters."""
    await until(
        lambda: all(
            link.is_up and link.routed >= cell.links.interest.version
            for cell in joined
            if cell.is_running
            for link in cell.links
        )
    )
