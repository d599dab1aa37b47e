"""What is left behind is cleared away, a little in each tick: the loop never waits for it.

* The session log is trimmed to what the session that stands furthest back still needs. Positions only move on, so that
  they need not all be read at one moment. Where the log is larger than may be, those furthest back lose their oldest.
* Records without a session are deleted: subscriptions and places of sessions that ended while something failed.
* Inbound state of clients that are long gone is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from broker.connection import replays
from broker.connection.context import Context
from broker.connection.session_life import SessionLife
from broker.session import in_log, record
from broker.session.session import Session

_AT_ONCE: Final = 1000
"""Sessions, keys or identifiers looked at in one tick: some milliseconds."""
_TRIM_NS: Final = 30 * 1_000_000_000
_SWEEP_NS: Final = 600 * 1_000_000_000
_STALE_NS: Final = 120 * 1_000_000_000
"""How long it takes at least from one round's beginning to the next one's."""
_OF_SESSIONS: Final = (record.SUBSCRIPTIONS_PREFIX, replays.PREFIX)


Round = Callable[[int], Iterator[None]]
"""One kind of clearing, in steps; called again for each round, with the time."""


class Housekeeping:
    """Deletes leftovers, a little in each tick; ``tick`` is called twice a second."""

    def __init__(self, context: Context, life: SessionLife) -> None:
        self._context, self._life, self._writer = context, life, context.writer
        self._sessions, self._backlog = life.sessions, life.backlog
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
        if self._backlog.is_over_bound:
            self._trimming.hurry(now_ns)
        for job in self._jobs:
            job.step(now_ns)

    def _trim(self, _now_ns: int) -> Iterator[None]:
        before, after = self._backlog.log_next, ""
        least = self._backlog.offset_within_bound()
        while found := self._sessions.following(after, _AT_ONCE):
            after = found[-1].client_id
            durable = [session for session in found if session.is_durable]
            for session in durable:
                in_log.shed_below(session, least)
            before = min(before, min((self._low(session) for session in durable), default=before))
            if len(found) < _AT_ONCE:
                break
            yield
        self._backlog.trim(min(max(before, least), self._life.share_groups.kept_from()))

    def _low(self, session: Session) -> int:
        return in_log.low_offset(session, self._backlog.log_next)

    def _sweep_records(self, _now_ns: int) -> Iterator[None]:
        store = self._writer.store
        for prefix in _OF_SESSIONS:
            key: bytes | None = prefix
            while key is not None:
                cursor = store.cursor(prefix)
                key = cursor.seek(key)
                for _ in range(_AT_ONCE):
                    if key is None:
                        break
                    self._check_owner(prefix, key)
                    key = cursor.next()
                del cursor
                yield

    def _check_owner(self, prefix: bytes, key: bytes) -> None:
        session = self._sessions.get(key[len(prefix) :].decode())
        if session is None or not session.is_durable:
            self._writer.put(key, None)
            self.records_swept += 1

    def _forget_stale(self, now_ns: int) -> Iterator[None]:
        for number, (client_id, inbound) in enumerate(list(self._life.inbounds.items()), 1):
            if inbound.is_stale(now_ns) and not inbound.open_qos2 and self._sessions.get(client_id) is None:
                self._life.forget_inbound(client_id)
            if number % _AT_ONCE == 0:
                yield


class _Job:
    """A round that is under way, or when the next one begins."""

    __slots__ = ("_begin", "_due_ns", "_every_ns", "_steps")

    def __init__(self, begin: Round, every_ns: int) -> None:
        self._begin, self._every_ns = begin, every_ns
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
