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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta
from math import ceil
from typing import Any, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType
from deltalake.transaction import AddAction, RemoveAction

from bridges.spark.columns.column import PROVENANCE, Column
from bridges.spark.columns.layout import Layout, PartitionField
from bridges.spark.columns.place import Place
from bridges.spark.columns.types import ColumnType, parse_type
from bridges.spark.tables.contract import (
    DETAILS_KEY,
    JOINED_BYTES,
    RETYPED,
    VALID_THROUGH,
    Binding,
    Change,
    CommitConflict,
    Compaction,
    Details,
    Expiry,
    FileReader,
    LakeTable,
    Range,
    SchemaVersion,
    TableFile,
    TableLost,
    TableRefused,
    TableUnreadable,
    Version,
)
from bridges.spark.tables.files import Constants, batches_of
from bridges.spark.tasks.task import RANGED, DataFile
from broker.core.store_clients import store_says

_STREAM = "sluice.stream"
_EPOCH = "sluice.epoch"
_KEY = "sluice.key"
_TYPE = "sluice.type"
_PARTITION = "sluice.partition"
_PROMISE = "delta.deletedFileRetentionDuration"
_UNITS_S = {"week": 604_800, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}
_EPOCH_DAY = date(1970, 1, 1)
_BOUND_FIELD = "_offset"
_LOG_READERS = 8
_LOG_PART = 64
_MOST_ENTRIES = 1000
_SCHEMA_CHANGES = ("CREATE TABLE", "ADD COLUMN", "UPDATE FIELD METADATA")
_PRIMITIVES = {"json": "string", "enum": "string", "timestamp(us)": "timestamp"}


