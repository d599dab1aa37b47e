"""Brings each connection to the cell that has its client: sockets go from cell to cell, each with its origin.
Connections with TLS, and those of cells on other machines, are relayed (``broker.cluster.relay``).

A cell that restarts finds the connections that came meanwhile in the queue of its socket. What the queue does not take
waits at the sender, for a while.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from broker.cluster.channel import bind, connect, join_name, pass_name
from broker.cluster.control import Control
from broker.cluster.relay import MOST_OPENING_BYTES, Relayed, Served, Trunk
from broker.core.cells import Place
from broker.net.accept import listening_sockets, set_options
from broker.net.listeners import Listeners
from broker.net.proxy import Origin
from broker.net.settings import NamedListener
from broker.observe.log import get_logger

_log = get_logger(__name__)

# Time limit for a cell to take a connection.
WAIT_S: Final = 10.0
# Connections that may wait for one cell.
_MOST_WAITING: Final = 1000
_AGAIN_S: Final = 0.1
_RELAY_AGAIN_S: Final = 0.3
# Bytes read from a connection that go in the message itself; more go in a file of memory.
_MOST_INLINE: Final = 32 * 1024
_MOST_BYTES: Final = 64 * 1024
_PER_TURN: Final = 64
_STOP_POLL_S: Final = 0.02
_BACKLOG: Final = 1024


class _Passed(msgspec.Struct, array_like=True):
    """A connection, as cells tell each other of it."""

    listener: str
    origin: Origin


class _Still(asyncio.Protocol):
    """A connection until it is relayed: nothing is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Leave what the client sends where it is."""
        cast(asyncio.Transport, transport).pause_reading()


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(_Passed)


@dataclass(slots=True)
class _Waiting:
    data: bytes
    descriptors: list[int]
    is_taken: asyncio.Future[bool]


class Steering:
    """The way of connections between the cells of this machine (``broker.net.entrance.Cells``)."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.control = Control(place)
        self.relayed: set[Relayed] = set()
        self._loop = asyncio.get_running_loop()
        self._targets = {
            number: _Target(self._loop, place, number)
            for number in place.near
            if number != place.number
        }
        self._relaying: Counter[int] = Counter()
        """Connections that wait for the cells to which they are to be relayed."""
        self._trunks: set[Trunk] = set()
        """Of both directions."""
        self._trunk_to: dict[int, tuple[str, asyncio.Task[Trunk | None]]] = {}
        """Trunks to other cells, with the machine that runs the cell."""
        self._joining: socket.socket | None = None
        """Where the trunks of other cells come."""
        self._listeners: Listeners | None = None
        self._is_parting = False
        self._taking: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Be known to the supervisor. Before listeners open.

        Raises:
            broker.core.errors.Unavailable: there is none.
        """
        await self.control.start()

    def begin(self, listeners: Listeners) -> None:
        """Take connections that other cells pass, those first that have waited."""
        self._listeners = listeners
        assert self.control.passed is not None
        self._loop.add_reader(self.control.passed, self._receive)
        self._joining = bind(self.place.run, join_name(self.place.number), socket.SOCK_STREAM)
        self._joining.listen(_BACKLOG)
        self._loop.add_reader(self._joining, self._accept_joining)

    def part(self) -> None:
        """Take no more connections: at other machines they wait until the cell runs elsewhere."""
        self._is_parting = True
        self._close_joining()

    def _close_joining(self) -> None:
        if self._joining is not None:
            self._loop.remove_reader(self._joining)
            self._joining.close()
            self._joining = None

    async def stop(self, deadline_s: float) -> None:
        """Take no more connections; return once those that are relayed have ended, or after ``deadline_s``."""
        if self._listeners is not None and self.control.passed is not None:
            self._loop.remove_reader(self.control.passed)
        self._close_joining()
        ends_at = self._loop.time() + deadline_s
        while self.relayed and self._loop.time() < ends_at:  # noqa: ASYNC110  only while stopping
            await asyncio.sleep(_STOP_POLL_S)
        for relayed in list(self.relayed):
            relayed.abort()
        for trunk in list(self._trunks):
            trunk.close()
        while self._trunks and self._loop.time() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(_STOP_POLL_S)
        for trunk in list(self._trunks):
            trunk.abort()
        for target in self._targets.values():
            target.close()
        self.control.stop()

    # -- broker.net.entrance.Cells --

    async def sockets(self, named: NamedListener) -> list[socket.socket]:
        """The listening sockets of a listener, with its options.

        Raises:
            OSError: an address is taken, is none of this machine, or the supervisor is away.
        """
        settings = named.settings
        sockets = await self.control.sockets(
            _key(named), lambda: listening_sockets(self._loop, settings)
        )
        for listening in sockets:
            listening.setblocking(False)
            set_options(listening, settings.tcp_options)
            listening.listen(settings.backlog)
        return sockets

    def release(self, named: NamedListener) -> None:
        """Accept no more from the sockets of a listener."""
        self.control.release(_key(named))

    def has(self, client_id: str) -> bool:
        """True if the client is one of this cell."""
        return self.place.has(client_id)

    def pass_now(self, client_id: str, listener: str, link: socket.socket, origin: Origin) -> bool:
        """Pass a connection to the cell of a client, if that takes it at once."""
        target = self._target_of(self.place.cell_of(client_id))
        if target is None or target.waiting or len(origin.first) > _MOST_INLINE:
            return False
        return target.send(_ENCODER.encode(_Passed(listener, origin)), [link.fileno()])

    async def pass_on(
        self, client_id: str, listener: str, link: socket.socket, origin: Origin
    ) -> bool:
        """Pass a connection as soon as the cell takes it; False if it does not in time, or too many wait."""
        cell = self.place.cell_of(client_id)
        target = self._target_of(cell)
        if target is None:
            return await self._relay_socket(cell, listener, link, origin)
        descriptors = [link.fileno()]
        if len(origin.first) > _MOST_INLINE:
            descriptors.append(_in_memory(origin.first))
            origin = replace(origin, first=b"")
        try:
            return await target.pass_on(_ENCODER.encode(_Passed(listener, origin)), descriptors)
        finally:
            for descriptor in descriptors[1:]:
                os.close(descriptor)

    def _target_of(self, cell: int) -> _Target | None:
        """Where connections are passed to a cell; None where they are relayed to it."""
        target = self._targets.get(cell)
        return target if target is not None and self.place.is_at_home(cell) else None

    async def relay(
        self, client_id: str, listener: str, transport: asyncio.Transport, origin: Origin
    ) -> bool:
        """Relay a connection whose TLS ends here, and that does not read, to the cell of its client; False if that does
        not take it in time, or too many wait."""
        relayed = await self._opened(self.place.cell_of(client_id), listener, origin)
        if relayed is None:
            return False
        relayed.begin(transport)
        return True

    async def _relay_socket(
        self, cell: int, listener: str, link: socket.socket, origin: Origin
    ) -> bool:
        try:
            if origin.host is None and not origin.is_unknown:
                peer, ours = link.getpeername(), link.getsockname()
                origin = replace(
                    origin, host=peer[0], port=peer[1], local_address=f"{ours[0]}:{ours[1]}"
                )
        except OSError:
            return False
        relayed = await self._opened(cell, listener, origin)
        if relayed is None:
            return False
        try:
            # the caller closes its own end
            transport, _ = await self._loop.connect_accepted_socket(_Still, link.dup())
        except BaseException as error:
            relayed.abort()
            if isinstance(error, OSError):
                return False
            raise
        relayed.begin(transport)
        return True

    async def _opened(self, cell: int, listener: str, origin: Origin) -> Relayed | None:
        """A connection that another cell serves, as soon as it can be reached; None if it cannot in time, or too many
        wait."""
        if self._relaying[cell] >= _MOST_WAITING:
            return None
        told = _ENCODER.encode(_Passed(listener, replace(origin, first=b"")))
        if len(told) > MOST_OPENING_BYTES:
            return None
        self._relaying[cell] += 1
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    trunk = await self._trunk(cell)
                    if trunk is not None:
                        relayed = Relayed(trunk, self.relayed)
                        if await relayed.open(told, origin.first):
                            return relayed
                    await asyncio.sleep(_RELAY_AGAIN_S)
        except TimeoutError:
            _not_taking(cell)
            return None
        finally:
            self._relaying[cell] -= 1

    async def _trunk(self, cell: int) -> Trunk | None:
        """The trunk to a cell; None if it does not run, or cannot be reached."""
        place = self.place
        machine = place.machine_of(cell).name if place.machines else ""
        of, making = self._trunk_to.get(cell, ("", None))
        is_over = making is not None and making.done() and _is_lost(making.result())
        if making is None or is_over or of != machine:
            making = self._loop.create_task(self._made_trunk(cell), name=f"trunk to cell {cell}")
            self._trunk_to[cell] = machine, making
        return await asyncio.shield(making)

    async def _made_trunk(self, cell: int) -> Trunk | None:
        try:
            link = connect(self.place.run, join_name(cell), socket.SOCK_STREAM)
        except OSError:
            return None
        try:
            _, trunk = await self._loop.create_unix_connection(
                lambda: Trunk(self._loop, self._trunks), sock=link
            )
        except OSError:
            link.close()
            return None
        return trunk

    # -- from other cells --

    def _accept_joining(self) -> None:
        assert self._joining is not None
        for _ in range(_PER_TURN):
            try:
                link, _ = self._joining.accept()
            except OSError:
                return
            link.setblocking(False)
            self._start(lambda: Trunk(self._loop, self._trunks, self._open), link)

    def _open(self, trunk: Trunk, number: int, data: bytes) -> None:
        """Serve a client whose connection another cell relays."""
        try:
            told = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            trunk.abort()
            return
        assert self._listeners is not None
        make_link = self._listeners.link_maker(told.listener, told.origin)
        if make_link is None or self._is_parting:
            trunk.refuse(number)
            return
        served = Served(trunk, number)
        trunk.accept(number, served)
        trunk.guarded(served, lambda: served.begin(make_link()))

    def _receive(self) -> None:
        passed = self.control.passed
        assert passed is not None
        for _ in range(_PER_TURN):
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    passed, _MOST_BYTES, 2, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            if not descriptors:  # this process has no more of them
                _log.error("cell.connection_lost", reason="no file descriptor is left")
                continue
            link = socket.socket(fileno=descriptors[0])
            link.setblocking(False)
            told = _DECODER.decode(data)
            origin = told.origin
            if len(descriptors) > 1:
                origin = replace(origin, first=_from_memory(descriptors[1]))
            self._take(told.listener, link, origin)

    def _take(self, listener: str, link: socket.socket, origin: Origin) -> None:
        """Serve a connection. Most storms of connects go through here: no coroutine but the loop's own."""
        assert self._listeners is not None
        make_link = self._listeners.link_maker(listener, origin)
        if make_link is None or self._is_parting:
            link.close()
            return
        self._start(make_link, link)

    def _start(self, make_protocol: Callable[[], asyncio.Protocol], link: socket.socket) -> None:
        task = self._loop.create_task(self._loop.connect_accepted_socket(make_protocol, link))
        self._taking.add(task)
        task.add_done_callback(self._taken)

    def _taken(self, task: asyncio.Task[Any]) -> None:
        self._taking.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, OSError):  # with OSError the client has left
            self._loop.call_exception_handler(
                {"message": "a connection failed", "exception": error}
            )


