"""Work on ranges of a stream in pieces: how much is done, at which rate; it is paused and cancelled between pieces."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bridges.spark.tables.contract import Range
from bridges.spark.tables.replacing import pieces
from broker.core.errors import SluiceError

# Records of a piece, after which progress is reported.
PIECE: Final = 500_000
# Seconds of a piece of work with a rate.
_PIECE_S: Final = 2
# Seconds between two checks of paused work.
_LOOK_S: Final = 0.1


class Cancelled(SluiceError):
    """The end of work that a user has cancelled."""


class RangeProgress:
    """Progress of work on ranges of a stream. Others pause and cancel it while a thread works."""

    def __init__(self, rate: int | None = None, *, is_paused: bool = False) -> None:
        self.done = 0
        """Records of the pieces that are done."""
        self.is_paused = is_paused
        self.is_cancelled = False
        self._rate = rate
        self._due_s = 0.0

    def over(self, ranges: Sequence[Range], records: int | None = None) -> Iterator[list[Range]]:
        """Ranges in pieces of this number of records, or of fewer where there is a rate; see ``through``."""
        most = records or PIECE
        return self.through(
            pieces(ranges, most if self._rate is None else max(1, min(most, self._rate * _PIECE_S)))
        )

    def through(self, parts: Iterable[list[Range]]) -> Iterator[list[Range]]:
        """Pieces, each once the one before is done and the rate permits more.

        Raises:
            Cancelled: a user has cancelled the work.
        """
        self._wait(0)
        for piece in parts:
            yield piece
            records = sum(part.end - part.start for part in piece)
            self.done += records
            self._wait(records)

    def _wait(self, records: int) -> None:
        """Wait until the rate permits more than the records that were read last, and while the work is paused."""
        due_s = self._due_s + (0 if self._rate is None else records / self._rate)
        while not self.is_cancelled and (self.is_paused or time.monotonic() < due_s):
            time.sleep(_LOOK_S)
        self._due_s = time.monotonic()
        if self.is_cancelled:
            raise Cancelled("it was cancelled")
