"""The arithmetic and comparison operators of the language, each declared once for printer, compilers and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from sqlglot import exp

from rules.sql import values


class Operator(NamedTuple):
    """One binary operator; ``sql`` is its spelling in rules and, but for ``div`` and ``mod``, in Spark SQL."""

    sql: str
    python: str
    """Spelling in compiled code, where both operands are of the usual types."""
    function: str
    """Name of the function in ``rules.sql.values`` for operands of any type, which compiled code calls as ``_name``."""

    @property
    def compute(self) -> Callable[[Any, Any], Any]:
        """The function."""
        function: Callable[[Any, Any], Any] = getattr(values, self.function)
        return function


ARITHMETIC: Final[dict[type[exp.Expr], Operator]] = {
    exp.Add: Operator("+", "+", "add"),
    exp.Sub: Operator("-", "-", "subtract"),
    exp.Mul: Operator("*", "*", "multiply"),
    exp.Div: Operator("/", "/", "divide"),
    exp.IntDiv: Operator("div", "div", "integer_divide"),
    exp.Mod: Operator("mod", "mod", "modulo"),
}
COMPARISONS: Final[dict[type[exp.Expr], Operator]] = {
    exp.EQ: Operator("=", "==", "equal"),
    exp.NEQ: Operator("!=", "!=", "not_equal"),
    exp.LT: Operator("<", "<", "less"),
    exp.LTE: Operator("<=", "<=", "less_or_equal"),
    exp.GT: Operator(">", ">", "greater"),
    exp.GTE: Operator(">=", ">=", "greater_or_equal"),
}
# Comparisons in BETWEEN, and those that NOT gives, which are not true of two undefined values.
STRICT: Final = {
    **COMPARISONS,
    exp.LTE: Operator("<=", "<=", "at_most"),
    exp.GTE: Operator(">=", ">=", "at_least"),
}
OPERATORS: Final = {**ARITHMETIC, **COMPARISONS, exp.DPipe: Operator("||", "||", "concat")}
