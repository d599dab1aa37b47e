"""The cells of a broker, each of which shows itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

from typing_extensions import TypedDict

from broker.observe.metrics import Metrics


class CellRow(TypedDict):
    """A cell: one process of the broker. A cell that is `away` does not answer, and only its number is known. `links`
    counts the connections to other cells that are up."""

    number: int
    state: Literal["running", "starting", "away"]
    pid: int | None
    since: str | None
    clients: int | None
    sessions: int | None
    messages_per_s: float | None
    memory_bytes: int | None
    links: int | None


class CellService:
    """Shows this cell. ``status`` is that of the process, in the form of ``GET /status``."""

    def __init__(
        self, number: int, status: Callable[[], Mapping[str, Any]], metrics: Metrics
    ) -> None:
        self._number = number
        self._status = status
        self._metrics = metrics

    def rows(self) -> list[CellRow]:
        """The row of this cell; the front joins those of all."""
        status = self._status()
        health = status["health"]
        return [
            {
                "number": self._number,
                "state": "running" if health["ready"] else "starting",
                "pid": os.getpid(),
                "since": status["started_at"],
                "clients": status["connections"],
                "sessions": status["sessions"],
                "messages_per_s": status["rates"].get("received", 0.0),
                "memory_bytes": health["memory_bytes"],
                "links": int(self._metrics.value("cell_links_up")),
            }
        ]
