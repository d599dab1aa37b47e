"""The saturation log: a blocked loop is found with its task and stack; an idle one writes nothing."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.admin.saturation import FILE, SaturationLog
from broker.core.errors import NotFound
from broker.observe.load import Machine
from broker.observe.metrics import Metrics
from broker.observe.settings import SaturationLogSettings
from broker.storage.memory import MemoryStore
from broker.storage.settings import StoreSettings
from broker.storage.writer import Writer
from tests.support.waiting import until


class CountingMachine(Machine):
    """Counts how often the memory is read."""

    looks = 0

    def memory_bytes(self) -> int:
        self.looks += 1
        return super().memory_bytes()


async def watched(
    folder: Path,
    act: Callable[[SaturationLog], Any],
    machine: Machine | None = None,
    **settings: Any,
) -> None:
    """Run ``act`` while this loop is watched."""
    loop = asyncio.get_running_loop()
    metrics = Metrics()
    writer = Writer(MemoryStore(), loop, StoreSettings(), metrics)
    options = SaturationLogSettings(**{"interval": 0.2, "max_memory": 0, **settings})
    log = SaturationLog(
        options, folder, loop, machine or Machine(1 << 40), writer, lambda: (), metrics
    )
    log.start()
    try:
        await act(log)
    finally:
        log.stop()
        await writer.close()


def a_slow_function(seconds: float) -> int:
    """Keep the processor busy."""
    ends_s = time.monotonic() + seconds
    turns = 0
    while time.monotonic() < ends_s:
        turns += 1
    return turns


def test_a_task_that_blocks_the_loop_is_named_with_its_stack(tmp_path: Path) -> None:
    async def act(log: SaturationLog) -> None:
        async def culprit() -> None:
            hoard = b"x" * 5_000_000
            a_slow_function(1.5)
            assert hoard

        await asyncio.create_task(culprit(), name="the culprit")
        await until(log.entries)
        row = (await log.entries())[-1]
        assert row["reasons"] == ["event_loop"]
        assert row["loop_lag_s"] > 0.2
        assert row["culprit"].startswith("the culprit: a_slow_function")
        entry = await log.entry(row["id"])
        (task,) = [task for task in entry["tasks"] if task["name"] == "the culprit"]
        assert task["share"] > 0.9
        assert any("culprit" in call for call in task["stack"])
        assert entry["task_count"] >= 1
        with pytest.raises(NotFound):
            await log.entry("1")

    asyncio.run(watched(tmp_path / "saturation", act))


def test_tasks_that_hold_much_are_listed_by_it(tmp_path: Path) -> None:
    async def act(log: SaturationLog) -> None:
        ended = asyncio.Event()

        async def hold() -> None:
            hoard = b"x" * 5_000_000
            await ended.wait()
            assert hoard

        async def block() -> None:
            a_slow_function(1.5)

        holder = asyncio.create_task(hold(), name="the holder")
        await asyncio.sleep(0)
        await asyncio.create_task(block(), name="blocker")
        await until(log.entries)
        entry = await log.entry((await log.entries())[-1]["id"])
        ended.set()
        await holder
        (task,) = [task for task in entry["tasks"] if task["name"] == "the holder"]
        assert task["held_bytes"] > 5_000_000
        assert "hold" in task["function"] or "wait" in task["function"]

    asyncio.run(watched(tmp_path / "saturation", act))


def test_an_idle_node_writes_nothing(tmp_path: Path) -> None:
    async def act(log: SaturationLog) -> None:
        await until(lambda: machine.looks > 5)
        assert await log.entries() == []

    machine = CountingMachine(1 << 40)
    asyncio.run(watched(tmp_path / "saturation", act, machine, max_loop_lag=5, max_memory=1))
    assert not (tmp_path / "saturation").exists()


def test_files_are_rotated_and_old_entries_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "saturation"
    folder.mkdir()
    old = {
        "id": "1",
        "at": "",
        "reasons": [],
        "loop_lag_s": 1,
        "memory_bytes": 1,
        "store_backlog_bytes": 0,
        "culprit": "",
    }
    new = {**old, "id": str(time.time_ns())}
    (folder / FILE).write_text(json.dumps(old) + "\n" + json.dumps(new) + "\n" + '{"id": "cut')

    async def act(log: SaturationLog) -> None:
        assert [entry["id"] for entry in await log.entries()] == [new["id"]]

    asyncio.run(watched(folder, act, max_loop_lag=5))
