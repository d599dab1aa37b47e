"""The Python Data Source ``sluice``.

Facts it is built on (Spark 4.0 to 4.3): offsets are compared as JSON text, so keys are always in one order; an offset
that goes back is accepted silently, so it is refused here; an exception in a driver-side method ends the query, so the
client retries inside; ``latestOffset`` may be polled many times a second, so answers are kept for a moment; only the
first batch of a read is checked against the schema, so every batch is made with one schema object.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)

from pyspark_sluice.client import Positions, StreamClient, check_epoch, check_held, check_not_back
from pyspark_sluice.errors import SourceError
from pyspark_sluice.options import Options
from pyspark_sluice.ranges import Offsets, Range, advance, split
from pyspark_sluice.records import arrow_schema, project, spark_schema

try:  # Admission control exists since Spark 4.2; before it, a batch takes what is available.
    from pyspark.sql.streaming.datasource import ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]  # is in where Spark has no such mixin
        """Nothing: Spark before 4.2 runs availableNow as one batch."""

    class ReadMaxRows:  # type: ignore[no-redef]  # Spark before 4.2 neither asks for nor gives one
        """Nothing: never met."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows


_POLL_INTERVAL_S = 0.2


class SluicePartition(InputPartition):
    """A range to read, and where the driver found it; a task asks again when that has changed."""

    def __init__(self, where: Positions, piece: Range) -> None:
        super().__init__(piece)
        self.where = where
        self.piece = piece


class SluiceSource(DataSource):
    """``format("sluice")``.

    Options: url, token (or SLUICE_API_TOKEN), stream, columns, startingOffsets or startingTime, endingOffsets or
    endingTime (batch), filter (of topics), maxRowsPerTrigger, minRowsPerTrigger and maxTriggerDelayMs (stream),
    partitions, minPartitionRows, retrySeconds, boundBatches (stream).
    """

    @classmethod
    def name(cls) -> str:
        return "sluice"

    def schema(self) -> str:
        return spark_schema(Options.parse(self.options).columns)

    def reader(self, schema: Any) -> DataSourceReader:
        return SluiceReader(Options.parse(self.options))

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return SluiceStreamReader(Options.parse(self.options))


def register_source(session: Any, name: str) -> str:
    """Register the data source under another name, for one query; returns the name, for ``format``.

    Spark keeps one map of environment variables per registered source, and each query that starts adds to it without a
    lock (4.0 to 4.2). Two queries of one source that start at once can corrupt it. From then on every batch of both
    fails with "Illegal size 5 of collection, expected 6", until the JVM ends.
    """

    class Source(SluiceSource):
        @classmethod
        def name(cls) -> str:
            return name

    session.dataSource.register(Source)
    return name


class _Ranges:
    """The part that batch and stream readers share: reading a partition on an executor."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Exactly the partition's records, those that the filter matches, or an error."""
        if not isinstance(partition, SluicePartition):  # Spark's own, for a range without records
            return
        schema = arrow_schema(self._options.columns)
        piece = partition.piece
        rows = 0
        wanted = self._options.topic_filter
        for batch in self._options.client().read(
            partition.where, piece.shard, piece.start, piece.end, wanted
        ):
            rows += batch.num_rows
            yield project(batch, piece.shard, schema)
        if wanted is None and rows != piece.end - piece.start:
            raise SourceError(
                f"{rows} records came for offsets [{piece.start}, {piece.end}) of shard {piece.shard}"
            )

    def _split(self, where: Positions, start: Offsets, end: Offsets) -> list[SluicePartition]:
        pieces = split(start, end, self._options.partitions, self._options.min_partition_rows)
        return [SluicePartition(where, piece) for piece in pieces]


