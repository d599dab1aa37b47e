"""A cluster of several machines: each a network of its own, with a broker as its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import accumulate
from pathlib import Path

import psutil

from broker.core.cells import Place
from tests.support.certificates import Authority
from tests.support.nats import Nats
from tests.support.network import Network, hosts
from tests.support.node import Node
from tests.support.small_disk import SmallDisk, small_disk

_PORT = 7946
_DISK_MB = 128
_SERVERS = 3


class Machine(Node):
    """A broker on a machine of its own. ``network`` is where it is."""

    def __init__(
        self, name: str, network: Network, data_dir: Path, config: str, cells: range
    ) -> None:
        super().__init__(data_dir, config=config, workers=1, network=network.name)
        self.name, self.network, self.cells = name, network, cells
        self._clock = data_dir.parent / f"{name}.clock"
        # tests tell machines apart by the port
        self.mqtt = network.addresses[0], 1883 + cells.start
        self.api = network.addresses[0], 18083

    def have_own_clock(self) -> None:
        """Its processes have a clock that can be moved; before they start."""
        self.move_clock(0)
        paths = [str(Path(__file__).parent / "wrong_clock"), os.environ.get("PYTHONPATH", "")]
        self.environ |= {
            "SLUICE_TEST_CLOCK": str(self._clock),
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        }

    def move_clock(self, by_s: int) -> None:
        """Have its clock so much before or behind the others', within a second."""
        whole = self._clock.with_suffix(".new")
        whole.write_text(str(by_s))
        whole.rename(self._clock)

    @property
    def is_running(self) -> bool:
        """Whether its supervisor runs."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """``kill -9`` of all its processes at once."""
        family = self.children()
        self.kill_supervisor()
        self.kill_cells()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)

    def kill_cells(self) -> None:
        """``kill -9`` of cells, also those that an earlier supervisor has started."""
        for number in self.cells:
            with suppress(OSError, psutil.NoSuchProcess):
                self.cell(number).kill()

    def begin_to_stop(self) -> None:
        """SIGTERM, without a look at its end."""
        assert self.process is not None
        self.process.terminate()

    def stopped(self) -> None:
        """Wait for its end, which is in order."""
        assert self.process is not None
        assert self.process.wait(60) == 0
        self._close()

    def tunnel(self) -> psutil.Process:
        """The process that carries sockets to other machines."""
        return next(one for one in self.children() if "broker.cluster.tunnel" in one.cmdline())


class Cluster:
    """The machines, by name; ``configure`` before they start."""

    def __init__(
        self,
        directory: Path,
        networks: Sequence[Network],
        sizes: dict[str, int],
        settings: str,
        nats: Nats | None,
    ) -> None:
        self.outside = networks[-1]
        """A network without a broker, where there is one."""
        self.authority = Authority(directory, "cluster")
        self.nats = nats
        self._lines: dict[str, str] = {}
        """What the section ``cluster`` says of each machine."""
        self.disks: list[SmallDisk] = []
        """Of the data directories of the machines."""
        self.nats_disks: list[SmallDisk] = []
        self.machines: dict[str, Machine] = {}
        self.count = sum(sizes.values())
        firsts = dict(zip(sizes, accumulate((0, *sizes.values())), strict=False))
        self._lines = {
            name: f'  machines.{name} {{ address = "{network.addresses[0]}:{_PORT}", cells = {sizes[name]},'
            f' mqtt = "{network.addresses[0]}:{1883 + firsts[name]}" }}\n'
            for name, network in zip(sizes, networks, strict=False)
        }
        layout = "".join(self._lines.values())
        for at, (name, network) in enumerate(zip(sizes, networks, strict=False)):
            files = self.authority.sign(name, {"CN": name}, [name])
            tls = f'certfile = "{files.cert}", keyfile = "{files.key}", cacertfile = "{self.authority.file}"'
            config = f"""
cluster {{
  name = plant
  machine = {name}
{layout}
  tls {{ {tls} }}
  nats.servers = [{_nearest_first(nats, at)}]
}}
range_server {{ bind = "{network.addresses[0]}:0", allow_clear_text = true }}
api.allow_clear_text = true
access.allow_anonymous = true
listeners.ssl.tls {{
  bind = "{network.addresses[0]}:8883", ssl_options {{ certfile = "{files.cert}", keyfile = "{files.key}" }}
}}
listeners.ws.web.bind = "{network.addresses[0]}:8083"
{settings}
"""
            self.machines[name] = Machine(
                name,
                network,
                directory / name,
                config,
                range(firsts[name], firsts[name] + sizes[name]),
            )

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def machine_of(self, cell: int) -> Machine:
        """The machine that has a cell."""
        return next(machine for machine in self.machines.values() if cell in machine.cells)

    def know(self, name: str, *, of: Sequence[str], is_known: bool) -> None:
        """Take a machine out of the section ``cluster`` of others, or put it back; before these start again."""
        first = next(iter(self._lines.values()))
        for machine in map(self.machines.__getitem__, of):
            config = machine.config.replace(self._lines[name], "")
            machine.config = (
                config.replace(first, first + self._lines[name]) if is_known else config
            )

    def start(self) -> None:
        """Start all; a machine waits for the first one, and for NATS."""
        if self.nats is not None:
            self.nats.start()
        for machine in self.machines.values():
            machine.start()

    def stop(self) -> None:
        """Stop all at once, so that none takes over the cells of another."""
        for machine in self.machines.values():
            machine.begin_to_stop()
        for machine in self.machines.values():
            machine.stopped()

    def client_of(self, cell: int, prefix: str = "device") -> str:
        """An identifier of a client of a cell."""
        place = Place(0, self.count, Path())
        names = (f"{prefix}-{at}" for at in range(10_000))
        return next(name for name in names if place.cell_of(name) == cell)


def _nearest_first(nats: Nats | None, at: int) -> str:
    """Addresses of the servers of NATS, that of a machine before the others."""
    servers = [] if nats is None else [*nats.servers[at:], *nats.servers[:at]]
    return ", ".join(f'"{server.host}:{server.port}"' for server in servers)


@contextmanager
def machines(
    directory: Path,
    sizes: dict[str, int],
    settings: str = "",
    *,
    with_nats: bool = False,
    with_small_disks: bool = False,
    with_outside: bool = False,
) -> Iterator[Cluster]:
    """A cluster with so many cells on each machine, not started; what runs is stopped at the end. ``with_nats``: each
    of the first three has a server of NATS, too. ``with_small_disks``: data directories and what NATS stores can be
    filled. ``with_outside``: there is a network without a broker, too."""
    with ExitStack() as stack:
        networks = stack.enter_context(hosts(len(sizes) + with_outside))
        places = [directory / name for name in sizes] if with_small_disks else []
        disks = [stack.enter_context(small_disk(place, _DISK_MB)) for place in places]
        places = [directory / f"nats-{at}" / "jetstream" for at in range(len(disks))]
        nats_disks = [stack.enter_context(small_disk(place, _DISK_MB)) for place in places]
        nats = Nats(directory, networks=networks[:_SERVERS]) if with_nats else None
        if nats is not None:
            stack.callback(nats.stop)
        cluster = Cluster(directory, networks, sizes, settings, nats)
        cluster.disks, cluster.nats_disks = disks, nats_disks
        for machine in cluster.machines.values():
            stack.callback(_end, machine)
        yield cluster


def _end(machine: Machine) -> None:
    if machine.is_running:
        machine.kill()
