"""Who is connected and what waits for them, as one thing to hand on: clients, sessions, subscriptions, retained
messages."""

from __future__ import annotations

from broker.admin.clients import ClientDesk
from broker.admin.retained import RetainedDesk
from broker.admin.sessions import SessionDesk
from broker.admin.subscriptions import SubscriptionDesk
from broker.connection.hub import Hub


class Traffic:
    """The desks of one node."""

    def __init__(self, hub: Hub) -> None:
        self.clients = ClientDesk(hub)
        self.sessions = SessionDesk(hub)
        self.subscriptions = SubscriptionDesk(hub)
        self.retained = RetainedDesk(hub)
        self._writer = hub.context.writer

    async def stored(self) -> None:
        """Wait until all that was published so far is committed, where it is kept.

        Raises:
            broker.core.errors.Unavailable: the store takes nothing.
        """
        await self._writer.committed()
