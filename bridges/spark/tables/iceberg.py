"""Iceberg tables through pyiceberg, with a catalogue in an SQLite file beside the table: no jar, no JVM, no service.

The guard against doubled batches is a table property per shard, the offset after the last record, set in the
transaction that adds the files. pyiceberg would retry a conflicting commit by itself and so double a batch that two
drivers have; retries are 0, and a refused driver reads the properties again.
"""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from bridges.spark.columns import PROVENANCE, Column, arrow_schema
from bridges.spark.tables.contract import (
    DETAILS_KEY,
    Binding,
    CommitConflict,
    Details,
    LakeTable,
    Range,
    SchemaVersion,
    Version,
    predicate,
)
from bridges.spark.tables.files import read_files, read_newest
from bridges.spark.task import DataFile

CATALOG_FILE = "_catalog.db"
"""The catalogue, inside the table's directory, so that a table can be moved as one folder's content."""
_NAMESPACE = "sluice"
_STREAM, _EPOCH = "sluice.stream", "sluice.epoch"
_TYPES: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "integer": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "string": StringType(),
    "json": StringType(),
    "binary": BinaryType(),
    "timestamp": TimestamptzType(),
}


class IcebergLakeTable(LakeTable):
    """See ``LakeTable``. A column's key and type are in its field's ``doc``, as JSON."""

    @classmethod
    def open(cls, directory: str, binding: Binding) -> Self | None:
        if not os.path.exists(os.path.join(directory, CATALOG_FILE)):
            return None
        try:
            table = _catalog(directory).load_table(_identifier(directory))
        except NoSuchTableError:
            return None
        binding.check(Binding(table.properties.get(_STREAM, ""), table.properties.get(_EPOCH, "")), directory)
        return cls(table, directory, binding)

    @classmethod
    def _create(cls, directory: str, binding: Binding, columns: Sequence[Column]) -> None:
        catalog = _catalog(directory)
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(_NAMESPACE)
        fields = [
            NestedField(number, column.name, _TYPES[column.type], required=False, doc=_doc(column))
            for number, column in enumerate((*PROVENANCE, *columns), start=1)
        ]
        properties = {_STREAM: binding.stream, _EPOCH: binding.epoch, "commit.retry.num-retries": "0"}
        with contextlib.suppress(TableAlreadyExistsError):
            catalog.create_table(
                _identifier(directory), Schema(*fields), location=Path(directory).as_uri(), properties=properties
            )

    def refresh(self) -> None:
        self._table.refresh()

    def version(self) -> int:
        snapshot = self._table.current_snapshot()
        return int(snapshot.sequence_number or 0) if snapshot else 0

    def identity(self) -> str:
        return str(self._table.metadata.table_uuid)

    def rows(self) -> int:
        snapshot = self._table.current_snapshot()
        return int(snapshot.summary["total-records"] or 0) if snapshot and snapshot.summary else 0

    def columns(self) -> tuple[Column, ...]:
        return _columns(self._table.schema())

    def first(self, shard: int) -> int | None:
        return self._property(f"sluice.first.{shard}")

    def next(self, shard: int) -> int | None:
        return self._property(f"sluice.next.{shard}")

    def add_columns(self, columns: Sequence[Column]) -> None:
        try:
            with self._table.update_schema() as update:
                for column in columns:
                    update.add_column(column.name, _TYPES[column.type], doc=_doc(column))
        except (CommitFailedException, ValueError) as error:
            raise CommitConflict(str(error)) from error
        self.refresh()

    def append(self, files: Sequence[DataFile], details: Details) -> int:
        marks = self._marks(details)
        paths = [Path(self.directory, file.path).as_uri() for file in files]
        try:
            with self._table.transaction() as transaction:
                transaction.set_properties(marks)
                if paths:
                    transaction.add_files(paths, snapshot_properties=_summary(details), check_duplicate_files=False)
                else:  # A snapshot without files: the batch is in the history though all of it went to dead letters.
                    none = arrow_schema((*PROVENANCE, *self.columns())).empty_table()
                    transaction.append(none, snapshot_properties=_summary(details))
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error
        self.refresh()
        return self.version()

    def replace(self, ranges: Sequence[Range], files: Sequence[DataFile], details: Details) -> int:
        schema = arrow_schema((*PROVENANCE, *self.columns()))
        rows = read_files(self.directory, files, schema)
        try:
            with warnings.catch_warnings(), self._table.transaction() as transaction:
                # It warns where there is nothing to delete, as for dead letters of a range that had none.
                warnings.simplefilter("ignore")
                transaction.overwrite(rows, overwrite_filter=predicate(ranges), snapshot_properties=_summary(details))
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error
        self.refresh()
        return self.version()

    def rewrite(self, columns: Sequence[Column], files: Sequence[DataFile], details: Details) -> int:
        known = set(self.columns())
        names = {column.name for column in known}
        try:
            with warnings.catch_warnings(), self._table.transaction() as transaction:
                warnings.simplefilter("ignore")  # of a table without rows
                transaction.set_properties(self._marks(details))
                transaction.delete(AlwaysTrue())
                with transaction.update_schema(allow_incompatible_changes=True) as update:
                    for column in columns:
                        if column in known:
                            continue
                        if column.name in names:
                            update.delete_column(column.name)
                        update.add_column(column.name, _TYPES[column.type], doc=_doc(column))
                paths = [Path(self.directory, file.path).as_uri() for file in files]
                transaction.add_files(paths, snapshot_properties=_summary(details), check_duplicate_files=False)
        except CommitFailedException as error:
            raise CommitConflict(str(error)) from error
        self.refresh()
        return self.version()

    def versions(self, limit: int | None = None) -> Sequence[Version]:
        found: dict[str | int, Version] = {}
        for snapshot in self._table.metadata.snapshots:
            summary = snapshot.summary
            text = summary.additional_properties.get(DETAILS_KEY) if summary else None
            # A replacement leaves two snapshots with the same details: the last one is its commit.
            found[text or snapshot.snapshot_id] = Version(
                int(snapshot.sequence_number or 0),
                snapshot.timestamp_ms,
                summary.operation.value if summary else "",
                Details.parse(json.loads(text)) if text else None,
            )
        return sorted(found.values(), key=lambda one: one.version, reverse=True)[:limit]

    def schemas(self, limit: int) -> Sequence[SchemaVersion]:
        first = {one.schema_id: one for one in reversed(self._table.metadata.snapshots)}
        found = []
        for schema in sorted(self._table.metadata.schemas, key=lambda one: one.schema_id, reverse=True)[:limit]:
            one = first.get(schema.schema_id)
            version, at_ms = (None, None) if one is None else (int(one.sequence_number or 0), one.timestamp_ms)
            found.append(SchemaVersion(version, at_ms, _columns(schema)))
        return found

    def file_sizes(self) -> Sequence[int]:
        if self._table.current_snapshot() is None:
            return []
        return [task.file.file_size_in_bytes for task in self._table.scan().plan_files()]

    def tidy(self) -> bool:
        """Nothing: pyiceberg cannot rewrite data files yet, and its snapshots hold the batches' details."""
        return False

    def newest(self, limit: int) -> pa.Table:
        schema = arrow_schema((*PROVENANCE, *self.columns()))
        if self._table.current_snapshot() is None:
            return schema.empty_table()
        files = [task.file for task in self._table.scan().plan_files()]
        files.sort(key=lambda file: os.path.getmtime(_local(file.file_path)), reverse=True)
        return read_newest([(_local(file.file_path), file.record_count) for file in files], limit, schema)

    def scan(self, columns: Sequence[str]) -> pa.Table:
        return self._table.scan(selected_fields=tuple(columns)).to_arrow()

    def batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.scan().to_arrow_batch_reader()

    def _marks(self, details: Details) -> dict[str, str]:
        """The ends of shards that a commit moves to, as properties."""
        marks = {f"sluice.next.{one.shard}": str(one.end) for one in details.ranges}
        return marks | {
            f"sluice.first.{one.shard}": str(one.start) for one in details.ranges if self.first(one.shard) is None
        }

    def _property(self, name: str) -> int | None:
        value = self._table.properties.get(name)
        return None if value is None else int(value)


def _catalog(directory: str) -> SqlCatalog:
    return SqlCatalog("lake", uri=f"sqlite:///{directory}/{CATALOG_FILE}", warehouse=Path(directory).as_uri())


def _identifier(directory: str) -> tuple[str, str]:
    return _NAMESPACE, os.path.basename(directory.rstrip("/"))


def _local(uri: str) -> str:
    return unquote(urlsplit(uri).path)


def _doc(column: Column) -> str:
    return json.dumps({"key": column.key, "type": column.type})


def _columns(schema: Schema) -> tuple[Column, ...]:
    provenance = {column.name for column in PROVENANCE}
    return tuple(_column(field) for field in schema.fields if field.name not in provenance)


def _column(field: NestedField) -> Column:
    kept: dict[str, Any] = json.loads(field.doc or "{}")
    return Column(kept.get("key", field.name), field.name, kept.get("type", str(field.field_type)))


def _summary(details: Details) -> dict[str, str]:
    return {DETAILS_KEY: json.dumps(details.as_dict())}