class DeltaLakeTable(LakeTable):
    """See ``LakeTable``."""

    format = "delta"
    _forgotten: int | None = None
    """Up to which version the files are removed that it removed, as far as this object knows."""

    _id: str | None = None
    """The identity, once it was asked for."""
    _seen: tuple[int, fs.FileInfo] | None = None
    """A version of the log, and its file when it was read."""

    @classmethod
    def open(cls, place: Place, binding: Binding) -> Self | None:
        try:
            table = delta_table(place)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            reason = str(error).splitlines()[0]
            if store_says(reason, place.url):
                raise
            raise TableUnreadable(
                f"{place}: the log of the Delta table cannot be read: {reason}. Try: put the files of _delta_log back, "
                f"or move the directory away."
            ) from error
        stored = _binding(table)
        if stored is None:
            raise TableRefused(
                f"{place} holds a Delta table that Sluice did not make; choose another path"
            )
        binding.check(stored, place)
        return cls(table, place, binding)

    @classmethod
    def _create(
        cls, place: Place, binding: Binding, columns: Sequence[Column], layout: Layout
    ) -> None:
        derived = [
            _partition_field(field) for field in layout.partition if field.transform != "identity"
        ]
        schema = Schema(
            [*(_field(column, binding) for column in (*PROVENANCE, *columns)), *derived]
        )
        about = f"rows of stream {binding.stream}"
        options = place.storage_options
        names = [field.name for field in layout.partition]
        try:
            DeltaTable.create(
                place.url,
                schema,
                mode="ignore",
                partition_by=names,
                description=about,
                storage_options=options,
            )
        except DeltaError:
            # Another driver may have been first; what it made decides.
            if not DeltaTable.is_deltatable(place.url, options):
                raise

    def _load(self) -> None:
        # The files of the log suffice to tell an update from a log that others removed, replaced or put back.
        version = self.version()
        seen = self._seen
        self._id = None
        versions = {version} if seen is None else {version, seen[0]}
        log_infos = self.place.files.get_file_info([self._log_file(number) for number in versions])
        infos = dict(zip(versions, log_infos, strict=True))
        is_same = seen is None or _stamp(infos[seen[0]]) == _stamp(seen[1])
        if is_same and infos[version].type is not fs.FileType.NotFound:
            self._table.update_incremental()
            self._seen = version, infos[version]
            return
        self._seen = None
        try:
            self._table = delta_table(self.place)
        except TableNotFoundError as error:
            raise TableLost.gone(self.place) from error

    def has_left(self, version: int) -> bool:
        return any(entry.operation == "RESTORE" for entry in self.versions(_MOST_ENTRIES, version))

    def newest_file(self) -> str:
        return self._log_file(self.version())

    def _log_file(self, version: int) -> str:
        return self.place.path_of(f"_delta_log/{version:020}.json")

    def partitions(self) -> tuple[str, ...]:
        derived = {field.name: field.metadata[_PARTITION] for field in self._made()}
        return tuple(derived.get(name, name) for name in self._partition_names())

    def set_layout(self, layout: Layout) -> None:
        if layout.texts != self.partitions():
            raise TableRefused(
                f"{self.place} is a Delta table partitioned by {', '.join(self.partitions()) or 'nothing'}, which "
                f"cannot change. Try: another 'path' with another partition_by."
            )

    def _partition_names(self) -> list[str]:
        return list(self._table.metadata().partition_columns)

    def _made(self) -> list[Field]:
        """The columns that there are only as partitions."""
        return [field for field in self._table.schema().fields if _PARTITION in field.metadata]

    def _partition_values(self, file: DataFile) -> dict[str, Any]:
        """The values of a file as this table has them; a partition of days is one of dates."""
        derived = {field.name for field in self._made()}
        names = self._partition_names()
        return {
            name: _EPOCH_DAY + timedelta(days=value)
            if name in derived and value is not None
            else value
            for name, value in zip(names, file.partition, strict=True)
        }

    def version(self) -> int:
        return int(self._table.version())

    def identity(self) -> str:
        if self._id is None:
            self._id = str(self._table.metadata().id)
        return self._id

    def _masks(self) -> dict[str, pa.Array]:
        """Masks of files with a deletion vector, by path as ``Place.files`` has it: true for a row that is there."""
        if "deletionVectors" not in (self._table.protocol().reader_features or ()):
            return {}
        vectors = pa.table(self._table.deletion_vectors())
        base = self._table.table_uri.rstrip("/") + "/"
        paths = [unquote(url.removeprefix(base)) for url in vectors.column("filepath").to_pylist()]
        masks = (vector.values for vector in vectors.column("selection_vector"))
        return {self.place.path_of(path): mask for path, mask in zip(paths, masks, strict=True)}

    def at(self, version: int) -> Self:
        return type(self)(delta_table(self.place, version), self.place, self._binding)

    def reader(self, columns: Sequence[str]) -> FileReader:
        wanted = self._schema(columns)
        masks = self._masks()
        constants = {
            self.place.path_of(file.path): file.constants for file in self.files() if file.constants
        }

        def read(paths: Sequence[str], within: Range | None) -> Iterator[pa.RecordBatch]:
            full = [self.place.path_of(path) for path in paths]
            condition = None if within is None else _is_within(within)
            yield from self._read_masked(full, wanted, masks, constants, condition)

        return read

    def _read_masked(
        self,
        paths: Sequence[str],
        schema: pa.Schema,
        masks: Mapping[str, pa.Array],
        constants: Constants,
        condition: pc.Expression | None = None,
    ) -> Iterator[pa.RecordBatch]:
        whole = [path for path in paths if path not in masks]
        yield from batches_of(self.place, whole, schema, constants, condition)
        for path in [path for path in paths if path in masks]:
            mask = masks[path]
            start = 0
            for batch in batches_of(self.place, [path], schema, constants):
                part = mask.slice(start, batch.num_rows)
                rest = pa.repeat(pa.scalar(True), batch.num_rows - len(part))
                start += batch.num_rows
                yield batch.filter(pa.concat_arrays([part, rest]))

    def columns(self) -> tuple[Column, ...]:
        return _columns(self._table)

    def paths(self) -> Iterator[str]:
        for field in self._table.schema().fields:
            yield from _paths(field.name, field.type)

    def first(self, shard: int) -> int | None:
        return self._transaction(self._first_id(shard))

    def next(self, shard: int) -> int | None:
        return self._transaction(self._next_id(shard))

    def valid_through(self) -> int | None:
        return self._transaction(VALID_THROUGH)

    def commit(self, change: Change) -> int:
        if change.columns and not change.removes_all:
            self._alter(change.columns)
            return self.version()
        now_ms = int(time.time() * 1000)
        # Not as escapes: delta-rs reads those of some characters wrongly.
        stats = [json.dumps(file.stats, ensure_ascii=False) for file in change.add]
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, self._partition_texts(file), now_ms, True, text)
            for file, text in zip(change.add, stats, strict=True)
        ]
        actions += [RemoveAction(path, True, now_ms) for path in change.remove]
        schema = self._table.schema()
        if change.columns:
            fields = [_field(column, self._binding) for column in (*PROVENANCE, *change.columns)]
            schema = Schema([*fields, *self._made()])
        try:
            self._table.create_write_transaction(
                actions,
                "overwrite" if change.removes_all else "append",
                schema,
                self._partition_names(),
                commit_properties=self._properties(change),
            )
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error
        self._table.update_incremental()
        return self.version()

    def _alter(self, columns: Sequence[Column]) -> None:
        """Add columns that the table does not have, and widen the others."""
        fields = {field.name: field for field in self._table.schema().fields}
        fresh = [_field(column, self._binding) for column in columns if column.name not in fields]
        try:
            if fresh:
                self._table.alter.add_columns(fresh)
            for column in (column for column in columns if column.name in fields):
                # delta-rs merges members, not metadata. A death in between leaves members that are added again.
                metadata = fields[column.name].metadata
                self._table.alter.add_columns(
                    [Field(column.name, _type(column.parsed), metadata=metadata)]
                )
                metadata = _field(column, self._binding).metadata
                self._table.alter.set_column_metadata(column.name, metadata)
        except DeltaError as error:
            self._check_conflict(error)
            raise
        self.refresh()

    def _check_conflict(self, error: DeltaError) -> None:
        """Raises ``CommitConflict`` where another writer has committed, which may be why a change failed."""
        before = self.version()
        self.refresh()
        if self.version() != before:
            raise CommitConflict(str(error)) from error

    def files(self) -> list[TableFile]:
        actions = pa.table(self._table.get_add_actions(flatten=True))
        bounds = {name: _bounds_of(actions, name) for name in RANGED}
        partitions = {
            name: actions.column(f"partition.{name}").to_pylist()
            for name in self._partition_names()
        }
        sizes = actions.column("size_bytes").to_pylist()
        counts = actions.column("num_records").to_pylist()
        masks = self._masks()
        files = []
        for at, quoted in enumerate(actions.column("path").to_pylist()):
            path = unquote(quoted)
            pairs = [(name, column[at]) for name, column in bounds.items()]
            low = {name: pair[0] for name, pair in pairs if pair is not None}
            high = {name: pair[1] for name, pair in pairs if pair is not None}
            mask = masks.get(self.place.path_of(path)) if masks else None
            hidden = 0 if mask is None else len(mask) - int(pc.sum(mask).as_py() or 0)
            constants = {name: values[at] for name, values in partitions.items()}
            partition = tuple(constants.values())
            rows = (counts[at] or 0) - hidden
            files.append(
                TableFile(
                    path,
                    sizes[at],
                    rows,
                    low,
                    high,
                    partition,
                    constants,
                    is_masked=mask is not None,
                )
            )
        return files

    def written(self) -> list[DataFile]:
        derived = {field.name for field in self._made()}
        constants = {file.path: file.constants for file in self.files()}
        files = []
        for version in self.versions():
            for entry in self._entries(version.version, b'{"add"'):
                add = entry["add"]
                path = unquote(add["path"])
                values = [
                    (value - _EPOCH_DAY).days if name in derived and value else value
                    for name, value in constants[path].items()
                ]
                stats = json.loads(add["stats"])
                files.append(DataFile(path, add["size"], stats["numRecords"], stats, values))
        return files

    def forget_replaced(self, older_than_s: float) -> int:
        kept_s = max(older_than_s, _seconds_of(self._promise()))
        before_ms = int((time.time() - kept_s) * 1000)
        newest = self.version()
        forgotten = 0
        kept = {self.place.path_of(file.path) for file in self.files()}
        first = max(0, newest - _MOST_ENTRIES) if self._forgotten is None else self._forgotten + 1
        for version in range(first, newest + 1):
            try:
                removed = [entry["remove"] for entry in self._entries(version, b'{"remove"')]
            except FileNotFoundError:  # the log before it was cleaned
                continue
            if any(entry["deletionTimestamp"] >= before_ms for entry in removed):
                break
            paths = [self.place.path_of(unquote(entry["path"])) for entry in removed]
            # A new deletion vector is a file removed and added.
            self.place.remove([path for path in paths if path not in kept])
            self._forgotten, forgotten = version, forgotten + len(removed)
        return forgotten

    def _partition_texts(self, file: DataFile) -> dict[str, str | None]:
        return {
            name: _partition_text(value) for name, value in self._partition_values(file).items()
        }

    def versions(self, limit: int | None = None, after: int = -1) -> Sequence[Version]:
        newest = self.version()
        versions = []
        first = after + 1 if limit is None else max(after, newest - limit) + 1
        with ThreadPoolExecutor(_LOG_READERS) as readers:
            for end in range(newest, first - 1, -_LOG_PART):
                part = list(
                    readers.map(self._logged, range(end, max(first, end + 1 - _LOG_PART) - 1, -1))
                )
                versions += [version for version in part if version is not None]
                if None in part:  # the log before it was cleaned
                    break
        return versions

    def _logged(self, version: int) -> Version | None:
        """A version as the log has it. Read here, not by delta-rs, which would hold the interpreter."""
        try:
            infos = [entry["commitInfo"] for entry in self._entries(version, b'{"commitInfo"')]
        except FileNotFoundError:
            return None
        info = infos[0] if infos else {}
        return Version(
            version, int(info.get("timestamp", 0)), str(info.get("operation", "")), _details(info)
        )

    def _entries(self, version: int, start: bytes) -> list[dict[str, Any]]:
        """The entries of a version in the log that begin so. Raises ``FileNotFoundError``."""
        with self.place.files.open_input_stream(self._log_file(version)) as file:
            return [json.loads(line) for line in file.read().splitlines() if line.startswith(start)]

    def schemas(self, limit: int) -> Sequence[SchemaVersion]:
        changes = [
            version
            for version in self.versions(_MOST_ENTRIES)
            if version.operation in _SCHEMA_CHANGES
            or (version.details is not None and version.details.kind == RETYPED)
        ][:limit]
        schemas = []
        for change in changes:
            with contextlib.suppress(DeltaError):  # the log before it was cleaned
                schemas.append(
                    SchemaVersion(
                        change.version,
                        change.at_ms,
                        _columns(delta_table(self.place, change.version)),
                    )
                )
        return schemas or [SchemaVersion(None, None, self.columns())]

    def _join(self, groups: Sequence[Sequence[TableFile]]) -> Compaction:
        try:
            done = self._table.optimize.compact(target_size=JOINED_BYTES, max_concurrent_tasks=1)
        except DeltaError as error:
            raise CommitConflict(str(error)) from error
        self.refresh()
        removed = (
            json.loads(done["filesRemoved"])
            if isinstance(done["filesRemoved"], str)
            else done["filesRemoved"]
        )
        return Compaction(done["numFilesRemoved"], int(removed["totalSize"]), done["numFilesAdded"])

    def expire(self, older_than_s: float, *, dry_run: bool = False) -> Expiry:
        self.refresh()
        promised = self._promise()
        if promised and older_than_s < _seconds_of(promised):
            raise TableRefused(
                f"{self.place}: the table's {_PROMISE} promises readers {promised!r}, more than asked for. Try: a "
                f"longer time."
            )
        hours = ceil(older_than_s / 3600)
        # Not full: only files that versions had; what no version ever had is left to ``clean``.
        unused = self._table.vacuum(
            retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=False
        )
        infos = self.place.files.get_file_info(
            [self.place.path_of(unquote(path)) for path in unused]
        )
        if unused and not dry_run:
            self._table.vacuum(
                retention_hours=hours, dry_run=False, enforce_retention_duration=False, full=False
            )
            self.refresh()
        return Expiry(0, len(unused), sum(info.size or 0 for info in infos))

    def _promise(self) -> str:
        """Time that the table's own settings keep files for readers; empty without such a setting."""
        return str(self._table.metadata().configuration.get(_PROMISE, ""))

    def delete_before(self, at: datetime, details: Details) -> None:
        days = [
            field.name
            for field in self._made()
            if field.metadata[_PARTITION] == "day(_published_at)"
        ]
        # By partition no file is read.
        condition = (
            f"{days[0]} < DATE '{at.date()}'" if days else f"_published_at < '{at.isoformat()}'"
        )
        change = Change(details, marks=())
        try:
            done = self._table.delete(condition, commit_properties=self._properties(change))
        except CommitFailedError as error:
            raise CommitConflict(str(error)) from error
        self.refresh()
        if not done["num_removed_files"] and details.ranges:
            # of dead letters alone: delta-rs commits nothing then
            self.commit(change)

    def clean(self, older_than_s: float, *, dry_run: bool = False) -> Sequence[str]:
        self.refresh()
        # Full: also files that a task wrote and no commit took.
        removed: list[str] = self._table.vacuum(
            retention_hours=ceil(older_than_s / 3600),
            dry_run=dry_run,
            enforce_retention_duration=False,
            full=True,
        )
        self.refresh()
        return removed

    def _transaction(self, name: str) -> int | None:
        version = self._table.transaction_version(name)
        return None if version is None else int(version)

    def _next_id(self, shard: int) -> str:
        return f"sluice/{self._binding.epoch}/{shard}"

    def _first_id(self, shard: int) -> str:
        return f"sluice/{self._binding.epoch}/{shard}/first"

    def _properties(self, change: Change) -> CommitProperties:
        details = change.details
        metadata = None if details is None else {**details.about, DETAILS_KEY: details.as_dict()}
        if not change.ends:  # nothing in the log says that another commit was first, so none may be
            return CommitProperties(custom_metadata=metadata, max_commit_retries=0)
        ids = [Transaction(self._next_id(end.shard), end.end) for end in change.ends]
        ids += [
            Transaction(self._first_id(end.shard), end.start)
            for end in change.ends
            if self.first(end.shard) is None
        ]
        if details is not None and details.valid_through is not None:
            ids.append(Transaction(VALID_THROUGH, details.valid_through))
        return CommitProperties(custom_metadata=metadata, app_transactions=ids)


