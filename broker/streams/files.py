"""Records of streams in files, NDJSON and Parquet, both ways; a batch at a time, so that memory does not grow.

A line of NDJSON is a record: ``{"shard": 0, "offset": 7, "ts": "2026-01-31T12:00:00.000001Z", "topic": "a/b",
"payload": "text", "qos": 1, "retain": false, "client_id": "c", "username": ..., "properties": {...}, "rule": ...}``.
Bytes that are not UTF-8 are ``{"$base64": ...}``; members without a value are left out. Parquet has the same columns,
with ``payload`` as bytes and ``properties`` as JSON text.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, Any, Final, Protocol

import pyarrow as pa

from broker.core import jsontext
from broker.core.errors import Invalid, PeerError
from broker.core.stream import StreamRecord
from broker.core.topic import check_topic_name
from broker.storage import records
from broker.storage.without_pandas import let_pyarrow_look

let_pyarrow_look()

FORMATS: Final = ("ndjson", "parquet")
MEDIA_TYPES: Final = {"ndjson": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}
BATCH_RECORDS: Final = 2_000
# Maximum bytes of payloads in a batch, which has one record at least.
BATCH_BYTES: Final = 4 * 1024 * 1024
MAX_LINE_BYTES: Final = 256 * 1024 * 1024
_SCHEMA: Final = pa.schema([pa.field("shard", pa.int32(), nullable=False), *records.SCHEMA])
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MEMBERS: Final = frozenset(_SCHEMA.names)
_BASE64: Final = "$base64"


class Writer(Protocol):
    """Writes batches of a stream's records (``broker.storage.records.SCHEMA``) to a file."""

    def write(self, shard: int, batch: pa.RecordBatch) -> None:
        """Append the records of a shard."""

    def close(self) -> None:
        """Write the end. The file itself is the caller's."""


class NdjsonWriter:
    """Writes a line for each record."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, shard: int, batch: pa.RecordBatch) -> None:
        """See ``Writer``."""
        for start in range(0, batch.num_rows, BATCH_RECORDS):
            numbered = records.decode(batch.slice(start, BATCH_RECORDS))
            self._file.writelines(_line(shard, offset, record) for offset, record in numbered)

    def close(self) -> None:
        """See ``Writer``."""


class ParquetWriter:
    """Writes row groups, one for each batch."""

    def __init__(self, file: IO[bytes]) -> None:
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(file, _SCHEMA, compression="zstd")

    def write(self, shard: int, batch: pa.RecordBatch) -> None:
        """See ``Writer``."""
        if batch.num_rows:
            shards = pa.repeat(pa.scalar(shard, pa.int32()), batch.num_rows)
            self._writer.write_batch(
                pa.RecordBatch.from_arrays([shards, *batch.columns], schema=_SCHEMA)
            )

    def close(self) -> None:
        """See ``Writer``."""
        self._writer.close()


WRITERS: Final[dict[str, Callable[[IO[bytes]], Writer]]] = {
    "ndjson": NdjsonWriter,
    "parquet": ParquetWriter,
}


def read_ndjson(file: IO[bytes], now_us: int) -> Iterator[list[StreamRecord]]:
    """The records of a file, in batches. A record without ``ts`` gets ``now_us``.

    Raises:
        Invalid: a line is not a record; says which and why.
    """
    batch: list[StreamRecord] = []
    size = number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > MAX_LINE_BYTES:
            raise Invalid(f"line {number}: expected at most {MAX_LINE_BYTES:,} bytes")
        if not line.strip():
            continue
        try:
            row = jsontext.decode(line)
        except jsontext.JsonError as error:
            raise Invalid(f"line {number}: expected a record as JSON: {error}") from None
        record = _record(row, f"line {number}", now_us)
        batch.append(record)
        size += len(record.payload)
        if len(batch) == BATCH_RECORDS or size >= BATCH_BYTES:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def read_parquet(file: IO[bytes], now_us: int) -> Iterator[list[StreamRecord]]:
    """The same of a Parquet file.

    Raises:
        Invalid: it is none, or a row is not a record.
    """
    from pyarrow import parquet

    try:
        opened = parquet.ParquetFile(file, pre_buffer=False)
        number = 0
        for group in opened.iter_batches(BATCH_RECORDS):
            rows = _with_times(group).to_pylist()
            batch: list[StreamRecord] = []
            size = 0
            for row in rows:
                number += 1
                record = _record(
                    {name: value for name, value in row.items() if value is not None},
                    f"row {number}",
                    now_us,
                )
                batch.append(record)
                size += len(record.payload)
                if size >= BATCH_BYTES:
                    yield batch
                    batch = []
                    size = 0
            if batch:
                yield batch
    except pa.ArrowException as error:
        raise Invalid(f"the file cannot be read as Parquet: {error}") from None


READERS: Final = {"ndjson": read_ndjson, "parquet": read_parquet}


def packed(stream_records: Sequence[StreamRecord]) -> bytes:
    """Records as an Arrow IPC stream, as ``unpacked`` reads them; their offsets mean nothing."""
    batch = records.encode(0, stream_records)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.SCHEMA) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def unpacked(data: bytes) -> list[StreamRecord]:
    """Inverse of ``packed``.

    Raises:
        Invalid: it is not such a stream.
    """
    unpacked_records: list[StreamRecord] = []
    try:
        with pa.ipc.open_stream(data) as batches:
            if not batches.schema.equals(records.SCHEMA):
                raise Invalid("the Arrow stream has other columns than the records of a stream")
            for batch in batches:
                batch.validate(full=True)
                unpacked_records += [record for _, record in records.decode(batch)]
    except pa.ArrowException as error:
        raise Invalid(f"the body cannot be read as an Arrow stream: {error}") from None
    for record in unpacked_records:
        _check(record.topic, record.qos, "the body")
    return unpacked_records


def _line(shard: int, offset: int, record: StreamRecord) -> bytes:
    members: dict[str, Any] = {
        "shard": shard,
        "offset": offset,
        "ts": (_EPOCH + timedelta(microseconds=record.ts_us))
        .isoformat(timespec="microseconds")
        .replace("+00:00", "Z"),
        "topic": record.topic,
        "payload": _text(record.payload),
        "qos": record.qos,
        "retain": record.retain,
        "client_id": record.client_id,
    }
    if record.username is not None:
        members["username"] = record.username
    if record.properties is not None:
        members["properties"] = jsontext.decode(record.properties)
    if record.rule is not None:
        members["rule"] = record.rule
    return jsontext.encode(members) + b"\n"


def _text(payload: bytes) -> Any:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return {_BASE64: base64.b64encode(payload).decode()}


def _with_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert times to integers, since the times of Python would need a table of zones."""
    at = batch.schema.get_field_index("ts")
    if at < 0:
        return batch
    if not pa.types.is_timestamp(batch.schema.field(at).type):
        raise Invalid("column ts: expected a timestamp")
    times = (
        batch.column(at).cast(pa.timestamp("us", batch.schema.field(at).type.tz)).view(pa.int64())
    )
    return batch.set_column(at, "ts", times)


