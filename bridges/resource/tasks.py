"""Tasks and pauses: waiting with a bound, back-off between attempts, work that is done in order for each name."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from broker.core.values import Done, Values
from broker.observe.log import get_logger

_log = get_logger(__name__)

# A pause is up to this share of itself shorter, so that what failed together does not come again together.
JITTER: Final = 0.2
# A key without a value: deleting it makes a commit.
_NOTHING: Final = "bridges/nothing"


async def until_set(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most so long.

    ``asyncio.wait_for`` swallows a cancellation that comes in the same turn as what is waited for (CPython 3.11,
    gh-86296); ``asyncio.timeout`` does not.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end, whatever that is; also while the caller is being cancelled."""
    task.cancel()
    await asyncio.wait((task,))


def future_of_done() -> tuple[asyncio.Future[None], Done]:
    """A future, and the ``Done`` that completes it; one that was cancelled stays so."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return future, done


async def own_store(values: Values) -> None:
    """Return when a commit has shown that no other process has taken the store over.

    Raises:
        Unavailable: the commit failed.
    """
    values.put(_NOTHING, None)
    committed, done = future_of_done()
    values.when_committed(done)
    await committed


class Backoff:
    """Pauses between attempts: each twice the one before, up to a bound. ``chance`` gives numbers from 0 to 1."""

    __slots__ = ("_chance", "_first_s", "_most_s", "_next_s")

    def __init__(
        self, first_s: float, most_s: float, chance: Callable[[], float] = random.random
    ) -> None:
        self._first_s, self._most_s, self._chance = first_s, max(first_s, most_s), chance
        self._next_s = first_s

    def pause_s(self) -> float:
        """The next pause."""
        pause_s = self._next_s
        self._next_s = min(self._most_s, self._next_s * 2)
        return pause_s * (1 - JITTER * self._chance())

    def reset(self) -> None:
        """It went well: begin with the first again."""
        self._next_s = self._first_s


class SerialTasks:
    """Runs jobs on the event loop, those of one name one after the other."""

    def __init__(self) -> None:
        self._last: dict[str, asyncio.Task[None]] = {}

    def add(self, name: str, job: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run a job when all earlier jobs of that name are done."""

        async def run(before: asyncio.Task[None] | None) -> None:
            if before is not None and not before.done():
                await asyncio.wait((before,))
            try:
                await job()
            except Exception:  # noqa: BLE001 - one object must not stop the others
                _log.exception("bridge.change_failed", object=name)

        def forget(done: asyncio.Task[None]) -> None:
            if self._last.get(name) is done:
                del self._last[name]

        task = self._last[name] = asyncio.create_task(
            run(self._last.get(name)), name=f"change of {name}"
        )
        task.add_done_callback(forget)
        return task

    async def all_done(self) -> None:
        """Wait until no job is left."""
        while self._last:
            await asyncio.wait(list(self._last.values()))
