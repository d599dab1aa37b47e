"""Buffers for the rows of an action, in memory or on disk; bounded, with one interface.

A buffer belongs to the action. Sinks, connectors, health checks and changes of either come and go without touching it.
"""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bridges.resource.contract import BufferPlace
from bridges.resource.sending.item import (
    OVERHEAD_BYTES,
    Item,
    from_bytes,
    placed,
    to_be_placed,
    to_bytes,
)
from broker.core.action import Row, Settlement
from broker.core.clock import Clock
from broker.core.errors import Unavailable
from broker.core.kinds import counted
from broker.core.message import Message
from broker.core.queue import DurableQueue, QueueFull
from broker.core.values import Values
from broker.observe.log import get_logger

_log = get_logger(__name__)

# A full buffer on disk drops this share of its capacity at once.
_MAKE_ROOM: Final = 100
_RETRY_S: Final = 1.0
_IDS: Final = "bridges/buffers/"
_READ_BYTES: Final = 4 * 1024 * 1024
# A buffer on disk gives out no more at once, counting each row's overhead with its payload: while its target is away,
# what waits for it waits on disk. Some 30,000 small rows, a third of a second's work.
_AHEAD_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """Capacity of a buffer, and whether it makes room by dropping the oldest."""

    records: int
    size_bytes: int
    drops_oldest: bool


# ``dropped(items, count, reason)`` gets discarded rows; rows that were never read from disk have no items.
Dropped = Callable[[Sequence[Item], int, str], None]


