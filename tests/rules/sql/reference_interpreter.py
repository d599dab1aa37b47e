"""What a statement means, said as plainly as possible: it walks the tree for every event and keeps nothing.

The compiler must give the same rows, or fail where this fails. Scalars (arithmetic, comparison of two values) are those
of ``rules.sql.values``, which have tests of their own; names, paths, conditions, order and rows are told here anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sqlglot import exp

from broker.core import jsontext
from rules.functions.registry import Functions
from rules.sql import like, values
from rules.sql.syntax.printer import text_of_tree
from rules.sql.syntax.tree import END_INDEX, Path, Tree, item_of, path_of, value_path
from rules.sql.values import UNDEFINED, EvaluationError

ARITHMETIC: dict[type[Tree], Callable[[Any, Any], Any]] = {
    exp.Add: values.add, exp.Sub: values.subtract, exp.Mul: values.multiply, exp.Div: values.divide,
    exp.IntDiv: values.integer_divide, exp.Mod: values.modulo, exp.DPipe: values.concat,
}  # fmt: skip
COMPARISONS: dict[type[Tree], Callable[[Any, Any], bool]] = {
    exp.EQ: values.equal, exp.NEQ: values.not_equal, exp.LT: values.less, exp.LTE: values.less_or_equal,
    exp.GT: values.greater, exp.GTE: values.greater_or_equal,
}  # fmt: skip
CONDITIONS = (
    *COMPARISONS,
    exp.And,
    exp.Or,
    exp.Not,
    exp.In,
    exp.Is,
    exp.Between,
    exp.Like,
    exp.Escape,
)


class RawPayload(str):
    """The event's payload as it came: the one text that steps decode strictly when it is the column."""


Names = dict[str, Any]


