"""Files that tasks wrote, read back where a format rewrites rows instead of adding files."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from bridges.spark.tables.contract import Replacement
from bridges.spark.task import DataFile


def read_files(directory: str, replacements: Sequence[Replacement], schema: pa.Schema) -> pa.Table:
    """The rows of all files with all columns of ``schema``; columns that a file lacks are null."""
    tables = [_read(directory, file, schema) for one in replacements for file in one.files]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _read(directory: str, file: DataFile, schema: pa.Schema) -> pa.Table:
    found = pq.read_table(os.path.join(directory, file.path))
    arrays = [
        found.column(field.name) if field.name in found.column_names else pa.nulls(found.num_rows, field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)
