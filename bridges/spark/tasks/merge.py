"""The second half of a batch of a table with a key: each file that has touched keys is written again. On executors.

A task reads the file of one leaf, and of the staged files the row groups that may have its keys; keeps the last row of
each key; and writes a new file, or two where it grew too large. Its memory is bounded by the size of a file and the
size of a batch.

Where the records of a key may be in several shards, an older record may come after the one that deleted the key. So a
file remembers the last deletions of its keys, in its footer, where no reader looks.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bridges.spark.columns.column import PROVENANCE, Column, arrow_schema
from bridges.spark.columns.place import Place
from bridges.spark.tasks.keys import DELETED, HASH_BITS, Upsert, hashes_of, keys_of, last_of_each
from bridges.spark.tasks.leaves import GROUP_BITS, file_name, groups_of, is_in
from bridges.spark.tasks.staged import staged_schema
from bridges.spark.tasks.task import DataFile

LEAF_ROWS: Final = 250_000
# A file with more rows, or more bytes in memory, is split.
LEAF_BYTES: Final = 128 * 1024 * 1024
# Maximum deletions that a file remembers, the last ones.
KEPT_DELETIONS: Final = 5_000
_DELETIONS: Final = b"sluice.deletions"
_ROW_GROUP: Final = 65_536
_BATCH_ROWS: Final = 50_000


@dataclass(frozen=True, slots=True)
class Unit:
    """The work of one task: a leaf, its file, files of other engines that may have its keys, and the staged files."""

    leaf: str
    file: str | None
    foreign: tuple[str, ...]
    staged: tuple[tuple[str, tuple[int, ...]], ...]
    """Paths, and the numbers of the row groups that may have rows of the leaf."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """The plan for all tasks of a merge. Rows of the table in ``replaced`` (shard, start, end) are left out. With
    ``is_whole`` all rows are staged, and of the table's files only the deletions count that they remember."""

    table: Place
    columns: tuple[Column, ...]
    upsert: Upsert
    replaced: tuple[tuple[int, int, int], ...] = ()
    leaf_rows: int = LEAF_ROWS
    is_whole: bool = False


