"""Operators whose operands can never fit: what always fails, and what is never or always true.

Only what holds for every message is reported; nothing is where a type is unknown, or where the value may be read as one
that fits (text as a number). A value that may be absent is not an issue here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Rename
from broker.core.schema import UNKNOWN, FieldType
from rules.functions.registry import Function
from rules.sql.syntax.printer import OPERATORS, text_of_tree
from rules.sql.syntax.tree import Tree, bare, literal_text
from rules.sql.type_checker.types import (
    DOUBLE,
    EMPTY_MAP,
    LONG,
    NULL,
    NUMERIC,
    STRING,
    Issue,
    array_of,
    certain,
    described,
    family,
    maybe,
    nearest,
    reached,
    unified,
    unified_all,
    written,
)
from rules.sql.values import UNDEFINED, number_of_text


@dataclass(frozen=True, slots=True)
class Operand:
    """An expression and its type."""

    node: Tree
    kind: FieldType

    @property
    def text(self) -> str:
        """Text for messages: the expression and its type."""
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
    """Reason why an operation fails on every message."""
    operator = OPERATORS[type(node)]
    families = {family(left.kind), family(right.kind)}
    if isinstance(node, exp.Add) and ("string" in families or "unknown" in families):
        return None
    for operand in (left, right):
        if family(operand.kind) not in ("number", "unknown"):
            hint = "convert it, as with float()" if family(operand.kind) == "string" else None
            return Issue(
                f"'{operator}' always fails here: it needs numbers, and {_subject(operand)}", hint
            )
        if isinstance(node, (exp.IntDiv, exp.Mod)) and _is_float_literal(operand.node):
            return Issue(
                f"'{operator}' always fails here: it needs integers, and {operand.text} is none"
            )
    return None


def negation_issue(operand: Operand) -> Issue | None:
    """Reason why a unary minus fails on every message."""
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
    """Reason why a comparison fails, or has the same result, on every message."""
    for operand, other in ((left, right), (right, left)):
        if isinstance(bare(other.node), exp.Null):
            return Issue(
                "a comparison with NULL is never true", _null_hint(node, operand), is_mistake=False
            )
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
        return Issue(f"maps have no order: {text_of_tree(node)} has no meaning")
    return None if isinstance(node, _ORDERINGS) else values_issue(left, right, _what_becomes(node))


def membership_issue(left: Operand, item: Operand) -> Issue | None:
    """Reason why an element of ``IN (...)`` or a WHEN never equals the value, exactly and without conversion."""
    families = (family(left.kind), family(item.kind))
    if "unknown" in families or "null" in families:
        return None
    if families[0] != families[1]:
        return Issue(
            f"{_subject(left)}, {_subject(item)}: they are never equal, nothing is converted here"
        )
    return values_issue(left, item, "they are never equal")


def values_issue(left: Operand, right: Operand, outcome: str) -> Issue | None:
    """Texts of which all possible values are known, without one in common."""
    for operand, other in ((left, right), (right, left)):
        if not (operand.kind.values and other.kind.values) or set(operand.kind.values) & set(
            other.kind.values
        ):
            return None
        literal = bare(other.node)
        if isinstance(literal, exp.Literal):
            close = nearest(literal.name, operand.kind.values)
            listed = ", ".join(f"'{value}'" for value in operand.kind.values[:12])
            hint = Rename(literal.name, close) if close else f"its values are {listed}"
            return Issue(
                f"'{literal.name}' is not a value of {text_of_tree(operand.node)}: {outcome}", hint
            )
    return Issue(
        f"{text_of_tree(left.node)} and {text_of_tree(right.node)} have no value in common: {outcome}"
    )


def _number_and_text(left: Operand, right: Operand) -> Issue | None:
    text = left if family(left.kind) == "string" else right
    number = right if text is left else left
    values = text.kind.values
    if not values or any(number_of_text(value) is not None for value in values):
        return None
    shown = (
        f"the text {text_of_tree(text.node)}"
        if isinstance(bare(text.node), exp.Literal)
        else text.text
    )
    return Issue(
        f"{_subject(number)}, and {shown} never holds a number: the comparison always fails"
    )


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
    """Reason why a condition is not a boolean."""
    if family(operand.kind) in ("boolean", "unknown", "null"):
        return None
    return Issue(
        f"a condition must be true or false, and {_subject(operand)}", "compare it with something"
    )


# Types of function calls: results that depend on the arguments, and arguments that can never fit.


Kinds = Sequence[FieldType]
Nodes = Sequence[exp.Expression]
Result = Callable[[Sequence[Operand]], FieldType]

# Values of each type; where a parameter takes none of them, it takes no value of the type.
_SAMPLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "long": (1, 0, 1000), "double": (1.5, 1), "boolean": (True, False), "array": ([],), "map": ({},), "struct": ({},),
    "null": (UNDEFINED, None),
}  # fmt: skip
# Kinds of parameters that no text fits, whatever it holds.
_NO_TEXT: Final = frozenset({"array", "integer", "float", "number", "boolean"})
# Arguments refused by functions that check them on their own: families by position, and what is expected.
_REFUSED: Final[Mapping[str, Mapping[int, tuple[str, str]]]] = {
    "int": {0: ("array map null", "a number, a boolean or a numeric string")},
    "float": {0: ("array map null boolean", "a number or a numeric string")},
    "bool": {0: ("array map null", "true, false, 1, 0, 'true' or 'false'")},
    "map": {0: ("number boolean null", "a map or the JSON text of one")},
    "is_empty": {0: ("number boolean null", "a map, an array, '' or the JSON text of a map")},
    "json_decode": {0: ("number boolean array map null", "JSON text")},
    "bin2hexstr": {0: ("number boolean array map null", "a string")},
    "div": {0: ("string boolean array map null", "an integer"), 1: ("string boolean array map null", "an integer")},
    "mod": {0: ("string boolean array map null", "an integer"), 1: ("string boolean array map null", "an integer")},
    "map_get": {}, "mget": {0: ("number boolean map null", "a key or a list of keys")},
    "mput": {0: ("number boolean map null", "a key or a list of keys")},
    "sprintf": {0: ("number boolean array map null", "a format")},
}  # fmt: skip


# Arguments


def argument_issue(function: Function, position: int, operand: Operand) -> Issue | None:
    """Reason why an argument (from 0) makes the call fail on every message."""
    if isinstance(bare(operand.node), (exp.Literal, exp.Boolean)):
        return None  # the compiler looks at literals, value and all
    argument_family = family(operand.kind)
    refused = _REFUSED.get(function.name, {}).get(position)
    if refused is not None and argument_family in refused[0].split():
        return _never_fits(function, position, operand, refused[1])
    if function.name == "sublist":
        return _sublist_issue(function, position, operand)
    problems = [
        function.problem_with(position, sample)
        for sample in _samples(function, position, operand.kind)
    ]
    if not problems or not all(problems):
        return None
    wanted = str(problems[0]).partition(" must be ")[2].partition(", not ")[0]
    return _never_fits(function, position, operand, wanted or "of another type")


def _samples(function: Function, position: int, kind: FieldType) -> tuple[Any, ...]:
    if family(kind) != "string":
        return _SAMPLES.get(kind.name, ())
    wanted = function.parameters[position].kind if position < len(function.parameters) else None
    return ("",) if wanted is not None and wanted.name in _NO_TEXT else ()


def _sublist_issue(function: Function, position: int, operand: Operand) -> Issue | None:
    if position == 0 and family(operand.kind) not in ("number", "unknown"):
        return _never_fits(function, position, operand, "an integer")
    return None


def _never_fits(function: Function, position: int, operand: Operand, wanted: str) -> Issue:
    text = f"{function.name} always fails here: argument {position + 1} must be {wanted}, and {operand.text}"
    return Issue(text, f"it is called {function.signature}")


def call_issue(function: Function, operands: Sequence[Operand]) -> Issue | None:
    """Problem of the arguments in combination."""
    if function.name == "contains" and len(operands) == 2 and operands[1].kind.item is not None:
        issue = membership_issue(operands[0], Operand(operands[1].node, operands[1].kind.item))
        return (
            None
            if issue is None
            else Issue(f"contains is never true here: {operands[0].text}", issue.suggestion)
        )
    return None


# Results


def result_type(function: Function, operands: Sequence[Operand]) -> FieldType:
    """The type of a call's result."""
    result = _RESULTS.get(function.name)
    if result is not None:
        return result(operands)
    return function.returns


