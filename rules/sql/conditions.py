"""What is true or not: comparisons, AND, OR, NOT, IN, LIKE, BETWEEN; in one line where that can be."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from rules.sql import like, values
from rules.sql.code import Line, Scope, Value
from rules.sql.expressions import COMPARISONS, CONDITIONS, Expressions, constant_or_none
from rules.sql.lexer import shortened
from rules.sql.printer import text_of_tree
from rules.sql.tree import Tree, bare, operands

_EXACT_KINDS: Final = ("int", "float", "string", "boolean")


class Conditions(Expressions):
    """Writes what is true or false."""

    def _condition(self, node: Tree, scope: Scope) -> str:
        """Python source of a boolean, to be used once, at once."""
        node = bare(node)
        test = self._condition_of(node, scope)
        if self._trace is not None:
            test = self._let("v", test).code
            self._tell("value", node, test)
        return test

    def _condition_of(self, node: Tree, scope: Scope) -> str:
        if type(node) in COMPARISONS:
            return self._comparison(node, scope)
        if isinstance(node, (exp.And, exp.Or)):
            return self._junction(node, scope)
        if isinstance(node, exp.Not):
            return self._not(node, scope)
        if isinstance(node, exp.In):
            return self._in(node, scope)
        if isinstance(node, exp.Is):
            value = self._variable(self._expression(node.this, scope), "v")
            return f"({value.code} is _undefined or {value.code} is None)"
        if isinstance(node, exp.Between):
            return self._between(node, scope)
        if isinstance(node, (exp.Like, exp.Escape)):
            return self._like(node, scope)
        value = self._expression(node, scope)
        if value.kind == "boolean":
            return value.code
        if value.is_literal or isinstance(node, (exp.Array, exp.GenerateSeries, exp.Struct)):
            self._problem(node, f"{shortened(text_of_tree(node))} is no condition", "compare it with something")
            return "False"
        self._at(node)
        return f"_truth_of_call({value.code})" if isinstance(node, exp.Anonymous) else f"_truth({value.code})"

    def _comparison(self, node: Tree, scope: Scope) -> str:
        left, right = self._expression(node.this, scope), self._expression(node.expression, scope)
        return self._compared(type(node), left, right)

    def _compared(self, kind: type[Tree], left: Value, right: Value) -> str:
        operator, helper = COMPARISONS[kind]
        call = f"{helper}({left.code}, {right.code})"
        inline = f"{left.code} {operator} {right.code}"
        if right.is_literal and not left.is_literal:
            if right.kind in ("int", "float"):
                return f"({inline} if type({left.code}) in _numbers else {call})"
            if right.kind == "string":
                return f"({inline} if type({left.code}) is str else {call})"
        return call

    def _between(self, node: exp.Between, scope: Scope) -> str:
        """Both ends, the upper one only where the lower one holds: as ``x >= low AND x <= high``, with x read once."""
        value = self._variable(self._expression(node.this, scope), "v")
        low = self._expression(node.args["low"], scope)
        high = self._expression(node.args["high"], scope)
        return f"({self._compared(exp.GTE, value, low)} and {self._compared(exp.LTE, value, high)})"

    def _like(self, node: Tree, scope: Scope) -> str:
        test, escape = (node.this, node.expression.name) if isinstance(node, exp.Escape) else (node, like.ESCAPE)
        value, pattern = self._expression(test.this, scope), self._expression(test.expression, scope)
        if test.expression.is_string:
            try:
                matcher = like.matcher(test.expression.name, escape)
            except values.EvaluationError as error:
                self._problem(test.expression, str(error))
                return "False"
            name = self._hoisted("like", matcher, test.expression)
            inline = f"{name}({value.code}) if type({value.code}) is str"
            return f"({inline} else _like({value.code}, {pattern.code}))"
        return f"_like({value.code}, {pattern.code}, {escape!r})"

    def _junction(self, node: Tree, scope: Scope) -> str:
        """AND, OR: in one line where no operand needs lines of its own, else a block that is left early."""
        parts = operands(node, type(node))
        word = "and" if isinstance(node, exp.And) else "or"
        first = self._condition(parts[0], scope)
        outside, self._lines = self._lines, []
        others: list[tuple[list[Line], str]] = []
        with self._block():
            for operand in parts[1:]:
                self._lines = []
                test = self._condition(operand, scope)
                others.append((self._lines, test))
        self._lines = outside
        if not any(lines for lines, _ in others):
            return f"({f' {word} '.join([first, *(test for _, test in others)])})"
        return self._long_junction(first, others, stop_at="not " if word == "and" else "")

    def _long_junction(self, first: str, others: list[tuple[list[Line], str]], *, stop_at: str) -> str:
        result = self._fresh("v")
        self._emit(f"{result} = {first}")
        self._emit(f"while {'' if stop_at else 'not '}{result}:")
        with self._block():
            for position, (lines, test) in enumerate(others):
                if position:
                    self._emit(f"if {stop_at}{result}: break")
                self._lines += lines
                self._emit(f"{result} = {test}")
            self._emit("break")
        return result

    def _not(self, node: exp.Not, scope: Scope) -> str:
        inner = bare(node.this)
        if isinstance(inner, CONDITIONS):
            return f"(not {self._condition(inner, scope)})"
        value = self._expression(inner, scope)
        if value.is_literal:
            return f"(not {value.code})" if value.kind == "boolean" else "False"
        return f"({value.code} is False)"

    def _in(self, node: exp.In, scope: Scope) -> str:
        value = self._expression(node.this, scope)
        items = [self._expression(item, scope) for item in node.expressions]
        if all(item.is_literal and item.kind in _EXACT_KINDS for item in items):
            known = [constant_or_none(item) for item in node.expressions]
            name = self._hoisted("choices", values.choices(known), exp.Array(expressions=node.expressions))
            return f"_is_one_of({value.code}, {name})"
        return f"_is_in({value.code}, ({', '.join(item.code for item in items)},))"
