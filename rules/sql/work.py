"""How much one evaluation may do on large values, in time and so in memory.

A call on a few kilobytes costs microseconds, and there are only so many calls in a rule. What grows with its arguments
says beforehand how long it will take, by what was measured, and an evaluation that would hold up the loop fails. A
program begins with ``WORK.left = MAX_WORK_NS``; small work is not counted, so it costs nothing.
"""

from __future__ import annotations

from typing import Any, Final

from rules.sql.errors import EvaluationError
from rules.sql.limits import LARGE, MAX_WORK_NS


class _Work:
    """What is left of the evaluation that runs, in nanoseconds."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left: float = MAX_WORK_NS


WORK: Final = _Work()


def spend(size: int, each_ns: float) -> None:
    """Count the work on so many characters, bytes or items, where they are many.

    Raises:
        EvaluationError: it is too much for one message.
    """
    if size > LARGE:
        WORK.left = left = WORK.left - size * each_ns
        if left < 0:
            raise EvaluationError("there is too much text or there are too many items to work on for one message")


def counted(value: Any) -> Any:
    """An argument of one of many calls, as it is."""
    if type(value) in _SIZED:
        spend(len(value), 2)
    return value


_SIZED: Final = frozenset({str, bytes, list, dict})
