"""What waits for all sessions together, and who has more waiting than is healthy.

A walk over all sessions, some in each tick, gives the sums that metrics show: they are as old as the walk, seconds at
most. A session above ``queue_high_watermark`` is told of in one log line a walk, and there is an alarm while there is
any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.connection.context import Context
from broker.observe.alarms import Alarms
from broker.observe.log import get_logger
from broker.session.registry import SessionRegistry
from broker.session.session import Session

_log = get_logger(__name__)

ALARM: Final = "session_queue_high"
_AT_ONCE: Final = 2000
_TOLD: Final = 10


class Sums(NamedTuple):
    """What waits, of all sessions."""

    messages: int = 0
    size_bytes: int = 0
    inflight: int = 0


class QueueWatch:
    """Watches the queues of all sessions. ``tick`` is called twice a second."""

    def __init__(self, context: Context, sessions: SessionRegistry) -> None:
        self._context, self._sessions, metrics = context, sessions, context.metrics
        self.alarms: Alarms | None = None
        """Where the alarm goes, once there are alarms."""
        self.sums = Sums()
        self._due_s = 0.0
        self._walk: Iterator[None] | None = None
        metrics.gauge("queued_messages", lambda: self.sums.messages, "messages that wait for sessions")
        metrics.gauge("queued_bytes", lambda: self.sums.size_bytes, "bytes of messages that wait for sessions")
        metrics.gauge("inflight_messages", lambda: self.sums.inflight, "messages sent and not yet acknowledged")

    def tick(self) -> None:
        """Look at some sessions; start from the first when that is due."""
        now_s = self._context.now_s
        if self._walk is None and now_s >= self._due_s:
            self._due_s = now_s + self._context.settings.queue_watch_interval
            self._walk = self._look_at_all()
        if self._walk is not None and next(self._walk, _END) is _END:
            self._walk = None

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
            if number % _AT_ONCE == 0:
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
        if self.alarms is not None:
            self.alarms.set(
                ALARM,
                bool(high),
                f"{len(high)} sessions have more than {self._context.settings.queue_high_watermark:,} bytes waiting",
                sessions=len(high),
                largest={session.client_id: session.waiting_bytes for session in high[:_TOLD]},
            )


_END: Final = object()
