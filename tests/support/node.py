"""A whole Sluice as a process of its own: started, asked, killed and started again by end-to-end tests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from broker.core.errors import Unavailable
from tests.support.plain_http import NO_TLS
from tests.support.processes import free_port
from tests.support.zygote import Fork, can_fork

ROOT = Path(__file__).parents[2]
TOKEN = "test-token-0123456789abcdef"
READY = re.compile(r"mqtt=(?P<mqtt>[^ ]+:\d+) api=(?P<api>[^ ]+:\d+)")
T = TypeVar("T")
default_workers = 1
"""Cells of a broker whose test does not say how many; see ``tests/end_to_end/conftest.py``."""
are_forks = False
"""Whether brokers are forks of a process that has imported everything: so in ``make test-full``."""
in_this_process: set[Reachable] = set()
"""Running nodes of ``tests.support.local_node``, whose settings hold for the whole process."""


def eventually(
    condition: Callable[[], T], timeout_s: float = 60.0, every_s: float = 0.05, what: str = ""
) -> T:
    """The first true value of ``condition``, which may raise until then; AssertionError with the last answer after."""
    deadline = time.monotonic() + timeout_s
    last: Any = None
    while True:
        try:
            found = condition()
            if found:
                return found
            last = found
        except (
            httpx.HTTPError,
            OSError,
            AssertionError,
            KeyError,
            ValueError,
            Unavailable,
        ) as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(
                f"{what or condition} did not come true in {timeout_s:g} s; last: {last!r}"
            )
        select.select([], [], [], every_s)


class Reachable:
    """A broker on loopback, with its API as administrator."""

    def __init__(self, data_dir: Path, config: str, environ: dict[str, str] | None) -> None:
        self.data_dir, self.config, self.environ = data_dir, config, environ or {}
        self.mqtt: tuple[str, int] = ("127.0.0.1", 0)
        self.api: tuple[str, int] = ("127.0.0.1", 0)
        self.log = data_dir.parent / f"{data_dir.name}.log"

    def prepare(self) -> dict[str, str]:
        """Choose ports, unless it has some, and write its files; the variables of its environment."""
        if not self.mqtt[1]:
            self.mqtt, self.api = ("127.0.0.1", free_port()), ("127.0.0.1", free_port())
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        if self.config:
            self.data_dir.mkdir(exist_ok=True)
            (self.data_dir / "sluice.conf").write_text(self.config)
        around = json.dumps([str(self.data_dir.parent)])
        bounds = {
            "SLUICE_ALLOWED__DIRECTORIES": around,
            "SLUICE_ALLOWED__SECRET_DIRECTORIES": around,
        }
        return {"SLUICE_API_TOKEN": TOKEN, **bounds, **self.environ}

    def start(self) -> Any:
        """Start, and wait until it is ready."""
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://{text_of(self.api)}"

    def client(self, **options: Any) -> httpx.Client:
        """An HTTP client of the management API, as administrator."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.Client(
            base_url=f"{self.url}/api/v1",
            headers=headers,
            timeout=30,
            trust_env=False,
            verify=NO_TLS,
            **options,
        )

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        expect: int | tuple[int, ...] = (200, 201, 204),
    ) -> Any:
        """One API call; the decoded answer."""
        with self.client() as client:
            response = client.request(method, path, json=body)
        wanted = (expect,) if isinstance(expect, int) else expect
        assert response.status_code in wanted, (
            f"{method} {path}: {response.status_code} {response.text[:2000]}"
        )
        return response.json() if response.content else None


