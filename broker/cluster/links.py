"""The links of a cell to all others: their connections, and the filters that cells announce."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from logging import getLogger
from typing import Any, Final

from broker.cluster.connection import Channel
from broker.cluster.figures import FiguresOfCells
from broker.cluster.link import Common, Link
from broker.cluster.retained import RetainedOfCells
from broker.cluster.routes import Interest
from broker.cluster.sender import RemoteCell
from broker.cluster.shares import Shares
from broker.cluster.watch import CellWatch
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.core.cells import Place, Slots
from broker.routing.router import Target
from broker.session.log_queue import LostRecords
from broker.session.session import Session

_log = getLogger(__name__)

# Seconds between two tries to connect.
_RETRY_S: Final = 0.2
# Seconds that a start waits for the links to cells that run, and between two looks at them.
_JOIN_S: Final = 3.0
_JOIN_POLL_S: Final = 0.02
# Seconds that a SUBACK waits for other cells.
SUBSCRIBE_WAIT_S: Final = 1.0
# Seconds after which positions are written, and cells that are away looked for.
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
        self.retained = RetainedOfCells(
            place, hub, self._links, self._common.own_routes, self._tell
        )
        self._common.on_link.connect(self.retained.link_changed)
        figures = FiguresOfCells(hub.sys_topics, self._links.values())
        self._common.on_link.connect(figures.link_changed)
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._directory = -1
        hub.router.listener = self.interest
        hub.zones.on_durable.connect(self._durability_changed)
        hub.session_log.on_keep = self._kept
        hub.session_log.own_slots = Slots.of_cell(place.number, place.count).addressee
        hub.session_log.when_lost(self._lost)
        hub.session_log.needed_from.extend(link.log.needed_from for link in self._links.values())
        hub.subscribing.when_told = self._when_all_told
        self.shares = Shares(hub, list(self._links.values()))
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
        self._tasks.append(asyncio.create_task(self._each_second()))
        self.shares.start()

    async def join(self) -> None:
        """Start, and wait a while until this cell knows the filters of all other cells that run: a client of theirs
        would else miss what is published here at once. A cell that starts later waits for this one."""
        await self.start()
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + _JOIN_S
        running = [link for number, link in self._links.items() if self._listens(number)]
        # a cell answers this one's filters after it has told its own
        while not all(link.routed >= self.interest.version for link in running):
            await asyncio.sleep(_JOIN_POLL_S)
            if loop.time() > ends_s:
                _log.warning(
                    "link.late cells=%s", [link.number for link in running if not link.is_up]
                )
                return

    def _listens(self, number: int) -> bool:
        """True if another cell takes links."""
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self._path(number))
            except BlockingIOError:  # too many wait there
                return True
            except OSError:
                return False
        return True

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

    async def _each_second(self) -> None:
        loop = asyncio.get_running_loop()
        alarms = self.hub.context.alarms
        watch = None if alarms is None else CellWatch(self.place, alarms, loop.time())
        while True:
            await asyncio.sleep(_STORE_S)
            for link in self._links.values():
                link.keep_kept()
            if watch is not None:
                watch.look(self._links.values(), loop.time())

    # -- links --

    def has(self, number: int) -> bool:
        """True if another cell answers."""
        link = self._links.get(number)
        return link is not None and link.is_up

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

    def _when_all_told(self, then: Callable[[], None]) -> bool:
        """The same, of share groups too."""
        waits = 2

        def told() -> None:
            nonlocal waits
            waits -= 1
            if not waits:
                then()

        if not self.shares.when_told(told):
            return self.when_told(then)
        if not self.when_told(told):
            waits -= 1
        self.hub.context.later(SUBSCRIBE_WAIT_S, self.shares.tell_late, told)
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

    def _lost(self, lost: LostRecords) -> None:
        """Records could not be stored: their publishers hear of it, and those that follow get their offsets."""
        for link in self._links.values():
            link.take_back_offsets(lost)
