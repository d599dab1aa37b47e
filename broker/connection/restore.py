"""What a node knew before it was stopped or killed comes back from the store.

In this order: messages that are kept, share groups, the sessions that are their members, then what waits in the session
log for each. Connections that the process's end cut off have ended abnormally now: their wills are due, once all
sessions are there to get them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.auth import bans
from broker.connection import replays
from broker.connection.recount import Recount
from broker.session.inbound import Inbound
from broker.session.record import (
    INBOUND_PREFIX,
    SESSION_PREFIX,
    SUBSCRIPTIONS_PREFIX,
    restore_session,
    restore_subscriptions,
)
from broker.session.services import SessionServices
from broker.session.session import Session
from broker.session.will import Will

if TYPE_CHECKING:
    from broker.connection.hub import Hub

_AT_ONCE: Final = 256
"""Sessions restored in one step."""


def restore(hub: Hub, services: SessionServices) -> Iterator[None]:
    """Restore everything of a hub that is in the store; a step of some milliseconds at a time."""
    store = hub.writer.store
    wills = hub.wills.load(store)
    yield from hub.retained.load()
    hub.delayed.load()
    hub.access.bans.load(store.scan(bans.PREFIX))
    for key, value in store.scan(INBOUND_PREFIX):
        hub.inbounds[_client_id(key, INBOUND_PREFIX)] = Inbound.decode(value)
    hub.inbounds.loaded()
    hub.shares.load()
    cut_off: list[Session] = []
    yield from _sessions(hub, services, wills, cut_off)
    hub.shares.loaded()
    for key, value in store.scan(replays.PREFIX):
        client_id = _client_id(key, replays.PREFIX)
        hub.replays.load(client_id, value, hub.sessions.get(client_id))
    yield from Recount(hub.sessions, hub.router, store, hub.backlog.shard).run()
    now_ns = hub.clock.now_ns()
    for session in cut_off:
        hub.cut_off(session, now_ns)
    for will in wills.values():
        hub.wills.publish_orphan(will)


def _sessions(hub: Hub, services: SessionServices, wills: dict[str, Will], cut_off: list[Session]) -> Iterator[None]:
    """Restore all sessions. Takes their wills out of ``wills``, adds those that had a connection to ``cut_off``."""
    kept = _Kept(hub.writer.store.scan(SUBSCRIPTIONS_PREFIX))
    for number, (key, value) in enumerate(hub.writer.store.scan(SESSION_PREFIX)):
        if number % _AT_ONCE == 0:
            yield
        session = Session(_client_id(key, SESSION_PREFIX), services, is_durable=True)
        if restore_session(session, value):
            cut_off.append(session)
        _add(hub, session, kept.under(SUBSCRIPTIONS_PREFIX + key[len(SESSION_PREFIX) :]))
        if session.client_id in wills:
            hub.wills.restored(session, wills.pop(session.client_id))
        elif session.will is not None:
            hub.wills.keep(session, session.will)  # from a record that held it
        hub.sessions.schedule(session)


class _Kept:
    """Values by key, asked for in the order of keys: read in one go, which takes half as long as a look-up each."""

    def __init__(self, found: Iterator[tuple[bytes, bytes]]) -> None:
        self._found = found
        self._next = next(found, None)

    def under(self, key: bytes) -> bytes | None:
        """The value of a key, None where there is none."""
        while self._next is not None and self._next[0] < key:
            self._next = next(self._found, None)
        return self._next[1] if self._next is not None and self._next[0] == key else None


def _add(hub: Hub, session: Session, subscriptions: bytes | None) -> None:
    """Give a restored session what other parts know of it."""
    if subscriptions is not None:
        restore_subscriptions(session, subscriptions)
    session.enter_zone(session.zone, hub.zones.named(session.zone).services)
    hub.sessions.add(session)
    session.inbound = hub.inbounds.get(session.client_id)
    for subscription in session.subscriptions.values():
        hub.router.subscribe(session, subscription, is_new=True)
    hub.shares.adopt(session)


def _client_id(key: bytes, prefix: bytes) -> str:
    return key[len(prefix) :].decode()
