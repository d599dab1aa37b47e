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
from bridges.spark.tables.contract import TableRefused
from bridges.spark.tasks.task import DataFile

_ROW_GROUP_BYTES = 32 * 1024 * 1024
_BATCH_ROWS = 50_000
_NONE: Final[Mapping[str, Mapping[str, Any]]] = {}


def verify_files(place: Place, files: Sequence[DataFile], host: str) -> None:
    """Check that files of a task on ``host`` are in the table's place, as long as it says, with a footer.

    Raises:
        TableRefused: one is not; nothing may be committed.
    """
    for file in files:
        path = place.path_of(file.path)
        try:
            rows = pq.read_metadata(path, filesystem=place.files).num_rows
            size = place.files.get_file_info(path).size
        except FileNotFoundError:
            raise TableRefused(
                f"{place}: expected the file {file.path} of worker {host!r}, got none: the worker has a disk of "
                f"its own. Try: a path that all hosts share."
            ) from None
        except (OSError, pa.ArrowException) as error:
            raise TableRefused(f"{path} of worker {host!r} cannot be read: {error}") from error
        if (size, rows) != (file.size, file.rows):
            raise TableRefused(
                f"{path} of worker {host!r}: expected {file.rows} rows in {file.size} bytes, got {rows} rows in {size} "
                f"bytes"
            )


# By path of a file, the values of columns that all its rows share and that only the table's log has.
Constants = Mapping[str, Mapping[str, Any]]


def read_newest(
    place: Place, files: Sequence[tuple[str, int]], limit: int, schema: pa.Schema, constants: Constants = _NONE
) -> pa.Table:
    """The last ``limit`` rows by time and offset, newest first, of files (path and rows) that come newest first.

    Of a file only as many row groups are read as are needed, from its end.
    """
    tables = []
    rows = 0
    for path, held in files:
        if rows >= limit:
            break
        tables.append(_complete(_tail(place, path, limit - rows), schema, constants.get(path, {})))
        rows += held
    found = pa.concat_tables(tables) if tables else schema.empty_table()
    return found.sort_by([("_published_at", "descending"), ("_offset", "descending")]).slice(0, limit)


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
    with pq.ParquetWriter(into, schema, filesystem=files, compression="zstd", compression_level=1) as file:
        waiting: list[pa.RecordBatch] = []
        for batch in ds.dataset(list(paths), schema=schema, format="parquet", filesystem=files).to_batches():
            waiting.append(batch)
            if sum(one.nbytes for one in waiting) >= _ROW_GROUP_BYTES:
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
        found = _dataset(place, paths, schema, constants)
        yield from found.to_batches(filter=where, batch_size=_BATCH_ROWS, batch_readahead=4, fragment_readahead=1)


def _dataset(place: Place, paths: Sequence[str], schema: pa.Schema, constants: Constants) -> ds.Dataset:
    if not constants:
        return ds.dataset(list(paths), schema=schema, format="parquet", filesystem=place.files)
    form = ds.ParquetFileFormat()
    fragments = []
    for path in paths:
        shared = [pc.field(name) == value for name, value in constants.get(path, {}).items() if value is not None]
        condition = reduce(and_, shared) if shared else None
        fragments.append(form.make_fragment(path, filesystem=place.files, partition_expression=condition))
    return ds.FileSystemDataset(fragments, schema, form, place.files)


def _tail(place: Place, path: str, limit: int) -> pa.Table:
    with pq.ParquetFile(path, filesystem=place.files) as file:
        groups: list[int] = []
        rows = 0
        for group in reversed(range(file.num_row_groups)):
            if rows >= limit:
                break
            groups.insert(0, group)
            rows += file.metadata.row_group(group).num_rows
        return file.read_row_groups(groups)


def _complete(found: pa.Table, schema: pa.Schema, constants: Mapping[str, Any]) -> pa.Table:
    arrays = [
        found.column(field.name)
        if field.name in found.column_names
        else pa.repeat(pa.scalar(constants.get(field.name), field.type), found.num_rows)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
