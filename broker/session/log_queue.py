"""Messages of the session log that wait for one session: their number, bytes, and the offsets of the oldest.

A session that takes messages as they are committed has nothing waiting there. When it is away or its queue is full it
falls *behind*, and is refilled from the log at ``next_offset``.

The log holds each message once, for all who wait for it, so a session cannot drop one by removing it: it skips it
when it next reads. Marks along the way say where it may begin to read once all before them has been passed over, so
that the log can be trimmed without being read. Counts are exact; bytes are so at the marks.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from broker.core.memory import NOTHING, filled
from broker.session.delivery import Delivery

# Part of the waiting messages that a new mark covers, so that the oldest marks cover few messages.
_PART: Final = 16


class _Mark:
    """Messages that wait from ``offset`` on, up to the next mark."""

    __slots__ = ("messages", "offset", "size_bytes")

    def __init__(self, offset: int, messages: int, size_bytes: int) -> None:
        self.offset = offset
        self.messages = messages
        self.size_bytes = size_bytes


class Shed(NamedTuple):
    """Messages in the log that were passed over: ``messages`` from ``begin`` on, after ``skipped`` that were before."""

    messages: int
    begin: int
    skipped: int
    moved_on: bool
    """True if the session must read on at another offset."""


class LostRecords(NamedTuple):
    """Records that were appended to the log and could not be stored: those behind them get their offsets."""

    first_offset: int
    number: int

    def moved(self, offset: int) -> int:
        """An offset where the log was to continue, as it is without them."""
        return min(offset, max(self.first_offset, offset - self.number))


class LogQueue:
    """Messages in the session log that wait for one session.

    ``to_skip`` counts messages that must be passed over, from where the session reads on.
    """

    __slots__ = ("_marks", "is_behind", "messages", "next_offset", "size_bytes", "to_skip")

    def __init__(self, next_offset: int = 0, *, is_behind: bool = False) -> None:
        self.next_offset = next_offset
        self.is_behind = is_behind
        self._marks: deque[_Mark] = NOTHING
        self.messages = self.size_bytes = self.to_skip = 0

    def fall_behind(self, offset: int) -> None:
        """The session takes nothing from this offset on as it is committed."""
        self.is_behind = True
        self.next_offset = offset

    def read_on(
        self, deliveries: list[Delivery], next_offset: int, *, is_end: bool
    ) -> list[Delivery]:
        """The session's messages below ``next_offset`` were read; ``is_end`` means that there are no more.

        Returns:
            Those that were not to be passed over: they wait in the log no more.
        """
        skipped = min(self.to_skip, len(deliveries))
        self.to_skip -= skipped
        wanted = deliveries[skipped:]
        self.next_offset = next_offset
        self.is_behind = not is_end
        if is_end:
            self.clear()
        else:
            self.take(len(wanted), sum(delivery.size_bytes for delivery in wanted))
        return wanted

    def add(self, offset: int, size_bytes: int, messages: int = 1) -> None:
        """A message was committed at ``offset``, or several from there on, behind all others."""
        self.messages += messages
        self.size_bytes += size_bytes
        if self._marks and self._marks[-1].messages * _PART < self.messages:
            last = self._marks[-1]
            last.messages += messages
            last.size_bytes += size_bytes
        else:
            self._marks = filled(self._marks)
            self._marks.append(_Mark(offset, messages, size_bytes))

    def put_back(self, offset: int, messages: int, size_bytes: int) -> None:
        """Messages from ``offset`` on wait again, before all others; no message had to be passed over."""
        self.next_offset = offset
        self._marks = filled(self._marks)
        self._marks.appendleft(_Mark(offset, messages, size_bytes))
        self.messages += messages
        self.size_bytes += size_bytes

    def take(self, messages: int, size_bytes: int) -> None:
        """The oldest were read and wait no more."""
        left = messages
        while left > 0 and self._marks:
            first = self._marks[0]
            if first.messages > left:
                first.messages -= left
                first.size_bytes = max(0, first.size_bytes - size_bytes)
                break
            left -= first.messages
            size_bytes = max(0, size_bytes - first.size_bytes)
            self._marks.popleft()
        self._count_anew()

    def clear(self) -> None:
        """Forget all waiting messages."""
        self._marks = NOTHING
        self.messages = self.size_bytes = self.to_skip = 0

    def shed(self, max_messages: int, max_bytes: int) -> Shed:
        """Pass over the oldest until no more waits than that, but for the newest message."""
        shed = 0
        begin = self.next_offset
        skipped = self.to_skip
        while self.messages > max(max_messages, 1) or (
            self.size_bytes > max_bytes and self.messages > 1
        ):
            first = self._marks[0]
            over = self.messages - max_messages
            if len(self._marks) == 1 or 0 < over < first.messages:
                count = min(max(over, 1), first.messages - 1)
                if count <= 0:
                    break
                self._pass_over(first, count)
            else:
                count = first.messages
                self._drop_first()
            shed += count
        return Shed(shed, begin, skipped, self.next_offset != begin)

    def shed_below(self, offset: int) -> Shed:
        """Pass over all that waits below ``offset``, and what is before the mark after it."""
        shed = 0
        begin = self.next_offset
        skipped = self.to_skip
        while len(self._marks) > 1 and self._marks[0].offset < offset:
            shed += self._marks[0].messages
            self._drop_first()
        if self._marks and self._marks[0].offset < offset:
            shed += self._marks[0].messages
            self.clear()
            self.next_offset = offset
        return Shed(shed, begin, skipped, self.next_offset != begin)

    def _drop_first(self) -> None:
        """Pass over all up to the second mark, and read on there."""
        self._marks.popleft()
        self.to_skip = 0
        self._count_anew()
        self.next_offset = self._marks[0].offset

    def _pass_over(self, mark: _Mark, count: int) -> None:
        """Pass over some of a mark's messages, which count as of equal size."""
        share = mark.size_bytes * count // mark.messages
        mark.messages -= count
        mark.size_bytes -= share
        self.messages -= count
        self.size_bytes -= share
        self.to_skip += count

    def _count_anew(self) -> None:
        self.messages = sum(mark.messages for mark in self._marks)
        self.size_bytes = sum(mark.size_bytes for mark in self._marks)
