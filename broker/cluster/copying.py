"""A copy of a cell's store on its way to another machine, over sockets in the run directory that the tunnel carries.

An owner's process gives one at ``copy-CELL.sock``, and a machine those it keeps of others at ``copies-MACHINE.sock``.
The question is a line; so is the answer, with how far the copy has applied the commit log. The keys and values follow
where they are asked for, in pieces, and an empty piece ends them.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import Struct
from typing import IO, Final, Protocol

import msgspec

from broker.cluster.channel import connect
from broker.cluster.line_server import ASK_S, LINE, LineServer
from broker.core.errors import Unavailable
from broker.storage.rocksdb.store import DATABASE_FOLDER, copied

_LENGTH: Final = Struct(">I")
_PIECE_BYTES: Final = 1024 * 1024
# Largest piece that is taken: one value more than a piece may be.
_MOST_BYTES: Final = 256 * 1024 * 1024
_LINE_BYTES: Final = 4096
_SILENT_S: Final = 30.0


class Source(Protocol):
    """A store that can be copied."""

    def copy(self) -> Iterator[tuple[bytes, bytes]]:
        """All its keys and values, as of the call."""


class Asked(msgspec.Struct, frozen=True):
    """A question about the copy of a cell, or for it."""

    cell: int
    is_whole: bool = False


class CopyState(msgspec.Struct, frozen=True):
    """How far a copy is. ``problem``: why it does not follow, or why there is none."""

    position: int = 0
    epoch: int = 0
    problem: str = ""


def socket_of_copy(cell: int) -> str:
    """Name of the socket at which a cell's process gives copies of its store."""
    return f"copy-{cell}.sock"


def socket_of_copies(machine: str) -> str:
    """Name of the socket at which a machine gives its copies of the stores of other machines' cells."""
    return f"copies-{machine}.sock"


StateOf = Callable[[int], tuple[CopyState, Source | None]]


def server_of_copies(run: Path, name: str, state_of: StateOf) -> LineServer:
    """A server at one socket. ``state_of`` gives the state of a cell's copy, and the copy if it can be given away."""

    async def tell(line: bytes, writer: asyncio.StreamWriter) -> None:
        asked = _ASKED.decode(line)
        state, source = await asyncio.to_thread(state_of, asked.cell)
        writer.write(msgspec.json.encode(state) + LINE)
        await writer.drain()
        if asked.is_whole and source is not None:
            entries = await asyncio.to_thread(source.copy)
            while piece := await asyncio.to_thread(_piece_of, entries):
                writer.write(_LENGTH.pack(len(piece)) + piece)
                await writer.drain()
            writer.write(_LENGTH.pack(0))

    return LineServer(run, name, tell)


def _piece_of(entries: Iterator[tuple[bytes, bytes]]) -> bytes:
    """The next entries, as bytes; none at their end."""
    taken: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key, value in entries:
        taken.append((key, value))
        size_bytes += len(key) + len(value)
        if size_bytes >= _PIECE_BYTES:
            break
    return msgspec.msgpack.encode(taken) if taken else b""


def state_at(run: Path, name: str, cell: int) -> CopyState:
    """How far the copy of a cell is that a socket has. Blocks.

    Raises:
        Unavailable: it does not answer.
    """
    with _asked(run, name, Asked(cell)) as answer:
        return _state_in(answer)


def fetch(run: Path, name: str, cell: int, directory: Path, least: int = 0) -> CopyState:
    """Make the store of a directory a copy of the one that a socket gives, which is at position ``least`` or later.
    Blocks.

    Raises:
        Unavailable: it gives none, or not all of it; the store is as before.
    """
    with _asked(run, name, Asked(cell, is_whole=True)) as answer:
        state = _state_in(answer)
        if state.problem:
            raise Unavailable(f"cell {cell}: {state.problem}")
        if state.position < least:
            raise Unavailable(
                f"cell {cell}: the copy at {name} ends at {state.position}, and the log begins after {least}"
            )
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = directory / "part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            copied(part, _entries_in(answer))
            remove_store(directory)
            (part / DATABASE_FOLDER).rename(directory / DATABASE_FOLDER)
        except (OSError, ValueError) as error:
            raise Unavailable(f"cell {cell}: its copy did not arrive: {error}") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return state


def remove_store(directory: Path) -> None:
    """Remove the store of a directory, with what names its files."""
    (directory / "store.json").unlink(missing_ok=True)
    shutil.rmtree(directory / DATABASE_FOLDER, ignore_errors=True)


class _asked:
    """The answer to a question, as a file that is closed at the end of the block."""

    def __init__(self, run: Path, name: str, asked: Asked) -> None:
        self._run, self._name, self._asked = run, name, asked

    def __enter__(self) -> IO[bytes]:
        try:
            self._link = connect(self._run, self._name, socket.SOCK_STREAM)
            self._link.settimeout(_SILENT_S if self._asked.is_whole else ASK_S)
            self._link.sendall(msgspec.json.encode(self._asked) + LINE)
            self._file = self._link.makefile("rb")
        except OSError as error:
            raise Unavailable(
                f"cell {self._asked.cell}: no copy is given at {self._name}"
            ) from error
        return self._file

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._link.close()


def _state_in(answer: IO[bytes]) -> CopyState:
    try:
        return _STATE.decode(answer.readline(_LINE_BYTES))
    except (OSError, ValueError) as error:
        raise Unavailable("the copy's state did not arrive") from error


def _entries_in(answer: IO[bytes]) -> Iterator[tuple[bytes, bytes]]:
    while True:
        (length,) = _LENGTH.unpack(_exactly(answer, _LENGTH.size))
        if not length:
            return
        if length > _MOST_BYTES:
            raise ValueError("a piece is larger than any may be")
        yield from _PIECE.decode(_exactly(answer, length))


def _exactly(answer: IO[bytes], count: int) -> bytes:
    data = answer.read(count)
    if len(data) < count:
        raise ValueError("it ends early")
    return data


_ASKED: Final = msgspec.json.Decoder(Asked)
_STATE: Final = msgspec.json.Decoder(CopyState)
_PIECE: Final = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])
