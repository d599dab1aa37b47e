"""The links of a cell to all others: their connections, and the filters that cells announce."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from broker.cluster.connection import Channel
from broker.cluster.link import Common, Link
from broker.cluster.routes import Interest
from broker.cluster.sender import RemoteCell
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.core.cells import Place
from broker.routing.router import Target
from broker.session.session import Session

# Seconds between two tries to connect.
_RETRY_S: Final = 0.2
# Seconds that a SUBACK waits for other cells.
SUBSCRIBE_WAIT_S: Final = 1.0
# Seconds after which positions are written.
_STORE_S: Final = 1.0


class Links:
    """The links of this cell. Construct it before ``Hub.load``, so that it hears of every subscription."""

    def __init__(self, place: Place, hub: Hub) -> None:
        self.place = place
        self.hub = hub
        self.interest = Interest(self._tell_soon)
        self._told: list[tuple[int, Callable[[], None]]] = []
        self._common = Common(place, hub, self.interest, self.check_told)
        self._links = self._common.links
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._directory = -1
        hub.router.listener = self.interest
        hub.zones.on_durable.connect(self._durability_changed)
        hub.session_log.on_keep = self._kept
        hub.session_log.when_lost(self._lost)
        hub.session_log.needed_from.extend(link.log.needed_from for link in self._links.values())
        hub.subscribing.when_told = self.when_told
        hub.context.metrics.gauge(
            "cell_links_up",
            lambda: sum(link.is_up for link in self._links.values()),
            "other cells that are linked",
        )
        for session in hub.sessions:
            for subscription in session.subscriptions.values():
                if not subscription.is_membership:
                    self.interest.added(session, subscription)

    # -- life --

    async def start(self) -> None:
        """Listen for cells with lower numbers, and connect to those with higher ones."""
        run = self.place.run
        run.mkdir(mode=0o700, parents=True, exist_ok=True)
        # a path of a socket has at most 107 bytes
        self._directory = os.open(run, os.O_DIRECTORY | os.O_PATH)
        path = self._path(self.place.number)
        with suppress(FileNotFoundError):
            os.unlink(path)
        loop = asyncio.get_running_loop()
        await self.hub.context.writer.committed()
        self._server = await loop.create_unix_server(lambda: Channel(self._common, None), path)
        os.chmod(path, 0o600)
        for number, link in self._links.items():
            if number > self.place.number:
                self._tasks.append(asyncio.create_task(self._connect(link)))
        self._tasks.append(asyncio.create_task(self._store_positions()))

    async def stop(self) -> None:
        """End all links; what was not kept by others is sent after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        if self._server is not None:
            self._server.close()
        for link in self._links.values():
            link.stop()
        for end in list(self._common.channels):
            end()
        if self._server is not None:
            await self._server.wait_closed()
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1
        for link in self._links.values():
            link.keep_kept()

    def _path(self, number: int) -> str:
        return f"/proc/self/fd/{self._directory}/link-{number}.sock"

    async def _connect(self, link: Link) -> None:
        """Connect to a cell, again each time that the connection ends."""
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            with suppress(OSError):
                _, channel = await loop.create_unix_connection(
                    lambda: Channel(self._common, link), self._path(link.number)
                )
                await channel.ended.wait()
            await asyncio.sleep(0 if loop.time() - began_s > _RETRY_S else _RETRY_S)

    async def _store_positions(self) -> None:
        while True:
            await asyncio.sleep(_STORE_S)
            for link in self._links.values():
                link.keep_kept()

    # -- links --

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    # -- filters --

    def _tell_soon(self) -> None:
        self.hub.context.defer(self._tell)

    def _tell(self) -> None:
        """Tell the other cells what changed in this turn."""
        changes = self.interest.take_changes()
        if changes:
            for link in self._links.values():
                if link.is_up:
                    link.tell(changes, self.interest.version)
        self.check_told()

    def when_told(self, then: Callable[[], None]) -> bool:
        """Call a function once all linked cells follow the present subscriptions, or after a second; False if they do
        already."""
        version = self.interest.version + bool(self.interest.changed)
        if all(link.routed >= version for link in self._links.values() if link.is_up):
            return False
        entry = (version, then)
        self._told.append(entry)
        self.hub.context.later(SUBSCRIBE_WAIT_S, self._tell_late, entry)
        return True

    def _tell_late(self, entry: tuple[int, Callable[[], None]]) -> None:
        if entry in self._told:
            self._told.remove(entry)
            entry[1]()

    def check_told(self) -> None:
        """A cell follows a version, or is away."""
        if not self._told:
            return
        least = min((link.routed for link in self._links.values() if link.is_up), default=1 << 62)
        # a version that came to nothing is not told
        if not self.interest.changed and least >= self.interest.version:
            least = 1 << 62
        waiting = self._told
        self._told = [entry for entry in waiting if entry[0] > least]
        for version, then in waiting:
            if version <= least:
                then()

    def _durability_changed(self, session: Session) -> None:
        """A session moved to the disk, or could not."""
        for subscription in session.subscriptions.values():
            if not subscription.is_membership:
                self.interest.turned(session, subscription)

    # -- the session log --

    @staticmethod
    def _kept(outgoing: Outgoing, targets: Sequence[Target[Any]]) -> None:
        for target in targets:
            cell = target.subscriber
            if isinstance(cell, RemoteCell):
                cell.sender.log.expect(outgoing)

    def _lost(self, _next_offset: int) -> None:
        """Records could not be stored: their publishers hear of it."""
        for link in self._links.values():
            link.log.end_transits()
