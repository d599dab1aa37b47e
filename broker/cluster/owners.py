"""The machine that runs each cell now: a file in the run directory that the keeper writes, and that other processes of
the machine have in their memory. Byte n is the place of the machine of cell n among the machines, with
``broker.core.cells.LEAVES``.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from broker.core.cells import LEAVES, MAX_CELLS, Machine

_FILE: Final = "owners"


def make_owners(run: Path, machines: Sequence[Machine]) -> None:
    """Begin with each cell at home, unless a table of these machines is there: processes of an earlier supervisor use
    it."""
    path = run / _FILE
    before = path.read_bytes() if path.exists() else b""
    if len(before) == MAX_CELLS and all(place & ~LEAVES < len(machines) for place in before):
        return
    table = bytearray(MAX_CELLS)
    for place, machine in enumerate(machines):
        for cell in machine.cells:
            table[cell] = place
    path.unlink(missing_ok=True)  # one that is in the memory of a process does not get shorter
    path.write_bytes(table)


def owners_in(run: Path, *, is_keeper: bool = False) -> memoryview:
    """The table as it is at any time; it can be changed by the keeper alone."""
    with (run / _FILE).open("r+b" if is_keeper else "rb") as file:
        access = mmap.ACCESS_WRITE if is_keeper else mmap.ACCESS_READ
        return memoryview(mmap.mmap(file.fileno(), MAX_CELLS, access=access))
