"""The cells of a broker, each of which shows itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from typing_extensions import TypedDict

from broker.observe.metrics import Metrics


class Contents(TypedDict):
    """Contents of cells that move: clients that were disconnected, and the sessions and messages in store that there
    were after that. `expired_sessions` have ended since, as their clients stayed away for too long; `lost_sessions`
    and `lost_messages` were not there. Sessions in memory are lost, as with any restart."""

    clients: int
    sessions: int
    messages: int
    expired_sessions: int
    lost_sessions: int
    lost_messages: int


class Arrival(Contents):
    """The contents of a cell that left the `machine` for another one."""

    machine: str


class CellRow(TypedDict):
    """A cell: one process of the broker. A cell that is `away` does not answer, and only its number is known. `links`
    counts the connections to other cells that are up. In a cluster with `cluster.nats`, `machine` is the one that runs
    it, `copies` counts the other machines whose copies of its store follow, and its commit log there has
    `log_bytes`. `arrival` is there if it has moved since it started."""

    number: int
    machine: str | None
    state: Literal["running", "starting", "away"]
    pid: int | None
    since: str | None
    clients: int | None
    sessions: int | None
    messages_per_s: float | None
    memory_bytes: int | None
    links: int | None
    copies: int | None
    log_bytes: int | None
    arrival: Arrival | None


class CopiesOfCell(NamedTuple):
    """The machine that runs a cell, the other machines whose copies follow, and the size of its commit log."""

    machine: str
    copies: int
    log_bytes: int


class CellService:
    """Shows this cell. ``status`` is that of the process, in the form of ``GET /status``. A cell that ``has_started``
    is running, also where load balancers are to send it no clients."""

    def __init__(
        self,
        number: int,
        status: Callable[[], Mapping[str, Any]],
        metrics: Metrics,
        copies: Callable[[], CopiesOfCell] | None = None,
        arrival: Callable[[], Arrival | None] = lambda: None,
        has_started: Callable[[], bool] | None = None,
    ) -> None:
        self._number = number
        self._status = status
        self._metrics = metrics
        self._copies = copies
        self._arrival = arrival
        self._has_started = has_started

    def rows(self) -> list[CellRow]:
        """The row of this cell; the front joins those of all."""
        status = self._status()
        health = status["health"]
        has_started = health["ready"] if self._has_started is None else self._has_started()
        copies = None if self._copies is None else self._copies()
        arrival = self._arrival()
        if arrival is not None:
            arrival = {**arrival, "expired_sessions": int(self._metrics.value("sessions_expired"))}
        return [
            {
                "number": self._number,
                "machine": None if copies is None else copies.machine,
                "state": "running" if has_started else "starting",
                "pid": os.getpid(),
                "since": status["started_at"],
                "clients": status["connections"],
                "sessions": status["sessions"],
                "messages_per_s": status["rates"].get("received", 0.0),
                "memory_bytes": health["memory_bytes"],
                "links": int(self._metrics.value("cell_links_up")),
                "copies": None if copies is None else copies.copies,
                "log_bytes": None if copies is None else copies.log_bytes,
                "arrival": arrival,
            }
        ]
