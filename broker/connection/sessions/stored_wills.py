"""Wills: kept in the store from CONNECT on, and published once.

A will is a value of its own, ``wills/CLIENT_ID``, and not part of the session's record: the record is rewritten
with every acknowledgement, and a will may be as large as a packet. Sessions that end with their connection have theirs
there too, so that a crash of the broker, which cuts those connections, does not swallow them. A will leaves the store
with the commit group that holds its message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from broker.connection.context import AT_ONCE, Context
from broker.core.message import Message
from broker.core.receipt import again
from broker.session.record import decode_will, encode_will
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.session.will import Will
from broker.storage.collection import RAW, TEXT, Collection


class Wills:
    """Puts wills into the store and publishes them through ``publish``.

    One that is due while the store takes nothing, or whose commit fails, is published when the store takes it again: it
    could not be taken out of it, and subscribers whose sessions are stored would not get it.
    """

    def __init__(
        self, context: Context, sessions: SessionRegistry, publish: Callable[[Message], object]
    ) -> None:
        self._sessions = sessions
        self._publish = publish
        self._context = context
        self._wills = Collection(context.writer, b"wills/", TEXT, RAW)
        self._due: deque[tuple[Will, bool]] = deque()
        """With each, whether it is published again, since it could not be committed."""
        self._unwritten: dict[str, None] = {}
        context.writer.before_commit(self._save)
        self.size_bytes = 0
        """Total of the wills of all sessions, and of those that are due."""
        context.metrics.gauge(
            "will_bytes", lambda: self.size_bytes, "memory of the wills of all sessions"
        )

    def keep(self, session: Session, will: Will | None) -> None:
        """The will of the connection that a session gets now; what the one before left is cancelled."""
        is_stored = will is not None or session.will is not None
        self._set(session, will)
        if is_stored:
            self._put(session.client_id)

    def restored(self, session: Session, will: Will) -> None:
        """The will of a session from the store. One of a session that is away and waits for nothing was due as the
        store took nothing."""
        self._set(session, will)
        session.will_at_ns = session.will_at_ns or self._context.clock.now_ns()

    def _set(self, session: Session, will: Will | None) -> None:
        self.size_bytes += (0 if will is None else will.size_bytes) - (
            0 if session.will is None else session.will.size_bytes
        )
        session.will = will

    def _put(self, client_id: str, published: Will | None = None) -> None:
        """Put the will that a client has now, in the commit group of one that was ``published``."""
        session = self._sessions.get(client_id)
        will = None if session is None else session.will
        self._wills.put(client_id, None if will is None else encode_will(will))
        self._context.writer.when_committed(partial(self._put_committed, client_id, published))

    def _put_committed(
        self, client_id: str, published: Will | None, error: BaseException | None
    ) -> None:
        if error is None:
            return
        if published is None:
            self._unwritten[client_id] = None
        else:
            self._add(published, is_again=True)

    def _save(self) -> None:
        """Put what an earlier commit group could not write into the one that is being sealed."""
        unwritten = self._unwritten
        self._unwritten = {}
        for client_id in unwritten:
            self._put(client_id)

    def _add(self, will: Will, *, is_again: bool = False) -> None:
        self._due.append((will, is_again))
        self.size_bytes += will.size_bytes

    def forget(self, session: Session) -> None:
        """It will not be published."""
        self.keep(session, None)
        session.will_at_ns = 0

    def publish(self, session: Session) -> None:
        """Publish a session's will, if it has one, once [MQTT-3.1.2-10]."""
        will = session.will
        self._set(session, None)
        session.will_at_ns = 0
        if will is not None:
            self.publish_orphan(will)

    def load(self) -> dict[str, Will]:
        """The wills in the store by client identifier."""
        return {
            client_id: decode_will(value, client_id) for client_id, value in self._wills.stored()
        }

    def publish_orphan(self, will: Will) -> None:
        """Publish a will of no session, such as one whose session ended with the process that was killed."""
        self._add(will)
        if len(self._due) == 1:
            self.tick()

    def tick(self) -> None:
        """Publish those that are due, a part in each turn of the loop, unless the store takes nothing."""
        for _ in range(min(len(self._due), AT_ONCE)):
            if self._context.writer.failure is not None:
                return
            will, is_again = self._due.popleft()
            self.size_bytes -= will.size_bytes
            self._put(will.client.client_id, will)
            message = will.message(self._context.clock.now_ns())
            if is_again:
                message.receipt = again()
            self._publish(message)
        if self._due and not self._context.is_stopping:
            self._context.later(0, self.tick)