class Interpreter:
    """Evaluates statements over one event, given as columns with ``payload`` as text."""

    def __init__(self, functions: Functions, columns: dict[str, Any]) -> None:
        self._functions = functions
        self._columns = dict(columns)
        if type(columns.get("payload")) is str:
            self._columns["payload"] = RawPayload(columns["payload"])

    def run(self, tree: exp.Select) -> Any:
        """A row, rows, or None when WHERE does not hold. Raises ``EvaluationError`` or ``JsonError``."""
        if "foreach" in tree.args:
            return plain(self._foreach(tree))
        names: Names = {}
        self._fields(tree.expressions, [names])
        if not self._holds(tree.args.get("where"), [names]):
            return None
        return plain(names)

    def _foreach(self, tree: exp.Select) -> list[Names] | None:
        *earlier, last = tree.args["foreach"]
        names: Names = {}
        for item in earlier:
            if isinstance(item, exp.Alias):
                self._fields([item], [names])
            elif not isinstance(item, exp.Star):
                self._value(item, [names])
        walked = self._value(last.this if isinstance(last, exp.Alias) else last, [names])
        if isinstance(walked, (RawPayload, bytes)) and walked is self._columns["payload"]:
            walked = self._payload()
        if isinstance(soft(walked), list):
            walked = soft(walked)
        name = item_of(tree)
        assert name is not None
        if isinstance(last, exp.Alias):
            names[name] = walked
        if not self._holds(tree.args.get("where"), [names]):
            return None
        rows = []
        for item in walked if isinstance(walked, list) else []:
            outer = {**names, name: item}
            if self._holds(tree.args.get("incase"), [outer]):
                row: Names = {}
                self._fields(tree.expressions, [row, outer])
                rows.append(row)
        return rows

    def _holds(self, where: exp.Where | None, scopes: Sequence[Names]) -> bool:
        return where is None or self._condition(where.this, scopes)

    # Fields

    def _fields(self, fields: Iterable[Tree], scopes: Sequence[Names]) -> None:
        names = scopes[0]
        for item in fields:
            if isinstance(item, exp.Star):
                names.update(self._columns)
                for outer in scopes[1:]:
                    names.update(outer)
                continue
            value = self._value(item.this if isinstance(item, exp.Alias) else item, scopes)
            self._write(self._target(item), value, scopes)

    def _target(self, item: Tree) -> Path:
        if isinstance(item, exp.Alias):
            alias = item.args["alias"]
            return Path(alias.name) if isinstance(alias, exp.Identifier) else path_of(alias)  # type: ignore[return-value]
        path = path_of(item)
        if path is not None:
            return Path(path.root, path.steps)
        return Path(
            item.name if isinstance(item, exp.Literal) and item.is_string else text_of_tree(item)
        )

    def _write(self, path: Path, value: Any, scopes: Sequence[Names]) -> None:
        names = scopes[0]
        if not path.steps:
            names[path.root] = value
            return
        before = names.get(path.root, UNDEFINED)
        if path.root == "payload" and isinstance(before, (str, bytes)):
            before = jsontext.decode(plain(before))
        steps = [
            self._index(step, scopes) if isinstance(step, Path) else step for step in path.steps
        ]
        names[path.root] = written(before, steps, value)

    def _index(self, path: Path, scopes: Sequence[Names]) -> Any:
        index = self._read(path, scopes)
        return index if type(index) is int else UNDEFINED

    # Paths

    def _read(self, path: Path, scopes: Sequence[Names]) -> Any:
        value = self._read_steps(path, scopes)
        if path.range is None:
            return value
        if isinstance(value, RawPayload):
            value = self._payload()
        return part(value, *path.range)

    def _read_steps(self, path: Path, scopes: Sequence[Names]) -> Any:
        for names in scopes:
            if path.root in names:
                value = self._descend(names[path.root], path.steps, scopes)
                if value is not UNDEFINED:
                    return value
        if path.root == "payload" and path.steps:
            return self._descend(self._payload(), path.steps, scopes, is_payload=True)
        return self._descend(self._columns.get(path.root, UNDEFINED), path.steps, scopes)

    def _payload(self) -> Any:
        payload = self._columns.get("payload", UNDEFINED)
        return jsontext.decode(plain(payload)) if isinstance(payload, (str, bytes)) else payload

    def _descend(
        self, value: Any, steps: Sequence[Any], scopes: Sequence[Names], *, is_payload: bool = False
    ) -> Any:
        for step in steps:
            if isinstance(step, Path):
                index = self._read(step, scopes)
                if index is UNDEFINED and is_payload:
                    index = self._read_steps(Path("payload", (step.root, *step.steps)), [])
                value = element(value, index)
            elif isinstance(step, str):
                value = member(value, step)
            else:
                value = UNDEFINED if step is END_INDEX else element(value, step)
        return value

    # Expressions

    def _value(self, node: Tree, scopes: Sequence[Names]) -> Any:
        path = path_of(node)
        if path is not None:
            return self._read(path, scopes)
        if isinstance(node, exp.Paren):
            return self._value(node.this, scopes)
        if isinstance(node, exp.Literal):
            return (
                node.name
                if node.is_string
                else int(node.name)
                if node.name.isdigit()
                else float(node.name)
            )
        if isinstance(node, exp.Boolean):
            return bool(node.this)
        if isinstance(node, exp.Null):
            return UNDEFINED
        if type(node) in ARITHMETIC:
            left, right = self._value(node.this, scopes), self._value(node.expression, scopes)
            return ARITHMETIC[type(node)](plain(left), plain(right))
        if isinstance(node, exp.Neg):
            return values.negate(plain(self._value(node.this, scopes)))
        if isinstance(node, exp.Anonymous):
            return self._call(node, scopes)
        if isinstance(node, exp.Array):
            return [self._value(item, scopes) for item in node.expressions]
        if isinstance(node, exp.Struct):
            return {
                member.this.name: self._value(member.expression, scopes)
                for member in node.expressions
            }
        if isinstance(node, exp.GenerateSeries):
            first, last = (self._value(node.args[end], scopes) for end in ("start", "end"))
            if last < first - 1:
                raise EvaluationError("the range ends before it begins")
            return list(range(first, last + 1))
        if isinstance(node, exp.Case):
            return self._case(node, scopes)
        if isinstance(node, (exp.Dot, exp.Bracket)):
            base, path = value_path(node)
            value = self._descend(self._value(base, scopes), path.steps, scopes)
            return value if path.range is None else part(value, *path.range)
        return self._condition(node, scopes)

    def _call(self, node: exp.Anonymous, scopes: Sequence[Names]) -> Any:
        function = self._functions.get(node.name)
        assert function is not None
        arguments = [self._value(argument, scopes) for argument in node.expressions]
        if node.name == "payload" and arguments:
            arguments.insert(0, self._payload())
        elif function.column is not None:
            arguments.insert(0, self._columns.get(function.column, UNDEFINED))
        return function.call(*map(plain, arguments))

    def _case(self, node: exp.Case, scopes: Sequence[Names]) -> Any:
        subject = None if node.this is None else self._value(node.this, scopes)
        for branch in node.args["ifs"]:
            if node.this is not None:
                chosen = values.identical(plain(subject), plain(self._value(branch.this, scopes)))
            elif isinstance(bare(branch.this), CONDITIONS):
                chosen = self._condition(branch.this, scopes)
            else:
                chosen = self._value(branch.this, scopes) is True
            if chosen:
                return self._value(branch.args["true"], scopes)
        default = node.args.get("default")
        return UNDEFINED if default is None else self._value(default, scopes)

    # Conditions

    def _condition(self, node: Tree, scopes: Sequence[Names]) -> bool:
        return self._known(node, scopes) is True

    def _known(
        self, node: Tree, scopes: Sequence[Names], *, is_negated: bool = False
    ) -> bool | None:
        """SQL's three values: None is unknown, which is as good as false where the condition must hold, so that an
        operand behind it is not evaluated. ``is_negated``: NOT of the condition must hold."""
        node = bare(node)
        if type(node) in COMPARISONS:
            left, right = (
                plain(self._value(side, scopes)) for side in (node.this, node.expression)
            )
            return self._compared(type(node), left, right)
        if isinstance(node, (exp.And, exp.Or)):
            deciding = isinstance(node, exp.Or)
            left = self._known(node.this, scopes, is_negated=is_negated)
            if left is deciding or (left is None and deciding is is_negated):
                return left
            right = self._known(node.expression, scopes, is_negated=is_negated)
            return right if right is deciding or left is not None else None
        if isinstance(node, exp.Not):
            if isinstance(bare(node.this), CONDITIONS):
                inner = self._known(node.this, scopes, is_negated=not is_negated)
                return None if inner is None else not inner
            value = self._value(node.this, scopes)
            return not value if type(value) is bool else None
        if isinstance(node, (exp.In, exp.Is, exp.Between, exp.Like, exp.Escape)):
            return self._test(node, scopes, is_negated=is_negated)
        value = self._value(node, scopes)
        if value is True or value is False:
            return value
        if not isinstance(node, exp.Anonymous) and (value is UNDEFINED or value is None):
            return None
        raise EvaluationError("a condition must be true or false")

    def _compared(self, kind: type[Tree], left: Any, right: Any) -> bool | None:
        is_equal = kind in (exp.LTE, exp.GTE) and left is UNDEFINED and right is UNDEFINED
        if kind not in (exp.EQ, exp.NEQ) and any(
            side is None or side is UNDEFINED for side in (left, right)
        ):
            return is_equal or None
        return COMPARISONS[kind](left, right)

    def _test(self, node: Tree, scopes: Sequence[Names], *, is_negated: bool) -> bool | None:
        if isinstance(node, exp.Escape):
            text, pattern = (
                self._value(node.this.this, scopes),
                self._value(node.this.expression, scopes),
            )
            return self._like(plain(text), plain(pattern), node.expression.name)
        value = plain(self._value(node.this, scopes))
        if isinstance(node, exp.In):
            items = [plain(self._value(item, scopes)) for item in node.expressions]  # all of them
            return any(values.identical(value, item) for item in items)
        if isinstance(node, exp.Is):
            return value is UNDEFINED or value is None
        if isinstance(node, exp.Like):
            return self._like(value, plain(self._value(node.expression, scopes)))
        low, high = (plain(self._value(node.args[end], scopes)) for end in ("low", "high"))
        is_above = None if value is UNDEFINED else self._compared(exp.GTE, value, low)
        if is_above is False or (is_above is None and not is_negated):
            return is_above
        is_below = None if value is UNDEFINED else self._compared(exp.LTE, value, high)
        return is_below if is_below is False or is_above is not None else None

    def _like(self, value: Any, pattern: Any, escape: str = like.ESCAPE) -> bool | None:
        if any(side is None or side is UNDEFINED for side in (value, pattern)):
            return None
        return like.like(value, pattern, escape)


