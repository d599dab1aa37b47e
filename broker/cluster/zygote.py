"""The zygote: a process that has imported all that cells need, and of which they are forks, as is the keeper.

So a cell that died is there again in a moment, and processes share the memory of their code. The zygote runs one thread
and no loop, opens nothing, and is the supervisor's child; it ends when the line to it does. The supervisor is the
parent of the forks too, so it hears how they end.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import subprocess
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any, Final

from broker.core.process import environment
from broker.observe.log import get_logger

_log = get_logger(__name__)

ZYGOTE: Final = "zygote"
"""Member ``cell`` of the arguments of the zygote; those of a fork say what it is."""
_NO_FORK: Final = f'"cell": "{ZYGOTE}",'.encode()
_MAX_REQUEST: Final = 1 << 17
_PR_SET_CHILD_SUBREAPER: Final = 36
# Start and end of the arguments in memory, in /proc/self/stat behind the name.
_ARGUMENTS: Final = slice(45, 47)
_PID: Final = Struct("!I")


class Zygote:
    """The supervisor's end. The first request starts the process, as does the first one after it has ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._loop: AbstractEventLoop | None = None
        self._asked: deque[Callable[[int | None], None]] = deque()

    @property
    def pid(self) -> int | None:
        """Number of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def listen(self, loop: AbstractEventLoop) -> None:
        """Hear of forks on a loop from now on."""
        self._loop = loop
        if self._line is not None:
            self._line.setblocking(False)
            loop.add_reader(self._line, self._hear)

    def fork(
        self,
        request: Mapping[str, Any],
        on_forked: Callable[[int | None], None],
        descriptors: Sequence[int] = (),
    ) -> None:
        """Ask for a process, which gets ``request``, and as standard input and output ``descriptors``. Its number is
        given to ``on_forked``, or None if there will be none."""
        try:
            line = self._line or self._start()
        except OSError as error:
            _log.error("zygote.not_started", reason=str(error))
            self._refuse(on_forked)
            return
        self._asked.append(on_forked)
        try:
            socket.send_fds(line, [json.dumps(request).encode()], descriptors)
        except BlockingIOError:  # it does not read its requests
            self._refuse(self._asked.pop())
        except OSError:  # it has ended, which is heard next
            pass

    def _refuse(self, on_forked: Callable[[int | None], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon(on_forked, None)

    def run(self, request: Mapping[str, Any]) -> tuple[int, bytes]:
        """Exit status and output of a process, once it has ended. Not after ``listen``.

        Raises:
            ChildProcessError: the zygote has ended, or cannot be started.
        """
        try:
            line = self._line or self._start()
        except OSError as error:
            raise ChildProcessError(f"the zygote cannot be started: {error}") from error
        output, theirs = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        with open(output, "rb") as file:
            self.fork(request, lambda _: None, (null, theirs))
            os.close(null)
            os.close(theirs)
            self._asked.popleft()
            heard = b""
            with suppress(ConnectionError):
                heard = line.recv(_PID.size)
            if not heard:
                raise ChildProcessError("the zygote has ended")
            written = file.read()
        return os.waitstatus_to_exitcode(os.waitpid(_PID.unpack(heard)[0], 0)[1]), written

    def _start(self) -> socket.socket:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    list(self._command),
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment(),
                    start_new_session=True,  # Ctrl-C is for the supervisor
                )
            except BaseException:
                line.close()
                raise
        self._line = line
        if self._loop is not None:
            self.listen(self._loop)
        return line

    def _hear(self) -> None:
        assert self._line is not None
        try:
            heard = self._line.recv(_PID.size)
        except BlockingIOError:
            return
        except ConnectionError:
            heard = b""
        if heard:
            self._asked.popleft()(*_PID.unpack(heard))
        else:
            self.close()
            _log.error("zygote.ended", requests=len(self._asked))
            asked, self._asked = self._asked, deque()
            for on_forked in asked:
                on_forked(None)

    def close(self) -> None:
        """End the process, which has forked what it was asked for."""
        line, process = self._line, self._process
        self._line = self._process = None
        if line is not None:
            if self._loop is not None:
                self._loop.remove_reader(line)
            line.close()
        if process is not None:
            process.kill()
            process.wait()


def serve_forks() -> Mapping[str, Any] | None:
    """Fork a process for each request of the supervisor. Returns the request in each of these, and None in this
    process, at the end of the line or when it cannot fork."""
    gc.collect()
    gc.freeze()  # a collection in a fork then writes to no memory that is shared
    with socket.socket(fileno=os.dup(0)) as line:
        while True:
            asked, descriptors, _, _ = socket.recv_fds(line, _MAX_REQUEST, 2)
            if not asked:
                return None
            if between := os.fork():
                for descriptor in descriptors:
                    os.close(descriptor)
                if os.waitpid(between, 0)[1]:
                    return None
                continue
            # the parent of a process whose own one has ended is the supervisor
            os.setsid()
            if pid := os.fork():
                line.send(_PID.pack(pid))
                os._exit(0)
            break
    descriptors = descriptors or [os.open(os.devnull, os.O_RDONLY)]
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    request: Mapping[str, Any] = json.loads(asked)
    _rename(request["cell"])
    return request


def _rename(what: int | str) -> None:
    """Show what this process is among its arguments, as ``ps`` has them."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[_ARGUMENTS])
    arguments = ctypes.string_at(start, end - start)
    own = f'"cell": {json.dumps(what)},'.encode().ljust(len(_NO_FORK))
    ctypes.memmove(start, arguments.replace(_NO_FORK, own), end - start)
