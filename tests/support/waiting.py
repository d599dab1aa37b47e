"""Waiting on a loop for what has no event of its own; ``node.eventually`` does the same where there is no loop."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

DEADLINE_S = 60.0
"""For what a quiet machine does in a moment. A condition that is met earlier costs nothing."""
T = TypeVar("T")


async def within(awaited: Awaitable[T], deadline_s: float | None = DEADLINE_S) -> T:
    """Its result, or ``TimeoutError`` where that does not come in time."""
    async with asyncio.timeout(deadline_s):
        return await awaited


@overload
async def until(
    condition: Callable[[], Awaitable[T]],
    what: str = "",
    *,
    timeout_s: float = DEADLINE_S,
    every_s: float = 0.002,
    tolerated: tuple[type[Exception], ...] = (),
) -> T: ...
@overload
async def until(
    condition: Callable[[], T],
    what: str = "",
    *,
    timeout_s: float = DEADLINE_S,
    every_s: float = 0.002,
    tolerated: tuple[type[Exception], ...] = (),
) -> T: ...
async def until(
    condition: Callable[[], Any],
    what: str = "",
    *,
    timeout_s: float = DEADLINE_S,
    every_s: float = 0.002,
    tolerated: tuple[type[Exception], ...] = (),
) -> Any:
    """The first true value of ``condition``, which may raise what is tolerated until then; AssertionError after."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    last: Any
    while True:
        try:
            last = condition()
            if inspect.isawaitable(last):
                last = await last
            if last:
                return last
        except tolerated as error:
            last = error
        if loop.time() > deadline_s:
            raise AssertionError(
                f"{what or condition} did not come true in {timeout_s:g} s; last: {last!r}"
            )
        await asyncio.sleep(every_s)


def threads_shown() -> str:
    """The stacks of all threads, for a message about one that does not end."""
    return "\n".join(
        f"{thread.name}:\n{''.join(traceback.format_stack(frame))}"
        for thread in threading.enumerate()
        if (frame := sys._current_frames().get(thread.ident or 0)) is not None
    )
