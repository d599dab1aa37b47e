"""Messages that wait in memory for the members of a share group, and the bound above which publishers wait as well."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from broker.connection.sharing.cursors import Cursor
from broker.connection.sharing.settings import SharedSettings
from broker.session.delivery import SharedDelivery

# Messages in memory from which on publishers wait as well: few enough to be given out before their wait ends.
_CROWDED: Final = 500


class GroupQueue:
    """Messages given to no member yet are ``fresh``, in order; what was is ``returned``, a heap, and goes first. Both,
    and what is in the lanes of members, is counted in ``held`` and ``held_bytes``."""

    __slots__ = (
        "_crowded", "_drained", "_is_crowded", "_relieved", "_settings", "fresh", "held", "held_bytes", "returned",
    )  # fmt: skip

    def __init__(
        self,
        settings: SharedSettings,
        crowded: Callable[[], None],
        relieved: Callable[[], None],
        drained: Callable[[], None],
    ) -> None:
        self.fresh: deque[SharedDelivery] = deque()
        self.returned: list[SharedDelivery] = []
        self.held = self.held_bytes = 0
        self._settings = settings
        self._crowded = crowded
        self._relieved = relieved
        self._drained = drained
        self._is_crowded = False

    def add(self, delivery: SharedDelivery) -> None:
        """Let a message wait for the first member that has room."""
        self.hold(delivery)
        self.fresh.append(delivery)

    def give_back(self, delivery: SharedDelivery) -> None:
        """A member did not settle this one: others are to have it."""
        self.hold(delivery)
        heappush(self.returned, delivery)

    def take_lane(self, lane: Iterable[SharedDelivery]) -> None:
        """Let messages that waited for one member wait for any."""
        for delivery in lane:
            heappush(self.returned, delivery)

    def take_up(self, delivery: SharedDelivery) -> None:
        """Take out a returned message that a restored session has."""
        self.returned.remove(delivery)
        heapify(self.returned)
        self.held -= 1

    def hold(self, delivery: SharedDelivery) -> None:
        """Count a message that waits."""
        self.held += 1
        if delivery.outgoing is not None:
            self.held_bytes += delivery.outgoing.size_bytes

    def let_go(self, delivery: SharedDelivery) -> None:
        """Count one that waits no more."""
        self.held -= 1
        if not self.held:
            self.held_bytes = 0  # what a restart left had no size when it began to wait
        elif delivery.outgoing is not None:
            self.held_bytes = max(self.held_bytes - delivery.outgoing.size_bytes, 0)
        self._drained()
        if self._is_crowded:
            self._check_relief()

    def first(self) -> SharedDelivery | None:
        """Next message for any member."""
        if self.returned:
            return self.returned[0]
        return self.fresh[0] if self.fresh else None

    def pop_first(self) -> SharedDelivery:
        """Take that out, still counted."""
        return heappop(self.returned) if self.returned else self.fresh.popleft()

    def take_all(self) -> list[SharedDelivery]:
        """All messages that wait for any member, in order."""
        if not (self.fresh or self.returned):
            return []
        taken = sorted([*self.returned, *self.fresh])
        self.returned.clear()
        self.fresh.clear()
        for delivery in taken:
            self.let_go(delivery)
        return taken

    def rest(self) -> None:
        """No one is here: what has not been given out is in the log, and need not be in memory."""
        kept = [delivery for delivery in self.fresh if not isinstance(delivery.cursor, Cursor)]
        for delivery in self.fresh:
            cursor = delivery.cursor
            if isinstance(cursor, Cursor):
                self.let_go(delivery)
                if not cursor.is_behind or delivery.place < cursor.next_offset:
                    cursor.is_behind = True
                    cursor.next_offset = delivery.place
        self.fresh = deque(kept)

    def clear(self) -> None:
        """Discard everything."""
        self.fresh.clear()
        self.returned.clear()
        self.held = self.held_bytes = 0
        self.relieve()

    def room(self, share: float) -> tuple[float, float]:
        """Number of messages and bytes by which the queue is below this share of the bound."""
        settings = self._settings
        return (
            settings.max_queued_messages * share - self.held,
            settings.max_queued_bytes * share - self.held_bytes,
        )

    def has_too_much(self) -> bool:
        """True if the oldest has to go; publishers wait a little before that."""
        limit = self._settings.max_queued_messages
        limit_bytes = self._settings.max_queued_bytes
        if self.held > min(limit // 2, _CROWDED) or self.held_bytes * 2 > limit_bytes:
            self._is_crowded = True
            self._crowded()
        return self.held > limit or (self.held_bytes > limit_bytes and self.held > 1)

    def _check_relief(self) -> None:
        settings = self._settings
        few = min(settings.max_queued_messages, 2 * _CROWDED) // 4
        if self.held <= few and self.held_bytes * 4 <= settings.max_queued_bytes:
            self.relieve()

    def relieve(self) -> None:
        """Publishers need not wait for this group."""
        self._is_crowded = False
        self._relieved()
