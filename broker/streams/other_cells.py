"""The shards of streams in the other cells of a broker, as the first cell heard of them last.

The first cell answers for all, and the range server of the first cell of each machine reads the stores of its cells. A
log of cell n has there the number n × ``CELL_LOGS`` + its own, one of that first cell its own number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from broker.core.errors import Unavailable

# Numbers of logs of one cell; a number counts the streams that a cell ever had.
CELL_LOGS: Final = 10_000_000

Heard = Mapping[str, Any]
"""A stream as its cell shows it (``StreamService.told``)."""


class OtherCells:
    """The knowledge of the first cell. ``ask_at`` asks a cell for the offsets of a stream at a time, in microseconds
    since 1970: it blocks, and is for threads. ``machines`` has the first cell of the machine of each cell that is on
    another one."""

    def __init__(
        self,
        cells: Sequence[int],
        ask_at: Callable[[int, str, int], Heard],
        machines: Mapping[int, int],
    ) -> None:
        self.cells = cells
        self.machines = machines
        self.urls: dict[int, str] = {}
        """Addresses of the range servers of other machines, by their first cells."""
        self._ask_at = ask_at
        self._heard: dict[int, Mapping[str, Heard]] = {}
        self._away: set[int] = set(cells)

    def note(self, cell: int, streams: Mapping[str, Heard], *, is_all: bool = True) -> None:
        """Take what a cell shows of its streams, or of some of them."""
        self._heard[cell] = streams if is_all else {**self._heard.get(cell, {}), **streams}
        self._away.discard(cell)

    def note_away(self, cell: int) -> None:
        """A cell has not answered: what it showed last stays."""
        self._away.add(cell)

    def is_away(self, cell: int) -> bool:
        """True if a cell has not answered when it was asked last."""
        return cell in self._away

    def of(self, name: str) -> dict[int, Heard]:
        """A stream as each cell showed it last; without cells that never did, or whose range server is not known."""
        return {
            cell: streams[name]
            for cell, streams in sorted(self._heard.items())
            if name in streams and (cell not in self.machines or self.machines[cell] in self.urls)
        }

    def unread(self, name: str, shard: int) -> tuple[int, int] | None:
        """The first record of a shard that some table has not read, and when it was published."""
        for stream in self.of(name).values():
            for position in stream["shards"]:
                if position["shard"] == shard and "unread" in position:
                    return position["unread"], position["unread_us"]
        return None

    def require(self, name: str) -> dict[int, Heard]:
        """The same of all cells.

        Raises:
            Unavailable: a cell has not shown it yet, so the end of its shards is not known.
        """
        streams = self.of(name)
        for cell in self.cells:
            if cell not in streams:
                text = f"cell {cell} has not shown yet what it has of stream {name!r}"
                raise Unavailable(text, retry_after_s=1)
        return streams

    def at(self, name: str, at_us: int) -> dict[int, Heard]:
        """The same with the first offsets at or after a time. Blocks.

        Raises:
            Unavailable: a cell does not answer.
        """
        return {cell: self._ask_at(cell, name, at_us) for cell in self.cells}


def together(own: Mapping[str, Any], others: Sequence[Heard]) -> dict[str, Any]:
    """A stream as all cells show it: its positions one behind the other, sizes and rates added."""
    shown = dict(own)
    for other in others:
        for name in ("positions", "records", "bytes", "records_per_s"):
            shown[name] = shown[name] + other[name]
        shown["oldest"] = _least(shown["oldest"], other["oldest"])
        shown["newest"] = _least(shown["newest"], other["newest"], is_most=True)
        for name, worst, added in (
            ("index_state", ("failing", "building"), ("records_waiting", "bytes")),
            (
                "tier_state",
                ("failing", "starting"),
                ("positions", "records_waiting", "segments", "bytes"),
            ),
        ):
            ours, theirs = shown[name], other[name]
            if ours is None or theirs is None:
                continue
            joined = {**ours, **{member: ours[member] + theirs[member] for member in added}}
            states = (ours["state"], theirs["state"])
            joined["state"] = next((state for state in worst if state in states), ours["state"])
            joined["problem"] = ours["problem"] or theirs["problem"]
            if "oldest" in joined:
                joined["oldest"] = _least(ours["oldest"], theirs["oldest"])
                joined["last_success"] = _least(ours["last_success"], theirs["last_success"])
            shown[name] = joined
    shown["records_per_s"] = round(shown["records_per_s"], 1)
    return shown


def _least(first: str | None, second: str | None, *, is_most: bool = False) -> str | None:
    """The earlier of two times that are written alike, or the later one."""
    times = [time for time in (first, second) if time is not None]
    return (max if is_most else min)(times, default=None)
