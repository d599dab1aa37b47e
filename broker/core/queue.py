"""Durable queues: work that is deferred, and must be done once for everything that was acknowledged.

A record is appended in the commit group that is gathering, so that acknowledgements wait for it like for any other
record. The reader reads ahead in memory and calls ``advance`` in the same turn of the event loop in which it
appends what it made of the records: that lands in the same commit group, so either both are there after a crash or
neither is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from broker.core.errors import Unavailable
from broker.core.signals import Signal


class QueueFull(Unavailable):
    """The queue holds as much as it may; the record was not taken and is counted as dropped."""

    code = "queue_full"


class DurableQueue(Protocol):
    """One queue. Used on the event loop by one reader; bounded in records and bytes, a full one takes no more."""

    when_lost: Signal[int]
    """Signal with the number of records that were appended and lost, since the store could not be written."""

    @property
    def name(self) -> str:
        """Name of the queue."""

    @property
    def records(self) -> int:
        """Number of records that are not yet done."""

    @property
    def size_bytes(self) -> int:
        """About how many bytes those are."""

    @property
    def next_offset(self) -> int:
        """The offset after the last record that is committed."""

    @property
    def done_offset(self) -> int:
        """The offset below which everything is done, and that is committed."""

    def append(self, payload: bytes, value: object = None) -> None:
        """Add a record to the commit group that is gathering.

        ``value`` is what the reader would make of the record. It is given in place of the payload when the reader comes
        soon enough: then nothing is read from disk.

        Raises:
            QueueFull: there are too many records or bytes; counted under the reason ``queue_full``.
        """

    async def read(self, max_records: int, max_bytes: int) -> Sequence[tuple[int, Any]]:
        """The next committed records with their offsets, in order, each once; waits until there is one.

        A record is its payload, or the value that it was appended with.

        At most ``max_records``, and about as many as ``max_bytes`` holds, but at least one.
        """

    def advance(self, next_offset: int) -> None:
        """Everything below this offset is done: part of the commit group that is gathering.

        Wait for ``committed`` before the next advance: were that in a later group, which is written although this one
        was not, what this one held would be lost.
        """

    async def committed(self) -> None:
        """Wait until what was appended and advanced so far is committed.

        Raises:
            broker.core.errors.Unavailable: the store could not be written; nothing of the group is there.
        """

    def rewind(self) -> None:
        """Read again from the last ``advance`` that was committed."""

    def drop_oldest(self, records: int) -> int:
        """Discard up to ``records`` of the oldest committed records. Return the number discarded.

        For a reader that has none of them: the records that it has read and not done must be fewer than are dropped,
        and are no longer done. Counted under the reason ``drop_oldest``.
        """

    async def peek(self, max_records: int, from_offset: int = 0) -> Sequence[tuple[int, bytes]]:
        """The oldest records from an offset on that are committed and not done, with their offsets; they stay, and are
        read as before."""


class Queues:
    """The queues of a node by name. Names are paths: ``rules/hot``. A node without a store has none, this class; one
    with a store has ``StoredQueues`` of ``broker.streams.queues``."""

    def open(self, name: str, *, max_records: int, max_bytes: int) -> DurableQueue:
        """The queue of that name with its records, created if it does not exist. An open queue keeps its bounds.

        Raises:
            broker.core.errors.Unavailable: this node keeps nothing.
        """
        raise Unavailable(f"there is no store here to keep the queue {name!r} in")

    def names(self, prefix: str) -> Sequence[str]:
        """Names of the queues that begin with ``prefix``."""
        return ()

    @property
    def uncommitted_bytes(self) -> int:
        """Approximate number of bytes that wait for their commit in the whole store, not those of queues alone."""
        return 0

    def remove(self, name: str) -> int:
        """Forget a queue with all it holds; return the number of its records."""
        return 0
