"""The last records of a durable queue as its reader wants them: a reader who keeps up reads nothing from disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

_MAX_RECORDS: Final = 4096
_MAX_BYTES: Final = 2 << 20
"""Of payloads; what the values take in memory is that and some hundred bytes each."""


class QueueTail:
    """Values of the records up to the last that is committed, as many as the bounds allow: the oldest go first."""

    def __init__(self, end: int, max_records: int = _MAX_RECORDS, max_bytes: int = _MAX_BYTES) -> None:
        self._max_records, self._max_bytes = max_records, max_bytes
        self._held: deque[tuple[object, int]] = deque()
        self._size_bytes = 0
        self._end = end

    @property
    def first_offset(self) -> int:
        """Of the oldest value; the end of the queue where there is none."""
        return self._end - len(self._held)

    def extend(self, first_offset: int, added: Sequence[tuple[object, int]], end: int) -> None:
        """Records from ``first_offset`` to ``end`` are committed; ``added`` has a value and size for each, or else none
        of them is kept."""
        held = self._held
        if len(added) != end - first_offset or first_offset != self._end:
            held.clear()
            self._size_bytes = 0
        self._end = end
        if len(added) == end - first_offset:
            held.extend(added)
            self._size_bytes += sum([size for _, size in added])
        while len(held) > self._max_records or self._size_bytes > self._max_bytes:
            self._size_bytes -= held.popleft()[1]

    def take(self, from_offset: int, most: int) -> list[tuple[int, object]]:
        """The values from an offset on, at most so many, with their offsets; empty where they are on disk only. They
        are given once, and those before them no more."""
        held, before = self._held, from_offset - self.first_offset
        if before < 0:
            return []
        popleft, freed = held.popleft, 0
        for _ in range(min(before, len(held))):
            freed += popleft()[1]
        found: list[tuple[int, object]] = []
        for offset in range(from_offset, from_offset + min(most, len(held))):
            value, size = popleft()
            found.append((offset, value))
            freed += size
        self._size_bytes -= freed
        return found
