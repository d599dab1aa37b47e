"""Form of records in Arrow: one schema for every stream, so that frames of any stream can be joined and passed on.

Columns are plain, never dictionary-encoded: a frame is then one message of an Arrow IPC stream, complete in itself, and
a range of frames behind the schema's message is a valid stream. Encoding costs 0.3 µs a record in groups of 1,000.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from broker.core.lazy_module import LazyModule
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.without_pandas import let_pyarrow_look

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

let_pyarrow_look()

_TIME: Final = pa.timestamp("us", "UTC")
_INT64: Final = pa.int64()
_INT8: Final = pa.int8()
_BOOL: Final = pa.bool_()
_STRING: Final = pa.string()
_BINARY: Final = pa.binary()

# ``offset`` and the fields of ``broker.core.stream.StreamRecord``; ``ts`` is microseconds, UTC.
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", _INT64, nullable=False),
        pa.field("ts", _TIME, nullable=False),
        pa.field("topic", _STRING, nullable=False),
        pa.field("payload", _BINARY, nullable=False),
        pa.field("qos", _INT8, nullable=False),
        pa.field("retain", _BOOL, nullable=False),
        pa.field("client_id", _STRING, nullable=False),
        pa.field("username", _STRING),
        pa.field("properties", _STRING),
        pa.field("rule", _STRING),
    ]
)

MAX_FRAME_ROWS: Final = 65_536
# Maximum number of records in a frame, and maximum bytes of payload unless it is a single record.
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024

# 0, 1, 2, ...; of a buffer, since ``pa.array`` would import pandas here (see ``broker.storage.without_pandas``).
_COUNTING: Final = pa.Array.from_buffers(
    _INT64, MAX_FRAME_ROWS, [None, pa.py_buffer(array("q", range(MAX_FRAME_ROWS)))]
)
# Number of values up to which a loop is faster than a call of a kernel of Arrow, which takes 10 to 40 µs.
_FEW: Final = 256


def encode(first_offset: int, records: Sequence[StreamRecord]) -> pa.RecordBatch:
    """Records as one batch; their offsets are dense from ``first_offset``. At most ``MAX_FRAME_ROWS`` records.

    Text that is not Unicode (lone surrogates) is kept readable with ``?`` in its place, so that one such record does
    not stop the others of its group.
    """
    columns: list[Any] = list(zip(*records, strict=True))
    try:
        return _encode(first_offset, columns)
    except UnicodeEncodeError:
        return _encode(first_offset, [_printable(column) for column in columns])


def decode(batch: pa.RecordBatch) -> list[tuple[int, StreamRecord]]:
    """The records of a batch, each with its offset."""
    columns = [
        column.to_pylist()
        for column in batch.set_column(1, "ts", batch.column(1).view(_INT64)).columns
    ]
    return list(zip(columns[0], map(StreamRecord, *columns[1:]), strict=True))


def payloads(batch: pa.RecordBatch) -> list[bytes]:
    """The payloads of a batch."""
    column = batch.column(3)
    ends = memoryview(column.buffers()[1]).cast("i")[column.offset :][: len(column) + 1]
    content = memoryview(column.buffers()[2] or b"")
    return [content[begin:end].tobytes() for begin, end in pairwise(ends)]


def split(records: Sequence[StreamRecord]) -> list[Sequence[StreamRecord]]:
    """Records cut into pieces that each fit a frame."""
    if (
        len(records) <= MAX_FRAME_ROWS
        and sum(map(len, [record[2] for record in records])) <= MAX_FRAME_BYTES
    ):
        return [records]
    pieces: list[Sequence[StreamRecord]] = []
    start = size = 0
    for position, record in enumerate(records):
        if position - start == MAX_FRAME_ROWS or (
            position > start and size + len(record.payload) > MAX_FRAME_BYTES
        ):
            pieces.append(records[start:position])
            start = position
            size = 0
        size += len(record.payload)
    pieces.append(records[start:])
    return pieces


def join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch of several."""
    return pa.concat_batches(batches)


def of_topics(batch: pa.RecordBatch, topic_filter: TopicFilter) -> pa.RecordBatch:
    """The records of a batch whose topics the filter matches; each topic is tested once."""
    topics = batch.column(2).dictionary_encode()
    wanted = [
        number
        for number, topic in enumerate(topics.dictionary.to_pylist())
        if topic_filter.matches(topic)
    ]
    if len(wanted) == len(topics.dictionary):
        return batch
    if not wanted:
        return batch.slice(0, 0)
    return batch.filter(pc.is_in(topics.indices, pa.array(wanted, topics.indices.type)))


def first_at(batch: pa.RecordBatch, ts_us: int) -> int | None:
    """The row of the first record at or after a time in microseconds, or None."""
    row: int = pc.index(pc.greater_equal(batch.column(1).view(_INT64), ts_us), True).as_py()
    return None if row < 0 else row


def times_of(batch: pa.RecordBatch) -> tuple[int, int]:
    """The earliest and the latest time in a batch, in microseconds."""
    if batch.num_rows <= _FEW:
        values = memoryview(batch.column(1).buffers()[1]).cast("q")[batch.column(1).offset :][
            : batch.num_rows
        ]
        return min(values), max(values)
    least_and_most = pc.min_max(batch.column(1).view(_INT64))
    return least_and_most["min"].as_py(), least_and_most["max"].as_py()


def _encode(first_offset: int, columns: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Columns that hold one value throughout, as most do, are not converted value by value: 20 records take 26 µs
    instead of 60, 2,000 take 360 instead of 590."""
    times, topics, payloads, qos, retain, client_ids, *nullable = columns
    arrays = [
        _counted(first_offset, len(times)),
        _times(times),
        _text(topics),
        pa.array(payloads, _BINARY),
        _of_integers(_INT8, bytes(qos)),
        _flags(retain),
        _text(client_ids),
    ]
    arrays += [_text(column) for column in nullable]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _counted(first: int, count: int) -> pa.Array:
    if count > _FEW:
        return pc.add(_COUNTING.slice(0, count), first)
    return _of_integers(_INT64, array("q", range(first, first + count)))


def _times(column: Sequence[int]) -> pa.Array:
    if len(column) > _FEW:
        return pa.array(column, _INT64).view(_TIME)
    return _of_integers(_TIME, array("q", column))


def _of_integers(kind: pa.DataType, values: array[int] | bytes) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _flags(column: Sequence[bool]) -> pa.Array:
    if True in column:
        return pa.array(column, _BOOL)
    return pa.Array.from_buffers(
        _BOOL, len(column), [None, pa.py_buffer(bytes(len(column) // 8 + 1))]
    )


def _text(column: Sequence[str | None]) -> pa.Array:
    value = column[0]
    count = len(column)
    if column.count(value) < count:
        return pa.array(column, _STRING)
    return (
        pa.nulls(count, _STRING) if value is None else pa.repeat(pa.scalar(value, _STRING), count)
    )


def _printable(column: Sequence[Any]) -> Sequence[Any]:
    return [
        value.encode(errors="replace").decode() if isinstance(value, str) else value
        for value in column
    ]
