"""Constant folding in a tree: operations and pure functions whose operands are all literals.

Nothing else is touched. An operation that would fail, or whose result no literal can say, stays as it is, so a rule
fails on the same messages and for the same reasons as before; no branch is dropped, so errors in it are still
reported. A column without an alias keeps the name that its text gave it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from sqlglot import exp

from rules.functions.registry import Functions
from rules.sql import like, values
from rules.sql.operators import OPERATORS
from rules.sql.syntax.printer import text_of_tree
from rules.sql.syntax.tree import OPPOSITES, Tree, bare, path_of, place, place_of
from rules.sql.values import UNDEFINED, EvaluationError

_Operation = Callable[..., Any]

# Tests that are neither true nor false of NULL, which no literal can say.
_NULL_IS_NEITHER: Final = (*OPPOSITES, exp.Between, exp.Like, exp.Escape)
# Longest text that takes the place of the expression it comes from.
_MAX_CHARACTERS: Final = 10_000


class _NotConstant:
    """The type of ``_UNKNOWN``."""


_UNKNOWN: Final = _NotConstant()


def optimized(tree: exp.Select, functions: Functions) -> exp.Select:
    """A statement that does the same; the one given is not changed."""
    tree = tree.copy()
    _name_columns(tree)
    nodes: list[Tree] = list(tree.bfs())
    for node in reversed(nodes):  # what is inside comes first
        if node.parent is not None:
            _fold(node, functions)
    return tree


def constant_of(node: Tree) -> Any:
    """The value of a literal, perhaps with a minus or in parentheses; None when it is something else, or undefined."""
    value = _constant(node)
    return None if value is _UNKNOWN or value is UNDEFINED else value


def _name_columns(tree: exp.Select) -> None:
    """Write out the names that come from the text of expressions, which is about to change."""
    for field in list(tree.expressions):
        is_named = (
            isinstance(field, (exp.Alias, exp.Star, exp.Literal)) or path_of(field) is not None
        )
        if not is_named:
            name = exp.Identifier(this=text_of_tree(field), quoted=True)
            field.replace(place(exp.Alias(this=field.copy(), alias=name), *place_of(field)))


def _fold(node: Tree, functions: Functions) -> None:
    value = _value_of(node, functions)
    literal = None if value is _UNKNOWN else _literal(value)
    if literal is None or literal == node:
        return
    for part in literal.walk():
        place(part, *place_of(node))
    node.replace(literal)


def _value_of(node: Tree, functions: Functions) -> Any:
    """Result of an operation on literals; ``_UNKNOWN`` when it is another node or fails."""
    try:
        return _operate(node, functions)
    except EvaluationError:
        return _UNKNOWN


def _operate(node: Tree, functions: Functions) -> Any:
    if isinstance(node, _NULL_IS_NEITHER) and any(
        isinstance(bare(part), exp.Null) for part in node.iter_expressions()
    ):
        return _UNKNOWN
    if isinstance(node, exp.Escape):
        test = node.this
        escape = node.expression.name
        return _applied(
            lambda text, pattern: like.like(text, pattern, escape), test.this, test.expression
        )
    if isinstance(node.parent, exp.Escape):
        return _UNKNOWN
    if type(node) in OPERATORS or isinstance(node, exp.Like):
        compute = like.like if isinstance(node, exp.Like) else OPERATORS[type(node)].compute
        return _applied(compute, node.this, node.expression)
    if isinstance(node, exp.Paren):
        return _constant(node.this)
    if isinstance(node, exp.Neg) and not isinstance(node.this, exp.Literal):
        # which is a literal; and [-0] is not [0]
        return _applied(values.negate, node.this)
    if isinstance(node, exp.Is):
        return _applied(lambda value: value is UNDEFINED, node.this)
    if isinstance(node, exp.Not):
        value = _constant(node.this)
        return not value if type(value) is bool else _UNKNOWN
    if isinstance(node, exp.In):
        return _applied(
            lambda value, *items: values.is_in(value, items), node.this, *node.expressions
        )
    if isinstance(node, exp.Between):
        return _applied(_between, node.this, node.args["low"], node.args["high"])
    return _called(node, functions) if isinstance(node, exp.Anonymous) else _UNKNOWN


def _between(value: Any, low: Any, high: Any) -> bool:
    return values.greater_or_equal(value, low) and values.less_or_equal(value, high)


def _called(node: exp.Anonymous, functions: Functions) -> Any:
    function = functions.get(node.name)
    if (
        function is None
        or not function.is_pure
        or function.column is not None
        or not function.takes(len(node.expressions))
    ):
        return _UNKNOWN
    return _applied(function.call, *node.expressions)


def _applied(operation: _Operation, *operands: Tree) -> Any:
    constants = [_constant(operand) for operand in operands]
    return _UNKNOWN if any(value is _UNKNOWN for value in constants) else operation(*constants)


def _constant(node: Tree) -> Any:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Null):
        return UNDEFINED
    if isinstance(node, exp.Literal):
        return node.name if node.is_string else _number(node.name)
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        number = _number(node.this.name)
        return number if number is _UNKNOWN else -number
    return _UNKNOWN


def _number(text: str) -> Any:
    try:
        number = int(text) if text.isdigit() else float(text)
    except ValueError:  # more digits than the interpreter reads
        return _UNKNOWN
    return _UNKNOWN if isinstance(number, float) and not math.isfinite(number) else number


def _literal(value: Any) -> Tree | None:
    """The literal of a value; None when there is none, or none of a sensible length.

    Undefined stays what it was: as a condition the result of a call fails, and NULL does not.
    """
    if type(value) is bool:
        return exp.Boolean(this=value)
    if type(value) is str:
        return exp.Literal.string(value) if len(value) <= _MAX_CHARACTERS else None
    if type(value) is int and value.bit_length() < _MAX_CHARACTERS:
        return _signed(str(abs(value)), is_negative=value < 0)
    if type(value) is float and math.isfinite(value):
        return _signed(repr(abs(value)), is_negative=math.copysign(1, value) < 0)
    return None


def _signed(digits: str, *, is_negative: bool) -> Tree:
    literal = exp.Literal.number(digits)
    return exp.Neg(this=literal) if is_negative else literal
