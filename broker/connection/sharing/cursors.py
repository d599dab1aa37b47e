"""The positions of a share group in logs, and reading on from there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from broker.codec.outgoing import Outgoing
from broker.connection.sharing.services import NO_MESSAGE, GroupServices
from broker.core.message import Message
from broker.session.delivery import SharedDelivery
from broker.storage.store import LogShard

# Records read at a time: some 100 µs of the loop's time.
READ_RECORDS: Final = 256


class Cursor:
    """A group's place in one shard of a log: what is below ``next_offset`` was read; of that, ``pending`` is not
    settled. ``is_behind`` means that there may be more to read."""

    __slots__ = ("is_behind", "next_offset", "pending", "shard")

    def __init__(self, shard: LogShard, next_offset: int, *, is_behind: bool) -> None:
        self.shard = shard
        self.next_offset = next_offset
        self.is_behind = is_behind
        self.pending: dict[int, SharedDelivery] = {}


class Cursors:
    """The cursors of a group: one in the session log or, where ``stream`` names one, as many as the stream has shards.

    Without any, messages come from the router alone. ``number`` is that of the last message, in the order of the group.
    """

    __slots__ = ("_services", "cursors", "number", "stream")

    def __init__(self, services: GroupServices) -> None:
        self.cursors: list[Cursor] = []
        self.stream: str | None = None
        self.number = 0
        self._services = services

    @property
    def are_behind(self) -> bool:
        """True if there may be more to read."""
        return any(cursor.is_behind for cursor in self.cursors)

    def grew(self) -> None:
        """The stream has more records."""
        for cursor in self.cursors:
            cursor.is_behind = True

    def at(self, shard: LogShard) -> Cursor | None:
        """The cursor in a shard of a log."""
        return next((cursor for cursor in self.cursors if cursor.shard == shard), None)

    def position(self, cursor: Cursor, waiting: Iterable[SharedDelivery]) -> int:
        """The offset from which on nothing was given out; ``waiting`` was read, and was not."""
        for delivery in waiting:
            if delivery.cursor is cursor:
                return delivery.place
        if cursor.is_behind or self.stream is not None:
            return cursor.next_offset
        return max(cursor.next_offset, self._services.session_log.log_next)

    @property
    def behind(self) -> int | None:
        """Number of records of the stream that were not read; None where the group reads none."""
        if self.stream is None:
            return None
        return sum(
            max(self._services.range_of(cursor.shard).next_offset - cursor.next_offset, 0)
            for cursor in self.cursors
        )

    def restore(self, cursor: Cursor, pending: Sequence[int]) -> Iterator[SharedDelivery]:
        """Take a place in a log, and give what was not settled there: some of it may have been sent."""
        self.cursors.append(cursor)
        for place in pending:
            self.number += 1
            delivery = SharedDelivery(None, cursor, place, self.number)
            delivery.may_be_seen = True
            cursor.pending[place] = delivery
            yield delivery

    def read(self, is_meant: Callable[[Message], bool]) -> Iterator[SharedDelivery]:
        """The next messages of each log, at most ``READ_RECORDS`` of each."""
        for cursor in self.cursors:
            if not cursor.is_behind:
                continue
            records = self._services.session_log.read(
                cursor.shard, cursor.next_offset, READ_RECORDS
            )
            self._count_gap(cursor, records[0][0] if records else None)
            cursor.is_behind = len(records) >= READ_RECORDS
            if not cursor.is_behind and self.stream is None:
                cursor.next_offset = max(cursor.next_offset, self._services.session_log.log_next)
            for offset, message in records:
                cursor.next_offset = max(cursor.next_offset, offset + 1)
                if message is not None and is_meant(message):
                    self.number += 1
                    yield SharedDelivery(Outgoing(message), cursor, offset, self.number)

    def _count_gap(self, cursor: Cursor, first: int | None) -> None:
        """Records of a stream that its retention forgot before they were read."""
        if self.stream is None:
            return
        oldest = self._services.range_of(cursor.shard).first_offset if first is None else first
        if oldest > cursor.next_offset:
            self._services.context.figures.delivery_dropped("stream_retention").value += (
                oldest - cursor.next_offset
            )
            cursor.next_offset = oldest

    def load(self, delivery: SharedDelivery) -> Outgoing | None:
        """The message of an entry that a restart left with its position only; None where the log no longer has it."""
        cursor = delivery.cursor
        if delivery.outgoing is None and isinstance(cursor, Cursor):
            records = self._services.session_log.read(cursor.shard, delivery.place, 1)
            if records and records[0][0] == delivery.place and records[0][1] is not None:
                delivery.outgoing = Outgoing(records[0][1])
        return delivery.outgoing

    def message_of(self, delivery: SharedDelivery) -> Message:
        """The message of a delivery, ``NO_MESSAGE`` where the log has it no more."""
        outgoing = delivery.outgoing or self.load(delivery)
        return NO_MESSAGE if outgoing is None else outgoing.message
