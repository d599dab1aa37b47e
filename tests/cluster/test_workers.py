"""``sluice serve --workers 2`` as users run it: starts, deaths of cells and of the supervisor, stops, and refusals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from broker.core.cells import Place
from tests.support import raw
from tests.support.node import Node, eventually, text_of
from tests.support.processes import free_port

_PLACE = Place(0, 2, Path())


def of_cell(cell: int, number: int) -> list[str]:
    """So many client identifiers of a cell."""
    names = (f"client-{index}" for index in range(100_000))
    own = (name for name in names if _PLACE.cell_of(name) == cell)
    return [next(own) for _ in range(number)]


def connected(node: Node, client_id: str) -> socket.socket:
    """A client whose CONNECT was accepted."""
    client = socket.create_connection(node.mqtt, 60)
    client.sendall(raw.connect(4, client_id))
    answer = client.recv(4)
    if answer != b"\x20\x02\0\0":
        client.close()
        raise ConnectionError(f"{client_id}: {answer!r}")
    return client


def returned(node: Node, client_id: str) -> socket.socket:
    """The same once its cell is back: a CONNECT waits for some seconds, and is refused then."""
    return eventually(lambda: connected(node, client_id), 180, what=f"{client_id} is connected")


def is_alive(client: socket.socket) -> bool:
    """Whether the broker answers a ping."""
    client.sendall(raw.PINGREQ)
    return client.recv(2) == raw.PINGRESP


def holds(process: psutil.Process, client: socket.socket) -> bool:
    """Whether a process has the broker's end of a client's socket."""
    return any(connection.raddr == client.getsockname() for connection in process.net_connections())


def _lets_go(process: psutil.Process, client: socket.socket) -> bool:
    return not holds(process, client)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("workers") / "data", workers=2).start()
    yield node
    if node.process is not None and node.process.poll() is None:
        node.stop()
    node.kill_cells()


def test_each_client_is_served_by_the_process_of_its_cell(node: Node) -> None:
    processes = [node.cell(cell) for cell in range(2)]
    for cell in range(2):
        for name in of_cell(cell, 5):
            with connected(node, name) as client:
                assert holds(processes[cell], client)
                # the process that accepted it closes its descriptor after it has passed it on
                eventually(partial(_lets_go, processes[1 - cell], client))


def test_a_cell_that_is_killed_comes_back_and_the_other_does_not_notice(node: Node) -> None:
    stays = connected(node, of_cell(0, 1)[0])
    goes = connected(node, of_cell(1, 1)[0])
    victim = node.cell(1)
    victim.send_signal(signal.SIGKILL)
    assert goes.recv(1) in (b"", b"\0")
    with returned(node, of_cell(1, 1)[0]) as again:
        assert is_alive(again)
    assert node.cell(1).pid != victim.pid
    assert is_alive(stays)
    assert re.search(r"ERROR cell\.ended cell=1 .*signal SIGKILL", node.log.read_text())
    stays.close()
    goes.close()


def test_a_supervisor_that_is_killed_leaves_the_cells_to_the_next(node: Node) -> None:
    cells = [node.cell(cell).pid for cell in range(2)]
    clients = [connected(node, of_cell(cell, 1)[0]) for cell in range(2)]
    node.kill_supervisor()
    assert all(is_alive(client) for client in clients)
    with connected(node, of_cell(1, 2)[1]) as another:
        assert is_alive(another)
    node.start()
    assert [node.cell(cell).pid for cell in range(2)] == cells
    assert all(is_alive(client) for client in clients)
    # the next one restarts them too
    node.cell(0).send_signal(signal.SIGKILL)
    with returned(node, of_cell(0, 2)[1]) as again:
        assert is_alive(again)
    for client in clients:
        client.close()


def test_all_end_on_sigterm(node: Node) -> None:
    clients = [connected(node, of_cell(cell, 1)[0]) for cell in range(2)]
    processes = [node.cell(cell) for cell in range(2)]
    assert node.stop() == 0
    for client in clients:
        assert client.recv(10) == b""
        client.close()
    # the system takes away those that an earlier supervisor started
    assert eventually(lambda: not any(process.is_running() for process in processes), 10)
    assert not (node.data_dir / "run" / "control.sock").exists()


def refused(node: Node, *options: str) -> str:
    """What a start that does not begin says."""
    done = subprocess.run(
        [sys.executable, "-m", "broker.cli.main", "serve", "--data-dir", str(node.data_dir),
         "--mqtt", text_of(node.mqtt), "--api", text_of(node.api), *options],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


def test_ctrl_c_ends_all_without_a_word_of_the_processes_beside(tmp_path: Path) -> None:
    """A terminal sends SIGINT to all processes of its foreground group."""
    node = Node(tmp_path / "data", workers=2, prefix=["setsid"]).start()
    assert node.process is not None
    os.killpg(node.process.pid, signal.SIGINT)
    assert node.process.wait(60) == 0
    node.stop()
    assert "Traceback" not in node.log.read_text()


def test_another_number_of_workers_is_refused(node: Node) -> None:
    before = sorted(str(path) for path in node.data_dir.rglob("*"))
    for options in (("--workers", "3"), ()):
        said = refused(node, *options)
        assert said.startswith("--workers: expected 2, the number of cells whose data is in ")
        assert len(said.splitlines()) == 1
    assert sorted(str(path) for path in node.data_dir.rglob("*")) == before
    moved = node.data_dir / "cells" / "1"
    moved.rename(node.data_dir / "away")
    try:
        assert "expected the data of a cell, got no directory" in refused(node, "--workers", "2")
    finally:
        (node.data_dir / "away").rename(moved)


def test_a_port_in_use_is_said_before_anything_is_made(tmp_path: Path) -> None:
    node = Node(tmp_path / "data")
    node.api = ("127.0.0.1", free_port())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        node.mqtt = taken.getsockname()
        said = refused(node, "--workers", "2")
    assert said.startswith(f"cannot listen for MQTT at {text_of(node.mqtt)}: another program")
    assert len(said.splitlines()) == 1
    assert not (node.data_dir / "cells").exists()


@pytest.mark.parametrize("number", ["0", "65", "-1", "two", "1.5", ""])
def test_an_absurd_number_is_refused(tmp_path: Path, number: str) -> None:
    said = refused(Node(tmp_path / "data"), f"--workers={number}")
    assert "expected a number from 1 to 64, or auto" in said
    assert not (tmp_path / "data").exists()
