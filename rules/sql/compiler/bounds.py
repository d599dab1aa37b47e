"""Bounds of the array that FOREACH walks, from the number of expressions that DO and INCASE evaluate for each item."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlglot import exp

from rules.functions.registry import Functions
from rules.sql import limits

# Members that a row has of ``*``.
_STAR_MEMBERS: Final = 20
# Types of results that may be arrays or maps, and functions that give one of their arguments.
_BUILT: Final = frozenset({"array", "map", "unknown"})
_PASSING_ON: Final = frozenset({"coalesce", "coalesce_ne", "iif", "payload"})


class Bounds(NamedTuple):
    """Maximum items that are walked without stopping, and the same in items times bytes of the payload; the items of a
    part of a longer array; maximum rows; maximum items where a message waits for all."""

    inline: int
    inline_bytes: int
    turn: int
    rows: int
    waiting: int


def bounds_of(tree: exp.Select, functions: Functions) -> Bounds:
    """The bounds of a FOREACH."""
    clauses = [
        clause for clause in (*tree.expressions, tree.args.get("incase")) if clause is not None
    ]
    work = sum(1 for clause in clauses for _ in clause.walk())
    calls = [call for clause in clauses for call in clause.find_all(exp.Anonymous)]
    building = sum(_builds(call, functions) for call in calls)
    literals = sum(1 for clause in clauses for _ in clause.find_all(exp.Array, exp.Struct))
    waiting_work = work + limits.CALL_WORK * (len(calls) + building + literals)
    members = sum(_STAR_MEMBERS if isinstance(field, exp.Star) else 1 for field in tree.expressions)
    return Bounds(
        min(limits.INLINE_ROWS, max(1, limits.INLINE_WORK // work)),
        limits.INLINE_BYTES // max(1, len(calls) // 4, len(tree.expressions), 4 * building),
        min(limits.ROWS_IN_A_TURN, max(1, limits.CALLS_IN_A_TURN // max(1, len(calls)))),
        min(limits.MAX_ROWS, max(1, limits.MAX_ROW_MEMBERS // members)),
        min(limits.MAX_ITEMS_INLINE, max(1, limits.MAX_WORK_INLINE // waiting_work)),
    )


def _builds(call: exp.Anonymous, functions: Functions) -> bool:
    """True if a call may build an array or a map, which takes twenty times the memory of its text."""
    function = functions.get(call.name)
    return (
        function is not None
        and function.returns.name in _BUILT
        and function.name not in _PASSING_ON
    )
