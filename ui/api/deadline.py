"""Calls that must not hold up the broker: on a thread of their own, with a deadline that is kept.

Evaluating what a client sent (a rule on an event, a schema on a payload) is plain Python of unknown length. It runs
on a daemon thread; when its time is over, an exception is raised inside the thread, so that an endless loop ends and
no longer competes with the event loop. A call into C that never returns cannot be ended that way: it keeps its slot,
and when all slots are taken the next call is refused with a time to try again. What must ask another process asks on
the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import threading
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import Any, TypeVar

from broker.core.errors import Invalid, Unavailable
from broker.core.waiting import Answers, Question, Waits

T = TypeVar("T")

_LOOK_AGAIN_S = 0.1
# The part of its time that a call may wait for other processes.
_FOR_ANSWERS = 0.9


class OutOfTime(BaseException):
    """Raised inside a thread whose time is over; no ``except Exception`` in between catches it."""


class BoundedCalls:
    """Runs calls on threads: at most ``slots`` at once, each for at most ``timeout_s``. Used on one event loop."""

    def __init__(
        self, timeout_s: float, slots: int = 4, is_put_off: Callable[[], bool] = lambda: False
    ) -> None:
        self._timeout_s = timeout_s
        self._is_put_off = is_put_off
        self._free = slots
        self._waiting: list[asyncio.Future[None]] = []

    async def run(self, what: str, call: Callable[[], T]) -> T:
        """Return or raise the result of the call.

        Raises:
            broker.core.errors.Invalid: it ran longer than allowed; ``what`` names it.
            broker.core.errors.Unavailable: all slots stayed taken, or the node stays overloaded.
        """
        await self.until_it_may()
        await self._take_slot()
        loop = asyncio.get_running_loop()
        thread = _Thread(
            partial(settled_on_thread, call, loop, self._timeout_s * _FOR_ANSWERS),
            loop,
            self._give_back,
        )
        thread.start()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(thread.result)
        except TimeoutError:
            thread.end()
            raise Invalid(
                f"{what} ran longer than {self._timeout_s:g} s and was ended", code="too_slow"
            ) from None
        except asyncio.CancelledError:
            thread.end()
            raise

    async def until_it_may(self) -> None:
        """Wait a while for the node to be no longer overloaded.

        Raises:
            broker.core.errors.Unavailable: it stays so.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self._timeout_s
        while self._is_put_off():
            if loop.time() >= ends_at:
                raise Unavailable(
                    "the node is overloaded, and evaluations wait until it is not", retry_after_s=10
                )
            await asyncio.sleep(_LOOK_AGAIN_S)

    async def _take_slot(self) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._timeout_s):
                await turn  # the slot comes with it
        except (TimeoutError, asyncio.CancelledError) as error:
            if not turn.cancelled():  # it came too late for this one
                self._give_back()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Unavailable("too many evaluations run already", retry_after_s=2) from None
        finally:
            self._waiting.remove(turn)

    def _give_back(self) -> None:
        for turn in self._waiting:
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1


class _Thread(threading.Thread):
    def __init__(
        self, call: Callable[[], Any], loop: asyncio.AbstractEventLoop, finished: Callable[[], None]
    ) -> None:
        super().__init__(name="sluice evaluation", daemon=True)
        self._call = call
        self._loop = loop
        self._finished = finished
        self._value: Any = None
        self._error: Exception | None = None
        self._over = self._delivered = False
        self.result: asyncio.Future[Any] = loop.create_future()

    def run(self) -> None:
        with contextlib.suppress(OutOfTime):
            self._attempt()
        while True:  # the end may strike here too; delivering twice does no harm, not delivering loses the slot
            try:
                self._over = True
                self._loop.call_soon_threadsafe(self._deliver)
            except OutOfTime:
                continue
            except RuntimeError:  # the loop was closed in between
                return
            return

    def _attempt(self) -> None:
        try:
            self._value = self._call()
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            self._error = error

    def end(self) -> None:
        """Make the thread raise ``OutOfTime`` at its next instruction."""
        if self.ident is not None and not self._over:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(OutOfTime)
            )

    def _deliver(self) -> None:
        if self._delivered:
            return
        self._delivered = True
        self._finished()
        if self.result.done():
            return
        if self._error is None:
            self.result.set_result(self._value)
        else:
            self.result.set_exception(self._error)
            self.result.exception()  # the caller may be gone; that is not an error


def settled_on_thread(
    compute: Callable[[], T], loop: asyncio.AbstractEventLoop, timeout_s: float
) -> T:
    """Same as ``broker.core.waiting.settled``, for a thread that may block. All answers have ``timeout_s`` together.

    A question without an answer by then fails with ``Unavailable``.
    """
    answers = Answers()
    ends_s = monotonic() + timeout_s
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
