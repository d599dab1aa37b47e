"""Limits on the work of one evaluation on large values, and on the time that rules feed one another.

A call on a few kilobytes costs microseconds, and a rule has a limited number of calls. A call whose cost grows with its
arguments says beforehand how long it will take, by measured costs, and an evaluation that would hold up the loop fails.
A program begins with ``WORK.left = MAX_WORK_NS``; small work is not counted, so it costs nothing."""

from __future__ import annotations

from sys import getsizeof
from time import perf_counter
from typing import Any, Final

from broker.core.errors import SluiceError
from rules.sql.limits import LARGE, MAX_CHAIN_MS, MAX_WORK_NS


class _Work:
    """Time left for the running evaluation, in nanoseconds."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: float = MAX_WORK_NS


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
        WORK.left = left = WORK.left - size * each_ns
        if left < 0:
            raise EvaluationError(
                "there is too much text or there are too many items to work on for one message"
            )


def counted(value: Any) -> Any:
    """An argument of one of many calls, as it is."""
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