class _Target:
    """Another cell, as connections are passed to it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, place: Place, number: int) -> None:
        self._loop = loop
        self._place = place
        self._number = number
        self._link: socket.socket | None = None
        self._sending: asyncio.Task[None] | None = None
        self.waiting: deque[_Waiting] = deque()

    def send(self, data: bytes, descriptors: list[int]) -> bool:
        """Send a connection, if there is room for it in the cell's queue."""
        try:
            if self._link is None:
                self._link = connect(self._place.run, pass_name(self._number), socket.SOCK_DGRAM)
            socket.send_fds(self._link, [data], descriptors)
        except BlockingIOError:
            return False
        except OSError:  # its socket is another now
            if self._link is not None:
                self._link.close()
                self._link = None
            return False
        return True

    async def pass_on(self, data: bytes, descriptors: list[int]) -> bool:
        """Send a connection behind those that wait; False if it is not taken in time, or too many wait."""
        if not self.waiting and self.send(data, descriptors):
            return True
        if len(self.waiting) >= _MOST_WAITING:
            return False
        waiting = _Waiting(data, descriptors, self._loop.create_future())
        self.waiting.append(waiting)
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send_waiting(), name="pass connections")
        try:
            async with asyncio.timeout(WAIT_S):
                return await waiting.is_taken
        except TimeoutError:
            _not_taking(self._number)
            return False

    async def _send_waiting(self) -> None:
        waiting = self.waiting
        while waiting:
            first = waiting[0]
            if first.is_taken.done():  # given up
                waiting.popleft()
            elif self.send(first.data, first.descriptors):
                first.is_taken.set_result(True)
                waiting.popleft()
            else:
                await self._room()

    async def _room(self) -> None:
        """Wait until the cell's queue may have room, or its socket may be there again."""
        link = self._link
        if link is None:
            await asyncio.sleep(_AGAIN_S)
            return
        has_room = asyncio.Event()
        self._loop.add_writer(link, has_room.set)
        try:
            async with asyncio.timeout(WAIT_S):
                await has_room.wait()
        except TimeoutError:  # those that wait have given up
            pass
        finally:
            self._loop.remove_writer(link)

    def close(self) -> None:
        """Pass no more."""
        if self._sending is not None:
            self._sending.cancel()
        if self._link is not None:
            self._link.close()


def _is_lost(trunk: Trunk | None) -> bool:
    return trunk is None or trunk.is_lost


def _not_taking(cell: int) -> None:
    _log.warning("cell.not_taking", cell=cell, effect="a client is refused with 0x88")


def _key(named: NamedListener) -> str:
    """What cells call the sockets of a listener: its address, where that names a port."""
    settings = named.settings
    return settings.bind if settings.port else f"{named.id} {settings.bind}"


def _in_memory(data: bytes) -> int:
    descriptor = os.memfd_create("connect", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor


def _from_memory(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()
