"""Messages that another cell has not taken, and the acknowledgements of their publishers that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from broker.codec.outgoing import Outgoing
from broker.connection.withholding import Withholding
from broker.core.receipt import Acknowledgement

# Live messages that the other cell has not taken: from half of this on publishers wait.
MAX_TRANSITS: Final = 8192
MAX_TRANSIT_BYTES: Final = 4 * 1024 * 1024


class Transit(msgspec.Struct, eq=False, gc=False):
    """A message of QoS 1 or 2 that the other cell has not taken. A struct, since making one is a third of the time."""

    withholding: Withholding
    packet: bytes
    is_v5: bool = True
    """True if the packet is of version 5, False if it is of those below."""
    outgoing: Outgoing | None = None
    """The message while its record is not committed."""
    is_corked: bool = False
    """True if it may not be sent yet."""
    _acknowledgement: Acknowledgement | None = None
    _size_bytes: int = 0
    _is_over: bool = False

    def add(self, acknowledgement: Acknowledgement, size_bytes: int) -> None:
        """Withhold the acknowledgement of the message until it is taken."""
        self._acknowledgement = acknowledgement
        self._size_bytes = size_bytes
        if self._is_over:
            self.end()

    def end(self) -> None:
        """The other cell has it, or never will."""
        self._is_over = True
        acknowledgement = self._acknowledgement
        if acknowledgement is not None:
            self._acknowledgement = None
            self.withholding.let_go(acknowledgement, self._size_bytes)


class Transits:
    """The live messages of QoS 1 that were sent and not taken, in order, by position."""

    def __init__(self) -> None:
        self._waiting: deque[Transit] = deque()
        self._first = 0
        """Position of the first that waits."""
        self._held: dict[int, Transit] = {}
        """By position, those that arrived and wait for slow subscribers."""
        self._is_broken = False
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._held)

    def add(self, transit: Transit) -> bool:
        """A message is sent; returns whether so many are that publishers should wait."""
        self._waiting.append(transit)
        size_bytes = self.size_bytes = self.size_bytes + len(transit.packet)
        count = len(self._waiting) + len(self._held)
        return count * 2 > MAX_TRANSITS or size_bytes * 2 > MAX_TRANSIT_BYTES

    def taken(self, before: int, held: Sequence[int], released: Sequence[int]) -> bool:
        """End those that the other cell has; False if it names some that were never sent."""
        count = before - self._first
        if not 0 <= count <= len(self._waiting):
            return False
        keeps = set(held)
        take = self._waiting.popleft
        for position in range(self._first, before):
            transit = take()
            self.size_bytes -= len(transit.packet)
            transit.packet = b""
            if keeps and position in keeps:
                self._held[position] = transit
            else:
                transit.end()
        self._first = before
        for position in released:
            if (transit_held := self._held.pop(position, None)) is not None:
                transit_held.end()
        return True

    def resume(self, arrived: int, held: Sequence[int]) -> list[Transit] | None:
        """Messages to send again to a cell at which so many arrived; None if it cannot be."""
        if self._is_broken:
            self._is_broken = False
            self._first = arrived
        if not self.taken(arrived, held, ()):
            return None
        keeps = set(held)
        self.taken(arrived, (), [position for position in self._held if position not in keeps])
        return [transit for transit in self._waiting if not transit.is_corked]

    def end(self) -> int:
        """The other cell has ended, or was away for too long; returns how many it did not get."""
        waiting = self._waiting
        held = self._held
        self._waiting = deque()
        self._held = {}
        self.size_bytes = 0
        self._is_broken = True
        for transit in (*waiting, *held.values()):
            transit.end()
        return len(waiting)
