"""Sessions by client identifier, and when those that are away have something due: their will or their end."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice, takewhile
from typing import Final

from sortedcontainers import SortedList

from broker.session.session import Session

_STALE_FACTOR: Final = 4
# Maximum number of stale entries in addition to a multiple of the sessions.
_SPARE: Final = 1024


class SessionRegistry:
    """All sessions of the node, connected or away."""

    def __init__(self) -> None:
        self.by_client_id: dict[str, Session] = {}
        self._in_order: SortedList[str] = SortedList()
        self._unsorted: set[str] = set()
        """Clients added since the order was last requested: clients come faster than requests for the order."""
        self._due: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.by_client_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self.by_client_id.values()))

    def get(self, client_id: str) -> Session | None:
        """The session of a client identifier."""
        return self.by_client_id.get(client_id)

    def following(self, client_id: str, count: int, prefix: str = "") -> list[Session]:
        """The next sessions behind an identifier, in the order of identifiers; only those that begin with a prefix."""
        if self._unsorted:
            self._in_order.update(self._unsorted)
            self._unsorted.clear()
        names_from = self._in_order.irange(
            max(client_id, prefix), inclusive=(client_id < prefix or not client_id, True)
        )
        fitting = (
            takewhile(lambda name: name.startswith(prefix), names_from) if prefix else names_from
        )
        return [self.by_client_id[name] for name in islice(fitting, count)]

    def add(self, session: Session) -> None:
        """Take a new session."""
        if session.client_id not in self.by_client_id:
            self._unsorted.add(session.client_id)
        self.by_client_id[session.client_id] = session

    def remove(self, session: Session) -> None:
        """Forget a session that has ended."""
        if self.by_client_id.get(session.client_id) is session:
            del self.by_client_id[session.client_id]
            if session.client_id in self._unsorted:
                self._unsorted.remove(session.client_id)
            else:
                self._in_order.remove(session.client_id)

    def schedule(self, session: Session) -> None:
        """Remember when a session that is away has something due."""
        for at_ns in (session.will_at_ns, session.ends_at_ns):
            if at_ns:
                heappush(self._due, (at_ns, session.client_id))

        if len(self._due) > _SPARE + _STALE_FACTOR * len(self.by_client_id):
            self._forget_stale()

    def take_due(self, now_ns: int, limit: int) -> list[Session]:
        """Sessions that are away and whose will or end is due now, at most ``limit``: with fewer, there are no more."""
        due: dict[Session, None] = {}
        while self._due and self._due[0][0] <= now_ns and len(due) < limit:
            _, client_id = heappop(self._due)
            session = self.by_client_id.get(client_id)
            if session is not None and session.is_away:
                due[session] = None
        return list(due)

    def _forget_stale(self) -> None:
        """Entries of sessions that came back: who reconnects every minute would leave one each time, for a week."""
        self._due = [
            (at_ns, session.client_id)
            for session in self.by_client_id.values()
            if session.is_away
            for at_ns in (session.will_at_ns, session.ends_at_ns)
            if at_ns
        ]
        heapify(self._due)
