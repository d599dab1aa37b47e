"""Rows of offset ranges replaced in one commit: files that lie inside are dropped, those at the edges written again.

Which files these are is known from the table's metadata, and tasks write those at the edges, so that no row passes
through the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from bridges.spark.columns.column import PROVENANCE, arrow_schema
from bridges.spark.tables.contract import (
    Change,
    Details,
    LakeTable,
    Range,
    Rest,
    TableFile,
    verify_files,
)
from bridges.spark.tables.files import batches_of
from bridges.spark.tasks.task import RANGED, DataFile, TableFiles, TaskResult

# Writes files again, a task each.
Rewrite = Callable[[Sequence[Rest]], list[TaskResult]]


def pieces(ranges: Sequence[Range], records: int) -> Iterator[list[Range]]:
    """Ranges cut into pieces of this number of records."""
    piece: list[Range] = []
    room = records
    for span in ranges:
        at = span.start
        while at < span.end:
            end = min(span.end, at + room)
            piece.append(Range(span.shard, at, end))
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
    mask = np.zeros(rows.num_rows, bool)
    for span in ranges:
        mask |= (shards == span.shard) & (offsets >= span.start) & (offsets < span.end)
    return mask


def rewritten(_: None, rest: Rest) -> str:
    """The work of a task; its ``TaskResult`` as text."""
    columns = rest.columns
    full = rest.place.path_of(rest.path)
    writer = TableFiles(rest.place, rest.layout)
    schema = arrow_schema((*PROVENANCE, *columns))
    for batch in batches_of(
        rest.place, [full], schema, {full: rest.constants} if rest.constants else {}
    ):
        left = batch.filter(pa.array(~inside(batch, rest.ranges)))
        writer.add(dict(zip(schema.names, left.columns, strict=True)), left.num_rows, columns)
    return TaskResult(files=writer.close(columns)).to_json()


def rewritten_here(rests: Sequence[Rest]) -> list[TaskResult]:
    """Write files again in this process, one after the other."""
    return [TaskResult.from_json(rewritten(None, rest)) for rest in rests]


def overlapping(
    table: LakeTable, ranges: Sequence[Range]
) -> tuple[list[TableFile], list[TableFile]]:
    """The data files with rows of the ranges alone, and those that may have others too.

    Raises:
        TableRefused: another engine deleted rows of one without writing it again.
    """
    touched = [file for file in table.files() if not file.is_apart(ranges)]
    if not table.applies_deletes:
        table.unmasked(touched)
    whole = [file for file in touched if file.is_inside(ranges)]
    return whole, [file for file in touched if not file.is_inside(ranges)]


def places_in(
    table: LakeTable, paths: Sequence[str], ranges: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
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
    """Put the files' rows in the place of the ranges' rows, in one version; returns it.

    Other writers may commit in between; a file at an edge is written again only once.

    Raises:
        CommitConflict: others were first again and again.
    """
    rests: dict[str, list[DataFile]] = {}

    def commit() -> int:
        whole, part = overlapping(table, ranges)
        if files and {file.path for file in whole}.issuperset(file.path for file in files):
            return table.version()  # only the answer of the commit was lost
        fresh = [file for file in part if file.path not in rests]
        for file, result in zip(
            fresh, rewrite([table.rest(file, ranges) for file in fresh]), strict=True
        ):
            verify_files(table.place, result.files, result.host)
            rests[file.path] = result.files
        changed = [
            edge.path for edge in part if sum(file.rows for file in rests[edge.path]) < edge.rows
        ]
        removed = [*(file.path for file in whole), *changed]
        added = [*files, *(file for path in changed for file in rests[path])]
        version = table.commit(Change(details, added, removed, marks=()))
        unused = [file for path in rests.keys() - set(changed) for file in rests[path]]
        table.place.remove([table.place.path_of(file.path) for file in unused])
        return version

    return table.until_committed(commit)
