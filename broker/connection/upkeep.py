"""Effects of time on stored messages: delayed ones are published, retained ones expire.

Much of it can be due at one moment, so it is done in parts, one in each turn of the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from broker.connection.context import TICK_S, Context
from broker.core.message import Message
from broker.core.stage import Outcome
from broker.routing.delayed import Delayed
from broker.routing.retained_store import Retained


class Upkeep:
    """Acts when time passes; ``tick`` is called every ``TICK_S``."""

    def __init__(
        self,
        context: Context,
        delayed: Delayed,
        retained: Retained,
        publish: Callable[[Message], Outcome],
        decided: Callable[[str], Awaitable[Outcome]],
    ) -> None:
        self._context = context
        self._delayed = delayed
        self._retained = retained
        self._publish = publish
        self._decided = decided
        self._is_awaited = False
        gauge = context.metrics.gauge
        gauge("retained_messages", lambda: retained.count, "topics with a retained message")
        gauge(
            "retained_bytes", lambda: retained.size_bytes, "bytes of retained messages with topics"
        )

    def tick(self) -> None:
        """Act on what time has brought."""
        self._publish_delayed()
        self._sweep_retained()

    def _publish_delayed(self) -> None:
        """Publish delayed messages that are due, and come again for those that are due before the next tick."""
        if self._context.is_stopping:
            return
        following_s = self._delayed.run(self._publish, self._decided)
        if following_s < TICK_S and not self._is_awaited:
            self._is_awaited = True
            self._context.later(following_s, self._come_again)

    def _come_again(self) -> None:
        self._is_awaited = False
        self._publish_delayed()

    def _sweep_retained(self) -> None:
        """Forget retained messages that have expired."""
        if (
            self._context.writer.failure is None
            and self._retained.sweep()
            and not self._context.is_stopping
        ):
            self._context.later(0, self._sweep_retained)
