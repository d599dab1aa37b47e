"""How long the work of an event loop keeps others waiting, seen from inside of it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

_EVERY_S: Final = 0.002


class Lateness:
    """``worst_s`` is the longest that the loop was at work from one look to the next, in seconds of the thread's
    processor time: what others have of the machine does not count."""

    def __init__(self) -> None:
        self.worst_s = 0.0
        self._looked = asyncio.Event()

    async def look(self) -> None:
        """Look every other millisecond until cancelled."""
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(_EVERY_S)
            self.worst_s = max(self.worst_s, time.thread_time() - before_s)
            self._looked.set()

    async def take(self) -> float:
        """The worst up to now, what is under way included; then starts again at 0."""
        for _ in range(2):
            self._looked.clear()
            await self._looked.wait()
        worst_s, self.worst_s = self.worst_s, 0.0
        return worst_s


@asynccontextmanager
async def observed() -> AsyncIterator[Lateness]:
    """Watch the running loop meanwhile."""
    gc.collect()
    gc.freeze()  # as a broker does after its start: what other tests left in this process is none of its work
    lateness = Lateness()
    task = asyncio.create_task(lateness.look(), name="lateness")
    try:
        yield lateness
    finally:
        task.cancel()
