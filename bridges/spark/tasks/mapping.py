"""The work of Spark's workers: partitions of a batch, ranges of a stream, and other work of a table in pieces."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.column import PROVENANCE, arrow_schema
from bridges.spark.columns.layout import Layout, LayoutError, PartitionField, check_partitions
from bridges.spark.columns.place import Place
from bridges.spark.tasks.split import Split, render, unsafe
from bridges.spark.tasks.staged import StagedWriter
from bridges.spark.tasks.task import (
    DataFile,
    PartitionWriter,
    Plan,
    ShardCount,
    TableFiles,
    TaskResult,
    provenance_of,
    write_rows,
)
from pyspark_sluice.errors import SourceError

# Errors of a task that come with any records.
_NOT_OF_RECORDS = (OSError, MemoryError, ImportError, LayoutError, SourceError)
_BATCH_ROWS = 10_000
# Record batches with more rows or bytes than these are not joined.
_BATCH_BYTES = 16 * 1024 * 1024
# Characters.
_LONGEST_REASON = 500


def work(module: str, name: str, plan: Any) -> Callable[[Any], str]:
    """The function that Spark runs for each piece of work: one of a module, called with the plan and the piece.

    A package that is missing, or a disk that cannot be written, fails each time. That is a result, since Spark would
    try again after an exception. Nothing of this module is imported before, so the plan is in bytes.
    """
    pickled = pickle.dumps(plan)

    def run(piece: Any) -> str:
        try:
            result: str = getattr(import_module(module), name)(pickle.loads(pickled), piece)
            return result
        except (ImportError, OSError, LayoutError):
            return json.dumps({"failure": traceback.format_exc()})

    return run


def in_workers(session: Any, run: Callable[[Any], str], pieces: Sequence[Any]) -> list[str]:
    """Run a function in the workers of a session, a task a piece; what it returned, in their order. Without a session
    it runs in this process."""
    if session is None:
        return [run(piece) for piece in pieces]
    return (
        list(session.sparkContext.parallelize(pieces, len(pieces)).map(run).collect())
        if pieces
        else []
    )


# The column with the name of each row's member, which no file has; no column of a row is called so.
_NAME: Final = " table"
_BY_NAME: Final = Layout("delta", (PartitionField("identity", _NAME, "string"),))


class MemberWriter(PartitionWriter):
    """Turns record batches of the source into files of member tables, and files of dead letters."""

    def __init__(self, plan: Plan, split: Split) -> None:
        super().__init__(plan)
        self._split = split
        self._members = _MemberFiles(plan.table, plan.layout, split)
        self._rows = self._members

    def finish(self) -> TaskResult:
        result = super().finish()
        result.members = self._members.rows
        return result

    def _keep(
        self,
        batch: pa.RecordBatch,
        arrays: Mapping[str, pa.Array],
        count: ShardCount,
        records: int | None = None,
    ) -> None:
        """Take rows that have a member; a record of which one row has none gives none, and is a dead letter."""
        if batch.num_rows == 0:
            return
        named = {
            column.name: arrays[column.key] for column in self._columns if column.key in arrays
        }
        named = {**provenance_of(self._plan.stream, batch), **named}
        rendered = render(self._split.parts, named, batch.num_rows)
        offsets = batch.column("offset").to_numpy()
        sentences = self._why(rendered.texts, rendered.places, batch)
        bad = {
            int(offsets[row]): f"column {column!r} names the table, and the row has no value for it"
            for row, column in rendered.lacking.items()
        }
        for at, sentence in sentences.items():
            for row in np.flatnonzero(rendered.places == at).tolist():
                bad.setdefault(int(offsets[row]), sentence)
        names = pa.array([text.lower() for text in rendered.texts], pa.string())
        # A row without a name is left out with its record.
        mine = names.take(pa.array(rendered.places, mask=rendered.places < 0))
        batch, arrays, records, kept = self._without(
            bad, "lake.tables", batch, arrays, count, records
        )
        if batch.num_rows:
            self._members.names.append(mine.filter(kept))
            super()._keep(batch, arrays, count, records)

    def _why(self, texts: list[str], places: Any, batch: pa.RecordBatch) -> dict[int, str]:
        """By the index of a rendered name, why rows with it have no member."""
        problems: dict[int, str] = {}
        used, first = np.unique(places, return_index=True)
        for at, row in sorted(
            zip(used.tolist(), first.tolist(), strict=True), key=lambda pair: pair[1]
        ):
            if at < 0:
                continue
            name = texts[at].lower()
            split = self._split
            fresh = self._result.tables
            sentence = unsafe(texts[at]) or split.refused.get(name)
            if sentence is None and name not in split.names and name not in fresh:
                if len(fresh) < split.room:
                    fresh[name] = (
                        batch.column("offset")[row].as_py(),
                        batch.column("shard")[row].as_py(),
                    )
                else:
                    sentence = split.too_many(name)
                    self._result.over += int((places == at).sum())
            if sentence is not None:
                problems[at] = sentence
        return problems


class _MemberFiles(TableFiles):
    """Writes files of members. ``names`` are those of the rows of each part, given before the part."""

    def __init__(self, place: Place, layout: Layout, split: Split) -> None:
        super().__init__(place, layout)
        self._split = split
        self.names: list[pa.Array] = []
        self.rows: dict[str, dict[int, int]] = {}
        """By member and shard, how many were written."""

    def _write(self, rows: pa.Table) -> list[DataFile]:
        rows = rows.append_column(_NAME, pa.chunked_array(self.names, pa.string()))
        rows = self._split.without_known(rows, _NAME)
        self.names = []
        if rows.num_rows == 0:
            return []
        data_files: list[DataFile] = []
        for [name], part in _BY_NAME.split(rows):
            counts = np.bincount(part.column("_shard").to_numpy())
            mine = self.rows.setdefault(name, {})
            for shard in np.flatnonzero(counts).tolist():
                mine[shard] = mine.get(shard, 0) + int(counts[shard])
            place = self._place.child(name)
            if place.is_local:
                place.files.create_dir(place.path)
            part = part.drop_columns([_NAME])
            own = arrow_schema((*PROVENANCE, *self._split.columns.get(name, ())))
            if own.equals(part.schema):
                part = pa.table(part.columns, schema=own)
            written = write_rows(place, part, self._layout)
            data_files += [replace(file, path=f"{name}/{file.path}") for file in written]
            check_partitions(len(data_files), self._layout)
        return data_files


@dataclass(frozen=True, slots=True)
class Reading:
    """Tasks' reading of a stream, and the plan of their writing."""

    url: str
    token: str = field(repr=False)
    where: Any
    columns: tuple[str, ...]
    plan: Plan


