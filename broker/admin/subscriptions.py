"""Subscriptions: listed by client, by filter, and by a topic that they match."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final

from broker.admin import listing
from broker.admin.session_rows import subscription_row
from broker.connection.hub import Hub
from broker.core.objects import Spec
from broker.core.subscription import Subscription
from broker.core.topic import check_topic_name
from broker.session.session import Session

_SLICE: Final = 2000

# Client and filter of the last one shown.
Cursor = tuple[str, str]
_Row = tuple[Session, Subscription]


@dataclass(frozen=True, slots=True)
class SubscriptionSelection:
    """Criteria that select subscriptions; a criterion that is None is ignored. ``filter`` is as subscribed, ``match``
    a topic."""

    client_id: str | None = None
    filter: str | None = None
    match: str | None = None
    share_group: str | None = None
    durable: bool | None = None
    qos: int | None = None

    def includes(self, session: Session, subscription: Subscription) -> bool:
        """True if a subscription is selected, apart from the topic."""
        if self.filter is not None and subscription.filter.text != self.filter:
            return False
        if self.share_group is not None and subscription.filter.share_group != self.share_group:
            return False
        if self.qos is not None and subscription.qos != self.qos:
            return False
        return self.durable is None or session.is_durable is self.durable


class SubscriptionService:
    """Lists subscriptions by client, by filter and by topic. Used on the event loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def page(self, limit: int, cursor: Cursor | None, **filters: Any) -> Spec:
        """A page in the order of client identifiers and filters; filters are those of a ``SubscriptionSelection``.

        Raises:
            broker.core.errors.PeerError: the topic to match is not a valid topic name.
        """
        wanted = SubscriptionSelection(**filters)
        if wanted.match is not None:
            check_topic_name(wanted.match)
            rows = await self._matching(wanted, wanted.match, limit, cursor)
        elif wanted.client_id is not None:
            session = self._hub.sessions.get(wanted.client_id)
            rows = [] if session is None else self._of(session, wanted, cursor)[: limit + 1]
        else:
            rows = await self._all(wanted, limit, cursor)
        is_everything = wanted == SubscriptionSelection()
        last = rows[limit - 1] if len(rows) > limit else None
        return {
            "items": [subscription_row(*row) for row in rows[:limit]],
            "next": None if last is None else _place(last),
            "total": self._hub.router.subscription_count if is_everything else None,
            "places": [_place(row) for row in rows[:limit]],
        }

    async def _all(
        self, wanted: SubscriptionSelection, limit: int, cursor: Cursor | None
    ) -> list[_Row]:
        rows: list[_Row] = []
        if cursor is not None and (session := self._hub.sessions.get(cursor[0])) is not None:
            rows += self._of(session, wanted, cursor)
        async for some in listing.slices(self._hub.sessions, cursor[0] if cursor else ""):
            for session in some:
                rows += self._of(session, wanted, None)
                if len(rows) > limit:
                    return rows
        return rows

    async def _matching(
        self, wanted: SubscriptionSelection, topic: str, limit: int, cursor: Cursor | None
    ) -> list[_Row]:
        """The first of those that match, from among all of them, a part at a time."""
        best: list[tuple[Cursor, _Row]] = []
        matching = [*self._hub.router.matching(topic), *self._members(topic)]
        for part in _parts(matching):
            rows = [
                (_place(row), row)
                for row in part
                if wanted.client_id in (None, row[0].client_id) and wanted.includes(*row)
            ]
            behind = [candidate for candidate in rows if cursor is None or candidate[0] > cursor]
            best = nsmallest(limit + 1, [*best, *behind], key=lambda candidate: candidate[0])
            await asyncio.sleep(0)
        return [row for _, row in best]

    def _members(self, topic: str) -> Iterator[_Row]:
        """The memberships of the share groups that get messages on a topic."""
        groups = self._hub.share_groups.groups
        for key in self._hub.router.matching_groups(topic):
            group = groups[key]
            for member in group.members.values():
                subscription = member.session.subscriptions.get(group.filter.text)
                if subscription is not None:
                    yield member.session, subscription

    def _of(
        self, session: Session, wanted: SubscriptionSelection, cursor: Cursor | None
    ) -> list[_Row]:
        return [
            (session, item)
            for text, item in sorted(session.subscriptions.items())
            if (cursor is None or (session.client_id, text) > cursor)
            and wanted.includes(session, item)
        ]


def _place(row: _Row) -> Cursor:
    return row[0].client_id, row[1].filter.text


def _parts(rows: list[_Row]) -> Iterator[list[_Row]]:
    for start in range(0, len(rows), _SLICE):
        yield rows[start : start + _SLICE]
