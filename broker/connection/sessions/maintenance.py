"""Removal of leftovers, a little in each tick: the loop never waits for it.

* The session log is trimmed up to the first message that the session furthest behind still needs. Positions only
  advance, so they need not all be read at one moment. If the log is above its limit, the sessions furthest behind lose
  their oldest messages.
* Records without a session are deleted: subscriptions and places of sessions that ended while something failed.
* Inbound state of clients that are long gone is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from broker.connection.context import Context
from broker.connection.sessions.inbounds import StoredInbounds
from broker.connection.sessions.log import SessionLog
from broker.connection.sharing.groups import ShareGroups
from broker.core.kinds import counted
from broker.observe.log import get_logger
from broker.session import backlog
from broker.session.inbound import Inbounds
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.storage.collection import Collection

# Sessions, keys or identifiers checked in one tick: some milliseconds.
_AT_ONCE: Final = 1000
_TRIM_NS: Final = 30 * 1_000_000_000
_SWEEP_NS: Final = 600 * 1_000_000_000
# Minimum seconds from the beginning of one round to that of the next.
_STALE_NS: Final = 120 * 1_000_000_000


# One kind of clearing, in steps; called again for each round, with the time.
Round = Callable[[int], Iterator[None]]


class Housekeeping:
    """Deletes leftovers, a little in each tick; ``tick`` is called twice a second.

    ``of_sessions`` are what the store keeps for durable sessions, by client identifier.
    """

    def __init__(
        self,
        context: Context,
        sessions: SessionRegistry,
        session_log: SessionLog,
        share_groups: ShareGroups,
        inbounds: StoredInbounds,
        of_sessions: Sequence[Collection[str, Any]],
    ) -> None:
        self._of_sessions = of_sessions
        self._context = context
        self._writer = context.writer
        self._sessions = sessions
        self._session_log = session_log
        self._share_groups = share_groups
        self._inbounds = inbounds
        self._trimming = _Job(self._trim, _TRIM_NS)
        self._jobs = [
            self._trimming,
            _Job(self._sweep_records, _SWEEP_NS),
            _Job(self._forget_stale, _STALE_NS),
        ]
        self.records_swept = 0
        """Records without a session that were deleted."""

    def tick(self) -> None:
        """Do a little of everything that is due."""
        if self._writer.failure is not None:  # while the store is opened again it cannot be read
            return
        now_ns = self._context.clock.now_ns()
        if self._session_log.is_over_bound:
            self._trimming.hurry(now_ns)
        for job in self._jobs:
            job.step(now_ns)

    def _trim(self, _now_ns: int) -> Iterator[None]:
        before = self._session_log.log_next
        after = ""
        least = self._session_log.offset_within_bound()
        while sessions := self._sessions.following(after, _AT_ONCE):
            after = sessions[-1].client_id
            durable = [session for session in sessions if session.is_durable]
            for session in durable:
                backlog.shed_below(session, least)
            before = min(before, min((self._low(session) for session in durable), default=before))
            if len(sessions) < _AT_ONCE:
                break
            yield
        before = min(max(before, least), self._share_groups.kept_from())
        for needed_from in self._session_log.needed_from:
            before = min(before, needed_from(least))
        self._session_log.trim(before)

    def _low(self, session: Session) -> int:
        return backlog.low_offset(session, self._session_log.log_next)

    def _sweep_records(self, _now_ns: int) -> Iterator[None]:
        for collection in self._of_sessions:
            after: str | None = None
            while client_ids := collection.keys_from(after, _AT_ONCE):
                for client_id in client_ids:
                    session = self._sessions.get(client_id)
                    if session is None or not session.is_durable:
                        collection.put(client_id, None)
                        self.records_swept += 1
                after = client_ids[-1]
                yield

    def _forget_stale(self, now_ns: int) -> Iterator[None]:
        for number, (client_id, inbound) in enumerate(list(self._inbounds.items()), 1):
            if (
                inbound.is_stale(now_ns)
                and not inbound.open_qos2
                and self._sessions.get(client_id) is None
            ):
                self._inbounds.forget(client_id)
            if number % _AT_ONCE == 0:
                yield


class _Job:
    """A round that is under way, or when the next one begins."""

    __slots__ = ("_begin", "_due_ns", "_every_ns", "_steps")

    def __init__(self, begin: Round, every_ns: int) -> None:
        self._begin = begin
        self._every_ns = every_ns
        self._due_ns = 0
        self._steps: Iterator[None] | None = None

    def hurry(self, now_ns: int) -> None:
        """Begin the next round now, unless one is under way."""
        self._due_ns = min(self._due_ns or now_ns, now_ns)

    def step(self, now_ns: int) -> None:
        """One step of the round under way; begin one that is due."""
        if self._steps is None:
            if not self._due_ns:
                self._due_ns = now_ns + self._every_ns  # nothing to clear at the start
            if now_ns < self._due_ns:
                return
            self._due_ns = now_ns + self._every_ns
            self._steps = self._begin(now_ns)
        if next(self._steps, _END) is _END:
            self._steps = None


_END: Final = object()


_log = get_logger(__name__)

ALARM: Final = "session_queue_high"
INBOUND_ALARM: Final = "inbound_memory_full"
# Part of the limit below which that alarm ends: what each client frees, the others may fill.
_FREE_AGAIN: Final = 0.9
_WATCHED_AT_ONCE: Final = 2000
_TOLD: Final = 10


class Sums(NamedTuple):
    """Messages that wait, of all sessions."""

    messages: int = 0
    size_bytes: int = 0
    inflight: int = 0


class QueueWatch:
    """Watches the queues of all sessions, and what their clients may send again. ``tick`` is called twice a second."""

    def __init__(self, context: Context, sessions: SessionRegistry, inbounds: Inbounds) -> None:
        self._context = context
        self._sessions = sessions
        self._inbounds = inbounds
        metrics = context.metrics
        self._is_inbound_full = False
        self._alarms = context.alarms
        self.sums = Sums()
        self._due_s = 0.0
        self._walk: Iterator[None] | None = None
        metrics.gauge(
            "queued_messages", lambda: self.sums.messages, "messages that wait for sessions"
        )
        metrics.gauge(
            "queued_bytes", lambda: self.sums.size_bytes, "bytes of messages that wait for sessions"
        )
        metrics.gauge(
            "inflight_messages",
            lambda: self.sums.inflight,
            "messages sent and not yet acknowledged",
        )

    def tick(self) -> None:
        """Look at some sessions; start from the first when that is due."""
        self._look_at_inbounds()
        now_s = self._context.now_s
        if self._walk is None and now_s >= self._due_s:
            self._due_s = now_s + self._context.settings.queue_watch_interval
            self._walk = self._look_at_all()
        if self._walk is not None and next(self._walk, _END) is _END:
            self._walk = None

    def _look_at_inbounds(self) -> None:
        used = self._inbounds.connected.bytes
        most = self._inbounds.max_connected_bytes
        self._is_inbound_full = used > most * (_FREE_AGAIN if self._is_inbound_full else 1)
        if self._alarms is not None:
            text = (
                f"messages that connected clients may resend take {used:,} of {most:,} bytes "
                "(mqtt.max_inbound_bytes_connected): new QoS 2 messages are refused, QoS 1 duplicates may pass"
            )
            self._alarms.set(
                INBOUND_ALARM, self._is_inbound_full, text, used_bytes=used, max_bytes=most
            )

    def _look_at_all(self) -> Iterator[None]:
        messages = size_bytes = inflight = 0
        high: list[Session] = []
        watermark = self._context.settings.queue_high_watermark
        for number, session in enumerate(self._sessions, 1):
            waiting_bytes = session.waiting_bytes
            messages += session.waiting_messages
            size_bytes += waiting_bytes
            inflight += len(session.window.inflight)
            if watermark and waiting_bytes > watermark:
                high.append(session)
            if number % _WATCHED_AT_ONCE == 0:
                yield
        self.sums = Sums(messages, size_bytes, inflight)
        self._tell(high)

    def _tell(self, high: list[Session]) -> None:
        high.sort(key=lambda session: session.waiting_bytes, reverse=True)
        for session in high[:_TOLD]:
            _log.warning(
                "session.queue_high",
                client_id=session.client_id,
                messages=session.waiting_messages,
                size_bytes=session.waiting_bytes,
                inflight=len(session.window.inflight),
            )
        if self._alarms is not None:
            most_bytes = self._context.settings.queue_high_watermark
            self._alarms.set(
                ALARM,
                bool(high),
                f"more than {most_bytes:,} bytes wait for {counted(len(high), 'session')}",
                sessions=len(high),
                largest={session.client_id: session.waiting_bytes for session in high[:_TOLD]},
            )
