"""The interface of a table format for the lake job, and all of it that does not depend on the format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Self, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
import pyarrow.parquet as pq

from bridges.spark.columns.column import PROVENANCE, Column, arrow_schema
from bridges.spark.columns.layout import Layout
from bridges.spark.columns.place import Place
from bridges.spark.tables.files import read_tail
from bridges.spark.tasks.task import RANGED, DataFile
from broker.core.errors import Conflict, Unavailable, Unreadable
from broker.core.kinds import counted
from pyspark_sluice.ranges import Range as Range

T = TypeVar("T")
# The layout of a table that has none: files in the order of batches.
AS_THEY_COME = Layout()
# Key of a commit's details in its metadata.
DETAILS_KEY = "sluice"
# Key, in a commit's metadata and in the table's own, of the time of publishing up to which every record is in the
# table.
VALID_THROUGH = "valid-through"
# The kind of a commit that removed rows by their age.
EXPIRED = "expired"
# The kind of a commit that changed the type of a column, and so all rows.
RETYPED = "retype"
# Readers open every file: many small ones are slow to read.
SMALL_FILE_BYTES = 64 * 1024 * 1024
# Small files of a table before they are joined.
MANY_SMALL_FILES = 100
# Target size of a file that others are joined to.
JOINED_BYTES = 2 * SMALL_FILE_BYTES
# Maximum attempts to commit against other writers: the writing job commits about once a second at most.
ATTEMPTS = 30
# Hours that files are kept that no version refers to: longer than any query that began before, or any micro-batch.
KEPT_HOURS = 168


class CommitConflict(Unavailable):
    """The table was changed since it was opened; nothing was committed. Open it again and decide again."""


class TableRefused(Conflict):
    """The table at this place cannot be used as asked; the text says why and what to do. Nothing was changed."""


class TableUnreadable(TableRefused, Unreadable):
    """The files that name the versions of a table cannot be read."""


class TableLost(TableRefused):
    """A table that was written is no longer there, or no longer the same. ``why`` continues "the table ..."."""

    def __init__(self, why: str, text: str = "") -> None:
        super().__init__(text or f"the table {why}")
        self.why = why

    @classmethod
    def gone(cls, place: Place) -> Self:
        """One that is not at its place."""
        return cls(f"is gone from {place.entry or place}, where its job has written it")


@dataclass(frozen=True, slots=True)
class Part:
    """A table as it was when its job last wrote it: its identity, None where that is not known, and its version."""

    id: str | None
    version: int


@dataclass(frozen=True, slots=True)
class Binding:
    """The stream that a table is filled from; kept in the table, as its offsets mean nothing elsewhere."""

    stream: str
    epoch: str

    def check(self, stored: Binding, place: Place) -> None:
        """Refuse a table that was filled from something else. Raises ``TableRefused``."""
        if stored.stream != self.stream:
            raise TableRefused(
                f"{place} holds rows of stream {stored.stream!r}; choose another path"
            )
        if stored.epoch != self.epoch:
            raise TableRefused(
                f"{place} holds rows of an older stream {stored.stream!r} that was deleted and created again since; "
                f"choose another path, or move the old table away"
            )


@dataclass(frozen=True, slots=True)
class ShardRange:
    """The records of a shard that a commit covers: ``start`` up to ``end``; ``read = written + filtered + dead``.

    ``rows`` is what ``written`` records gave where that is not one row each, as a rule may give several. ``lost`` are
    records that retention removed before they were read, and that the table was accepted to lack. In a table with a
    key, of these rows ``superseded`` were older than another one of their key, and ``deleted`` removed it. ``expired``
    are those that a commit removed from the table by their age; it covers nothing else. ``sums`` are those of the rows'
    values by block of offsets, as ``value_sums.packed`` gives them.
    """

    shard: int
    start: int
    end: int
    read: int
    written: int
    dead: int
    filtered: int = 0
    rows: int | None = None
    lost: int = 0
    superseded: int = 0
    deleted: int = 0
    expired: int = 0
    sums: str = ""

    @property
    def row_count(self) -> int:
        return self.written if self.rows is None else self.rows


@dataclass(frozen=True, slots=True)
class Details:
    """Details of a commit, kept in its own metadata and so atomic with its data."""

    job: str
    ranges: tuple[ShardRange, ...]
    replay: str | None = None
    kind: str = "rows"
    keys: int | None = None
    """Number of rows that a table with a key has since."""
    key: tuple[str, ...] = ()
    """The columns of that key."""
    tables: str = ""
    """The template of the names of the tables that the rows are in, where they are not in this one."""
    rewritten: tuple[ShardRange, ...] = ()
    """Ranges of which the rows were converted again: they have sums since, and cover nothing."""
    valid_through: int | None = None
    """The time of publishing (µs since 1970) up to which every record is in the table with this commit."""

    def as_dict(self) -> dict[str, Any]:
        members: dict[str, Any] = msgspec.to_builtins(self)
        return members

    @property
    def about(self) -> dict[str, str]:
        """Members that other engines show of a commit, in addition to the details."""
        if self.valid_through is None:
            return {}
        moment = datetime.fromtimestamp(self.valid_through // 1_000_000, UTC)
        return {VALID_THROUGH: f"{moment:%Y-%m-%dT%H:%M:%S}.{self.valid_through % 1_000_000:06}Z"}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Details:
        return msgspec.convert(data, cls)


@dataclass(frozen=True, slots=True)
class Change:
    """One version of a table compared with the one before: files added and removed, by their paths, with details.

    It moves the ends of shards to those of ``marks``, or without them of the details' ranges. ``columns`` are added to
    the table, or widened, and then there is nothing else; with ``removes_all`` no other file stays, and they are all
    columns that it has. The same rows are in other files where ``keeps_rows``, and readers of changes pass over it.
    """

    details: Details | None = None
    add: Sequence[DataFile] = ()
    remove: Sequence[str] = ()
    columns: Sequence[Column] = ()
    marks: Sequence[ShardRange] | None = None
    removes_all: bool = False
    keeps_rows: bool = False

    @property
    def ends(self) -> Sequence[ShardRange]:
        if self.marks is not None:
            return self.marks
        return () if self.details is None else self.details.ranges


@dataclass(frozen=True, slots=True)
class Committed:
    """A past commit of this product: the version it made, when (ms since 1970), and its details."""

    version: int
    at_ms: int
    details: Details


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a table as its log has it: what was done, and the details of a commit of this product."""

    version: int
    at_ms: int
    operation: str
    details: Details | None


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """The columns from a version on; version and time are None where the log no longer has them."""

    version: int | None
    at_ms: int | None
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Compaction:
    """Small files that were joined, or would be: how many, of how many bytes, and how many they became."""

    files: int = 0
    bytes: int = 0
    files_after: int = 0

    @classmethod
    def of(cls, groups: Sequence[Sequence[TableFile]]) -> Self:
        """One file made of each group."""
        return cls(
            sum(map(len, groups)), sum(file.size for group in groups for file in group), len(groups)
        )


