"""The rounds of ``tests.cluster.kills`` over several machines, which are killed as a whole or cut off, too."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psutil
from prometheus_client.parser import text_string_to_metric_families as families

from broker.cluster.copying import remove_store, socket_of_copies, socket_of_copy, state_at
from broker.cluster.directories import COPIES, cell_directory, copy_directory
from broker.cluster.nats.log import NatsLog
from broker.core.errors import Unavailable
from broker.observe.ledger import DROPPED, LATE, PASSED, RECEIVED, RESENT
from broker.storage.rocksdb.database import Database
from broker.storage.rocksdb.options import USUAL_MEMORY
from broker.storage.rocksdb.store import DATABASE_FOLDER, RocksStore
from tests.cluster.kills import CONFIG, CellWorld, Live, check_rows, define, rows
from tests.end_to_end.kills import DEADLINE_S
from tests.end_to_end.memories import Lasting, Sent
from tests.support import connections
from tests.support.machines import Cluster, Machine, machines
from tests.support.nats import NatsServer
from tests.support.node import eventually
from tests.support.waiting import within

if TYPE_CHECKING:
    from tests.cluster.targets import Targets

SEED: Final = int(os.environ.get("SLUICE_KILL_SEED", "20261128"))
# Faults by how often each happens, once all have happened.
FAULTS: Final = {
    "cell": 2,
    "machine": 4,
    "supervisor": 2,
    "tunnel": 2,
    "cut": 3,
    "away": 3,
    "pause": 2,
}
# Those of machines with NATS, which also lose a server of it, and a disk, or give cells away.
NATS_FAULTS: Final = {
    **FAULTS,
    "disk": 4,
    "nats": 3,
    "machine_with_nats": 3,
    "slow": 3,
    "pause_cell": 2,
    "pause_nats": 2,
    "full": 3,
    "full_nats": 3,
    "clock": 2,
    "pair": 2,
    "apart": 2,
    "move": 3,
    "drain": 3,
}
# Faults after which clients of a machine's cells may be cut off, although these live.
_MAY_MOVE: Final = ("supervisor", "cut", "away", "pause", "slow", "full")
# Seconds of the faults: machines give a silent one up after 5.
_CUT_S: Final = (0.2, 3.0)
_AWAY_S: Final = (6.0, 10.0)
# Longer than an owner waits for its log: what it has then answered must hold.
_LONG_AWAY_S: Final = (16.0, 25.0)
_NOTICED_S: Final = 7.0
# Seconds for which live messages wait for another cell, but for those that a look at it takes.
_LIVE_S: Final = 9.0
_PAUSE_S: Final = (0.2, 3.0)
# Part of the pauses and cuts that are long.
_LONG: Final = 0.15
_LONG_PAUSE_S: Final = (6.0, 30.0)
_SLOW_S: Final = (3.0, 6.0)
_FULL_S: Final = (1.0, 6.0)
_CLOCK_S: Final = (2.0, 6.0)
_CLOCK_BY_S: Final = 3000


class MachineWorld(CellWorld):
    """A cluster, its clients, each at some machine, and what they were told."""

    def __init__(self, cluster: Cluster, seed: int, names: Collection[str] = ()) -> None:
        """``names``: the faults, else those of the environment, else all."""
        self.cluster = cluster
        kinds = FAULTS if cluster.nats is None else NATS_FAULTS
        names = names or os.environ.get("SLUICE_KILL_FAULTS", ",".join(kinds)).split(",")
        self._kinds = {name: kinds[name] for name in names}
        self._touched: set[Lasting] = set()
        """Clients whose connections may have ended in this round."""
        self._parted: Collection[Machine] = ()
        """Machines whose connections to others were cut off."""
        self._killed_s = self._unlinked_s = 0.0
        """When the round's fault began, and the seconds until all cells reached each other again."""
        self._errand: asyncio.Task[None] | None = None
        self._moved: Collection[int] = ()
        """Cells whose clients may be cut off, or miss what comes from other cells, although they live."""
        machines = [*cluster.machines.values()]
        self._machines = machines
        for machine in machines:
            connections.hosts[machine.mqtt[1]] = machine.mqtt[0]
        machines[0].workers = cluster.count  # the world has as many cells
        super().__init__(machines[0], seed)
        machines[0].workers = 1

    @property
    def _port(self) -> int:
        return self.chance.choice(self._machines).mqtt[1]

    def _may_have_ended(self, client: Lasting) -> bool:
        return client in self._touched

    def _is_across(self, client: Lasting) -> bool:
        """Whether the connection of a client crosses the edge of a machine whose connections were cut off."""
        own = self.cluster.machine_of(self.place.cell_of(client.client_id))
        at = next((one for one in self._machines if one.mqtt[1] == client.port), None)
        return own is not at and any(one in self._parted for one in (own, at))

    def _links_were_late(self) -> bool:
        return self._unlinked_s > _LIVE_S

    def _cells_may_have_ended(self) -> bool:
        return bool(self._victims or self._moved)

    def _may_be_late(self, client: Lasting) -> bool:
        return self._may_have_ended(client)

    def _kill(self) -> None:
        kind = self._next_of(self._kinds)
        self._killed_s = time.monotonic()
        machine = self.chance.choice(self._machines)
        self._parted = ()
        print(f"round {self.figures.rounds}: {kind} of {machine.name}")
        may_move = self.cluster.nats is not None and kind in _MAY_MOVE
        self._moved = machine.cells if may_move else ()
        getattr(self, f"_{kind}")(machine)
        self._touched = {
            client
            for client in self._all()
            if (cell := self.place.cell_of(client.client_id)) in self._victims
            or cell in self._moved
            or self._is_across(client)
        }

    def _cell(self, machine: Machine) -> None:
        cell = self.chance.choice([*machine.cells])
        machine.cell(cell).send_signal(signal.SIGKILL)
        self._victims.add(cell)
        self._parted = [machine]  # it relays clients of other machines
        self._struck.set()

    def _machine(self, machine: Machine) -> None:
        machine.kill()
        self._parted = [machine]
        self._victims.update(machine.cells)
        self._struck.set()

    def _disk(self, machine: Machine) -> None:
        """A machine is lost with the stores of its cells and its copies of others."""
        self._machine(machine)
        for cell in machine.cells:
            remove_store(cell_directory(machine.data_dir, cell - machine.cells.start))
        shutil.rmtree(machine.data_dir / COPIES, ignore_errors=True)

    def _nats(self, machine: Machine) -> None:
        self._nats_of(machine).kill()
        self._struck.set()

    def _machine_with_nats(self, machine: Machine) -> None:
        self._nats_of(machine).kill()
        self._machine(machine)

    def _nats_of(self, machine: Machine) -> NatsServer:
        assert self.cluster.nats is not None
        return self.cluster.nats.servers[self._machines.index(machine)]

    def _supervisor(self, machine: Machine) -> None:
        machine.kill_supervisor()
        self._parted = [machine]
        self._struck.set()

    def _tunnel(self, machine: Machine) -> None:
        machine.tunnel().send_signal(signal.SIGKILL)
        self._parted = [machine]
        self._struck.set()

    def _slow(self, machine: Machine) -> None:
        """What a machine sends waits in a queue, and some of it is lost."""
        rate = f"{self.chance.randint(300, 2000)}kbit"
        machine.network.slow(rate, self.chance.randint(100, 800), self.chance.uniform(0, 0.1))
        self._parted = [machine]
        self._end(machine.network.quicken, self.chance.uniform(*_SLOW_S), _NOTICED_S)

    def _full(self, machine: Machine) -> None:
        """The disk of a machine is full for some seconds: its cells end with the next commit."""
        disk = self.cluster.disks[self._machines.index(machine)]
        disk.fill()
        self._parted = [machine]  # it relays clients of other machines
        self._end(disk.free, self.chance.uniform(*_FULL_S))

    def _full_nats(self, machine: Machine) -> None:
        """The disk of a server of NATS is full: it stores nothing more until it is started again."""
        disk = self.cluster.nats_disks[self._machines.index(machine)]
        disk.fill()

        def free() -> None:
            disk.free()
            self._nats_of(machine).kill()

        self._end(free, self.chance.uniform(*_FULL_S))

    def _clock(self, machine: Machine) -> None:
        """The clock of a machine is wrong by 50 minutes for some seconds: a will with a delay may be late by that."""
        name = f"w{self.figures.rounds - 1}"
        if self.place.cell_of(name) in machine.cells:
            will = Sent(name, f"w/{name}", 2, 0).payload
            self.wills_told.discard(will)
            self.wills_late.add(will)
        machine.move_clock(self.chance.choice((-1, 1)) * _CLOCK_BY_S)
        # a process looks at its clock five times a second, and the next will is not to be of before
        self._end(lambda: machine.move_clock(0), self.chance.uniform(*_CLOCK_S), 1.0)

    def _cut(self, machine: Machine) -> None:
        self._part(machine, self.chance.uniform(*_CUT_S))

    def _away(self, machine: Machine) -> None:
        self._part(machine, self.chance.uniform(*(_LONG_AWAY_S if self._is_long() else _AWAY_S)))

    def _pair(self, machine: Machine) -> None:
        """Two machines do not reach each other; the third one and NATS reach both."""
        other = self._other(machine)
        self._moved = {*machine.cells, *other.cells}
        self._parted = [machine, other]
        machine.network.part_from(other.network)
        other.network.part_from(machine.network)
        self._end(partial(_heal, [machine, other]), self.chance.uniform(*_AWAY_S), _NOTICED_S)

    def _apart(self, machine: Machine) -> None:
        """No machine reaches another one, nor anything else."""
        self._moved = range(self.cluster.count)
        self._parted = [machine]
        for one in self._machines:
            one.network.part()
        duration_s = self.chance.uniform(_CUT_S[0], _AWAY_S[1])
        self._end(partial(_heal, self._machines), duration_s, _NOTICED_S)

    def _move(self, machine: Machine) -> None:
        """A cell moves to another machine, and back."""
        cell = self.chance.choice([*machine.cells])
        to = self._other(machine)
        self._give_away(
            machine,
            (f"/cluster/machines/{to.name}:take", {"cell": cell}),
            ("/cluster/machines:rebalance", None),
        )

    def _drain(self, machine: Machine) -> None:
        """A machine gives all its cells away, and gets them back."""
        path = f"/cluster/machines/{machine.name}"
        self._give_away(machine, (f"{path}:drain", None), (f"{path}:resume", None))

    def _give_away(self, machine: Machine, *orders: tuple[str, Any]) -> None:
        self._moved = machine.cells
        self._parted = [machine]
        asked = self._other(machine)

        async def give() -> None:
            for path, body in orders:
                await asyncio.to_thread(eventually, partial(_order, asked, path, body))
            self._struck.set()

        self._errand = asyncio.create_task(give())

    def _other(self, machine: Machine) -> Machine:
        return self.chance.choice([one for one in self._machines if one is not machine])

    def _part(self, machine: Machine, duration_s: float) -> None:
        machine.network.part()
        self._parted = [machine]
        self._end(machine.network.heal, duration_s, _NOTICED_S)

    def _end(self, end: Callable[[], None], after_s: float, notice_s: float = 0) -> None:
        """End a fault after so long. Machines may find for another ``notice_s`` that there was one."""
        loop = asyncio.get_running_loop()

        def ended() -> None:
            end()
            loop.call_later(notice_s, self._struck.set)

        loop.call_later(after_s, ended)

    def _pause(self, machine: Machine) -> None:
        self._suspend(machine.children(), machine)

    def _pause_cell(self, machine: Machine) -> None:
        self._suspend([machine.cell(self.chance.choice([*machine.cells]))], machine)

    def _pause_nats(self, machine: Machine) -> None:
        self._suspend([psutil.Process(self._nats_of(machine).pid)])

    def _suspend(self, processes: list[psutil.Process], machine: Machine | None = None) -> None:
        """Stop processes for a moment, or with NATS now and then until others give up their ``machine``."""
        is_long = self._is_long()
        if is_long and machine is not None:
            self._parted, self._moved = [machine], machine.cells
        for process in processes:
            process.suspend()

        def go_on() -> None:
            for process in processes:
                process.resume()

        duration_s = self.chance.uniform(*(_LONG_PAUSE_S if is_long else _PAUSE_S))
        self._end(go_on, duration_s, _NOTICED_S if is_long else 0)

    def _is_long(self) -> bool:
        return self.cluster.nats is not None and self.chance.random() < _LONG

    async def _repair(self) -> None:
        """Start machines, and wait until each client knows whether its connection is over."""
        if self._errand is not None:
            await self._errand
            self._errand = None
        for server in () if self.cluster.nats is None else self.cluster.nats.servers:
            if not server.is_running:
                await asyncio.to_thread(server.start)
        for machine in self._machines:
            if machine.process is None or machine.process.returncode is not None:
                await asyncio.to_thread(machine.start)
        await asyncio.to_thread(eventually, self._are_linked)
        self._unlinked_s = time.monotonic() - self._killed_s
        touched = [client for client in self._all() if self._may_have_ended(client)]
        await within(asyncio.gather(*(client.answered() for client in touched)), DEADLINE_S)

    def _are_linked(self) -> bool:
        rows = self._machines[0].call("GET", "/cells")["items"]
        slots = self._machines[0].call("GET", "/cluster/slots")["items"]
        return all(row["links"] == self.cluster.count - 1 for row in rows) and all(
            row["machine"] == self.cluster.machine_of(row["cell"]).name for row in slots
        )

    async def _account(self, connections: dict[Live, int], *, is_complete: bool) -> None:
        await super()._account(connections, is_complete=is_complete)
        if self.cluster.nats is not None:
            # every copy has all that its owner has committed
            await asyncio.to_thread(eventually, self._are_followed, 60)
        await asyncio.to_thread(eventually, self._tiles)

    def _tiles(self) -> bool:
        """Every cell accounts for all that came to it: it was passed on, or dropped for a reason."""
        left: Counter[str] = Counter()
        with self._machines[0].client() as api:
            text = api.get(f"{self._machines[0].url}/metrics").text
        for sample in (one for family in families(text) for one in family.samples):
            name = sample.name.removeprefix("sluice_").removesuffix("_total")
            sign = (name in RECEIVED) - (name in (PASSED, DROPPED, RESENT))
            if name == DROPPED and sample.labels["reason"] in LATE:
                sign = 0
            if sign:
                left[sample.labels["cell"]] += sign * round(sample.value)
        assert len(left) == self.cluster.count, left
        return not any(left.values())

    def _are_followed(self) -> bool:
        try:
            return self._is_all_followed()
        except Unavailable:
            return False

    def _is_all_followed(self) -> bool:
        states = [
            state_at(machine.data_dir / "run", socket_of_copies(machine.name), cell)
            for machine in self._machines
            for cell in range(self.cluster.count)
            if cell not in machine.cells
        ]
        owners = [
            state_at(machine.data_dir / "run", socket_of_copy(cell), cell)
            for machine in self._machines
            for cell in machine.cells
        ]
        ends = Counter(state.position for state in owners)
        return not any(state.problem for state in states) and Counter(
            state.position for state in states
        ) == Counter(
            {position: many * (len(self._machines) - 1) for position, many in ends.items()}
        )

    def check_copies(self) -> None:
        """Every copy with the rest of the log is its owner's store. Machines do not run, and NATS does."""
        for machine in self._machines:
            for cell in machine.cells:
                own = self._content(cell_directory(machine.data_dir, cell - machine.cells.start))
                for other in self._machines:
                    if other is not machine:
                        directory = copy_directory(other.data_dir, cell)
                        self._follow(directory, cell)
                        copied = self._content(directory)
                        assert own.keys() == copied.keys()
                        differ = [key for key in own if own[key] != copied[key]]
                        assert not differ, (machine.name, other.name, differ[:5])

    def _follow(self, directory: Path, cell: int) -> None:
        assert self.cluster.nats is not None
        log = NatsLog(self.cluster.nats.places, "plant", cell, "test")
        database = Database(directory / DATABASE_FOLDER, USUAL_MEMORY)
        for mark, steps in log.follow(database.applied):
            database.apply(mark, steps)
        database.close()
        log.close()

    @staticmethod
    def _content(directory: Path) -> dict[bytes, bytes]:
        """All keys with their values."""
        store = RocksStore(directory)
        try:
            return dict(store.copy())
        finally:
            store.close()

    def rows(self) -> Counter[bytes]:
        """How often each payload is in the stream, over all machines, which do not run."""
        found: Counter[bytes] = Counter()
        for machine in self._machines:
            found.update(rows(machine.data_dir, len(machine.cells)))
        return found


