"""Sessions: listed, shown with what waits for them, purged, and those with the longest queues."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any, Final, Literal

from broker.admin import listing
from broker.admin.clients import connection_of
from broker.admin.listing import Cursor, Selection
from broker.admin.session_rows import session_row, subscription_row
from broker.connection.hub import Hub
from broker.core import reason
from broker.core.errors import NotFound
from broker.core.objects import Spec
from broker.session.session import Session

MAX_TOP: Final = 1000
_SAMPLES: Final = 10


class SessionService:
    """Lists, shows and purges sessions. Used on the event loop; what visits all sessions does so in slices."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def page(self, wanted: Selection, order: str, limit: int, cursor: Cursor | None) -> Spec:
        """A page of sessions."""
        registry = self._hub.sessions
        sessions, following = await listing.page(registry, wanted, order, limit, cursor)
        total = len(registry) if wanted.is_everything else None
        return {"items": [session_row(session) for session in sessions], "next": following, "total": total}

    def show(self, client_id: str) -> Spec:
        """One session with its subscriptions and what waits for it, in memory and in the log.

        Raises:
            NotFound: there is no such session.
        """
        session = self._hub.sessions.get(client_id)
        if session is None:
            raise NotFound("session", client_id)
        return {
            **session_row(session),
            "subscriptions": [subscription_row(session, item) for _, item in sorted(session.subscriptions.items())],
            **_queue(session),
            "log_next": str(self._hub.session_log.log_next),
        }

    async def purge(self, wanted: Selection, *, dry_run: bool) -> Spec:
        """Forget the sessions that are meant, also connected ones where the selection does not say otherwise; their
        clients are told (0x98). What it would be, with ``dry_run``."""
        counts = {"sessions": 0, "subscriptions": 0, "inflight": 0, "queued": 0, "queued_bytes": 0}
        samples: list[str] = []
        tests = wanted.tests()
        async for some in listing.slices(self._hub.sessions, prefix=wanted.prefix):
            meant = [session for session in some if all(test(session) for test in tests)]
            for session in meant:
                samples += [session.client_id] if len(samples) < _SAMPLES else []
                _add(counts, session)
                if not dry_run:
                    self._end(session)
        if not dry_run and counts["sessions"]:
            await self._hub.context.writer.committed()
        return {**counts, "samples": samples, "dry_run": dry_run}

    async def delete(self, client_id: str) -> None:
        """Forget one session; raises ``NotFound``."""
        session = self._hub.sessions.get(client_id)
        if session is None:
            raise NotFound("session", client_id)
        self._end(session)
        await self._hub.context.writer.committed()

    async def top(self, count: int, by: Literal["messages", "bytes"]) -> Spec:
        """The sessions with the longest queues, in memory and in the log together, longest first."""
        best: list[tuple[int, str, Any]] = []
        async for some in listing.slices(self._hub.sessions):
            rows = [(session, _queue(session)) for session in some if session.waiting_messages]
            member = "queued" if by == "messages" else "queued_bytes"
            placed = [(row[member], session.client_id, (session, row)) for session, row in rows]
            best = nlargest(count, [*best, *placed], key=lambda one: one[:2])
        items = [
            {
                "client_id": session.client_id,
                "username": session.client.username,
                "connected": not session.is_away,
                "durable": session.is_durable,
                "zone": session.zone,
                **row,
            }
            for _, _, (session, row) in best
        ]
        return {"items": items, "next": None, "total": len(items), "total_is_estimate": False}

    def _end(self, session: Session) -> None:
        connection = connection_of(session)
        if connection is not None:
            connection.disconnect(reason.ADMINISTRATIVE_ACTION, "kicked")
        if not session.is_ended:
            self._hub.life.end_session(session)


def _queue(session: Session) -> Mapping[str, int]:
    """What waits for a session: in memory, and in the log where that has not been read yet."""
    in_log = session.log.messages if session.log is not None else 0
    return {
        "queued": session.waiting_messages,
        "queued_bytes": session.waiting_bytes,
        "queued_in_memory": session.waiting_messages - in_log,
        "queued_in_log": in_log,
    }


def _add(counts: dict[str, int], session: Session) -> None:
    counts["sessions"] += 1
    counts["subscriptions"] += len(session.subscriptions)
    counts["inflight"] += len(session.window.inflight)
    counts["queued"] += session.waiting_messages
    counts["queued_bytes"] += session.waiting_bytes
