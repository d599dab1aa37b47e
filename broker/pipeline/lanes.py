"""Messages made inside the broker whose gates wait for another process: a lane for each topic, processed in order.

Who publishes them (rules, wills, the API) cannot be held back as a client is, so they wait here, in memory, within
bounds; one that does not fit is refused and counted. A topic's lane is there as long as something waits in it, and
everything published to the topic until then goes behind that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from logging import getLogger
from typing import Final

from broker.core.message import Message
from broker.core.stage import Outcome
from broker.observe.metrics import Metrics

_log = getLogger(__name__)

FULL: Final = "waiting_full"
GIVEN_UP: Final = "shutting_down"


@dataclass(frozen=True, slots=True)
class LaneBounds:
    """Maximum that may wait in all lanes together."""

    messages: int = 10_000
    size_bytes: int = 64 * 1024 * 1024


@dataclass(slots=True, eq=False)
class _Waiting:
    message: Message
    done: list[asyncio.Future[Outcome]] = field(default_factory=list)


class Lanes:
    """Lanes for messages made inside the broker whose gates wait.

    ``topics`` holds the lanes by topic; the publish path reads it.
    """

    def __init__(
        self,
        settle: Callable[[Message], Awaitable[Outcome]],
        refuse: Callable[[Message, str, str], Outcome],
        bounds: LaneBounds,
        metrics: Metrics,
    ) -> None:
        self._settle = settle
        self._refuse = refuse
        self._bounds = bounds
        self.topics: dict[str, deque[_Waiting]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._messages = self._bytes = 0
        self._is_closed = False
        metrics.gauge(
            "messages_waiting",
            lambda: self._messages,
            "messages made inside the broker whose gates wait for a process",
        )

    def put(self, message: Message) -> Outcome:
        """Give a message its place behind those of its topic."""
        if self._is_closed:
            return self._refuse(message, GIVEN_UP, "the broker is being stopped")
        if self._messages >= self._bounds.messages or self._bytes >= self._bounds.size_bytes:
            return self._refuse(
                message, FULL, f"{self._messages} messages wait for other processes already"
            )
        lane = self.topics.setdefault(message.topic, deque())
        lane.append(_Waiting(message))
        self._messages += 1
        self._bytes += len(message.payload)
        if message.topic not in self._tasks:
            self._tasks[message.topic] = asyncio.create_task(
                self._work(message.topic, lane), name="waiting lane"
            )
        return Outcome(0, is_waiting=True)

    def outcome_of_last(self, topic: str) -> asyncio.Future[Outcome]:
        """Future outcome of the message that was put last into the lane of a topic."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.topics[topic][-1].done.append(done)
        return done

    async def close(self, deadline_s: float) -> None:
        """Let what waits be decided, and refuse what is not within the time."""
        self._is_closed = True
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=deadline_s)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in list(self.topics.values()):
            for waiting in lane:
                _tell(
                    waiting,
                    self._refuse(
                        waiting.message, GIVEN_UP, "the broker was stopped before it was decided"
                    ),
                )
        self.topics.clear()

    async def _work(self, topic: str, lane: deque[_Waiting]) -> None:
        try:
            while lane:
                waiting = lane[0]
                outcome = await self._decided(waiting.message)
                lane.popleft()
                self._messages -= 1
                self._bytes -= len(waiting.message.payload)
                _tell(waiting, outcome)
            del self.topics[topic]
        finally:
            del self._tasks[topic]

    async def _decided(self, message: Message) -> Outcome:
        try:
            return await self._settle(message)
        except Exception:  # noqa: BLE001  one message must not stop those behind it
            _log.exception("lane.failed topic=%s", message.topic)
            return self._refuse(message, "internal_error", "its stages failed; see the log")


def _tell(waiting: _Waiting, outcome: Outcome) -> None:
    for done in waiting.done:
        if not done.done():
            done.set_result(outcome)
