"""Work on ranges of a stream in pieces: what is done, and what ends it."""

from __future__ import annotations

import pytest

from bridges.spark.driver.progress import Cancelled, RangeProgress
from bridges.spark.tables.contract import CommitConflict, Range, until_committed

RANGES = [Range(0, 0, 6), Range(1, 3, 7)]


def test_a_piece_is_done_when_the_next_one_is_taken() -> None:
    progress = RangeProgress()
    steps = [(progress.done, piece) for piece in progress.over(RANGES, 4)]
    assert steps == [
        (0, [Range(0, 0, 4)]),
        (4, [Range(0, 4, 6), Range(1, 3, 5)]),
        (8, [Range(1, 5, 7)]),
    ]
    assert progress.done == 10


def test_work_is_cancelled_between_two_pieces_also_while_it_is_paused() -> None:
    progress = RangeProgress()
    steps = progress.over(RANGES, 4)
    next(steps)
    next(steps)
    progress.is_paused = progress.is_cancelled = True
    with pytest.raises(Cancelled):
        next(steps)
    assert progress.done == 8
    paused = RangeProgress(is_paused=True)
    paused.is_cancelled = True
    with pytest.raises(Cancelled):
        next(paused.over(RANGES))


def test_a_rate_makes_pieces_of_two_seconds() -> None:
    assert next(RangeProgress(rate=2).over(RANGES, 100)) == [Range(0, 0, 4)]
    assert next(RangeProgress(rate=1000).over(RANGES, 5)) == [Range(0, 0, 5)]


def test_a_change_is_made_again_on_the_newest_version_but_not_forever() -> None:
    versions = [1]

    def change() -> int:
        if versions[-1] < 3:
            raise CommitConflict("another writer was first")
        return versions[-1]

    assert until_committed(change, lambda: versions.append(versions[-1] + 1), "table 't'") == 3
    versions.append(0)
    with pytest.raises(CommitConflict, match="table 't' has constant conflicts with other writers"):
        until_committed(change, lambda: versions.append(0), "table 't'", attempts=4)
