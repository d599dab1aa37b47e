"""Delta tables through delta-rs: no jar, no JVM.

The guard against doubled batches is Delta's own: each commit carries a transaction identifier per shard whose version
is the offset after the last record. It is read and written with one snapshot, so that of two drivers with the same
batch the second is refused. Which stream the table belongs to, and which key fills a column, is in the metadata of
fields.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from typing import Any, Literal, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType
from deltalake.transaction import AddAction, RemoveAction

from bridges.spark.column_types import ColumnType, parse_type
from bridges.spark.columns import PROVENANCE, Column, arrow_schema
from bridges.spark.tables.contract import (
    DETAILS_KEY,
    JOINED_BYTES,
    KEPT_HOURS,
    MANY_SMALL_FILES,
    RETYPED,
    SMALL_FILE_BYTES,
    Binding,
    CommitConflict,
    Details,
    LakeTable,
    Range,
    SchemaVersion,
    TableRefused,
    Version,
    predicate,
)
from bridges.spark.tables.files import batches_of, read_columns, read_files, read_newest
from bridges.spark.tables.place import Place
from bridges.spark.task import DataFile

_STREAM, _EPOCH, _KEY, _TYPE = "sluice.stream", "sluice.epoch", "sluice.key", "sluice.type"
_BOUND_FIELD = "_offset"
_LOG_READERS = 8
_LOG_PART = 64
_MOST_ENTRIES = 1000
_SCHEMA_CHANGES = ("CREATE TABLE", "ADD COLUMN", "UPDATE FIELD METADATA")
_PRIMITIVES = {"json": "string", "timestamp(us)": "timestamp"}


class DeltaLakeTable(LakeTable):
    """See ``LakeTable``."""

    @classmethod
    def open(cls, place: Place, binding: Binding) -> Self | None:
        try:
            table = delta_table(place)
        except TableNotFoundError:
            return None
        found = _binding(table)
        if found is None:
            raise TableRefused(f"{place} holds a Delta table that Sluice did not make; choose another path")
        binding.check(found, place)
        return cls(table, place, binding)

    @classmethod
    def _create(cls, place: Place, binding: Binding, columns: Sequence[Column]) -> None:
        schema = Schema([_field(column, binding) for column in (*PROVENANCE, *columns)])
        about, options = f"rows of stream {binding.stream}", place.storage_options
        try:
            DeltaTable.create(place.url, schema, mode="ignore", description=about, storage_options=options)
        except DeltaError:
            # Another driver may have been first; what it made decides.
            if not DeltaTable.is_deltatable(place.url, options):
                raise

    def refresh(self) -> None:
        self._table.update_incremental()

    def version(self) -> int:
        return int(self._table.version())

    def identity(self) -> str:
        return str(self._table.metadata().id)

    def rows(self) -> int:
        files = pa.table(self._table.get_add_actions(flatten=True))
        return int(pa.compute.sum(files.column("num_records")).as_py() or 0)

    def columns(self) -> tuple[Column, ...]:
        return _columns(self._table)

    def first(self, shard: int) -> int | None:
        return self._transaction(self._first_id(shard))

    def next(self, shard: int) -> int | None:
        return self._transaction(self._next_id(shard))

    def add_columns(self, columns: Sequence[Column]) -> None:
        try:
            self._table.alter.add_columns([_field(column, self._binding) for column in columns])
        except DeltaError as error:
            raise CommitConflict(str(error)) from error
        self.refresh()

    def widen_columns(self, columns: Sequence[Column]) -> None:
        try:
            for column in columns:
                # delta-rs merges members, not metadata. A death in between leaves members that are added again.
                has = next(field for field in self._table.schema().fields if field.name == column.name)
                self._table.alter.add_columns([Field(column.name, _type(column.parsed), metadata=has.metadata)])
                metadata = _field(column, self._binding).metadata
                self._table.alter.set_column_metadata(column.name, metadata)
        except DeltaError as error:
            raise CommitConflict(str(error)) from error
        self.refresh()

    def append(self, files: Sequence[DataFile], details: Details) -> int:
        return self._write(files, "append", self._table.schema(), self._properties(details))

    def rewrite(self, columns: Sequence[Column], files: Sequence[DataFile], details: Details) -> int:
        schema = Schema([_field(column, self._binding) for column in (*PROVENANCE, *columns)])
        return self._write(files, "overwrite", schema, self._properties(details))

    def _write(
        self,
        files: Sequence[DataFile],
        mode: Literal["append", "overwrite"],
        schema: Schema,
        properties: CommitProperties,
    ) -> int:
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, now_ms, True, json.dumps(file.stats)) for file in files
        ]
        try:
            self._table.create_write_transaction(actions, mode, schema, commit_properties=properties)
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error
        self.refresh()
        return self.version()

    def replace(self, ranges: Sequence[Range], files: Sequence[DataFile], details: Details) -> int:
        schema = arrow_schema((*PROVENANCE, *self.columns()))
        properties = CommitProperties(custom_metadata={DETAILS_KEY: details.as_dict()}, max_commit_retries=0)
        try:
            write_deltalake(
                self._table,
                read_files(self.place, files, schema),
                mode="overwrite",
                predicate=predicate(ranges),
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error
        self.refresh()
        return self.version()

    def versions(self, limit: int | None = None, after: int = -1) -> Sequence[Version]:
        newest, found = self.version(), []
        first = after + 1 if limit is None else max(after, newest - limit) + 1
        with ThreadPoolExecutor(_LOG_READERS) as readers:
            for end in range(newest, first - 1, -_LOG_PART):
                part = list(readers.map(self._logged, range(end, max(first, end + 1 - _LOG_PART) - 1, -1)))
                found += [one for one in part if one is not None]
                if None in part:  # the log before it was cleaned
                    break
        return found

    def _logged(self, version: int) -> Version | None:
        """What the log says of a version. Read here, not by delta-rs: that would hold the interpreter meanwhile."""
        try:
            with self.place.files.open_input_stream(self.place.path_of(f"_delta_log/{version:020}.json")) as file:
                lines = file.read().splitlines()
        except FileNotFoundError:
            return None
        infos = [json.loads(line)["commitInfo"] for line in lines if line.startswith(b'{"commitInfo"')]
        info = infos[0] if infos else {}
        return Version(version, int(info.get("timestamp", 0)), str(info.get("operation", "")), _details(info))

    def schemas(self, limit: int) -> Sequence[SchemaVersion]:
        changes = [
            one
            for one in self.versions(_MOST_ENTRIES)
            if one.operation in _SCHEMA_CHANGES or (one.details is not None and one.details.kind == RETYPED)
        ][:limit]
        found = []
        for one in changes:
            with contextlib.suppress(DeltaError):  # the log before it was cleaned
                found.append(SchemaVersion(one.version, one.at_ms, _columns(delta_table(self.place, one.version))))
        return found or [SchemaVersion(None, None, self.columns())]

    def file_sizes(self) -> Sequence[int]:
        return [
            int(size) for size in pa.table(self._table.get_add_actions(flatten=True)).column("size_bytes").to_pylist()
        ]

    def tidy(self) -> bool:
        self.refresh()
        if sum(size < SMALL_FILE_BYTES for size in self.file_sizes()) < MANY_SMALL_FILES:
            return False
        try:
            self._table.optimize.compact(target_size=JOINED_BYTES, max_concurrent_tasks=1)
        except DeltaError as error:
            raise CommitConflict(str(error)) from error
        self.clean(KEPT_HOURS * 3600)
        return True

    def clean(self, older_than_s: float, *, dry_run: bool = False) -> Sequence[str]:
        self.refresh()
        # Full: also files that a task wrote and no commit took.
        found: list[str] = self._table.vacuum(
            retention_hours=ceil(older_than_s / 3600),
            dry_run=dry_run,
            enforce_retention_duration=False,
            full=True,
        )
        self.refresh()
        return found

    def newest(self, limit: int) -> pa.Table:
        files = files_of(self._table, self.place)
        return read_newest(self.place, files, limit, arrow_schema((*PROVENANCE, *self.columns())))

    def scan(self, columns: Sequence[str]) -> pa.Table:
        schema = arrow_schema((*PROVENANCE, *self.columns()))
        wanted = pa.schema([schema.field(name) for name in columns])
        return read_columns(self.place, [path for path, _ in files_of(self._table, self.place)], wanted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        paths = [path for path, _ in files_of(self._table, self.place)]
        yield from batches_of(self.place, paths, arrow_schema((*PROVENANCE, *self.columns())))

    def _transaction(self, name: str) -> int | None:
        version = self._table.transaction_version(name)
        return None if version is None else int(version)

    def _next_id(self, shard: int) -> str:
        return f"sluice/{self._binding.epoch}/{shard}"

    def _first_id(self, shard: int) -> str:
        return f"sluice/{self._binding.epoch}/{shard}/first"

    def _properties(self, details: Details) -> CommitProperties:
        marks = [Transaction(self._next_id(one.shard), one.end) for one in details.ranges]
        marks += [
            Transaction(self._first_id(one.shard), one.start) for one in details.ranges if self.first(one.shard) is None
        ]
        return CommitProperties(custom_metadata={DETAILS_KEY: details.as_dict()}, app_transactions=marks)


def delta_table(place: Place, version: int | None = None) -> DeltaTable:
    """The table at a place. Raises ``TableNotFoundError``."""
    return DeltaTable(place.url, version, storage_options=place.storage_options)


def files_of(table: DeltaTable, place: Place) -> list[tuple[str, int]]:
    """The paths of a table's files with their rows, newest first."""
    files = pa.table(table.get_add_actions(flatten=True))
    if files.num_rows == 0:
        return []
    files = files.sort_by([("modification_time", "descending")])
    held = zip(files.column("path").to_pylist(), files.column("num_records").to_pylist(), strict=True)
    return [(place.path_of(unquote(path)), rows) for path, rows in held]