@dataclass(slots=True)
class Merged:
    """Figures of a task by shard, and the files that it wrote in the place of ``removed``."""

    host: str = field(default_factory=socket.gethostname)
    files: list[DataFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    applied: dict[int, int] = field(default_factory=dict)
    superseded: dict[int, int] = field(default_factory=dict)
    deleted: dict[int, int] = field(default_factory=dict)
    failure: str | None = None
    """Trace of the error that kept the task from writing."""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Merged:
        return msgspec.json.decode(text, type=cls)


# Runs the tasks of a merge.
RunMerges = Callable[[MergePlan, Sequence[Unit]], list[Merged]]


def units_of(
    leaves: Mapping[str, str],
    all_leaves: Sequence[str],
    foreign: Sequence[str],
    staged: Sequence[DataFile],
    *,
    everything: bool = False,
) -> list[Unit]:
    """The tasks of a merge: of the leaves that a staged file may have rows of, or of all leaves with a file."""
    units = []
    for leaf in all_leaves:
        groups = set(groups_of(leaf))
        parts = []
        for file in staged:
            numbers = tuple(at for at, group in enumerate(file.stats["groups"]) if group in groups)
            if numbers:
                parts.append((file.path, numbers))
        if parts or foreign or (everything and leaf in leaves):
            units.append(Unit(leaf, leaves.get(leaf), tuple(foreign), tuple(parts)))
    return units


def merged(plan: MergePlan, unit: Unit) -> str:
    """The work of a task, its result as text."""
    return merge(plan, unit).to_json()


def merge(plan: MergePlan, unit: Unit) -> Merged:
    """Do the work of one task."""
    result = Merged()
    schema = staged_schema(plan.columns)
    staged = _staged(plan, unit, schema)
    if not staged.num_rows and not unit.foreign and not plan.replaced and not plan.is_whole:
        return result
    before = (
        [] if plan.is_whole else [_with_flag(table, schema) for table in _held(plan, unit, schema)]
    )
    if plan.upsert.by_time and unit.file is not None:
        before.append(_deletions_of(plan, unit.file, schema))
    old = pa.concat_tables([schema.empty_table(), *before])
    kept = _without(old, plan.replaced)
    rows = pa.concat_tables([kept, staged])
    is_last, keys = last_of_each(rows, plan.upsert)
    is_deleted = rows.column(DELETED).to_numpy()
    _count(result, staged, is_last[kept.num_rows :], is_deleted[kept.num_rows :])
    is_present = is_last[: kept.num_rows]
    fresh = is_last[kept.num_rows :]
    if not plan.upsert.by_time:  # a deletion of a key that does not exist
        fresh = fresh & ~is_deleted[kept.num_rows :]
    is_same = is_present.all() and not fresh.any() and kept.num_rows == old.num_rows
    if is_same and not unit.foreign and not plan.is_whole:
        return result
    result.removed = [path for path in (unit.file, *unit.foreign) if path is not None]
    alive = _chosen(rows, keys, is_last & ~is_deleted)
    deletions = _chosen(rows, keys, is_last & is_deleted) if plan.upsert.by_time else None
    for leaf, part, gone in _split(plan, unit.leaf, alive, deletions):
        if part.num_rows or (gone is not None and gone.num_rows):
            result.files.append(_write(plan, leaf, part, gone))
    return result


def _staged(plan: MergePlan, unit: Unit, schema: pa.Schema) -> pa.Table:
    tables = [schema.empty_table()]
    for path, groups in unit.staged:
        with pq.ParquetFile(plan.table.path_of(path), filesystem=plan.table.files) as file:
            tables.append(_complete(file.read_row_groups(list(groups)), schema))
    rows = pa.concat_tables(tables)
    if len(unit.leaf) > GROUP_BITS and rows.num_rows:
        rows = _of_leaf(rows, plan.upsert, unit.leaf)
    return rows


def _held(plan: MergePlan, unit: Unit, schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows that the table has of the leaf's keys."""
    columns = arrow_schema((*PROVENANCE, *plan.columns))
    files = plan.table.files
    if unit.file is not None:
        path = plan.table.path_of(unit.file)
        yield ds.dataset([path], schema=columns, format="parquet", filesystem=files).to_table()
    if unit.foreign:
        paths = [plan.table.path_of(path) for path in unit.foreign]
        staged = ds.dataset(paths, schema=columns, format="parquet", filesystem=files)
        for batch in staged.to_batches(batch_size=_BATCH_ROWS):
            rows = pa.Table.from_batches([batch], columns)
            whole = np.ones(rows.num_rows, bool)
            for name in plan.upsert.key:
                whole &= pc.is_valid(rows.column(name)).to_numpy()
            yield _of_leaf(rows.filter(pa.array(whole)), plan.upsert, unit.leaf)


def _of_leaf(rows: pa.Table, upsert: Upsert, leaf: str) -> pa.Table:
    if not leaf or not rows.num_rows:
        return rows
    return rows.filter(pa.array(is_in(hashes_of(keys_of(rows, upsert.key)), leaf)))


def _with_flag(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    flags = pa.repeat(pa.scalar(False), rows.num_rows)
    return pa.table([*rows.columns, flags], schema=schema)


def _complete(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a schema, null where they lack one."""
    have = set(rows.column_names)
    return pa.table(
        [
            rows.column(field.name).cast(field.type)
            if field.name in have
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ],
        schema=schema,
    )


def _without(rows: pa.Table, ranges: Sequence[tuple[int, int, int]]) -> pa.Table:
    if not ranges or not rows.num_rows:
        return rows
    shards = rows.column("_shard").to_numpy()
    offsets = rows.column("_offset").to_numpy()
    inside = np.zeros(rows.num_rows, bool)
    for shard, start, end in ranges:
        inside |= (shards == shard) & (offsets >= start) & (offsets < end)
    return rows.filter(pa.array(~inside))


def _count(result: Merged, staged: pa.Table, is_last: Any, is_deleted: Any) -> None:
    shards = staged.column("_shard").to_numpy()
    for counts, mask in (
        (result.applied, is_last & ~is_deleted),
        (result.deleted, is_last & is_deleted),
        (result.superseded, ~is_last),
    ):
        numbers, times = np.unique(shards[mask], return_counts=True)
        counts.update(zip(numbers.tolist(), times.tolist(), strict=True))


def _chosen(rows: pa.Table, keys: pa.Array, mask: Any) -> pa.Table:
    """The rows of a mask in the order of their keys: a reader who looks for one key reads one row group."""
    at = np.flatnonzero(mask)
    order = pc.sort_indices(keys.take(pa.array(at))).to_numpy()
    return rows.take(pa.array(at[order])).combine_chunks()


def _split(
    plan: MergePlan, leaf: str, alive: pa.Table, deletions: pa.Table | None
) -> Iterator[tuple[str, pa.Table, pa.Table | None]]:
    """The leaves that a leaf becomes, with their rows and deletions."""
    is_small = alive.num_rows <= plan.leaf_rows and alive.nbytes <= LEAF_BYTES
    if is_small or alive.num_rows < 2 or len(leaf) == HASH_BITS:
        yield leaf, alive, deletions
        return
    for bit in "01":
        child = leaf + bit
        gone = None if deletions is None else _of_leaf(deletions, plan.upsert, child)
        yield from _split(plan, child, _of_leaf(alive, plan.upsert, child), gone)


def _write(plan: MergePlan, leaf: str, rows: pa.Table, deletions: pa.Table | None) -> DataFile:
    name = file_name(leaf)
    files = plan.table.files
    path = plan.table.path_of(name)
    rows = rows.drop_columns([DELETED])
    with pq.ParquetWriter(
        path, rows.schema, filesystem=files, compression="zstd", compression_level=1
    ) as file:
        file.write_table(rows, row_group_size=_ROW_GROUP)
        if deletions is not None and deletions.num_rows:
            file.add_key_value_metadata({_DELETIONS: _packed(deletions, plan.upsert)})
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    for column in ("_shard", "_offset"):
        bounds = pc.min_max(rows.column(column)).as_py()
        if bounds["min"] is not None:
            low[column], high[column] = bounds["min"], bounds["max"]
    stats = {
        "numRecords": rows.num_rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": dict.fromkeys(low, 0),
    }
    return DataFile(name, files.get_file_info(path).size, rows.num_rows, stats)


def _packed(deletions: pa.Table, upsert: Upsert) -> bytes:
    """The last deletions with their keys and places, as text."""
    names = list(dict.fromkeys((*upsert.key, "_shard", "_offset", "_published_at")))
    last = (
        deletions.select(names).sort_by([("_published_at", "descending")]).slice(0, KEPT_DELETIONS)
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, last.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as stream:
        stream.write_table(last)
    return base64.b64encode(sink.getvalue())


def _deletions_of(plan: MergePlan, file: str, schema: pa.Schema) -> pa.Table:
    """The deletions that a file remembers."""
    metadata = (
        pq.read_metadata(plan.table.path_of(file), filesystem=plan.table.files).metadata or {}
    )
    if _DELETIONS not in metadata:
        return schema.empty_table()
    with pa.ipc.open_stream(base64.b64decode(metadata[_DELETIONS])) as stream:
        deletions = stream.read_all()
    return _complete(
        deletions.append_column(DELETED, pa.repeat(pa.scalar(True), deletions.num_rows)), schema
    )
