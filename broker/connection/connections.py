"""All connections of a node: who holds what for one, and what follows when one ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from broker.auth.access import Access
from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.events import ClientEvents
from broker.connection.publish_rate import PublishRates
from broker.connection.sessions.lifecycle import SessionLife

_STALE_TICKS: Final = 240


class Holder(Protocol):
    """Something that keeps connections which wait for it."""

    def abandon(self, c: Connection, /) -> None:
        """The connection has ended."""


class Connections:
    """All connections of a node."""

    def __init__(
        self,
        context: Context,
        all: set[Connection],
        *,
        holders: Sequence[Holder],
        life: SessionLife,
        client_events: ClientEvents,
        publish_rates: PublishRates,
        access: Access,
    ) -> None:
        self._context, self._all, self._holders, self._life = context, all, holders, life
        self._client_events, self._publish_rates, self._access = client_events, publish_rates, access
        self._ticks = 0

    def opened(self, c: Connection) -> None:
        """A link is open."""
        self._all.add(c)
        c.meter = self._publish_rates.meter(c)

    def ended(self, c: Connection, why: str, is_will_due: bool, properties: dict[str, Any] | None) -> None:
        """A link is closed: nothing waits for it any more, and its session is on its own."""
        for holder in self._holders:
            holder.abandon(c)
        self._all.discard(c)
        self._context.aliased.bytes -= c.alias_bytes
        self._context.greeted.bytes -= c.user_property_bytes
        c.alias_bytes = c.user_property_bytes = 0
        c.aliases.clear()
        if not c.is_connected:
            return
        figures = self._context.figures
        figures.closed.value += 1
        figures.disconnected(why)
        self._access.flapping.disconnected(c.client.client_id)
        figures.connected_by_version[c.version] -= 1
        if c.session.owner is c:
            self._life.detached(c.session, is_will_due=is_will_due)
        self._client_events.disconnected(c, why, properties)

    def renew_meters(self) -> None:
        """Measure what clients publish by the limits of this moment."""
        for c in self._all:
            c.meter = self._publish_rates.meter(c)

    def tick(self) -> None:
        """End those whose clients were silent for too long."""
        now_s = self._context.now_s
        for c in list(self._all):
            if now_s > c.deadline_s:
                c.on_deadline()
        self._ticks += 1
        if self._ticks % _STALE_TICKS == 0:
            self._access.forget_old()
            for c in self._all:
                if c.permits is not None:
                    c.permits.forget_old(now_s)

    def forget_permits(self) -> None:
        """What clients mean by a topic has changed: whether they may publish there is to be decided again."""
        for c in self._all:
            if c.permits is not None:
                c.permits.forget()
