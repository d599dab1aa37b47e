"""What a rule writes is in Kafka, and in a Delta and an Iceberg table, once, whatever machines are lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.machine_kills import SEED, run_rounds
from tests.cluster.targets import Targets

pytestmark = pytest.mark.spark
# Faults that end the lake job, producers of Kafka, or the range server that a task reads.
FAULTS = os.environ.get("SLUICE_KILL_FAULTS", "cell,machine,machine_with_nats,away,full").split(",")


@pytest.mark.timeout(1200)
def test_each_row_is_in_kafka_and_in_tables_once_when_machines_are_lost(tmp_path: Path) -> None:
    rounds = int(os.environ.get("SLUICE_KILL_ROUNDS", len(FAULTS)))
    world = run_rounds(tmp_path, rounds, SEED, with_nats=True, targets=Targets, faults=FAULTS)
    assert world.figures.kills == rounds