def read_and_written(reading: Reading, ranges: Sequence[Any]) -> str:
    """Write what ranges of a stream give; the ``TaskResult`` as text."""
    return written(reading.plan, joined(read_by(reading, ranges)))


def read_by(reading: Reading, ranges: Sequence[Any]) -> Iterator[pa.RecordBatch]:
    """The records of ranges of a stream."""
    from pyspark_sluice.client import StreamClient
    from pyspark_sluice.records import arrow_schema, project

    client = StreamClient(reading.url, reading.token, reading.where.stream)
    schema = arrow_schema(reading.columns)
    for part in ranges:
        for batch in client.read(reading.where, part.shard, part.start, part.end):
            yield project(batch, part.shard, schema)


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Record batches of one schema, those that follow each other in one as long as they are small: the range server
    sends a batch for each commit group, which may be a record."""
    parts: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        parts.append(batch)
        rows = rows + batch.num_rows
        size = size + batch.nbytes
        if rows >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield _whole(parts)
            parts = []
            rows = 0
            size = 0
    if rows:
        yield _whole(parts)


def _whole(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    [batch] = pa.Table.from_batches(parts).combine_chunks().to_batches()
    return batch


def written(plan: Plan, batches: Iterator[pa.RecordBatch]) -> str:
    """Write what record batches give; the ``TaskResult`` as text.

    An error that the values of a record may cause is a result too: the driver looks for the record.
    """
    task = partition_writer(plan)
    seen = dict[int, tuple[int, int]]()
    try:
        for batch in batches:
            _see(seen, batch)
            task.add(batch)
        result = task.finish()
    except _NOT_OF_RECORDS:
        raise
    except Exception as error:  # noqa: BLE001 - of any library, for any value
        task.close()
        for batch in batches:
            _see(seen, batch)
        result = TaskResult(refused=refusal_of(error))
    result.seen = seen
    return result.to_json()


def refusal_of(error: BaseException) -> str:
    """The sentence of a dead letter whose record the table does not take."""
    text = (str(error).strip().splitlines() or [""])[0]
    return f"the table does not take the record: {type(error).__name__}: {text}"[:_LONGEST_REASON]


def _see(seen: dict[int, tuple[int, int]], batch: pa.RecordBatch) -> None:
    """Note by shard which records came, which follow each other."""
    for shard in pc.unique(batch.column("shard")).to_pylist():
        offsets = batch.column("offset").filter(pc.equal(batch.column("shard"), shard))
        first, _ = seen.get(shard, (offsets[0].as_py(), 0))
        seen[shard] = first, offsets[-1].as_py() + 1


def partition_writer(plan: Plan) -> PartitionWriter:
    """The writer of a task's files with this plan."""
    if plan.split is not None:
        return MemberWriter(plan, plan.split)
    return PartitionWriter(plan) if plan.upsert is None else StagedWriter(plan, plan.upsert)
