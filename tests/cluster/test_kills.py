"""Kills of cells and of the supervisor at random instants: nothing that a client was told turns out not to be so."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests.cluster.kills import CELLS, CONFIG, FAULTS, CellWorld, check_rows, define, rows
from tests.support.node import Node

ROUNDS = int(os.environ.get("SLUICE_KILL_ROUNDS", len(FAULTS)))
SEED = int(os.environ.get("SLUICE_KILL_SEED", "20261127"))


def _run(data_dir: Path, rounds: int, seed: int) -> CellWorld:
    async def play(world: CellWorld) -> None:
        await world.begin()
        try:
            for number in range(rounds):
                await world.round(number)
        finally:
            await world.close()

    node = Node(data_dir, config=CONFIG, workers=CELLS).start()
    try:
        define(node)
        world = CellWorld(node, seed)
        try:
            asyncio.run(play(world))
        finally:
            print(
                f"seed {seed}: {world.figures} {dict(world.faults)}, lost QoS 2: {len(world.lost)}"
            )
        assert node.stop() == 0
    finally:
        if node.process is not None and node.process.poll() is None:
            node.kill_supervisor()
        node.kill_cells()
    log = node.log.read_text()
    assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
    check_rows(rows(data_dir, CELLS), world.told_rows())
    return world


def test_what_clients_were_told_holds_when_cells_and_the_supervisor_are_killed(
    tmp_path: Path,
) -> None:
    world = _run(tmp_path / "data", ROUNDS, SEED)
    assert world.figures.kills == ROUNDS


@pytest.mark.heavy
@pytest.mark.timeout(7200)
def test_what_clients_were_told_holds_after_two_hundred_kills(tmp_path: Path) -> None:
    world = _run(tmp_path / "data", 200, SEED + 1)
    assert world.figures.kills == 200
    assert world.faults.keys() == FAULTS.keys()
