"""Types, lineage and likely mistakes of a statement, found in one walk over its tree.

The walk follows the compiler: names selected so far shadow columns and fall back to them where they are undefined,
``*`` stands for the columns of the rule's sources, FOREACH gives its item to INCASE and DO. Nothing here changes what
a rule does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Problem, Rename
from broker.core.schema import UNKNOWN, FieldType
from rules.functions.registry import Functions
from rules.sql.operators import ARITHMETIC, OPERATORS
from rules.sql.syntax.printer import target_of, text_of_tree
from rules.sql.syntax.tree import (
    TESTS,
    Path,
    Tree,
    item_of,
    jq_of,
    literal_text,
    operands,
    path_of,
    place_of,
    value_path,
)
from rules.sql.type_checker.inputs import ANY, Input, columns_of, is_open, payload_of
from rules.sql.type_checker.lineage import ColumnLineage, ConditionLineage, Lineage, Origin
from rules.sql.type_checker.operands import (
    Operand,
    argument_issue,
    arithmetic_issue,
    arithmetic_type,
    call_issue,
    comparison_issue,
    condition_issue,
    membership_issue,
    negation_issue,
    result_type,
)
from rules.sql.type_checker.types import (
    BOOLEAN,
    DOUBLE,
    LONG,
    NULL,
    STRING,
    Issue,
    array_of,
    descend,
    described,
    family,
    maybe,
    nearest,
    unified,
    unified_all,
    written,
)

Columns = list[tuple[str, FieldType]]
# The type that a registered schema (and message type) decodes to; ``unknown`` without one.
SchemaType = Callable[[str, str | None], FieldType]

_PRESENCE: Final = ("is_null", "is_not_null", "is_null_var", "is_not_null_var")


# Maximum reports; after these, only mistakes are reported.
_MOST_WARNINGS: Final = 50


@dataclass(frozen=True, slots=True)
class Report:
    """A likely mistake; ``is_mistake`` where it is certain, as ``rule_engine.type_check`` means it."""

    problem: Problem
    is_mistake: bool


@dataclass(frozen=True, slots=True)
class Inferred:
    """The columns of a rule's rows in order, where they come from, and what looks like a mistake in the SQL."""

    columns: Columns
    reports: tuple[Report, ...]
    has_star: bool
    """True if ``*`` is selected from a source with unknown columns."""
    lineage: Lineage


@dataclass(frozen=True, slots=True)
class _Value:
    """An expression: its type, what it is made of, and the members written to it one by one.

    ``reference`` is set when the value is what is at one place of the event; ``is_payload`` when it is the payload
    as it came.
    """

    kind: FieldType
    origins: frozenset[Origin] = frozenset()
    reference: Origin | None = None
    members: Mapping[str, _Value] = field(default_factory=dict)
    is_payload: bool = False


_NOTHING: Final = _Value(NULL)


@dataclass(slots=True)
class _Scope:
    outer: _Scope | None = None
    names: dict[str, _Value] = field(default_factory=dict)
    written_by: dict[str, list[str]] = field(default_factory=dict)
    """The expressions of each column."""


def infer(
    tree: exp.Select,
    functions: Functions,
    inputs: Sequence[Input] = (ANY,),
    schema_type: SchemaType | None = None,
) -> Inferred:
    """Types, lineage and likely mistakes of a statement that reads these inputs."""
    return _Inference(functions, inputs, schema_type or _no_schema).statement(tree)


def _no_schema(name: str, message_type: str | None) -> FieldType:
    return UNKNOWN


def _has_name(scope: _Scope | None, name: str) -> bool:
    while scope is not None:
        if name in scope.names:
            return True
        scope = scope.outer
    return False


