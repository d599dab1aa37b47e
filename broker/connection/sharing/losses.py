"""Messages that nobody of a share group gets: the event that rules may read, and the dead letter.

What a group discards since its last member left is not lost: it is counted (``group_ended``), and that is all.
"""

from __future__ import annotations

from broker.connection.dead_letters import DeadLetters
from broker.core.client import Client
from broker.core.events import Events
from broker.core.message import Message
from broker.core.topic import TopicFilter
from broker.pipeline.columns import delivery_columns


class GroupLosses:
    """Implements ``sharing.services.Losses``. To rules, the client that did not get a message is the group."""

    def __init__(self, events: Events, dead_letters: DeadLetters) -> None:
        self._events, self._dead_letters = events, dead_letters

    def wants(self, why: str) -> bool:
        """Whether a rule or a dead letter is made of it."""
        return "delivery.dropped" in self._events.wanted or why in self._dead_letters.reasons

    def take(self, topic_filter: TopicFilter, message: Message, why: str) -> None:
        """A group has lost a message."""
        if "delivery.dropped" in self._events.wanted:
            columns = delivery_columns(message, Client(topic_filter.text))
            self._events.emit("delivery.dropped", {**columns, "reason": why}, message)
        self._dead_letters.take_of_group(topic_filter, message, why)
