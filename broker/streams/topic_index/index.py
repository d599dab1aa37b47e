"""The topic index as readers use it: the records of a filter's topics from an offset on, in the order of offsets.

Results are those of reading every record; what the index does not hold, or would be slower at, is left to that. Memory
is bounded by the topics that are merged at a time and the bytes of their chunks; the topics themselves stay on disk.
"""

from __future__ import annotations

import heapq
import shutil
import threading
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from rocksdict import IngestExternalFileOptions, Rdict, RdictIter, ReadOptions, WriteBatch

from broker.core.lazy_module import LazyModule
from broker.core.stream import StreamRecord, stream_record
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk, topic_of
from broker.storage.rocksdb.database import bounded, open_unheld
from broker.storage.store import LogShard
from broker.streams.topic_index import layout
from broker.streams.topic_index.layout import Epoch, Row

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
    from broker.storage.rocksdb.follower import FrameReader
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")

# Topics of one filter that are merged; where it matches more in an epoch, all records of the epoch are read.
MAX_TOPICS: Final = 512
# Places in the index that are read to find them; the same holds beyond.
MAX_STEPS: Final = 4096
_FREE_STEPS: Final = 8
# Records that are read without the index in the time of a step.
_RECORDS_A_STEP: Final = 64
# The share of the records up to which the index is faster than reading all of them.
MAX_SHARE: Final = 1 / 8
# Number of records that are read before their share is judged.
_SHARE_AFTER_ROWS: Final = 4096
# Bytes of chunks that are merged at a time; the same holds beyond.
MAX_HELD_BYTES: Final = 32 * 1024 * 1024
# Records that are all read before the index is tried again: a tenth of a second.
STRETCH: Final = 200_000
_PAGE_BYTES: Final = 4 * 1024 * 1024
_BATCH_ROWS: Final = 1024
_BATCH_BYTES: Final = 256 * 1024


