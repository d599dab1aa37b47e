"""The commits of a shard's records, by the ledger: stretches of offsets that follow each other."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.value_sums import BLOCK, blocks_of, unpacked

# The kinds of a stretch: no commit covers it; a commit does; the table was accepted to lack it; rows were removed by
# their age from somewhere in it.
UNKNOWN, COMMIT, LOST, REMOVED = range(4)
_FIELDS: Final = ("start", "end", "kind", "rows", "filtered", "removed", "is_whole", "weight")


@dataclass(frozen=True, slots=True)
class Stretches:
    """Stretches as columns, in the order of their offsets. ``rows`` and ``filtered`` are what the commit wrote and
    filtered in all, of which the stretch is a part unless it ``is_whole``; ``removed`` is how many records were removed
    by their age. ``weight`` is about how many rows and dead letters there are."""

    start: Any
    end: Any
    kind: Any
    rows: Any
    filtered: Any
    removed: Any
    is_whole: Any
    weight: Any

    def __len__(self) -> int:
        return len(self.start)

    def within(self, start: int, end: int) -> slice:
        """The stretches with offsets of a range."""
        return slice(
            int(np.searchsorted(self.end, start, "right")),
            int(np.searchsorted(self.start, end, "left")),
        )


def is_batch(ledger: pa.Table) -> pa.ChunkedArray:
    """Mask of the ledger's rows whose commits cover records, and are neither of the removal of rows by their age nor of
    a conversion of all rows."""
    is_of_records = pc.equal(pc.fill_null(ledger["expired"], 0), 0)
    return pc.and_(is_of_records, pc.invert(pc.fill_null(ledger["is_rewritten"], False)))


def stretches_of(ledger: pa.Table, first: int, end: int) -> Stretches:
    """The stretches that ``first`` up to, not including, ``end`` are made of, by the ledger's rows of the shard.

    Of two commits that cover a record, as a replay does, the later one counts.
    """
    fields = {name: array("q") for name in _FIELDS}
    covered = _Covered()

    def add(**values: int) -> None:
        for name in _FIELDS:
            fields[name].append(values.get(name, 0))

    batches = ledger.filter(is_batch(ledger))
    for start, stop, removed in _removals(ledger):
        overlapping = pc.and_(
            pc.less(batches["from_offset"], stop), pc.greater(batches["to_offset"], start)
        )
        filtered = pc.sum(batches.filter(overlapping)["filtered"]).as_py() or 0
        for left, right in covered.add(start, stop):
            add(
                start=left,
                end=right,
                kind=REMOVED,
                removed=removed,
                filtered=filtered,
                is_whole=1,
                weight=right - left,
            )
    newest_first = batches.sort_by([("table_version", "descending")])
    written = pc.coalesce(newest_first["rows"], newest_first["written"])
    columns = [
        newest_first[name] for name in ("from_offset", "to_offset", "filtered", "lost", "dead")
    ]
    columns = [pc.fill_null(column, 0).to_numpy() for column in (*columns, written)]
    for start, stop, filtered, lost, dead, rows in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        kind = LOST if lost else COMMIT
        for left, right in covered.add(start, stop):
            is_whole = int((left, right) == (start, stop))
            add(
                start=left,
                end=right,
                kind=kind,
                rows=rows,
                filtered=filtered,
                is_whole=is_whole,
                weight=rows + dead,
            )
    for left, right in covered.add(first, end):
        add(start=left, end=right, kind=UNKNOWN, is_whole=1, weight=right - left)
    arrays = {name: np.array(fields[name], np.int64) for name in _FIELDS}
    order = np.argsort(arrays["start"], kind="stable")
    return Stretches(*(arrays[name][order] for name in _FIELDS))


@dataclass(frozen=True, slots=True)
class Cells:
    """Ranges of offsets, in order, with the sum of the hashes of the rows that were written, and the version of the
    table that did."""

    start: Any
    end: Any
    sum: Any
    version: Any

    def within(self, start: int, end: int) -> slice:
        """The cells with offsets of a range."""
        return slice(
            int(np.searchsorted(self.end, start, "right")),
            int(np.searchsorted(self.start, end, "left")),
        )


def cells_of(ledger: pa.Table) -> Cells:
    """The sums of a shard's rows by the ledger. There are none for commits from before there were
    sums, and of blocks of offsets of which some rows were replaced or removed since."""
    starts = array("q")
    ends = array("q")
    versions = array("q")
    sums = array("Q")
    covered = _Covered()
    for start, stop, _ in _removals(ledger):
        covered.add(start, stop)
    is_removal = pc.greater(pc.fill_null(ledger["expired"], 0), 0)
    newest_first = ledger.filter(pc.invert(is_removal)).sort_by([("table_version", "descending")])
    columns = [
        newest_first[name].to_pylist()
        for name in ("from_offset", "to_offset", "table_version", "sums")
    ]
    for start, stop, version, text in zip(*columns, strict=True):
        sums_by_block = unpacked(text or "", start, stop) or {}
        for left, right in covered.add(start, stop):
            for block in blocks_of(left, right) if sums_by_block else ():
                low = max(start, block * BLOCK)
                high = min(stop, (block + 1) * BLOCK)
                if left <= low and high <= right:
                    starts.append(low)
                    ends.append(high)
                    versions.append(version)
                    sums.append(sums_by_block[block])
    arrays = [np.array(values) for values in (starts, ends, sums, versions)]
    order = np.argsort(arrays[0], kind="stable")
    return Cells(*(values[order] for values in arrays))


class _Covered:
    """Offsets that are covered, as ranges that do not touch, in order."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def add(self, start: int, end: int) -> list[tuple[int, int]]:
        """Cover a range; the parts of it that were not covered before."""
        if start >= end:
            return []
        touched = slice(bisect_left(self._ends, start), bisect_right(self._starts, end))
        parts = []
        at = start
        for left, right in zip(self._starts[touched], self._ends[touched], strict=True):
            if at < left:
                parts.append((at, left))
            at = max(at, right)
        if at < end:
            parts.append((at, end))
        self._starts[touched] = [min([start, *self._starts[touched][:1]])]
        self._ends[touched] = [max([end, *self._ends[touched][-1:]])]
        return parts


def _removals(ledger: pa.Table) -> Iterator[tuple[int, int, int]]:
    """The stretches of offsets out of which rows were removed by their age, and how many."""
    mine = ledger.filter(pc.greater(ledger["expired"], 0)).sort_by("from_offset")
    first = 0
    last = 0
    count = 0
    columns = [mine[name].to_pylist() for name in ("from_offset", "to_offset", "expired")]
    for start, end, removed in zip(*columns, strict=True):
        if count and start >= last:
            yield first, last, count
            count = 0
        first, last, count = (
            (first, max(last, end), count + removed) if count else (start, end, removed)
        )
    if count:
        yield first, last, count
