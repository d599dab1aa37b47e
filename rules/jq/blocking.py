"""Running programs in a worker for callers that may wait: trying a rule, tools, tests. Not for the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from msgspec import json

from broker.core.waiting import Answers, Waits, answers_here
from rules.jq.evaluation import Request, Variables, at_hand, workers_at_hand
from rules.jq.pool import DEFAULT_MEMORY_BYTES, WorkerPool
from rules.jq.program import JqError, ProgramError, program_of

_SHOWN: Final = 80

T = TypeVar("T")


# Time that a program may take to compile.
_CHECK_S: Final = 2.0


def check(text: str) -> None:
    """True if a program compiles. One that would hold up the broker is compiled in a worker, whose end is waited for.

    Raises:
        ProgramError: it does not, or not in time.
    """
    program = program_of(text)
    if program.is_checked:
        return
    with ThreadPoolExecutor(1) as thread:  # since this one may run an event loop
        compiled = thread.submit(_checked, text)
    try:
        problem = json.decode(compiled.result())
    except JqError as error:
        raise ProgramError(f"it cannot be compiled: {error}") from None
    if problem:
        raise ProgramError(*problem)
    program.is_checked = True


def _checked(text: str) -> str:
    with BlockingWorker() as worker:
        return worker.run(Request(text, "", _CHECK_S))


class OutOfTime(Exception):
    """The evaluation took longer than its deadline; the text says which program it was."""


def evaluate(
    call: Callable[[], T],
    variables: Variables,
    *,
    deadline_s: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    again: Callable[[], None] = lambda: None,
    worker: BlockingWorker | None = None,
) -> T:
    """Result or exception of ``call``, with its jq programs run in a worker where they need one.

    Args:
        call: evaluates a rule; called again for each program that needs a worker, so it has no effects.
        variables: the columns, for ``$ENV``.
        deadline_s: seconds that all programs together may take; then ``OutOfTime`` is raised.
        memory_bytes: the address space of the worker.
        again: called before ``call`` is called once more.
        worker: used in place of one that lives as long as this call, by those who evaluate much.
    """
    answers = answers_here()
    begin = answers.place
    ends_s = None if deadline_s is None else time.monotonic() + deadline_s
    running = worker or BlockingWorker(memory_bytes)
    try:
        while True:
            try:
                with at_hand(variables), answers.at_hand(begin):
                    return call()
            except Waits as waits:
                if not isinstance(waits.question, Request):
                    raise  # for one who waits further out
                running.fetch(answers, waits.question, ends_s)
                again()
    finally:
        if worker is None:
            running.close()


class BlockingWorker:
    """A pool of one process, started with its first program, for one thread that may block. A context manager."""

    def __init__(self, memory_bytes: int = DEFAULT_MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._running: tuple[asyncio.AbstractEventLoop, WorkerPool] | None = None

    def __enter__(self) -> BlockingWorker:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def run(self, request: Request) -> str:
        """The outputs of one request. Raises ``JqError``."""
        loop, pool = self._started()

        async def run() -> str:
            return await pool.run(request)

        return loop.run_until_complete(run())

    def fetch(self, answers: Answers, request: Request, ends_s: float | None) -> None:
        """Keep the answer to a request as the next one.

        Raises:
            OutOfTime: ``ends_s``, a time of the monotonic clock, came first.
        """
        loop, pool = self._started()
        try:
            with workers_at_hand(pool.run):
                loop.run_until_complete(_in_time(answers.fetch(request), ends_s))
        except TimeoutError:
            self.close()
            text = " ".join(request.program.split())
            shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
            raise OutOfTime(
                f"the jq program {shown} ran longer than the deadline allows and was ended"
            ) from None

    def _started(self) -> tuple[asyncio.AbstractEventLoop, WorkerPool]:
        if self._running is None:
            self._running = asyncio.SelectorEventLoop(), WorkerPool(1, self._memory_bytes)
        return self._running

    def close(self) -> None:
        """End the process."""
        if self._running is not None:
            loop, pool = self._running
            self._running = None
            loop.run_until_complete(pool.close())
            loop.close()


async def _in_time(work: Awaitable[None], ends_s: float | None) -> None:
    async with asyncio.timeout(None if ends_s is None else ends_s - time.monotonic()):
        await work
