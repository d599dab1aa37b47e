"""The machines of a broker as users see them, and which of them has a client."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from broker.admin.cells import Arrival, Contents


class MachineRow(TypedDict):
    """A machine of the cluster. The cells from `first_cell` to `last_cell` are its own by the section `cluster` (null
    for a machine that was added later), and `home_cells` belong to it, since some were moved: it gets each of these
    back when it can run it. It runs `cells` now, and its copies of the stores of the cells `copies` follow. `draining`:
    it gives its cells to other machines; `drained`: it has given them, and gets none until it is resumed; `forgotten`:
    it is away, and is not expected back. Other machines reach it at `address`, clients at `mqtt`, where that is
    configured. Without `cluster.nats` cells never move."""

    name: str
    state: Literal["running", "draining", "drained", "away", "forgotten"]
    version: str | None
    cells: list[int]
    home_cells: list[int]
    copies: list[int]
    first_cell: int | None
    last_cell: int | None
    address: str
    mqtt: str | None


class SlotRow(TypedDict):
    """The slots from `first` to `last`, both included, and the cell that has their clients. The slot of a client is the
    CRC-32 of its identifier in UTF-8, modulo 1,024. `machine` and `mqtt` are null where one machine has all cells."""

    first: int
    last: int
    cell: int
    machine: str | None
    mqtt: str | None


class Move(TypedDict):
    """A cell that has moved, and its contents (`Arrival`): null where it did not leave in order but was taken
    over, or has ended since."""

    cell: int
    machine: str | None
    arrival: Arrival | None


class Moves(Contents):
    """The result of an order to move cells, with the contents of all of them. `uncounted` are the cells that were taken
    over, or have ended since: nothing is known of these."""

    cells: list[Move]
    uncounted: int
