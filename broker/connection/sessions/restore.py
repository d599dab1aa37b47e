"""Sessions that a node knew before it was stopped or killed come back from the store."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from broker.connection.sessions.lifecycle import SessionLife
from broker.connection.sessions.zones import Zones
from broker.session.record import SESSION_PREFIX, SUBSCRIPTIONS_PREFIX, restore_session, restore_subscriptions
from broker.session.session import Session
from broker.session.will import Will
from broker.storage.store import Store

_AT_ONCE: Final = 256
"""Sessions restored in one step."""


def restore_sessions(
    store: Store, life: SessionLife, zones: Zones, wills: dict[str, Will]
) -> Generator[None, None, list[Session]]:
    """Restore all sessions; returns those that had a connection. Takes their wills out of ``wills``."""
    subscriptions = _SortedValues(store.scan(SUBSCRIPTIONS_PREFIX))
    cut_off: list[Session] = []
    for number, (key, value) in enumerate(store.scan(SESSION_PREFIX)):
        if number % _AT_ONCE == 0:
            yield
        client_id = key[len(SESSION_PREFIX) :].decode()
        session = Session(client_id, zones.default.services, is_durable=True)
        if restore_session(session, value):
            cut_off.append(session)
        stored = subscriptions.under(SUBSCRIPTIONS_PREFIX + key[len(SESSION_PREFIX) :])
        if stored is not None:
            restore_subscriptions(session, stored)
        session.enter_zone(session.zone, zones.named(session.zone).services)
        life.restored(session, wills.pop(client_id, None))
    return cut_off


class _SortedValues:
    """Values by key, asked for in the order of keys: read in one go, which takes half as long as a look-up each."""

    def __init__(self, found: Iterator[tuple[bytes, bytes]]) -> None:
        self._found = found
        self._next = next(found, None)

    def under(self, key: bytes) -> bytes | None:
        """The value of a key, None where there is none."""
        while self._next is not None and self._next[0] < key:
            self._next = next(self._found, None)
        return self._next[1] if self._next is not None and self._next[0] == key else None
