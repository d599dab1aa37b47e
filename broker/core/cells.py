"""Cells: the broker processes of one machine, each with its own store and the clients of some slots.

A client belongs to one cell by its identifier, so its connection, session, will and acknowledgements are in one
process, whatever the number of cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

SLOTS: Final = 1024
MAX_CELLS: Final = 64


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


@dataclass(frozen=True, slots=True)
class Place:
    """The cell of this process: its number from 0, how many there are, and the directory of their sockets."""

    number: int
    count: int
    run: Path

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
