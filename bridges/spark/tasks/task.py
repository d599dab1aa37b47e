"""The work of a Spark task on its part of a micro-batch: typed Parquet files straight into the table's place.

Runs on executors: imports nothing of the broker. Files become part of the table only when the driver commits them, so a
task that dies or runs twice leaves files that no one sees, and that cleaning removes.
"""

from __future__ import annotations

import socket
import sys
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bridges.spark.columns.column import (
    DEAD_LETTER,
    ITEM,
    PROVENANCE,
    RAW,
    Column,
    arrow_schema,
    taken,
)
from bridges.spark.columns.layout import Layout
from bridges.spark.columns.place import Place
from bridges.spark.columns.types import ARROW_TYPES, column_name
from bridges.spark.columns.value_sums import add_rows, hashed_columns, row_hashes
from bridges.spark.tasks.convert import Converted, convert
from bridges.spark.tasks.rule_text import RuleText
from pyspark_sluice.errors import SourceError

if TYPE_CHECKING:
    from bridges.spark.tasks.keys import Upsert
    from bridges.spark.tasks.rule_run import RuleRun
    from bridges.spark.tasks.split import Split

ROWS_COLUMNS = ("shard", "offset", "ts", "topic", "payload", "client_id", "rule")
# Columns of the source that a task needs, for a *rows* and a *topics* stream.
RAW_COLUMNS = (*ROWS_COLUMNS, "qos", "retain", "username", "properties")
# The stage of dead letters that the table's format did not take.
REFUSED = "lake.commit"
# Maximum rows of a file, so that a task's memory stays bounded.
FILE_ROWS = 1_000_000
_AS_THEY_COME = Layout()
# The last one that has a year of four digits.
_LAST_MILLISECOND = datetime(9999, 12, 31, 23, 59, 59, 999_000)
# Characters of a bound in a file's statistics, which the table's log keeps.
_LONG_TEXT = 32
_LAST_CHARACTER = "\U0010ffff"
# In place of an infinity, which JSON does not have, and of NaN.
_LARGEST = sys.float_info.max
# Columns that a file has statistics of, from the first one on, as Delta does by default.
_INDEXED = 32
# Columns that files are chosen by: for a replay, and for the retention of rows.
RANGED = ("_shard", "_offset", "_published_at")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for which a record becomes a dead letter; ``is_buried`` if the letter is written by
    now."""

    reason: str
    is_buried: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan for all tasks of a micro-batch; made by the driver from the current table.

    Records below ``floors`` (per shard) are in the table already and are passed over; bad ones below ``dead_floors``
    are in the dead-letter table already.
    """

    stream: str
    kind: str
    columns: tuple[Column, ...]
    pending: tuple[str, ...]
    table: Place
    dead: Place
    dead_columns: tuple[Column, ...] = DEAD_LETTER
    floors: Mapping[int, int] = field(default_factory=dict)
    dead_floors: Mapping[int, int] = field(default_factory=dict)
    rule: RuleText | None = None
    """Runs on the messages of a *topics* stream; its rows are the table's. None: the messages as they came."""
    layout: Layout = field(default_factory=Layout)
    upsert: Upsert | None = None
    """The rules of a table with a key."""
    split: Split | None = None
    """The members of a table whose directories are in ``table``."""
    until: Mapping[int, int] | None = None
    """The offset, per shard, from which records are left to a later run; None where all are written."""
    refusals: Mapping[int, Mapping[int, Refusal]] = field(default_factory=dict)
    """By shard and offset."""


@dataclass(slots=True)
class DataFile:
    """A Parquet file: ``path`` relative to its table's directory, ``stats`` as Delta keeps them, and the values of the
    table's partition fields."""

    path: str
    size: int
    rows: int
    stats: dict[str, Any]
    partition: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Discovered:
    """A column that this task made for a key without one; ``offset`` and ``shard`` of its first value, and how many
    values of a sample have which type. Or a column of the plan that got further members."""

    column: Column
    offset: int
    shard: int
    votes: dict[str, int]


@dataclass(slots=True)
class ShardCount:
    """Counts of a task for a shard: offsets ``first`` to ``last``, all of them.

    Records are ``written``, ``dead`` or ``filtered`` by a rule; ``rows`` is more than ``written`` where a rule gives
    several rows a record.
    """

    shard: int
    first: int
    last: int
    skipped: int = 0
    written: int = 0
    dead: int = 0
    bytes: int = 0
    filtered: int = 0
    rows: int = 0
    sums: dict[int, int] = field(default_factory=dict)
    """By block of offsets, the sum of the hashes of its rows."""
    last_us: int | None = None
    """When the last record was published, in microseconds since 1970."""


