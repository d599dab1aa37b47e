"""Whole brokers in the test's process as the cells of one: the first is the front."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from websockets.sync.client import connect

from broker.cluster.directories import make_directories
from broker.cluster.switchboard import Switchboard
from broker.core.cells import Place
from tests.support.cells import Heard
from tests.support.local_node import Node
from tests.support.node import TOKEN, eventually

_DEADLINE_S = 30.0


class Cells:
    """A broker of several cells."""

    def __init__(self, data_dir: Path, number: int, config: str = "") -> None:
        run = data_dir / "run"
        self.nodes = [
            Node(data_dir, config=config, place=Place(at, number, run)) for at in range(number)
        ]
        self.place = Place(0, number, run)

    @property
    def front(self) -> Node:
        return self.nodes[0]

    def are_told(self) -> bool:
        """True while the front lets the others take over what it has saved, as after its start."""
        tasks = asyncio.all_tasks(self.front._loop)
        return any(task.get_name().startswith("files of cell") for task in tasks)

    def client_of(self, cell: int, prefix: str = "device") -> str:
        """An identifier whose client is in a cell."""
        return next(
            name
            for name in (f"{prefix}-{at}" for at in count())
            if self.place.cell_of(name) == cell
        )

    def api(self, cell: int, **options: Any) -> httpx.Client:
        """The API of one cell, on the socket for the others."""
        transport = httpx.HTTPTransport(uds=str(self.place.run / f"api-{cell}.sock"))
        return httpx.Client(
            transport=transport, base_url="http://localhost/api/v1", timeout=30, **options
        )


@contextmanager
def _switchboard(place: Place) -> Iterator[None]:
    """The lines that a supervisor has, on a thread with a loop of its own."""
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        switchboard = Switchboard(place.run, Heard())
        for number in range(place.count):
            switchboard.prepare(number)
        stopped = asyncio.Event()
        ready.set_result((asyncio.get_running_loop(), stopped))
        await stopped.wait()
        switchboard.close()

    thread = Thread(target=lambda: asyncio.run(serve()), name="switchboard under test")
    thread.start()
    loop, stopped = ready.result(_DEADLINE_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(_DEADLINE_S)


@contextmanager
def running(data_dir: Path, number: int = 2, config: str = "") -> Iterator[Cells]:
    """Started cells, which are stopped at the end."""
    cells = Cells(data_dir, number, config)
    cells.place.run.mkdir(parents=True, mode=0o700)
    make_directories(data_dir, number)
    with ExitStack() as stack:
        stack.enter_context(_switchboard(cells.place))
        for node in cells.nodes:
            node.start()
            stack.callback(node.stop)
        eventually(lambda: not cells.are_told())
        yield cells


@contextmanager
def live(cells: Cells, channel: str, **parameters: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """The frames of a channel of the front."""
    address = f"{cells.front.url.replace('http', 'ws')}/api/v1/live"
    with connect(address, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as socket:
        wanted = {"kind": "subscribe", "id": "c", "channel": channel, "parameters": parameters}
        socket.send(json.dumps(wanted))

        def frames() -> Iterator[dict[str, Any]]:
            while True:
                frame = json.loads(socket.recv(timeout=30))
                assert frame["kind"] in ("snapshot", "delta"), frame
                yield frame["data"]

        yield frames()
