"""Servers that tests start as processes of their own, on free ports of 127.0.0.1."""

from __future__ import annotations

import itertools
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

_POLL_S = 0.02
_FIRST_PORT, _PORTS = 20_000, 12_000
"""Below those that Linux gives to outgoing connections (from 32,768), one of which could have the port of a server that
is being started again."""
_WORKERS = 12


def _ports() -> Iterator[int]:
    """The share of this test process, beginning anywhere: other runs on this machine have the same."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    share = _PORTS // _WORKERS
    first = _FIRST_PORT + worker * share
    for number in itertools.count(os.getpid() * 101):
        yield first + number % share


_PORTS_OF_THIS_PROCESS = _ports()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and that no other test process gives."""
    for port in _PORTS_OF_THIS_PROCESS:
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port
    raise AssertionError("there are always more")


def is_open(port: int, host: str = "127.0.0.1") -> bool:
    """Whether somebody listens on that port."""
    with socket.socket() as asking:
        asking.settimeout(1)
        return asking.connect_ex((host, port)) == 0


def pause(pid: int) -> None:
    """Stop a process, and wait until it stands still: a thread on another core goes on for a moment after the signal,
    and one that waits for the disk until that has answered. ``SIGCONT`` lets it go on."""
    os.kill(pid, signal.SIGSTOP)
    while not all(map(_stands_still, Path(f"/proc/{pid}/task").iterdir())):
        time.sleep(_POLL_S)


def _stands_still(thread: Path) -> bool:
    try:
        state = (thread / "stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:  # it has ended
        return True
    return state in b"TtZX"


class ServerProcess:
    """A server that is started, stopped, killed, frozen and started again; its output is kept in a file."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        is_ready: Callable[[], bool],
        *,
        environ: Mapping[str, str] | None = None,
        user: str | None = None,
        deadline_s: float = 60.0,
    ) -> None:
        self._command, self._directory, self._is_ready = list(command), directory, is_ready
        self._environ, self._user, self._deadline_s = environ, user, deadline_s
        self._process: subprocess.Popen[bytes] | None = None
        self.log = directory / "server.log"

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(self._environ or {})},
                user=self._user if os.geteuid() == 0 else None,
                group=pwd.getpwnam(self._user).pw_gid if self._user and os.geteuid() == 0 else None,
            )
        deadline = time.monotonic() + self._deadline_s
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(
                    f"{self._command[0]} does not start:\n{self.log.read_text(errors='replace')[-4000:]}"
                )
            time.sleep(_POLL_S)

    def stop(self, *, deadline_s: float = 30.0) -> None:
        """End it as an operator would; killed when it takes too long."""
        self._end(signal.SIGTERM, deadline_s)

    def kill(self) -> None:
        """``kill -9``."""
        self._end(signal.SIGKILL, 10)

    def freeze(self) -> None:
        """Keep its connections and answer nothing."""
        pause(self._running.pid)

    def thaw(self) -> None:
        """Go on after ``freeze``."""
        self._running.send_signal(signal.SIGCONT)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Its process identifier."""
        return self._running.pid

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    def _end(self, number: int, deadline_s: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
