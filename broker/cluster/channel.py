"""Messages between the supervisor and its cells, with descriptors, over a unix socket in the run directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

CONTROL: Final = "control.sock"
_MOST_BYTES: Final = 64 * 1024
_MOST_DESCRIPTORS: Final = 250


class Hello(msgspec.Struct, tag=True):
    """From a cell: who it is, and what it holds, where it has had another supervisor before. With its pass socket,
    and its listening sockets: ``held`` has the number of them by key."""

    cell: int
    pid: int
    has_pass: bool = False
    held: dict[str, int] = {}
    ready: Ready | None = None


class Ready(msgspec.Struct, tag=True):
    """From a cell: it serves clients. The addresses of its first listener and of its API."""

    mqtt: str
    api: str


class Ask(msgspec.Struct, tag=True):
    """From a cell: the listening sockets of this key."""

    key: str


class Bound(msgspec.Struct, tag=True):
    """From a cell that was told to bind them: the sockets, none if it could not."""

    key: str


class Release(msgspec.Struct, tag=True):
    """From a cell: it accepts no more from the sockets of this key."""

    key: str


class Welcome(msgspec.Struct, tag=True):
    """To a cell: it is known now. With its pass socket, and the standard error to write to."""


class Sockets(msgspec.Struct, tag=True):
    """To a cell: the listening sockets it asked for."""

    key: str


class Bind(msgspec.Struct, tag=True):
    """To a cell: it is the first to ask for this key, and has to bind."""

    key: str


FromCell = Hello | Ready | Ask | Bound | Release
ToCell = Welcome | Sockets | Bind
_FROM_CELL: Final = msgspec.json.Decoder(FromCell)
_TO_CELL: Final = msgspec.json.Decoder(ToCell)


class Channel:
    """One end of the connection between the supervisor and a cell. Never blocks."""

    def __init__(self, link: socket.socket) -> None:
        link.setblocking(False)
        self.link = link

    def send(self, message: FromCell | ToCell, descriptors: Sequence[int] = ()) -> None:
        """Send a message with copies of descriptors.

        Raises:
            OSError: the other end is gone, or does not read.
        """
        socket.send_fds(self.link, [msgspec.json.encode(message)], list(descriptors))

    def from_cell(self) -> tuple[FromCell, list[int]] | None:
        """The next message of a cell; None at the end."""
        data, descriptors = self._receive()
        return (_FROM_CELL.decode(data), descriptors) if data else None

    def to_cell(self) -> tuple[ToCell, list[int]] | None:
        """The next message of the supervisor; None at the end."""
        data, descriptors = self._receive()
        return (_TO_CELL.decode(data), descriptors) if data else None

    def _receive(self) -> tuple[bytes, list[int]]:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self.link, _MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionError:
            return b"", []
        return data, descriptors

    def close(self) -> None:
        """End the connection."""
        self.link.close()


@contextmanager
def short_path(directory: Path, name: str) -> Iterator[str]:
    """A path of a socket in a directory that fits into its address, however long that of the directory is."""
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def connect(directory: Path, name: str, kind: int) -> socket.socket:
    """A socket that is connected to one in a directory, and does not block.

    Raises:
        OSError: no process has that socket.
    """
    link = socket.socket(socket.AF_UNIX, kind)
    link.setblocking(False)
    try:
        with short_path(directory, name) as path:
            link.connect(path)
    except OSError:
        link.close()
        raise
    return link


def bind(directory: Path, name: str, kind: int) -> socket.socket:
    """A socket bound in a directory, in place of one that is there. Its owner alone may connect."""
    link = socket.socket(socket.AF_UNIX, kind)
    link.setblocking(False)
    (directory / name).unlink(missing_ok=True)
    with short_path(directory, name) as path:
        link.bind(path)
    (directory / name).chmod(0o600)
    return link


def pass_name(cell: int) -> str:
    """Name of the socket at which a cell gets connections of its clients."""
    return f"pass-{cell}.sock"


def join_name(cell: int) -> str:
    """Name of the socket to which other cells have trunks (``broker.cluster.relay``)."""
    return f"join-{cell}.sock"
