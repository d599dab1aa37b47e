"""Carries the sockets of cells between machines: a process of its own, on each machine of a cluster.

Cells meet at unix sockets in the run directory. For the cells of other machines the sockets are this process's: what
connects there goes on over mutual TLS to the process of that machine, which connects to the cell's own socket. So
links, calls and relayed clients are the same within a machine and across. A connection of TLS is one of a socket.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final
from uuid import uuid4

import msgspec

from broker.cluster.carry import READ_BYTES, carry
from broker.cluster.certificates import Certificates
from broker.cluster.channel import bind, connect
from broker.cluster.neighbour import Neighbour
from broker.cluster.owners import owners_in
from broker.core.cells import LEAVES, Machine
from broker.core.relayed import FRONT_SOCKET
from broker.observe.log import get_logger, mark_lines, setup

_log = get_logger(__name__)

# Sockets of a cell: of links, of calls, of trunks for relayed clients, and of copies of its store. The first
# cell has one of the API.
_SOCKETS: Final = ("link-{}.sock", "api-{}.sock", "join-{}.sock", "copy-{}.sock")
# Longest greeting, and time limits in seconds for one, and for a connection to be made.
_MOST_BYTES: Final = 4096
_GREETING_S: Final = 5.0
_CONNECT_S: Final = 3.0
# Seconds between questions whether a machine is there, and of silence after which it is away.
_WATCH_S: Final = 1.0
_SILENT_S: Final = 5.0
# Seconds between looks at the files of the certificates.
_REFRESH_S: Final = 10.0
# In place of the name of a socket: the connection of these questions.
_WATCH: Final = "watch"
# Sockets of a machine: of the copies that it keeps, and of its keeper.
_OF_MACHINE: Final = ("copies-{}.sock", "keeper-{}.sock")
# Seconds between looks at the machines of cells.
_OWNERS_S: Final = 0.2
_LINE: Final = b"\n"
_BEGINS: Final = "connections of before have ended; it begins again"
_NOT_RUNNING: Final = "the cell does not run"
# Connections from one machine that have not greeted; more are cut off.
_MOST_GREETING: Final = 256
_BACKLOG: Final = 1024

_Name = Annotated[str, msgspec.Meta(max_length=64)]


class _Refused(Exception):
    """The other machine has answered with a reason."""


_GONE: Final = (
    OSError,
    EOFError,
    TimeoutError,
    asyncio.LimitOverrunError,
    msgspec.MsgspecError,
    _Refused,
)


class Greeting(msgspec.Struct, frozen=True):
    """First line of a connection, from the machine that opens it: who it is, and the socket that it wants."""

    cluster: _Name
    """Digest of the cluster (``ClusterSettings.digest``)."""
    machine: _Name
    socket: _Name
    life: _Name
    """The life in which it is towards the other machine (``broker.cluster.neighbour``)."""
    ended: _Name
    """The last life of the other machine that it has ended; empty for none."""


class Welcome(msgspec.Struct, frozen=True):
    """First line of the answer; what the socket sends follows where ``refused`` is empty."""

    refused: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    life: _Name = ""
    ended: _Name = ""
    """These as in ``Greeting``, of the machine that answers."""


class Told(msgspec.Struct, frozen=True):
    """Arguments of the process."""

    run: str
    cluster: str
    machine: str
    machines: list[Machine]
    certfile: str
    keyfile: str
    cacertfile: str
    moves: bool = False
    """True where cells may be taken over by other machines."""


class Tunnel:
    """The sockets of the cells of other machines here, and the way of other machines to the cells here."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._run = Path(told.run)
        self._own = next(machine for machine in told.machines if machine.name == told.machine)
        incarnation = uuid4().hex
        self._others = {
            machine.name: Neighbour(machine, incarnation)
            for machine in told.machines
            if machine is not self._own
        }
        self._owners: Sequence[int] | None = owners_in(self._run) if told.moves else None
        self._servers_of: dict[int, dict[str, tuple[asyncio.Server, int]]] = {}
        """Those of cells that run on other machines, by the names of their sockets, with the inode of each."""
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._greeting = 0
        self._said: dict[str, str] = {}
        """What was logged last of each machine, so that it is not logged again and again."""
        files = (told.certfile, told.keyfile, told.cacertfile)
        self._outgoing = Certificates(*files)
        self._incoming = Certificates(*files, is_server=True)

    async def start(self) -> None:
        """Take connections of both sides.

        Raises:
            OSError: the address is taken, or is none of this machine; or a certificate cannot be read.
        """
        self._servers.append(
            await asyncio.start_server(
                self._taking(self._from_machine), self._own.host, self._own.port,
                ssl=self._incoming.of_listener(), limit=READ_BYTES, backlog=_BACKLOG, ssl_handshake_timeout=_CONNECT_S,
            )
        )  # fmt: skip
        for other in self._others.values():
            for name in _OF_MACHINE:
                self._servers.append(await self._serve(name.format(other.machine.name), other))
            watching = asyncio.create_task(self._watch(other), name=f"watch {other.machine.name}")
            self._tasks.add(watching)
        self._tasks.add(asyncio.create_task(self._refresh(), name="refresh of certificates"))
        await self._follow_owners()
        if self._owners is not None:
            self._tasks.add(asyncio.create_task(self._keep_following(), name="owners of cells"))

    async def _serve(self, name: str, other: Neighbour | int) -> asyncio.Server:
        """Carry what connects to a socket to that of another machine, or to that of the machine of a cell."""
        listening = bind(self._run, name, _STREAM)
        listening.listen(_BACKLOG)
        handler = self._taking(self._to_machine, other, name)
        return await asyncio.start_unix_server(handler, sock=listening)

    def _machine_of(self, cell: int) -> Machine:
        """The machine that runs a cell."""
        machines = self._told.machines
        if self._owners is None:
            return next(machine for machine in machines if cell in machine.cells)
        return machines[self._owners[cell] & ~LEAVES]

    async def _follow_owners(self) -> None:
        """Have the sockets of all cells that run elsewhere, and of no other."""
        for cell in range(sum(machine.size for machine in self._told.machines)):
            is_here = self._machine_of(cell).name == self._told.machine
            servers = self._servers_of.setdefault(cell, {})
            for name in _names_of(cell):
                inode = _inode(self._run / name)
                if name in servers and (is_here or servers[name][1] != inode):
                    # a process that ran the cell here has bound it since, and may have ended
                    servers.pop(name)[0].close()
                if not is_here and name not in servers:
                    server = await self._serve(name, cell)
                    servers[name] = server, _inode(self._run / name)

    async def _keep_following(self) -> None:
        while True:
            await asyncio.sleep(_OWNERS_S)
            try:
                await self._follow_owners()
            except OSError as error:  # the next look tries again
                _log.error("tunnel.socket_not_made", reason=str(error))

    async def stop(self) -> None:
        """End all connections."""
        self._is_over = True
        of_cells = (one for named in self._servers_of.values() for one, _ in named.values())
        for server in (*self._servers, *of_cells):
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _refresh(self) -> None:
        """Load certificates that have changed, so that the log says soon if they cannot be used."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            self._incoming.context()

    def _taking(self, handle: Any, *arguments: Any) -> Any:
        def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if self._is_over:  # its handshake ended after the tunnel
                writer.transport.abort()
                return
            task = asyncio.create_task(self._run_one(handle, *arguments, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # also of a task that was cancelled before it began
            task.add_done_callback(lambda _: writer.transport.abort())

        return taken

    @staticmethod
    async def _run_one(handle: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        with suppress(*_GONE):
            await handle(*arguments)

    # -- to other machines --

    async def _watch(self, other: Neighbour) -> None:
        """Ask a machine once a second whether it is there. Where it is not, every connection with it ends: a network
        that fails shows only where something is to be sent."""
        while True:
            life = ""
            try:
                reader, writer, life = await self._reach(other, _WATCH)
                try:
                    self._say(other, "")
                    other.is_reached = True
                    while True:
                        writer.write(_LINE)
                        async with asyncio.timeout(_SILENT_S):
                            await reader.readexactly(1)
                        await _until_over(reader, _WATCH_S)
                finally:
                    writer.transport.abort()
            except _GONE as error:
                self._say(other, _why(error))
            other.is_reached = False
            if life:
                other.lost(life)
            await asyncio.sleep(_WATCH_S)

    async def _to_machine(
        self,
        to: Neighbour | int,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """Carry a connection of a cell here to the socket of one there."""
        other = self._others.get(self._machine_of(to).name) if isinstance(to, int) else to
        if other is None or not other.is_reached:
            return
        far_reader, far_writer, life = await self._reach(other, name)
        await self._carry(other, life, reader, writer, far_reader, far_writer)

    async def _reach(
        self, other: Neighbour, name: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        """A connection to a socket of a machine, and that one's life. Raises an error of ``_GONE``."""
        machine = other.machine
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(
                machine.host, machine.port, ssl=self._outgoing.context(),
                server_hostname=machine.name, limit=READ_BYTES,
            )  # fmt: skip
        try:
            own = self._told
            greeting = Greeting(own.cluster, own.machine, name, other.life, other.ended)
            writer.write(msgspec.json.encode(greeting) + _LINE)
            async with asyncio.timeout(_GREETING_S):
                welcome = _WELCOME.decode(await reader.readuntil(_LINE))
            other.told(welcome.ended)
            if welcome.refused:
                raise _Refused(welcome.refused)
            if greeting.life != other.life or welcome.life == other.ended:
                raise _Refused(_BEGINS)
            other.met(welcome.life)
        except BaseException:
            writer.transport.abort()
            raise
        return reader, writer, welcome.life

    async def _carry(
        self,
        other: Neighbour,
        life: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        far_reader: asyncio.StreamReader,
        far_writer: asyncio.StreamWriter,
    ) -> None:
        connection = far_writer.transport
        other.add(connection, life)
        try:
            await carry(reader, writer, far_reader, far_writer)
        finally:
            other.remove(connection)
            connection.abort()

    def _say(self, other: Neighbour, problem: str) -> None:
        """Log that a machine cannot be reached, or can again, once each."""
        machine = other.machine.name
        before = self._said.get(machine, "")
        self._said[machine] = problem
        if problem == before:
            return
        if problem:
            _log.warning("machine.away", machine=machine, reason=problem)
        else:
            _log.info("machine.reached", machine=machine)

    # -- from other machines --

    async def _from_machine(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry a connection of another machine to the socket of a cell here."""
        if self._greeting >= _MOST_GREETING:
            return
        self._greeting += 1
        try:
            async with asyncio.timeout(_GREETING_S):
                line = await reader.readuntil(_LINE)
        finally:
            self._greeting -= 1
        if len(line) > _MOST_BYTES:
            return
        try:
            greeting = _GREETING.decode(line)
        except msgspec.MsgspecError:
            return
        refused = self._problem_of(greeting, writer.get_extra_info("peercert") or {})
        other = self._others.get(greeting.machine)
        if refused or other is None:
            _log.warning("machine.refused", machine=greeting.machine, reason=refused)
            await self._end(writer, Welcome(refused))
            return
        other.told(greeting.ended)
        if greeting.life == other.ended:
            await self._end(writer, Welcome(_BEGINS, other.life, other.ended))
            return
        welcome = msgspec.json.encode(Welcome("", other.life, other.ended)) + _LINE
        if greeting.socket == _WATCH:
            other.met(greeting.life)
            writer.write(welcome)
            try:
                await _answer(reader, writer)
            except TimeoutError:
                other.lost(greeting.life)
            return
        try:
            link = connect(self._run, greeting.socket, _STREAM)
        except OSError:
            await self._end(writer, Welcome(_NOT_RUNNING, other.life, other.ended))
            return
        near_reader, near_writer = await asyncio.open_unix_connection(sock=link, limit=READ_BYTES)
        try:
            writer.write(welcome)
            await self._carry(other, greeting.life, near_reader, near_writer, reader, writer)
        finally:
            near_writer.transport.abort()

    @staticmethod
    async def _end(writer: asyncio.StreamWriter, welcome: Welcome) -> None:
        writer.write(msgspec.json.encode(welcome) + _LINE)
        async with asyncio.timeout(_GREETING_S):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    def _problem_of(self, greeting: Greeting, certificate: Any) -> str:
        """Why a machine may not connect; empty where it may."""
        names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
        if greeting.machine not in names:
            return f"its certificate is for {', '.join(names) or 'no name'}, and not for {greeting.machine!r}"
        if greeting.machine not in self._others:
            return f"{greeting.machine!r} is no other machine of this cluster"
        if greeting.cluster != self._told.cluster:
            return "it has another name of the cluster, or other machines or cells in it"
        if greeting.socket != _WATCH and not self._is_name(greeting.socket):
            return f"{greeting.socket!r} is no socket of a cell here"
        return ""

    def _is_name(self, name: str) -> bool:
        """True if another machine may connect to a socket of that name."""
        cells = range(sum(machine.size for machine in self._told.machines))
        return any(name == one.format(self._own.name) for one in _OF_MACHINE) or any(
            name in _names_of(cell) for cell in cells
        )


_STREAM: Final = socket.SOCK_STREAM
_GREETING: Final = msgspec.json.Decoder(Greeting)
_WELCOME: Final = msgspec.json.Decoder(Welcome)


async def _until_over(reader: asyncio.StreamReader, within_s: float) -> None:
    """Wait, unless the connection ends. Raises ``EOFError``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await reader.read(1)
            raise EOFError


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each question whether this machine is there. Raises ``TimeoutError`` where none comes."""
    while True:
        async with asyncio.timeout(_WATCH_S + _SILENT_S):
            data = await reader.read(_MOST_BYTES)
        if not data:
            return
        writer.write(data)


def _inode(path: Path) -> int:
    """Inode of a file; 0 where there is none."""
    try:
        return path.stat().st_ino
    except OSError:
        return 0


@cache
def _names_of(cell: int) -> list[str]:
    """Names of the sockets of a cell."""
    names = [name.format(cell) for name in _SOCKETS]
    return names if cell else [*names, FRONT_SOCKET]


def _why(error: Exception) -> str:
    """Why a machine was not reached, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, TimeoutError):
        return f"no answer in {_CONNECT_S:g} s"
    if isinstance(error, EOFError | msgspec.MsgspecError | asyncio.LimitOverrunError):
        return "it ended the connection, or is no machine of a cluster"
    return (
        os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    ).lower()


async def _serve(told: Told) -> None:
    tunnel = Tunnel(told)
    await tunnel.start()
    print("ready", flush=True)
    # ends with the supervisor, which holds the other end of standard input
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    await tunnel.stop()


def main() -> int:
    """Carry until standard input ends; the exit status."""
    told = msgspec.json.decode(sys.argv[1], type=Told)
    setup("info", "text")
    mark_lines(cell="tunnel")
    import uvloop

    try:
        uvloop.run(_serve(told))
    except OSError as error:
        print(json.dumps(str(error)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