@dataclass(frozen=True, slots=True)
class Expiry:
    """Old versions that were removed, or would be: snapshots, where the format has them, and files with their bytes."""

    snapshots: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class TableFile:
    """A data file of a table, as the table's log has it.

    Its path is relative to the table's directory. ``low`` and ``high`` are the least and greatest values of the columns
    in ``RANGED``, as far as the log has them; times in microseconds since 1970. ``is_masked`` where another engine
    deleted rows that the file still has, and that readers leave out.
    """

    path: str
    size: int
    rows: int
    low: Mapping[str, int]
    high: Mapping[str, int]
    partition: tuple[Any, ...] = ()
    """The values of the partition fields."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values of columns that all its rows share and that only the log has."""
    earlier_spec: int | None = None
    """The partition spec of a file from before the table got the one that it has now."""
    is_masked: bool = False

    @property
    def last_published(self) -> int:
        """Time of publishing of the last row, as far as it is known."""
        return self.high.get("_published_at", 0)

    def is_apart(self, ranges: Sequence[Range]) -> bool:
        """True if no row can be in one of the ranges."""
        if not self._is_known:
            return False
        low = self.low
        high = self.high
        return not any(
            low["_shard"] <= span.shard <= high["_shard"]
            and span.start <= high["_offset"]
            and low["_offset"] < span.end
            for span in ranges
        )

    def is_inside(self, ranges: Sequence[Range]) -> bool:
        """True if all rows must be in the ranges."""
        if not self._is_known:
            return False
        low = self.low
        high = self.high
        covering = {
            span.shard
            for span in ranges
            if span.start <= low["_offset"] and high["_offset"] < span.end
        }
        return covering.issuperset(range(low["_shard"], high["_shard"] + 1))

    @property
    def _is_known(self) -> bool:
        return all(name in bounds for bounds in (self.low, self.high) for name in RANGED)


