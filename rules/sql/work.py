"""Limits on the work of one evaluation on large values, and on the time that rules feed one another.

A call whose cost grows with its arguments says beforehand how long it will take, by measured costs, and an evaluation
that would hold up the loop fails. A program begins with ``WORK.left = MAX_WORK_NS``; a few calls on a few kilobytes
cost microseconds and are not counted. Many calls are timed."""

from __future__ import annotations

from sys import getsizeof
from time import perf_counter, thread_time_ns
from typing import Any, Final

from broker.core.errors import SluiceError
from rules.sql.limits import (
    LARGE,
    MAX_CHAIN_MS,
    MAX_EVALUATION_MS,
    MAX_WORK_NS,
    UNTIMED_ARGUMENTS,
)


class _Work:
    """Time left for the running evaluation, in nanoseconds, and the time taken from it that comes back with the next
    turn of the loop: a list may be long, and each of its parts has a turn."""

    __slots__ = ("left", "small")

    def __init__(self) -> None:
        self.left: float = MAX_WORK_NS
        self.small: float = 0


WORK: Final = _Work()


class _Chain:
    """The time that the rows of one list may take while a publish waits, with all the rules that they feed."""

    __slots__ = ("_ends_s",)

    def __init__(self) -> None:
        self._ends_s = 0.0

    @property
    def is_late(self) -> bool:
        """True if a rule that is fed now should be deferred."""
        return self._ends_s > 0 and perf_counter() > self._ends_s

    def begin(self) -> bool:
        """True if this list is the first one of a chain, which must call ``end``."""
        if self._ends_s:
            return False
        self._ends_s = perf_counter() + MAX_CHAIN_MS / 1000
        return True

    def end(self) -> None:
        """The rows of the first list are done."""
        self._ends_s = 0.0


CHAIN: Final = _Chain()


def spend(size: int, each_ns: float) -> None:
    """Count the work on a large number of characters, bytes or items.

    Raises:
        EvaluationError: it is too much for one message.
    """
    if size > LARGE:
        spend_ns(size * each_ns)


def spend_ns(time_ns: float) -> None:
    """Count the time of an operation.

    Raises:
        EvaluationError: it is too much for one message.
    """
    WORK.left = left = WORK.left - time_ns
    if left < 0:
        raise EvaluationError(
            "there is too much text or there are too many items to work on for one message"
        )


def spend_any(size: int, time_ns: float) -> None:
    """Count the time of an operation whatever its size, such as on values that hold others; what is small counts in
    this turn of the loop only.

    Raises:
        EvaluationError: it is too much for one message.
    """
    if size <= LARGE:
        WORK.small += time_ns
    spend_ns(time_ns)


class Calls:
    """Many calls of functions in one turn of the loop."""

    __slots__ = ("_ends_ns", "_unseen")

    def __init__(self) -> None:
        self._unseen = UNTIMED_ARGUMENTS
        self._ends_ns = thread_time_ns() + MAX_EVALUATION_MS * 1_000_000

    def argument(self, value: Any) -> Any:
        """An argument of one of them, as it is.

        Raises:
            EvaluationError: they have too much to work on, or take too long.
        """
        self._unseen -= 1
        if self._unseen < 0:
            self._unseen = UNTIMED_ARGUMENTS
            if thread_time_ns() > self._ends_ns:  # of this thread: others have no part in it
                raise EvaluationError(
                    f"the rule takes longer than {MAX_EVALUATION_MS} ms for one message"
                )
        if type(value) in _SIZED:
            size = len(value)
            if size > LARGE and type(value) is str:
                size = getsizeof(value)  # up to four bytes a character
            spend(size, 2)
        return value


_SIZED: Final = frozenset({str, bytes, list, dict})


# Exceptions of an evaluation.


class EvaluationError(SluiceError):
    """A rule cannot be evaluated on this message; nothing is output. The text says which operation and why."""

    code = "evaluation"
