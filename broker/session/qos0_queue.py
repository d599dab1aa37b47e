"""QoS 0 messages that a connection cannot take yet, since its client reads too slowly or older messages wait for it.

Bounded in messages and bytes. When it is full the oldest go, so that a slow client sees the latest values once it reads
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

from broker.codec.framing import plain_publishes
from broker.codec.outgoing import Outgoing
from broker.core.memory import NOTHING, filled


class Qos0Item(NamedTuple):
    """One message, or several as the bytes they are sent as; ``packets`` says how many."""

    data: bytes
    packets: int
    outgoing: Outgoing | None = None
    """Message that must be checked again when its turn comes; then ``data`` is empty."""
    retain: bool = False
    identifiers: tuple[int, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Size in the bound."""
        return len(self.data) if self.outgoing is None else self.outgoing.size_bytes

    def single(self) -> Iterator[tuple[str, Qos0Item]]:
        """The messages one by one, with their topics."""
        if self.outgoing is not None:
            yield self.outgoing.message.topic, self
            return
        for position, topic, _, stop in plain_publishes(self.data, is_v5=False):
            yield topic.decode(), Qos0Item(self.data[position:stop], 1)


class Qos0Queue:
    """Waiting packets, oldest first, each with its turn: the number of messages that go before it."""

    __slots__ = ("_items", "messages", "size_bytes")

    def __init__(self) -> None:
        self._items: deque[tuple[float, Qos0Item]] = NOTHING
        self.messages = self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def add(self, turn: int, item: Qos0Item, max_messages: int, max_bytes: int) -> list[Qos0Item]:
        """Add one behind ``turn`` other messages; what had to go for it, oldest first. The newest is kept whatever its
        size.

        Packets that came as one piece go as one, so that there may be fewer messages by a piece than there might.
        """
        self._append(turn, item)
        gone = []
        while (self.size_bytes > max_bytes or self.messages > max_messages) and len(
            self._items
        ) > 1:
            gone.append(self._pop())
        return gone

    def take(self, turn: float = inf) -> list[Qos0Item]:
        """Remove and return packets up to a turn, or all."""
        items = self._items
        taken = list[Qos0Item]()
        while items and items[0][0] <= turn:
            taken.append(self._pop())
        if not items:
            self._items = NOTHING
        return taken

    def remove(self, is_lost: Callable[[str], bool]) -> list[Qos0Item]:
        """Take out the messages whose topic is lost; the others keep their turns."""
        items = self._items
        gone = list[Qos0Item]()
        self._items = NOTHING
        self.messages = 0
        self.size_bytes = 0
        for turn, item in items:
            for topic, packet in item.single():
                if is_lost(topic):
                    gone.append(packet)
                else:
                    self._append(turn, packet)
        return gone

    def _append(self, turn: float, item: Qos0Item) -> None:
        self._items = filled(self._items)
        self._items.append((turn, item))
        self.messages += item.packets
        self.size_bytes += item.size_bytes

    def _pop(self) -> Qos0Item:
        _, oldest = self._items.popleft()
        self.messages -= oldest.packets
        self.size_bytes -= oldest.size_bytes
        return oldest
