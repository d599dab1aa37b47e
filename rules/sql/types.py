"""What types the columns of a rule's rows have, as far as the SQL and the payload's schema tell.

Nothing here changes what a rule does: an unknown type is ``unknown``, and a field that a closed payload type does not
have is a warning with a suggestion.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Problem
from broker.core.schema import UNKNOWN, FieldType
from rules.functions.registry import Functions
from rules.sql.tree import END_INDEX, Path, Tree, path_of, place_of, text_of_tree

BOOLEAN: Final = FieldType("boolean")
LONG: Final = FieldType("long")
DOUBLE: Final = FieldType("double")
STRING: Final = FieldType("string")
NULL: Final = FieldType("null")
_NUMERIC: Final = ("long", "double")

COLUMN_TYPES: Final[dict[str, FieldType]] = {
    "event": STRING, "id": STRING, "clientid": STRING, "username": STRING, "payload": STRING, "peerhost": STRING,
    "peername": STRING, "topic": STRING, "qos": LONG,
    "flags": FieldType("struct", fields={"retain": BOOLEAN, "dup": BOOLEAN}),
    "pub_props": FieldType("struct"), "publish_received_at": LONG, "timestamp": LONG, "node": STRING,
    "metadata": FieldType("struct", fields={"rule_id": STRING}), "client_attrs": FieldType("map", item=STRING),
}  # fmt: skip
"""The columns of ``message.publish``; ``payload`` is text until a path leads into it."""

_ARITHMETIC: Final = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod)
_BOOLEAN: Final = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.And, exp.Or, exp.Not, exp.In, exp.Boolean)

Columns = list[tuple[str, FieldType]]


@dataclass(frozen=True, slots=True)
class Inferred:
    """The columns of a rule's rows in order, and what looks like a mistake in the SQL."""

    columns: Columns
    warnings: tuple[Problem, ...]
    has_star: bool
    """Whether ``*`` is selected, which on events stands for columns not listed here."""


def output_columns(tree: exp.Select, functions: Functions, payload_type: FieldType | None = None) -> Columns:
    """Name and type of each column, in order."""
    return infer(tree, functions, payload_type).columns


def infer(tree: exp.Select, functions: Functions, payload_type: FieldType | None = None) -> Inferred:
    """Types of columns, with warnings for fields that a closed payload type does not have."""
    inference = _Inference(functions, payload_type or UNKNOWN)
    columns = inference.columns_of(tree)
    has_star = any(isinstance(item, exp.Star) for item in tree.expressions)
    return Inferred(columns, tuple(inference.warnings), has_star)


def unified(one: FieldType, other: FieldType) -> FieldType:
    """The type of a value that has one of two types."""
    if one.name == "null":
        return other
    if other.name == "null" or one == other:
        return one
    if one.name in _NUMERIC and other.name in _NUMERIC:
        return DOUBLE
    if one.name == other.name == "array":
        return FieldType("array", item=unified(one.item or UNKNOWN, other.item or UNKNOWN))
    if one.name == other.name == "struct":
        names = [*one.fields, *(name for name in other.fields if name not in one.fields)]
        fields = {name: unified(one.fields.get(name, NULL), other.fields.get(name, NULL)) for name in names}
        return FieldType("struct", fields=fields, open=one.open or other.open)
    return one if one.name == other.name else UNKNOWN


@dataclass(slots=True)
class _Scope:
    outer: _Scope | None = None
    names: dict[str, FieldType] = field(default_factory=dict)


