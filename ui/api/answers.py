"""Trials that need another process: they run on a thread, and its questions are asked on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

from broker.core.errors import Unavailable
from broker.core.waiting import Answers, Question, Waits

T = TypeVar("T")


def settled_on_thread(compute: Callable[[], T], loop: asyncio.AbstractEventLoop, timeout_s: float) -> T:
    """As ``broker.core.waiting.settled``, for a thread that may block. All answers have ``timeout_s`` together.

    A question without an answer by then fails with ``Unavailable``.
    """
    answers, ends_s = Answers(), monotonic() + timeout_s
    while True:
        try:
            with answers.at_hand():
                return compute()
        except Waits as waits:
            question = waits.question
        asking = _ask(answers, question, ends_s - monotonic(), timeout_s)
        asyncio.run_coroutine_threadsafe(asking, loop).result()


async def _ask(answers: Answers, question: Question, left_s: float, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(max(left_s, 0)):
            await answers.fetch(question)
    except TimeoutError:
        late = Unavailable(f"no answer within {timeout_s:.1f} s, which is all that a trial waits")
        answers.keep(question, None, late)
