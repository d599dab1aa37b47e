"""The live state of the broker in one object: clients, sessions, subscriptions, retained
messages, topics."""

from __future__ import annotations

from broker.admin.clients import ClientService
from broker.admin.retained import RetainedService
from broker.admin.sessions import SessionService
from broker.admin.subscriptions import SubscriptionService
from broker.admin.tails import MessageTails
from broker.admin.topics import TopicService
from broker.connection.hub import Hub


class Traffic:
    """The services of one node."""

    def __init__(self, hub: Hub, tails: MessageTails) -> None:
        self.clients = ClientService(hub, tails)
        self.sessions = SessionService(hub)
        self.subscriptions = SubscriptionService(hub)
        self.retained = RetainedService(hub)
        self.topics = TopicService(hub)
        self._writer = hub.context.writer

    async def stored(self) -> None:
        """Wait until all that was published so far is committed, where it is kept.

        Raises:
            broker.core.errors.Unavailable: the store takes nothing.
        """
        await self._writer.committed()