class SluiceReader(_Ranges, DataSourceReader):
    """``spark.read``: a range by offsets or times, earliest to latest by default, fixed when it is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        client = self._options.client()
        _, start = self._options.start(client, "earliest")
        where, end = self._options.end(client, "latest")
        _check_held(where, start, end)
        return self._split(where, start, end)


class SluiceStreamReader(_Ranges, SupportsTriggerAvailableNow, DataSourceStreamReader):
    """``spark.readStream``. Lives in the driver's planner process for the whole query, and, pickled, in tasks."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._client: StreamClient | None = None
        self._seen: Positions | None = None
        self._seen_at = 0.0
        self._target: dict[int, int] | None = None
        self._batch_end: dict[int, int] | None = None
        self._batch_at = -math.inf

    def initialOffset(self) -> dict[str, Any]:
        where, start = self._options.start(self._connected(), "earliest")
        self._see(where)
        _check_held(where, start, where.next())
        return _offset(where.epoch, start)

    def getDefaultReadLimit(self) -> Any:
        return ReadMaxRows(self._options.max_rows)

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """The end of the next batch.

        Spark 4.1 gives neither start nor limit, and with ``availableNow`` it takes one batch, which must have all. So a
        batch is bounded there only with the option ``boundBatches``. It starts where the last planned one ended: after
        a restart, Spark plans the last one of its checkpoint again first.
        """
        where = self._head()
        available = where.next()
        begun: dict[int, int] | None
        if start is not None:
            check_epoch(where.stream, start["epoch"], where.epoch)
            begun = _shards(start)
            most = _max_rows(limit)
        else:
            begun = self._batch_end
            most = self._options.max_rows if self._options.is_bounded else None
            if begun is None and self._options.is_bounded:
                _, begun = self._options.start(self._connected(), "earliest")
        if begun is not None:
            available = {**begun, **available}  # a shard that is not shown stays where it is
            if self._target is not None:
                available = {
                    shard: min(to, self._target.get(shard, to)) for shard, to in available.items()
                }
            check_not_back(where, begun)
            available = (
                begun if self._is_early(begun, available) else advance(begun, available, most)
            )
        if available != begun:
            self._batch_end, self._batch_at = available, time.monotonic()
        return _offset(where.epoch, available)

    def _is_early(self, begun: Offsets, available: Offsets) -> bool:
        """True if too few records wait for a batch so soon after the previous one."""
        if (
            self._target is not None
            or time.monotonic() - self._batch_at >= self._options.max_delay_s
        ):
            return False
        waiting = sum(to - begun.get(shard, 0) for shard, to in available.items())
        return waiting < min(self._options.min_rows, self._options.max_rows)

    def reportLatestOffset(self) -> dict[str, Any]:
        where = self._head()
        return _offset(where.epoch, where.next())

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._head().next()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        where = self._see(self._connected().positions())
        check_epoch(where.stream, end["epoch"], where.epoch)
        check_epoch(where.stream, start["epoch"], where.epoch)
        _check_held(where, _shards(start), _shards(end))
        self._batch_end = _shards(end)
        return self._split(where, _shards(start), _shards(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: it comes late and not for the last batch, so records are never trimmed by it."""

    def _connected(self) -> StreamClient:
        if self._client is None:
            self._client = self._options.client()
        return self._client

    def _see(self, where: Positions) -> Positions:
        self._seen, self._seen_at = where, time.monotonic()
        return where

    def _head(self) -> Positions:
        """The positions of the stream, requested at most five times a second."""
        if self._seen is not None and time.monotonic() - self._seen_at < _POLL_INTERVAL_S:
            return self._seen
        return self._see(self._connected().positions())


def _offset(epoch: str, shards: Offsets) -> dict[str, Any]:
    """An offset as Spark keeps it; the order of keys is fixed since Spark compares the text."""
    return {"epoch": epoch, "s": {str(shard): shards[shard] for shard in sorted(shards)}, "v": 1}


def _shards(offset: dict[str, Any]) -> dict[int, int]:
    if offset.get("v") != 1:
        raise SourceError(
            f"the checkpoint's offset has version {offset.get('v')}; this source reads version 1"
        )
    return {int(shard): int(at) for shard, at in offset["s"].items()}


def _max_rows(limit: Any) -> int | None:
    return int(limit.max_rows) if isinstance(limit, ReadMaxRows) else None


def _check_held(where: Positions, start: Offsets, end: Offsets) -> None:
    """Refuse a range that the stream does not hold, before any task is sent for it."""
    for position in where.shards:
        at = start.get(position.shard, position.first)
        to = end.get(position.shard, position.next)
        if at > to:
            raise SourceError(
                f"stream {where.stream!r} shard {position.shard}: the range starts at offset {at} and ends before it, "
                f"at {to}"
            )
        check_held(where, position.shard, at, to)
