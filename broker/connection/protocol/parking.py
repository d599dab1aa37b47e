"""Connections whose message waits for another process: not read from until it is decided.

The message is the only one of its publisher that is under way, so order and acknowledgements need no care: what came
behind it is read afterwards. No one else waits. A connection that ends before that takes its message with it: it was
not acknowledged, so a publisher that wants to be sure sends it again, and nothing that follows (a will, what the client
publishes after it came back) is overtaken by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.connection.link import Peer
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.observe.metrics import Metrics
from broker.pipeline.pipeline import Pipeline
from broker.pipeline.plan import TopicPlan

Decided = Message | Refusal
PUBLISHER_GONE: Final = "publisher_gone"


class Parking:
    """The parked connections of a node."""

    def __init__(self, pipeline: Pipeline, metrics: Metrics) -> None:
        self._pipeline = pipeline
        self._tasks: dict[Peer, asyncio.Task[None]] = {}
        self._parked = metrics.counter(
            "publishes_parked", "publishes of clients that waited for another process to be decided"
        )
        metrics.gauge(
            "connections_parked",
            lambda: len(self._tasks),
            "clients whose publish waits for another process",
        )

    def park(
        self, c: Peer, message: Message, plan: TopicPlan, finish: Callable[[Decided], None]
    ) -> None:
        """Read nothing more from a connection until its message is decided; then ``finish`` with the decision."""
        c.is_parked = True
        c.hold(self)
        self._parked.value += 1
        name = f"parked {c.client.client_id}"
        self._tasks[c] = asyncio.create_task(self._decide(c, message, plan, finish), name=name)

    def abandon(self, c: Peer) -> None:
        """The connection has ended: its message is discarded."""
        task = self._tasks.pop(c, None)
        if task is not None:
            task.cancel()
            self._pipeline.dropped(PUBLISHER_GONE).value += 1

    async def _decide(
        self, c: Peer, message: Message, plan: TopicPlan, finish: Callable[[Decided], None]
    ) -> None:
        decided = await self._pipeline.decide(message, plan)
        del self._tasks[c]
        c.go_on(lambda: finish(decided))
        if not c.is_parked:
            c.let_go(self)
