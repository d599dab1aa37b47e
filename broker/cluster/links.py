"""The links of a cell to all others: connections, the filters that are told, and what the store keeps of them.

Keys in the store: ``links/log``, the identity of this cell's session log; ``links/at/CELL``, how far another cell's log
is kept here, written in the commit group of what was kept; ``links/kept/CELL``, how far another cell has kept this
cell's log; ``links/routes/CELL/FILTER``, the filters of its durable sessions.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from logging import getLogger
from typing import Any, Final
from uuid import uuid4

import msgspec

from broker.cluster.frames import PROTOCOL, FrameError, Hello
from broker.cluster.inbox import OwnRoutes
from broker.cluster.link import Channel, Link
from broker.cluster.remote import RemoteCell
from broker.cluster.routes import Interest
from broker.codec.outgoing import Outgoing
from broker.connection.hub import Hub
from broker.core.cells import Place
from broker.observe.metrics import Counter
from broker.routing.router import Target
from broker.session.session import Session
from broker.storage.collection import RAW, TEXT, Collection

_log = getLogger(__name__)

# Seconds between two tries to connect.
_RETRY_S: Final = 0.2
# Seconds that a SUBACK waits for other cells.
SUBSCRIBE_WAIT_S: Final = 1.0
# Seconds after which positions are written.
_STORE_S: Final = 1.0

_pack: Final = msgspec.msgpack.Encoder().encode
_position: Final = msgspec.msgpack.Decoder(tuple[str, int]).decode
_route: Final = msgspec.msgpack.Decoder(tuple[int, int]).decode


class Links:
    """The links of this cell. Construct it before ``Hub.load``, so that it hears of every subscription."""

    def __init__(self, place: Place, hub: Hub) -> None:
        self.place = place
        self.hub = hub
        self.metrics = hub.context.metrics
        self.incarnation = uuid4().hex
        self._stored = Collection(hub.context.writer, b"links/", TEXT, RAW)
        self.log_identity = self._identity()
        self._dropped: dict[tuple[int, str], Counter] = {}
        self.bad_frames = self.metrics.counter(
            "cell_bad_frames", "connections of links that ended with bytes that are no frames"
        )
        self.interest = Interest(self._tell_soon)
        self.version = 1
        self._told: list[tuple[int, Callable[[], None]]] = []
        self.channels: set[Channel] = set()
        self.own_routes = OwnRoutes(hub)
        self._links = {number: Link(self, number) for number in place.others}
        self._server: asyncio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._directory = -1
        self._down: dict[int, asyncio.Event] = {}
        hub.router.listener = self.interest
        hub.zones.on_durable.connect(self._durability_changed)
        hub.session_log.on_keep = self._kept
        hub.session_log.when_lost(self._lost)
        hub.session_log.needed_from.extend(link.log.needed_from for link in self._links.values())
        hub.subscribing.when_told = self.when_told
        self.metrics.gauge(
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
        self._server = await loop.create_unix_server(lambda: Channel(self, None), path)
        os.chmod(path, 0o600)
        for number, link in self._links.items():
            if number > self.place.number:
                self._down[number] = asyncio.Event()
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
        for channel in list(self.channels):
            channel.abort()
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
        loop = asyncio.get_running_loop()
        is_down = self._down[link.number]
        while True:
            is_down.clear()
            try:
                transport, _ = await loop.create_unix_connection(
                    lambda: Channel(self, link), self._path(link.number)
                )
            except OSError:
                await asyncio.sleep(_RETRY_S)
                continue
            while not transport.is_closing():
                with suppress(TimeoutError):
                    await asyncio.wait_for(is_down.wait(), _RETRY_S)
                is_down.clear()
            await asyncio.sleep(0)

    async def _store_positions(self) -> None:
        while True:
            await asyncio.sleep(_STORE_S)
            for link in self._links.values():
                link.keep_kept()

    # -- links --

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def link_of(self, hello: Hello) -> Link:
        """The link that a HELLO belongs to.

        Raises:
            FrameError: it is of another protocol, or of no other cell.
        """
        if hello.protocol < PROTOCOL:
            raise FrameError(f"HELLO frame: expected protocol {PROTOCOL}, got {hello.protocol}")
        if hello.cells != self.place.count:
            raise FrameError(f"HELLO frame: expected {self.place.count} cells, got {hello.cells}")
        link = self._links.get(hello.cell)
        if link is None:
            raise FrameError(f"HELLO frame: expected another cell, got {hello.cell}")
        return link

    def hello(self, link: Link) -> Hello:
        """This cell's HELLO on a link."""
        return link.hello()

    def came_up(self, link: Link) -> None:
        """A link is up."""

    def went_down(self, link: Link) -> None:
        """A link is down."""
        is_down = self._down.get(link.number)
        if is_down is not None:
            is_down.set()
        self.check_told()

    def dropped(self, number: int, why: str) -> Counter:
        """The counter of messages that another cell did not get, by reason."""
        counter = self._dropped.get((number, why))
        if counter is None:
            counter = self._dropped[number, why] = self.metrics.counter(
                "cell_messages_dropped",
                "messages that a cell did not get, by reason",
                cell=str(number),
                reason=why,
            )
        return counter

    # -- filters --

    def _tell_soon(self) -> None:
        self.hub.context.defer(self._tell)

    def _tell(self) -> None:
        """Tell the other cells what changed in this turn."""
        changes = self.interest.take_changes()
        if changes:
            self.version += 1
            for link in self._links.values():
                if link.is_up:
                    link.tell(changes, self.version)
        self.check_told()

    def when_told(self, then: Callable[[], None]) -> bool:
        """Call a function once all linked cells follow the present subscriptions, or after a second; False if they do
        already."""
        version = self.version + bool(self.interest.changed)
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
        if not self.interest.changed and least >= self.version:
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
                cell.link.log.expect(outgoing)

    def _lost(self, _next_offset: int) -> None:
        """Records could not be stored: their publishers hear of it."""
        for link in self._links.values():
            link.log.end_transits()

    # -- the store --

    def _identity(self) -> str:
        stored = self._stored.committed("log")
        if stored is not None:
            return stored.decode()
        identity = uuid4().hex
        self._stored.put("log", identity.encode())
        return identity

    def position_of(self, number: int) -> tuple[str, int]:
        """Identity of another cell's session log, and the offset up to which it is kept here."""
        stored = self._stored.committed(f"at/{number}")
        return ("", 0) if stored is None else _position(stored)

    def keep_position(self, number: int, identity: str, offset: int) -> None:
        """Store it in the commit group that is gathering."""
        self._stored.put(f"at/{number}", _pack((identity, offset)))

    def kept_by(self, number: int) -> int | None:
        """Offset up to which another cell has kept this cell's log; None if it never did."""
        stored = self._stored.committed(f"kept/{number}")
        return None if stored is None else int(stored)

    def keep_kept(self, number: int, offset: int) -> None:
        """Store it."""
        self._stored.put(f"kept/{number}", str(offset).encode())

    def stored_routes(self, number: int) -> list[tuple[str, int, int]]:
        """Filters of another cell's durable sessions, with their kinds and the offsets from which they hold."""
        prefix = f"routes/{number}/"
        return [
            (key.removeprefix(prefix), *_route(value))
            for key, value in self._stored.stored(prefix.encode())
        ]

    def keep_route(self, number: int, text: str, value: tuple[int, int] | None) -> None:
        """Store such a filter, or delete it."""
        self._stored.put(f"routes/{number}/{text}", None if value is None else _pack(value))