def _is_within(span: Range) -> pc.Expression:
    """The condition that a row is of a range of offsets."""
    offset = pc.field("_offset")
    return (pc.field("_shard") == span.shard) & (offset >= span.start) & (offset < span.end)


def delta_table(place: Place, version: int | None = None) -> DeltaTable:
    """The table at a place. Raises ``TableNotFoundError``."""
    return DeltaTable(place.url, version, storage_options=place.storage_options)


def _stamp(info: fs.FileInfo) -> tuple[Any, ...]:
    """Attributes that distinguish a file from another one of the same name."""
    return info.type, info.size, info.mtime_ns


def _bounds_of(files: pa.Table, column: str) -> list[tuple[int, int] | None]:
    """The least and greatest value of a column in each file, None where that is unknown."""
    names = [f"{side}.{column}" for side in ("min", "max")]
    if not set(names) <= set(files.column_names):
        return [None] * files.num_rows
    low, high = (files.column(name) for name in names)
    if pa.types.is_timestamp(low.type):
        low, high = (values.cast(pa.timestamp("us", values.type.tz)) for values in (low, high))
    low, high = (values.cast(pa.int64()).to_pylist() for values in (low, high))
    return [
        None if pair[0] is None or pair[1] is None else pair for pair in zip(low, high, strict=True)
    ]


