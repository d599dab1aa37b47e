"""Meaning of a topic when a client publishes to it: refused, rewritten, or kept to be published later.

Worked out once a topic and kept in its plan, so that topics which mean themselves cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.core import reason
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.message import Message
from broker.core.stage import GateCall, Refusal
from broker.core.topic import (
    DELAYED_PREFIX,
    RESERVED_PREFIXES,
    is_bridge_state,
    is_reserved,
    reserved_topic,
)
from broker.pipeline.plan import Resolve, SessionRoutes, TopicPlan
from broker.routing.delayed import Delayed
from broker.routing.rewrite import Rewrite, Rewrites, UnsafeName

FinalPlan = Callable[[bytes], TopicPlan]


class Taken(SessionRoutes):
    """In place of subscribers: the message was taken by a gate of its plan."""

    def __init__(self) -> None:
        super().__init__((), (), lambda outgoing, targets, is_addressed: None)
        self.is_empty = self.is_plain = self.is_live = False

    def deliver(self, message: Message, topic: bytes | None = None) -> int:
        """A subscriber has it."""
        return 1


class ClientTopics:
    """Gives plans their special cases; implements ``broker.pipeline.plan.TopicMeanings``."""

    def __init__(self, rewrites: Rewrites, delayed: Delayed) -> None:
        self._rewrites, self._delayed, self._taken = rewrites, delayed, Taken()

    def for_clients(self, topic: str, final: FinalPlan) -> Resolve | None:
        """Function by which clients that publish to a topic get their plan; None for the topic's own."""
        prefix, inner = _split_delay(topic)
        if inner.startswith(RESERVED_PREFIXES):
            refused = self._reserved(topic)
            if is_bridge_state(topic):
                return lambda client: final(topic.encode()) if client.is_bridge else refused
            return lambda client: refused
        rewrite = self._rewrites.of_topic(inner)
        if rewrite is None and not prefix:
            return None
        if rewrite is None:
            delayed = self._delayed_plan(topic, topic.encode(), self._delayed.take_from_client)
            return lambda client: delayed

        def resolve(client: Client) -> TopicPlan:
            return self._rewritten(topic, prefix, inner, rewrite, client, final)

        return resolve

    def meaning(self, topic: str, client: Client) -> str:
        """The topic that a client's message is published on, or the one it named where that is refused."""
        prefix, inner = _split_delay(topic)
        rewrite = None if inner.startswith(RESERVED_PREFIXES) else self._rewrites.of_topic(inner)
        if rewrite is None:
            return topic
        try:
            meant = rewrite.apply(inner, client)
        except UnsafeName:
            return topic
        return topic if is_reserved(meant) else prefix + meant

    def special(self, topic: str, topic_bytes: bytes) -> TopicPlan | None:
        """The plan of a topic whose messages are published later."""
        if not topic.startswith(DELAYED_PREFIX):
            return None
        return self._delayed_plan(topic, topic_bytes, self._delayed.take)

    def _rewritten(
        self,
        topic: str,
        prefix: str,
        inner: str,
        rewrite: Rewrite,
        client: Client,
        final: FinalPlan,
    ) -> TopicPlan:
        try:
            meant = rewrite.apply(inner, client)
            if is_reserved(meant):  # captured from the topic that the client wrote
                return self._reserved(topic)
            plan = final((prefix + meant).encode())
            if not plan.topic.startswith(DELAYED_PREFIX):
                return plan
            return self._delayed_plan(plan.topic, plan.topic_bytes, self._delayed.take_from_client)
        except (UnsafeName, PeerError) as error:
            text = f"rewrite {rewrite.name!r} makes no topic of it: {error}"
            return self._refusing(
                topic,
                Refusal("rewrite", rewrite.name, "rewrite_failed", reason.TOPIC_NAME_INVALID, text),
            )

    def _delayed_plan(self, topic: str, topic_bytes: bytes, take: GateCall) -> TopicPlan:
        return TopicPlan(topic, topic_bytes, (("delayed", take),), (), self._taken)

    def _reserved(self, topic: str) -> TopicPlan:
        text = str(reserved_topic(topic))
        return self._refusing(
            topic, Refusal("topic", "topic", "reserved_topic", reason.NOT_AUTHORIZED, text)
        )

    def _refusing(self, topic: str, refusal: Refusal) -> TopicPlan:
        return TopicPlan(
            topic, topic.encode(), (("entrance", lambda message: refusal),), (), self._taken
        )


def _split_delay(topic: str) -> tuple[str, str]:
    """``$delayed/5/`` and ``a/b`` of ``$delayed/5/a/b``; nothing and the topic of all others."""
    if not topic.startswith(DELAYED_PREFIX):
        return "", topic
    at = topic.find("/", len(DELAYED_PREFIX)) + 1
    return (topic[:at], topic[at:]) if at else ("", topic)
