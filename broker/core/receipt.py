"""The acknowledgement that a publisher will get of a message, while the message passes its stages, and the full queues
that acknowledgements wait for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

# An acknowledgement that waits for one subscriber or several; called each time that one of them has room.
Acknowledgement = Callable[[], None]


class Withheld(deque[tuple[Acknowledgement, int]]):
    """Acknowledgements that wait for one subscriber whose queue is full, oldest first, with the sizes of their
    messages."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        super().__init__()
        self.size_bytes = 0

    def add(self, acknowledgement: Acknowledgement, size_bytes: int) -> None:
        """Withhold one."""
        self.append((acknowledgement, size_bytes))
        self.size_bytes += size_bytes


class Withholder(Protocol):
    """A subscriber's queue that acknowledgements wait for."""

    def add(self, acknowledgement: Acknowledgement, size_bytes: int) -> None:
        """Withhold one."""


# A full queue that took a message, and the message's size there.
FullQueue = tuple[Withholder, int]


class Receipt(msgspec.Struct, eq=False, gc=False):
    """The right of a message to wait: a full queue takes it, and its publisher is acknowledged once there is room.

    A message has a receipt while its publisher waits for an acknowledgement. What is published in its course, by a rule
    for instance, shares the receipt. A message without one (of a will, of QoS 0) is dropped by a full queue.
    """

    held_bytes: int = 0
    """Bytes of earlier messages of the same publisher whose acknowledgements wait."""
    full_queues: list[FullQueue] | tuple[()] = ()
    is_again: bool = False
    """True if the message was published before and could not be committed: who gets messages before the commit has
    it."""
    is_over: bool = False
    """True if a queue did not take the message, since too much is withheld already."""
    is_closed: bool = False
    """True if the message has passed its stages: nothing waits with it any longer."""

    def wait_for(self, queue: Withholder, size_bytes: int) -> None:
        """Note a full queue that took the message."""
        if isinstance(self.full_queues, list):
            self.full_queues.append((queue, size_bytes))
        else:
            self.full_queues = [(queue, size_bytes)]

    def close(self) -> None:
        """End the stages of the message; what is still queued with it keeps nothing alive."""
        self.is_closed = True
        self.full_queues = ()


def again() -> Receipt:
    """The receipt of a message that no publisher waits for, and that is published again since it could not be
    committed."""
    return Receipt(is_again=True, is_closed=True)
