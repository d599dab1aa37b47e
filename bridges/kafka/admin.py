"""Questions to a cluster that any of its brokers answers: one that is gone does not hold up what the others know."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from aiokafka.admin import AIOKafkaAdminClient

from bridges.resource.errors import BadSettings

T = TypeVar("T")

_NEXT_S: Final = 1.0
"""A broker that has not answered for so long is not waited for alone."""


class Admin(AIOKafkaAdminClient):  # type: ignore[misc]  # aiokafka has no types
    """aiokafka's, which asks one broker at random, and waits for that one."""

    async def _send_request(self, request: Any, node_id: int | None = None) -> Any:
        numbers = self._in_turn()
        if node_id is not None or not numbers:
            return await super()._send_request(request, node_id)
        return await first_answer(partial(super(Admin, self)._send_request, request, number) for number in numbers)

    def _in_turn(self) -> Sequence[int]:
        """The brokers, those first that there is a connection to: aiokafka makes one at a time, also to who is gone."""
        connections = self._client._conns
        connected = {number for (number, _), one in connections.items() if one.connected()}
        numbers = [broker.nodeId for broker in self._client.cluster.brokers()]
        random.shuffle(numbers)
        return sorted(numbers, key=lambda number: number not in connected)


async def first_answer(asks: Iterable[Callable[[], Awaitable[T]]]) -> T:
    """The first that comes of at least one. Each is asked when those before have failed, or not answered for a while.

    Raises ``BadSettings`` at once, since others would say the same; else, where all fail, the last error.
    """
    waiting = iter(asks)
    ask = next(waiting, None)
    doing: set[asyncio.Future[T]] = set()
    error: BaseException | None = None
    try:
        while ask or doing:
            if ask:
                doing.add(asyncio.ensure_future(ask()))
            ask = next(waiting, None)
            done, doing = await asyncio.wait(doing, timeout=_NEXT_S if ask else None, return_when="FIRST_COMPLETED")
            for answered in done:
                error = answered.exception()
                if error is None:
                    return answered.result()
                if isinstance(error, BadSettings):
                    raise error
    finally:
        for one in doing:
            one.cancel()
    assert error is not None
    raise error