class _Inference:
    def __init__(
        self, functions: Functions, inputs: Sequence[Input], schema_type: SchemaType
    ) -> None:
        self._functions = functions
        self._schema_type = schema_type
        self._inputs = inputs
        self._columns = columns_of(inputs)
        self._payload = payload_of(inputs)
        self._is_open = is_open(inputs)
        self._reports: list[Report] = []
        self._conditions: list[ConditionLineage] = []
        self._origin_types: dict[Origin, FieldType] = {}
        self._guarded: frozenset[str] = frozenset()
        self._incase_hides: frozenset[str] = frozenset()
        """Aliases of DO while INCASE is checked, which cannot see them."""

    # The statement

    def statement(self, tree: exp.Select) -> Inferred:
        self._guarded = frozenset(_looked_for(tree))
        scope = _Scope()
        item = item_of(tree)
        if item is not None:
            scope = self._foreach(tree, item)
        else:
            self._fields(tree.expressions, scope)
            self._where(tree.args.get("where"), "WHERE", scope)
        if jq_of(tree) is not None:
            return Inferred([], tuple(self._reports), True, self._lineage(_Scope()))
        columns = [(name, value.kind) for name, value in scope.names.items()]
        has_star = self._is_open and any(isinstance(item, exp.Star) for item in tree.expressions)
        return Inferred(columns, tuple(self._reports), has_star, self._lineage(scope))

    def _foreach(self, tree: exp.Select, item_name: str) -> _Scope:
        scope = _Scope()
        *earlier, last = tree.args["foreach"]
        self._fields(earlier, scope)
        node = last.this if isinstance(last, exp.Alias) else last
        items = self._walked(node, scope)
        if isinstance(last, exp.Alias):
            scope.names[item_name] = items
        self._where(tree.args.get("where"), "WHERE", scope)
        scope.names[item_name] = self._item_of(items)
        self._incase_hides = frozenset(filter(None, map(_alias_of, tree.expressions)))
        self._where(tree.args.get("incase"), "INCASE", scope)
        self._incase_hides = frozenset()
        done = _Scope(outer=scope)
        self._fields(tree.expressions, done)
        return done

    def _walked(self, node: Tree, scope: _Scope) -> _Value:
        """The array that FOREACH walks; the payload itself is decoded."""
        value = self._value_of(node, scope)
        if value.is_payload:
            value = replace(value, kind=self._payload, is_payload=False)
        if family(value.kind) not in (
            "array",
            "string",
            "unknown",
        ):
            # a string may be the JSON of an array
            text = f"FOREACH walks an array, and {text_of_tree(node)} is {described(value.kind)}: there are never rows"
            self._report(node, Issue(text))
        return value

    def _item_of(self, items: _Value) -> _Value:
        kind = (items.kind.item or UNKNOWN) if items.kind.name == "array" else UNKNOWN
        if items.reference is None:
            return _Value(kind, items.origins)
        return self._reference(items.reference.below("[]"), kind)

    def _where(self, where: exp.Where | None, clause: str, scope: _Scope) -> None:
        if where is None:
            return
        for node in operands(where.this, exp.And):
            value = self._condition(node, scope)
            self._conditions.append(ConditionLineage(clause, text_of_tree(node), value.origins))

    def _lineage(self, scope: _Scope) -> Lineage:
        columns = [
            ColumnLineage(
                name,
                value.kind,
                ", ".join(dict.fromkeys(scope.written_by.get(name, ["*"]))),
                value.origins,
            )
            for name, value in scope.names.items()
        ]
        return Lineage(tuple(columns), tuple(self._conditions), self._origin_types)

    # Lists of fields

    def _fields(self, fields: Sequence[Tree], scope: _Scope) -> None:
        for item in fields:
            if isinstance(item, exp.Star):
                self._star(scope)
            else:
                self._field(item, scope)

    def _star(self, scope: _Scope) -> None:
        columns = {name: self._column(name) for name in self._columns}
        if scope.outer is not None:
            columns.update(scope.outer.names)
        for name, value in columns.items():
            before = scope.names.get(name)
            may_lack = value.kind.nullable and before is not None
            scope.names[name] = _either(value, before) if may_lack and before is not None else value
            scope.written_by[name] = [*(scope.written_by.get(name, []) if may_lack else []), "*"]

    def _field(self, item: Tree, scope: _Scope) -> None:
        node = item.this if isinstance(item, exp.Alias) else item
        path = target_of(item)
        value = self._value_of(node, scope)
        scope.written_by.setdefault(path.root, []).append(text_of_tree(node))
        if not path.steps:
            scope.names[path.root] = value
            scope.written_by[path.root] = [text_of_tree(node)]
            return
        for step in path.steps:
            if isinstance(step, Path):
                self._read(step, node, scope)
        before = scope.names.get(path.root, _NOTHING)
        if before.is_payload:  # under another name it may also be text that is not JSON
            kind = self._payload if path.root == "payload" else maybe(self._payload)
            before = replace(before, kind=kind, is_payload=False)
        scope.names[path.root] = _put(before, path.steps, value)

    # Expressions

    def _value_of(self, node: Tree, scope: _Scope) -> _Value:
        path = path_of(node)
        if path is not None:
            return self._read(path, node, scope)
        if isinstance(node, (exp.Dot, exp.Bracket)):
            base, steps = value_path(node)
            return self._descend(
                self._value_of(base, scope), replace(steps, root=text_of_tree(base)), node
            )
        if isinstance(node, exp.Paren):
            return self._value_of(node.this, scope)
        if isinstance(node, exp.Literal):
            return _Value(_literal_type(node))
        if isinstance(node, exp.Boolean):
            return _Value(BOOLEAN)
        if isinstance(node, exp.Null):
            return _NOTHING
        if isinstance(node, exp.Neg):
            return self._negation(node, scope)
        if isinstance(node, exp.Anonymous):
            return self._call(node, scope)
        if isinstance(node, exp.Case):
            return self._case(node, scope)
        if isinstance(node, exp.GenerateSeries):
            return _Value(array_of(LONG))
        if isinstance(node, exp.Array):
            items = [self._value_of(item, scope) for item in node.expressions]
            return _Value(array_of(unified_all(item.kind for item in items)), _origins(items))
        if isinstance(node, exp.Struct):
            return self._map(node, scope)
        if type(node) in OPERATORS:
            return self._operation(node, scope)
        if isinstance(node, TESTS):
            return self._test(node, scope)
        return _Value(
            UNKNOWN, _origins(self._value_of(child, scope) for child in node.iter_expressions())
        )

    def _map(self, node: exp.Struct, scope: _Scope) -> _Value:
        members = {
            item.this.name: self._value_of(item.expression, scope) for item in node.expressions
        }
        fields = {name: value.kind for name, value in members.items()}
        kind = FieldType("struct", nullable=False, fields=fields, open=False)
        return _Value(kind, _origins(members.values()), members=members)

    def _test(self, node: Tree, scope: _Scope) -> _Value:
        """AND, OR, NOT, IN and the tests with a word: booleans all."""
        if isinstance(node, exp.In):
            return self._membership(node, scope)
        if isinstance(node, exp.Between):
            return self._between(node, scope)
        if isinstance(node, (exp.And, exp.Or)):
            values = [self._condition(operand, scope) for operand in operands(node, type(node))]
        elif isinstance(node, exp.Not):
            values = [self._condition(node.this, scope)]
        elif isinstance(node, exp.Is):
            values = [self._value_of(node.this, scope)]
        else:
            values = [self._value_of(child, scope) for child in node.iter_expressions()]
        return _Value(BOOLEAN, _origins(values))

    def _between(self, node: exp.Between, scope: _Scope) -> _Value:
        value = self._value_of(node.this, scope)
        ends = [
            (node.args[name], self._value_of(node.args[name], scope)) for name in ("low", "high")
        ]
        for kind, (end, end_value) in zip((exp.GTE, exp.LTE), ends, strict=True):
            test = kind(this=node.this, expression=end)
            operands = Operand(node.this, value.kind), Operand(end, end_value.kind)
            self._report(node, comparison_issue(test, *operands))
            self._warn_of_absence(node, operands)
        return _Value(BOOLEAN, _origins((value, *(end_value for _, end_value in ends))))

    def _operation(self, node: Tree, scope: _Scope) -> _Value:
        left = self._value_of(node.this, scope)
        right = self._value_of(node.expression, scope)
        origins = _origins((left, right))
        operands = Operand(node.this, left.kind), Operand(node.expression, right.kind)
        if type(node) in ARITHMETIC:
            self._report(node, arithmetic_issue(node, *operands))
            return _Value(arithmetic_type(node, left.kind, right.kind), origins)
        if isinstance(node, exp.DPipe):
            return _Value(STRING, origins)
        issue = comparison_issue(node, *operands)
        self._report(node, issue)
        if issue is None and not isinstance(node, exp.EQ):
            self._warn_of_absence(node, operands)
        return _Value(BOOLEAN, origins)

    def _warn_of_absence(self, node: Tree, operands: Iterable[Operand]) -> None:
        """Warn of a comparison whose operand may be missing: of ``!=`` any path, else one of known type."""
        for operand in operands:
            text = text_of_tree(operand.node)
            if path_of(operand.node) is None or not operand.kind.nullable or text in self._guarded:
                continue
            message = f"where {text} is missing, {text_of_tree(node)} is false"
            if not isinstance(node, exp.NEQ):
                if family(operand.kind) in ("unknown", "null"):
                    continue
                message = f"where {text} is null or missing, {text_of_tree(node)} is false, and so is NOT of it"
            hint = f"add OR {text} IS NULL for rows without it, AND {text} IS NOT NULL to say that they are left out"
            self._report(node, Issue(message, hint, is_mistake=False))
            return

    def _negation(self, node: exp.Neg, scope: _Scope) -> _Value:
        value = self._value_of(node.this, scope)
        self._report(node, negation_issue(Operand(node.this, value.kind)))
        return _Value(LONG if value.kind.name == "long" else DOUBLE, value.origins)

    def _membership(self, node: exp.In, scope: _Scope) -> _Value:
        value = self._value_of(node.this, scope)
        items = [self._value_of(item, scope) for item in node.expressions]
        for item, item_value in zip(node.expressions, items, strict=True):
            self._report(
                item,
                membership_issue(Operand(node.this, value.kind), Operand(item, item_value.kind)),
            )
        return _Value(BOOLEAN, _origins((value, *items)))

    def _case(self, node: exp.Case, scope: _Scope) -> _Value:
        subject = None if node.this is None else self._value_of(node.this, scope)
        values: list[_Value] = [] if subject is None else [subject]
        kinds: list[FieldType] = []
        for branch in node.args["ifs"]:
            if subject is None:
                values.append(self._condition(branch.this, scope))
            else:
                tested = self._value_of(branch.this, scope)
                values.append(tested)
                issue = membership_issue(
                    Operand(node.this, subject.kind), Operand(branch.this, tested.kind)
                )
                self._report(branch.this, issue)
            values.append(self._value_of(branch.args["true"], scope))
            kinds.append(values[-1].kind)
        default = node.args.get("default")
        values.append(_NOTHING if default is None else self._value_of(default, scope))
        kinds.append(values[-1].kind)
        return _Value(unified_all(kinds), _origins(values))

    def _condition(self, node: Tree, scope: _Scope) -> _Value:
        value = self._value_of(node, scope)
        self._report(node, condition_issue(Operand(node, value.kind)))
        return value

    # Functions

    def _call(self, node: exp.Anonymous, scope: _Scope) -> _Value:
        values = [self._value_of(argument, scope) for argument in node.expressions]
        operands = [
            Operand(argument, value.kind)
            for argument, value in zip(node.expressions, values, strict=True)
        ]
        function = self._functions.get(node.name)
        if function is None or not function.takes(len(operands)):
            return _Value(UNKNOWN, _origins(values))
        for position, operand in enumerate(operands):
            self._report(operand.node, argument_issue(function, position, operand))
        self._report(node, call_issue(function, operands))
        special = self._special_call(node, values, operands)
        if special is not None:
            return special
        if function.column is None:
            return _Value(result_type(function, operands), _origins(values))
        column = self._column(function.column)
        if not operands and function.column == function.name:
            return column
        return _Value(result_type(function, operands), _origins((column, *values)))

    def _special_call(
        self, node: exp.Anonymous, values: Sequence[_Value], operands: Sequence[Operand]
    ) -> _Value | None:
        """Calls that give the payload, or a part of it, or what a registered schema says."""
        name: str = node.name
        if name == "json_decode" and values[0].is_payload:
            return self._reference(Origin("payload"), self._payload_read(Path("payload"), node))
        if name == "payload" and operands:
            text = literal_text(operands[0].node)
            path = None if text is None else Path("payload", tuple(text.split(".")))
            return (
                _Value(UNKNOWN, self._column("payload").origins)
                if path is None
                else self._read_payload(path, node)
            )
        if name == "schema_decode":
            schema, *rest = [literal_text(operand.node) for operand in operands]
            message_type = rest[1] if len(rest) > 1 else None
            kind = UNKNOWN if schema is None else self._schema_type(schema, message_type)
            return _Value(kind, _origins(values))
        return None

    # Paths

    def _read(self, path: Path, node: Tree, scope: _Scope) -> _Value:
        """The path tried against names selected so far, innermost list first, then against the columns."""
        self._look_at_steps(path, node, scope)
        result: _Value | None = None
        level: _Scope | None = scope
        is_column = path.root in self._columns or self._is_open
        while level is not None:
            value = level.names.get(path.root)
            if value is not None and not (value.is_payload and path.root == "payload"):
                is_last = not is_column and not _has_name(level.outer, path.root)
                is_missing = result is None or result.kind.name == "null"
                read = self._read_name(value, path, node if is_last and is_missing else None)
                result = read if result is None else _either(result, read)
                if not result.kind.nullable:
                    return result
            level = level.outer
        if not is_column:
            return result if result is not None else self._unknown_column(path, node)
        if path.root == "payload" and (path.steps or path.range):
            read = self._read_payload(path, node)
        else:
            read = self._descend(self._column(path.root), path, node, only_mistakes=True)
        return read if result is None else _either(result, read)

    def _look_at_steps(self, path: Path, node: Tree, scope: _Scope) -> None:
        for step in path.steps:
            if step == 0 and isinstance(step, int):
                text = f"{path.text}: elements count from 1, so element 0 is always undefined"
                self._report(node, Issue(text, "write [1] for the first element", is_mistake=False))
            elif isinstance(step, Path) and (
                path.root != "payload" or self._is_known(step.root, scope)
            ):
                index = self._read(step, node, scope)
                if family(index.kind) not in ("number", "unknown", "null"):
                    self._report(node, Issue(f"{path.text}: an index is an integer, and {step.text} is "
                                             f"{described(index.kind)}"))  # fmt: skip

    def _is_known(self, name: str, scope: _Scope | None) -> bool:
        return _has_name(scope, name) or name in self._columns

    def _read_name(self, value: _Value, path: Path, report_at: Tree | None) -> _Value:
        if value.is_payload and (path.steps or path.range):
            read = self._read_payload(Path("payload", path.steps, path.range), report_at)
            return replace(read, kind=maybe(read.kind))  # text that is not JSON has no members
        return self._descend(value, path, report_at)

    def _descend(
        self, value: _Value, path: Path, report_at: Tree | None, *, only_mistakes: bool = False
    ) -> _Value:
        steps = list(path.steps)
        text = path.root
        while steps and isinstance(steps[0], str) and steps[0] in value.members:
            text += f".{steps[0]}"
            value = value.members[steps.pop(0)]
        if not steps and path.range is None:
            return value
        kind, issue = descend(value.kind, Path(text, tuple(steps), path.range))
        if report_at is not None:
            if issue is None or issue.is_mistake or not only_mistakes:
                self._report(report_at, issue)
        elif issue is not None and issue.is_mistake:
            kind = NULL  # the column of that name is read instead
        if value.reference is None:
            return _Value(kind, value.origins)
        return self._reference(_below(value.reference, steps, path.range), kind)

    def _column(self, name: str) -> _Value:
        kind = self._columns.get(name, UNKNOWN)
        return replace(self._reference(Origin(name), kind), is_payload=name == "payload")

    def _unknown_column(self, path: Path, node: Tree) -> _Value:
        name = path.root
        if name.lower() == "null":
            return _NOTHING
        if name in self._incase_hides:
            text = f"INCASE is evaluated before DO, so '{name}' is undefined in it"
            self._report(
                node, Issue(text, f"repeat the expression that DO calls '{name}'", is_mistake=False)
            )
            return _NOTHING
        close = nearest(name, self._columns)
        hint: str | None = Rename(name, close) if close else None
        text = f"what the rule reads has no column '{name}', so it is always undefined"
        if _is_quoted(node):
            text = f'"{name}" is the name of a column, and what the rule reads has no such column'
            hint = f"strings are written in single quotes: '{name}'"
        self._report(node, Issue(text, hint, is_mistake=False))
        return _Value(UNKNOWN)

    # The payload

    def _read_payload(self, path: Path, node: Tree | None) -> _Value:
        kind = self._payload_read(path, node)
        return self._reference(_below(Origin("payload"), path.steps, path.range), kind)

    def _payload_read(self, path: Path, node: Tree | None) -> FieldType:
        """The type of a place in the payload over all inputs; reports places that some or all of them do not have."""
        read_types = [
            (source, *_descend_payload(source.payload, path))
            for source in self._inputs
            if _has_payload(source)
        ]
        if not read_types:
            return UNKNOWN
        if node is not None:
            self._report_all(node, path, [(source, issue) for source, _, issue in read_types])
        return unified_all(kind for _, kind, _ in read_types)

    def _report_all(
        self, node: Tree, path: Path, by_input: Sequence[tuple[Input, Issue | None]]
    ) -> None:
        issues = [issue for _, issue in by_input if issue is not None]
        if not issues:
            return
        if len(issues) == len(by_input):
            self._report(
                node, replace(issues[0], is_mistake=all(issue.is_mistake for issue in issues))
            )
            return
        for source, issue in by_input:
            if issue is not None:
                text = f'on topics of "{source.source}": {issue.message}'
                self._report(node, Issue(text, issue.suggestion, is_mistake=False))

    def _reference(self, origin: Origin, kind: FieldType) -> _Value:
        self._origin_types[origin] = kind
        return _Value(kind, frozenset((origin,)), origin)

    def _report(self, node: Tree, issue: Issue | None) -> None:
        if issue is None:
            return
        line, column = place_of(node)
        report = Report(
            Problem(issue.message, "/sql", line, column, issue.suggestion), issue.is_mistake
        )
        is_one_too_many = not issue.is_mistake and len(self._reports) >= _MOST_WARNINGS
        if not is_one_too_many and report not in self._reports:
            self._reports.append(report)


