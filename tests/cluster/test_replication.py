"""The commit log of a cell is kept short, and what belongs to its store is saved with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from broker.cluster.nats.log import NatsLog
from broker.cluster.replication import CopyRow, Replication
from broker.cluster.settings import ClusterSettings
from broker.core.cells import Place
from broker.core.clock import SystemClock
from broker.core.events import Events
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.storage.writer import Writer

CELL = 1
SECTION = {
    "machine": "b",
    "machines": {name: {"address": f"{name}:7946"} for name in "abc"},
    "tls": dict.fromkeys(("certfile", "keyfile", "cacertfile"), "none.pem"),
    "nats": {"servers": ["127.0.0.1:1"]},
}
CLUSTER = ClusterSettings.model_validate(SECTION)
FIRST, LAST = 1000, 5000
"""The log has the entries between them."""


class _Looks(NatsLog):
    """A log that has so many bytes."""

    def __init__(self, log_bytes: int) -> None:
        self._bytes = log_bytes

    def state(self) -> Mapping[str, Any]:
        return {"state": {"bytes": self._bytes, "first_seq": FIRST, "last_seq": LAST}}

    def leads_elsewhere(self, state: Mapping[str, Any]) -> str:
        return ""


class _Replication(Replication):
    """Of a cell whose keeper is away. Its copies are as the test sets them."""

    trimmed_to = 0

    async def _ask(self, copy: CopyRow) -> None: ...

    async def _trim(self, writer: Writer, position: int, end: int) -> None:
        self.trimmed_to = position


@pytest.mark.parametrize(
    ("share", "positions", "trimmed_to", "following"),
    [
        (0.6, (4990, FIRST), 4990, 1),  # its disk hangs
        (0.6, (4990, 4200), 4200, 2),
        (0.4, (4990, FIRST), FIRST, 2),
        (0.6, (1100, FIRST), FIRST, 2),  # the other one is no better
    ],
)
def test_a_log_waits_for_a_slow_copy_until_it_is_half_full(
    share: float, positions: Sequence[int], trimmed_to: int, following: int, tmp_path: Path
) -> None:
    replication = _Replication(Place(CELL, 3, tmp_path), CLUSTER, tmp_path)
    replication.copies = [
        CopyRow(name, position, "") for name, position in zip("ac", positions, strict=True)
    ]
    replication._looks = _Looks(int(CLUSTER.nats.max_log_bytes * share))
    alarms = Alarms(SystemClock(), Events(), Metrics())
    asyncio.run(replication._look_once(cast(Writer, None), alarms))
    assert (replication.trimmed_to, replication.shown().copies) == (trimmed_to, following)
