"""All connections of a node."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final

from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.publish_rate import PublishRates

_STALE_TICKS: Final = 240


class Connections:
    """All connections of a node, from the opening of their link to its end."""

    def __init__(self, context: Context) -> None:
        self._context, self._publish_rates = context, PublishRates(context)
        self._all: set[Connection] = set()
        self._ticks = 0
        context.metrics.gauge("connections", lambda: len(self._all), "clients connected")

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._all))

    def opened(self, c: Connection) -> None:
        """A link is open."""
        self._all.add(c)
        c.meter = self._publish_rates.meter(c)

    def abandon(self, c: Connection) -> None:
        """The connection has ended."""
        self._all.discard(c)

    def limit_listener(self, name: str, messages: float, size_bytes: float) -> None:
        """Limit what all clients of a listener publish together, per second; 0 is no limit."""
        self._publish_rates.add_listener(name, messages, size_bytes)
        self.renew_meters()

    def of_users(self, names: Container[str]) -> list[str]:
        """Identifiers of the clients that are connected as these users of the broker's own."""
        accounts = ((c, c.subject.account) for c in self._all if c.subject is not None)
        return [
            c.client.client_id
            for c, account in accounts
            if account is not None and account.name in names
        ]

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
            for c in self._all:
                if c.permits is not None:
                    c.permits.forget_old(now_s)

    def forget_permits(self) -> None:
        """The meaning of topics has changed: decide again whether clients may publish there."""
        for c in self._all:
            if c.permits is not None:
                c.permits.forget()
