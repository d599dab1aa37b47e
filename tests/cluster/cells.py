"""Whole brokers in the test's process as the cells of one: the first is the front."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from broker.core.cells import Place
from tests.support.local_node import Node


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
def running(data_dir: Path, number: int = 2, config: str = "") -> Iterator[Cells]:
    """Started cells, which are stopped at the end."""
    cells = Cells(data_dir, number, config)
    with ExitStack() as stack:
        for node in cells.nodes:
            node.start()
            stack.callback(node.stop)
        yield cells
