"""Cells: the broker processes of one machine, each with its own store and the clients of some slots.

A client belongs to one cell by its identifier, so its connection, session, will and acknowledgements are in one
process, whatever the number of cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

SLOTS: Final = 1024
MAX_CELLS: Final = 64
LEAVES: Final = 0x80
"""In a table of the machines that run cells: the cell is about to move."""


def slot_of(client_id: str) -> int:
    """Share of client identifiers that one belongs to: from 0 to ``SLOTS`` - 1."""
    return crc32(client_id.encode()) % SLOTS


def cell_of(client_id: str, count: int) -> int:
    """Number of the cell that has a client."""
    return slot_of(client_id) * count // SLOTS


def cell_of_name(name: str, count: int) -> int:
    """Number of the cell that runs what runs once, as a source, by its name. With one cell more, only names that the
    new one gets have another cell."""
    return max(range(count), key=lambda cell: blake2b(f"{cell}/{name}".encode()).digest())


# Begins the addressee of a record for the clients of some slots; no client identifier has a NUL.
_ADDRESSED: Final = "\0slots:"


class Slots(NamedTuple):
    """Slots from ``first`` to ``last``, both included. A record of the session log may be addressed to them: to those
    sessions of their clients that subscribed before it."""

    first: int
    last: int

    @classmethod
    def of_cell(cls, cell: int, count: int) -> Slots:
        """The slots of a cell."""
        return cls(-(-cell * SLOTS // count), -(-(cell + 1) * SLOTS // count) - 1)

    @classmethod
    def of_addressee(cls, addressee: str) -> Slots | None:
        """The slots that a record is addressed to, None where it is addressed to a client."""
        if not addressee.startswith(_ADDRESSED):
            return None
        first, _, last = addressee.removeprefix(_ADDRESSED).partition("-")
        return cls(int(first), int(last))

    @property
    def addressee(self) -> str:
        """Text that addresses a record to them."""
        return f"{_ADDRESSED}{self.first}-{self.last}"

    def have(self, client_id: str) -> bool:
        """True if a client is of these slots."""
        return self.first <= slot_of(client_id) <= self.last

    def common(self, other: Slots) -> Slots | None:
        """The slots that both have, or None."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return Slots(first, last) if first <= last else None


class Machine(NamedTuple):
    """A machine of a cluster, which has ``size`` cells from ``first`` on. Other machines reach it at ``host`` and
    ``port``, clients of MQTT at ``mqtt`` (``host:port``, empty where that is not told)."""

    name: str
    host: str
    port: int
    first: int
    size: int
    mqtt: str = ""

    @property
    def cells(self) -> range:
        """Numbers of its cells."""
        return range(self.first, self.first + self.size)


@dataclass(frozen=True, slots=True)
class Place:
    """The cell of this process: its number from 0, how many there are, and the directory of their sockets.
    ``machines`` are those of a cluster, in the order of their cells; none where one machine has all."""

    number: int
    count: int
    run: Path
    machines: Sequence[Machine] = ()
    redirects: bool = False
    """True if clients of MQTT 5 are referred to their machine, not relayed to it."""
    machine: str = ""
    """Name of the machine that this process runs on, where that may be another one than the cell's own."""
    owners: Sequence[int] | None = None
    """Place among ``machines`` of the one that runs each cell now, with ``LEAVES``; None where each runs its own."""

    def home_of(self, cell: int) -> Machine:
        """The machine that a cell belongs to, in a cluster."""
        return next(machine for machine in self.machines if cell in machine.cells)

    def machine_of(self, cell: int) -> Machine:
        """The machine that runs a cell, in a cluster."""
        if self.owners is None:
            return self.home_of(cell)
        return self.machines[self.owners[cell] & ~LEAVES]

    def is_at_home(self, cell: int) -> bool:
        """True if the machine that a cell belongs to runs it."""
        return self.owners is None or self.machine_of(cell) == self.home_of(cell)

    @property
    def is_guest(self) -> bool:
        """True if the cell belongs to another machine than that of this process."""
        return bool(self.machine) and self.home_of(self.number).name != self.machine

    @property
    def here(self) -> str:
        """Name of the machine that this process runs on, in a cluster."""
        return self.machine or (self.home_of(self.number).name if self.machines else "")

    def server_of(self, client_id: str) -> str:
        """Address to which a client of MQTT 5 is referred; empty where it is brought to its cell."""
        if not self.redirects:
            return ""
        cell = self.cell_of(client_id)
        if self.owners is not None and self.owners[cell] & LEAVES:
            return ""  # a relayed client waits until the cell has moved
        machine = self.machine_of(cell)
        return "" if machine.name == self.here else machine.mqtt

    @property
    def servers_elsewhere(self) -> str:
        """Addresses of the other machines, to which clients of MQTT 5 are referred when this process ends, as a Server
        Reference [MQTT 5.0, 4.11]. Empty where clients are not referred."""
        if not self.redirects:
            return ""
        at = [machine.name for machine in self.machines].index(self.here)
        others = [*self.machines[at + 1 :], *self.machines[:at]]
        return " ".join(machine.mqtt for machine in others if machine.mqtt)

    @property
    def is_parting(self) -> bool:
        """True if all cells that run on this machine are about to move."""
        if self.owners is None:
            return False
        at = [machine.name for machine in self.machines].index(self.here)
        return all(owner & LEAVES for owner in self.owners if owner & ~LEAVES == at)

    @property
    def index(self) -> int:
        """Its number among the cells of its machine, from 0; -1 for a guest."""
        return -1 if self.is_guest else self.number - self.near.start

    @property
    def near(self) -> range:
        """Numbers of the cells with whose processes it shares a directory: those of its machine, or a guest alone."""
        if self.is_guest:
            return range(self.number, self.number + 1)
        return self.home_of(self.number).cells if self.machines else range(self.count)

    def head_of(self, cell: int) -> int:
        """Number of the cell whose range server reads the store of a cell: the first of its machine, or a guest
        itself."""
        return self.home_of(cell).first if self.is_at_home(cell) else cell

    def cell_of(self, client_id: str) -> int:
        """Number of the cell that has a client."""
        return cell_of(client_id, self.count)

    def has(self, client_id: str) -> bool:
        """True if the client is one of this cell."""
        return self.cell_of(client_id) == self.number

    def part_of(self, limit: int) -> int:
        """A cell's part of a limit of clients for all cells, and a tenth more, since identifiers do not share out
        evenly; 0 is no limit."""
        return -(-limit * 11 // (10 * self.count))

    @property
    def others(self) -> list[int]:
        """Numbers of the other cells."""
        return [number for number in range(self.count) if number != self.number]
