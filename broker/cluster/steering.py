"""Brings each connection to the cell that has its client: sockets go from cell to cell, each with its origin.

A cell that restarts finds the connections that came meanwhile in the queue of its socket. What the queue does not take
waits at the sender, for a while.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from broker.cluster.channel import connect, pass_name
from broker.cluster.control import Control
from broker.core.cells import Place
from broker.net.accept import listening_sockets, set_options
from broker.net.gateway import Gateway
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
# Bytes read from a connection that go in the message itself; more go in a file of memory.
_MOST_INLINE: Final = 32 * 1024
_MOST_BYTES: Final = 64 * 1024
_PER_TURN: Final = 64
_STOP_POLL_S: Final = 0.02


class _Passed(msgspec.Struct, array_like=True):
    """A connection, as cells tell each other of it."""

    listener: str
    origin: Origin


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
        self.gateways: set[Gateway] = set()
        self._loop = asyncio.get_running_loop()
        self._targets = {number: _Target(self._loop, place, number) for number in place.others}
        self._listeners: Listeners | None = None
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

    async def stop(self, deadline_s: float) -> None:
        """Take no more connections; return once those that are relayed have ended, or after ``deadline_s``."""
        if self._listeners is not None and self.control.passed is not None:
            self._loop.remove_reader(self.control.passed)
        ends_at = self._loop.time() + deadline_s
        while self.gateways and self._loop.time() < ends_at:  # noqa: ASYNC110  only while stopping
            await asyncio.sleep(_STOP_POLL_S)
        for gateway in list(self.gateways):
            gateway.abort()
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
        target = self._targets[self.place.cell_of(client_id)]
        if target.waiting or len(origin.first) > _MOST_INLINE:
            return False
        return target.send(_ENCODER.encode(_Passed(listener, origin)), [link.fileno()])

    async def pass_on(
        self, client_id: str, listener: str, link: socket.socket, origin: Origin
    ) -> bool:
        """Pass a connection as soon as the cell takes it; False if it does not in time, or too many wait."""
        target = self._targets[self.place.cell_of(client_id)]
        descriptors = [link.fileno()]
        if len(origin.first) > _MOST_INLINE:
            descriptors.append(_in_memory(origin.first))
            origin = replace(origin, first=b"")
        try:
            return await target.pass_on(_ENCODER.encode(_Passed(listener, origin)), descriptors)
        finally:
            for descriptor in descriptors[1:]:
                os.close(descriptor)

    # -- from other cells --

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
        if make_link is None:
            link.close()
            return
        task = self._loop.create_task(self._loop.connect_accepted_socket(make_link, link))
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
            _log.warning(
                "cell.not_taking", cell=self._number, effect="a client is refused with 0x88"
            )
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
