"""A tail of other cells for the live channel: their messages as they come, within the bounds of the tail."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final

from broker.core import jsontext
from broker.core.objects import Spec

# Seconds after which a cell whose answer ended is asked again.
_AGAIN_S: Final = 1.0
# Bytes of messages that wait for the next frame; the oldest go first.
MAX_WAITING_BYTES: Final = 1024 * 1024


class TailsOfCells:
    """Follows the lines of a tail in each of these cells until it is closed. ``follow`` gives those of a cell."""

    def __init__(
        self,
        cells: Iterable[int],
        follow: Callable[[int], AsyncIterator[bytes]],
    ) -> None:
        self._follow = follow
        self._waiting: deque[tuple[Spec, int]] = deque()
        self._waiting_bytes = 0
        self._skipped = dict.fromkeys(cells, 0)
        self._skipped_here = 0
        self._tasks = [
            asyncio.create_task(self._read(cell), name=f"tail of cell {cell}")
            for cell in self._skipped
        ]

    @property
    def skipped(self) -> int:
        """Messages that matched and were not taken: the cells left them out, or they came too fast."""
        return self._skipped_here + sum(self._skipped.values())

    def take(self) -> list[Spec]:
        """The messages that came since the last call."""
        messages = [message for message, _ in self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        return messages

    def close(self) -> None:
        """Follow no more."""
        for task in self._tasks:
            task.cancel()

    async def _read(self, cell: int) -> None:
        while True:
            before = self._skipped[cell]
            async for chunk in self._follow(cell):
                for line in chunk.splitlines():
                    told = jsontext.decode(line)
                    if told["kind"] == "status":
                        self._skipped[cell] = before + told["skipped"]
                    else:
                        self._came(told, len(line))
            await asyncio.sleep(_AGAIN_S)

    def _came(self, message: Spec, size_bytes: int) -> None:
        self._waiting.append((message, size_bytes))
        self._waiting_bytes += size_bytes
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= self._waiting.popleft()[1]
            self._skipped_here += 1
