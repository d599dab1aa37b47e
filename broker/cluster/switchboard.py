"""The supervisor's end of the lines to its cells: holds the sockets that outlive a cell, and hands them out."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Final, Protocol

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
    Welcome,
    bind,
    pass_name,
)

_STANDARD_ERROR: Final = 2
_BACKLOG: Final = 128


class Told(Protocol):
    """Who hears what cells say."""

    def greeted(self, cell: int, pid: int) -> None:
        """A cell has made its line."""

    def is_ready(self, cell: int, ready: Ready) -> None:
        """A cell serves clients."""


class _Listening:
    """The listening sockets of one key, and the cells that use them or wait for them."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self.users: set[int] = set()
        self.binds: int | None = None
        """The cell that binds them now."""
        self.waiting: list[int] = []


class Switchboard:
    """The lines to the cells of one machine, and their sockets."""

    def __init__(self, run: Path, told: Told) -> None:
        self._run = run
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._cells: dict[Channel, int | None] = {}
        self._channels: dict[int, Channel] = {}
        self._passed: dict[int, socket.socket] = {}
        self._listening: dict[str, _Listening] = {}
        self._control = bind(run, CONTROL, socket.SOCK_SEQPACKET)
        self._control.listen(_BACKLOG)
        self._loop.add_reader(self._control, self._accept)

    def prepare(self, cell: int) -> None:
        """Make the pass socket of a cell, unless there is one: connections may come for it from now on."""
        if cell not in self._passed:
            self._passed[cell] = bind(self._run, pass_name(cell), socket.SOCK_DGRAM)

    def close(self) -> None:
        """End all lines, and close the sockets."""
        self._loop.remove_reader(self._control)
        self._control.close()
        (self._run / CONTROL).unlink(missing_ok=True)
        for channel in list(self._cells):
            self._lose(channel)
        for listening in self._listening.values():
            _close(listening.sockets)
        for cell, passed in self._passed.items():
            passed.close()
            (self._run / pass_name(cell)).unlink(missing_ok=True)

    def _accept(self) -> None:
        try:
            link, _ = self._control.accept()
        except OSError:
            return
        channel = Channel(link)
        self._cells[channel] = None
        self._loop.add_reader(link, self._hear, channel)

    def _hear(self, channel: Channel) -> None:
        try:
            heard = channel.from_cell()
        except BlockingIOError:
            return
        if heard is None:
            self._lose(channel)
            return
        message, descriptors = heard
        sockets = [socket.socket(fileno=number) for number in descriptors]
        if isinstance(message, Hello):
            self._greet(channel, message, sockets)
        elif (cell := self._cells[channel]) is not None:
            self._take(cell, message, sockets)

    def _lose(self, channel: Channel) -> None:
        self._loop.remove_reader(channel.link)
        channel.close()
        cell = self._cells.pop(channel)
        if cell is None or self._channels.get(cell) is not channel:
            return
        del self._channels[cell]
        for key, listening in list(self._listening.items()):
            listening.users.discard(cell)
            listening.waiting = [number for number in listening.waiting if number != cell]
            if listening.binds == cell:
                self._bound(key, listening, [])

    def _greet(self, channel: Channel, hello: Hello, sockets: list[socket.socket]) -> None:
        cell = hello.cell
        self._cells[channel] = cell
        self._channels[cell] = channel
        if hello.has_pass:
            _close([self._passed[cell]] if cell in self._passed else [])
            self._passed[cell] = sockets.pop(0)
        self.prepare(cell)
        for key, count in hello.held.items():
            listening = self._listening.setdefault(key, _Listening())
            listening.users.add(cell)
            brought = sockets[:count]
            del sockets[:count]
            if listening.sockets:
                _close(brought)
            else:
                listening.sockets = brought
        self._send(cell, Welcome(), [self._passed[cell].fileno(), _STANDARD_ERROR])
        self._told.greeted(cell, hello.pid)
        if hello.ready is not None:
            self._told.is_ready(cell, hello.ready)

    def _take(self, cell: int, message: FromCell, sockets: list[socket.socket]) -> None:
        match message:
            case Ready():
                self._told.is_ready(cell, message)
            case Ask(key):
                self._ask(cell, key, self._listening.setdefault(key, _Listening()))
            case Bound(key):
                listening = self._listening.setdefault(key, _Listening())
                if sockets:
                    listening.users.add(cell)
                self._bound(key, listening, sockets)
            case Release(key):
                if (used := self._listening.get(key)) is not None:
                    used.users.discard(cell)
                    self._drop_unused(key, used)

    def _ask(self, cell: int, key: str, listening: _Listening) -> None:
        if listening.sockets:
            listening.users.add(cell)
            self._send(cell, Sockets(key), [sock.fileno() for sock in listening.sockets])
        elif listening.binds is None:
            listening.binds = cell
            self._send(cell, Bind(key))
        else:
            listening.waiting.append(cell)

    def _bound(self, key: str, listening: _Listening, sockets: list[socket.socket]) -> None:
        """A cell has bound the sockets, or could not: those that wait get them, or the next one tries."""
        listening.binds = None
        listening.sockets = sockets
        waiting = listening.waiting
        listening.waiting = []
        for cell in waiting:
            self._ask(cell, key, listening)
        self._drop_unused(key, listening)

    def _drop_unused(self, key: str, listening: _Listening) -> None:
        if listening.users or listening.waiting or listening.binds is not None:
            return
        _close(listening.sockets)
        self._listening.pop(key, None)

    def _send(self, cell: int, message: ToCell, descriptors: list[int] | None = None) -> None:
        channel = self._channels.get(cell)
        if channel is None:
            return
        try:
            channel.send(message, descriptors or ())
        except OSError:
            self._lose(channel)


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()
