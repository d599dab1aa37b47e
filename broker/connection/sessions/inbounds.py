"""What clients published and may send again, with its values in the store."""

from __future__ import annotations

from broker.connection.context import Context
from broker.connection.settings import MqttSettings
from broker.session.inbound import Inbound, Inbounds
from broker.session.record import INBOUND_PREFIX
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.storage.store import Store


class StoredInbounds(Inbounds):
    """The inbound state of all clients, also of those without a session."""

    __slots__ = ("_changed", "_forgotten", "_sessions", "_writer")

    def __init__(self, context: Context, sessions: SessionRegistry) -> None:
        settings = context.settings
        most, most_connected = settings.max_inbound_bytes_total, settings.max_inbound_bytes_connected
        super().__init__(most, most_connected, self._forget_oldest_of, context.defer)
        self._sessions, self._writer, self._forgotten = sessions, context.writer, context.figures.inbounds_forgotten
        self._changed: dict[str, Inbound] = {}
        context.writer.before_commit(self._save)
        gauge = context.metrics.gauge
        help = "memory of the records of what connected clients may send again"
        gauge("inbound_connected_bytes", lambda: self.connected.bytes, help)
        gauge("inbound_bytes", lambda: self.gone_bytes, "memory of what clients that are gone may send again")

    def use(self, settings: MqttSettings) -> None:
        """Have other limits."""
        self.max_bytes = settings.max_inbound_bytes_total
        self.max_connected_bytes = settings.max_inbound_bytes_connected
        self.forget_oldest()

    def load(self, store: Store) -> None:
        """Restore what the store holds."""
        for key, value in store.scan(INBOUND_PREFIX):
            self[key[len(INBOUND_PREFIX) :].decode()] = Inbound.decode(value)
        self.loaded()

    def of(self, session: Session) -> Inbound:
        """The inbound state of a connected session's client, made when first needed."""
        if session.inbound is None:
            session.inbound = self.of_connected(session.client_id)
        return session.inbound

    def changed(self, session: Session) -> None:
        """Write what a session's client sent with the commit group at hand."""
        inbound = session.inbound
        if inbound is not None and inbound.is_changed and session.client_id not in self._changed:
            self._changed[session.client_id] = inbound
            self._writer.touch()

    def session_began(self, session: Session) -> None:
        """A new session continues what its client left, but for open QoS 2."""
        session.inbound = self.get(session.client_id)
        self._restart(session)

    def session_ended(self, session: Session) -> None:
        """The client's publishes are remembered for a while, but for open QoS 2."""
        self._restart(session)
        self.recount(session.client_id)

    def _restart(self, session: Session) -> None:
        if session.inbound is not None:
            session.inbound.restart()
            self.changed(session)

    def settle(self, session: Session) -> None:
        """The client disconnected with everything acknowledged: it will not resend anything."""
        if session.inbound is not None and session.inbound.settle():
            self.changed(session)
            if not session.expiry_s:
                self.pop(session.client_id, None)

    def forget(self, client_id: str) -> None:
        """What a client sent is forgotten: a resend of it is taken as new."""
        del self[client_id]
        self._changed.pop(client_id, None)
        self._writer.put(INBOUND_PREFIX + client_id.encode(), None)

    def _forget_oldest_of(self, client_id: str) -> None:
        """What a client that is gone published is forgotten, whether its session waits for it or not."""
        session = self._sessions.get(client_id)
        if session is not None:
            session.inbound = None
        self.forget(client_id)
        self._forgotten.value += 1

    def _save(self) -> None:
        """Put what changed into the commit group that is being sealed."""
        for client_id, inbound in self._changed.items():
            self._writer.put(INBOUND_PREFIX + client_id.encode(), inbound.encode())
        self._changed.clear()
