"""A tree to the Python source of one function, compiled once.

The function runs per message, so the source is what a person would write for that rule by hand: columns come straight
from the message, a path is read once however often the rule names it, arithmetic and comparison test for the usual
types in line and call ``values`` for the rest, aliases are local variables. Nothing is looked up by name, no dictionary
of columns is built. Lines of the source are mapped to places in the SQL, so that a failure can say where.

Order is the language's: the SELECT list left to right, then WHERE; FOREACH list, WHERE, then per item INCASE and DO.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Invalid, Problem
from rules.functions.registry import NOT_LITERAL, Function, Functions
from rules.sql import columns as column_source
from rules.sql import like, paths, values
from rules.sql.lexer import shortened
from rules.sql.optimizer import constant_of, optimized
from rules.sql.printer import text_of_tree
from rules.sql.tree import END_INDEX, Path, Tree, bare, integer_of, jq_of, operands, path_of, place_of, value_path
from rules.sql.values import UNDEFINED

Row = dict[str, Any]
Result = Row | list[Row] | None
"""A row, the rows of FOREACH, or None when WHERE does not hold."""


Trace = Callable[[str, Tree, Any], None]
"""Told what is evaluated: ``value`` with a sub-expression and what it gave; ``SELECT``, ``FOREACH``, ``DO``, ``WHERE``
and ``INCASE`` with the field or condition that is evaluated next; ``ITEM`` with the item that FOREACH goes on to."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a rule knows besides the message: the columns ``node``, ``metadata`` and ``timestamp``."""

    node: str
    metadata: Row
    now_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled rule for one kind of input: ``run(message)`` or ``run(occurrence)``."""

    run: Callable[[Any], Result]
    source: str
    places: tuple[tuple[int, int], ...]

    def place_of(self, error: BaseException) -> tuple[int, int] | None:
        """Line and column of the SQL where an error of ``run`` came from."""
        code, step, found = self.run.__code__, error.__traceback__, None
        while step is not None:
            if step.tb_frame.f_code is code and step.tb_lineno <= len(self.places):
                found = self.places[step.tb_lineno - 1]
            step = step.tb_next
        return found


def compile_for_messages(tree: exp.Select, functions: Functions, surroundings: Surroundings) -> Program:
    """The function that takes a ``Message``.

    Raises:
        Invalid: unknown functions, wrong numbers of arguments, literals that cannot be; all of them at once.
    """
    return _Compiler(functions, _MessageColumns()).program(tree, surroundings)


def compile_for_templates(
    tree: exp.Select, functions: Functions, surroundings: Surroundings, names: frozenset[str]
) -> Program | None:
    """The same for a rule whose rows go nowhere but into templates that name these columns.

    ``*`` makes those columns only, with the payload as bytes: 3 µs a message less. None where the rule gains nothing.
    """
    stars = [isinstance(item, exp.Star) for item in tree.expressions]
    if "foreach" in tree.meta or jq_of(tree) is not None or stars[:1] != [True] or stars.count(True) > 1:
        return None
    return _Compiler(functions, _NamedColumns(names)).program(tree, surroundings)


def compile_for_events(
    tree: exp.Select, functions: Functions, surroundings: Surroundings, trace: Trace | None = None
) -> Program:
    """The function that takes an ``Occurrence``. Raises as ``compile_for_messages``.

    With ``trace`` the program also tells each value at the moment it is there, in the order of evaluation: it is the
    same program with lines between its lines.
    """
    return _Compiler(functions, _EventColumns(), trace).program(tree, surroundings)


_Line = tuple[str, tuple[int, int]]
"""A line of Python and the place in the SQL it came from."""


@dataclass(frozen=True, slots=True)
class _Value:
    """Python source of a value: a variable or literal, so that it can be named twice.

    ``kind`` is what is known of its type: ``int``, ``float``, ``number``, ``string``, ``boolean``, ``undefined``,
    ``any``. ``is_payload`` marks the payload column as it came.
    """

    code: str
    kind: str = "any"
    is_payload: bool = False

    @property
    def is_literal(self) -> bool:
        return not self.code.isidentifier()


_NOTHING: Final = _Value("_undefined", "undefined")


class _MessageColumns:
    argument = "message"
    star = "_all_columns(message, _node, _metadata, _now_ms)"

    def source(self, name: str) -> str | None:
        return column_source.MESSAGE_COLUMNS.get(name)


class _NamedColumns(_MessageColumns):
    """``*`` stands for columns of these names only."""

    def __init__(self, names: frozenset[str]) -> None:
        sources = {**column_source.MESSAGE_COLUMNS, "payload": "message.payload"}
        members = [
            f"{name!r}: {re.sub(r'(?<![.])client[.]', 'message.client.', source)}"
            for name, source in sources.items()
            if name in names
        ]
        self.star = f"{{{', '.join(members)}}}"


class _EventColumns:
    argument = "occurrence"
    star = "dict(columns)"

    def source(self, name: str) -> str | None:
        return f"columns.get({name!r}, _undefined)"


@dataclass(slots=True)
class _Scope:
    """Names selected so far in one list: each top-level name is one value, replaced as it is written to."""

    outer: _Scope | None = None
    names: dict[str, _Value] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    """Row members in order of first mention; ``*`` stands for all columns."""
    star: str | None = None

    def mention(self, key: str) -> None:
        self.keys[key] = None


_HELPERS: Final[dict[str, Any]] = {
    "_undefined": UNDEFINED, "_numbers": values.NUMBERS,
    "_add": values.add, "_subtract": values.subtract, "_multiply": values.multiply, "_divide": values.divide,
    "_integer_divide": values.integer_divide, "_modulo": values.modulo, "_negate": values.negate,
    "_overflow": values.overflow, "_concat": values.concat,
    "_equal": values.equal, "_not_equal": values.not_equal, "_less": values.less,
    "_less_or_equal": values.less_or_equal, "_greater": values.greater, "_greater_or_equal": values.greater_or_equal,
    "_identical": values.identical, "_is_in": values.is_in, "_is_one_of": values.is_one_of, "_truth": values.truth,
    "_like": like.like, "_jq_rows": values.rows_of_outputs,
    "_truth_of_call": values.truth_of_call, "_string": values.string, "_key": paths.key, "_index": paths.index,
    "_part": paths.part, "_writable": paths.writable,
    "_integers": paths.integers, "_put": paths.put, "_end": paths.END, "_Index": paths.Index,
    "_dotted": paths.dotted, "_flags": column_source.flags,
    "_present": column_source.present, "_properties": column_source.properties,
    "_all_columns": column_source.all_columns, "_soft_json": column_source.soft_json,
}  # fmt: skip

_ARITHMETIC: Final[dict[type[Tree], tuple[str, str]]] = {
    exp.Add: ("+", "_add"), exp.Sub: ("-", "_subtract"), exp.Mul: ("*", "_multiply"), exp.Div: ("/", "_divide"),
    exp.IntDiv: ("div", "_integer_divide"), exp.Mod: ("mod", "_modulo"),
}  # fmt: skip
_COMPARISONS: Final[dict[type[Tree], tuple[str, str]]] = {
    exp.EQ: ("==", "_equal"), exp.NEQ: ("!=", "_not_equal"), exp.LT: ("<", "_less"), exp.LTE: ("<=", "_less_or_equal"),
    exp.GT: (">", "_greater"), exp.GTE: (">=", "_greater_or_equal"),
}  # fmt: skip
_CONDITIONS: Final = (
    *_COMPARISONS, exp.And, exp.Or, exp.Not, exp.In, exp.Is, exp.Between, exp.Like, exp.Escape,
)  # fmt: skip
_RESERVED: Final = (
    frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"message", "client", "occurrence", "columns", "rows"}
)


class _Compiler:
    def __init__(
        self, functions: Functions, columns: _MessageColumns | _EventColumns, trace: Trace | None = None
    ) -> None:
        self._functions = functions
        self._trace = trace
        self._columns = columns
        self._lines: list[_Line] = []
        self._indent = 1
        self._place = (1, 1)
        self._taken: set[str] = set(_RESERVED)
        self._numbers: dict[str, int] = {}
        """Where to go on numbering names that are taken."""
        self._known: dict[str, _Value] = {}
        self._uses_client = False
        self._namespace: dict[str, Any] = {}
        self._constants: dict[str, str] = {}
        self._problems: list[Problem] = []

    # The whole

    def program(self, tree: exp.Select, surroundings: Surroundings) -> Program:
        if self._trace is None:  # which is told about the nodes of the tree as it is written
            tree = optimized(tree, self._functions)
        if "foreach" in tree.meta:
            self._foreach(tree)
        else:
            self._select(tree)
        if self._problems:
            raise Invalid("the SQL cannot be used", self._problems, code="sql_check")
        source, places = self._source()
        namespace = {
            **_HELPERS,
            **self._namespace,
            "_node": surroundings.node,
            "_metadata": surroundings.metadata,
            "_now_ms": surroundings.now_ms,
        }
        try:
            exec(compile(source, "<rule>", "exec"), namespace)
        except (SyntaxError, RecursionError, MemoryError):
            line, column = place_of(tree)
            problem = Problem(
                "conditions nest too deep to be compiled",
                "/sql",
                line,
                column,
                "split the rule or use CASE with more WHEN",
            )
            raise Invalid("the SQL cannot be used", [problem], code="sql_check") from None
        return Program(namespace["rule"], source, places)

    def _source(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        head = [(f"# {name}: {text}", (1, 1)) for name, text in self._constants.items()]
        head.append((f"def rule({self._columns.argument}):", (1, 1)))
        if isinstance(self._columns, _EventColumns):
            head.append(("    columns = occurrence.columns", (1, 1)))
        elif self._uses_client:
            head.append(("    client = message.client", (1, 1)))
        lines = head + self._lines
        return "\n".join(text for text, _ in lines) + "\n", tuple(where for _, where in lines)

    def _select(self, tree: exp.Select) -> None:
        scope = _Scope()
        self._fields(tree.expressions, scope)
        self._where(tree.args.get("where"), scope, "return None")
        call = jq_of(tree)
        self._emit(f"return {self._row(scope) if call is None else self._jq_rows(call, self._row(scope))}")

    def _jq_rows(self, call: exp.Anonymous, row: str) -> str:
        """The rows of a JQ clause: what the program gives for the row."""
        self._at(call)
        found = self._functions.get("jq")
        if found is None:
            self._problem(call, "this installation has no jq")
            return "None"
        self._check_literals(found, call)
        outputs = self._called("jq", [self._literal(call.expressions[0]), _Value(row, "map")], call)
        return f"_jq_rows({outputs.code})"

    def _foreach(self, tree: exp.Select) -> None:
        inner: exp.Select = tree.args["from_"].this.this
        scope = _Scope()
        *earlier, last = inner.expressions
        for item in earlier:
            if isinstance(item, exp.Alias):
                self._fields([item], scope, "FOREACH")
            elif not isinstance(item, exp.Star):  # without a name it can only fail
                self._tell("FOREACH", item)
                self._expression(item, scope)
        self._tell("FOREACH", last)
        items = self._walked(last, scope)
        item_name: str = tree.meta["foreach"]
        if isinstance(last, exp.Alias):
            scope.names[item_name] = items
        scope.mention(item_name)
        self._where(inner.args.get("where"), scope, "return None")
        self._emit("rows = []")
        item = self._fresh(item_name)
        self._emit(f"for {item} in ({items.code} if type({items.code}) is list else ()):")
        with self._block():
            scope.names[item_name] = _Value(item)
            self._tell("ITEM", last, item)
            self._where(tree.args.get("where"), scope, "continue", "INCASE")
            done = _Scope(outer=scope)
            self._fields(tree.expressions, done, "DO")
            self._emit(f"rows.append({self._row(done)})")
        self._emit("return rows")

    def _walked(self, last: Tree, scope: _Scope) -> _Value:
        """The array FOREACH walks; the payload itself is decoded."""
        node = last.this if isinstance(last, exp.Alias) else last
        value = self._expression(node, scope)
        return self._payload_json() if value.is_payload else self._variable(value, "items")

    def _where(self, where: exp.Where | None, scope: _Scope, otherwise: str, clause: str = "WHERE") -> None:
        if where is None:
            return
        for operand in operands(where.this, exp.And):
            self._tell(clause, operand)
            self._at(operand)  # for the trace, which gives each test a line of its own
            test = self._condition(operand, scope)
            self._at(operand)
            self._emit(f"if not {test}:")
            with self._block():
                self._emit(otherwise)

    # Lists of fields

    def _fields(self, fields: Sequence[Tree], scope: _Scope, clause: str = "SELECT") -> None:
        for item in fields:
            self._at(item)
            self._tell(clause, item)
            if isinstance(item, exp.Star):
                self._star(scope)
            elif isinstance(item, exp.Alias):
                target = item.args["alias"]
                path = Path(target.name) if isinstance(target, exp.Identifier) else path_of(target)
                assert path is not None
                self._assign(path, self._expression(item.this, scope), scope)
            else:
                path = path_of(item) or Path(_implicit_name(item))
                self._assign(Path(path.root, path.steps), self._expression(item, scope), scope)

    def _star(self, scope: _Scope) -> None:
        star = self._fresh("star")
        members = ["**" + self._columns.star] if scope.outer is not None else []
        outer = scope.outer
        if outer is not None:
            members += [f"{name!r}: {value.code}" for name, value in outer.names.items()]
        self._emit(f"{star} = {{{', '.join(members)}}}" if members else f"{star} = {self._columns.star}")
        for name, value in list(scope.names.items()):
            scope.names[name] = self._let(name, f"{star}.get({name!r}, {value.code})")
        scope.star = star
        scope.mention("*")

    def _assign(self, path: Path, value: _Value, scope: _Scope) -> None:
        scope.mention(path.root)
        if not path.steps:
            scope.names[path.root] = value
            return
        before = scope.names.get(path.root)
        if before is None and scope.star is not None:
            before = self._selected_by_star(path.root, scope)
        if before is None:
            before = _NOTHING
        elif path.root == "payload":
            before = self._payload_json() if before.is_payload else self._let("payload", f"_writable({before.code})")
        steps = ", ".join(self._target_step(step, scope) for step in path.steps)
        scope.names[path.root] = self._let(path.root, f"_put({before.code}, ({steps},), {value.code})")

    def _selected_by_star(self, name: str, scope: _Scope) -> _Value:
        """What ``*`` selected under a name."""
        if scope.outer is not None and name in scope.outer.names:
            return scope.outer.names[name]
        return self._column(name)

    def _target_step(self, step: Any, scope: _Scope) -> str:
        if step is END_INDEX:
            return "_end"
        if isinstance(step, Path):
            return f"_Index({self._read(step, scope).code})"
        return repr(step)

    def _row(self, scope: _Scope) -> str:
        """A dict display. A name first written before ``*`` is repeated after it, since it holds what was written
        last while its place is the first."""
        members = list[str]()
        for name in scope.keys:
            if name == "*":
                members += [f"**{scope.star}", *members]
            else:
                members.append(f"{name!r}: {scope.names[name].code}")
        return "{" + ", ".join(members) + "}"

    # Reading paths

    def _read(self, path: Path, scope: _Scope | None) -> _Value:
        """The value of a path, or the part of it that a range names."""
        if path.range is None:
            return self._read_steps(path, scope)
        value = self._read_steps(Path(path.root, path.steps), scope)
        if value.is_payload:
            value = self._payload_json()
        return self._part(value, path)

    def _part(self, value: _Value, path: Path) -> _Value:
        assert path.range is not None
        return self._let(path.root or "part", f"_part({value.code}, {path.range[0]}, {path.range[1]})")

    def _read_steps(self, path: Path, scope: _Scope | None) -> _Value:
        """The path tried against names selected so far, innermost list first, then against the event's columns."""
        found: _Value | None = None
        level = scope
        while level is not None:
            value = level.names.get(path.root)
            if value is not None and value != self._known.get(path.root):
                found = self._or_else(found, partial(self._read_name, value, path, scope))
                if found.kind not in ("any", "undefined"):
                    return found
            level = level.outer
        if self._columns.source(path.root) is None:
            return found or _NOTHING
        return self._or_else(found, lambda: self._read_column(path, scope))

    def _read_name(self, value: _Value, path: Path, scope: _Scope | None) -> _Value:
        if value.is_payload and path.steps:
            value = self._soft_payload_json()
        return self._descend(value, path, scope)

    def _or_else(self, found: _Value | None, read: Callable[[], _Value]) -> _Value:
        """``found`` where it is defined, else what ``read`` gives."""
        if found is None or found is _NOTHING:
            return read()
        result = self._fresh("v")
        self._emit(f"{result} = {found.code}")
        self._emit(f"if {result} is _undefined:")
        with self._block():
            other = read()
            self._emit(f"{result} = {other.code}")
        return _Value(result)

    def _read_column(self, path: Path, scope: _Scope | None) -> _Value:
        if path.root == "payload" and path.steps:
            return self._descend(self._payload_json(), path, scope, is_payload=True)
        return self._descend(self._column(path.root), path, scope)

    def _column(self, name: str) -> _Value:
        if name in self._known:
            return self._known[name]
        source = self._columns.source(name)
        if source is None:
            return _NOTHING
        self._uses_client = self._uses_client or "client." in source
        value = self._let(name, source)
        if name == "payload":
            value = _Value(value.code, is_payload=True)
        self._known[name] = value
        return value

    def _payload_json(self) -> _Value:
        if "payload as JSON" not in self._known:
            self._known["payload as JSON"] = self._let("payload", f"{self._columns.argument}.json()")
        return self._known["payload as JSON"]

    def _soft_payload_json(self) -> _Value:
        """The payload under another name: what is no JSON has no members."""
        if "payload as JSON" in self._known:
            return self._known["payload as JSON"]
        if "soft payload" not in self._known:
            self._known["soft payload"] = self._let("payload", f"_soft_json({self._columns.argument})")
        return self._known["soft payload"]

    def _descend(self, value: _Value, path: Path, scope: _Scope | None, *, is_payload: bool = False) -> _Value:
        """The steps of a path, each read at most once from any one value."""
        text = path.root or "v"
        for step in path.steps:
            text += f"_{step}" if isinstance(step, (str, int)) else "_item"
            key = f"{value.code} {step!r}"
            if key in self._known:
                value = self._known[key]
                continue
            value = self._let(text, self._step_source(value.code, step, scope, is_payload=is_payload))
            if isinstance(step, (str, int)):
                self._known[key] = value
        return value

    def _step_source(self, code: str, step: Any, scope: _Scope | None, *, is_payload: bool) -> str:
        if isinstance(step, str):
            return f"{code}.get({step!r}, _undefined) if type({code}) is dict else _key({code}, {step!r})"
        if step is END_INDEX:
            return "_undefined"
        if isinstance(step, int):
            return f"_index({code}, {step})"
        position = self._read(step, scope)
        if is_payload:  # the row first, then the payload
            inner = Path("payload", (step.root, *step.steps))
            position = self._or_else(position, lambda: self._read_column(inner, scope))
        return f"_index({code}, {position.code})"

    # Expressions

    def _expression(self, node: Tree, scope: _Scope) -> _Value:
        before, self._place = self._place, place_of(node) if node.meta else self._place
        try:
            value = self._expression_of(node, scope)
            self._tell("value", node, value.code)
            return value
        finally:
            self._place = before

    def _expression_of(self, node: Tree, scope: _Scope) -> _Value:
        path = path_of(node)
        if path is not None:
            return self._read(path, scope)
        if isinstance(node, exp.Paren):
            return self._expression(node.this, scope)
        if isinstance(node, exp.Literal):
            return self._literal(node)
        if isinstance(node, exp.Boolean):
            return _Value(str(bool(node.this)), "boolean")
        if isinstance(node, exp.Null):
            return _NOTHING
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
            known = _constants(node.expressions)
            if known:
                return _Value(self._hoisted("items", known, node), "array")
            items = ", ".join(self._expression(item, scope).code for item in node.expressions)
            return self._let("items", f"[{items}]")
        if isinstance(node, exp.GenerateSeries):
            first, last = integer_of(node.args["start"]), integer_of(node.args["end"])
            if 0 <= last - first + 1 <= _MAX_HOISTED:
                return _Value(self._hoisted("items", paths.integers(first, last), node), "array")
            return self._let("items", f"_integers({first}, {last})")
        if isinstance(node, exp.Case):
            return self._case(node, scope)
        if isinstance(node, exp.Struct):
            return self._map(node, scope)
        if isinstance(node, (exp.Dot, exp.Bracket)):
            return self._steps_into_value(node, scope)
        return self._let("v", self._condition(node, scope), "boolean")

    def _map(self, node: exp.Struct, scope: _Scope) -> _Value:
        members = [
            f"{member.this.name!r}: {self._expression(member.expression, scope).code}" for member in node.expressions
        ]
        return self._let("v", "{" + ", ".join(members) + "}", "map")

    def _steps_into_value(self, node: Tree, scope: _Scope) -> _Value:
        """``f(x).a[1]``: a path whose base is no column."""
        base, path = value_path(node)
        value = self._variable(self._expression(base, scope), "v")
        value = self._descend(self._soft_payload_json() if value.is_payload else value, path, scope)
        return value if path.range is None else self._part(value, path)

    def _literal(self, node: exp.Literal) -> _Value:
        if node.is_string:
            return _Value(repr(node.name), "string")
        try:
            number = int(node.name) if node.name.isdigit() else float(node.name)
        except ValueError:
            self._problem(node, "the number has more digits than can be read")
            return _NOTHING
        if isinstance(number, float) and number - number != 0.0:
            self._problem(node, f"the number {shortened(node.name)} is beyond the range of floats")
            return _NOTHING
        return _Value(repr(number), "int" if isinstance(number, int) else "float")

    def _arithmetic(self, node: Tree, scope: _Scope) -> _Value:
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
        return _Value(result, kind)

    def _float_test(self, left: _Value, right: _Value) -> str | None:
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

    def _negation(self, node: exp.Neg, scope: _Scope) -> _Value:
        inner = self._expression(node.this, scope)
        if inner.kind in ("int", "float") and inner.is_literal:
            return _Value(f"-{inner.code}" if not inner.code.startswith("-") else inner.code[1:], inner.kind)
        return self._let("v", f"_negate({inner.code})", "number")

    def _case(self, node: exp.Case, scope: _Scope) -> _Value:
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
            self._emit(f"{result} = {_NOTHING.code if default is None else self._expression(default, scope).code}")
            self._emit("break")
        return _Value(result)

    def _when(self, node: Tree, subject: _Value | None, scope: _Scope) -> str:
        if subject is not None:
            return f"_identical({subject.code}, {self._expression(node, scope).code})"
        node = bare(node)
        if isinstance(node, _CONDITIONS):
            return self._condition(node, scope)
        value = self._expression(node, scope)
        if value.is_literal:
            return value.code if value.kind == "boolean" else "False"
        return f"{value.code} is True"

    # Conditions

    def _condition(self, node: Tree, scope: _Scope) -> str:
        """Python source of a boolean, to be used once, at once."""
        node = bare(node)
        test = self._condition_of(node, scope)
        if self._trace is not None:
            test = self._let("v", test).code
            self._tell("value", node, test)
        return test

    def _condition_of(self, node: Tree, scope: _Scope) -> str:
        if type(node) in _COMPARISONS:
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

    def _comparison(self, node: Tree, scope: _Scope) -> str:
        left, right = self._expression(node.this, scope), self._expression(node.expression, scope)
        return self._compared(type(node), left, right)

    def _compared(self, kind: type[Tree], left: _Value, right: _Value) -> str:
        operator, helper = _COMPARISONS[kind]
        call = f"{helper}({left.code}, {right.code})"
        inline = f"{left.code} {operator} {right.code}"
        if right.is_literal and not left.is_literal:
            if right.kind in ("int", "float"):
                return f"({inline} if type({left.code}) in _numbers else {call})"
            if right.kind == "string":
                return f"({inline} if type({left.code}) is str else {call})"
        return call

    def _between(self, node: exp.Between, scope: _Scope) -> str:
        """Both ends, the upper one only where the lower one holds: as ``x >= low AND x <= high``, with x read once."""
        value = self._variable(self._expression(node.this, scope), "v")
        low = self._expression(node.args["low"], scope)
        high = self._expression(node.args["high"], scope)
        return f"({self._compared(exp.GTE, value, low)} and {self._compared(exp.LTE, value, high)})"

    def _like(self, node: Tree, scope: _Scope) -> str:
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

    def _hoisted(self, wanted: str, constant: Any, node: Tree) -> str:
        """The global name of a value made once, when the rule is compiled; nothing changes it afterwards."""
        name = self._fresh(wanted)
        self._namespace[name] = constant
        self._constants[name] = " ".join(text_of_tree(node).split())
        return name

    def _junction(self, node: Tree, scope: _Scope) -> str:
        """AND, OR: in one line where no operand needs lines of its own, else a block that is left early."""
        parts = operands(node, type(node))
        word = "and" if isinstance(node, exp.And) else "or"
        first = self._condition(parts[0], scope)
        outside, self._lines = self._lines, []
        others: list[tuple[list[_Line], str]] = []
        with self._block():
            for operand in parts[1:]:
                self._lines = []
                test = self._condition(operand, scope)
                others.append((self._lines, test))
        self._lines = outside
        if not any(lines for lines, _ in others):
            return f"({f' {word} '.join([first, *(test for _, test in others)])})"
        return self._long_junction(first, others, stop_at="not " if word == "and" else "")

    def _long_junction(self, first: str, others: list[tuple[list[_Line], str]], *, stop_at: str) -> str:
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

    def _not(self, node: exp.Not, scope: _Scope) -> str:
        inner = bare(node.this)
        if isinstance(inner, _CONDITIONS):
            return f"(not {self._condition(inner, scope)})"
        value = self._expression(inner, scope)
        if value.is_literal:
            return f"(not {value.code})" if value.kind == "boolean" else "False"
        return f"({value.code} is False)"

    def _in(self, node: exp.In, scope: _Scope) -> str:
        value = self._expression(node.this, scope)
        items = [self._expression(item, scope) for item in node.expressions]
        if all(item.is_literal and item.kind in _EXACT_KINDS for item in items):
            known = [_constant(item) for item in node.expressions]
            name = self._hoisted("choices", values.choices(known), exp.Array(expressions=node.expressions))
            return f"_is_one_of({value.code}, {name})"
        return f"_is_in({value.code}, ({', '.join(item.code for item in items)},))"

    # Functions

    def _call(self, node: exp.Anonymous, scope: _Scope) -> _Value:
        name: str = node.name
        found = self._functions.get(name)
        if found is None:
            self._problem(node, f"no function '{name}'", self._functions.suggestion(name))
            return _NOTHING
        if not found.takes(len(node.expressions)):
            self._problem(
                node, f"{name} cannot take {_count(len(node.expressions))}", f"it is called {found.signature}"
            )
            return _NOTHING
        self._check_literals(found, node)
        constant = self._constant_call(found, node)
        if constant is not None:
            return constant
        arguments = [self._expression(argument, scope) for argument in node.expressions]
        special = self._special_call(name, arguments)
        if special is not None:
            return special
        return self._called(name, arguments, node)

    def _constant_call(self, found: Function, node: exp.Anonymous) -> _Value | None:
        """The result, made now, of a pure function of literals that gives no literal (``optimizer`` has the rest)."""
        known = _constants(node.expressions)
        if not known or not found.is_pure or found.column is not None or self._trace is not None:
            return None
        try:
            result = found.call(*known)
        except values.EvaluationError:
            return None
        return _Value(self._hoisted(found.name, result, node))

    def _called(self, name: str, arguments: list[_Value], node: Tree) -> _Value:
        """A call of a function that is known to exist and to take so many arguments."""
        found = self._functions.get(name)
        assert found is not None
        codes = [argument.code for argument in arguments]
        if found.column is not None:
            column = self._payload_json() if name == "payload" and codes else self._column(found.column)
            codes.insert(0, column.code)
        global_name = "fn_" + re.sub(r"\W", "·", name)  # a middle dot may stand in a name of Python
        self._namespace[global_name] = found.call
        return self._let("v", f"{global_name}({', '.join(codes)})", _KIND_OF_TYPE.get(found.returns.name, "any"))

    def _special_call(self, name: str, arguments: list[_Value]) -> _Value | None:
        """Calls that need no call: decoding the payload, which is decoded once for all rules."""
        if name == "json_decode" and arguments[0].is_payload and isinstance(self._columns, _MessageColumns):
            return self._payload_json()
        return None

    def _check_literals(self, found: Function, node: exp.Anonymous) -> None:
        values: list[Any] = []
        before = len(self._problems)
        for position, argument in enumerate(node.expressions):
            value = _constant(argument)
            values.append(NOT_LITERAL if value is None else value)
            text = None if value is None else found.problem_with(position, value)
            if text is not None:
                self._problem(argument, text, f"it is called {found.signature}")
        if len(self._problems) == before and (problem := found.problem_with_call(values)) is not None:
            blamed = node if problem[0] is None else node.expressions[problem[0]]
            self._problem(blamed, problem[1], f"it is called {found.signature}")

    # Source lines

    def _emit(self, text: str) -> None:
        self._lines.append(("    " * self._indent + text, self._place))

    def _tell(self, what: str, node: Tree, code: str = "None") -> None:
        """A line that tells the trace, where there is one."""
        if self._trace is None:
            return
        name = f"_node_{len(self._namespace)}"
        self._namespace |= {name: node, "_trace": self._trace}
        self._emit(f"_trace({what!r}, {name}, {code})")

    def _let(self, wanted: str, source: str, kind: str = "any") -> _Value:
        name = self._fresh(wanted)
        self._emit(f"{name} = {source}")
        return _Value(name, kind)

    def _variable(self, value: _Value, wanted: str) -> _Value:
        return self._let(wanted, value.code, value.kind) if value.is_literal else value

    def _fresh(self, wanted: str) -> str:
        base = re.sub(r"\W|^(?=\d)|^_", "_", wanted, flags=re.ASCII).lstrip("_")[:40] or "v"
        name, number = base, self._numbers.get(base, 2)
        while name in self._taken or name.startswith("fn_"):
            name, number = f"{base.removeprefix('fn_') or 'v'}_{number}", number + 1
        self._numbers[base] = number
        self._taken.add(name)
        return name

    @contextmanager
    def _block(self) -> Iterator[None]:
        """An indented block; what is first read in it is not known after it."""
        with self._hidden():
            self._indent += 1
            yield
            self._indent -= 1

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        known = dict(self._known)
        yield
        self._known = known

    def _at(self, node: Tree) -> None:
        if node.meta:
            self._place = place_of(node)

    def _problem(self, node: Tree, message: str, suggestion: str | None = None) -> None:
        line, column = place_of(node)
        problem = Problem(message, "/sql", line, column, suggestion)
        if problem not in self._problems:
            self._problems.append(problem)


_MAX_HOISTED: Final = 10_000
"""Longest range that is kept as an array."""
_EXACT_KINDS: Final = ("int", "float", "string", "boolean")
_KIND_OF_TYPE: Final = {"boolean": "boolean", "long": "number", "double": "number"}


def _implicit_name(node: Tree) -> str:
    return node.name if isinstance(node, exp.Literal) and node.is_string else text_of_tree(node)


def _is_plain(code: str) -> bool:
    """Whether a numeric literal is not zero and far from the ends of the range of floats."""
    return 0.0 < abs(float(code)) < 1e300


def _constant(node: Tree) -> Any:
    """The value of a literal argument; None when it is not one."""
    try:
        value = constant_of(node)
    except ValueError:
        return None
    return None if value is UNDEFINED else value


def _constants(nodes: Sequence[Tree]) -> list[Any] | None:
    """The values of literals; None when one is something else, or undefined."""
    known = [_constant(node) for node in nodes]
    return None if None in known else known


def _count(number: int) -> str:
    return "1 argument" if number == 1 else f"{number} arguments"