class Node(Reachable):
    """One broker as a process. ``start`` may be called again after ``kill``: it takes the same ports."""

    def __init__(
        self,
        data_dir: Path,
        *,
        config: str = "",
        environ: dict[str, str] | None = None,
        open_files: int | None = None,
        workers: int | None = None,
        prefix: Sequence[str] = (),
        network: str = "",
        may_fork: bool = True,
    ) -> None:
        """``open_files`` is what the system permits the process, where that is other than here; ``prefix`` begins the
        command line; ``network`` is the name of one that it is in. ``may_fork`` is False for a test of how late others
        are: a fork copies the memory that it shares when it first writes there."""
        super().__init__(data_dir, config, environ)
        self.workers = default_workers if workers is None else workers
        self.open_files = open_files
        self.prefix = prefix
        self.network_name = network
        self.may_fork = may_fork
        self.root = ROOT
        """The tree whose product it runs."""
        self.process: subprocess.Popen[bytes] | Fork | None = None

    def start(self, timeout_s: float = 120.0) -> Node:
        """Start and wait for the line that says ready."""
        self.begin()
        line = self.first_line(timeout_s)
        match = READY.search(line)
        if match is None:
            self.kill()  # else its pipe and process are reported to have been left open by a later test
        assert match, f"no ready line, but {line!r}; log:\n{self.log.read_text()[-3000:]}"
        self.mqtt, self.api = _address(match["mqtt"]), _address(match["api"])
        return self

    def begin(self) -> None:
        """Start, without a look at what it says."""
        environ = os.environ | self.prepare()
        words = [
            "serve", "--data-dir", str(self.data_dir),
            "--mqtt", text_of(self.mqtt), "--api", text_of(self.api),
        ]  # fmt: skip
        if self.workers > 1:
            words += ["--workers", str(self.workers)]
        around = list(self.prefix)
        if self.open_files is not None:
            around += ["prlimit", f"--nofile={self.open_files}:{self.open_files}"]
        with self.log.open("ab") as log:
            if (
                are_forks
                and self.may_fork
                and not around
                and self.root == ROOT
                and can_fork(environ)
            ):
                self.process = Fork(words, environ, log, self.network_name)
                return
            if self.network_name:
                around = ["ip", "netns", "exec", self.network_name, *around]
            self.process = subprocess.Popen(
                [*around, sys.executable, "-m", "broker.cli.main", *words],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=self.root,
            )

    def first_line(self, timeout_s: float) -> str:
        """The next line on its standard output; empty where none comes in time."""
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            # select.select takes no descriptor over 1,024
            selector.register(self.process.stdout, selectors.EVENT_READ)
            is_ready = selector.select(timeout_s)
        return self.process.stdout.readline().decode() if is_ready else ""

    @property
    def pid(self) -> int:
        """Its process identifier."""
        assert self.process is not None
        return self.process.pid

    def children(self) -> list[psutil.Process]:
        """Every process that this broker started, however deep."""
        assert self.process is not None
        try:
            family: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return family

    def cell(self, number: int) -> psutil.Process:
        """The process that is a cell, also one that an earlier supervisor has started.

        Raises:
            OSError: it does not run.
        """
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if (
                "broker.app.cells" in words
                and f'"cell": {number},' in words[-1]
                and str(self.data_dir) in words[-1]
            ):
                return process
        raise OSError(f"cell {number} does not run")

    def kill(self) -> None:
        """``kill -9`` of the broker, with all of its cells."""
        self.kill_supervisor()
        self.kill_cells()

    def kill_supervisor(self) -> None:
        """``kill -9`` of the process that was started; cells, if there are any, go on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)
        self._close()

    def kill_cells(self) -> None:
        """``kill -9`` of the cells that a killed supervisor has left."""
        for number in range(self.workers if self.workers > 1 else 0):
            with contextlib.suppress(OSError, psutil.NoSuchProcess):
                cell = self.cell(number)
                cell.kill()
                # who reaps it takes its time
                eventually(partial(_is_over, cell), what="the end of a cell")

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, and the exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout_s)
        self._close()
        return status

    def _close(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()


def _is_over(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextlib.contextmanager
def running(data_dir: Path, **options: Any) -> Iterator[Node]:
    """A started node that is stopped at the end, whatever happened."""
    node = Node(data_dir, **options).start()
    try:
        yield node
    finally:
        if node.process is not None and node.process.poll() is None:
            try:
                node.stop()
            except subprocess.TimeoutExpired:
                node.kill()


def sluice(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of the CLI, on a broker."""
    return command(*arguments, SLUICE_URL=node.url)


def command(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command of the CLI in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "broker.cli.main", *arguments], cwd=ROOT,
        env=os.environ | {"SLUICE_API_TOKEN": TOKEN} | environ, capture_output=True, text=True, timeout=240,
    )  # fmt: skip


def text_of(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
