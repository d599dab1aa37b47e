"""What Spark runs in its workers: partitions of a batch, ranges of a stream, and other work of a table in pieces."""

from __future__ import annotations

import json
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.layout import LayoutError
from bridges.spark.tasks.member_files import MemberWriter
from bridges.spark.tasks.staged import StagedWriter
from bridges.spark.tasks.task import PartitionWriter, Plan, TaskResult
from pyspark_sluice.errors import SourceError

# Errors of a task that come with any records.
_NOT_OF_RECORDS = (OSError, MemoryError, ImportError, LayoutError, SourceError)
_BATCH_ROWS = 10_000
# Record batches of so many rows or bytes are not joined.
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
            found: str = getattr(import_module(module), name)(pickle.loads(pickled), piece)
            return found
        except (ImportError, OSError, LayoutError):
            return json.dumps({"failure": traceback.format_exc()})

    return run


def in_workers(session: Any, run: Callable[[Any], str], pieces: Sequence[Any]) -> list[str]:
    """Run a function in the workers of a session, a task a piece; what it returned, in their order. Without a session
    it runs in this process."""
    if session is None:
        return [run(piece) for piece in pieces]
    return list(session.sparkContext.parallelize(pieces, len(pieces)).map(run).collect()) if pieces else []


@dataclass(frozen=True, slots=True)
class Reading:
    """How tasks read a stream, and what they write of it."""

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
    for one in ranges:
        for batch in client.read(reading.where, one.shard, one.start, one.end):
            yield project(batch, one.shard, schema)


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
    """What writes a task's files with this plan."""
    if plan.split is not None:
        return MemberWriter(plan, plan.split)
    return PartitionWriter(plan) if plan.upsert is None else StagedWriter(plan, plan.upsert)
