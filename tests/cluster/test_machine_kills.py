"""Kills of machines, and networks that fail: nothing that a client was told turns out not to be so."""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.kills import CONFIG, define
from tests.cluster.machine_kills import FAULTS, NATS_FAULTS, MachineWorld
from tests.cluster.targets import Targets
from tests.support.machines import machines

ROUNDS = int(os.environ.get("SLUICE_KILL_ROUNDS", len(FAULTS)))
# Faults that end the lake job, Kafka's producers, or the range server that a task reads.
TARGET_FAULTS = os.environ.get(
    "SLUICE_KILL_FAULTS", "cell,machine,machine_with_nats,away,full"
).split(",")
SEED = int(os.environ.get("SLUICE_KILL_SEED", "20261128"))


def _run(
    directory: Path, rounds: int, seed: int, *, with_nats: bool = False, with_targets: bool = False
) -> MachineWorld:
    async def play(world: MachineWorld) -> None:
        await world.begin()
        try:
            for number in range(rounds):
                await world.round(number)
            if with_nats:
                await world.followed()
        finally:
            await world.close()

    sizes = {"a": 1, "b": 1, "c": 1}
    settings = Targets.settings(directory) if with_targets else CONFIG
    with (
        machines(
            directory,
            sizes,
            settings,
            with_nats=with_nats,
            with_small_disks=with_nats,
            with_outside=with_targets,
        ) as cluster,
        ExitStack() as stack,
    ):
        targets = None
        if with_targets:
            targets = stack.enter_context(Targets(directory, cluster.outside))
        if with_nats and not with_targets:  # whose Java would be slow
            for machine in cluster.machines.values():
                machine.have_own_clock()
        cluster.start()
        define(cluster["b"]) if targets is None else targets.define(cluster["b"])
        world = MachineWorld(cluster, seed, TARGET_FAULTS if with_targets else ())
        try:
            asyncio.run(play(world))
        finally:
            print(
                f"seed {seed}: {world.figures} {dict(world.faults)}, lost QoS 2: {len(world.lost)}"
            )
        if targets is not None:
            targets.check(cluster["b"], world.told_rows())
        cluster.stop()
        for machine in cluster.machines.values():
            log = machine.log.read_text()
            assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
        if with_nats:
            world.check_copies()
        found = world.rows()
        told = world.told_rows()
        wrong = {payload: found[payload] for payload in told if found[payload] != 1}
        assert not wrong, (
            f"{len(wrong)} of {len(told)} messages are not one row: {list(wrong.items())[:5]}"
        )
        assert sum(found.values()) == len(told)
    return world


def test_what_clients_were_told_holds_when_machines_are_lost(tmp_path: Path) -> None:
    world = _run(tmp_path, ROUNDS, SEED)
    assert world.figures.kills == ROUNDS


@pytest.mark.heavy
@pytest.mark.timeout(7200)
def test_what_clients_were_told_holds_after_two_hundred_losses(tmp_path: Path) -> None:
    world = _run(tmp_path, 200, SEED + 1)
    assert world.figures.kills == 200
    assert world.faults.keys() == FAULTS.keys()


def test_what_clients_were_told_holds_when_disks_and_servers_of_nats_are_lost(
    tmp_path: Path,
) -> None:
    rounds = int(os.environ.get("SLUICE_KILL_ROUNDS", len(NATS_FAULTS)))
    world = _run(tmp_path, rounds, SEED, with_nats=True)
    assert world.figures.kills == rounds


@pytest.mark.timeout(1200)
def test_each_row_is_in_kafka_and_in_tables_once_when_machines_are_lost(tmp_path: Path) -> None:
    rounds = int(os.environ.get("SLUICE_KILL_ROUNDS", len(TARGET_FAULTS)))
    world = _run(tmp_path, rounds, SEED, with_nats=True, with_targets=True)
    assert world.figures.kills == rounds
