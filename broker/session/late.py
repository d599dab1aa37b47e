"""QoS 0 messages that a connection cannot take yet, since its client reads too slowly.

Bounded in bytes. When it is full the oldest go, so that a slow client sees the latest values once it reads again.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from broker.codec.outgoing import Outgoing


class Late(NamedTuple):
    """One message, or several as the bytes they are sent as; ``packets`` says how many."""

    data: bytes
    packets: int
    outgoing: Outgoing | None = None
    """A message that has to be looked at once more when its turn comes; then ``data`` is empty."""
    retain: bool = False
    identifiers: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """What it counts for in the bound."""
        return len(self.data) if self.outgoing is None else self.outgoing.size_bytes


class LateQueue:
    """What waits, oldest first."""

    __slots__ = ("_items", "size_bytes")

    def __init__(self) -> None:
        self._items: deque[Late] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: Late, max_bytes: int) -> list[Late]:
        """Add one; what had to go for it, oldest first. The newest is kept whatever its size."""
        self._items.append(item)
        self.size_bytes += item.size_bytes
        gone = []
        while self.size_bytes > max_bytes and len(self._items) > 1:
            oldest = self._items.popleft()
            self.size_bytes -= oldest.size_bytes
            gone.append(oldest)
        return gone

    def take_all(self) -> list[Late]:
        """Everything that waits, which then waits no more."""
        items = list(self._items)
        self._items.clear()
        self.size_bytes = 0
        return items
