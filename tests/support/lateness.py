"""How long one turn of an event loop keeps its thread, seen from inside of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Lateness:
    """``worst_s`` is the longest turn so far, in seconds of the thread's processor time: what others
    have of the machine does not count."""

    def __init__(self) -> None:
        self.worst_s = 0.0

    async def look(self) -> None:
        """Look at every turn until cancelled."""
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            self.worst_s = max(self.worst_s, time.thread_time() - before_s)


@asynccontextmanager
async def observed() -> AsyncIterator[Lateness]:
    """Watch the running loop meanwhile."""
    lateness = Lateness()
    task = asyncio.create_task(lateness.look(), name="lateness")
    try:
        yield lateness
        await asyncio.sleep(0)
    finally:
        task.cancel()