def plain(value: Any) -> Any:
    """The value with payloads as ordinary texts, at any depth."""
    if isinstance(value, RawPayload):
        return str(value)
    if type(value) is list:
        return [plain(item) for item in value]
    return {key: plain(item) for key, item in value.items()} if type(value) is dict else value


def bare(node: Tree) -> Tree:
    return bare(node.this) if isinstance(node, exp.Paren) else node


def soft(value: Any) -> Any:
    """Text as the JSON in it, undefined when it is not."""
    if not isinstance(value, str):
        return value
    try:
        return jsontext.decode(str(value))
    except jsontext.JsonError:
        return UNDEFINED


def member(value: Any, name: str) -> Any:
    value = soft(value)
    return value.get(name, UNDEFINED) if isinstance(value, dict) else UNDEFINED


def element(value: Any, index: Any) -> Any:
    value = soft(value)
    if (
        not isinstance(value, list)
        or type(index) is not int
        or index == 0
        or abs(index) > len(value)
    ):
        return UNDEFINED
    return value[index - 1] if index > 0 else value[index]


def part(value: Any, first: int, last: int) -> list[Any]:
    value = soft(value)
    if not isinstance(value, list):
        raise EvaluationError("a range can be taken of an array only")
    start, end = (
        position if position > 0 else len(value) + 1 + position for position in (first, last)
    )
    if first == 0 or last == 0 or start < 1 or end < 1 or end < start - 1:
        raise EvaluationError("no such range")
    return value[start - 1 : end]


def written(target: Any, steps: Sequence[Any], value: Any) -> Any:
    """The target with the value at the path."""
    if not steps:
        return value
    step, *rest = steps
    if isinstance(step, str):
        target = soft(target)
        members = dict(target) if type(target) is dict else {}
        return {**members, step: written(members.get(step, UNDEFINED), rest, value)}
    if step is UNDEFINED:
        return target
    target = soft(target)
    if type(target) is not list:
        return [written(UNDEFINED, rest, value)]
    if step is END_INDEX:
        return [*target, written(UNDEFINED, rest, value)]
    if step == 0:
        return [written(UNDEFINED, rest, value), *target]
    at = step - 1 if step > 0 else len(target) + step
    return [
        written(item, rest, value) if position == at else item
        for position, item in enumerate(target)
    ]
