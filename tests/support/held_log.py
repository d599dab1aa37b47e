"""A commit log whose servers elect a leader: what is added waits until the test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

from broker.storage.commit_log import Entry, Mark, Steps

_LATE_S: Final = 5.0


class HeldLog:
    """Implements ``broker.storage.commit_log.CommitLog``."""

    def __init__(self) -> None:
        self._position = 0
        self._may = threading.Event()
        self._may.set()
        self._is_asked = threading.Event()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """The block runs while a commit waits. Where the loop itself waits for that, it goes on after some seconds, and
        the block has failed."""
        self._is_asked.clear()
        self._may.clear()
        late = threading.Timer(_LATE_S, self._may.set)
        late.start()
        try:
            yield
            assert not self._may.is_set(), "the loop has waited for the log"
        finally:
            late.cancel()
            self._may.set()

    async def asked(self) -> None:
        """Wait until the writer waits for the log."""
        await asyncio.to_thread(self._is_asked.wait)

    def follow(self, after: Mark) -> Iterator[Entry]:
        return iter(())

    def claim(self, applied: Mark, *, has_base: bool = False) -> Mark | None:
        return self._next()

    def append(self, steps: Steps) -> Mark:
        self._is_asked.set()
        self._may.wait()
        return self._next()

    def decide(self) -> Mark:
        return Mark(self._position, 1, self._position)

    def give_up(self, reason: str) -> None:
        raise AssertionError(reason)

    def trim(self, position: int) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to release."""

    def _next(self) -> Mark:
        self._position += 1
        return Mark(self._position, 1, self._position)
