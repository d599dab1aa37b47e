"""Cells: the broker processes of one machine, each with its own store and the clients of some slots.

A client belongs to one cell by its identifier, so its connection, session, will and acknowledgements are in one
process, whatever the number of cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

SLOTS: Final = 1024
MAX_CELLS: Final = 64


def slot_of(client_id: str) -> int:
    """Share of client identifiers that one belongs to: from 0 to ``SLOTS`` - 1."""
    return crc32(client_id.encode()) % SLOTS


@dataclass(frozen=True, slots=True)
class Place:
    """The cell of this process: its number from 0, how many there are, and the directory of their sockets."""

    number: int
    count: int
    run: Path

    def cell_of(self, client_id: str) -> int:
        """Number of the cell that has a client."""
        return slot_of(client_id) * self.count // SLOTS

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
