"""``kill -9`` of a bare broker at random instants: nothing that a client was told turns out not to be so."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.end_to_end.kills import CONFIG, Figures, World
from tests.support.node import running

SEED = 20_261_121


def _run(data_dir: Path, rounds: int, seed: int) -> Figures:
    async def play(world: World) -> None:
        await world.begin()
        try:
            for number in range(rounds):
                await world.round(number)
        finally:
            await world.close()

    with running(data_dir, config=CONFIG) as node:
        world = World(node, seed)
        try:
            asyncio.run(play(world))
        finally:
            print(f"seed {seed}: {world.figures}")
        assert "Traceback" not in node.log.read_text()
        return world.figures


def test_what_clients_were_told_holds_after_kills_at_random_instants(tmp_path: Path) -> None:
    figures = _run(tmp_path / "node", 6, SEED)
    assert figures.kills >= 6


@pytest.mark.heavy
@pytest.mark.timeout(3600)
def test_what_clients_were_told_holds_after_two_hundred_kills(tmp_path: Path) -> None:
    figures = _run(tmp_path / "node", 200, SEED + 1)
    assert figures.kills >= 200
    assert figures.resent > 0
