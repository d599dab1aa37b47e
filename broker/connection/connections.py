"""All connections of a node: who holds what for one, and what follows when one ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from broker.auth.access import Access
from broker.connection.announce import Announcements
from broker.connection.connection import Connection
from broker.connection.figures import Figures
from broker.connection.publish_rate import PublishRates
from broker.connection.session_life import SessionLife
from broker.connection.state import NodeState


class Holder(Protocol):
    """Something that keeps connections which wait for it."""

    def abandon(self, c: Connection, /) -> None:
        """The connection has ended."""
        ...


class Connections:
    """All connections of a node; implements ``broker.connection.connection.Registry``.

    ``parked_by`` are those that park connections, ``held_by`` those that know them otherwise.
    """

    def __init__(
        self,
        *,
        all: set[Connection],
        parked_by: Sequence[Holder],
        held_by: Sequence[Holder],
        life: SessionLife,
        announcements: Announcements,
        publish_rates: PublishRates,
        access: Access,
        figures: Figures,
        state: NodeState,
    ) -> None:
        self._all, self._parked_by, self._held_by = all, parked_by, held_by
        self._life, self._announcements, self._publish_rates = life, announcements, publish_rates
        self._access, self._figures, self._state = access, figures, state

    def opened(self, c: Connection) -> None:
        """A link is open."""
        self._all.add(c)
        c.meter = self._publish_rates.meter(c)

    def ended(self, c: Connection, why: str, *, is_will_due: bool, properties: dict[str, Any] | None) -> None:
        """A link is closed: nothing waits for it any more, and its session is on its own."""
        if c.is_parked:
            for holder in self._parked_by:
                holder.abandon(c)
        for holder in self._held_by:
            holder.abandon(c)
        self._all.discard(c)
        self._state.aliased.bytes -= c.alias_bytes
        self._state.greeted.bytes -= c.user_property_bytes
        c.alias_bytes = c.user_property_bytes = 0
        c.aliases.clear()
        if not c.is_connected:
            return
        self._figures.closed.value += 1
        self._figures.disconnected(why)
        self._access.flapping.disconnected(c.client.client_id)
        self._figures.connected_by_version[c.version] -= 1
        if c.session.owner is c:
            self._life.detached(c.session, is_will_due=is_will_due)
        self._announcements.disconnected(c, why, properties)

    def renew_meters(self) -> None:
        """Measure what clients publish by the limits of this moment."""
        for c in self._all:
            c.meter = self._publish_rates.meter(c)

    def tick(self, now_s: float) -> None:
        """End those whose clients said nothing for too long."""
        for c in list(self._all):
            if now_s > c.deadline_s:
                c.on_deadline()

    def forget_permits(self) -> None:
        """What clients mean by a topic has changed: whether they may publish there is to be decided again."""
        for c in self._all:
            if c.permits is not None:
                c.permits.forget()

    def forget_old_permits(self, now_s: float) -> None:
        """Forget what was decided longer ago than it may count."""
        for c in self._all:
            if c.permits is not None:
                c.permits.forget_old(now_s)