class Buffer(ABC):
    """Used on the event loop. Each item is taken once, and then either done or put back."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._out: deque[Item] = deque()
        """Items that are out, in order."""
        self._again: deque[Item] = deque()
        """Items of those that will be sent again."""
        self._done_out = 0
        """Number of items that are done while they are behind one that is not."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """Rows that no one has taken yet."""

    @property
    def taken(self) -> int:
        """Rows taken and not done."""
        return len(self._out) - self._done_out - len(self._again)

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """About how many bytes all of them are."""

    @property
    def oldest_entered_s(self) -> float | None:
        """When the oldest row was handed to the action; None where that is not known without reading it."""
        return self._out[0].entered_s if self._out else None

    @property
    def is_ahead(self) -> bool:
        """True if enough rows are in memory; more are taken when some of them are done."""
        return False

    @abstractmethod
    def put(
        self, row: Row, message: Message, settle: Settlement | None, is_fallback: bool = False
    ) -> None:
        """Take a row; settles it now where it is safe from now on.

        Raises:
            QueueFull: there is no room.
            SluiceError: the row cannot be kept.
        """

    @abstractmethod
    async def take(self, most: int) -> list[Item]:
        """The next rows in order, up to ``most``; waits until there is one."""

    @abstractmethod
    def done(self, items: Iterable[Item]) -> None:
        """These are settled, and need not be kept."""

    def put_back(self) -> None:
        """Send again the rows that were taken and are not done, in the same order."""
        self._again = deque(item for item in self._out if not item.is_done)

    def _take_again(self, most: int) -> list[Item]:
        return [self._again.popleft() for _ in range(min(most, len(self._again)))]

    def _mark(self, items: Iterable[Item]) -> Item | None:
        """Mark as done; the last of those at the front that leave with that."""
        out = self._out
        last = None
        done_out = self._done_out
        for item in items:
            if not item.is_done:
                item.is_done = True
                done_out += 1
        while out and out[0].is_done:
            last = out.popleft()
            done_out -= 1
        self._done_out = done_out
        return last


class MemoryBuffer(Buffer):
    """Rows wait in memory, each with its ``Settlement``."""

    def __init__(self, bounds: Bounds, clock: Clock, dropped: Dropped) -> None:
        super().__init__(bounds)
        self._now_s = clock.monotonic_s
        self._dropped = dropped
        self._items: deque[Item] = deque()
        self._size_bytes = 0
        self._arrived = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Rows that no one has taken yet."""
        return len(self._items) + len(self._again)

    @property
    def size_bytes(self) -> int:
        """See ``Buffer``."""
        return self._size_bytes

    @property
    def oldest_entered_s(self) -> float | None:
        """See ``Buffer``."""
        oldest = self._out or self._items
        return oldest[0].entered_s if oldest else None

    def put(
        self, row: Row, message: Message, settle: Settlement | None, is_fallback: bool = False
    ) -> None:
        """See ``Buffer``."""
        size_bytes = len(message.payload) + OVERHEAD_BYTES
        items = self._items
        if (
            self._size_bytes + size_bytes > self.bounds.size_bytes
            or len(items) >= self.bounds.records
        ):
            self._make_room(size_bytes)
        if not items:
            self._arrived.set()
        items.append(
            Item(row, message, settle, size_bytes, self._now_s(), -1, 0, False, is_fallback)
        )
        self._size_bytes += size_bytes

    async def take(self, most: int) -> list[Item]:
        """See ``Buffer``."""
        if self._again:
            return self._take_again(most)
        items = self._items
        while not items:
            self._arrived.clear()
            await self._arrived.wait()
            if self._again:
                return self._take_again(most)
        if len(items) <= most:
            taken = list(items)
            items.clear()
        else:
            taken = [items.popleft() for _ in range(most)]
        self._out.extend(taken)
        return taken

    def done(self, items: Iterable[Item]) -> None:
        """See ``Buffer``."""
        items = list(items)
        self._size_bytes -= sum([item.size_bytes for item in items if not item.is_done])
        self._mark(items)

    def put_back(self) -> None:
        """See ``Buffer``."""
        super().put_back()
        self._arrived.set()

    def all_items(self) -> list[Item]:
        """Everything in it, taken or not, in order; it is empty then."""
        everything = [*(item for item in self._out if not item.is_done), *self._items]
        for pile in (self._out, self._again, self._items):
            pile.clear()
        self._done_out = self._size_bytes = 0
        return everything

    def _make_room(self, size_bytes: int) -> None:
        bounds = self.bounds
        items = self._items
        if not bounds.drops_oldest:
            raise QueueFull(
                f"the buffer is full with {counted(self.waiting, 'row')}, {counted(self._size_bytes, 'byte')}"
            )
        lost: list[Item] = []
        while items and (
            self._size_bytes + size_bytes > bounds.size_bytes or len(items) >= bounds.records
        ):
            item = items.popleft()
            item.is_done = True
            self._size_bytes -= item.size_bytes
            lost.append(item)
        if lost:
            self._dropped(lost, len(lost), "queue_full")
        elif self._out:
            raise QueueFull(
                f"the buffer is full with {counted(self.taken, 'row')} on the way, {counted(self._size_bytes, 'byte')}"
            )