@dataclass(slots=True)
class TaskResult:
    """Result of a task, on ``host``."""

    host: str = field(default_factory=socket.gethostname)
    files: list[DataFile] = field(default_factory=list)
    dead_files: list[DataFile] = field(default_factory=list)
    shards: list[ShardCount] = field(default_factory=list)
    discovered: list[Discovered] = field(default_factory=list)
    null_keys: list[str] = field(default_factory=list)
    misfits: dict[str, dict[str, int]] = field(default_factory=dict)
    """By key, of how many dead letters the value has which type."""
    members: dict[str, dict[int, int]] = field(default_factory=dict)
    """By member table and shard, how many rows its files have."""
    tables: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Names of member tables to create, with offset and shard of the first row."""
    over: int = 0
    """Rows that are dead letters since there would be too many member tables."""
    failure: str | None = None
    """Trace of the error that kept the task from writing."""
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By shard, the offset of the first record that came, and the one after the last."""
    refused: str | None = None
    """Reason for which nothing was written though it could be: values of some record."""

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> TaskResult:
        return msgspec.json.decode(text, type=cls)


class PartitionWriter:
    """Turns record batches of the source into files of the table and of its dead letters."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._columns = list(plan.columns)
        self._result = TaskResult()
        self._rows: FileWriter = TableFiles(plan.table, plan.layout)
        self._dead = TableFiles(plan.dead)
        self._rule: RuleRun | None = None
        if plan.rule is not None:
            # The rule language is imported where a table has a rule, and nowhere else.
            from bridges.spark.tasks.rule_run import RuleRun

            self._rule = RuleRun(plan.rule)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take records in the order of their offsets; a batch may hold more than one shard."""
        shards = batch.column("shard")
        for shard in pc.unique(shards).to_pylist():
            part = batch if len(pc.unique(shards)) == 1 else batch.filter(pc.equal(shards, shard))
            self._add_shard(shard, part)

    def finish(self) -> TaskResult:
        """Close the files."""
        self.close()
        self._result.files = self._rows.close(self._columns)
        self._result.dead_files = self._dead.close(self._plan.dead_columns)
        return self._result

    def close(self) -> None:
        """End what the rule has started."""
        if self._rule is not None:
            self._rule.close()

    def _add_shard(self, shard: int, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_numpy()
        if self._plan.until is not None:
            batch = batch.slice(0, int(np.searchsorted(offsets, self._plan.until.get(shard, 0))))
            if batch.num_rows == 0:
                return
            offsets = offsets[: batch.num_rows]
        count = self._count(shard, offsets)
        count.last_us = batch.column("ts").cast(pa.int64())[-1].as_py()
        fresh = int(np.searchsorted(offsets, self._plan.floors.get(shard, 0)))
        count.skipped += fresh
        batch = batch.slice(fresh)
        if refusals := self._plan.refusals.get(shard):
            batch = self._without_refused(batch, refusals, count)
        if batch.num_rows == 0:
            return
        count.bytes += pc.sum(pc.binary_length(batch.column("payload"))).as_py() or 0
        self._add_fresh(shard, batch, count)

    def _without_refused(
        self, batch: pa.RecordBatch, refusals: Mapping[int, Refusal], count: ShardCount
    ) -> pa.RecordBatch:
        """The records without those that the table does not take, which become dead letters."""
        offsets = batch.column("offset").to_pylist()
        is_refused = [offset in refusals for offset in offsets]
        count.dead += sum(is_refused)
        fresh = [
            offset for offset in offsets if offset in refusals and not refusals[offset].is_buried
        ]
        letters = batch.filter(pa.array([offset in fresh for offset in offsets], pa.bool_()))
        self._write_letters(
            letters, [refusals[offset].reason for offset in fresh], [REFUSED] * len(fresh)
        )
        return batch.filter(pc.invert(pa.array(is_refused, pa.bool_())))

    def _add_fresh(self, shard: int, batch: pa.RecordBatch, count: ShardCount) -> None:
        """Take records of a shard that are not in the table yet."""
        if self._rule is not None:
            self._run_rule(self._rule, batch, shard, count)
            return
        if self._plan.kind == "topics":
            raw = [batch.column(column.key).cast(ARROW_TYPES[column.type]) for column in RAW]
            self._keep(batch, dict(zip([column.key for column in RAW], raw, strict=True)), count)
            return
        self._convert(batch, shard, count)

    def reconvert(self, batch: pa.RecordBatch) -> None:
        """Take rows of the table, of any shard and in any order, whose columns have changed."""
        for shard, part in by_shard(batch):
            self._convert(part, shard, self._count_again(shard))

    def _count_again(self, shard: int) -> ShardCount:
        """The counts of rows that are converted again."""
        for count in self._result.shards:
            if count.shard == shard:
                return count
        self._result.shards.append(ShardCount(shard, 0, 0))
        return self._result.shards[-1]

    def retry(self, letters: pa.RecordBatch) -> None:
        """Take records of dead letters, which may fit now."""
        self.reconvert(letters)

    def leave(self, letters: pa.RecordBatch) -> None:
        """Take dead letters as they are."""
        arrays = {name: letters.column(name) for name in letters.schema.names}
        self._dead.add(arrays, letters.num_rows, self._plan.dead_columns)

    def _convert(self, batch: pa.RecordBatch, shard: int, count: ShardCount) -> None:
        payloads = batch.column("payload")
        converted = convert(payloads, self._columns, self._plan.pending)
        self._learn(converted, batch, shard)
        good, bad = _parts(batch, converted.errors)
        self._keep(good, converted.arrays, count)
        self._bury(
            bad, list(converted.errors.values()), ["lake.columns"] * bad.num_rows, shard, count
        )

    def _run_rule(
        self, rule: RuleRun, batch: pa.RecordBatch, shard: int, count: ShardCount
    ) -> None:
        """The rule's rows instead of the messages; each is where its message was."""
        from bridges.spark.tasks.rule_run import typed

        ran = rule.run(batch)
        typed_rows = typed(
            ran, [column for column in self._columns if column.key != ITEM.key], self._plan.pending
        )
        good = _with_rule(batch.take(pa.array(typed_rows.places, pa.int64())), rule.rule.name)
        self._learn(typed_rows.converted, good, shard)
        records = len(set(typed_rows.places))
        self._keep(
            good,
            {**typed_rows.converted.arrays, ITEM.key: _items(typed_rows.places)},
            count,
            records,
        )
        places = sorted(typed_rows.errors)
        bad = _with_rule(batch.take(pa.array(places, pa.int64())), rule.rule.name)
        stages = ["lake.rule" if place in ran.errors else "lake.columns" for place in places]
        self._bury(bad, [typed_rows.errors[place] for place in places], stages, shard, count)
        count.filtered += batch.num_rows - records - len(places)

    def _count(self, shard: int, offsets: Any) -> ShardCount:
        first = int(offsets[0])
        last = int(offsets[-1])
        counts = self._result.shards
        if counts and counts[-1].shard == shard and counts[-1].last + 1 == first:
            counts[-1].last = last
        else:
            counts.append(ShardCount(shard, first, last))
        if last - first + 1 != len(offsets):
            raise SourceError(
                f"shard {shard}: {len(offsets)} records came for offsets {first} to {last}"
            )
        return counts[-1]

    def _learn(self, converted: Converted, batch: pa.RecordBatch, shard: int) -> None:
        """Make columns for keys met for the first time, and add members; later batches of this task know them."""
        places = {column.key: at for at, column in enumerate(self._columns)}
        for key, discovery in converted.discovered.items():
            if key in places:
                column = replace(self._columns[places[key]], type=discovery.type)
                self._columns[places[key]] = column
            else:
                names = taken(self._columns, self._plan.layout.names)
                column = Column(key, column_name(key, names), discovery.type)
                self._columns.append(column)
            offset = batch.column("offset")[discovery.row].as_py()
            self._result.discovered.append(Discovered(column, offset, shard, discovery.votes))
        known_keys = set(self._result.null_keys)
        self._result.null_keys += sorted(converted.null_keys - known_keys)
        for key, votes in converted.misfits.items():
            self._result.misfits[key] = dict(votes + Counter(self._result.misfits.get(key, {})))

    def _keep(
        self,
        batch: pa.RecordBatch,
        arrays: Mapping[str, pa.Array],
        count: ShardCount,
        records: int | None = None,
    ) -> None:
        """Take rows that ``records`` records gave; one each by default."""
        if batch.num_rows == 0:
            return
        count.written += batch.num_rows if records is None else records
        count.rows += batch.num_rows
        named = {
            column.name: arrays[column.key] for column in self._columns if column.key in arrays
        }
        named = {**provenance_of(self._plan.stream, batch), **named}
        if self._plan.upsert is None:  # of rows that later ones replace, a sum says nothing
            hashed = hashed_columns(self._plan.layout.as_read(named), self._columns)
            self._sum(batch, row_hashes(hashed, batch.num_rows), count)
        self._rows.add(named, batch.num_rows, self._columns)

    def _sum(self, batch: pa.RecordBatch, hashes: Any, count: ShardCount) -> None:
        """Add the hashes of rows."""
        add_rows(count.sums, batch.column("offset").to_numpy(), hashes)

    def _without(
        self,
        bad: Mapping[int, str],
        stage: str,
        batch: pa.RecordBatch,
        arrays: Mapping[str, pa.Array],
        count: ShardCount,
        records: int | None,
    ) -> tuple[pa.RecordBatch, Mapping[str, pa.Array], int | None, pa.Array]:
        """Bury the records of a batch with these offsets, one letter each however many rows they gave; the rest, and a
        mask of it."""
        offsets = batch.column("offset").to_numpy()
        is_bad = np.isin(offsets, list(bad))
        good = pa.array(~is_bad)
        if not bad:
            return batch, arrays, records, good
        _, first = np.unique(offsets[is_bad], return_index=True)
        letters = batch.filter(pa.array(is_bad)).take(pa.array(first))
        shard = batch.column("shard")[0].as_py()
        self._bury(letters, [bad[row] for row in sorted(bad)], [stage] * len(bad), shard, count)
        records = None if records is None else len(np.unique(offsets[~is_bad]))
        return (
            batch.filter(good),
            {key: array.filter(good) for key, array in arrays.items()},
            records,
            good,
        )

    def _bury(
        self,
        batch: pa.RecordBatch,
        errors: Sequence[str],
        stages: Sequence[str],
        shard: int,
        count: ShardCount,
    ) -> None:
        if batch.num_rows == 0:
            return
        count.dead += batch.num_rows
        written = int(
            np.searchsorted(batch.column("offset").to_numpy(), self._plan.dead_floors.get(shard, 0))
        )
        self._write_letters(batch.slice(written), errors[written:], stages[written:])

    def _write_letters(
        self, batch: pa.RecordBatch, errors: Sequence[str], stages: Sequence[str]
    ) -> None:
        letters = {
            "payload": batch.column("payload"),
            "_error": pa.array(errors, pa.string()),
            "_error_stage": pa.array(stages, pa.string()),
        }
        self._dead.add(
            {**provenance_of(self._plan.stream, batch), **letters},
            batch.num_rows,
            self._plan.dead_columns,
        )


class FileWriter(ABC):
    """Collects rows, arrays by the names of columns, and writes them as files of at most about ``FILE_ROWS`` each."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._parts: list[dict[str, pa.Array]] = []
        self._waiting = 0
        self._files: list[DataFile] = []

    def add(self, arrays: dict[str, pa.Array], rows: int, columns: Sequence[Column]) -> None:
        """Take rows."""
        if rows:
            self._parts.append(arrays)
            self._waiting += rows
        if self._waiting >= FILE_ROWS:
            self._write_parts(columns)

    def close(self, columns: Sequence[Column]) -> list[DataFile]:
        """Write what is left; all files."""
        if self._waiting:
            self._write_parts(columns)
        return self._files

    def _write_parts(self, columns: Sequence[Column]) -> None:
        self._files += self._written(columns)
        self._parts = []
        self._waiting = 0

    @abstractmethod
    def _written(self, columns: Sequence[Column]) -> list[DataFile]:
        """The files that the rows of ``_parts`` were written to."""


class TableFiles(FileWriter):
    """Writes files of a table, as its layout says."""

    def __init__(self, place: Place, layout: Layout = _AS_THEY_COME) -> None:
        super().__init__(place)
        self._layout = layout

    def _written(self, columns: Sequence[Column]) -> list[DataFile]:
        schema = arrow_schema((*PROVENANCE, *columns))
        whole = []
        for arrays in self._parts:
            rows = len(arrays["_offset"])
            whole_part = [whole_array(arrays.get(field.name), field.type, rows) for field in schema]
            whole.append(pa.RecordBatch.from_arrays(whole_part, schema=schema))
        if self._place.is_local:
            self._place.files.create_dir(self._place.path)
        return self._write(pa.Table.from_batches(whole, schema))

    def _write(self, rows: pa.Table) -> list[DataFile]:
        return write_rows(self._place, rows, self._layout)


def write_rows(place: Place, rows: pa.Table, layout: Layout) -> list[DataFile]:
    """Write rows as files of a table, one for each partition.

    Raises:
        LayoutError: they are of too many partitions.
    """
    return [_write_file(place, part, layout, values) for values, part in layout.split(rows)]


def _write_file(place: Place, rows: pa.Table, layout: Layout, values: list[Any]) -> DataFile:
    name = f"part-{uuid.uuid4().hex}.parquet"
    files = place.files
    path = place.path_of(name)
    stats = _stats(rows, layout)
    if layout.format == "delta":
        # where the log has the value, as Delta does not look for it in files
        rows = rows.drop_columns(
            [field.column for field in layout.partition if field.transform == "identity"]
        )
    with pq.ParquetWriter(
        path, rows.schema, filesystem=files, compression="zstd", compression_level=1
    ) as file:
        if layout:
            file.write_table(rows, row_group_size=FILE_ROWS)
        else:
            for batch in rows.to_batches():
                file.write_batch(batch, row_group_size=FILE_ROWS)
    return DataFile(name, files.get_file_info(path).size, rows.num_rows, stats, values)


def whole_array(array: pa.Array | None, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of a file; rows from before it was discovered, or got further members, have null there."""
    if array is None:
        return pa.nulls(rows, kind)
    return array if array.type == kind else array.cast(kind)


def by_shard(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each shard."""
    for shard in pc.unique(batch.column("shard")).to_pylist():
        yield shard, batch.filter(pc.equal(batch.column("shard"), shard))


def provenance_of(stream: str, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns of provenance, for records of a stream."""
    return {
        "_stream": pa.repeat(pa.scalar(stream), batch.num_rows),
        "_shard": batch.column("shard"),
        "_offset": batch.column("offset"),
        "_published_at": batch.column("ts"),
        "_topic": batch.column("topic"),
        "_client_id": batch.column("client_id"),
        "_rule": batch.column("rule"),
    }


def _with_rule(batch: pa.RecordBatch, rule: str) -> pa.RecordBatch:
    """The records of messages as those of rows that a rule gave."""
    at = batch.schema.get_field_index("rule")
    return batch.set_column(at, batch.schema.field(at), pa.repeat(pa.scalar(rule), batch.num_rows))


def _items(places: Sequence[int]) -> pa.Array:
    """The number of each row among those of its record; ``places`` are the records, in order."""
    records = np.array(places, np.int64)
    _, starts, counts = np.unique(records, return_index=True, return_counts=True)
    return pa.array(np.arange(len(records)) - np.repeat(starts, counts), pa.int32())


def _parts(
    batch: pa.RecordBatch, errors: Mapping[int, str]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """The records that fit and those that do not."""
    if not errors:
        return batch, batch.slice(0, 0)
    bad = np.zeros(batch.num_rows, bool)
    bad[list(errors)] = True
    return batch.filter(pa.array(~bad)), batch.filter(pa.array(bad))


def _stats(rows: pa.Table, layout: Layout) -> dict[str, Any]:
    """The file's statistics on the columns that rows are found by, in Delta's form."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    in_log = {field.column for field in layout.partition if field.transform == "identity"}
    sources = (field.column for field in layout.partition if field.transform != "identity")
    # Iceberg takes its statistics from the footers of files.
    indexed = rows.column_names[: _INDEXED if layout.format == "delta" else 0]
    first = (name for name in indexed if name not in in_log)
    for name in dict.fromkeys((*RANGED, *sources, *(name for name, _ in layout.sort), *first)):
        column = rows.column(name)
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if not _has_bounds(column.type):
            continue
        bounds = pc.min_max(column).as_py()
        # A bound that only some files have is taken for none by delta-rs, and so are the rows of the others.
        if bounds["min"] is not None:
            low[name], high[name] = (
                _bound(bounds["min"], is_high=False),
                _bound(bounds["max"], is_high=True),
            )
            if pa.types.is_floating(column.type) and not pc.all(pc.is_finite(column)).as_py():
                low[name], high[name] = -_LARGEST, _LARGEST
    return {"numRecords": rows.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}


def _has_bounds(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_it(kind)
        for is_it in (types.is_integer, types.is_floating, types.is_temporal, types.is_string)
    )


def _bound(value: Any, *, is_high: bool) -> Any:
    """A bound as Delta's statistics have it: of times as text to the millisecond, and of long texts the beginning, both
    rounded outwards."""
    if isinstance(value, str):
        if not is_high:
            return value[:_LONG_TEXT]
        # The beginning is followed by any greater text.
        is_short = len(value) <= _LONG_TEXT or value[_LONG_TEXT] == _LAST_CHARACTER
        return value if is_short else value[:_LONG_TEXT] + _LAST_CHARACTER
    if isinstance(value, datetime):
        moment = value.replace(tzinfo=None)
        cut = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
        if is_high and cut < moment:
            if cut == _LAST_MILLISECOND:
                return f"{moment.isoformat()}Z"
            cut += timedelta(milliseconds=1)
        return f"{cut.isoformat(timespec='milliseconds')}Z"
    return value.isoformat() if isinstance(value, date) else value
