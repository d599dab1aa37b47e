"""Rows of offset ranges replaced in one commit: files that lie inside are dropped, those at the edges written again.

Which files these are is known from the table's metadata, and tasks write those at the edges, so that no row passes
through the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bridges.spark.columns.column import PROVENANCE, arrow_schema
from bridges.spark.tables.contract import (
    Change,
    CommitConflict,
    Details,
    LakeTable,
    Range,
    Rest,
    TableFile,
    verify_files,
)
from bridges.spark.tables.files import batches_of
from bridges.spark.tasks.task import RANGED, DataFile, TableFiles, TaskResult

# The streaming job commits about once a second, a replacement takes a fraction of that.
_ATTEMPTS: Final = 30
# Writes files again, a task each.
Rewrite = Callable[[Sequence[Rest]], list[TaskResult]]


def pieces(ranges: Sequence[Range], records: int) -> Iterator[list[Range]]:
    """Ranges cut into pieces of so many records."""
    piece: list[Range] = []
    room = records
    for one in ranges:
        at = one.start
        while at < one.end:
            end = min(one.end, at + room)
            piece.append(Range(one.shard, at, end))
            at, room = end, room - (end - at)
            if not room:
                yield piece
                piece = []
                room = records
    if piece:
        yield piece


def inside(rows: pa.RecordBatch | pa.Table, ranges: Sequence[Range]) -> Any:
    """A mask of the rows whose place is in one of the ranges."""
    shards = rows.column("_shard").to_numpy()
    offsets = rows.column("_offset").to_numpy()
    found = np.zeros(rows.num_rows, bool)
    for one in ranges:
        found |= (shards == one.shard) & (offsets >= one.start) & (offsets < one.end)
    return found


def rewritten(_: None, rest: Rest) -> str:
    """The work of a task; its ``TaskResult`` as text."""
    columns = rest.columns
    full = rest.place.path_of(rest.path)
    writer = TableFiles(rest.place, rest.layout)
    schema = arrow_schema((*PROVENANCE, *columns))
    for batch in batches_of(rest.place, [full], schema, {full: rest.constants} if rest.constants else {}):
        left = batch.filter(pa.array(~inside(batch, rest.ranges)))
        writer.add(dict(zip(schema.names, left.columns, strict=True)), left.num_rows, columns)
    return TaskResult(files=writer.close(columns)).to_json()


def rewritten_here(rests: Sequence[Rest]) -> list[TaskResult]:
    """Write files again in this process, one after the other."""
    return [TaskResult.from_json(rewritten(None, one)) for one in rests]


def overlapping(table: LakeTable, ranges: Sequence[Range]) -> tuple[list[TableFile], list[TableFile]]:
    """The data files with rows of the ranges alone, and those that may have others too.

    Raises:
        TableRefused: another engine deleted rows of one without writing it again.
    """
    found = [file for file in table.files() if not file.is_apart(ranges)]
    if not table.applies_deletes:
        table.unmasked(found)
    whole = [one for one in found if one.is_inside(ranges)]
    return whole, [one for one in found if not one.is_inside(ranges)]


def places_in(table: LakeTable, paths: Sequence[str], ranges: Sequence[Range]) -> Iterator[pa.RecordBatch]:
    """The columns ``RANGED`` of the rows of files that are in ranges, in parts."""
    for batch in table.reader(RANGED)(paths, None):
        yield batch.filter(pa.array(inside(batch, ranges)))


def replace_ranges(
    table: LakeTable,
    ranges: Sequence[Range],
    files: Sequence[DataFile],
    details: Details,
    rewrite: Rewrite = rewritten_here,
) -> int:
    """Put the files' rows in the place of what the ranges hold, in one version; returns it.

    Other writers may commit meanwhile; a file at an edge is written again only once.

    Raises:
        CommitConflict: others were first again and again.
    """
    rests: dict[str, list[DataFile]] = {}
    for _ in range(_ATTEMPTS):
        whole, part = overlapping(table, ranges)
        if files and {one.path for one in whole}.issuperset(one.path for one in files):
            return table.version()  # only the answer of the commit was lost
        fresh = [file for file in part if file.path not in rests]
        for file, result in zip(fresh, rewrite([table.rest(file, ranges) for file in fresh]), strict=True):
            verify_files(table.place, result.files, result.host)
            rests[file.path] = result.files
        changed = [one.path for one in part if sum(file.rows for file in rests[one.path]) < one.rows]
        with contextlib.suppress(CommitConflict):
            removed = [*(one.path for one in whole), *changed]
            added = [*files, *(file for path in changed for file in rests[path])]
            version = table.commit(Change(details, added, removed, marks=()))
            unused = [file for path in rests.keys() - set(changed) for file in rests[path]]
            table.place.remove([table.place.path_of(file.path) for file in unused])
            return version
        table.refresh()
    raise CommitConflict(
        f"{table.place} has constant conflicts with other writers. Try: stop the lake job, run it again."
    )
