"""Iceberg tables through pyiceberg: no jar, no JVM. The catalog is one that others share, or else the table's own
(``bridges.spark.tables.catalogs``).

The guard against doubled batches is a table property per shard, the offset after the last record, set in the
transaction that adds the files. pyiceberg would retry a conflicting commit and so double a batch that two
drivers have; retries are 0, and a refused driver reads the properties again. A commit whose answer was lost is
found by its details, offsets among them, in the summaries of snapshots.

Each commit writes a metadata file with all snapshots, so their number is bounded: of the older ones of a day, ``tidy``
keeps those that were current at a full ten minutes. Files stay for a day after the last version that has them was
replaced, so that a reader can finish. Another engine may expire snapshots at any time. Therefore offsets are in
properties, and so are the details of the last commits, for the ledger to find.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial, wraps
from itertools import count, pairwise
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.parser import parse
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    ArrowProjectionVisitor,
    ArrowScan,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import (
    MetadataLogEntry,
    Operation,
    Snapshot,
    SnapshotLogEntry,
    Summary,
)
from pyiceberg.table.sorting import (
    UNSORTED_SORT_ORDER,
    NullOrder,
    SortDirection,
    SortField,
    SortOrder,
)
from pyiceberg.table.update import AssertCurrentSchemaId, TableUpdate
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.transforms import IdentityTransform, Transform, VoidTransform, parse_transform
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyiceberg.utils.concurrent import ExecutorFactory
from pyiceberg.utils.datetime import date_str_to_days

from bridges.spark.columns.column import PROVENANCE, Column
from bridges.spark.columns.layout import Layout
from bridges.spark.columns.layout import PartitionField as OurField
from bridges.spark.columns.place import Place, path_of
from bridges.spark.columns.types import ColumnType, NotAType
from bridges.spark.tables.catalogs import FAILURES, answered, catalog_of, reopened
from bridges.spark.tables.contract import (
    DETAILS_KEY,
    KEPT_HOURS,
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
    Rest,
    SchemaVersion,
    ShardRange,
    TableFile,
    TableLost,
    TableRefused,
    TableUnreadable,
    Version,
    micros,
)
from bridges.spark.tables.files import join_files
from bridges.spark.tasks.task import RANGED, DataFile, write_rows

Project = Callable[..., pa.Array | None]


def _keeping_nulls(project: Project) -> Project:
    @wraps(project)
    def projected(
        self: Any, kind: Any, array: pa.Array | None, *inner: pa.Array | None
    ) -> pa.Array | None:
        result = project(self, kind, array, *inner)
        if array is None or result is None or result.null_count == array.null_count:
            return result
        return pc.if_else(array.is_null(), pa.scalar(None, result.type), result)

    return projected


# pyiceberg 0.12 reads a list or a map of structs that is null as an empty one, and would write it so in other files.
for _name in ("list", "map"):
    setattr(ArrowProjectionVisitor, _name, _keeping_nulls(getattr(ArrowProjectionVisitor, _name)))
for _entry in (Snapshot, SnapshotLogEntry, MetadataLogEntry):
    # They never change. Copies of hundreds of them at every commit would take three quarters of its time.
    _entry.__deepcopy__ = lambda self, memo=None: self  # type: ignore[method-assign]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMESPACE = "sluice"
# The number of the field.
_PUBLISHED_AT = 1 + [column.name for column in PROVENANCE].index("_published_at")
_STREAM = "sluice.stream"
_STREAM_EPOCH = "sluice.epoch"
_COMMITS = "sluice.commits"
# Maximum bytes of the details of the last commits, in the property: a few hundred commits, where the ledger is seconds
# behind.
_COMMITS_BYTES = 64 * 1024
_KEPT_SNAPSHOTS = "history.expire.min-snapshots-to-keep"
_KEPT_MS = "history.expire.max-snapshot-age-ms"
_KEPT_METADATA = "write.metadata.previous-versions-max"
# Settings of Iceberg that keep metadata small; set by a table's next commit where the table does not have them. A
# metadata file is there for an hour at the default pace.
_BOUNDS = {
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "30",
    "commit.manifest.target-size-bytes": str(128 * 1024),
    "write.metadata.delete-after-commit.enabled": "true",
    _KEPT_METADATA: "360",
    _KEPT_SNAPSHOTS: "50",
}
# Settings that earlier releases gave their tables.
_EARLIER_BOUNDS = {_KEPT_METADATA: "20"}
# Time that a version can be read after it was replaced, unless the table's properties set it.
_DAY_MS = 24 * 3600 * 1000
# Number of newest versions that are all kept: 83 minutes at the default pace, as a job that runs every hour reads on
# from the version that it knows.
_NEWEST = 500
# Window of older versions: those are kept that were current at a full ten minutes.
_WINDOW_MS = 10 * 60 * 1000
_SWEPT = "sluice.swept-at-ms"
# When the table's files were last compared with its versions, and how often that is done.
_SWEEP_MS = 3600 * 1000
_EXPIRED_AT_ONCE = 25
# In a name mapping, a column with more than one name.
_RENAMED = re.compile(r'"names":\s*\["(?:[^"\\]|\\.)*"\s*,')
_PRIMITIVES: dict[str, IcebergType] = {
    "boolean": BooleanType(),
    "integer": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "string": StringType(),
    "enum": StringType(),
    "json": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp(us)": TimestamptzType(),
}


class IcebergLakeTable(LakeTable):
    """See ``LakeTable``. A column's key and type are in its field's ``doc``, as JSON."""

    format = "iceberg"
    applies_deletes = True
    has_ids = True
    _left: tuple[str, Mapping[int, int]] | None = None
    """The last answer of ``_left_behind``, with the metadata that it is of."""

    @classmethod
    def open(cls, place: Place, binding: Binding) -> Self | None:
        with answered(place):
            try:
                table = catalog_of(place).load_table(_identifier(place))
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except FileNotFoundError as error:
                raise TableUnreadable(
                    f"{place}: the metadata of the Iceberg table cannot be read: {error}. Try: put the files of "
                    f"metadata back, or move the directory away."
                ) from error
        if _STREAM not in table.properties:
            raise TableRefused(
                f"{place.entry or place} is an Iceberg table that Sluice did not make; choose another"
            )
        if path_of(table.location()) != place.path:
            raise TableRefused(
                f"{place.entry or place}: expected it at {place}, got {table.location()}"
            )
        binding.check(
            Binding(table.properties[_STREAM], table.properties.get(_STREAM_EPOCH, "")), place
        )
        return cls(table, place, binding)

    @classmethod
    def _create(
        cls, place: Place, binding: Binding, columns: Sequence[Column], layout: Layout
    ) -> None:
        metadata = place.files.get_file_info(place.path_of("metadata"))
        if place.entry is not None and metadata.type is not fs.FileType.NotFound:
            raise TableRefused(
                f"{place.entry} is not there, and {place} has the files of a table that was dropped or renamed. "
                f"Try: register it in the catalog again, remove its files, or choose another path."
            )
        properties = {
            _STREAM: binding.stream,
            _STREAM_EPOCH: binding.epoch,
            "commit.retry.num-retries": "0",
        }
        identifier = _identifier(place)
        with answered(place), contextlib.suppress(TableAlreadyExistsError):
            catalog = catalog_of(place)
            schema = _schema_at_first(columns)
            spec = _partition_spec(schema, layout)
            order = _sort_order(schema, layout)
            create = partial(
                catalog.create_table, identifier, schema, place.uri, spec, order, properties
            )
            try:
                create()
            except NoSuchNamespaceError:
                for depth in range(1, len(identifier)):
                    with contextlib.suppress(NamespaceAlreadyExistsError):
                        catalog.create_namespace(identifier[:depth])
                create()

    def _load(self) -> None:
        place = self.place
        if (
            place.entry is None
            and place.files.get_file_info(place.path_of("metadata")).type is fs.FileType.NotFound
        ):
            raise TableLost.gone(place)
        with answered(place):
            try:
                catalog = (
                    self._table.catalog
                    if place.entry is not None
                    else reopened(self._table.catalog)
                )
                fresh = catalog.load_table(self._table.name())
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                raise TableLost.gone(place) from error
            except FileNotFoundError as error:
                raise TableLost(
                    f"lacks the metadata of its newest version at {place}: {error}"
                ) from error
        # Not with its own ``refresh``, which refuses another table with an error that has no class.
        self._table.metadata = fresh.metadata
        self._table.metadata_location = fresh.metadata_location
        self._table.io = fresh.io
        self._table.config = fresh.config

    def has_left(self, version: int) -> bool:
        return version in self._left_behind().values()

    def _left_behind(self) -> Mapping[int, int]:
        """The snapshots that another engine has gone back from, each with its version."""
        if self._left is not None and self._left[0] == self._table.metadata_location:
            return self._left[1]
        by_id = {snapshot.snapshot_id: snapshot for snapshot in self._table.metadata.snapshots}
        ancestor = self._table.current_snapshot()
        line = dict[int, Snapshot]()
        while ancestor is not None:
            line[ancestor.snapshot_id] = ancestor
            ancestor = by_id.get(ancestor.parent_snapshot_id or 0)
        oldest = min((snapshot.sequence_number or 0 for snapshot in line.values()), default=0)
        others = {
            key: int(snapshot.sequence_number or 0)
            for key, snapshot in by_id.items()
            if key not in line
        }
        left = {key: version for key, version in others.items() if version > oldest}
        self._left = self._table.metadata_location, left
        return left

    def newest_file(self) -> str:
        return path_of(self._table.metadata_location)

    def partitions(self) -> tuple[str, ...]:
        fields = self._partition_fields()
        return tuple(
            _partition_text(field.transform, self._name_of(field.source_id)) for field in fields
        )

    def _partition_fields(self) -> list[PartitionField]:
        return [
            field
            for field in self._table.spec().fields
            if not isinstance(field.transform, VoidTransform)
        ]

    def set_layout(self, layout: Layout) -> None:
        now = set(self.partitions())
        wanted = set(layout.texts)
        if now == wanted and self.sort_texts() == layout.sort_texts:
            return
        names = dict(zip(self.partitions(), self._partition_fields(), strict=True))
        with self._committing(), self._table.transaction() as transaction:
            if now != wanted:
                with transaction.update_spec() as spec:
                    for text in now - wanted:
                        spec.remove_field(names[text].name)
                    for field in layout.partition:
                        if field.text not in now:
                            spec.add_field(field.column, _transform(field), field.name)
            with transaction.update_sort_order() as order:
                for name, descends in layout.sort:
                    (order.desc if descends else order.asc)(name, IdentityTransform())
        self.refresh()

    def _name_of(self, field_id: int) -> str:
        return str(self._table.schema().find_field(field_id).name)

    def sort_texts(self) -> tuple[str, ...]:
        return tuple(
            self._name_of(field.source_id)
            + (" desc" if field.direction == SortDirection.DESC else "")
            for field in self._table.sort_order().fields
        )

    def _data_files(
        self, metadata: TableMetadata, files: Sequence[DataFile], *, is_sorted: bool = True
    ) -> list[IcebergFile]:
        """Files that tasks wrote, with the statistics of their footers."""
        read = partial(
            _data_file,
            self._table.io,
            metadata,
            metadata.default_sort_order_id if is_sorted else None,
        )
        return list(
            ExecutorFactory.get_or_create().map(
                lambda file: read(self.place.child(file.path).uri, file), files
            )
        )

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

    @classmethod
    def columns_at_first(cls, columns: Sequence[Column]) -> tuple[Column, ...]:
        return _columns(assign_fresh_schema_ids(_schema_at_first(columns)))

    def columns_after_rewrite(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        transaction = Transaction(self._table)  # which is not committed
        with transaction.update_schema(allow_incompatible_changes=True) as update:
            self._change(update, columns)
        ids = {column.name: column.ids for column in _columns(transaction.table_metadata.schema())}
        return tuple(replace(column, ids=ids.get(column.name, ())) for column in columns)

    def _change(self, update: UpdateSchema, columns: Sequence[Column]) -> None:
        """Put columns in the place of those of their names that are others."""
        current = set(self.columns())
        names = {column.name for column in current}
        for column in columns:
            if column in current:
                continue
            if column.name in names:
                update.delete_column(column.name)
            update.add_column(column.name, _type(column.parsed, count()), doc=_doc(column))

    def paths(self) -> Iterator[str]:
        yield from self._table.schema().column_names

    def first(self, shard: int) -> int | None:
        return self._property(f"sluice.first.{shard}")

    def next(self, shard: int) -> int | None:
        end = self._property(f"sluice.next.{shard}")
        if end is None or len(self._remembered()) == len(self._remembered_lines()):
            return end
        # Another engine went back to an older version, which properties do not.
        details = [version.details for version in self.versions() if version.details is not None]
        ends = [part.end for commit in details for part in commit.ranges if part.shard == shard]
        if not ends:
            raise TableRefused(
                f"{self.place}: expected a version with the end of shard {shard}, got version {self.version()}, which "
                f"another engine went back to. Try: a newer version of the table."
            )
        return max(ends)

    def valid_through(self) -> int | None:
        text = self._table.properties.get(VALID_THROUGH)
        moment = None if text is None else datetime.fromisoformat(text)
        return None if moment is None else (moment - _EPOCH) // timedelta(microseconds=1)

    def commit(self, change: Change) -> int:
        details = change.details
        files = self._planned() if change.remove or change.removes_all else {}
        removed = files.values() if change.removes_all else [files[path] for path in change.remove]
        with self._committing(details), _Transaction(self._table) as transaction:
            if details is not None:
                transaction.set_properties(
                    self._marks(details, change.ends) | self._remember(details)
                )
            if change.columns:
                self._change_columns(transaction, change)
            if details is not None or change.keeps_rows:
                # Without files it is a snapshot too: a batch is in the history though all of it went to dead letters.
                self._add_snapshot(transaction, change, removed)
        return self.version()

    def _add_snapshot(
        self, transaction: Transaction, change: Change, removed: Collection[IcebergFile]
    ) -> None:
        _map_names(transaction)
        update = transaction.update_snapshot(
            {} if change.details is None else _summary(change.details)
        )
        producer = update.overwrite() if removed else update.merge_append()
        if change.keeps_rows:
            producer = _JoinFiles(Operation.OVERWRITE, transaction, self._table.io)
        with producer as snapshot:
            for file in removed:
                snapshot.delete_data_file(file)
            for file in self._data_files(
                transaction.table_metadata, change.add, is_sorted=not change.keeps_rows
            ):
                snapshot.append_data_file(file)

    def _change_columns(self, transaction: Transaction, change: Change) -> None:
        current = {column.name: column for column in self.columns()}
        with transaction.update_schema(allow_incompatible_changes=change.removes_all) as update:
            if change.removes_all:
                self._change(update, change.columns)
                return
            for column in change.columns:
                if column.name in current:
                    _widen(update, (column.name,), current[column.name].parsed, column.parsed)
                    update.update_column(column.name, doc=_doc(column))
                else:
                    update.add_column(
                        (column.name,), _type(column.parsed, count()), doc=_doc(column)
                    )

    def files(self) -> list[TableFile]:
        if self._table.current_snapshot() is None:
            return []
        numbers = {name: self._table.schema().find_field(name).field_id for name in RANGED}
        spec = self._table.metadata.default_spec_id
        masked = {
            path_of(task.file.file_path)
            for task in self._table.scan().plan_files()
            if task.delete_files
        }
        return [
            TableFile(
                path,
                file.file_size_in_bytes,
                file.record_count,
                _bounds(file.lower_bounds, numbers),
                _bounds(file.upper_bounds, numbers),
                tuple(file.partition[at] for at in range(len(file.partition))),
                earlier_spec=None if file.spec_id == spec else file.spec_id,
                is_masked=self.place.path_of(path) in masked,
            )
            for path, file in self._planned().items()
        ]

    def data_files(self) -> dict[str, int]:
        files = super().data_files()
        if self.has_renamed() and not all(
            self._is_named_alike(self.place.path_of(path)) for path in files
        ):
            raise TableRefused(
                f"{self.place}: expected columns with the names that its files give them, got one that another engine "
                f"renamed. Try: rename it back in that engine."
            )
        return files

    def written(self) -> list[DataFile]:
        return [
            DataFile(file.path, file.size, file.rows, {}, list(file.partition))
            for file in self.files()
        ]

    def drop(self) -> None:
        if self.place.entry is not None:
            with answered(self.place), contextlib.suppress(NoSuchTableError):
                catalog_of(self.place).drop_table(_identifier(self.place))
        super().drop()

    def rest(self, file: TableFile, ranges: Sequence[Range]) -> Rest:
        if file.is_masked or not self._is_named_alike(self.place.path_of(file.path)):
            # a task reads files as they are
            path = f"applied-{uuid.uuid4().hex}.parquet"
            pq.write_table(
                self.read(None, [file.path]), self.place.path_of(path), filesystem=self.place.files
            )
            file = replace(file, path=path)
        return super().rest(file, ranges)

    def has_renamed(self) -> bool:
        """True if another engine ever renamed a column."""
        return (
            _RENAMED.search(self._table.properties.get(TableProperties.DEFAULT_NAME_MAPPING, ""))
            is not None
        )

    def _is_named_alike(self, path: str) -> bool:
        """True if columns are called in a file as in the table, and so can be read by name: another engine may have
        renamed one, or dropped it and made another one of its name."""
        has = dict(
            _leaf_ids(pq.read_metadata(path, filesystem=self.place.files).schema.to_arrow_schema())
        )
        ids = parquet_path_to_id_mapping(self._table.schema())
        return (
            all(ids.get(name) == its_id for name, its_id in has.items())
            if has
            else not self.has_renamed()
        )

    def _planned(self) -> dict[str, IcebergFile]:
        """The data files by their paths, relative to the table's directory."""
        base = self.place.path.rstrip("/") + "/"
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return {}
        # Files of the manifests: a scan leaves out files without rows.
        files = [
            entry.data_file
            for manifest in snapshot.manifests(self._table.io)
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            if entry.data_file.content == DataFileContent.DATA
        ]
        return {path_of(file.file_path).removeprefix(base): file for file in files}

    def forget_replaced(self, older_than_s: float) -> int:
        old = self._replaced(max(older_than_s, self._kept_ms(0) / 1000))
        if len(old) < _EXPIRED_AT_ONCE:
            return 0
        unused = self._drop(old)
        self.place.remove(sorted(unused))
        return len(unused)

    def _drop(self, old: Sequence[Snapshot], *, dry_run: bool = False) -> set[str]:
        """Remove snapshots; the paths of the files that only they have."""
        files = self._held_by(old, missing_ok=True)
        ids = {snapshot.snapshot_id for snapshot in old}
        if not dry_run:
            with self._committing():
                self._table.maintenance.expire_snapshots().by_ids(list(ids)).commit()
            self.refresh()
        return files - self._held_by(
            [
                snapshot
                for snapshot in self._table.metadata.snapshots
                if snapshot.snapshot_id not in ids
            ]
        )

    def _held_by(self, snapshots: Iterable[Snapshot], *, missing_ok: bool = False) -> set[str]:
        """The paths of all files of snapshots: lists of manifests, manifests, data files. Some may be missing where a
        run that removed them was killed."""
        files: set[str] = set()
        manifests: dict[str, ManifestFile] = {}
        missing = (FileNotFoundError,) if missing_ok else ()
        for snapshot in snapshots:
            with contextlib.suppress(*missing):
                manifests |= {
                    part.manifest_path: part for part in snapshot.manifests(self._table.io)
                }
                files.add(path_of(snapshot.manifest_list))
        for manifest in manifests.values():
            with contextlib.suppress(*missing):
                entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
                files |= {path_of(entry.data_file.file_path) for entry in entries}
                files.add(path_of(manifest.manifest_path))
        return files

    @contextlib.contextmanager
    def _committing(self, details: Details | None = None) -> Iterator[None]:
        """Commit in the block. Where the catalog's answer is lost, whether it did is seen by the details.

        Raises:
            CommitConflict: nothing was committed, or, without details, perhaps something.
        """
        base = self.version()
        location = self._table.metadata_location
        try:
            yield
        except FAILURES as error:
            self.refresh()
            if details is None or not any(
                version.version > base and version.details == details for version in self.versions()
            ):
                raise CommitConflict(f"the catalog did not commit: {error}") from error
        except (CommitFailedException, ValidationException) as error:
            raise CommitConflict(str(error)) from error
        except ValueError as error:
            # Changes of columns by other writers may make this one impossible.
            self.refresh()
            if self._table.metadata_location == location:
                raise
            raise CommitConflict(str(error)) from error

    def _remember(self, details: Details) -> dict[str, str]:
        """Properties of a commit other than its offsets."""
        has = self._table.properties
        missing = {
            name: value
            for name, value in _BOUNDS.items()
            if has.get(name) in (None, _EARLIER_BOUNDS.get(name))
        }
        version = self._table.metadata.last_sequence_number + 1
        lines = [*self._remembered(), f"{version} {_now_ms()} {json.dumps(details.as_dict())}"]
        while sum(map(len, lines)) > _COMMITS_BYTES:
            lines.pop(0)
        return {**missing, _COMMITS: "\n".join(lines)}

    def _remembered_lines(self) -> list[str]:
        return str(self._table.properties.get(_COMMITS, "")).splitlines()

    def _remembered(self) -> list[str]:
        """The remembered commits that the open version has."""
        newest = self.version()
        left = set(self._left_behind().values())
        numbered = ((int(line.partition(" ")[0]), line) for line in self._remembered_lines())
        return [line for version, line in numbered if version <= newest and version not in left]

    def versions(self, limit: int | None = None, after: int = -1) -> Sequence[Version]:
        by_details: dict[str | int, Version] = {}
        for line in self._remembered():
            version, at_ms, kept = line.split(" ", 2)
            by_details[kept] = Version(
                int(version), int(at_ms), "append", Details.parse(json.loads(kept))
            )
        left = self._left_behind()
        for snapshot in self._table.metadata.snapshots:
            if snapshot.snapshot_id in left:
                continue
            summary = snapshot.summary
            text = summary.additional_properties.get(DETAILS_KEY) if summary else None
            # Replacements of earlier releases left two snapshots with the same details: the last one is the commit.
            by_details[text or snapshot.snapshot_id] = Version(
                int(snapshot.sequence_number or 0),
                snapshot.timestamp_ms,
                summary.operation.value if summary else "",
                Details.parse(json.loads(text)) if text else None,
            )
        newer = [entry for entry in by_details.values() if entry.version > after]
        return sorted(newer, key=lambda entry: entry.version, reverse=True)[:limit]

    def schemas(self, limit: int) -> Sequence[SchemaVersion]:
        first = {
            snapshot.schema_id: snapshot for snapshot in reversed(self._table.metadata.snapshots)
        }
        schemas = []
        for schema in sorted(
            self._table.metadata.schemas, key=lambda schema: schema.schema_id, reverse=True
        )[:limit]:
            snapshot = first.get(schema.schema_id)
            version, at_ms = (
                (None, None)
                if snapshot is None
                else (int(snapshot.sequence_number or 0), snapshot.timestamp_ms)
            )
            schemas.append(SchemaVersion(version, at_ms, _columns(schema)))
        return schemas

    def _clean_old(self) -> None:
        if int(self._table.properties.get(_SWEPT, 0)) >= _now_ms() - _SWEEP_MS:
            return
        with self._committing(), self._table.transaction() as transaction:
            transaction.set_properties({_SWEPT: str(_now_ms())})
        # A version is replaced up to a window after its files were written, and expired up to one later.
        self._sweep(KEPT_HOURS * 3600, (self._kept_ms() + 2 * _WINDOW_MS) / 1000)

    def _kept_ms(self, default: int = _DAY_MS) -> int:
        """Milliseconds for which a version can be read after it was replaced."""
        return int(self._table.properties.get(_KEPT_MS, default))

    def _replaced(self, longer_ago_s: float) -> list[Snapshot]:
        """The snapshots that were replaced longer ago, except those that others have named."""
        before_ms = _now_ms() - longer_ago_s * 1000
        named = self._named()
        replaced = self._replaced_ms()
        ended = [
            snapshot
            for snapshot in self._table.metadata.snapshots
            if snapshot.snapshot_id not in named
        ]
        return [
            snapshot
            for snapshot in ended
            if replaced.get(snapshot.snapshot_id, before_ms) < before_ms
        ]

    def _named(self) -> set[int]:
        return {ref.snapshot_id for ref in self._table.metadata.refs.values()}

    def _replaced_ms(self) -> dict[int, int]:
        """When each snapshot was replaced, by its identifier: a reader may have opened it until then. The one that is
        current is left out."""
        metadata = self._table.metadata
        ordered = pairwise(self._in_order())
        replaced_ms = {earlier.snapshot_id: later.timestamp_ms for earlier, later in ordered}
        replaced_ms |= {
            earlier.snapshot_id: later.timestamp_ms
            for earlier, later in pairwise(metadata.snapshot_log)
        }
        replaced_ms.pop(metadata.current_snapshot_id or 0, None)
        return replaced_ms

    def _in_order(self) -> list[Snapshot]:
        return sorted(
            self._table.metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0
        )

    def _expire_old(self) -> bool:
        """Remove old snapshots; their files are left to ``_clean_old``."""
        snapshots = self._in_order()
        replaced = self._replaced_ms()
        named = self._named()
        least = int(self._table.properties.get(_KEPT_SNAPSHOTS, _BOUNDS[_KEPT_SNAPSHOTS]))
        ended_ms = _now_ms() - self._kept_ms()
        old = []
        for at, snapshot in enumerate(reversed(snapshots)):
            until_ms = replaced.get(snapshot.snapshot_id)
            if at < least or until_ms is None or snapshot.snapshot_id in named:
                continue
            is_at_window = snapshot.timestamp_ms // _WINDOW_MS < until_ms // _WINDOW_MS
            if until_ms < ended_ms or (at >= _NEWEST and not is_at_window):
                old.append(snapshot.snapshot_id)
        if len(old) < _EXPIRED_AT_ONCE:
            return False
        with self._committing():
            self._table.maintenance.expire_snapshots().by_ids(old).commit()
        return True

    def expire(self, older_than_s: float, *, dry_run: bool = False) -> Expiry:
        self.refresh()
        old = self._replaced(older_than_s)
        if not old:
            return Expiry()
        unused = sorted(self._drop(old, dry_run=dry_run))
        infos = self.place.files.get_file_info(unused)
        if not dry_run:
            self.place.remove(unused)
        return Expiry(len(old), len(unused), sum(info.size or 0 for info in infos))

    def delete_before(self, at: datetime, details: Details) -> None:
        is_later = pc.field("_published_at") >= pa.scalar(at, pa.timestamp("us", "UTC"))
        removed = []
        added = list[DataFile]()
        for file in self.begun_before(at):
            if file.is_masked or file.high.get("_published_at", micros(at)) >= micros(at):
                left = self.read(None, [file.path]).filter(is_later)
                if left.num_rows == file.rows:
                    continue
                if left.num_rows:
                    added += write_rows(self.place.directory, left, self.layout())
            removed.append(file.path)
        self.commit(Change(details, added, removed, marks=()))

    def _join(self, groups: Sequence[Sequence[TableFile]]) -> Compaction:
        joined = [(files, self._joined(files)) for files in groups]

        def commit() -> Compaction:
            # Joined files stay valid as long as the files that they were joined from exist.
            present = {file.path for file in self.files() if not file.is_masked}
            pairs = [pair for pair in joined if present.issuperset(file.path for file in pair[0])]
            removed = [file.path for files, _ in pairs for file in files]
            if pairs:
                self.commit(
                    Change(add=[file for _, file in pairs], remove=removed, keeps_rows=True)
                )
            return Compaction.of([files for files, _ in pairs])

        compaction = self.until_committed(commit)
        self.refresh()
        return compaction

    def _joined(self, files: Sequence[TableFile]) -> DataFile:
        name = f"joined-{uuid.uuid4().hex}.parquet"
        target = self.place.path_of(name)
        paths = [self.place.path_of(file.path) for file in files]
        if all(map(self._is_named_alike, paths)):
            join_files(self.place, paths, target, self._schema(None))
        else:
            rows = self.read(None, [file.path for file in files])
            pq.write_table(
                rows, target, filesystem=self.place.files, compression="zstd", compression_level=1
            )
        count = sum(file.rows for file in files)
        return DataFile(
            name, self.place.files.get_file_info(target).size, count, {}, list(files[0].partition)
        )

    def clean(self, older_than_s: float, *, dry_run: bool = False) -> Sequence[str]:
        return self._sweep(older_than_s, older_than_s, dry_run=dry_run)

    def _sweep(self, data_s: float, metadata_s: float, *, dry_run: bool = False) -> Sequence[str]:
        """Remove data files and files of metadata that no version refers to and that are older; their paths."""
        files = self.place.files
        now = time.time()
        # Listed before the versions are read: files that are committed in between are in use.
        there = files.get_file_info(fs.FileSelector(self.place.path, recursive=True))
        self.refresh()
        metadata = self._table.metadata
        used = self._held_by(metadata.snapshots)
        used |= {
            path_of(self._table.metadata_location),
            *(path_of(entry.metadata_file) for entry in metadata.metadata_log),
        }
        kept_s = {".parquet": data_s, ".avro": metadata_s, ".metadata.json": metadata_s}
        unused = []
        for info in there:
            longest = next(
                (age_s for suffix, age_s in kept_s.items() if info.path.endswith(suffix)), None
            )
            if (
                longest is not None
                and info.path not in used
                and now - info.mtime.timestamp() > longest
            ):
                unused.append(info.path)
        if not dry_run:
            self.place.remove(unused)
        return unused

    def at(self, version: int) -> Self:
        table = self._table
        [snapshot] = [
            candidate
            for candidate in table.metadata.snapshots
            if candidate.sequence_number == version
        ]
        metadata = table.metadata.model_copy(update={"current_snapshot_id": snapshot.snapshot_id})
        older = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)
        return type(self)(older, self.place, self._binding)

    def reader(self, columns: Sequence[str]) -> FileReader:
        base = self.place.path.rstrip("/") + "/"
        metadata = self._table.metadata
        io = self._table.io
        planned = () if self._table.current_snapshot() is None else self._table.scan().plan_files()
        tasks = {path_of(task.file.file_path).removeprefix(base): task for task in planned}
        projection = self._table.scan(selected_fields=tuple(columns)).projection()

        def read(paths: Sequence[str], within: Range | None) -> Iterator[pa.RecordBatch]:
            condition = AlwaysTrue() if within is None else parse(_is_within(within))
            scan = ArrowScan(metadata, io, projection, condition)
            for batch in scan.to_record_batches([tasks[path] for path in paths if path in tasks]):
                yield batch.select(list(columns))

        return read

    def _marks(self, details: Details, ends: Sequence[ShardRange]) -> dict[str, str]:
        """The ends of shards that a commit moves to, as properties."""
        firsts = {
            f"sluice.first.{end.shard}": str(end.start)
            for end in ends
            if self.first(end.shard) is None
        }
        return {f"sluice.next.{end.shard}": str(end.end) for end in ends} | firsts | details.about

    def _property(self, name: str) -> int | None:
        value = self._table.properties.get(name)
        return None if value is None else int(value)


