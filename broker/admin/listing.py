"""Pages of sessions: selected and ordered, without sorting or holding all of them.

Sessions are visited a slice at a time in the order of their client identifiers, with the loop's other work between any
two slices. In that order a page costs what it shows; from the last identifier back, those before the page are visited
too. In the order of a number, as the length of the queue, all are visited once a page and the page's are kept; a page
begins after the number and the identifier of the last one shown, so it neither repeats nor skips a session whose
number stays.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from functools import partial
from heapq import nsmallest
from re import compile as compiled
from typing import Any, Final

from broker.connection.connection import Connection
from broker.core.errors import Invalid, Problem
from broker.core.objects import Spec
from broker.session.registry import SessionRegistry
from broker.session.session import Session

# Sessions visited at once: about a millisecond.
SLICE: Final = 400
_GLOB: Final = "*?["

# The session after which a page begins: its number in the order, 0 in that of identifiers, and its identifier.
Cursor = tuple[int, str]
Test = Callable[[Session], bool]


@dataclass(frozen=True, slots=True)
class Selection:
    """Criteria that select sessions; a criterion that is None is ignored. Strings may have ``*``, ``?`` and
    ``[abc]``."""

    client_id: str | None = None
    username: str | None = None
    address: str | None = None
    listener: str | None = None
    zone: str | None = None
    attribute: Mapping[str, str] | None = None
    connected: bool | None = None
    durable: bool | None = None
    protocol: str | None = None
    older_than_s: int | None = None
    """Away, and for at least so long."""
    min_queued: int | None = None
    min_queue_bytes: int | None = None
    min_inflight: int | None = None
    min_subscriptions: int | None = None
    min_dropped: int | None = None
    keep_alive_s: int | None = None
    connected_since: int | None = None
    """Connected since this time or later, and not after ``connected_until``, in microseconds since 1970."""
    connected_until: int | None = None

    @property
    def is_everything(self) -> bool:
        """True if every session is selected."""
        return self == Selection()

    @property
    def prefix(self) -> str:
        """The prefix of the client identifiers of all selected sessions."""
        text = self.client_id or ""
        return text[: next((at for at, sign in enumerate(text) if sign in _GLOB), len(text))]

    def tests(self, now_ns: int = 0) -> list[Test]:
        """The tests that a session has to pass."""
        tests = [
            _text(pattern, of)
            for name, of in _TEXTS.items()
            if (pattern := getattr(self, name)) is not None
        ]
        tests += [
            _text(wanted, partial(_attribute, name))
            for name, wanted in (self.attribute or {}).items()
        ]
        if (connected := self.connected) is not None:
            tests.append(lambda session: session.is_away is not connected)
        if (durable := self.durable) is not None:
            tests.append(lambda session: session.is_durable is durable)
        if self.protocol is not None:
            version = _VERSIONS[self.protocol]
            tests.append(lambda session: session.client.protocol_version == version)
        if self.older_than_s is not None:
            before_ns = now_ns - self.older_than_s * 1_000_000_000
            tests.append(lambda session: session.is_away and session.away_since_ns <= before_ns)
        tests += [
            _least(number, least)
            for name, number in ORDERS.items()
            if (least := getattr(self, f"min_{name}", None)) is not None
        ]
        if (keep_alive_s := self.keep_alive_s) is not None:
            tests.append(lambda session: keep_alive_of(session) == keep_alive_s)
        if (since := self.connected_since) is not None:
            tests.append(lambda session: _connected_us(session) >= since)
        if (until := self.connected_until) is not None:
            tests.append(lambda session: 0 < _connected_us(session) <= until)
        return tests


def keep_alive_of(session: Session) -> int | None:
    """Keep alive of the connection that has a session, in seconds."""
    return session.owner.greeting.keep_alive_s if isinstance(session.owner, Connection) else None


def _connected_us(session: Session) -> int:
    return 0 if session.is_away else session.connected_ns // 1000


def _least(number: Callable[[Session], int], least: int) -> Test:
    return lambda session: number(session) >= least


# The numbers that sessions may be put in the order of, and have a minimum for.
ORDERS: Final[Mapping[str, Callable[[Session], int]]] = {
    "connected_at": lambda session: 0 if session.is_away else session.connected_ns,
    "queued": lambda session: session.waiting_messages,
    "queue_bytes": lambda session: session.waiting_bytes,
    "inflight": lambda session: len(session.window.inflight),
    "subscriptions": lambda session: len(session.subscriptions),
    "dropped": lambda session: sum((session.dropped or {}).values()),
}


_VERSIONS: Final = {"3.1": 3, "3.1.1": 4, "5.0": 5}

# Values that the patterns of a selection are compared with.
_TEXTS: Final[Mapping[str, Callable[[Session], str | None]]] = {
    "client_id": lambda session: session.client_id,
    "username": lambda session: session.client.username,
    "address": lambda session: session.client.peer_host,
    "listener": lambda session: session.client.listener,
    "zone": lambda session: session.zone,
}


def _attribute(name: str, session: Session) -> str | None:
    return session.client.attributes.get(name)


async def slices(
    registry: SessionRegistry, after: str = "", prefix: str = ""
) -> AsyncIterator[list[Session]]:
    """All sessions in the order of their identifiers, some at a time; the loop takes its turn between them."""
    while sessions := registry.following(after, SLICE, prefix):
        yield sessions
        if len(sessions) < SLICE:
            return
        after = sessions[-1].client_id
        await asyncio.sleep(0)


async def page(
    registry: SessionRegistry,
    wanted: Selection,
    order: str,
    limit: int,
    cursor: Cursor | None,
    row: Callable[[Session], Mapping[str, Any]],
) -> Spec:
    """A page of rows of sessions; ``next`` is where the following one begins.

    Raises:
        Invalid: there is no such order.
    """
    sessions, following = await _sessions(registry, wanted, order, limit, cursor)
    total = len(registry) if wanted.is_everything else None
    number = ORDERS.get(order.lstrip("-"), _no_number)
    is_falling = order.startswith("-")
    return {
        "items": [row(session) for session in sessions],
        "next": following,
        "total": total,
        "places": [(number(session), session.client_id) for session in sessions],
        "falls": (is_falling, is_falling and number is _no_number),
    }


def _no_number(_session: Session) -> int:
    return 0


async def _sessions(
    registry: SessionRegistry, wanted: Selection, order: str, limit: int, cursor: Cursor | None
) -> tuple[Sequence[Session], Cursor | None]:
    if order == "clientid":
        return await _by_client_id(registry, wanted, limit, cursor)
    if order == "-clientid":
        return await _by_client_id_falling(registry, wanted, limit, cursor)
    name = order.lstrip("-")
    is_falling = order.startswith("-")
    number = ORDERS.get(name)
    if number is None:
        there_are = ", ".join(["clientid", *ORDERS])
        raise Invalid(
            "the list has no such order",
            [Problem(f"{order!r} is none; there are {there_are}", "/query/sort")],
        )
    return await _by_number(registry, wanted, number, is_falling, limit, cursor)


async def _by_client_id(
    registry: SessionRegistry, wanted: Selection, limit: int, cursor: Cursor | None
) -> tuple[Sequence[Session], Cursor | None]:
    tests = wanted.tests()
    matching = list[Session]()
    async for some in slices(registry, cursor[1] if cursor else "", wanted.prefix):
        for session in some:
            if all(test(session) for test in tests):
                if len(matching) == limit:
                    return matching, (0, matching[-1].client_id)
                matching.append(session)
    return matching, None


async def _by_client_id_falling(
    registry: SessionRegistry, wanted: Selection, limit: int, cursor: Cursor | None
) -> tuple[Sequence[Session], Cursor | None]:
    tests = wanted.tests()
    last = deque[Session](maxlen=limit + 1)
    async for some in slices(registry, "", wanted.prefix):
        before = [session for session in some if cursor is None or session.client_id < cursor[1]]
        last.extend(session for session in before if all(test(session) for test in tests))
        if len(before) < len(some):
            break
    page_of_them = list(last)[-limit:][::-1]
    return page_of_them, (0, page_of_them[-1].client_id) if len(last) > limit else None


async def _by_number(
    registry: SessionRegistry,
    wanted: Selection,
    number: Callable[[Session], int],
    is_falling: bool,
    limit: int,
    cursor: Cursor | None,
) -> tuple[Sequence[Session], Cursor | None]:
    tests = wanted.tests()
    sign = -1 if is_falling else 1
    behind = (sign * cursor[0], cursor[1]) if cursor else None
    best: list[tuple[int, str, Any]] = []
    async for some in slices(registry, "", wanted.prefix):
        placed = [
            (sign * number(session), session.client_id, session)
            for session in some
            if all(test(session) for test in tests)
        ]
        best = nsmallest(
            limit + 1, [*best, *(place for place in placed if behind is None or place[:2] > behind)]
        )
    sessions = [session for _, _, session in best[:limit]]
    if len(best) <= limit:
        return sessions, None
    last = best[limit - 1]
    return sessions, (sign * last[0], last[1])


def _text(pattern: str, of: Callable[[Session], str | None]) -> Test:
    if not any(sign in _GLOB for sign in pattern):
        return lambda session: of(session) == pattern
    matches = compiled(translate(pattern)).match
    return lambda session: matches(of(session) or "") is not None
