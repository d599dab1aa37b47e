"""Durable queues over the store: a log for the records of each, and a key for the offset up to which they are done.

::

    queues/by-name/NAME     the number of the queue's log
    queues/done/LOG         the offset below which everything is done

Logs are numbered with those of streams and forgotten in the same way (``broker.streams.catalogue``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from sys import maxsize
from typing import TYPE_CHECKING, Any, Final

from broker.core.clock import Clock
from broker.core.errors import Unavailable
from broker.core.kinds import counted
from broker.core.lazy_module import LazyModule
from broker.core.queue import QueueFull, Queues
from broker.core.signals import Signal
from broker.core.stream import stream_record
from broker.core.values import Done, Values
from broker.observe.metrics import Metrics
from broker.storage.collection import RAW, TEXT, Collection
from broker.storage.store import LogShard, Store
from broker.storage.writer import Writer
from broker.streams.catalogue import LogKeys

if TYPE_CHECKING:
    from broker.storage import records
else:
    records = LazyModule("broker.storage.records")

_NAMES: Final = b"queues/by-name/"
_DONE: Final = b"queues/done/"
# Number of records after which done records are deleted; sooner when the queue is empty.
_TRIM_RECORDS: Final = 10_000


class StoredQueue:
    """Implements ``broker.core.queue.DurableQueue``."""

    def __init__(
        self,
        name: str,
        log: int,
        writer: Writer,
        clock: Clock,
        metrics: Metrics,
        *,
        max_records: int,
        max_bytes: int,
    ) -> None:
        self.name = name
        self.log = log
        self._shard = LogShard(log)
        self._writer = writer
        self._clock = clock
        self._append = writer.appender(self._shard)
        self._max_records = max_records
        self._max_bytes = max_bytes
        range_now = writer.store.range_of(self._shard)
        done = int(writer.store.get(_key(log)) or 0)
        self._next = range_now.next_offset
        """The offset after the last record that is committed."""
        self._committed_done = self._done = self._read = max(done, range_now.first_offset)
        self._trimmed = range_now.first_offset
        self._bytes = writer.store.size_of(self._shard) if self._read < self._next else 0
        self._tail = QueueTail(self._next)
        self._ahead: deque[tuple[int, bytes]] = deque()
        """Records of the frame that was read last, behind those that were given: at most a frame."""
        self._open = self._open_bytes = 0
        self._open_values: list[tuple[object, int]] = []
        self._flying: deque[tuple[int, int, list[tuple[object, int]]]] = deque()
        self._waiting = self._waiting_bytes = 0
        """Size of the records that are gathering and flying together; kept, because every append asks."""
        self._arrived = asyncio.Event()
        self.when_lost = Signal[int]()
        self.is_gone = False
        help = "records that a durable queue discarded, by reason"
        self._dropped = metrics.counter("queue_dropped", help, queue=name, reason="queue_full")
        self._dropped_oldest = metrics.counter(
            "queue_dropped", help, queue=name, reason="drop_oldest"
        )
        self._not_stored = metrics.counter("queue_dropped", help, queue=name, reason="not_stored")
        metrics.gauge(
            "queue_records", lambda: self.records, "records in a durable queue", queue=name
        )
        metrics.gauge(
            "queue_bytes", lambda: self.size_bytes, "bytes in a durable queue", queue=name
        )
        if self._read < self._next:
            self._arrived.set()

    @property
    def records(self) -> int:
        """Number of records that are not done, including those that wait for their commit."""
        return self._next - self._done + self._waiting

    @property
    def size_bytes(self) -> int:
        """About how many bytes those are."""
        return self._bytes + self._waiting_bytes

    @property
    def next_offset(self) -> int:
        """The offset after the last record that is committed."""
        return self._next

    @property
    def done_offset(self) -> int:
        """The offset below which everything is done, and that is committed."""
        return self._committed_done

    def append(self, payload: bytes, value: object = None) -> None:
        """Add a record to the commit group that is gathering. Raises ``QueueFull``."""
        if self.is_gone:
            raise Unavailable(f"the queue {self.name!r} was removed")
        size = len(payload)
        records = self._next - self._done + self._waiting
        if records >= self._max_records or (
            self._bytes + self._waiting_bytes + size > self._max_bytes and records
        ):
            self._dropped.value += 1
            raise QueueFull(
                f"the queue {self.name!r} is full with {counted(self.records, 'record')}, "
                f"{counted(self.size_bytes, 'byte')}"
            )
        self._append(
            stream_record(
                (self._clock.now_ns() // 1000, "", payload, 0, False, "", None, None, None)
            )
        )
        if not self._open:
            self._writer.when_committed(self._group_committed)
        if value is not None:
            self._open_values.append((value, size))
        self._open += 1
        self._open_bytes += size
        self._waiting += 1
        self._waiting_bytes += size

    async def read(self, max_records: int, max_bytes: int) -> Sequence[tuple[int, Any]]:
        """The next committed records, or their values; waits until there is one."""
        while self._read >= self._next:
            self._arrived.clear()
            await self._arrived.wait()
        start = self._read
        if kept := self._tail.take(start, max_records):
            self._read += len(kept)
            return kept
        ahead = self._ahead
        if not ahead or ahead[0][0] != start:
            most = max(1, min(max_records, self._tail.first_offset - start))
            stored = await asyncio.to_thread(self._stored, start, most, max_bytes)
            if self._read != start:  # rewound while reading
                return await self.read(max_records, max_bytes)
            if not stored:
                raise Unavailable(
                    f"records {start} to {self._next} of the queue {self.name!r} cannot be read"
                )
            self._ahead = ahead = deque(stored)
        taken = [ahead.popleft()]
        size = len(taken[0][1])
        while ahead and len(taken) < max_records and (size := size + len(ahead[0][1])) <= max_bytes:
            taken.append(ahead.popleft())
        self._read = taken[-1][0] + 1
        return taken

    def advance(self, next_offset: int) -> None:
        """Everything below this offset is done: part of the commit group that is gathering."""
        if self.is_gone:
            return
        left = max(1, self._next - self._done)
        self._bytes -= self._bytes * min(left, next_offset - self._done) // left
        self._done = next_offset
        self._writer.put(_key(self.log), b"%d" % next_offset)
        self._writer.when_committed(
            lambda error: None if error is not None else self._advanced(next_offset)
        )

    async def committed(self) -> None:
        """Wait until what was appended and advanced so far is committed. Raises ``Unavailable`` when it is not."""
        await self._writer.committed()

    def rewind(self) -> None:
        """Read again from the last ``advance`` that was committed."""
        self._read = self._done = self._committed_done
        if self._read < self._next:
            self._arrived.set()

    def drop_oldest(self, records: int) -> int:
        """Discard up to ``records`` of the oldest committed records. Return the number discarded."""
        dropped = min(records, self._next - self._done)
        if dropped > 0:
            self.advance(self._done + dropped)
            self._read = max(self._read, self._done)
            self._dropped_oldest.value += dropped
        return max(0, dropped)

    async def peek(self, max_records: int, from_offset: int = 0) -> Sequence[tuple[int, bytes]]:
        """The oldest records from an offset on that are committed and not done; they stay."""
        start = max(self._done, from_offset)
        most = min(max_records, self._next - start)
        if most <= 0:
            return []
        stored = await asyncio.to_thread(self._stored, start, most, maxsize)
        return [entry for entry in stored[:most] if entry[0] >= self._done]

    def seal(self) -> None:
        """The group that was gathering is on its way."""
        if self._open:
            self._flying.append((self._open, self._open_bytes, self._open_values))
            self._open = 0
            self._open_bytes = 0
            self._open_values = []

    def _stored(self, start: int, most: int, most_bytes: int) -> list[tuple[int, bytes]]:
        """Records from an offset on, in whole frames up to ``most`` or ``most_bytes``; only the column of
        payloads is decoded."""
        stored: list[tuple[int, bytes]] = []
        for batch in self._writer.store.read_arrow(self._shard, start, self._next):
            stored += enumerate(records.payloads(batch), batch.column(0)[0].as_py())
            most_bytes -= batch.nbytes
            if len(stored) >= most or most_bytes <= 0:
                break
        return stored

    def _group_committed(self, error: BaseException | None) -> None:
        records, size, values = self._flying.popleft()
        self._waiting -= records
        self._waiting_bytes -= size
        if error is not None:
            self._not_stored.value += records
            self.when_lost(records)
            return
        self._tail.extend(self._next, values, self._next + records)
        self._next += records
        self._bytes += size
        self._arrived.set()

    def _advanced(self, next_offset: int) -> None:
        self._committed_done = max(self._committed_done, next_offset)
        self._trim()

    def _trim(self) -> None:
        """Forget what is done, on the writer thread."""
        done = self._committed_done
        if (
            self.is_gone
            or done == self._trimmed
            or (done - self._trimmed < _TRIM_RECORDS and done < self._next)
        ):
            return
        self._trimmed = done
        self._writer.call(lambda: self._writer.store.trim(self._shard, done), lambda error: None)


class StoredQueues(Queues):
    """Queues in the node's store."""

    def __init__(self, keys: LogKeys, clock: Clock, metrics: Metrics) -> None:
        self._keys = keys
        self._writer = keys.writer
        self._clock = clock
        self._metrics = metrics
        self._queues: dict[str, StoredQueue] = {}
        self._writer.before_commit(self._seal)

    def open(self, name: str, *, max_records: int, max_bytes: int) -> StoredQueue:
        """The queue of that name with its records, created if it does not exist."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = StoredQueue(
                name,
                self._log_of(name),
                self._writer,
                self._clock,
                self._metrics,
                max_records=max_records,
                max_bytes=max_bytes,
            )
        return queue

    @property
    def uncommitted_bytes(self) -> int:
        """About how many bytes wait for their commit in the whole store."""
        return self._writer.backlog_bytes

    def names(self, prefix: str) -> Sequence[str]:
        """The queues there are whose names begin so."""
        self._finish_removals()
        entries = self._keys.scan(_NAMES + prefix.encode())
        return [key.removeprefix(_NAMES).decode() for key, _ in entries]

    def remove(self, name: str) -> int:
        """Forget a queue with all it holds; how many records that were."""
        if self._keys.get(_NAMES + name.encode()) is None:
            return 0
        queue = self._queues.pop(name, None) or self.open(name, max_records=1, max_bytes=1)
        self._queues.pop(name, None)
        queue.is_gone = True
        lost = queue.records
        self._metrics.remove(queue=name)
        self._keys.begin_drop(queue.log, name)
        self._forget(name, queue.log)
        return lost

    def _log_of(self, name: str) -> int:
        self._finish_removals()
        key = _NAMES + name.encode()
        stored = self._keys.get(key)
        if stored is None:
            stored = b"%d" % self._keys.take_number()
            self._keys.put(key, stored)
        return int(stored)

    def _finish_removals(self) -> None:
        """A process that ended in the middle of a removal left the name to a log that is being dropped."""
        if gone := self._keys.dropping():
            for key, log in self._keys.scan(_NAMES):
                if int(log) in gone:
                    self._forget(key.removeprefix(_NAMES).decode(), int(log))

    def _forget(self, name: str, log: int) -> None:
        for key in (_NAMES + name.encode(), _key(log)):
            self._keys.put(key, None)

    def _seal(self) -> None:
        for queue in self._queues.values():
            queue.seal()


def stored_queues(store: Store) -> Iterator[tuple[str, int, int]]:
    """Name and log of each queue that a store has, and the offset up to which it is done."""
    for key, log in store.scan(_NAMES):
        number = int(log)
        yield key.removeprefix(_NAMES).decode(), number, int(store.get(_key(number)) or 0)


def _key(log: int) -> bytes:
    return _DONE + b"%d" % log


_MAX_RECORDS: Final = 4096
# Maximum bytes of payloads; the values take in memory that and some hundred bytes each.
_MAX_BYTES: Final = 2 << 20


class QueueTail:
    """Values of the records up to the last that is committed, as many as the bounds allow: the oldest go first."""

    def __init__(
        self, end: int, max_records: int = _MAX_RECORDS, max_bytes: int = _MAX_BYTES
    ) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._held: deque[tuple[object, int]] = deque()
        self._size_bytes = 0
        self._end = end

    @property
    def first_offset(self) -> int:
        """Offset of the oldest value, or the end of an empty queue."""
        return self._end - len(self._held)

    def extend(self, first_offset: int, added: Sequence[tuple[object, int]], end: int) -> None:
        """Records from ``first_offset`` to ``end`` are committed; ``added`` has a value and size for each, or else none
        of them is kept."""
        values = self._held
        if len(added) != end - first_offset or first_offset != self._end:
            values.clear()
            self._size_bytes = 0
        self._end = end
        if len(added) == end - first_offset:
            values.extend(added)
            self._size_bytes += sum([size for _, size in added])
        while len(values) > self._max_records or self._size_bytes > self._max_bytes:
            self._size_bytes -= values.popleft()[1]

    def take(self, from_offset: int, most: int) -> list[tuple[int, object]]:
        """The values from an offset on, at most ``most``, with their offsets; empty where they are on disk only. They
        are given once, and those before them no more."""
        values = self._held
        before = from_offset - self.first_offset
        if before < 0:
            return []
        popleft = values.popleft
        freed = 0
        for _ in range(min(before, len(values))):
            freed += popleft()[1]
        taken: list[tuple[int, object]] = []
        for offset in range(from_offset, from_offset + min(most, len(values))):
            value, size = popleft()
            taken.append((offset, value))
            freed += size
        self._size_bytes -= freed
        return taken


class StoredValues(Values):
    """Values in the node's store."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._stored = Collection(writer, b"values/", TEXT, RAW)

    def get(self, key: str) -> bytes | None:
        """The value that is committed, or None."""
        return self._stored.committed(key)

    def put(self, key: str, value: bytes | None) -> None:
        """Set a value, or delete it with None, in the commit group that is gathering."""
        self._stored.put(key, value)

    def names(self, prefix: str) -> list[str]:
        """The keys there are that begin so, in order."""
        return [key for key, _ in self._stored.stored(prefix.encode())]

    def when_committed(self, done: Done) -> None:
        """Call ``done`` once everything so far is committed, or with the error that prevented it."""
        self._writer.when_committed(done)

    @property
    def is_congested(self) -> bool:
        """True if more waits for the disk than the settings allow."""
        return self._writer.is_congested
