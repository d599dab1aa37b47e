"""A cell's line to the supervisor: the sockets that outlive the cell come over it.

When the supervisor has died, the cell goes on, and gives the next one the sockets it holds.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from errno import EHOSTDOWN
from typing import Final

from broker.cluster.channel import (
    CONTROL,
    Ask,
    Bind,
    Bound,
    Channel,
    FromCell,
    Hello,
    Ready,
    Release,
    Sockets,
    ToCell,
    connect,
)
from broker.core.cells import Place
from broker.core.errors import Unavailable
from broker.observe.log import get_logger

_log = get_logger(__name__)

_AGAIN_S: Final = 0.2
_ANSWER_S: Final = 30.0
_STANDARD_ERROR: Final = 2

MakeSockets = Callable[[], Awaitable[list[socket.socket]]]


class Control:
    """The line to the supervisor, which is made again when it was lost."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._channel: Channel | None = None
        self._held: dict[str, list[socket.socket]] = {}
        self._asked: dict[str, asyncio.Future[list[socket.socket] | None]] = {}
        self._ready: Ready | None = None
        self.passed: socket.socket | None = None
        """The socket at which this cell gets connections of its clients."""
        self._welcomed = asyncio.Event()
        self._lost = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Be known to the supervisor.

        Raises:
            Unavailable: there is none.
        """
        self._keeping = asyncio.create_task(self._keep(), name="line to the supervisor")
        await self._connected()

    def stop(self) -> None:
        """End the line."""
        if self._keeping is not None:
            self._keeping.cancel()
        self._lose()
        for held in self._held.values():
            for listening in held:
                listening.close()
        if self.passed is not None:
            self.passed.close()

    async def sockets(self, key: str, make: MakeSockets) -> list[socket.socket]:
        """The listening sockets of a key, which all cells share; ``make`` is called in the cell that asks first.

        Raises:
            OSError: they cannot be made, or the supervisor is away.
        """
        await self._connected()
        answer = self._asked[key] = asyncio.get_running_loop().create_future()
        try:
            self._send(Ask(key))
            async with asyncio.timeout(_ANSWER_S):
                sockets = await answer
        except TimeoutError as error:
            raise OSError(EHOSTDOWN, "the supervisor of the cells does not answer") from error
        finally:
            self._asked.pop(key, None)
        if sockets is None:
            try:
                sockets = await make()
            except OSError:
                self._send(Bound(key))
                raise
            self._send(Bound(key), [listening.fileno() for listening in sockets])
        self._held[key] = sockets
        return [listening.dup() for listening in sockets]

    def release(self, key: str) -> None:
        """Accept no more from the sockets of a key."""
        for listening in self._held.pop(key, ()):
            listening.close()
        self._send(Release(key))

    def ready(self, mqtt: str, api: str) -> None:
        """Say that this cell serves clients."""
        self._ready = Ready(mqtt, api)
        self._send(self._ready)

    async def _connected(self) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._welcomed.wait()
        except TimeoutError as error:
            raise Unavailable("the supervisor of the cells does not answer") from error

    async def _keep(self) -> None:
        """Connect whenever there is no line."""
        while True:
            try:
                self._connect()
            except OSError:
                await asyncio.sleep(_AGAIN_S)
            else:
                self._lost.clear()
                await self._lost.wait()

    def _connect(self) -> None:
        channel = Channel(connect(self._place.run, CONTROL, socket.SOCK_SEQPACKET))
        held = [listening for sockets in self._held.values() for listening in sockets]
        if self.passed is not None:
            held.insert(0, self.passed)
        hello = Hello(
            self._place.number,
            os.getpid(),
            self.passed is not None,
            {key: len(sockets) for key, sockets in self._held.items()},
            self._ready,
        )
        try:
            channel.send(hello, [sock.fileno() for sock in held])
        except OSError:
            channel.close()
            raise
        self._channel = channel
        asyncio.get_running_loop().add_reader(channel.link, self._hear)

    def _hear(self) -> None:
        assert self._channel is not None
        try:
            told = self._channel.to_cell()
        except BlockingIOError:
            return
        if told is None:
            _log.warning("cell.supervisor_lost", effect="clients are served as before")
            self._lose()
        else:
            self._take(*told)

    def _take(self, message: ToCell, descriptors: list[int]) -> None:
        match message:
            case Sockets(key):
                self._answer(key, [socket.socket(fileno=number) for number in descriptors])
            case Bind(key):
                self._answer(key, None)
            case _:
                passed, errors = descriptors
                if self.passed is None:
                    self.passed = socket.socket(fileno=passed)
                    self.passed.setblocking(False)
                else:
                    os.close(passed)
                os.dup2(errors, _STANDARD_ERROR)
                os.close(errors)
                self._welcomed.set()
                for key in list(self._asked):  # on a line that was lost before the answer
                    self._send(Ask(key))

    def _answer(self, key: str, sockets: list[socket.socket] | None) -> None:
        asked = self._asked.get(key)
        if asked is not None and not asked.done():
            asked.set_result(sockets)
            return
        for listening in sockets or ():
            listening.close()
        self._send(Release(key) if sockets else Bound(key))

    def _send(self, message: FromCell, descriptors: list[int] | None = None) -> None:
        if self._channel is None:
            return
        try:
            self._channel.send(message, descriptors or ())
        except OSError:
            self._lose()

    def _lose(self) -> None:
        channel = self._channel
        self._channel = None
        self._welcomed.clear()
        self._lost.set()
        if channel is not None:
            asyncio.get_running_loop().remove_reader(channel.link)
            channel.close()
