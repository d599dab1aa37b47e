"""Messages that clients published and may send again, with its values in the store.

A message of QoS 1 is an entry in the value of its commit group (``broker.session.inbound_log``). The state of a client
is stored whole where more changed than that, and when a group with an entry of it is removed: the log is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from broker.connection.context import Context
from broker.connection.settings import MqttSettings
from broker.session.inbound import Inbound, Inbounds
from broker.session.inbound_log import MARK, decode_group, encode_group, named
from broker.session.registry import SessionRegistry
from broker.session.session import Session
from broker.storage.collection import NUMBER, RAW, TEXT, Collection
from broker.storage.store import Store

PREFIX: Final = b"inbound/"
LOG_PREFIX: Final = b"inbound-log/"
# Maximum of the values of the log: some hundred thousand messages, so that of a thousand clients each is stored whole
# once in a hundred messages.
_LOG_BYTES: Final = 4 * 1024 * 1024


class _Logged(NamedTuple):
    """A group in the log, and the clients with entries in it."""

    number: int
    size_bytes: int
    client_ids: Sequence[str]


class StoredInbounds(Inbounds):
    """The inbound state of all clients, also of those without a session."""

    __slots__ = (
        "_changed", "_client_ids", "_entries", "_forgotten", "_groups", "_log", "_log_bytes", "_max_log_bytes", "_next",
        "_sessions", "_stored", "_touched_ns", "_whole", "_writer",
    )  # fmt: skip

    def __init__(
        self, context: Context, sessions: SessionRegistry, max_log_bytes: int = _LOG_BYTES
    ) -> None:
        settings = context.settings
        most = settings.max_inbound_bytes_total
        most_connected = settings.max_inbound_bytes_connected
        super().__init__(most, most_connected, self._forget_oldest_of, context.defer)
        self._sessions = sessions
        self._writer = context.writer
        self._forgotten = context.figures.inbounds_forgotten
        self._stored = Collection(context.writer, PREFIX, TEXT, RAW)
        self._groups = Collection(context.writer, LOG_PREFIX, NUMBER, RAW)
        self._changed: dict[str, Inbound] = {}
        self._entries: list[bytes] = []
        self._client_ids: list[str] = []
        """Identifiers of the current group, like ``_whole``: those that are stored whole with it."""
        self._whole: list[Inbound] = []
        self._touched_ns = self._next = self._log_bytes = 0
        self._max_log_bytes = max_log_bytes
        self._log: deque[_Logged] = deque()
        context.writer.before_commit(self._save)
        gauge = context.metrics.gauge
        help = "memory of the records by which resends of connected clients are recognised"
        gauge("inbound_connected_bytes", lambda: self.connected.bytes, help)
        gauge(
            "inbound_bytes",
            lambda: self.gone_bytes,
            "memory of the records by which resends of clients that are not connected are recognised",
        )

    def use(self, settings: MqttSettings) -> None:
        """Apply other limits."""
        self.max_bytes = settings.max_inbound_bytes_total
        self.max_connected_bytes = settings.max_inbound_bytes_connected
        self.forget_oldest()

    def load(self) -> None:
        """Restore what the store holds."""
        for client_id, value in self._stored.stored():
            self[client_id] = Inbound.decode(value)
        for number, value in self._groups.stored():
            self._load_group(number, value)
        self.loaded()

    def _load_group(self, number: int, value: bytes) -> None:
        touched_ns, entries = decode_group(value)
        client_ids: dict[str, None] = {}
        for client_id, entry in entries:
            if entry == MARK:
                whole = self._stored.committed(client_id)
                if whole is not None:
                    self[client_id] = Inbound.decode(whole)
                elif client_id in self:
                    del self[client_id]
            else:
                client_ids[client_id] = None
                inbound = self.setdefault(client_id, Inbound())
                inbound.restore(entry, touched_ns)
                inbound.logged = number
        self._log.append(_Logged(number, len(value), tuple(client_ids)))
        self._log_bytes += len(value)
        self._next = number + 1

    def of(self, session: Session) -> Inbound:
        """The inbound state of a connected session's client, made when first needed."""
        if session.inbound is None:
            session.inbound = self.of_connected(session.client_id)
        return session.inbound

    def changed(self, session: Session) -> None:
        """Write what a session's client sent with the current commit group."""
        inbound = session.inbound
        if (
            inbound is not None
            and inbound.is_changed
            and self._changed.get(session.client_id) is not inbound
        ):
            self._changed[session.client_id] = inbound
            self._mark(session.client_id, inbound)
            self._writer.touch()

    def took(self, client_id: str, inbound: Inbound, entry: bytes) -> None:
        """Log a message that ``inbound`` remembers, with the commit group that holds it."""
        if inbound is not self._changed.get(client_id):
            inbound.name = inbound.name or named(client_id)
            inbound.logged = self._next
            self._touched_ns = inbound.touched_ns
            self._entries.append(inbound.name + entry)
            self._client_ids.append(client_id)

    def _mark(self, client_id: str, inbound: Inbound) -> None:
        """Entries of it, where there are some, need no second check."""
        if inbound.logged >= (self._log[0].number if self._log else self._next):
            self._entries.append(named(client_id) + MARK)

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
        """Forget the messages of a client: a resend of it is taken as new."""
        self._mark(client_id, self[client_id])
        del self[client_id]
        self._changed.pop(client_id, None)
        self._stored.put(client_id, None)

    def _forget_oldest_of(self, client_id: str) -> None:
        """Forget the messages of a client that is gone, whether its session waits for it or not."""
        session = self._sessions.get(client_id)
        if session is not None:
            session.inbound = None
        self.forget(client_id)
        self._forgotten.value += 1

    def _save(self) -> None:
        """Put what changed into the commit group that is being sealed."""
        for client_id, inbound in self._changed.items():
            self._save_whole(client_id, inbound)
        self._changed.clear()
        if self._entries:
            self._save_entries()
        self._next += 1
        if self._whole:
            whole = self._whole
            self._whole = []
            self._writer.when_committed(
                lambda error: _not_saved(whole) if error is not None else None
            )

    def _save_whole(self, client_id: str, inbound: Inbound) -> None:
        self._stored.put(client_id, inbound.encode())
        inbound.saved = self._next
        self._whole.append(inbound)

    def _save_entries(self) -> None:
        value = encode_group(self._touched_ns, self._entries)
        self._groups.put(self._next, value)
        self._log.append(_Logged(self._next, len(value), self._client_ids))
        self._log_bytes += len(value)
        self._entries = []
        self._client_ids = []
        removed: list[_Logged] = []
        while self._log_bytes > self._max_log_bytes:
            removed.append(oldest := self._log.popleft())
            self._remove(oldest)
        if removed:
            self._writer.when_committed(
                lambda error: self._not_removed(removed) if error is not None else None
            )

    def _remove(self, oldest: _Logged) -> None:
        """Remove a group from the log; clients that were not stored whole since are now."""
        self._log_bytes -= oldest.size_bytes
        self._groups.put(oldest.number, None)
        for client_id in oldest.client_ids:
            inbound = self.get(client_id)
            if inbound is not None and inbound.saved < oldest.number:
                self._save_whole(client_id, inbound)

    def _not_removed(self, removed: list[_Logged]) -> None:
        self._log.extendleft(reversed(removed))
        self._log_bytes += sum(removed_value.size_bytes for removed_value in removed)


def folded(store: Store) -> Iterator[tuple[bytes, bytes | None]]:
    """Changes of keys that store the state of each client in the log of a store whole, and then empty the log. They
    may be made in parts, in this order."""
    inbounds: dict[str, Inbound] = {}
    groups: list[bytes] = []
    for key, value in store.scan(LOG_PREFIX):
        groups.append(key)
        touched_ns, entries = decode_group(value)
        for client_id, entry in entries:
            if entry == MARK or client_id not in inbounds:
                whole = store.get(PREFIX + client_id.encode())
                inbounds[client_id] = Inbound() if whole is None else Inbound.decode(whole)
            if entry != MARK:
                inbounds[client_id].restore(entry, touched_ns)
    for client_id, inbound in inbounds.items():
        yield PREFIX + client_id.encode(), inbound.encode()
    for key in groups:
        yield key, None


def _not_saved(whole: list[Inbound]) -> None:
    """The group could not be written: they are stored whole the next time that this is asked."""
    for inbound in whole:
        inbound.saved = -1