@dataclass(frozen=True, slots=True)
class Rest:
    """A data file at ``path`` to be written again without the rows of ranges; a task does it."""

    place: Place
    path: str
    columns: tuple[Column, ...]
    layout: Layout
    ranges: tuple[Range, ...]
    constants: Mapping[str, Any]
    """Values of columns that all its rows share and that only the table's log has."""


# Reads data files, given by their paths relative to the table's directory, in parts: all rows, or at least those of a
# range of offsets.
FileReader = Callable[[Sequence[str], "Range | None"], Iterator[pa.RecordBatch]]


def micros(at: datetime) -> int:
    """A time in microseconds since 1970."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def bins(sizes: Sequence[int]) -> list[list[int]]:
    """Files by their place in ``sizes``, in their order, in groups of about the size that one file should have; those
    that would be alone are left out."""
    groups: list[list[int]] = []
    size = JOINED_BYTES
    for at, file_size in enumerate(sizes):
        if size + file_size > JOINED_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(at)
        size += file_size
    return [group for group in groups if len(group) > 1]


def until_committed(
    change: Callable[[], T], refresh: Callable[[], None], name: str, attempts: int = ATTEMPTS
) -> T:
    """Make a change again on the newest version where another writer was first.

    Raises:
        CommitConflict: others were first again and again.
    """
    for _ in range(attempts):
        try:
            return change()
        except CommitConflict:
            refresh()
    raise CommitConflict(
        f"{name} has constant conflicts with other writers. Try: run it again, or stop the other lake job."
    )


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
                f"{path} of worker {host!r}: expected {counted(file.rows, 'row')} in {counted(file.size, 'byte')}, "
                f"got {counted(rows, 'row')} in {counted(size, 'byte')}"
            )


class LakeTable(ABC):
    """One table, as of when it was opened or last refreshed. Blocking calls; not shared between threads.

    Changes are made against the version that is open: when another writer committed since, and it matters,
    ``CommitConflict`` is raised and nothing is changed.
    """

    def __init__(self, table: Any, place: Place, binding: Binding) -> None:
        self._table = table
        self.place = place
        self._binding = binding

    @classmethod
    @abstractmethod
    def open(cls, place: Place, binding: Binding) -> Self | None:
        """The table at a place, or None when there is none.

        Raises:
            TableRefused: it is not this product's, or holds another stream.
        """

    @classmethod
    def open_or_create(
        cls,
        place: Place,
        binding: Binding,
        columns: Sequence[Column],
        layout: Layout = AS_THEY_COME,
    ) -> Self:
        """The table at a place, made with ``columns`` after those of provenance when there is none."""
        table = cls.open(place, binding)
        if table is None:
            cls._create(place, binding, columns, layout)
            table = cls.open(place, binding)
        assert table is not None, place
        return table

    @classmethod
    @abstractmethod
    def _create(
        cls, place: Place, binding: Binding, columns: Sequence[Column], layout: Layout
    ) -> None:
        """Make a table; another driver may be first, and what it made decides."""

    @abstractmethod
    def partitions(self) -> tuple[str, ...]:
        """The partition fields, as in ``partition_by`` of its spec."""

    @abstractmethod
    def set_layout(self, layout: Layout) -> None:
        """Lay new files out so; the files that are there stay as they are.

        Raises:
            TableRefused: the format cannot change the partitions of a table.
        """

    def refresh(self) -> None:
        """Look at the newest version.

        Raises:
            TableLost: the table is gone, another one is in its place, or it has only older versions.
        """
        was = self.part
        self._load()
        self.check_is(was)

    @abstractmethod
    def _load(self) -> None:
        """Look at the newest version. Raises ``TableLost`` where the table is gone."""

    @property
    def part(self) -> Part:
        """The table as it is open."""
        return Part(self.identity(), self.version())

    def check_is(self, was: Part) -> None:
        """Raise ``TableLost`` where this is not the table that was written, or is older."""
        where = self.place.entry or self.place
        now = self.part
        if was.id not in (None, now.id):
            raise TableLost(
                f"is another one: the table at {where} has identifier {now.id}, not {was.id}"
            )
        if now.version < was.version or self.has_left(was.version):
            raise TableLost(
                f"no longer has version {was.version}, which its job has written: it is at version {now.version} at "
                f"{where}, as it was rolled back or restored from a copy"
            )

    @abstractmethod
    def has_left(self, version: int) -> bool:
        """True if another engine went back to before a version, and counts on from there."""

    @abstractmethod
    def newest_file(self) -> str:
        """The file that makes the open version, as ``Place.files`` calls it."""

    @abstractmethod
    def version(self) -> int:
        """The version that is open."""

    @abstractmethod
    def identity(self) -> str:
        """An identifier that a table created again in the same place does not share."""

    def rows(self) -> int:
        """The number of rows."""
        return sum(file.rows for file in self.files())

    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The columns after those of provenance."""

    def check_names(self) -> None:
        """Refuse a table whose members of structs have other names than this version gives them.

        Raises:
            TableRefused: says which.
        """
        has = set(self.paths())
        for column in self.columns():
            if missing := next(
                (path for path in column.parsed.paths(column.name) if path not in has), None
            ):
                raise TableRefused(
                    f"{self.place}: column {column.name!r} has no member {missing!r}, which is what this version calls "
                    f"it since another member begins with the same name. Try: another 'path', filled from the stream."
                )

    format: ClassVar[str]
    applies_deletes: ClassVar = False
    """True if ``rest`` gives a file without the rows that another engine has deleted."""
    has_ids: ClassVar = False
    """True if the format finds columns of files by identifiers."""

    @classmethod
    def columns_at_first(cls, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns as a table has them that is created with them."""
        return tuple(columns)

    def columns_after_rewrite(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """The columns as the table has them once it was rewritten with them."""
        return tuple(columns)

    @abstractmethod
    def paths(self) -> Iterator[str]:
        """The columns and what is inside of them, as Iceberg calls them."""

    @abstractmethod
    def first(self, shard: int) -> int | None:
        """The first offset of the shard that ever was committed, None when none was."""

    @abstractmethod
    def next(self, shard: int) -> int | None:
        """The offset after the last one committed of the shard, None when none was."""

    @abstractmethod
    def valid_through(self) -> int | None:
        """The time of publishing (µs since 1970) up to which every record is in the table, as far as a commit said."""

    @abstractmethod
    def commit(self, change: Change) -> int:
        """Make a change, in one version; returns it. Delta widens columns in several."""

    def until_committed(self, change: Callable[[], T]) -> T:
        """Make a change of this table again on its newest version where another writer was first.

        Raises:
            CommitConflict: others were first again and again.
        """
        return until_committed(change, self.refresh, str(self.place))

    @abstractmethod
    def files(self) -> list[TableFile]:
        """All data files of the open version."""

    def data_files(self) -> dict[str, int]:
        """The paths of all data files, relative to the table's directory, and the rows of each.

        Raises:
            TableRefused: readers leave out rows of one.
        """
        return {file.path: file.rows for file in self.unmasked(self.files())}

    def unmasked(self, files: Sequence[TableFile]) -> Sequence[TableFile]:
        """Files that may be replaced.

        Raises:
            TableRefused: readers leave out rows of one, which would be rows again.
        """
        if masked := [file.path for file in files if file.is_masked]:
            raise TableRefused(
                f"{self.place}: expected files with all of their rows, got {len(masked)} with rows that another engine "
                f"deleted without writing the files again, as {masked[0]}. Try: REORG TABLE ... APPLY (PURGE) for a "
                f"Delta table, CALL ... rewrite_data_files for an Iceberg table, in that engine."
            )
        return files

    @abstractmethod
    def written(self) -> list[DataFile]:
        """All data files of a table that only tasks have written, as these reported them."""

    def drop(self) -> None:
        """Remove the table with its files."""
        place = self.place
        if place.is_local:
            place.files.delete_dir(place.path)
            return
        infos = place.files.get_file_info(
            fs.FileSelector(place.path, recursive=True, allow_not_found=True)
        )
        place.remove([info.path for info in infos if info.type is fs.FileType.File])

    def rest(self, file: TableFile, ranges: Sequence[Range]) -> Rest:
        """The parameters of a task that writes a data file again without the rows of ranges."""
        names = {column.name for column in (*PROVENANCE, *self.columns())}
        shared = {name: value for name, value in file.constants.items() if name in names}
        return Rest(
            self.place.directory, file.path, self.columns(), self.layout(), tuple(ranges), shared
        )

    def layout(self) -> Layout:
        """The layout of new files."""
        types = {column.name: column.type for column in (*PROVENANCE, *self.columns())}
        return Layout.parse(self.format, self.partitions(), self.sort_texts(), types)

    def sort_texts(self) -> tuple[str, ...]:
        """The order of rows in new files, as in ``sort_by`` of the table's spec."""
        return ()

    @abstractmethod
    def forget_replaced(self, older_than_s: float) -> int:
        """Remove files that commits removed longer ago, and the versions that have them; how many files."""

    @abstractmethod
    def versions(self, limit: int | None = None, after: int = -1) -> Sequence[Version]:
        """The versions that are known and newer than ``after``, newest first; the format's log cleaning may have
        forgotten old ones."""

    def commits(self, after: int = -1) -> Sequence[Committed]:
        """The commits of this product that are known and newer than ``after``, oldest first."""
        versions = reversed(self.versions(after=after))
        return [
            Committed(version.version, version.at_ms, version.details)
            for version in versions
            if version.details is not None
        ]

    @abstractmethod
    def schemas(self, limit: int) -> Sequence[SchemaVersion]:
        """The schemas that are known, newest first; the first is the one of the version that is open."""

    def tidy(self) -> bool:
        """Join small files when there are many, and remove old versions and files; the rows stay as they are.

        Versions are removed only where they were there when the table was opened or refreshed: their commits must be in
        the ledger by now. Returns whether anything was done. A writer that is overtaken by it gets ``CommitConflict``
        and tries again.
        """
        has_expired = self._expire_old()
        has_many = self.compact(dry_run=True).files >= MANY_SMALL_FILES
        if has_many:
            self.compact()
        if has_expired or has_many:
            self._clean_old()
        return has_expired or has_many

    def _expire_old(self) -> bool:
        """Remove old versions, where the format keeps them apart from files; whether there were any."""
        return False

    def _clean_old(self) -> None:
        """Remove files that no version has had for a while."""
        self.clean(KEPT_HOURS * 3600)

    def compact(self, *, dry_run: bool = False) -> Compaction:
        """Join the small files of each partition, as a version that readers of changes pass over.

        Raises:
            CommitConflict: another writer removed such files while it ran.
        """
        self.refresh()
        groups = self._small_groups()
        if groups and not dry_run:
            return self._join(groups)
        return Compaction.of(groups)

    def _small_groups(self) -> list[list[TableFile]]:
        """The files that are joined to one: of a partition, as new files have it, in the order of their times."""
        by_partition: dict[tuple[Any, ...], list[TableFile]] = {}
        for file in sorted(self.files(), key=lambda file: file.last_published):
            if file.size < SMALL_FILE_BYTES and not file.is_masked and file.earlier_spec is None:
                by_partition.setdefault(file.partition, []).append(file)
        return [
            [files[at] for at in group]
            for files in by_partition.values()
            for group in bins([file.size for file in files])
        ]

    @abstractmethod
    def _join(self, groups: Sequence[Sequence[TableFile]]) -> Compaction:
        """Make one file of each group, in one version."""

    @abstractmethod
    def expire(self, older_than_s: float, *, dry_run: bool = False) -> Expiry:
        """Remove versions that are older, except the newest and those that others have named, with the files that only
        they have.

        Raises:
            TableRefused: the table's own settings promise readers a longer time.
        """

    def places_before(self, at: datetime) -> pa.Table:
        """``_shard`` and ``_offset`` of the rows that were published before a time."""
        is_older = pc.field("_published_at") < pa.scalar(at, pa.timestamp("us", "UTC"))
        paths = [file.path for file in self.begun_before(at)]
        return self.read(RANGED, paths).filter(is_older).select(["_shard", "_offset"])

    def begun_before(self, at: datetime) -> list[TableFile]:
        """The files that may have rows that were published before a time."""
        at_us = micros(at)
        return [file for file in self.files() if file.low.get("_published_at", at_us - 1) < at_us]

    @abstractmethod
    def delete_before(self, at: datetime, details: Details) -> None:
        """Remove the rows that were published before a time, in one version that moves no end of a shard."""

    @abstractmethod
    def clean(self, older_than_s: float, *, dry_run: bool = False) -> Sequence[str]:
        """Remove files that no version refers to and that are older: those of tasks that died, of commits that were
        refused, and those that were joined. Returns their paths; with ``dry_run`` nothing is removed.

        A file of a commit in progress is such a file until it is committed: give more than a batch takes.
        """

    def newest(self, limit: int) -> pa.Table:
        """About the last ``limit`` rows by time and offset, newest first, out of the newest files only; all columns.

        Of a file only as many row groups are read as are needed, from its end.
        """
        schema = self._schema(None)
        tables = [schema.empty_table()]
        missing = limit
        for file in sorted(self.files(), key=lambda file: file.last_published, reverse=True):
            if missing <= 0:
                break
            if file.is_masked or self.has_renamed():
                tables.append(self.read(None, [file.path]))
            else:
                tables.append(read_tail(self.place, file.path, missing, schema, file.constants))
            missing -= tables[-1].num_rows
        rows = pa.concat_tables(tables)
        return rows.sort_by([("_published_at", "descending"), ("_offset", "descending")]).slice(
            0, limit
        )

    def has_renamed(self) -> bool:
        """True if a column may have another name in a file."""
        return False

    def scan(self, columns: Sequence[str]) -> pa.Table:
        """These columns of all rows."""
        return self.read(columns, [file.path for file in self.files()])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, all columns, in parts that fit into memory."""
        yield from self.reader(self._schema(None).names)([file.path for file in self.files()], None)

    def read(self, columns: Sequence[str] | None, paths: Sequence[str]) -> pa.Table:
        """These columns of files, or all, without the rows that other engines have deleted."""
        schema = self._schema(columns)
        batches = self.reader(schema.names)(paths, None)
        return pa.Table.from_batches([batch.cast(schema) for batch in batches], schema)

    def _schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """The Arrow schema of these columns, or of all."""
        schema = arrow_schema((*PROVENANCE, *self.columns()))
        return schema if columns is None else pa.schema([schema.field(name) for name in columns])

    @abstractmethod
    def at(self, version: int) -> Self:
        """The table as it was at a version, to be read. What is raised where that is gone depends on the format."""

    @abstractmethod
    def reader(self, columns: Sequence[str]) -> FileReader:
        """The reader of these columns of files, as of the version that is open. It leaves out rows that another engine
        deleted without writing their file again."""
