"""Sessions: listed, shown with their queued messages, purged, and those with the longest queues."""

from __future__ import annotations

from collections import Counter
from heapq import nlargest
from typing import Any, Final, Literal

from typing_extensions import TypedDict

from broker.admin import listing
from broker.admin.clients import end_session
from broker.admin.listing import Cursor, Selection
from broker.admin.session_rows import (
    OldClientId,
    SessionRow,
    SubscriptionRow,
    session_row,
    subscription_rows,
)
from broker.connection.hub import Hub
from broker.core.errors import NotFound
from broker.core.objects import Spec
from broker.session.session import Session

_SAMPLES: Final = 10


class QueueRow(TypedDict):
    """Messages that wait for a session: in memory, and in the session log where that has not been read yet."""

    queued: int
    queued_bytes: int
    queued_in_memory: int
    queued_in_log: int


class SessionView(SessionRow):
    """A session with its subscriptions and its queue. `log_next` is the next offset of the session log."""

    subscriptions: list[SubscriptionRow]
    queued_bytes: int
    queued_in_memory: int
    queued_in_log: int
    log_next: str


class LongQueue(QueueRow):
    """A session with a long queue."""

    clientid: str
    client_id: OldClientId
    username: str | None
    connected: bool
    durable: bool
    zone: str


class Purged(TypedDict):
    """Sessions that were purged, or would be: counts, their queued messages, and some of their identifiers."""

    sessions: int
    subscriptions: int
    inflight: int
    queued: int
    queued_bytes: int
    samples: list[str]
    dry_run: bool


class SessionService:
    """Lists, shows and purges sessions. Used on the event loop; what visits all sessions does so in slices."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def page(self, sort: str, limit: int, cursor: Cursor | None, **filters: Any) -> Spec:
        """A page of sessions; filters are those of a ``Selection``."""
        return await listing.page(
            self._hub.sessions, Selection(**filters), sort, limit, cursor, session_row
        )

    def show(self, client_id: str) -> SessionView:
        """One session with its subscriptions and what waits for it, in memory and in the log.

        Raises:
            NotFound: there is no such session.
        """
        session = self._hub.sessions.get(client_id)
        if session is None:
            raise NotFound("session", client_id)
        return {
            **session_row(session),
            "subscriptions": subscription_rows(session),
            **_queue(session),
            "log_next": str(self._hub.session_log.log_next),
        }

    async def purge(self, dry_run: bool, **filters: Any) -> Purged:
        """Delete the sessions that a ``Selection`` of these filters has, also those of connected clients where it
        includes them; these are disconnected (0x98). With ``dry_run`` only counts."""
        wanted = Selection(**filters)
        tests = wanted.tests(self._hub.context.clock.now_ns())
        counts = Counter[str]()
        samples: list[str] = []
        async for some in listing.slices(self._hub.sessions, prefix=wanted.prefix):
            meant = [session for session in some if all(test(session) for test in tests)]
            for session in meant:
                samples += [session.client_id] if len(samples) < _SAMPLES else []
                _add(counts, session)
                if not dry_run:
                    end_session(self._hub, session)
        if not dry_run and counts["sessions"]:
            await self._hub.context.writer.committed()
        return {
            "sessions": counts["sessions"],
            "subscriptions": counts["subscriptions"],
            "inflight": counts["inflight"],
            "queued": counts["queued"],
            "queued_bytes": counts["queued_bytes"],
            "samples": samples,
            "dry_run": dry_run,
        }

    async def delete(self, client_id: str) -> None:
        """Delete one session; raises ``NotFound``."""
        session = self._hub.sessions.get(client_id)
        if session is None:
            raise NotFound("session", client_id)
        end_session(self._hub, session)
        await self._hub.context.writer.committed()

    async def top(self, count: int, by: Literal["messages", "bytes"]) -> list[LongQueue]:
        """The sessions with the longest queues, in memory and in the log together, longest first."""
        best: list[tuple[int, str, tuple[Session, QueueRow]]] = []
        async for some in listing.slices(self._hub.sessions):
            rows = [(session, _queue(session)) for session in some if session.waiting_messages]
            placed = [
                (
                    row["queued"] if by == "messages" else row["queued_bytes"],
                    session.client_id,
                    (session, row),
                )
                for session, row in rows
            ]
            best = nlargest(count, [*best, *placed], key=lambda placed: placed[:2])
        return [
            {
                "clientid": session.client_id,
                "client_id": session.client_id,
                "username": session.client.username,
                "connected": not session.is_away,
                "durable": session.is_durable,
                "zone": session.zone,
                **row,
            }
            for _, _, (session, row) in best
        ]


def _queue(session: Session) -> QueueRow:
    in_log = session.log.messages if session.log is not None else 0
    return {
        "queued": session.waiting_messages,
        "queued_bytes": session.waiting_bytes,
        "queued_in_memory": session.waiting_messages - in_log,
        "queued_in_log": in_log,
    }


def _add(counts: Counter[str], session: Session) -> None:
    counts["sessions"] += 1
    counts["subscriptions"] += len(session.subscriptions)
    counts["inflight"] += len(session.window.inflight)
    counts["queued"] += session.waiting_messages
    counts["queued_bytes"] += session.waiting_bytes