def _record(row: Any, place: str, now_us: int) -> StreamRecord:
    if not isinstance(row, Mapping):
        raise Invalid(f"{place}: expected a record as a JSON object")
    if unknown := sorted(set(row) - _MEMBERS):
        raise Invalid(
            f"{place}: unknown member {unknown[0]!r}; expected {', '.join(_SCHEMA.names)}"
        )
    topic = row.get("topic")
    qos = row.get("qos", 0)
    if not isinstance(topic, str):
        raise Invalid(f"{place}: topic: expected a string")
    _check(topic, qos, place)
    retain = row.get("retain", False)
    properties = row.get("properties")
    if not isinstance(retain, bool):
        raise Invalid(f"{place}: retain: expected true or false")
    texts = [row.get(name) for name in ("username", "rule")]
    client_id = row.get("client_id", "")
    if not isinstance(client_id, str) or not all(
        text is None or isinstance(text, str) for text in texts
    ):
        raise Invalid(f"{place}: client_id, username and rule: expected strings")
    return StreamRecord(
        _time(row.get("ts", now_us), place), topic, _payload(row.get("payload"), place), qos, retain, client_id,
        texts[0], _properties(properties, place), texts[1],
    )  # fmt: skip


def _check(topic: str, qos: Any, place: str) -> None:
    try:
        check_topic_name(topic)
    except PeerError as error:
        raise Invalid(f"{place}: topic {topic[:80]!r}: {error}") from None
    if isinstance(qos, bool) or qos not in (0, 1, 2):
        raise Invalid(f"{place}: qos: expected 0, 1 or 2")


def _payload(value: Any, place: str) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping) and set(value) == {_BASE64}:
        try:
            return base64.b64decode(value[_BASE64], validate=True)
        except (ValueError, TypeError):
            pass
    raise Invalid(f"{place}: payload: expected a string, or bytes as {{'$base64': ...}}")


def _time(value: Any, place: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    try:
        at = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        at = None
    if at is None or at.tzinfo is None:
        raise Invalid(f"{place}: ts: expected a time such as 2026-01-31T12:00:00.000001Z")
    return (at - _EPOCH) // timedelta(microseconds=1)


def _properties(value: Any, place: str) -> str | None:
    if isinstance(value, str):
        try:
            value = jsontext.decode(value)
        except jsontext.JsonError as error:
            raise Invalid(f"{place}: properties: {error}") from None
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Invalid(f"{place}: properties: expected an object")
    return jsontext.encode(value).decode()
