"""Wills: kept in the store from CONNECT on, and published once.

A will is a value of its own, ``wills/CLIENT_ID``, and not part of the session's record: the record is rewritten
with every acknowledgement, and a will may be as large as a packet. Sessions that end with their connection have theirs
there too, so that a crash of the broker, which cuts those connections, does not swallow them. A will leaves the store
with the commit group that holds its message.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.connection.context import Context
from broker.core.message import Message
from broker.session.record import decode_will, encode_will
from broker.session.session import Session
from broker.session.will import Will
from broker.storage.collection import RAW, TEXT, Collection


class Wills:
    """Puts wills into the store and publishes them through ``publish``."""

    def __init__(self, context: Context, publish: Callable[[Message], object]) -> None:
        self._publish = publish
        self._clock = context.clock
        self._wills = Collection(context.writer, b"wills/", TEXT, RAW)
        self.size_bytes = 0
        """Total of the wills of all sessions."""
        context.metrics.gauge(
            "will_bytes", lambda: self.size_bytes, "memory of the wills of all sessions"
        )

    def keep(self, session: Session, will: Will | None) -> None:
        """The will of the connection that a session gets now; what the one before left is cancelled."""
        if will is not None:
            self._wills.put(session.client_id, encode_will(will))
        elif session.will is not None:
            self._wills.put(session.client_id, None)
        self._set(session, will)

    def restored(self, session: Session, will: Will) -> None:
        """The will of a session from the store."""
        self._set(session, will)

    def _set(self, session: Session, will: Will | None) -> None:
        self.size_bytes += (0 if will is None else will.size_bytes) - (
            0 if session.will is None else session.will.size_bytes
        )
        session.will = will

    def forget(self, session: Session) -> None:
        """It will not be published."""
        self.keep(session, None)
        session.will_at_ns = 0

    def publish(self, session: Session) -> None:
        """Publish a session's will, if it has one, once [MQTT-3.1.2-10]."""
        will = session.will
        self.forget(session)
        if will is not None:
            self._publish(will.message(self._clock.now_ns()))

    def load(self) -> dict[str, Will]:
        """The wills in the store by client identifier."""
        return {
            client_id: decode_will(value, client_id) for client_id, value in self._wills.stored()
        }

    def publish_orphan(self, will: Will) -> None:
        """A will whose session ended with the process that was killed."""
        self._wills.put(will.client.client_id, None)
        self._publish(will.message(self._clock.now_ns()))