def _first_defined(operands: Sequence[Operand]) -> FieldType:
    kinds = [operand.kind for operand in operands]
    if len(kinds) == 1:
        if kinds[0].name != "array":
            return maybe(kinds[0]) if family(kinds[0]) != "unknown" else UNKNOWN
        return maybe(kinds[0].item or UNKNOWN)
    return unified_all(kinds)  # null is a value and is returned: what may be null stays so


def _element(operands: Sequence[Operand]) -> FieldType:
    kind = operands[-1].kind
    return (kind.item or UNKNOWN) if kind.name == "array" else UNKNOWN


def _sublist(operands: Sequence[Operand]) -> FieldType:
    return array_of(_element(operands))


def _absolute(operands: Sequence[Operand]) -> FieldType:
    return LONG if operands[0].kind.name == "long" else DOUBLE


def _map_get(operands: Sequence[Operand]) -> FieldType:
    path = literal_text(operands[0].node)
    kind = UNKNOWN if path is None else maybe(reached(operands[1].kind, path.split(".")))
    return _or_default(kind, operands)


def _mget(operands: Sequence[Operand]) -> FieldType:
    key = literal_text(operands[0].node)
    return _or_default(
        UNKNOWN if key is None else maybe(reached(operands[1].kind, [key])), operands
    )