class DiskBuffer(Buffer):
    """Rows wait in a durable queue: what is put is part of the commit group that is gathering, so PUBACK waits for it.

    A row is settled at once. What was not done when the process ended is reprocessed.
    """

    def __init__(
        self, bounds: Bounds, clock: Clock, dropped: Dropped, queue: DurableQueue, id: str = ""
    ) -> None:
        super().__init__(bounds)
        self.queue = queue
        self.place = BufferPlace(id, uuid.uuid4().hex, queue.next_offset, lambda: queue.done_offset)
        self._clock = clock
        self._dropped = dropped
        self._reads: deque[list[int]] = deque()
        """Rows that are out and bytes of each read, in order."""
        self._read_bytes = 0
        queue.when_lost.connect(lambda records: dropped((), records, "not_stored"))

    @property
    def waiting(self) -> int:
        """Rows that no one has taken yet."""
        return max(0, self.queue.records - len(self._out) + len(self._again))

    @property
    def size_bytes(self) -> int:
        """About how many bytes all of them are."""
        return self.queue.size_bytes

    @property
    def is_ahead(self) -> bool:
        """See ``Buffer``."""
        return self._read_bytes >= _AHEAD_BYTES and not self._again

    def put(
        self, row: Row, message: Message, settle: Settlement | None, is_fallback: bool = False
    ) -> None:
        """See ``Buffer``."""
        row, data = to_bytes(row, message, self._clock.now_ns() // 1_000_000, is_fallback)
        bounds = self.bounds
        queue = self.queue
        size_bytes = len(data)
        if queue.records >= bounds.records or (
            queue.size_bytes + size_bytes > bounds.size_bytes and queue.records
        ):
            self._make_room(size_bytes)
        kept = to_be_placed(message)
        queue.append(
            data,
            Item(row, kept, None, size_bytes, self._clock.monotonic_s(), -1, 0, False, is_fallback),
        )
        if settle is not None:
            settle.succeeded(1)

    async def take(self, most: int) -> list[Item]:
        """See ``Buffer``. Continues when the store can be read again."""
        if self._again:
            return self._take_again(most)
        while True:
            try:
                records = await self.queue.read(most, _READ_BYTES)
            except Unavailable as error:
                _log.warning("bridge.buffer_unreadable", queue=self.queue.name, reason=str(error))
                await asyncio.sleep(_RETRY_S)
                continue
            taken = self._items(records)
            self._out.extend(taken)
            size_bytes = sum([item.size_bytes for item in taken]) + OVERHEAD_BYTES * len(taken)
            self._reads.append([len(taken), size_bytes])
            self._read_bytes += size_bytes
            return taken

    def done(self, items: Iterable[Item]) -> None:
        """See ``Buffer``. Forgotten up to the first that is not done."""
        last = self._mark(items)
        if last is not None:
            self.queue.advance(last.offset + 1)

    def _mark(self, items: Iterable[Item]) -> Item | None:
        before = len(self._out)
        last = super()._mark(items)
        left = before - len(self._out)
        reads = self._reads
        while left:
            rows = min(left, reads[0][0])
            left -= rows
            reads[0][0] -= rows
            if not reads[0][0]:
                self._read_bytes -= reads.popleft()[1]
        return last

    def _items(self, records: Sequence[tuple[int, Any]]) -> list[Item]:
        """Items that were read: those put a moment ago unchanged, the others decoded."""
        now_ms = self._clock.now_ns() // 1_000_000
        now_s = self._clock.monotonic_s()
        return [
            placed(data, offset)
            if type(data) is Item
            else from_bytes(data, offset, None, now_ms, now_s)
            for offset, data in records
        ]

    def _make_room(self, size_bytes: int) -> None:
        queue = self.queue
        bounds = self.bounds
        if not bounds.drops_oldest:
            raise QueueFull(
                f"the buffer is full with {counted(queue.records, 'row')}, {counted(queue.size_bytes, 'byte')}"
            )
        average = max(1, queue.size_bytes // max(1, queue.records))
        wanted = max(
            1,
            bounds.records // _MAKE_ROOM,
            (bounds.size_bytes // _MAKE_ROOM + size_bytes) // average,
        )
        lost = [item for item in self._out if not item.is_done][:wanted]
        last = self._mark(lost)
        self._again = deque(item for item in self._again if not item.is_done)
        if last is not None:
            queue.advance(last.offset + 1)
        unread = 0 if self._out else queue.drop_oldest(wanted - len(lost))
        if not lost and not unread:
            raise QueueFull(
                f"the buffer is full with {counted(queue.records, 'row')} waiting for a commit"
            )
        self._dropped(lost, len(lost) + unread, "queue_full")


class BufferIds:
    """Tell the buffer of an action from that of an earlier action of the same name.

    Kept in the store, with the buffers: a copy of one has the other.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._ids: dict[str, str | None] = {}
        """Identifiers of this process, also before they are committed."""

    def of(self, action: str) -> str:
        """The id of an action's buffer; made when there is none."""
        id = self._find(action)
        if id is None:
            id = uuid.uuid4().hex
            self._values.put(_IDS + action, id.encode())
        self._ids[action] = id
        return id

    def forget(self, action: str) -> None:
        """The buffer is gone."""
        if self._find(action) is not None:
            self._values.put(_IDS + action, None)
        self._ids[action] = None

    def _find(self, action: str) -> str | None:
        if action in self._ids:
            return self._ids[action]
        stored = self._values.get(_IDS + action)
        return None if stored is None else stored.decode()
