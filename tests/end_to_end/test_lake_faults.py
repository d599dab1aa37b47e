"""Faults while tables fill on hosts that share nothing: each message is in every table once, and no file is left over.

The fifty rounds of ``make test-heavy`` are five worlds of ten: a round reads all that its tables have, so late ones
take minutes; Spark reads in the last. ``LAKE_FAULTS_SEED`` and ``LAKE_FAULTS_ROUNDS`` run given rounds,
``LAKE_FAULTS`` only faults of these names.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.end_to_end.lake_faults import FAST, FAULTS, WORKERS_DISK, Harm
from tests.end_to_end.lake_world import SECRETS, World, world
from tests.end_to_end.test_spark_cluster import broker
from tests.support.network import hosts
from tests.support.spark_cluster import FOR_RULES, spark_with_the_wheel_alone

SEED = 20_261_123
AT_ONCE = 3


def chosen(chance: Random, faults: dict[str, Harm]) -> list[str]:
    """The faults of a round, at most one that takes the driver away, as the last one."""
    names = chance.sample(sorted(faults), min(AT_ONCE, len(faults)))
    away = [
        name
        for name in names
        if "driver" in name.split() or name in ("scratch files removed", WORKERS_DISK)
    ]
    return [name for name in names if name not in away] + away[:1]


def play(made: World, chance: Random, faults: dict[str, Harm], *, has_all_readers: bool) -> None:
    """One round: faults one after the other, while the ones before go on, and the account."""
    names = chosen(chance, faults)
    began_s = time.monotonic()
    made.publishing.go_on()
    with ExitStack() as harms:
        for name in names:
            made.publishing.some_more(chance.randint(10, 150))
            print(f"  {time.monotonic() - began_s:.0f} s: {name}", flush=True)
            harms.enter_context(faults[name](made, chance))
        made.publishing.some_more(chance.randint(50, 200))
    harmed_s = time.monotonic() - began_s
    made.account(has_all_readers=has_all_readers)
    print(
        f"  {harmed_s:.0f} s of faults, {time.monotonic() - began_s - harmed_s:.0f} s until the account",
        flush=True,
    )


@pytest.mark.spark
@pytest.mark.parametrize(
    ("first", "rounds", "faults"),
    [
        pytest.param(0, 3, FAST, id="three rounds", marks=pytest.mark.timeout(900)),
        *(
            pytest.param(
                first,
                10,
                FAULTS,
                id=f"ten rounds from {first}",
                marks=[pytest.mark.heavy, pytest.mark.timeout(5400)],
            )
            for first in range(0, 50, 10)
        ),
    ],
)
def test_every_message_is_in_every_table_once_whatever_fails(
    tmp_path: Path,
    first: int,
    rounds: int,
    faults: dict[str, Harm],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SECRETS.items():  # of the commands
        monkeypatch.setenv(name, value)
    is_heavy = rounds > 3
    seed = int(os.environ.get("LAKE_FAULTS_SEED", SEED + first))
    rounds = int(os.environ.get("LAKE_FAULTS_ROUNDS", rounds))
    given = os.environ.get("LAKE_FAULTS")
    faults = {name: FAULTS[name] for name in given.split(",")} if given else faults
    environ = {
        **spark_with_the_wheel_alone(tmp_path, FOR_RULES),
        "SSL_CERT_FILE": str(tmp_path / "Tests-ca.pem"),
    }
    began_s = time.monotonic()
    with hosts(3) as network, world(tmp_path, network, environ, broker) as made:
        made.publishing.go_on()
        made.publishing.some_more(50)
        made.publishing.pause()
        made.settled()
        print(f"started in {time.monotonic() - began_s:.0f} s", flush=True)
        for number in range(rounds):
            print(f"round {number}, seed {seed + number}", flush=True)
            has_all_readers = is_heavy and number == rounds - 1
            play(made, Random(seed + number), faults, has_all_readers=has_all_readers)
