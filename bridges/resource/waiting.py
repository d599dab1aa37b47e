"""Waiting with a bound, in a way that can be cancelled at any moment.

``asyncio.wait_for`` swallows a cancellation that comes in the same turn as what is waited for (CPython 3.11, gh-86296);
``asyncio.timeout`` does not.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any


async def until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, whatever that is; also while whoever waits is being cancelled."""
    task.cancel()
    await asyncio.wait((task,))