class _Transaction(Transaction):
    """A transaction that copies the metadata with all its snapshots once a change, not at every look at it, is refused
    where the schema has changed, and removes the manifests that it wrote and then merged into others."""

    _seen: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if (
            self._seen is None
            or self._seen[0] is not self._table.metadata
            or self._seen[1] is not self._updates
        ):
            self._seen = self._table.metadata, self._updates, super().table_metadata
        return self._seen[2]

    def commit_transaction(self) -> Table:
        producers = self._snapshot_producers
        schema_id = self._table.metadata.current_schema_id  # whose identifiers files have
        self._requirements += (
            AssertCurrentSchemaId.model_validate({"current-schema-id": schema_id}),
        )
        table = super().commit_transaction()
        for producer in producers:
            if len(producer._written_manifests) > 1:
                snapshot = table.snapshot_by_id(producer.snapshot_id)
                used = (
                    {manifest.manifest_path for manifest in snapshot.manifests(table.io)}
                    if snapshot
                    else set()
                )
                for path in set(producer._written_manifests) - used:
                    table.io.delete(path)
        return table


class _JoinFiles(_OverwriteFiles):
    """Replaces files by others with the same rows."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        summary = super()._summary(snapshot_properties)
        return Summary(Operation.REPLACE, **summary.additional_properties)


def _identifier(place: Place) -> tuple[str, ...]:
    return (_NAMESPACE, place.name) if place.entry is None else place.entry.identifier


def _bounds(bounds: dict[int, bytes] | None, numbers: Mapping[str, int]) -> dict[str, int]:
    """Bounds of whole numbers and times, as Iceberg keeps them."""
    encoded = {name: (bounds or {}).get(number) for name, number in numbers.items()}
    return {
        name: int.from_bytes(value, "little", signed=True)
        for name, value in encoded.items()
        if value is not None
    }


def _map_names(transaction: Transaction) -> None:
    """Let readers find columns by their names in files without identifiers, as earlier releases wrote them."""
    mapping = TableProperties.DEFAULT_NAME_MAPPING
    if mapping not in transaction.table_metadata.properties:
        transaction.set_properties(
            {mapping: transaction.table_metadata.schema().name_mapping.model_dump_json()}
        )


def _now_ms() -> int:
    return int(time.time() * 1000)


def _is_within(span: Range) -> str:
    return f"_shard = {span.shard} AND _offset >= {span.start} AND _offset < {span.end}"


def _data_file(
    io: FileIO, metadata: TableMetadata, order: int | None, uri: str, file: DataFile
) -> IcebergFile:
    """The entry that pyiceberg makes of a footer, with the writer's partition: it finds no bucket by statistics."""
    schema = metadata.schema()
    footer = pq.read_metadata(io.new_input(uri).open())
    ids = parquet_path_to_id_mapping(schema)
    if wrong := [
        path
        for path, its_id in _leaf_ids(footer.schema.to_arrow_schema())
        if ids.get(path) != its_id
    ]:
        raise CommitConflict(f"{uri}: column {wrong[0]!r} has another identifier than in the table")
    statistics = data_file_statistics_from_parquet_metadata(
        footer, compute_statistics_plan(schema, metadata.properties), ids
    )
    return IcebergFile.from_args(
        content=DataFileContent.DATA,
        file_path=uri,
        file_format=FileFormat.PARQUET,
        partition=_partition_record(metadata, file.partition),
        file_size_in_bytes=file.size,
        sort_order_id=order or None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


def _partition_record(metadata: TableMetadata, values: Iterable[Any]) -> Record:
    """A file's partition as manifests have it: a date, which tasks send as text, is days since 1970."""
    fields = metadata.spec().partition_type(metadata.schema()).fields
    return Record(
        *(
            date_str_to_days(value)
            if isinstance(field.field_type, DateType) and isinstance(value, str)
            else value
            for field, value in zip(fields, values, strict=True)
        )
    )


def _leaf_ids(fields: Iterable[pa.Field], prefix: str = "") -> Iterator[tuple[str, int]]:
    """The identifiers of columns of a file, and of their members, by path; only of those that have one."""
    for field in fields:
        path = f"{prefix}{field.name}"
        kind = field.type
        if pa.types.is_map(kind):
            yield from _leaf_ids((kind.key_field, kind.item_field), f"{path}.key_value.")
        elif pa.types.is_list(kind):
            yield from _leaf_ids((kind.value_field,), f"{path}.list.")
        elif pa.types.is_struct(kind):
            yield from _leaf_ids(kind, f"{path}.")
        elif (its_id := (field.metadata or {}).get(b"PARQUET:field_id")) is not None:
            yield path, int(its_id)


def _schema_at_first(columns: Sequence[Column]) -> Schema:
    """The schema of a new table. A catalog numbers fields in its own way, as ``assign_fresh_schema_ids`` does."""
    everything = (*PROVENANCE, *columns)
    numbers = count(len(everything) + 1)
    fields = [
        NestedField(
            number, column.name, _type(column.parsed, numbers), required=False, doc=_doc(column)
        )
        for number, column in enumerate(everything, start=1)
    ]
    return Schema(*fields)


def _partition_spec(schema: Schema, layout: Layout) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(
                schema.find_field(part.column).field_id,
                PARTITION_FIELD_ID_START + at,
                _transform(part),
                part.name,
            )
            for at, part in enumerate(layout.partition)
        )
    )