def _details(entry: dict[str, Any]) -> Details | None:
    details = entry.get(DETAILS_KEY)
    return (
        None
        if details is None
        else Details.parse(json.loads(details) if isinstance(details, str) else details)
    )


def _columns(table: DeltaTable) -> tuple[Column, ...]:
    provenance = {column.name for column in PROVENANCE}
    return tuple(
        _column(field)
        for field in table.schema().fields
        if field.name not in provenance and _PARTITION not in field.metadata
    )


def _paths(name: str, kind: Any) -> Iterator[str]:
    yield name
    if isinstance(kind, StructType):
        for member in kind.fields:
            yield from _paths(f"{name}.{member.name}", member.type)
    elif isinstance(kind, ArrayType):
        yield from _paths(f"{name}.element", kind.element_type)
    elif isinstance(kind, MapType):
        yield from _paths(f"{name}.value", kind.value_type)


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
        return StructType(
            [Field(name, _type(inner)) for name, inner in zip(kind.names, kinds, strict=True)]
        )
    if kind.item is not None:
        return (
            MapType(PrimitiveType("string"), _type(kind.item))
            if kind.name == "map"
            else ArrayType(_type(kind.item))
        )
    if kind.name == "decimal":
        return PrimitiveType(f"decimal({kind.precision},{kind.scale})")
    return PrimitiveType(_PRIMITIVES.get(kind.name, kind.name))


def _seconds_of(interval: str) -> float:
    """An interval as a property of a table has it: ``interval 1 weeks``."""
    parts = interval.split()
    if len(parts) != 3 or parts[2].rstrip("s") not in _UNITS_S:
        return 0.0
    return float(parts[1]) * _UNITS_S[parts[2].rstrip("s")]


def _partition_field(field: PartitionField) -> Field:
    return Field(field.name, PrimitiveType("date"), metadata={_PARTITION: field.text})


def _partition_text(value: Any) -> str | None:
    """A partition value as Delta's log has it, where the empty text is null."""
    if value is None or isinstance(value, str):
        return value or None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _column(field: Field) -> Column:
    return Column(
        field.metadata.get(_KEY, field.name),
        field.name,
        field.metadata.get(_TYPE, _type_text(field.type)),
    )


def _type_text(kind: Any) -> str:
    """The type of a column that another writer has added."""
    if isinstance(kind, StructType):
        return ColumnType(
            "struct",
            tuple((member.name, parse_type(_type_text(member.type))) for member in kind.fields),
        ).text
    if isinstance(kind, ArrayType):
        return f"array<{_type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<string, {_type_text(kind.value_type)}>"
    return str(kind.type)
