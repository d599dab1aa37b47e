"""Compiled rules, and their evaluation: at once, up to a limit, or part by part."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf
from sys import getsizeof
from typing import Any, Final

from broker.core.action import Row
from rules.sql.limits import MAX_ITEMS_INLINE, MAX_ROWS_MEMORY_INLINE
from rules.sql.syntax.tree import Tree
from rules.sql.values import Bits, EvaluationError
from rules.sql.work import CHAIN

# A row, the rows of FOREACH, or None when WHERE does not hold.
Result = Row | list[Row] | None
# A FOREACH that runs: it yields the number of items of each part of a long array with the rows of that part, and
# returns the rows of an array that is walked at once.
Walk = Generator[tuple[int, list[Row]], None, Result]
# Receives what is evaluated: ``value`` with a sub-expression and its result; ``SELECT``, ``FOREACH``, ``DO``,
# ``WHERE`` and ``INCASE`` with the field or condition that is evaluated next; ``ITEM`` with the next item of FOREACH.
Trace = Callable[[str, Tree, Any], None]


@dataclass(frozen=True, slots=True)
class RuleContext:
    """Context of a rule besides the message: the columns ``node``, ``metadata`` and ``timestamp``."""

    node: str
    metadata: Row
    now_ms: Callable[[], int]


class DeferralNeeded(Exception):
    """FOREACH has more to walk than the caller can wait for; to be evaluated by ``Program.parts``."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled rule for one kind of input, a message or an event. A FOREACH gives a ``Walk``."""

    function: Callable[[Any], Any]
    source: str
    places: tuple[tuple[int, int], ...]
    most_items: int = 0
    """Items that a FOREACH may walk where a message waits for it; 0 for other statements."""

    @property
    def walks(self) -> bool:
        """True for FOREACH."""
        return self.most_items > 0

    @property
    def run(self) -> Callable[[Any], Result]:
        """Return the result, however long that takes."""
        return _to_the_end(self.function, inf, inf) if self.walks else self.function

    @property
    def run_short(self) -> Callable[[Any], Result]:
        """Return the result for arrays of at most ``most_items``; fail for longer ones, and for rows that take more
        memory than ``MAX_ROWS_MEMORY_INLINE``."""
        if not self.walks:
            return self.function
        return _to_the_end(self.function, self.most_items, MAX_ROWS_MEMORY_INLINE)

    @property
    def at_once(self) -> Callable[[Any], Result]:
        """Return the result, or raise ``DeferralNeeded`` before anything is evaluated for the items of a long array."""
        return _first_part(self.function) if self.walks else self.function

    def parts(self, arguments: Any) -> Generator[list[Row], None, Result]:
        """Evaluate a long array part by part: yields the rows of each. Returns the result of anything else."""
        if not self.walks:
            result: Result = self.function(arguments)
            return result
        walk: Walk = self.function(arguments)
        while True:
            try:
                _, rows = next(walk)
            except StopIteration as end:
                result = end.value
                return result
            yield rows

    def place_of(self, error: BaseException) -> tuple[int, int] | None:
        """Line and column of the SQL where an error of ``run`` came from."""
        code = self.function.__code__
        step = error.__traceback__
        place = None
        while step is not None:
            if step.tb_frame.f_code is code and step.tb_lineno <= len(self.places):
                place = self.places[step.tb_lineno - 1]
            step = step.tb_next
        return place


class RowMemory:
    """Approximate memory of rows. A large value that several rows share, such as a member of the payload, counts
    once."""

    __slots__ = ("_large", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self._large: dict[int, Any] = {}
        """The large values by identity, kept so that no other has it."""

    def add(self, rows: Sequence[Row]) -> None:
        """Count rows that are held together with those counted before."""
        total = _ROW_BYTES * len(rows) + _MEMBER_BYTES * sum(map(len, rows))
        large = self._large
        for value in chain.from_iterable(map(dict.values, rows)):  # 0.15 µs a member
            kind = type(value)
            if kind is int:
                if -_LARGE_INTEGER < value < _LARGE_INTEGER:
                    continue
            elif kind is str:
                if len(value) <= _SHORT:
                    continue
            elif kind not in _HOLDING:
                continue
            if id(value) not in large:
                large[id(value)] = value
                total += _memory_of(value)
        self.size_bytes += total

    def forget(self) -> None:
        """Count from zero: the rows are no longer held."""
        self.size_bytes = 0
        self._large.clear()


# Memory of a row without its members, and of a member with a number or a short string, in bytes.
_ROW_BYTES: Final = 100
_MEMBER_BYTES: Final = 100
# Characters up to which a string is short, and the first integer that takes as much.
_SHORT: Final = 64
_LARGE_INTEGER: Final = 1 << 512
_NESTING: Final = frozenset({list, dict, Bits})
_HOLDING: Final = _NESTING | {bytes}


def _memory_of(value: Any) -> int:
    """Memory of a value with all that it holds, in bytes."""
    total = getsizeof(value)
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if type(inner) is Bits:
            inner = [inner.value]
        elif type(inner) is dict:
            total += sum(map(getsizeof, inner))
            inner = inner.values()
        elif type(inner) is not list:
            continue
        total += sum(map(getsizeof, inner))
        waiting += [item for item in inner if type(item) in _NESTING]
    return total


def _to_the_end(
    start: Callable[[Any], Walk], most_items: float, most_bytes: float
) -> Callable[[Any], Result]:
    def run(arguments: Any) -> Result:
        if CHAIN.is_late:
            raise EvaluationError(
                "the rules before this one took too long for it to look at a list at once"
            )
        walk = start(arguments)
        walked = 0
        all_rows: list[Row] = []
        memory = RowMemory()
        while walked <= most_items:
            try:
                items, rows = next(walk)
            except StopIteration as end:
                result: Result = end.value
                return all_rows or result
            walked += items
            all_rows += rows
            if most_bytes < inf:
                memory.add(rows)
                if memory.size_bytes > most_bytes:
                    raise EvaluationError(
                        f"the rows of a rule that drops messages take at most {most_bytes} bytes of memory"
                    )
        reason = "" if most_items == MAX_ITEMS_INLINE else " with as many expressions for each"
        raise EvaluationError(
            f"FOREACH of a rule that drops messages walks at most {most_items} items{reason}"
        )

    return run


def _first_part(start: Callable[[Any], Walk]) -> Callable[[Any], Result]:
    def run(arguments: Any) -> Result:
        try:
            next(start(arguments))
        except StopIteration as end:
            result: Result = end.value
            return result
        raise DeferralNeeded("the array of FOREACH is long")

    return run


def parts_of(
    items: list[Any], size: int, inline: int, inline_bytes: int, turn: int
) -> Sequence[Sequence[Any]]:
    """Parts of the array that FOREACH walks: one part, or an empty one and many, after each of which the program stops
    for a moment.

    Args:
        items: the array.
        size: the bytes of the payload, which each row may hold.
        inline: how many items are walked without stopping.
        inline_bytes: the same, as items times ``size``.
        turn: how many are in a part where there are more.
    """
    count = len(items)
    if count <= inline and count * size <= inline_bytes:
        return (items,)
    step = max(1, min(turn, inline, inline_bytes // max(1, size)))
    return [(), *(items[at : at + step] for at in range(0, count, step))]
