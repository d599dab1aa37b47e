"""The live state of the broker in one object: clients, sessions, subscriptions, retained
messages, topics."""

from __future__ import annotations

from collections.abc import Callable

from broker.admin.clients import ClientService
from broker.admin.retained import RetainedService
from broker.admin.sessions import SessionService
from broker.admin.subscriptions import SubscriptionService
from broker.admin.tails import MessageTails
from broker.admin.topic_receivers import ReceiverService
from broker.admin.topics import TopicService
from broker.connection.hub import Hub
from broker.core.contributor import TopicStage


class Traffic:
    """The services of one node."""

    def __init__(
        self,
        hub: Hub,
        tails: MessageTails,
        stages: Callable[[str], list[TopicStage]] = lambda topic: [],
    ) -> None:
        self.clients = ClientService(hub, tails)
        self.sessions = SessionService(hub)
        self.subscriptions = SubscriptionService(hub)
        self.retained = RetainedService(hub)
        self.topics = TopicService(hub)
        self.receivers = ReceiverService(hub, stages)
        self._writer = hub.context.writer

    async def stored(self) -> None:
        """Wait until all that was published so far is committed, where it is kept.

        Raises:
            broker.core.errors.Unavailable: the store takes nothing.
        """
        await self._writer.committed()
