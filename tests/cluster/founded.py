"""Machines of a cluster that ``sluice cluster init`` and ``join`` have made: each runs its own server of NATS."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.machines import Machine
from tests.support.network import Network, hosts

CONFIG = """
access.allow_anonymous = true
api.allow_clear_text = true
lake.run_spark = false
"""


def sluice(*arguments: object, status: int = 0) -> str:
    """What a command prints, its errors included."""
    command = [sys.executable, "-m", "broker.cli.main", "cluster", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done
    return done.stdout + done.stderr


class Founded(Machine):
    """A machine that runs its server of NATS, too."""

    def server(self) -> psutil.Process:
        """Its server of NATS."""
        return psutil.Process(int((self.data_dir / "nats" / "server.pid").read_text()))

    def kill(self) -> None:
        super().kill()
        with suppress(OSError, psutil.NoSuchProcess):
            self.server().kill()


@contextmanager
def founded(
    directory: Path, cells: int = 1, options: Sequence[str] = ()
) -> Iterator[Mapping[str, Founded]]:
    """Machines a, b and c with their files in ``directory``, joined and not started; what runs is stopped at the end.
    ``options`` are more of ``init``."""
    with hosts(3) as networks:
        named = dict(zip("abc", networks, strict=True))
        machines = _init(directory, named, cells, options)
        try:
            yield machines
        finally:
            running = [machine for machine in machines.values() if machine.is_running]
            for machine in running:
                machine.begin_to_stop()
            for machine in running:
                machine.stopped()


def _init(
    directory: Path, named: Mapping[str, Network], cells: int, options: Sequence[str]
) -> Mapping[str, Founded]:
    places = [f"--machine={name}={network.addresses[0]}" for name, network in named.items()]
    more = (*options, "--cells", cells, "--directory", directory, "--json")
    files = [Path(file) for file in json.loads(sluice("init", "plant", *places, *more))["files"]]
    machines = {}
    for at, (name, file) in enumerate(zip(named, files, strict=True)):
        sluice("join", file, "--data-dir", directory / name)
        own = range(at * cells, (at + 1) * cells)
        machines[name] = Founded(name, named[name], directory / name, CONFIG, own)
    return machines


def start_all(machines: Mapping[str, Founded]) -> None:
    """Start all, and wait until they are ready."""
    for machine in machines.values():
        machine.begin()
    for machine in machines.values():
        assert machine.first_line(120).startswith("sluice ready"), machine.log.read_text()
