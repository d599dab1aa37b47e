"""Sessions that a node knew before it was stopped or killed come back from the store."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from broker.connection.sessions.lifecycle import SessionLife
from broker.connection.sessions.records import SessionRecords
from broker.connection.sessions.zones import Zones
from broker.session.record import restore_session, restore_subscriptions
from broker.session.session import Session
from broker.session.will import Will

# Sessions restored in one step.
_AT_ONCE: Final = 256


def restore_sessions(
    records: SessionRecords, life: SessionLife, zones: Zones, wills: dict[str, Will]
) -> Generator[None, None, list[Session]]:
    """Restore all sessions; returns those that had a connection. Takes their wills out of ``wills``."""
    subscriptions = _SortedValues(records.subscriptions.stored())
    cut_off: list[Session] = []
    for number, (client_id, value) in enumerate(records.sessions.stored()):
        if number % _AT_ONCE == 0:
            yield
        session = Session(client_id, zones.default.services, is_durable=True)
        if restore_session(session, value):
            cut_off.append(session)
        stored = subscriptions.under(client_id)
        if stored is not None:
            restore_subscriptions(session, stored)
        session.enter_zone(session.zone, zones.named(session.zone).services)
        life.restored(session, wills.pop(client_id, None))
    return cut_off


class _SortedValues:
    """Values by client identifier, read in one go in their order, which takes half as long as a look-up each.

    Texts are in the order of their UTF-8.
    """

    def __init__(self, values: Iterator[tuple[str, bytes]]) -> None:
        self._values = values
        self._next = next(values, None)

    def under(self, client_id: str) -> bytes | None:
        """The value of a client, or None."""
        while self._next is not None and self._next[0] < client_id:
            self._next = next(self._values, None)
        return self._next[1] if self._next is not None and self._next[0] == client_id else None
