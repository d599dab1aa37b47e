"""Clients of aiokafka, ended for good although the cluster does not answer.

Their own ``stop`` waits for the cluster; cut short it leaves tasks behind, which go on when the cluster is back: a
producer would send old batches after newer ones, and a consumer would take partitions of its group. That is why private
members are used here.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

_STOP_S: Final = 2.0
_CLOSE_S: Final = 1.0


async def end_producer(producer: Any) -> None:
    """End a producer; what it still has is not sent any more. Takes seconds at most."""
    producer._closed = True
    sender = producer._sender.sender_task
    if sender is not None:
        sender.cancel()
    await _at_most(_CLOSE_S, producer.client.close)
    while sender is not None and not sender.done():
        # it waits for requests that are on the way, and their tasks for new metadata; each cancel ends one of them
        await asyncio.wait((sender,), timeout=_CLOSE_S)
        sender.cancel()
    if sender is not None and not sender.cancelled():
        sender.exception()
    await _at_most(_CLOSE_S, producer.client.close)  # connections that the sender made meanwhile


async def end_consumer(consumer: Any) -> None:
    """Leave the group and end a consumer."""
    await _at_most(_STOP_S, consumer.stop)
    if consumer._coordinator is not None:
        for stop in ("_stop_heartbeat_task", "_stop_commit_offsets_refresh_task"):
            if hasattr(consumer._coordinator, stop):
                await _at_most(_CLOSE_S, getattr(consumer._coordinator, stop))
    if consumer._fetcher is not None:
        await _at_most(_CLOSE_S, consumer._fetcher.close)
    await _at_most(_CLOSE_S, consumer._client.close)


async def _at_most(seconds: float, finish: Any) -> None:
    with suppress(Exception):
        async with asyncio.timeout(seconds):
            await finish()
