"""What a node knew before it was stopped or killed comes back from the store.

In this order: messages that are kept, share groups, the sessions that are their members, then what waits in the session
log for each. Connections that the process's end cut off have ended abnormally now: their wills are due, once all
sessions are there to get them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.auth import bans
from broker.connection.context import Context
from broker.connection.sessions import replays
from broker.connection.sessions.lifecycle import SessionLife
from broker.connection.sessions.recount import Recount
from broker.routing.delayed import Delayed
from broker.routing.retained import Retained
from broker.session.inbound import Inbound
from broker.session.record import (
    INBOUND_PREFIX,
    SESSION_PREFIX,
    SUBSCRIPTIONS_PREFIX,
    restore_session,
    restore_subscriptions,
)
from broker.session.session import Session
from broker.session.will import Will
from broker.storage.store import Store

_AT_ONCE: Final = 256
"""Sessions restored in one step."""


def restore(
    context: Context, life: SessionLife, retained: Retained, delayed: Delayed, known: bans.Bans
) -> Iterator[None]:
    """Restore everything that is in the store; a step of some milliseconds at a time."""
    store = context.writer.store
    wills = life.wills.load(store)
    yield from retained.load()
    delayed.load()
    known.load(store.scan(bans.PREFIX))
    for key, value in store.scan(INBOUND_PREFIX):
        life.inbounds[_client_id(key, INBOUND_PREFIX)] = Inbound.decode(value)
    life.inbounds.loaded()
    life.share_groups.load()
    cut_off: list[Session] = []
    yield from _sessions(life, store, wills, cut_off)
    life.share_groups.loaded()
    for key, value in store.scan(replays.PREFIX):
        client_id = _client_id(key, replays.PREFIX)
        life.replays.load(client_id, value, life.sessions.get(client_id))
    yield from Recount(life.sessions, life.router, store, life.session_log.shard).run()
    ended_ns = context.clock.now_ns()
    for session in cut_off:
        life.cut_off(session, ended_ns)
    for will in wills.values():
        life.wills.publish_orphan(will)


def _sessions(life: SessionLife, store: Store, wills: dict[str, Will], cut_off: list[Session]) -> Iterator[None]:
    """Restore all sessions. Takes their wills out of ``wills``, adds those that had a connection to ``cut_off``."""
    subscriptions = _SortedValues(store.scan(SUBSCRIPTIONS_PREFIX))
    for number, (key, value) in enumerate(store.scan(SESSION_PREFIX)):
        if number % _AT_ONCE == 0:
            yield
        session = Session(_client_id(key, SESSION_PREFIX), life.zones.default.services, is_durable=True)
        if restore_session(session, value):
            cut_off.append(session)
        _add(life, session, subscriptions.under(SUBSCRIPTIONS_PREFIX + key[len(SESSION_PREFIX) :]))
        if session.client_id in wills:
            life.wills.restored(session, wills.pop(session.client_id))
        life.sessions.schedule(session)


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


def _add(life: SessionLife, session: Session, subscriptions: bytes | None) -> None:
    """Give a restored session what other parts know of it."""
    if subscriptions is not None:
        restore_subscriptions(session, subscriptions)
    session.enter_zone(session.zone, life.zones.named(session.zone).services)
    life.sessions.add(session)
    session.inbound = life.inbounds.get(session.client_id)
    for subscription in session.subscriptions.values():
        life.router.subscribe(session, subscription, is_new=True)
    life.share_groups.adopt(session)


def _client_id(key: bytes, prefix: bytes) -> str:
    return key[len(prefix) :].decode()