def _order(machine: Machine, path: str, body: Any) -> bool:
    """Give an order, and do not wait until it is carried out."""
    with machine.client() as client:
        answer = client.post(path, json=body, headers={"Prefer": "respond-async"})
    assert answer.status_code in (200, 202), answer.text
    return True


def _heal(machines: Iterable[Machine]) -> None:
    for machine in machines:
        machine.network.heal()


def run_rounds(
    directory: Path,
    rounds: int,
    seed: int,
    *,
    with_nats: bool = False,
    targets: type[Targets] | None = None,
    faults: Collection[str] = (),
) -> MachineWorld:
    """Rounds with three machines, and the account of the stream, and of ``targets``."""

    async def play(world: MachineWorld) -> None:
        await world.begin()
        try:
            for number in range(rounds):
                await world.round(number)
        finally:
            await world.close()

    sizes = {"a": 1, "b": 1, "c": 1}
    settings = CONFIG if targets is None else targets.settings(directory)
    with (
        machines(
            directory,
            sizes,
            settings,
            with_nats=with_nats,
            with_small_disks=with_nats,
            with_outside=targets is not None,
        ) as cluster,
        ExitStack() as stack,
    ):
        fed = None
        if targets is not None:
            fed = stack.enter_context(targets(directory, cluster.outside))
        if with_nats:
            for machine in cluster.machines.values():
                machine.have_own_clock()
        cluster.start()
        define(cluster["b"]) if fed is None else fed.define(cluster["b"])
        world = MachineWorld(cluster, seed, faults)
        try:
            asyncio.run(play(world))
        finally:
            print(
                f"seed {seed}: {world.figures} {dict(world.faults)}, lost QoS 2: {len(world.lost)}"
            )
        if fed is not None:
            fed.check(cluster["b"], world.told_rows())
        cluster.stop()
        for machine in cluster.machines.values():
            log = machine.log.read_text()
            assert "Traceback" not in log, log[log.index("Traceback") - 500 :][:3000]
        if with_nats:
            world.check_copies()
        check_rows(world.rows(), world.told_rows())
    return world
