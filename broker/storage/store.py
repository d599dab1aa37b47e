"""The Store: logs of records and a key space, changed together and atomically.

Everything durable uses this interface: streams, persistent sessions, retained messages, wills. Nothing above it
knows which implementation is underneath.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from broker.core.stream import ShardRange, StreamRecord

if TYPE_CHECKING:
    import pyarrow as pa


class LogShard(NamedTuple):
    """One shard of one log. ``log`` is the log's number, given once by the catalogue and never reused.

    A tuple because it is a dictionary key on the message path: hashing one takes 60 ns, a frozen dataclass 300.
    """

    log: int
    shard: int = 0


@dataclass(slots=True)
class Batch:
    """Changes of one commit group. ``puts`` maps keys to values, None deletes; the last write to a key wins."""

    appends: dict[LogShard, list[StreamRecord]] = field(default_factory=dict)
    puts: dict[bytes, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Committed:
    """The first offset that each appended shard's records were given, in the order appended."""

    first_offsets: dict[LogShard, int]


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One frame of a shard, as its directory knows it: offsets ``first_offset`` up to, not including, ``next_offset``.

    Times are microseconds since the epoch. ``running_max_us`` is the latest time in the shard up to this frame's end.
    """

    first_offset: int
    next_offset: int
    size_bytes: int
    min_ts_us: int
    max_ts_us: int
    running_max_us: int

    @property
    def records(self) -> int:
        """Number of records in the frame."""
        return self.next_offset - self.first_offset


class KeyCursor(Protocol):
    """A place among the keys that begin with one prefix; sees them as they were when it was made.

    To be used at once and let go: it keeps data alive that the store could otherwise clean up.
    """

    def seek(self, key: bytes) -> bytes | None:
        """Go to the first key at or after ``key`` and return it; None when there is none."""

    def next(self) -> bytes | None:
        """Go to the key after this one, where there is this one."""

    def value(self) -> bytes:
        """The value of the present key."""


class Store(Protocol):
    """Blocking calls; ``commit`` and ``trim`` are made on the writer thread, reads from anywhere."""

    def commit(self, batch: Batch) -> Committed:
        """Make all of the batch durable (``fsync`` or ``os``, as the store was opened), or none of it.

        Raises:
            broker.core.errors.Unavailable: disk full or failing; nothing of the batch is there.
            broker.core.errors.Undecided: the commit log does not answer, and may have this batch or one before it.
        """

    def read(
        self, shard: LogShard, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        """At most ``limit`` records with offsets from ``from_offset`` on, in order; trimmed ones are skipped."""

    def range_of(self, shard: LogShard) -> ShardRange:
        """The offsets that the shard holds."""

    def offset_at(self, shard: LogShard, ts_us: int) -> int:
        """The first offset whose record's ``ts_us`` is at or after the given one, else ``next_offset``."""

    def read_arrow(
        self, shard: LogShard, from_offset: int, to_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """The records with offsets in ``[from_offset, to_offset)`` that are there, in order, a batch per frame.

        The schema is ``broker.storage.records.SCHEMA``.

        Raises:
            broker.storage.frames.CorruptFrame: a frame is damaged; what lies before it has been given.
        """

    def shards(self) -> Sequence[LogShard]:
        """Every shard that was ever appended to and whose log was not dropped."""

    def size_of(self, shard: LogShard) -> int:
        """Bytes of the shard's frames, before compression."""

    def directory(self, shard: LogShard, from_offset: int = 0) -> Iterator[FrameEntry]:
        """The shard's frames from the one that holds ``from_offset`` on, oldest first, without reading them."""

    def merge(self, shard: LogShard, first_offset: int, next_offset: int) -> None:
        """Make one frame of the whole frames that make up ``[first_offset, next_offset)``; readers see no difference.

        Raises:
            ValueError: the offsets are not the edges of frames that are there.
        """

    def trim(self, shard: LogShard, before_offset: int) -> None:
        """Forget records below an offset. Whole frames only: records that share a frame with a kept one stay."""

    def drop(self, log: int) -> None:
        """Forget a log with all its shards."""

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All keys that begin with ``prefix`` and their values, in key order, as of the call."""

    def cursor(self, prefix: bytes) -> KeyCursor:
        """A cursor over the keys that begin with ``prefix``; it has no position before its first ``seek``."""

    def close(self) -> None:
        """Flush and release the files."""
