"""Messages that wait for one subscriber with a full queue and are not acknowledged to their publishers yet."""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Acknowledgement(Protocol):
    """An acknowledgement that waits for a subscriber, or for several."""

    def let_go(self) -> None:
        """One of them has room."""


class Withheld(deque[tuple[Acknowledgement, int]]):
    """Acknowledgements that wait for one subscriber, oldest first, with the sizes of their messages."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def add(self, acknowledgement: Acknowledgement, size_bytes: int) -> None:
        """Withhold one."""
        self.append((acknowledgement, size_bytes))
        self.size_bytes += size_bytes

    def let_go(self) -> int:
        """Let the oldest go; the size of its message."""
        acknowledgement, size_bytes = self.popleft()
        self.size_bytes -= size_bytes
        acknowledgement.let_go()
        return size_bytes
