"""Offset arithmetic: what is available, how much of it a micro-batch takes, how a range is cut into partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_sluice.errors import SourceError

# An offset per shard.
Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets ``start`` up to, not including, ``end`` of one shard."""

    shard: int
    start: int
    end: int


def advance(start: Offsets, available: Offsets, limit: int | None) -> dict[int, int]:
    """The end of a batch of at most ``limit`` rows, shared evenly by the shards that have rows waiting."""
    waiting = {shard: max(0, available[shard] - start.get(shard, 0)) for shard in sorted(available)}
    if limit is None or sum(waiting.values()) <= limit:
        return {shard: start.get(shard, 0) + rows for shard, rows in waiting.items()}
    end = {shard: start.get(shard, 0) for shard in waiting}
    left = limit
    while left > 0:
        behind = [shard for shard in waiting if waiting[shard] > 0]
        share = max(1, left // len(behind))
        for shard in behind:
            rows = min(share, waiting[shard], left)
            end[shard] += rows
            waiting[shard] -= rows
            left -= rows
    return end


def split(start: Offsets, end: Offsets, partitions: int, min_rows: int) -> list[Range]:
    """About ``partitions`` ranges of like size that cover ``[start, end)``; none is smaller than it must be.

    Raises:
        SourceError: a shard would go back.
    """
    for shard, to in end.items():
        if to < start.get(shard, 0):
            raise SourceError(
                f"shard {shard} would go back from offset {start[shard]} to {to}; the checkpoint and the stream do not "
                f"belong together: start with a new checkpoint"
            )
    total = sum(to - start.get(shard, 0) for shard, to in end.items())
    rows_each = max(min_rows, -(-total // partitions), 1)
    ranges = []
    for shard in sorted(end):
        at = start.get(shard, 0)
        pieces = max(1, round((end[shard] - at) / rows_each))
        for piece in range(pieces):
            to = at + (end[shard] - at) // (pieces - piece)
            if to > at:
                ranges.append(Range(shard, at, to))
            at = to
    return ranges