def _sort_order(schema: Schema, layout: Layout) -> SortOrder:
    if not layout.sort:
        return UNSORTED_SORT_ORDER
    fields = [
        SortField(
            schema.find_field(name).field_id,
            IdentityTransform(),
            SortDirection.DESC if descends else SortDirection.ASC,
            NullOrder.NULLS_LAST,
        )
        for name, descends in layout.sort
    ]
    return SortOrder(*fields)


def _transform(field: OurField) -> Transform[Any, Any]:
    return parse_transform(
        field.transform if field.size is None else f"{field.transform}[{field.size}]"
    )


def _partition_text(transform: Transform[Any, Any], column: str) -> str:
    """A field of a partition spec as in ``partition_by``."""
    name, _, size = str(transform).partition("[")
    if name == "identity":
        return column
    return f"{name}({size.rstrip(']')}, {column})" if size else f"{name}({column})"


def _type(kind: ColumnType, numbers: Iterator[int]) -> IcebergType:
    """``numbers`` are those of members; a catalog gives its own."""
    if kind.name == "struct":
        members = zip(kind.names, (inner for _, inner in kind.members), strict=True)
        fields = [
            NestedField(next(numbers), name, _type(inner, numbers), required=False)
            for name, inner in members
        ]
        return StructType(*fields)
    if kind.item is not None and kind.name == "map":
        return MapType(
            next(numbers),
            StringType(),
            next(numbers),
            _type(kind.item, numbers),
            value_required=False,
        )
    if kind.item is not None:
        return ListType(next(numbers), _type(kind.item, numbers), element_required=False)
    return (
        DecimalType(kind.precision, kind.scale)
        if kind.name == "decimal"
        else _PRIMITIVES[kind.name]
    )


