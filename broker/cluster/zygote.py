"""The zygote: a process that has imported all that a cell needs, and of which cells are forks.

So a cell that died is there again in a moment, and cells share the memory of their code. The zygote runs one thread
and no loop, opens nothing, and is the supervisor's child; it ends when the line to it does. The supervisor is the
parent of the forks too, so it hears how they end.
"""

from __future__ import annotations

import ctypes
import gc
import os
import socket
import subprocess
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final

from broker.core.process import environment

# Member of the arguments of a process that is no cell yet.
_ANY_CELL: Final = b'"cell": "any",'
_PR_SET_CHILD_SUBREAPER: Final = 36
# Start and end of the arguments in memory, in /proc/self/stat behind the name.
_ARGUMENTS: Final = slice(45, 47)
_CELL: Final = Struct("!H")
_FORKED: Final = Struct("!HI")


class Zygote:
    """The supervisor's end. ``on_forked`` gets the number and process of a cell; ``on_lost`` is called when the
    zygote has ended."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        command: Sequence[str],
        on_forked: Callable[[int, int], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._on_forked = on_forked
        self._on_lost = on_lost
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                list(command), stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment()
            )
        loop.add_reader(self._line, self._hear)

    def fork(self, cell: int) -> None:
        """Ask for the process of a cell."""
        with suppress(OSError):  # it has ended, and on_lost follows
            self._line.send(_CELL.pack(cell))

    def _hear(self) -> None:
        try:
            heard = self._line.recv(_FORKED.size)
        except BlockingIOError:
            return
        except ConnectionError:
            heard = b""
        if heard:
            self._on_forked(*_FORKED.unpack(heard))
        else:
            self.close()
            self._on_lost()

    def close(self) -> None:
        """End the zygote, which has forked what it was asked for."""
        self._loop.remove_reader(self._line)
        self._line.close()
        self._process.kill()
        self._process.wait()


def fork_cells() -> int | None:
    """Fork a process for each cell that the supervisor asks for. Returns the number of the cell in each of these, and
    None in this process, at the end of the line or when it cannot fork."""
    gc.collect()
    gc.freeze()  # a collection in a cell then writes to no memory that is shared
    with socket.socket(fileno=os.dup(0)) as line:
        while asked := line.recv(_CELL.size):
            cell: int = _CELL.unpack(asked)[0]
            if between := os.fork():
                if os.waitpid(between, 0)[1]:
                    return None
                continue
            # the parent of a process whose own one has ended is the supervisor
            os.setsid()
            if pid := os.fork():
                line.send(_FORKED.pack(cell, pid))
                os._exit(0)
            break
        else:
            return None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    _rename(cell)
    return cell


def _rename(cell: int) -> None:
    """Show the number of the cell among the arguments of this process, as ``ps`` has them."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[_ARGUMENTS])
    arguments = ctypes.string_at(start, end - start)
    own = f'"cell": {cell},'.encode().ljust(len(_ANY_CELL))
    ctypes.memmove(start, arguments.replace(_ANY_CELL, own), end - start)
