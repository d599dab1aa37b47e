"""Types of function calls: results that depend on the arguments, and arguments that can never fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sqlglot import exp

from broker.core.schema import UNKNOWN, FieldType
from rules.functions.registry import Function
from rules.sql.operand_checks import Operand, membership_issue
from rules.sql.steps import Issue, reached
from rules.sql.tree import bare
from rules.sql.types import (
    DOUBLE,
    EMPTY_MAP,
    LONG,
    NULL,
    STRING,
    array_of,
    certain,
    family,
    maybe,
    unified,
    unified_all,
    written,
)
from rules.sql.values import UNDEFINED

Kinds = Sequence[FieldType]
Nodes = Sequence[exp.Expression]
Result = Callable[[Sequence[Operand]], FieldType]

_SAMPLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "long": (1, 0, 1000), "double": (1.5, 1), "boolean": (True, False), "array": ([],), "map": ({},), "struct": ({},),
    "null": (UNDEFINED, None),
}  # fmt: skip
"""Values of each type; where a parameter takes none of them, it takes no value of the type."""
_NO_TEXT: Final = frozenset({"array", "integer", "float", "number", "boolean"})
"""Kinds of parameters that no text fits, whatever it holds."""
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
"""What functions refuse that look at their arguments themselves: families by position, and what is wanted."""


# Arguments


def argument_issue(function: Function, position: int, operand: Operand) -> Issue | None:
    """Why an argument (from 0) makes the call fail on every message."""
    if isinstance(bare(operand.node), (exp.Literal, exp.Boolean)):
        return None  # the compiler looks at literals, value and all
    what = family(operand.kind)
    refused = _REFUSED.get(function.name, {}).get(position)
    if refused is not None and what in refused[0].split():
        return _never_fits(function, position, operand, refused[1])
    if function.name == "sublist":
        return _sublist_issue(function, position, operand)
    problems = [function.problem_with(position, sample) for sample in _samples(function, position, operand.kind)]
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
    """What is wrong with arguments as they are together."""
    if function.name == "contains" and len(operands) == 2 and operands[1].kind.item is not None:
        found = membership_issue(operands[0], Operand(operands[1].node, operands[1].kind.item))
        return None if found is None else Issue(f"contains is never true here: {operands[0].text}", found.suggestion)
    return None


# Results


def result_type(function: Function, operands: Sequence[Operand]) -> FieldType:
    """The type of a call's result."""
    found = _RESULTS.get(function.name)
    if found is not None:
        return found(operands)
    if function.returns.name == "binary":
        return FieldType("string", nullable=function.returns.nullable)
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
    path = _text(operands[0])
    kind = UNKNOWN if path is None else maybe(reached(operands[1].kind, path.split(".")))
    return _or_default(kind, operands)


def _mget(operands: Sequence[Operand]) -> FieldType:
    key = _text(operands[0])
    return _or_default(UNKNOWN if key is None else maybe(reached(operands[1].kind, [key])), operands)


def _or_default(kind: FieldType, operands: Sequence[Operand]) -> FieldType:
    return kind if len(operands) < 3 else maybe(unified(kind, operands[2].kind))


def _map_put(operands: Sequence[Operand]) -> FieldType:
    path = _text(operands[0])
    return _put(operands[2].kind, None if path is None else path.split("."), operands[1].kind)


def _mput(operands: Sequence[Operand]) -> FieldType:
    key = _text(operands[0])
    kind = operands[2].kind
    return _put(UNKNOWN if family(kind) == "string" else kind, None if key is None else [key], operands[1].kind)


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


def _text(operand: Operand) -> str | None:
    node = bare(operand.node)
    return node.name if isinstance(node, exp.Literal) and node.is_string else None


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
