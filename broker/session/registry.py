"""Sessions by client identifier, and when those that are away have something due: their will or their end."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from broker.session.session import Session


class SessionRegistry:
    """All sessions of the node, connected or away."""

    def __init__(self) -> None:
        self.by_client_id: dict[str, Session] = {}
        self._due: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.by_client_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self.by_client_id.values()))

    def get(self, client_id: str) -> Session | None:
        """The session of a client identifier."""
        return self.by_client_id.get(client_id)

    def add(self, session: Session) -> None:
        """Take a new session."""
        self.by_client_id[session.client_id] = session

    def remove(self, session: Session) -> None:
        """Forget a session that has ended."""
        if self.by_client_id.get(session.client_id) is session:
            del self.by_client_id[session.client_id]

    def schedule(self, session: Session) -> None:
        """Remember when a session that is away has something due."""
        for at_ns in (session.will_at_ns, session.ends_at_ns):
            if at_ns:
                heappush(self._due, (at_ns, session.client_id))

    def take_due(self, now_ns: int) -> list[Session]:
        """Sessions that are away and whose will or end is due now."""
        due: list[Session] = []
        while self._due and self._due[0][0] <= now_ns:
            _, client_id = heappop(self._due)
            session = self.by_client_id.get(client_id)
            if session is not None and session.is_away and session not in due:
                due.append(session)
        return due
