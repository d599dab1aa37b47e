"""Files that tasks wrote, read back where a format rewrites rows instead of adding files."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import and_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from bridges.spark.columns.place import Place
from bridges.spark.tasks.task import DataFile

_ROW_GROUP_BYTES = 32 * 1024 * 1024
_BATCH_ROWS = 50_000
_NONE: Final[Mapping[str, Mapping[str, Any]]] = {}
_NO_CONSTANTS: Final[Mapping[str, Any]] = {}


# By path of a file, the values of columns that all its rows share and that only the table's log has.
Constants = Mapping[str, Mapping[str, Any]]


def read_columns(
    place: Place,
    paths: Sequence[str],
    schema: pa.Schema,
    where: pc.Expression | None = None,
    constants: Constants = _NONE,
) -> pa.Table:
    """These columns of files, null where an older file lacks one.

    Arrow reads by its own file system: through delta-rs's, which is Python, its threads would need the interpreter,
    and may outlive it.
    """
    if not paths:
        return schema.empty_table()
    return _dataset(place, paths, schema, constants).to_table(filter=where)


def copied(place: Place, file: DataFile, into: Place, schema: pa.Schema | None = None) -> DataFile:
    """A file copied into a table of the same store, under a new name: one commit cannot remove a file and add it. With
    a schema it is written again."""
    name = f"part-{uuid.uuid4().hex}.parquet"
    path = place.path_of(file.path)
    target = into.path_of(name)
    if schema is None:
        place.files.copy_file(path, target)
        return replace(file, path=name)
    join_files(into, [path], target, schema)
    return replace(file, path=name, size=into.files.get_file_info(target).size)


def join_files(place: Place, paths: Sequence[str], into: str, schema: pa.Schema) -> None:
    """Write the rows of files, oldest first, into a new one."""
    files = place.files
    with pq.ParquetWriter(
        into, schema, filesystem=files, compression="zstd", compression_level=1
    ) as file:
        waiting: list[pa.RecordBatch] = []
        for batch in ds.dataset(
            list(paths), schema=schema, format="parquet", filesystem=files
        ).to_batches():
            waiting.append(batch)
            if sum(part.nbytes for part in waiting) >= _ROW_GROUP_BYTES:
                file.write_table(pa.Table.from_batches(waiting, schema))
                waiting = []
        if waiting:
            file.write_table(pa.Table.from_batches(waiting, schema))


def batches_of(
    place: Place,
    paths: Sequence[str],
    schema: pa.Schema,
    constants: Constants = _NONE,
    where: pc.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of files in parts, null where an older file lacks a column."""
    if paths:
        dataset = _dataset(place, paths, schema, constants)
        yield from dataset.to_batches(
            filter=where, batch_size=_BATCH_ROWS, batch_readahead=4, fragment_readahead=1
        )


def _dataset(
    place: Place, paths: Sequence[str], schema: pa.Schema, constants: Constants
) -> ds.Dataset:
    if not constants:
        return ds.dataset(list(paths), schema=schema, format="parquet", filesystem=place.files)
    form = ds.ParquetFileFormat()
    fragments = []
    for path in paths:
        shared = [
            pc.field(name) == value
            for name, value in constants.get(path, {}).items()
            if value is not None
        ]
        condition = reduce(and_, shared) if shared else None
        fragments.append(
            form.make_fragment(path, filesystem=place.files, partition_expression=condition)
        )
    return ds.FileSystemDataset(fragments, schema, form, place.files)


def read_tail(
    place: Place,
    path: str,
    limit: int,
    schema: pa.Schema,
    constants: Mapping[str, Any] = _NO_CONSTANTS,
) -> pa.Table:
    """At least the last ``limit`` rows of a file, or all of them if it has fewer; a column that it lacks has its
    constant, or null."""
    with pq.ParquetFile(place.path_of(path), filesystem=place.files) as file:
        groups: list[int] = []
        count = 0
        for group in reversed(range(file.num_row_groups)):
            if count >= limit:
                break
            groups.insert(0, group)
            count += file.metadata.row_group(group).num_rows
        rows = file.read_row_groups(groups)
    arrays = [
        rows.column(field.name)
        if field.name in rows.column_names
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), rows.num_rows)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
