"""Kills of machines, and networks that fail: nothing that a client was told turns out not to be so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.machine_kills import FAULTS, NATS_FAULTS, SEED, run_rounds

ROUNDS = int(os.environ.get("SLUICE_KILL_ROUNDS", len(FAULTS)))


def test_what_clients_were_told_holds_when_machines_are_lost(tmp_path: Path) -> None:
    world = run_rounds(tmp_path, ROUNDS, SEED)
    assert world.figures.kills == ROUNDS


@pytest.mark.heavy
@pytest.mark.timeout(7200)
def test_what_clients_were_told_holds_after_two_hundred_losses(tmp_path: Path) -> None:
    world = run_rounds(tmp_path, 200, SEED + 1)
    assert world.figures.kills == 200
    assert world.faults.keys() == FAULTS.keys()


@pytest.mark.timeout(1200)
def test_what_clients_were_told_holds_when_disks_and_servers_of_nats_are_lost(
    tmp_path: Path,
) -> None:
    rounds = int(os.environ.get("SLUICE_KILL_ROUNDS", len(NATS_FAULTS)))
    world = run_rounds(tmp_path, rounds, SEED, with_nats=True)
    assert world.figures.kills == rounds
