"""Operators whose operands can never fit: what always fails, and what is never or always true.

Only what holds for every message is told: where a type is unknown, or the value may be read as one that fits (text as a
number), nothing is said. A value that may be absent is no issue here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from broker.core.schema import UNKNOWN, FieldType
from rules.sql.printer import OPERATORS, text_of_tree
from rules.sql.steps import Issue
from rules.sql.tree import Tree, bare
from rules.sql.types import DOUBLE, LONG, NUMERIC, STRING, described, family, nearest
from rules.sql.values import number_of_text


@dataclass(frozen=True, slots=True)
class Operand:
    """An expression and its type."""

    node: Tree
    kind: FieldType

    @property
    def text(self) -> str:
        """As in messages: what it is and of which type."""
        shown = text_of_tree(self.node)
        is_literal = isinstance(bare(self.node), (exp.Literal, exp.Boolean, exp.Null))
        return shown if is_literal else f"{shown} is {described(self.kind)}"


# Arithmetic


def arithmetic_type(node: Tree, left: FieldType, right: FieldType) -> FieldType:
    """The type of a sum, product or quotient."""
    if isinstance(node, (exp.IntDiv, exp.Mod)):
        return LONG
    if isinstance(node, exp.Add):
        if "string" in (family(left), family(right)):
            return STRING
        if left.name not in NUMERIC or right.name not in NUMERIC:
            return UNKNOWN
    return LONG if left.name == right.name == "long" and not isinstance(node, exp.Div) else DOUBLE


def arithmetic_issue(node: Tree, left: Operand, right: Operand) -> Issue | None:
    """Why an operation fails on every message."""
    operator = OPERATORS[type(node)]
    families = {family(left.kind), family(right.kind)}
    if isinstance(node, exp.Add) and ("string" in families or "unknown" in families):
        return None
    for operand in (left, right):
        if family(operand.kind) not in ("number", "unknown"):
            hint = "convert it, as with float()" if family(operand.kind) == "string" else None
            return Issue(f"'{operator}' always fails here: it needs numbers, and {_subject(operand)}", hint)
        if isinstance(node, (exp.IntDiv, exp.Mod)) and _is_float_literal(operand.node):
            return Issue(f"'{operator}' always fails here: it needs integers, and {operand.text} is none")
    return None


def negation_issue(operand: Operand) -> Issue | None:
    """Why a unary minus fails on every message."""
    if family(operand.kind) in ("number", "unknown"):
        return None
    return Issue(f"'-' always fails here: it needs a number, and {_subject(operand)}")


def _subject(operand: Operand) -> str:
    is_literal = operand.text == text_of_tree(operand.node)
    return f"{operand.text} is {described(operand.kind)}" if is_literal else operand.text


def _is_float_literal(node: Tree) -> bool:
    node = bare(node)
    if isinstance(node, exp.Neg):
        node = bare(node.this)
    return isinstance(node, exp.Literal) and not node.is_string and not node.name.isdigit()


# Comparison

_ORDERINGS: Final = (exp.LT, exp.LTE, exp.GT, exp.GTE)


def comparison_issue(node: Tree, left: Operand, right: Operand) -> Issue | None:
    """Why ``=``, ``<`` and the like fail, or give the same, on every message."""
    for one, other in ((left, right), (right, left)):
        if isinstance(bare(other.node), exp.Null):
            return Issue("a comparison with NULL is never true", _null_hint(node, one), is_mistake=False)
    families = (family(left.kind), family(right.kind))
    if "unknown" in families or "null" in families:
        return None
    if set(families) == {"number", "string"}:
        return _number_and_text(left, right)
    if set(families) == {"boolean", "string"}:
        return _boolean_and_text(left, right)
    if families[0] != families[1]:
        return Issue(f"{_subject(left)}, {_subject(right)}: {_what_becomes(node)}")
    if families[0] == "map" and isinstance(node, _ORDERINGS):
        return Issue(f"maps have no order: {text_of_tree(node)} tells nothing")
    return None if isinstance(node, _ORDERINGS) else values_issue(left, right, _what_becomes(node))


def membership_issue(left: Operand, item: Operand) -> Issue | None:
    """Why an element of ``IN (...)`` or a WHEN can never be equal to the value, exactly and without conversion."""
    families = (family(left.kind), family(item.kind))
    if "unknown" in families or "null" in families:
        return None
    if families[0] != families[1]:
        return Issue(f"{_subject(left)}, {_subject(item)}: they are never equal, nothing is converted here")
    return values_issue(left, item, "they are never equal")


def values_issue(left: Operand, right: Operand, outcome: str) -> Issue | None:
    """Texts of which all possible values are known, without one in common."""
    for one, other in ((left, right), (right, left)):
        if not (one.kind.values and other.kind.values) or set(one.kind.values) & set(other.kind.values):
            return None
        literal = bare(other.node)
        if isinstance(literal, exp.Literal):
            close = nearest(literal.name, one.kind.values)
            listed = ", ".join(f"'{value}'" for value in one.kind.values[:12])
            hint = f"did you mean '{close}'?" if close else f"its values are {listed}"
            return Issue(f"'{literal.name}' is no value of {text_of_tree(one.node)}: {outcome}", hint)
    return Issue(f"{text_of_tree(left.node)} and {text_of_tree(right.node)} have no value in common: {outcome}")


def _number_and_text(left: Operand, right: Operand) -> Issue | None:
    text = left if family(left.kind) == "string" else right
    number = right if text is left else left
    values = text.kind.values
    if not values or any(number_of_text(value) is not None for value in values):
        return None
    shown = f"the text {text_of_tree(text.node)}" if isinstance(bare(text.node), exp.Literal) else text.text
    return Issue(f"{_subject(number)}, and {shown} never holds a number: the comparison always fails")


def _boolean_and_text(left: Operand, right: Operand) -> Issue | None:
    text = left if family(left.kind) == "string" else right
    values = text.kind.values
    if not values or {"true", "false"} & set(values):
        return None
    other = right if text is left else left
    return Issue(f"{_subject(other)}, and {text_of_tree(text.node)} is neither 'true' nor 'false'")


def _what_becomes(node: Tree) -> str:
    if isinstance(node, exp.EQ):
        return "they are never equal"
    if isinstance(node, exp.NEQ):
        return "they are always different"
    return "they have no order that means anything"


def _null_hint(node: Tree, other: Operand) -> str:
    is_not = "NOT " if isinstance(node, exp.NEQ) else ""
    return f"write {text_of_tree(other.node)} IS {is_not}NULL"


# Conditions


def condition_issue(operand: Operand) -> Issue | None:
    """Why something that is no boolean cannot decide anything."""
    if family(operand.kind) in ("boolean", "unknown", "null"):
        return None
    return Issue(f"a condition must be true or false, and {_subject(operand)}", "compare it with something")