class _Inference:
    def __init__(self, functions: Functions, payload_type: FieldType) -> None:
        self._functions = functions
        self._payload = payload_type
        self.warnings: list[Problem] = []

    def columns_of(self, tree: exp.Select) -> Columns:
        scope = _Scope()
        if "foreach" not in tree.meta:
            self._fields(tree.expressions, scope)
            self._look_at(tree.args.get("where"), scope)
            return list(scope.names.items())
        inner: exp.Select = tree.args["from_"].this.this
        *earlier, last = inner.expressions
        self._fields(earlier, scope)
        items = self._type_of(last.this if isinstance(last, exp.Alias) else last, scope, walked=True)
        self._look_at(inner.args.get("where"), scope)
        scope.names[tree.meta["foreach"]] = items.item or UNKNOWN
        self._look_at(tree.args.get("where"), scope)
        done = _Scope(outer=scope)
        self._fields(tree.expressions, done)
        return list(done.names.items())

    def _look_at(self, where: exp.Where | None, scope: _Scope) -> None:
        if where is not None:
            self._type_of(where.this, scope)

    def _fields(self, fields: Sequence[Tree], scope: _Scope) -> None:
        for item in fields:
            if isinstance(item, exp.Star):
                scope.names.update(COLUMN_TYPES)
                if scope.outer is not None:
                    scope.names.update(scope.outer.names)
                continue
            target = item.args["alias"] if isinstance(item, exp.Alias) else item
            path = Path(target.name) if isinstance(target, exp.Identifier) else path_of(target)
            if path is None:
                is_text = isinstance(item, exp.Literal) and item.is_string
                path = Path(item.name if is_text else text_of_tree(item))
            found = self._type_of(item.this if isinstance(item, exp.Alias) else item, scope)
            before = scope.names.get(path.root, UNKNOWN if path.steps else NULL)
            if path.root == "payload" and before == STRING:
                before = self._payload
            scope.names[path.root] = _with(before, path.steps, found)

    def _type_of(self, node: Tree, scope: _Scope, *, walked: bool = False) -> FieldType:
        path = path_of(node)
        if path is not None:
            return self._path(path, node, scope, walked=walked)
        if isinstance(node, exp.Paren):
            return self._type_of(node.this, scope)
        if isinstance(node, exp.Literal):
            return STRING if node.is_string else LONG if node.name.isdigit() else DOUBLE
        if isinstance(node, exp.Null):
            return NULL
        if isinstance(node, exp.Neg):
            inner = self._type_of(node.this, scope)
            return inner if inner.name in _NUMERIC else UNKNOWN
        if isinstance(node, exp.Anonymous):
            return self._call(node, scope)
        if isinstance(node, exp.Case):
            return self._case(node, scope)
        if isinstance(node, exp.GenerateSeries):
            return FieldType("array", item=LONG)
        inner_types = [self._type_of(child, scope) for child in node.iter_expressions()]
        if isinstance(node, exp.Array):
            item = NULL
            for kind in inner_types:
                item = unified(item, kind)
            return FieldType("array", item=item)
        if isinstance(node, _ARITHMETIC):
            return _arithmetic(node, *inner_types)
        if isinstance(node, exp.DPipe):
            return STRING
        return BOOLEAN if isinstance(node, _BOOLEAN) else UNKNOWN

    def _call(self, node: exp.Anonymous, scope: _Scope) -> FieldType:
        arguments = [self._type_of(argument, scope) for argument in node.expressions]
        if (
            node.name == "json_decode"
            and len(node.expressions) == 1
            and path_of(node.expressions[0]) == Path("payload")
        ):
            return self._payload
        if node.name in ("coalesce", "coalesce_ne") and len(arguments) > 1:
            found = NULL
            for kind in arguments:
                found = unified(found, kind)
            return found
        function = self._functions.get(node.name)
        if function is None:
            return UNKNOWN
        return STRING if function.returns.name == "binary" else function.returns

    def _case(self, node: exp.Case, scope: _Scope) -> FieldType:
        found = NULL
        if node.this is not None:
            self._type_of(node.this, scope)
        for branch in node.args["ifs"]:
            self._type_of(branch.this, scope)
            found = unified(found, self._type_of(branch.args["true"], scope))
        default = node.args.get("default")
        return found if default is None else unified(found, self._type_of(default, scope))

    # Paths

    def _path(self, path: Path, node: Tree, scope: _Scope, *, walked: bool) -> FieldType:
        level: _Scope | None = scope
        while level is not None:
            if path.root in level.names and not (path.root == "payload" and level.names["payload"] == STRING):
                return self._descend(level.names[path.root], path, None)
            level = level.outer
        if path.root == "payload" and (path.steps or path.range or walked):
            return self._descend(self._payload, path, node)
        return self._descend(COLUMN_TYPES.get(path.root, UNKNOWN), path, None)

    def _descend(self, kind: FieldType, path: Path, warn_at: Tree | None) -> FieldType:
        for step in path.steps:
            if isinstance(step, str):
                if kind.name == "struct" and step not in kind.fields and not kind.open and warn_at is not None:
                    self._warn(step, kind, path, warn_at)
                kind = _member(kind, step)
            else:
                kind = (kind.item or UNKNOWN) if kind.name == "array" else UNKNOWN
        if path.range is not None:
            return kind if kind.name == "array" else FieldType("array", item=UNKNOWN)
        return kind

    def _warn(self, name: str, kind: FieldType, path: Path, node: Tree) -> None:
        close = difflib.get_close_matches(name, kind.fields, 1)
        line, column = place_of(node)
        suggestion = (
            f"did you mean '{close[0]}'?" if close else f"it has {', '.join(sorted(kind.fields)) or 'no fields'}"
        )
        problem = Problem(f"{path.text}: the payload's schema has no field '{name}'", "/sql", line, column, suggestion)
        if problem not in self.warnings:
            self.warnings.append(problem)


def _member(kind: FieldType, name: str) -> FieldType:
    if kind.name == "struct":
        return kind.fields.get(name, UNKNOWN if kind.open else NULL)
    return (kind.item or UNKNOWN) if kind.name == "map" else UNKNOWN


def _with(kind: FieldType, steps: Sequence[Any], value: FieldType) -> FieldType:
    """The type of a target after a value was written at the path."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        is_struct = kind.name == "struct"
        fields = dict(kind.fields) if is_struct else {}
        fields[step] = _with(fields.get(step, UNKNOWN), rest, value)
        return FieldType("struct", fields=fields, open=is_struct and kind.open)
    before = (kind.item or UNKNOWN) if kind.name == "array" else NULL
    written = _with(UNKNOWN, rest, value)
    return FieldType("array", item=unified(before, written) if step is not END_INDEX or before != NULL else written)


def _arithmetic(node: Tree, left: FieldType, right: FieldType) -> FieldType:
    if isinstance(node, exp.Div):
        return DOUBLE
    if isinstance(node, (exp.IntDiv, exp.Mod)):
        return LONG
    if isinstance(node, exp.Add):
        if "string" in (left.name, right.name):
            return STRING
        if left.name not in _NUMERIC or right.name not in _NUMERIC:
            return UNKNOWN
    if "double" in (left.name, right.name):
        return DOUBLE
    return LONG if left.name == right.name == "long" else UNKNOWN
