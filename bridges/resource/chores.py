"""What changes of objects leave to be done: in order for each name, beside whoever asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from broker.observe.log import get_logger

_log = get_logger(__name__)

Chore = Callable[[], Coroutine[Any, Any, None]]


class Chores:
    """Runs chores on the event loop."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Task[None]] = {}

    def add(self, name: str, chore: Chore) -> asyncio.Task[None]:
        """Run it once what was added for that name before is done."""
        before = self._last.get(name)
        task = asyncio.create_task(self._run(name, chore, before), name=f"chore of {name}")
        self._last[name] = task
        task.add_done_callback(lambda done: self._forget(name, done))
        return task

    async def all_done(self) -> None:
        """Wait until nothing is left to be done."""
        while self._last:
            await asyncio.wait(list(self._last.values()))

    async def _run(self, name: str, chore: Chore, before: asyncio.Task[None] | None) -> None:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        try:
            await chore()
        except Exception:  # noqa: BLE001 - one object must not stop the others
            _log.exception("bridge.chore_failed", object=name)

    def _forget(self, name: str, task: asyncio.Task[None]) -> None:
        if self._last.get(name) is task:
            del self._last[name]