def _widen(
    update: UpdateSchema, path: tuple[str, ...], has: ColumnType, wanted: ColumnType
) -> None:
    """Make one type the other, where that is done in place."""
    if has == wanted:
        return
    if has.item is not None and wanted.item is not None:
        _widen(update, (*path, "value" if has.name == "map" else "element"), has.item, wanted.item)
        return
    if has.name == "decimal":
        update.update_column(path, field_type=DecimalType(wanted.precision, wanted.scale))
        return
    before = dict(has.members)
    for (key, kind), name in zip(wanted.members, wanted.names, strict=True):
        if key in before:
            _widen(update, (*path, name), before[key], kind)
        else:
            update.add_column((*path, name), _type(kind, count()))


def _doc(column: Column) -> str:
    return json.dumps({"key": column.key, "type": column.type})


def _columns(schema: Schema) -> tuple[Column, ...]:
    provenance = {column.name for column in PROVENANCE}
    return tuple(_column(field) for field in schema.fields if field.name not in provenance)


def _column(field: NestedField) -> Column:
    kept: dict[str, Any] = json.loads(field.doc or "{}")
    column = Column(
        kept.get("key", field.name), field.name, kept.get("type", str(field.field_type))
    )
    with contextlib.suppress(NotAType, AttributeError, ValueError):
        # of a column that another engine added or changed
        return replace(column, ids=(field.field_id, *_inner_ids(column.parsed, field.field_type)))
    return column


def _inner_ids(kind: ColumnType, has: Any) -> Iterator[int]:
    """The identifiers of the members of a type, in the order of ``ColumnType.field``."""
    if kind.name == "struct":
        for name, (_, inner) in zip(kind.names, kind.members, strict=True):
            member = has.field_by_name(name)
            yield member.field_id
            yield from _inner_ids(inner, member.field_type)
    elif kind.item is not None:
        yield from (has.key_id, has.value_id) if kind.name == "map" else (has.element_id,)
        yield from _inner_ids(kind.item, has.value_type if kind.name == "map" else has.element_type)


def _summary(details: Details) -> dict[str, str]:
    return {**details.about, DETAILS_KEY: json.dumps(details.as_dict())}
