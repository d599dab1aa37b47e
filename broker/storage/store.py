"""The Store: logs of records and a key space, changed together and atomically.

Everything durable stands on this interface: streams, persistent sessions, retained messages, wills. Nothing above it
knows which implementation is underneath.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.core.stream import ShardRange, StreamRecord


@dataclass(frozen=True, slots=True, order=True)
class LogShard:
    """One shard of one log. ``log`` is the log's number, given once by the catalogue and never reused."""

    log: int
    shard: int = 0


@dataclass(slots=True)
class Batch:
    """What one commit group changes. ``puts`` maps keys to values, None deletes; the last write to a key wins."""

    appends: dict[LogShard, list[StreamRecord]] = field(default_factory=dict)
    puts: dict[bytes, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Committed:
    """The first offset that each appended shard's records were given, in the order appended."""

    first_offsets: dict[LogShard, int]


class Store(Protocol):
    """Blocking calls; ``commit`` and ``trim`` are made on the writer thread, reads from anywhere."""

    def commit(self, batch: Batch) -> Committed:
        """Make all of the batch durable (``fsync`` or ``os``, as the store was opened), or none of it.

        Raises:
            broker.core.errors.Unavailable: disk full or failing; nothing of the batch is there.
        """
        ...

    def read(self, shard: LogShard, from_offset: int, limit: int) -> Sequence[tuple[int, StreamRecord]]:
        """At most ``limit`` records with offsets from ``from_offset`` on, in order; trimmed ones are skipped."""
        ...

    def range_of(self, shard: LogShard) -> ShardRange:
        """The offsets that the shard holds."""
        ...

    def offset_at(self, shard: LogShard, ts_us: int) -> int:
        """The first offset whose record's ``ts_us`` is at or after the given one, else ``next_offset``."""
        ...

    def trim(self, shard: LogShard, before_offset: int) -> None:
        """Forget records below an offset. Whole frames only: records that share a frame with a kept one stay."""
        ...

    def drop(self, log: int) -> None:
        """Forget a log with all its shards."""
        ...

    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""
        ...

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All keys that begin with ``prefix`` and their values, in key order, as of the call."""
        ...

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes | None) -> bool:
        """Put (or delete) a key only if it holds ``expected`` now; durable when it returns True."""
        ...

    def close(self) -> None:
        """Flush and release the files."""
        ...