def _descend_payload(payload: FieldType, path: Path) -> tuple[FieldType, Issue | None]:
    if payload.coding != "json":
        text = f"the payload is written in {payload.coding.capitalize()}, not JSON, so {path.text} always fails"
        return UNKNOWN, Issue(
            text, "decode it with schema_decode('<schema>', payload), or by a transformation"
        )
    return descend(payload, path)


def _has_payload(origin: Input) -> bool:
    return origin.columns is None or "payload" in origin.columns


def _below(origin: Origin, steps: Iterable[Any], limits: tuple[int, int] | None) -> Origin:
    for step in steps:
        if isinstance(step, str):
            origin = origin.below(f".{step}")
        else:
            origin = origin.below(f"[{step}]" if isinstance(step, int) else "[]")
    return origin if limits is None else origin.below(f"[{limits[0]}..{limits[1]}]")


def _either(first: _Value, other: _Value) -> _Value:
    """The first value where it is there, else the other."""
    if first.kind == NULL:
        return other
    kind = unified(first.kind, other.kind)
    return _Value(
        kind,
        first.origins | other.origins,
        first.reference if first.reference == other.reference else None,
    )


def _looked_for(tree: exp.Select) -> Iterable[str]:
    """The values that are asked whether they are there."""
    for node in tree.find_all(exp.Is, exp.Anonymous):
        if isinstance(node, exp.Is):
            yield text_of_tree(node.this)
        elif node.name in _PRESENCE and node.expressions:
            yield text_of_tree(node.expressions[0])


def _put(before: _Value, steps: Sequence[Any], value: _Value) -> _Value:
    kind = written(before.kind, steps, value.kind)
    step = steps[0]
    rest = steps[1:]
    origins = before.origins | value.origins
    if not isinstance(step, str):
        return _Value(kind, origins)
    members = dict(before.members)
    member = members.get(step)
    if not rest:
        members[step] = value
    elif member is not None or family(before.kind) == "null":
        members[step] = _put(member or _NOTHING, rest, value)
    else:
        members.pop(step, None)
    return _Value(kind, origins, members=members)


def _alias_of(item: Tree) -> str | None:
    return (
        None
        if isinstance(item, exp.Star) or not isinstance(item, exp.Alias)
        else target_of(item).root
    )


def _literal_type(node: exp.Literal) -> FieldType:
    if node.is_string:
        return FieldType("string", nullable=False, values=(node.name,))
    return LONG if node.name.isdigit() else DOUBLE


def _is_quoted(node: Tree) -> bool:
    return isinstance(node, exp.Column) and bool(node.this.args.get("quoted"))


def _origins(values: Iterable[_Value]) -> frozenset[Origin]:
    return frozenset().union(*(value.origins for value in values))