def _details(entry: dict[str, Any]) -> Details | None:
    details = entry.get(DETAILS_KEY)
    return None if details is None else Details.parse(json.loads(details) if isinstance(details, str) else details)


def _columns(table: DeltaTable) -> tuple[Column, ...]:
    provenance = {column.name for column in PROVENANCE}
    return tuple(_column(field) for field in table.schema().fields if field.name not in provenance)


def _binding(table: DeltaTable) -> Binding | None:
    for field in table.schema().fields:
        if field.name == _BOUND_FIELD and _STREAM in field.metadata:
            return Binding(field.metadata[_STREAM], field.metadata[_EPOCH])
    return None


def _field(column: Column, binding: Binding) -> Field:
    metadata = {_KEY: column.key, _TYPE: column.type}
    if column.name == _BOUND_FIELD:
        metadata |= {_STREAM: binding.stream, _EPOCH: binding.epoch}
    return Field(column.name, _type(column.parsed), metadata=metadata)


def _type(kind: ColumnType) -> PrimitiveType | StructType | ArrayType | MapType:
    if kind.name == "struct":
        kinds = (inner for _, inner in kind.members)
        return StructType([Field(name, _type(inner)) for name, inner in zip(kind.names, kinds, strict=True)])
    if kind.item is not None:
        return MapType(PrimitiveType("string"), _type(kind.item)) if kind.name == "map" else ArrayType(_type(kind.item))
    if kind.name == "decimal":
        return PrimitiveType(f"decimal({kind.precision},{kind.scale})")
    return PrimitiveType(_PRIMITIVES.get(kind.name, kind.name))


def _column(field: Field) -> Column:
    return Column(field.metadata.get(_KEY, field.name), field.name, field.metadata.get(_TYPE, _type_text(field.type)))


def _type_text(kind: Any) -> str:
    """The type of a column that another writer has added."""
    if isinstance(kind, StructType):
        return ColumnType("struct", tuple((one.name, parse_type(_type_text(one.type))) for one in kind.fields)).text
    if isinstance(kind, ArrayType):
        return f"array<{_type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<string, {_type_text(kind.value_type)}>"
    return str(kind.type)
