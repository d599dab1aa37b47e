"""Compiled rules, and their evaluation: at once, up to a limit, or part by part."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from broker.core.action import Row
from rules.sql.limits import MAX_ITEMS_INLINE, ROWS_IN_A_TURN
from rules.sql.syntax.tree import Tree
from rules.sql.values import EvaluationError
from rules.sql.work import CHAIN

# A row, the rows of FOREACH, or None when WHERE does not hold.
Result = Row | list[Row] | None
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
    """A compiled rule for one kind of input, a message or an event. A FOREACH is a generator (``walks``)."""

    function: Callable[[Any], Any]
    source: str
    places: tuple[tuple[int, int], ...]
    walks: bool = False

    @property
    def run(self) -> Callable[[Any], Result]:
        """Return the result, however long that takes."""
        return _to_the_end(self.function, inf) if self.walks else self.function

    @property
    def run_short(self) -> Callable[[Any], Result]:
        """Return the result for arrays of at most ``MAX_ITEMS_INLINE`` items; fail for longer ones."""
        return _to_the_end(self.function, MAX_ITEMS_INLINE) if self.walks else self.function

    @property
    def at_once(self) -> Callable[[Any], Result]:
        """Return the result, or raise ``DeferralNeeded`` before anything is evaluated for the items of a long array."""
        return _first_part(self.function) if self.walks else self.function

    def parts(self, arguments: Any) -> Generator[int, None, Result]:
        """Evaluates a long array part by part, to return the result in the end."""
        if not self.walks:
            result: Result = self.function(arguments)
            return result
        result = yield from self.function(arguments)
        return result

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


def _to_the_end(walk: Callable[[Any], Iterator[int]], most_items: float) -> Callable[[Any], Result]:
    def run(arguments: Any) -> Result:
        if CHAIN.is_late:
            raise EvaluationError(
                "the rules before this one took too long for it to look at a list at once"
            )
        parts = walk(arguments)
        walked = 0
        try:
            while walked <= most_items:
                walked += next(parts)
        except StopIteration as end:
            result: Result = end.value
            return result
        raise EvaluationError(
            f"FOREACH of a rule that drops messages walks at most {most_items} items"
        )

    return run


def _first_part(walk: Callable[[Any], Iterator[int]]) -> Callable[[Any], Result]:
    def run(arguments: Any) -> Result:
        try:
            next(walk(arguments))
        except StopIteration as end:
            result: Result = end.value
            return result
        raise DeferralNeeded("the array of FOREACH is long")

    return run


def parts_of(
    items: list[Any], size: int, inline: int, inline_bytes: int
) -> Sequence[Sequence[Any]]:
    """Parts of the array that FOREACH walks: one part, or an empty one and many, after each of which the program stops
    for a moment.

    Args:
        items: the array.
        size: the bytes of the payload, which each row may hold.
        inline: how many items are walked without stopping.
        inline_bytes: the same, as items times ``size``.
    """
    count = len(items)
    if count <= inline and count * size <= inline_bytes:
        return (items,)
    step = max(1, min(ROWS_IN_A_TURN, inline, inline_bytes // max(1, size)))
    return [(), *(items[at : at + step] for at in range(0, count, step))]
