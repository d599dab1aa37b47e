"""Questions about the form of a jq expression that the analysis of its cost asks."""

from __future__ import annotations

from typing import Final

from rules.jq.builtins import CALLS, PAIRWISE, PER_ITEM_US, SIMPLE, TEXT
from rules.jq.tree import (
    Array,
    Binary,
    Bind,
    Break,
    Call,
    Expr,
    Fold,
    Format,
    Identity,
    If,
    Index,
    Iterate,
    Label,
    Negate,
    Number,
    Object,
    Recursion,
    Slice,
    Text,
    Try,
    Variable,
)  # fmt: skip

_MAX_INDEX: Final = 1000


class Unbounded(Exception):
    """The program may not end, or may take any time; says why. ``at`` is where in the program."""

    def __init__(self, why: str, at: int) -> None:
        self.at = at
        super().__init__(why)


def literal(node: Expr) -> float | None:
    """The value of a number that stands in the program."""
    if isinstance(node, Negate):
        inner = literal(node.inner)
        return None if inner is None else -inner
    return node.value if isinstance(node, Number) else None


def is_number(node: Expr) -> bool:
    """Whether the expression gives numbers (or null) or fails."""
    if isinstance(node, (Number, Negate)):
        return True
    if isinstance(node, Call):
        known = SIMPLE.get(node.name)
        return not node.arguments and known is not None and known.is_number
    if isinstance(node, Binary):
        if node.operator == "%":
            return True
        if node.operator in ("+", "-", "/"):  # with a number on one side, nothing but a number goes on the other
            return is_number(node.left) or is_number(node.right)
        if node.operator == "*":
            return is_number(node.left) and is_number(node.right)
        if node.operator == "|":
            return is_number(node.right)
    return False


def is_single(node: Expr) -> bool:
    """Whether the expression gives at most one value for one input."""
    if isinstance(node, (Identity, Number, Format, Variable, Break)):
        return True
    if isinstance(node, Text):
        return all(map(is_single, node.parts))
    if isinstance(node, Index):
        return is_single(node.term) and is_single(node.index)
    if isinstance(node, Slice):
        return is_single(node.term)
    if isinstance(node, Array):
        return True
    if isinstance(node, Object):
        return all(is_single(key) and is_single(value) for key, value in node.members)
    if isinstance(node, Negate):
        return is_single(node.inner)
    if isinstance(node, Binary):
        if node.operator == "|=":
            return True
        if node.operator in ("=", "+=", "-=", "*=", "/=", "%=", "//="):
            return is_single(node.right)
        return node.operator != "," and is_single(node.left) and is_single(node.right)
    if isinstance(node, If):
        parts = [part for branch in node.branches for part in branch]
        return all(map(is_single, parts)) and (node.otherwise is None or is_single(node.otherwise))
    if isinstance(node, Try):
        return is_single(node.body) and (node.handler is None or is_single(node.handler))
    if isinstance(node, Bind):
        return is_single(node.source) and is_single(node.body)
    if isinstance(node, Fold):
        return node.keyword == "reduce"
    if isinstance(node, Label):
        return is_single(node.body)
    if isinstance(node, Call):
        return _is_single_call(node)
    return False


_ONE_RESULT: Final = frozenset(
    {"map", "sort_by", "group_by", "unique_by", "min_by", "max_by", "map_values", "with_entries", "any", "all", "del",
     "isempty", "add"}
)  # fmt: skip
"""Functions that give one result whatever their argument gives."""


KNOWN: Final = frozenset({*SIMPLE, *TEXT, *PAIRWISE, *PER_ITEM_US, *_ONE_RESULT, *CALLS})
"""Names that are taken for jq's own functions here; a program that defines one anew is not analysed."""


def _is_single_call(node: Call) -> bool:
    """Own functions are not looked into: for them the answer is no."""
    if not node.arguments:
        return node.name in SIMPLE or node.name in ("empty", "flatten", "transpose")
    if node.name in _ONE_RESULT or (node.name in ("first", "last") and len(node.arguments) == 1):
        return True
    known = TEXT | PAIRWISE | {"select", "join", "getpath", "error", "pow", "fmin", "fmax", "fmod"}
    return node.name in known and all(map(is_single, node.arguments))


def is_closed(node: Expr) -> bool:
    """Whether the expression looks at variables and literals only, not at its input."""
    if isinstance(node, (Number, Variable)):
        return True
    if isinstance(node, Text):
        return all(map(is_closed, node.parts))
    if isinstance(node, Index):
        return is_closed(node.term) and is_closed(node.index)
    if isinstance(node, Array):
        return node.inner is None or is_closed(node.inner)
    if isinstance(node, Object):
        return all(is_closed(key) and is_closed(value) for key, value in node.members)
    if isinstance(node, Negate):
        return is_closed(node.inner)
    if isinstance(node, Binary):
        return is_closed(node.left) and (node.operator == "|" or is_closed(node.right))
    if isinstance(node, Try):
        return is_closed(node.body) and (node.handler is None or is_closed(node.handler))
    return False


def added_to_state(update: Expr) -> Expr:
    """What a step of ``reduce`` adds, where it does nothing else: ``. + E``, ``.path += E``, ``.path = E``."""
    if isinstance(update, Binary) and is_single(update.left) and is_single(update.right):
        if update.operator in ("=", "+="):
            check_target(update.left)
            if is_closed(update.right):
                return update.right
        elif update.operator in ("+", "-", "and", "or"):
            for state, other in ((update.left, update.right), (update.right, update.left)):
                if isinstance(state, Identity) and is_closed(other):
                    return other
    raise Unbounded("each step works on what the steps before made", update.at)


def mentions(node: Expr, names: tuple[str, ...]) -> int | None:
    """How often an expression without generators names these variables; None when it has some, or may have."""
    parts: tuple[Expr, ...]
    if isinstance(node, Variable):
        return int(node.name in names)
    if isinstance(node, Number):
        return 0
    if isinstance(node, Index):
        parts = (node.term, node.index)
    elif isinstance(node, Text):
        parts = node.parts
    elif isinstance(node, Array):
        parts = () if node.inner is None else (node.inner,)
    elif isinstance(node, Object):
        parts = tuple(part for member in node.members for part in member)
    elif isinstance(node, Binary) and node.operator in ("+", ","):
        parts = (node.left, node.right)
    else:
        return None
    counts = [mentions(part, names) for part in parts]
    return None if None in counts else sum(count or 0 for count in counts)


def check_target(node: Expr) -> None:
    """Raise ``Unbounded`` where assigning could make an array as long as a number in the input says."""
    if isinstance(node, (Identity, Recursion, Break)):
        return None
    if isinstance(node, Index):
        check_target(node.term)
        if isinstance(node.index, Text):
            return None
        index = literal(node.index)
        if index is None or index > _MAX_INDEX:
            raise Unbounded("an index that is assigned to comes from the input", node.at)
        return None
    if isinstance(node, Iterate):
        return check_target(node.term)
    if isinstance(node, Binary) and node.operator in ("|", ","):
        check_target(node.left)
        return check_target(node.right)
    if isinstance(node, Try) and node.handler is None:
        return check_target(node.body)
    if isinstance(node, Call) and node.name in ("select", "empty", "recurse") and len(node.arguments) <= 1:
        if node.name == "recurse" and node.arguments:
            raise Unbounded("recurse with an argument may not end", node.at)
        return None
    raise Unbounded("what is assigned to is not analysed", node.at)