class TopicIndex:
    """The index of a data directory. Blocking; readers may be several threads, one thread changes it."""

    def __init__(self, directory: Path) -> None:
        """Open, or make; ``directory`` is its own. One that does not open is created again: it is a copy."""
        self._path = directory
        self._epochs: dict[LogShard, list[Epoch]] = {}
        self._changing = threading.Lock()
        try:
            self._db = self._open()
        except Exception:  # noqa: BLE001 - rocksdict raises nothing more exact
            shutil.rmtree(directory)
            self._db = self._open()
        self.stored = self._load()
        """The epochs on disk. Readers see those of a shard once ``admit`` was called for it."""

    def warm_up(self) -> None:
        """Import what the first read needs of Arrow, a second of processor time that no reader should wait for."""
        _batch(
            [
                (0, StreamRecord(0, "a", b"", 0, False, "a")),
                (1, StreamRecord(0, "b", b"", 0, True, "b")),
            ]
        )

    def epochs(self, shard: LogShard) -> Sequence[Epoch]:
        """The epochs of a shard that readers may use, oldest first."""
        return self._epochs.get(shard, ())

    def admit(self, shard: LogShard) -> None:
        """Let readers use what is stored of a shard: its last record was compared with the stream's."""
        self._epochs[shard] = list(self.stored.get(shard, ()))

    def ingest(self, file: Path, shard: LogShard, epoch: Epoch) -> None:
        """Add a file of the builder, all of it or nothing, and let readers use it."""
        options = IngestExternalFileOptions()
        options.set_move_files(True)
        self._db.ingest_external_file([str(file)], options)
        kept = [
            stored_epoch
            for stored_epoch in self.stored.get(shard, ())
            if stored_epoch.first_offset != epoch.first_offset
        ]
        self.stored[shard] = [*kept, epoch]
        self.admit(shard)

    def forget(self, shard: LogShard, epochs: Sequence[Epoch]) -> None:
        """Delete epochs of a shard, with their space."""
        left = [
            stored_epoch
            for stored_epoch in self.stored.get(shard, ())
            if stored_epoch not in epochs
        ]
        self._epochs.pop(shard, None)
        self.stored[shard] = left
        if not left:
            del self.stored[shard]
        for epoch in epochs:
            first = layout.epoch_key(shard, epoch.first_offset)
            batch = WriteBatch(raw_mode=True)
            batch.delete_range(first, layout.behind_epoch(first))
            self._db.write(batch)
            self._db.compact_range(first, layout.behind_epoch(first))

    def find(
        self, shard: LogShard, epoch: Epoch, start: int, end: int, topic_filter: TopicFilter
    ) -> Found | None:
        """The records in ``[start, end)`` of an epoch that have a filter's topics; None where reading all is faster."""
        chosen = Found(self._db, layout.epoch_key(shard, epoch.first_offset), start, end)
        steps = min(MAX_STEPS, _FREE_STEPS + (end - start) // _RECORDS_A_STEP)
        return chosen if chosen.choose(FilterWalk(topic_filter), steps) else None

    def close(self) -> None:
        """Release the files."""
        self._db.close()

    def _open(self) -> Rdict:
        self._path.mkdir(parents=True, exist_ok=True)
        return open_unheld(lambda: Rdict(str(self._path), layout.options()))

    def _load(self) -> dict[LogShard, list[Epoch]]:
        epochs: dict[LogShard, list[Epoch]] = {}
        cursor = self._db.iter()
        cursor.seek_to_first()
        while cursor.valid():
            key = cursor.key()
            shard, _ = layout.epoch_of_key(key)
            if len(key) == layout.EPOCH_KEY_SIZE:
                epochs.setdefault(shard, []).append(layout.unpack_epoch(cursor.value()))
            cursor.seek(layout.behind_epoch(key))
        cursor.status()
        return epochs


class TooWide(Exception):
    """The index does not help from here on: too many records, or too many bytes at a time. What was given is right."""


class Found:
    """Records of an epoch by topics. One iterator serves all, so that they are of one state of the index."""

    def __init__(self, db: Rdict, prefix: bytes, start: int, end: int) -> None:
        self._prefix = prefix
        self._start = start
        self._end = end
        # kept until the end, see there
        self._limits: ReadOptions = bounded(layout.behind_epoch(prefix))
        self._cursor: RdictIter = db.iter(self._limits)
        self._topics: list[bytes] = []
        self._held_bytes = 0

    def choose(self, walk: FilterWalk, steps: int) -> bool:
        """Find the topics, in at most ``steps`` steps; return whether they are few enough."""
        key = walk.start
        for _ in range(steps):
            self._cursor.seek(layout.position(self._prefix, key) if key else self._prefix + b"\0")
            if not self._cursor.valid():
                self._cursor.status()
                return True
            topic = layout.topic_of_chunk(self._cursor.key())
            following = walk.follow(topic)
            if following is None:
                return True
            if following != topic:
                key = following
                continue
            self._topics.append(topic)
            if len(self._topics) > MAX_TOPICS:
                return False
            if walk.exact is not None:
                return True
            key = topic + b"\0"
        return False

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The records in the order of offsets, as the stream has them.

        Raises:
            TooWide: from here on, reading all records is better.
        """
        merged = heapq.merge(*map(self._records_of, self._topics))
        rows = 0
        while some := list(_some(merged)):
            yield _batch(some)
            rows += len(some)
            if rows >= _SHARE_AFTER_ROWS and rows > MAX_SHARE * (some[-1][0] + 1 - self._start):
                raise TooWide

    def _records_of(self, topic: bytes) -> Iterator[tuple[int, StreamRecord]]:
        name = topic_of(topic)
        chunks = layout.chunks_of(self._prefix, topic)
        at = self._start
        while (rows := self._chunk(chunks, at)) is not None:
            size = sum(len(row[2]) for row in rows)
            self._held_bytes += size
            if self._held_bytes > MAX_HELD_BYTES and len(self._topics) > 1:
                raise TooWide
            for row in rows:
                if row[0] >= self._end:
                    return
                if row[0] >= at:
                    yield row[0], stream_record((row[1], name, *row[2:]))
            at = rows[-1][0] + 1
            self._held_bytes -= size

    def _chunk(self, chunks: bytes, at: int) -> list[Row] | None:
        """The chunk of a topic that has the next record from an offset on."""
        self._cursor.seek(chunks + at.to_bytes(8))
        if not self._cursor.valid():
            self._cursor.status()
            return None
        return (
            layout.unpack_rows(self._cursor.value())
            if self._cursor.key().startswith(chunks)
            else None
        )


def _some(merged: Iterator[tuple[int, StreamRecord]]) -> Iterator[tuple[int, StreamRecord]]:
    size = 0
    for entry in islice(merged, _BATCH_ROWS):
        yield entry
        size += len(entry[1].payload)
        if size >= _BATCH_BYTES:
            return


def _batch(numbered: Sequence[tuple[int, StreamRecord]]) -> pa.RecordBatch:
    offsets = pa.py_buffer(array("q", [offset for offset, _ in numbered]))
    batch = records.encode(0, [record for _, record in numbered])
    return batch.set_column(
        0, records.SCHEMA[0], pa.Array.from_buffers(pa.int64(), len(numbered), [None, offsets])
    )


class Progress(NamedTuple):
    """All records below ``at`` were checked; ``scanned`` of them, since the one before, without the index."""

    at: int
    scanned: int


def messages(
    reader: FrameReader,
    index: TopicIndex | None,
    shard: LogShard,
    start: int,
    end: int,
    topic_filter: TopicFilter,
) -> Iterator[bytes | memoryview | Progress]:
    """Arrow IPC record batch messages of the records in ``[start, end)`` with a filter's topics, in order, by the index
    where it helps; after each stretch how far it is. Raises what ``FrameReader.messages`` does.
    """
    at = start
    while at < end:
        epoch = (
            None
            if index is None
            else next((e for e in index.epochs(shard) if at < e.next_offset), None)
        )
        if index is not None and epoch is not None and epoch.first_offset <= at:
            stop = min(end, epoch.next_offset)
            chosen = index.find(shard, epoch, at, stop, topic_filter)
            if chosen is not None:
                try:
                    for batch in chosen.batches():
                        yield batch.serialize().to_pybytes()
                        at = batch.column(0)[-1].as_py() + 1
                    at = stop
                except TooWide:
                    pass
                yield Progress(at, 0)
                if at == stop:
                    continue
        until = min(end, at + STRETCH)
        if epoch is not None and epoch.first_offset > at:
            until = min(until, epoch.first_offset)
        yield from reader.messages(shard, at, until, topic_filter)
        yield Progress(until, until - at)
        at = until


class Page(NamedTuple):
    """Arrow IPC record batch messages, and the offset to resume from."""

    messages: list[bytes | memoryview]
    next_offset: int


def read_page(pieces: Iterator[bytes | memoryview | Progress], end: int, limit: int) -> Page:
    """Page of the batches of ``messages`` up to ``end``, until there are ``limit`` records or ``_PAGE_BYTES``, or
    ``STRETCH`` records were read without the index."""
    page: list[bytes | memoryview] = []
    rows = scanned = size = 0
    for piece in pieces:
        if isinstance(piece, Progress):
            scanned += piece.scanned
            if scanned >= STRETCH:
                return Page(page, piece.at)
            continue
        page.append(piece)
        batch = pa.ipc.read_record_batch(pa.py_buffer(piece), records.SCHEMA)
        rows += batch.num_rows
        size += len(piece)
        if rows >= limit or size >= _PAGE_BYTES:
            return Page(page, batch.column(0)[-1].as_py() + 1)
    return Page(page, end)
