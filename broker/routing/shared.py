"""Share groups, MQTT 5.0 section 4.8.2: each message to one member."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class ShareGroup(Generic[T]):
    """The members of one group name and filter, taken in turn."""

    __slots__ = ("_next", "members")

    def __init__(self) -> None:
        self.members: dict[str, T] = {}
        self._next = 0

    def pick(self, can_take: Callable[[T], bool]) -> T | None:
        """The next member that can take a message now, else the next member at all; None when there is none."""
        members = list(self.members.values())
        count = len(members)
        if not count:
            return None
        start = self._next % count
        self._next = start + 1
        for step in range(count):
            member = members[(start + step) % count]
            if can_take(member):
                self._next = start + step + 1
                return member
        return members[start]
