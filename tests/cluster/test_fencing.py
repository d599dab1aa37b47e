"""Owners of a commit log and its servers are killed and paused at random: what was acknowledged is there, once and in
order, and never a group of an owner that another one has replaced."""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import psutil

from broker.core.errors import Unavailable
from tests.cluster.fencing import make, messages, written
from tests.support.nats import Nats, nats
from tests.support.node import eventually

_SEED = int(os.environ.get("SLUICE_KILL_SEED", "7"))
_SECONDS = float(os.environ.get("SLUICE_FENCING_S", "25"))
_NAMES = ("a", "b", "c")


class Owners:
    """A process on each machine that wants to own the cell."""

    def __init__(self, servers: Nats, directory: Path) -> None:
        self._servers = [f"{host}:{port}" for host, port in servers.places.addresses]
        self._directory = directory
        self._lives = 0
        self.processes: dict[str, psutil.Popen] = {}

    def start(self, name: str) -> None:
        """Start that of a machine; its server of NATS is the first that it asks."""
        self._lives += 1
        at = _NAMES.index(name)
        servers = ",".join([*self._servers[at:], *self._servers[:at]])
        who = f"{name}{self._lives}"
        command = [sys.executable, "-m", "tests.cluster.fencing", servers, who]
        file = self._directory / f"{who}.acknowledged"
        self.processes[name] = psutil.Popen([*command, str(file)])

    def kill(self, name: str) -> None:
        """``kill -9``."""
        process = self.processes.pop(name)
        assert process.poll() is None, "it ended by itself"
        process.kill()
        process.wait(30)

    def stop(self) -> None:
        """End all."""
        for name in list(self.processes):
            self.kill(name)

    @property
    def who_wrote(self) -> int:
        """How many owners had a group acknowledged."""
        values = [value for of_one in self.acknowledged() for value in of_one]
        return len({value.partition("-")[0] for value in values})

    def acknowledged(self) -> list[list[str]]:
        """The values that each process was told are kept, in order."""
        files = self._directory.glob("*.acknowledged")
        # the last line of one that was killed may be a part
        return [file.read_text().rpartition("\n")[0].splitlines() for file in files]


def test_a_log_has_one_owner_whoever_is_killed_or_paused(tmp_path: Path) -> None:
    chance = random.Random(_SEED)
    faults = claims = 0
    with ExitStack() as stack:
        servers = stack.enter_context(nats(tmp_path, 3))
        eventually(lambda: _is_made(servers), 60)
        owners = Owners(servers, tmp_path)
        stack.callback(owners.stop)
        for name in _NAMES:
            owners.start(name)
        eventually(lambda: any(owners.acknowledged()), 60)
        until_s = time.monotonic() + _SECONDS
        # on a slow machine a few faults may all have hit others than the owner
        while time.monotonic() < until_s or faults < 3 or owners.who_wrote < 2:
            _fault(chance, owners, servers)
            faults += 1
            before = sum(map(len, owners.acknowledged()))
            eventually(partial(_has_more, owners, before), 60)
        owners.stop()
        found = eventually(lambda: _messages(servers), 60)
    values = written(found)
    claims = len({value.partition("-")[0] for value in values})
    places = {value: at for at, value in enumerate(values)}
    for of_one in owners.acknowledged():
        lost = [value for value in of_one if value not in places]
        assert not lost, f"seed {_SEED}: acknowledged and lost: {lost[:5]}"
        order = [places[value] for value in of_one]
        assert order == sorted(order), f"seed {_SEED}"
    count = sum(map(len, owners.acknowledged()))
    print(f"seed {_SEED}: {faults} faults, {claims} owners, {count:,} acknowledged groups")
    assert faults >= 3
    assert claims >= owners.who_wrote >= 2


def _has_more(owners: Owners, before: int) -> bool:
    return sum(map(len, owners.acknowledged())) > before


def _is_made(servers: Nats) -> bool:
    try:
        make(servers.places, 3)
    except Unavailable:
        return False
    return True


def _messages(servers: Nats) -> list[bytes]:
    with suppress(Unavailable):
        return messages(servers.places)
    return []


def _fault(chance: random.Random, owners: Owners, servers: Nats) -> None:
    """Kill or pause an owner or a server, or one of each at once, and have it back."""
    seconds = chance.uniform(0.5, 4.0)
    victims = chance.sample(("owner", "server"), chance.choice((1, 1, 2)))
    is_pause = chance.random() < 0.5
    name = chance.choice(_NAMES)
    server = chance.choice(servers.servers)
    if "owner" in victims:
        owners.processes[name].suspend() if is_pause else owners.kill(name)
    if "server" in victims:
        server.freeze() if is_pause else server.kill()
    time.sleep(seconds)  # how long it is away is the fault
    if "owner" in victims:
        owners.processes[name].resume() if is_pause else owners.start(name)
    if "server" in victims:
        server.thaw() if is_pause else server.start()
