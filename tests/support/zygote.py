"""A process that has imported what a broker needs, and of which the brokers of ``make test-full`` are forks.

``sluice serve`` takes three seconds on a slow processor until it is complete, nearly all of them imports. A fork runs
the same command line in its own process. ``make test`` covers starts with imports: its brokers are started as users
start them.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from struct import Struct
from tempfile import TemporaryDirectory
from typing import IO, Any, Final

_ROOT: Final = Path(__file__).parents[2]
_NUMBER: Final = Struct("!i")
"""A process identifier, and later its exit status, negative for a signal."""
_MAX_REQUEST: Final = 1 << 18
_CLONE_NEWNET: Final = 0x40000000
_FOR_INTERPRETERS: Final = ("PYTHON", "LD_", "MALLOC_")
"""Beginnings of variables that act when a program is loaded."""


def can_fork(environ: Mapping[str, str]) -> bool:
    """Whether a fork sees all of these variables as a program of its own would."""
    return all(
        environ.get(name) == os.environ.get(name)
        for name in environ
        if name.startswith(_FOR_INTERPRETERS)
    )


class Fork:
    """A command line of ``sluice`` in a process of its own; with the members of ``subprocess.Popen`` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        log: IO[bytes],
        network: str = "",
    ) -> None:
        """``arguments`` follow the name of the command; standard error goes to ``log``; ``network`` is the namespace
        that it is in, if that is another."""
        self.args = ["sluice", *arguments]
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, theirs_out = os.pipe()
        self.stdout = open(output, "rb")  # noqa: SIM115  closed by who reads it
        asked = {"arguments": list(arguments), "environ": dict(environ), "network": network}
        request = json.dumps(asked).encode()
        null = os.open(os.devnull, os.O_RDONLY)
        descriptors = [null, theirs_out, log.fileno(), theirs.fileno()]
        socket.send_fds(_zygote(), [request], descriptors)
        os.close(null)
        os.close(theirs_out)
        theirs.close()
        self.pid: int = _NUMBER.unpack(self._status.recv(_NUMBER.size))[0]

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; the exit status.

        Raises:
            subprocess.TimeoutExpired: it runs after ``timeout`` seconds.
        """
        if self.returncode is None:
            self.wait_first(timeout)
            self.returncode = _NUMBER.unpack(self._status.recv(_NUMBER.size))[0]
            self._status.close()
        return self.returncode

    def wait_first(self, timeout: float | None = None) -> None:
        """Wait for its end, and leave what the system knows of it until ``wait``.

        Raises:
            subprocess.TimeoutExpired: it runs after ``timeout`` seconds.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._status, selectors.EVENT_READ)
            if not selector.select(timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """``kill -9``."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """As an operator ends it."""
        self.send_signal(signal.SIGTERM)


class ForkedCommand:
    """A program ``sluice`` for shells of a test, as a file; each call is a fork with the caller's standard streams,
    directory and environment."""

    def __init__(self, directory: Path) -> None:
        """The program, and the socket that it comes to, are in ``directory``."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # the path of a socket is short, and those of tests are not
        self._folder = TemporaryDirectory(prefix="sluice-")
        path = f"{self._folder.name}/s"
        self._listener.bind(path)
        self._listener.listen(64)
        program = directory / "sluice"
        command = f"{sys.executable} -IS {Path(__file__).with_name('forked_command.py')} {path}"
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        program.chmod(0o755)
        self._thread = threading.Thread(target=self._pass_on, args=(_zygote(),), daemon=True)
        self._thread.start()

    def _pass_on(self, zygote: socket.socket) -> None:
        while True:
            try:
                caller, _ = self._listener.accept()
            except OSError:
                return
            with caller:
                asked, streams, _, _ = socket.recv_fds(caller, _MAX_REQUEST, 3)
                if len(streams) == 3:
                    socket.send_fds(zygote, [asked], [*streams, caller.fileno()])
                for stream in streams:
                    os.close(stream)

    def close(self) -> None:
        """No further calls."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._listener.close()
        self._folder.cleanup()


@cache
def _zygote() -> socket.socket:
    """The line to the zygote of this test process, which the first call starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MAX_REQUEST)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.zygote"],
            cwd=_ROOT,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve_forks(line: socket.socket) -> bool:
    """Fork what the test process asks for, and tell how it ends. True in each fork, False at the end of the line."""
    poller = select.poll()
    poller.register(line, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    ended: dict[int, tuple[int, socket.socket]] = {}
    callers: dict[int, int] = {}
    while True:
        for descriptor, _ in poller.poll():
            if descriptor in callers:  # who asked is no more
                poller.unregister(descriptor)
                os.kill(callers.pop(descriptor), signal.SIGKILL)
            elif descriptor in running:
                poller.unregister(descriptor)
                pid, status = running.pop(descriptor)
                os.close(descriptor)
                if callers.pop(status.fileno(), None):
                    poller.unregister(status)
                result = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                assert result is not None
                has_exited = result.si_code == os.CLD_EXITED
                with suppress(OSError):
                    status.send(_NUMBER.pack(result.si_status * (1 if has_exited else -1)))
                ended[status.fileno()] = pid, status
                poller.register(status, select.POLLIN)
            elif descriptor in ended:  # the test has read the status, or ended itself
                poller.unregister(descriptor)
                pid, status = ended.pop(descriptor)
                os.waitpid(pid, 0)
                status.close()
            else:
                request, descriptors, _, _ = socket.recv_fds(line, _MAX_REQUEST, 4)
                if not request:
                    return False
                pid = os.fork()
                if pid == 0:
                    for known, (_, status) in running.items():
                        os.close(known)
                        status.close()
                    for _, status in ended.values():
                        status.close()
                    line.close()
                    _become(json.loads(request), descriptors)
                    return True
                status = socket.socket(fileno=descriptors.pop())
                for one in descriptors:
                    os.close(one)
                status.send(_NUMBER.pack(pid))
                known = os.pidfd_open(pid)
                running[known] = pid, status
                poller.register(known, select.POLLIN)
                callers[status.fileno()] = pid
                poller.register(status, 0)  # its end is heard of all the same


def _become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Take over the arguments, the environment and the standard streams of a command line."""
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    for descriptor in descriptors:
        os.close(descriptor)
    if network := request.get("network"):
        _enter(network)
    os.chdir(request.get("directory", _ROOT))
    os.environ.clear()
    os.environ.update(request["environ"])
    time.tzset()
    sys.argv[1:] = request["arguments"]


def _enter(network: str) -> None:
    """Move this process into a network namespace, as ``ip netns exec`` does."""
    with open(f"/run/netns/{network}", "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter network {network}")


def main() -> int:
    """Import everything, and wait for requests on standard input; the exit status of a fork is that of its command."""
    import broker.cli.run  # noqa: F401
    from broker.app.cells import import_all
    from broker.cli.main import main as command

    import_all()
    gc.collect()
    gc.freeze()  # a collection in a fork then writes to no memory that is shared
    line = socket.socket(fileno=os.dup(0))
    return command() if _serve_forks(line) else 0


if __name__ == "__main__":
    sys.exit(main())