def _or_default(kind: FieldType, operands: Sequence[Operand]) -> FieldType:
    return kind if len(operands) < 3 else maybe(unified(kind, operands[2].kind))


def _map_put(operands: Sequence[Operand]) -> FieldType:
    path = literal_text(operands[0].node)
    return _put(operands[2].kind, None if path is None else path.split("."), operands[1].kind)


def _mput(operands: Sequence[Operand]) -> FieldType:
    key = literal_text(operands[0].node)
    kind = operands[2].kind
    return _put(kind, None if key is None else [key], operands[1].kind)


def _put(kind: FieldType, steps: Sequence[str] | None, value: FieldType) -> FieldType:
    if steps is None:
        return FieldType("map", nullable=False)
    return written(kind, steps, value)


def _map(operands: Sequence[Operand]) -> FieldType:
    kind = operands[0].kind
    return certain(kind) if family(kind) == "map" else FieldType("map", nullable=False)


def _values_of(operands: Sequence[Operand]) -> FieldType:
    return _value_of(operands[0].kind)


def _value_of(kind: FieldType) -> FieldType:
    """The type of any value in a map."""
    if kind.name == "map":
        return kind.item or UNKNOWN
    return unified_all(kind.fields.values()) if kind.name == "struct" and not kind.open else UNKNOWN


def _entries(operands: Sequence[Operand]) -> FieldType:
    fields = {"key": STRING, "value": maybe(_values_of(operands))}
    return array_of(FieldType("struct", nullable=False, fields=fields, open=False))


_TEXTS: Final = array_of(STRING)
_RESULTS: Final[Mapping[str, Result]] = {
    "coalesce": _first_defined,
    "coalesce_ne": lambda operands: maybe(_first_defined(operands)),
    "nth": _element,
    "first": _element,
    "last": _element,
    "sublist": _sublist,
    "abs": _absolute,
    "map_get": _map_get,
    "mget": _mget,
    "map_put": _map_put,
    "mput": _mput,
    "map": _map,
    "map_new": lambda _: EMPTY_MAP,
    "map_keys": lambda _: _TEXTS,
    "map_values": lambda operands: array_of(_values_of(operands)),
    "map_to_entries": _entries,
    "map_to_redis_hset_args": lambda _: _TEXTS,
    "split": lambda _: _TEXTS,
    "tokens": lambda _: _TEXTS,
    "regex_extract": lambda _: _TEXTS,
    "jq": lambda _: array_of(UNKNOWN),
    "null": lambda _: NULL,
}
