"""Values: literals, arithmetic, CASE, arrays and maps, calls of functions. What is constant is made once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from sqlglot import exp

from rules.functions.registry import NOT_LITERAL, Function
from rules.sql import paths, values
from rules.sql.code import NOTHING, MessageColumns, Scope, Value
from rules.sql.lexer import shortened
from rules.sql.optimizer import constant_of
from rules.sql.reading import Reading
from rules.sql.tree import Tree, bare, integer_of, path_of, place_of, value_path
from rules.sql.values import UNDEFINED

_ARITHMETIC: Final[dict[type[Tree], tuple[str, str]]] = {
    exp.Add: ("+", "_add"), exp.Sub: ("-", "_subtract"), exp.Mul: ("*", "_multiply"), exp.Div: ("/", "_divide"),
    exp.IntDiv: ("div", "_integer_divide"), exp.Mod: ("mod", "_modulo"),
}  # fmt: skip
COMPARISONS: Final[dict[type[Tree], tuple[str, str]]] = {
    exp.EQ: ("==", "_equal"), exp.NEQ: ("!=", "_not_equal"), exp.LT: ("<", "_less"), exp.LTE: ("<=", "_less_or_equal"),
    exp.GT: (">", "_greater"), exp.GTE: (">=", "_greater_or_equal"),
}  # fmt: skip
CONDITIONS: Final = (
    *COMPARISONS, exp.And, exp.Or, exp.Not, exp.In, exp.Is, exp.Between, exp.Like, exp.Escape,
)  # fmt: skip
_MAX_HOISTED: Final = 10_000
"""Longest range that is kept as an array."""
_KIND_OF_TYPE: Final = {"boolean": "boolean", "long": "number", "double": "number"}


class Expressions(Reading):
    """Writes what gives a value."""

    def _condition(self, node: Tree, scope: Scope) -> str:
        raise NotImplementedError

    def _expression(self, node: Tree, scope: Scope) -> Value:
        before, self._place = self._place, place_of(node) if node.meta else self._place
        try:
            value = self._expression_of(node, scope)
            self._tell("value", node, value.code)
            return value
        finally:
            self._place = before

    def _expression_of(self, node: Tree, scope: Scope) -> Value:
        path = path_of(node)
        if path is not None:
            return self._read(path, scope)
        if isinstance(node, exp.Paren):
            return self._expression(node.this, scope)
        if isinstance(node, exp.Literal):
            return self._literal(node)
        if isinstance(node, exp.Boolean):
            return Value(str(bool(node.this)), "boolean")
        if isinstance(node, exp.Null):
            return NOTHING
        if type(node) in _ARITHMETIC:
            return self._arithmetic(node, scope)
        if isinstance(node, exp.DPipe):
            left, right = self._expression(node.this, scope), self._expression(node.expression, scope)
            return self._let("v", f"_concat({left.code}, {right.code})", "string")
        if isinstance(node, exp.Neg):
            return self._negation(node, scope)
        if isinstance(node, exp.Anonymous):
            return self._call(node, scope)
        if isinstance(node, exp.Array):
            known = constants_of(node.expressions)
            if known:
                return Value(self._hoisted("items", known, node), "array")
            items = ", ".join(self._expression(item, scope).code for item in node.expressions)
            return self._let("items", f"[{items}]")
        if isinstance(node, exp.GenerateSeries):
            first, last = integer_of(node.args["start"]), integer_of(node.args["end"])
            if 0 <= last - first + 1 <= _MAX_HOISTED:
                return Value(self._hoisted("items", paths.integers(first, last), node), "array")
            return self._let("items", f"_integers({first}, {last})")
        if isinstance(node, exp.Case):
            return self._case(node, scope)
        if isinstance(node, exp.Struct):
            return self._map(node, scope)
        if isinstance(node, (exp.Dot, exp.Bracket)):
            return self._steps_into_value(node, scope)
        return self._let("v", self._condition(node, scope), "boolean")

    def _map(self, node: exp.Struct, scope: Scope) -> Value:
        members = [
            f"{member.this.name!r}: {self._expression(member.expression, scope).code}" for member in node.expressions
        ]
        return self._let("v", "{" + ", ".join(members) + "}", "map")

    def _steps_into_value(self, node: Tree, scope: Scope) -> Value:
        """``f(x).a[1]``: a path whose base is no column."""
        base, path = value_path(node)
        value = self._variable(self._expression(base, scope), "v")
        value = self._descend(self._soft_payload_json() if value.is_payload else value, path, scope)
        return value if path.range is None else self._part(value, path)

    def _literal(self, node: exp.Literal) -> Value:
        if node.is_string:
            return Value(repr(node.name), "string")
        try:
            number = int(node.name) if node.name.isdigit() else float(node.name)
        except ValueError:
            self._problem(node, "the number has more digits than can be read")
            return NOTHING
        if isinstance(number, float) and number - number != 0.0:
            self._problem(node, f"the number {shortened(node.name)} is beyond the range of floats")
            return NOTHING
        return Value(repr(number), "int" if isinstance(number, int) else "float")

    def _arithmetic(self, node: Tree, scope: Scope) -> Value:
        operator, helper = _ARITHMETIC[type(node)]
        left, right = self._expression(node.this, scope), self._expression(node.expression, scope)
        call = f"{helper}({left.code}, {right.code})"
        test = self._float_test(left, right) if operator in "+-*/" else None
        kind = "any" if operator == "+" else "number"
        if test is None:
            return self._let("v", call, kind)
        result = self._fresh("v")
        self._emit(f"if {test}:")
        with self._block():
            self._emit(f"{result} = {left.code} {operator} {right.code}")
            self._emit(f"if {result} - {result}: _overflow({operator!r})")
        self._emit("else:")
        with self._block():
            self._emit(f"{result} = {call}")
        return Value(result, kind)

    def _float_test(self, left: Value, right: Value) -> str | None:
        """When the operation can be done in line: floats, and literals that cannot make it fail."""
        if left.kind in ("string", "boolean") or right.kind in ("string", "boolean", "undefined"):
            return None
        if left.is_literal and right.is_literal:
            return None
        if right.is_literal:
            return f"type({left.code}) is float" if _is_plain(right.code) else None
        if left.is_literal:
            return f"type({right.code}) is float and {right.code}" if _is_plain(left.code) else None
        return f"type({left.code}) is float and type({right.code}) is float and {right.code}"

    def _negation(self, node: exp.Neg, scope: Scope) -> Value:
        inner = self._expression(node.this, scope)
        if inner.kind in ("int", "float") and inner.is_literal:
            return Value(f"-{inner.code}" if not inner.code.startswith("-") else inner.code[1:], inner.kind)
        return self._let("v", f"_negate({inner.code})", "number")

    def _case(self, node: exp.Case, scope: Scope) -> Value:
        subject = self._variable(self._expression(node.this, scope), "subject") if node.this is not None else None
        result = self._fresh("v")
        self._emit("while True:")
        with self._block():
            for branch in node.args["ifs"]:
                self._at(branch.this)
                test = self._when(branch.this, subject, scope)
                self._emit(f"if {test}:")
                with self._block():
                    self._emit(f"{result} = {self._expression(branch.args['true'], scope).code}")
                    self._emit("break")
            default = node.args.get("default")
            self._emit(f"{result} = {NOTHING.code if default is None else self._expression(default, scope).code}")
            self._emit("break")
        return Value(result)

    def _when(self, node: Tree, subject: Value | None, scope: Scope) -> str:
        if subject is not None:
            return f"_identical({subject.code}, {self._expression(node, scope).code})"
        node = bare(node)
        if isinstance(node, CONDITIONS):
            return self._condition(node, scope)
        value = self._expression(node, scope)
        if value.is_literal:
            return value.code if value.kind == "boolean" else "False"
        return f"{value.code} is True"

    def _call(self, node: exp.Anonymous, scope: Scope) -> Value:
        name: str = node.name
        found = self._functions.get(name)
        if found is None:
            self._problem(node, f"no function '{name}'", self._functions.suggestion(name))
            return NOTHING
        if not found.takes(len(node.expressions)):
            self._problem(
                node, f"{name} cannot take {_count(len(node.expressions))}", f"it is called {found.signature}"
            )
            return NOTHING
        self._check_literals(found, node)
        constant = self._constant_call(found, node)
        if constant is not None:
            return constant
        arguments = [self._expression(argument, scope) for argument in node.expressions]
        special = self._special_call(name, arguments)
        if special is not None:
            return special
        return self._called(name, arguments, node)

    def _constant_call(self, found: Function, node: exp.Anonymous) -> Value | None:
        """The result, made now, of a pure function of literals that gives no literal (``optimizer`` has the rest)."""
        known = constants_of(node.expressions)
        if not known or not found.is_pure or found.column is not None or self._trace is not None:
            return None
        try:
            result = found.call(*known)
        except values.EvaluationError:
            return None
        return Value(self._hoisted(found.name, result, node))

    def _called(self, name: str, arguments: list[Value], node: Tree) -> Value:
        """A call of a function that is known to exist and to take so many arguments."""
        found = self._functions.get(name)
        assert found is not None
        codes = [argument.code for argument in arguments]
        if self._has_many_calls:
            codes = [f"_counted({code})" for code in codes]
        if found.column is not None:
            column = self._payload_json() if name == "payload" and codes else self._column(found.column)
            codes.insert(0, column.code)
        global_name = "fn_" + re.sub(r"\W", "·", name)  # a middle dot may stand in a name of Python
        self._namespace[global_name] = found.call
        return self._let("v", f"{global_name}({', '.join(codes)})", _KIND_OF_TYPE.get(found.returns.name, "any"))

    def _special_call(self, name: str, arguments: list[Value]) -> Value | None:
        """Calls that need no call: decoding the payload, which is decoded once for all rules."""
        if name == "json_decode" and arguments[0].is_payload and isinstance(self._columns, MessageColumns):
            return self._payload_json()
        return None

    def _check_literals(self, found: Function, node: exp.Anonymous) -> None:
        values: list[Any] = []
        before = len(self._problems)
        for position, argument in enumerate(node.expressions):
            value = constant_or_none(argument)
            values.append(NOT_LITERAL if value is None else value)
            text = None if value is None else found.problem_with(position, value)
            if text is not None:
                self._problem(argument, text, f"it is called {found.signature}")
        if len(self._problems) == before and (problem := found.problem_with_call(values)) is not None:
            blamed = node if problem[0] is None else node.expressions[problem[0]]
            self._problem(blamed, problem[1], f"it is called {found.signature}")


def _is_plain(code: str) -> bool:
    """Whether a numeric literal is not zero and far from the ends of the range of floats."""
    return 0.0 < abs(float(code)) < 1e300


def constant_or_none(node: Tree) -> Any:
    """The value of a literal argument; None when it is not one."""
    try:
        value = constant_of(node)
    except ValueError:
        return None
    return None if value is UNDEFINED else value


def constants_of(nodes: Sequence[Tree]) -> list[Any] | None:
    """The values of literals; None when one is something else, or undefined."""
    known = [constant_or_none(node) for node in nodes]
    return None if None in known else known


def _count(number: int) -> str:
    return "1 argument" if number == 1 else f"{number} arguments"
