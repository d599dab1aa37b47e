"""A tree to the Python source of one function, compiled once.

The function runs per message, so the source is what a person would write for that rule by hand: columns come straight
from the message, a path is read once however often the rule names it, arithmetic and comparison test for the usual
types in line and call ``values`` for the rest, aliases are local variables. Nothing is looked up by name, no dictionary
of columns is built. Lines of the source are mapped to places in the SQL, so that a failure can say where.

Order is the language's: the SELECT list left to right, then WHERE; FOREACH list, WHERE, then per item INCASE and DO.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Invalid, Problem
from broker.core.events import flag_columns
from rules.functions.registry import NOT_LITERAL, Function, Functions
from rules.sql import like, limits, paths, values
from rules.sql.compiler import columns as column_source
from rules.sql.compiler.bounds import bounds_of
from rules.sql.compiler.code import (
    NOTHING,
    Code,
    EventColumns,
    Line,
    MessageColumns,
    NamedColumns,
    Scope,
    Value,
)
from rules.sql.compiler.optimizer import constant_of, optimized
from rules.sql.compiler.program import Program, RuleContext, Trace, parts_of
from rules.sql.operators import ARITHMETIC, COMPARISONS, STRICT, Operator
from rules.sql.syntax.lexer import shortened
from rules.sql.syntax.printer import target_of, text_of_tree
from rules.sql.syntax.tree import (
    END_INDEX,
    OPPOSITES,
    TESTS,
    Path,
    Tree,
    bare,
    integer_of,
    item_of,
    jq_of,
    operands,
    path_of,
    place,
    place_of,
    value_path,
)
from rules.sql.values import UNDEFINED
from rules.sql.work import WORK, Calls


def compile_for_messages(tree: exp.Select, functions: Functions, context: RuleContext) -> Program:
    """The function that takes a ``Message``.

    Raises:
        Invalid: unknown functions, wrong numbers of arguments, literals that cannot be; all of them at once.
    """
    return _Compiler(functions, MessageColumns()).program(tree, context)


def compile_for_templates(
    tree: exp.Select, functions: Functions, context: RuleContext, names: frozenset[str]
) -> Program | None:
    """The function for a rule whose rows go only into templates that name these columns.

    ``*`` makes those columns only, with the payload as bytes: 3 µs a message less. None where the rule gains nothing.
    """
    stars = [isinstance(item, exp.Star) for item in tree.expressions]
    if (
        "foreach" in tree.args
        or jq_of(tree) is not None
        or stars[:1] != [True]
        or stars.count(True) > 1
    ):
        return None
    return _Compiler(functions, NamedColumns(names)).program(tree, context)


def compile_for_events(
    tree: exp.Select, functions: Functions, context: RuleContext, trace: Trace | None = None
) -> Program:
    """The function that takes an ``Event``. Raises as ``compile_for_messages``.

    With ``trace`` the program also reports each value as soon as it is computed, in the order of evaluation: it is the
    same program with additional lines.
    """
    return _Compiler(functions, EventColumns(), trace).program(tree, context)


def _secret_of(node: Tree) -> exp.Anonymous | None:
    """The call of ``get_secret`` that an argument is."""
    inner = bare(node)
    return inner if isinstance(inner, exp.Anonymous) and inner.name == "get_secret" else None


def _helpers(*modules: Any) -> dict[str, Any]:
    """The public functions and classes of modules, as compiled code calls them: ``_name``."""
    return {
        f"_{name}": value
        for module in modules
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    }


_HELPERS: Final[dict[str, Any]] = {
    **_helpers(values, like, paths, column_source),
    "_undefined": UNDEFINED,
    "_numbers": values.NUMBERS,
    "_end": paths.END,
    "_flags": flag_columns,
    "_parts": parts_of,
    "_work": WORK,
    "_Calls": Calls,
}
# The local variable of compiled code that holds the calls of a statement with many.
_CALLS: Final = "_calls"
# Longest range that is kept as an array.
_MAX_HOISTED: Final = 10_000
_KIND_OF_TYPE: Final = {"boolean": "boolean", "long": "number", "double": "number"}
_EXACT_KINDS: Final = ("int", "float", "string", "boolean")


class _Compiler:
    """One pass over the tree: ``_value_of`` says what each node becomes. ``columns`` says what a name means that
    nothing in the rule has set."""

    def __init__(
        self,
        functions: Functions,
        columns: MessageColumns | EventColumns,
        trace: Trace | None = None,
    ) -> None:
        self._functions = functions
        self._columns = columns
        self._trace = trace
        self._out = Code()
        self._uses_client = False
        self._has_many_calls = False
        self._most_items = 0
        self._problems: list[Problem] = []

    # Statements

    def program(self, tree: exp.Select, context: RuleContext) -> Program:
        if self._trace is None:  # which is given the nodes of the tree as it is written
            tree = optimized(tree, self._functions)
        self._has_many_calls = sum(1 for _ in tree.find_all(exp.Anonymous)) > limits.FEW_CALLS
        item = item_of(tree)
        if item is None:
            self._select(tree)
        else:
            self._foreach(tree, item)
        if self._problems:
            raise Invalid("the SQL cannot be used", self._problems, code="sql_check")
        source, places = self._source()
        namespace = {
            **_HELPERS,
            **self._out.namespace,
            "_node": context.node,
            "_metadata": context.metadata,
            "_now_ms": context.now_ms,
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
        return Program(namespace["rule"], source, places, self._most_items)

    def _source(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        head = [(f"# {name}: {text}", (1, 1)) for name, text in self._out.constants.items()]
        head.append((f"def rule({self._columns.argument}):", (1, 1)))
        if isinstance(self._columns, EventColumns):
            head.append(("    columns = event.columns", (1, 1)))
        elif self._uses_client:
            head.append(("    client = message.client", (1, 1)))
        head.append((f"    _work.left = {limits.MAX_WORK_NS}", (1, 1)))
        if self._has_many_calls:
            head.append((f"    {_CALLS} = _Calls()", (1, 1)))
        lines = head + self._out.lines
        return "\n".join(text for text, _ in lines) + "\n", tuple(where for _, where in lines)

    def _select(self, tree: exp.Select) -> None:
        scope = Scope()
        self._fields(tree.expressions, scope)
        self._where(tree.args.get("where"), scope, "return None")
        call = jq_of(tree)
        row = self._checked_row(tree.expressions, scope)
        self._out.emit(f"return {row if call is None else self._jq_rows(call, row)}")

    def _jq_rows(self, call: exp.Anonymous, row: str) -> str:
        """The rows of a JQ clause: what the program gives for the row."""
        self._out.at(call)
        function = self._functions.get("jq")
        if function is None:
            self._problem(call, "this installation has no jq")
            return "None"
        self._check_literals(function, call)
        outputs = self._called("jq", [self._literal(call.expressions[0]), Value(row, "map")], call)
        return f"_rows_of_outputs({outputs.code})"

    def _foreach(self, tree: exp.Select, item_name: str) -> None:
        scope = Scope()
        *earlier, last = tree.args["foreach"]
        for item in earlier:
            if isinstance(item, exp.Alias):
                self._fields([item], scope, "FOREACH")
            elif not isinstance(item, exp.Star):  # without a name it can only fail
                self._tell("FOREACH", item)
                self._expression(item, scope)
        self._tell("FOREACH", last)
        items = self._walked(last, scope)
        if isinstance(last, exp.Alias):
            scope.names[item_name] = items
        scope.mention(item_name)
        self._where(tree.args.get("where"), scope, "return None")
        text = shortened(text_of_tree(last.this if isinstance(last, exp.Alias) else last))
        self._out.emit(
            f"if type({items.code}) is not list: return _NoArray({text!r}, {items.code})"
        )
        inline, inline_bytes, turn, most, self._most_items = bounds_of(tree, self._functions)
        incase = tree.args.get("incase")
        if incase is None:  # each item is a row: too many are refused before the first is made
            self._out.emit(f"if len({items.code}) > {most}: _too_many_rows({most})")
        self._out.emit("rows = []")
        self._out.emit("_work.small = 0")
        row_count = self._out.fresh("row_count")
        if incase is not None:
            self._out.emit(f"{row_count} = 0")
        item = self._out.fresh(item_name)
        part = self._out.fresh("part")
        self._out.emit(
            f"for {part} in _parts({items.code}, {self._columns.size}, {inline}, {inline_bytes}, {turn}):"
        )
        with self._out.block():
            self._out.emit(f"for {item} in {part}:")
            with self._out.block():
                scope.names[item_name] = Value(item)
                self._tell("ITEM", last, item)
                self._where(incase, scope, "continue", "INCASE")
                done = Scope(outer=scope)
                self._fields(tree.expressions, done, "DO")
                self._out.emit(f"rows.append({self._checked_row(tree.expressions, done)})")
            if incase is not None:
                self._out.emit(f"{row_count} += len(rows)")
                self._out.emit(f"if {row_count} > {most}: _too_many_rows({most})")
            self._out.emit(f"if {part} is not {items.code}:")
            with self._out.block():
                left = self._out.fresh("left")
                self._out.emit(f"{left} = _work.left + _work.small")
                self._out.emit(f"yield len({part}), rows")
                self._out.emit(f"_work.left = {left}")
                self._out.emit("_work.small = 0")
                if self._has_many_calls:
                    self._out.emit(f"{_CALLS} = _Calls()")
                self._out.emit("rows = []")
        self._out.emit("return rows")

    def _walked(self, last: Tree, scope: Scope) -> Value:
        """The array FOREACH walks; the payload itself is decoded, and other text where it is the JSON of an array."""
        node = last.this if isinstance(last, exp.Alias) else last
        value = self._expression(node, scope)
        value = self._payload_json() if value.is_payload else self._out.variable(value, "items")
        return self._out.let(
            "items", f"{value.code} if type({value.code}) is list else _walked({value.code})"
        )

    def _where(
        self, where: exp.Where | None, scope: Scope, otherwise: str, clause: str = "WHERE"
    ) -> None:
        if where is None:
            return
        for operand in operands(where.this, exp.And):
            self._tell(clause, operand)
            self._out.at(operand)  # for the trace, which gives each test a line of its own
            test = self._condition(operand, scope)
            self._out.at(operand)
            self._out.emit(f"if not {test}:")
            with self._out.block():
                self._out.emit(otherwise)

    def _fields(self, fields: Sequence[Tree], scope: Scope, clause: str = "SELECT") -> None:
        for item in fields:
            self._out.at(item)
            self._tell(clause, item)
            if isinstance(item, exp.Star):
                self._star(scope)
            else:
                value = self._expression(item.this if isinstance(item, exp.Alias) else item, scope)
                self._assign(target_of(item), value, scope)

    def _star(self, scope: Scope) -> None:
        star = self._out.fresh("star")
        members = ["**" + self._columns.star] if scope.outer is not None else []
        outer = scope.outer
        if outer is not None:
            members += [f"{name!r}: {value.code}" for name, value in outer.names.items()]
        self._out.emit(
            f"{star} = {{{', '.join(members)}}}" if members else f"{star} = {self._columns.star}"
        )
        for name, value in list(scope.names.items()):
            scope.names[name] = self._out.let(name, f"{star}.get({name!r}, {value.code})")
        scope.star = star
        scope.mention("*")

    def _assign(self, path: Path, value: Value, scope: Scope) -> None:
        scope.mention(path.root)
        if not path.steps:
            scope.names[path.root] = value
            return
        before = scope.names.get(path.root)
        if before is None and scope.star is not None:
            before = self._selected_by_star(path.root, scope)
        if before is None:
            before = NOTHING
        elif before.is_payload:
            before = self._payload_json() if path.root == "payload" else self._soft_payload_json()
        elif path.root == "payload":
            before = self._out.let("payload", f"_writable({before.code})")
        steps = ", ".join(self._target_step(step, scope) for step in path.steps)
        scope.names[path.root] = self._out.let(
            path.root, f"_put({before.code}, ({steps},), {value.code})"
        )

    def _selected_by_star(self, name: str, scope: Scope) -> Value:
        """The value that ``*`` selected under a name."""
        if scope.outer is not None and name in scope.outer.names:
            return scope.outer.names[name]
        return self._column(name)

    def _target_step(self, step: Any, scope: Scope) -> str:
        if step is END_INDEX:
            return "_end"
        if isinstance(step, Path):
            return f"_Index({self._read(step, scope).code})"
        return repr(step)

    def _checked_row(self, fields: Sequence[Tree], scope: Scope) -> str:
        """The row, measured where its columns are many and there is something large to fill them with: the payload, or
        what functions have built; of an event that may be anything."""
        row = self._row(scope)
        columns = sum(1 for field in fields if not isinstance(field, exp.Star))
        if columns <= limits.FEW_COLUMNS:
            return row
        row_name = self._out.fresh("row")
        size = self._columns.size
        self._out.emit(f"{row_name} = {row}")
        built_ns = limits.MAX_WORK_NS - 2 * limits.MAX_ROW_BYTES / columns
        self._out.emit(
            f"if {self._columns.is_large(limits.MAX_ROW_BYTES // columns)} or _work.left < {built_ns}:"
        )
        with self._out.block():
            self._out.emit(f"_check_row({row_name}, {size})")
        return row_name

    def _row(self, scope: Scope) -> str:
        """A dict display. A name first written before ``*`` is repeated after it, since it holds what was written
        last while its place is the first."""
        members = list[str]()
        for name in scope.keys:
            if name == "*":
                members += [f"**{scope.star}", *members]
            else:
                members.append(f"{name!r}: {scope.names[name].code}")
        return "{" + ", ".join(members) + "}"

    # Columns and paths

    def _read(self, path: Path, scope: Scope | None) -> Value:
        """The value of a path, or the part of it that a range names."""
        if path.range is None:
            return self._read_steps(path, scope)
        value = self._read_steps(Path(path.root, path.steps), scope)
        if value.is_payload:
            value = self._payload_json()
        return self._part(value, path)

    def _part(self, value: Value, path: Path) -> Value:
        assert path.range is not None
        return self._out.let(
            path.root or "part", f"_part({value.code}, {path.range[0]}, {path.range[1]})"
        )

    def _read_steps(self, path: Path, scope: Scope | None) -> Value:
        """The path tried against names selected so far, innermost list first, then against the event's columns."""
        by_name: Value | None = None
        level = scope
        while level is not None:
            value = level.names.get(path.root)
            if value is not None and value != self._out.known.get(path.root):
                by_name = self._or_else(by_name, partial(self._read_name, value, path, scope))
                if by_name.kind not in ("any", "undefined"):
                    return by_name
            level = level.outer
        if self._columns.source(path.root) is None:
            return by_name or NOTHING
        return self._or_else(by_name, lambda: self._read_column(path, scope))

    def _read_name(self, value: Value, path: Path, scope: Scope | None) -> Value:
        if value.is_payload and path.steps:
            value = self._soft_payload_json()
        return self._descend(value, path, scope)

    def _or_else(self, value: Value | None, read: Callable[[], Value]) -> Value:
        """``value`` where it is defined, else what ``read`` gives."""
        if value is None or value is NOTHING:
            return read()
        result = self._out.fresh("v")
        self._out.emit(f"{result} = {value.code}")
        self._out.emit(f"if {result} is _undefined:")
        with self._out.block():
            other = read()
            self._out.emit(f"{result} = {other.code}")
        return Value(result)

    def _read_column(self, path: Path, scope: Scope | None) -> Value:
        if path.root == "payload" and path.steps:
            return self._descend(self._payload_json(), path, scope, is_payload=True)
        return self._descend(self._column(path.root), path, scope)

    def _column(self, name: str) -> Value:
        if name in self._out.known:
            return self._out.known[name]
        source = self._columns.source(name)
        if source is None:
            return NOTHING
        self._uses_client = self._uses_client or "client." in source
        value = self._out.let(name, source)
        if name == "payload":
            value = Value(value.code, is_payload=True)
        self._out.known[name] = value
        return value

    def _payload_json(self) -> Value:
        if "payload as JSON" not in self._out.known:
            self._out.known["payload as JSON"] = self._out.let(
                "payload", f"{self._columns.argument}.json()"
            )
        return self._out.known["payload as JSON"]

    def _soft_payload_json(self) -> Value:
        """The payload under another name: text that is not JSON has no members."""
        if "payload as JSON" in self._out.known:
            return self._out.known["payload as JSON"]
        if "soft payload" not in self._out.known:
            self._out.known["soft payload"] = self._out.let(
                "payload", f"_soft_json({self._columns.argument})"
            )
        return self._out.known["soft payload"]

    def _descend(
        self, value: Value, path: Path, scope: Scope | None, *, is_payload: bool = False
    ) -> Value:
        """The steps of a path, each read at most once from any one value."""
        text = path.root or "v"
        for step in path.steps:
            text += f"_{step}" if isinstance(step, (str, int)) else "_item"
            key = f"{value.code} {step!r}"
            if key in self._out.known:
                value = self._out.known[key]
                continue
            value = self._out.let(
                text, self._step_source(value.code, step, scope, is_payload=is_payload)
            )
            if isinstance(step, (str, int)):
                self._out.known[key] = value
        return value

    def _step_source(self, code: str, step: Any, scope: Scope | None, *, is_payload: bool) -> str:
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

    # Values

    def _expression(self, node: Tree, scope: Scope) -> Value:
        """A value that can be named twice."""
        before = self._out.place
        self._out.at(node)
        value = self._value_of(node, scope)
        if value.kind == "test":
            value = self._out.let("v", value.code, "boolean")
        self._tell("value", node, value.code)
        self._out.place = before
        return value

    def _value_of(self, node: Tree, scope: Scope) -> Value:
        path = path_of(node)
        if path is not None:
            return self._read(path, scope)
        if type(node) in ARITHMETIC:
            return self._arithmetic(node, scope)
        match node:
            case exp.Paren():
                return self._expression(node.this, scope)
            case exp.Literal():
                return self._literal(node)
            case exp.Boolean():
                return Value(str(bool(node.this)), "boolean")
            case exp.Null():
                return NOTHING
            case exp.DPipe():
                left = self._expression(node.this, scope)
                right = self._expression(node.expression, scope)
                return self._out.let("v", f"_concat({left.code}, {right.code})", "string")
            case exp.Neg():
                return self._negation(node, scope)
            case exp.Anonymous():
                return self._call(node, scope)
            case exp.Array() if constants := _constants_of(node.expressions):
                return Value(self._out.hoisted("items", constants, node), "array")
            case exp.Array():
                return self._out.let("items", f"[{self._listed(node, scope)}]")
            case exp.GenerateSeries():
                first = integer_of(node.args["start"])
                last = integer_of(node.args["end"])
                if 0 <= last - first + 1 <= _MAX_HOISTED:
                    return Value(
                        self._out.hoisted("items", paths.integers(first, last), node), "array"
                    )
                return self._out.let("items", f"_integers({first}, {last})")
            case exp.Struct():
                members = [
                    f"{member.this.name!r}: {self._expression(member.expression, scope).code}"
                    for member in node.expressions
                ]
                return self._out.let("v", "{" + ", ".join(members) + "}", "map")
            case exp.Dot() | exp.Bracket():
                return self._steps_into_value(node, scope)
            case exp.Case():
                return self._case(node, scope)
        if isinstance(node, TESTS):
            return _test(self._tested(node, scope))
        raise TypeError(f"no rule has a {type(node).__name__}")

    def _listed(self, node: Tree, scope: Scope) -> str:
        return ", ".join(self._expression(item, scope).code for item in node.expressions)

    def _steps_into_value(self, node: Tree, scope: Scope) -> Value:
        """``f(x).a[1]``: a path whose base is not a column."""
        base, path = value_path(node)
        value = self._out.variable(self._expression(base, scope), "v")
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
        operator = ARITHMETIC[type(node)]
        sign = operator.python
        left = self._expression(node.this, scope)
        right = self._expression(node.expression, scope)
        call = f"_{operator.function}({left.code}, {right.code})"
        test = _float_test(left, right) if sign in "+-*/" else None
        kind = "any" if sign == "+" else "number"
        if test is None:
            return self._out.let("v", call, kind)
        result = self._out.fresh("v")
        self._out.emit(f"if {test}:")
        with self._out.block():
            self._out.emit(f"{result} = {left.code} {sign} {right.code}")
            self._out.emit(f"if {result} - {result}: _overflow({sign!r})")
        self._out.emit("else:")
        with self._out.block():
            self._out.emit(f"{result} = {call}")
        return Value(result, kind)

    def _negation(self, node: exp.Neg, scope: Scope) -> Value:
        inner = self._expression(node.this, scope)
        if inner.kind in ("int", "float") and inner.is_literal:
            return Value(
                f"-{inner.code}" if not inner.code.startswith("-") else inner.code[1:], inner.kind
            )
        return self._out.let("v", f"_negate({inner.code})", "number")

    def _case(self, node: exp.Case, scope: Scope) -> Value:
        subject = (
            self._out.variable(self._expression(node.this, scope), "subject")
            if node.this is not None
            else None
        )
        result = self._out.fresh("v")
        self._out.emit("while True:")
        with self._out.block():
            for branch in node.args["ifs"]:
                self._out.at(branch.this)
                test = self._when(branch.this, subject, scope)
                self._out.emit(f"if {test}:")
                with self._out.block():
                    self._out.emit(
                        f"{result} = {self._expression(branch.args['true'], scope).code}"
                    )
                    self._out.emit("break")
            default = node.args.get("default")
            self._out.emit(
                f"{result} = {NOTHING.code if default is None else self._expression(default, scope).code}"
            )
            self._out.emit("break")
        return Value(result)

    def _when(self, node: Tree, subject: Value | None, scope: Scope) -> str:
        if subject is not None:
            return f"_identical({subject.code}, {self._expression(node, scope).code})"
        node = bare(node)
        if isinstance(node, TESTS):
            return self._condition(node, scope)
        value = self._expression(node, scope)
        if value.is_literal:
            return value.code if value.kind == "boolean" else "False"
        return f"{value.code} is True"

    def _call(self, node: exp.Anonymous, scope: Scope) -> Value:
        name: str = node.name
        function = self._functions.get(name)
        if function is None:
            self._problem(node, f"no function '{name}'", self._functions.suggestion(name))
            return NOTHING
        if not function.takes(len(node.expressions)):
            self._problem(
                node,
                f"{name} cannot take {_count(len(node.expressions))}",
                f"it is called {function.signature}",
            )
            return NOTHING
        self._check_literals(function, node)
        constant = self._constant_call(function, node)
        if constant is not None:
            return constant
        if name == "get_secret":
            text = "get_secret: expected as the key of hmac, got it where rows, logs and traces would show it"
            self._problem(node, text, "hmac('sha256', get_secret('NAME'), payload)")
            return NOTHING
        if name == "hmac" and (secret := _secret_of(node.expressions[1])) is not None:
            return self._signature(node, secret, scope)
        arguments = [self._expression(argument, scope) for argument in node.expressions]
        if (
            name == "json_decode"
            and arguments[0].is_payload
            and isinstance(self._columns, MessageColumns)
        ):
            return self._payload_json()  # which is decoded once for all rules
        return self._called(name, arguments, node)

    def _signature(self, node: exp.Anonymous, secret: exp.Anonymous, scope: Scope) -> Value:
        """A call of hmac with a named secret, which is not a value of its own: traces do not have it."""
        get_secret = self._functions.get(secret.name)
        if get_secret is None or len(secret.expressions) != 1:
            self._problem(
                secret, "get_secret takes the name of a secret", "it is called get_secret('NAME')"
            )
            return NOTHING
        self._check_literals(get_secret, secret)
        algorithm, _, data = node.expressions
        self._out.namespace["fn_get_secret"] = get_secret.call
        key = Value(f"fn_get_secret({constant_of(secret.expressions[0])!r})", "string")
        arguments = [self._expression(algorithm, scope), key, self._expression(data, scope)]
        return self._called(node.name, arguments, node)

    def _constant_call(self, function: Function, node: exp.Anonymous) -> Value | None:
        """The result, made now, of a pure function of literals that gives no literal (``optimizer`` has the rest)."""
        constants = _constants_of(node.expressions)
        if (
            not constants
            or not function.is_pure
            or function.column is not None
            or self._trace is not None
        ):
            return None
        try:
            result = function.call(*constants)
        except values.EvaluationError:
            return None
        return Value(self._out.hoisted(function.name, result, node))

    def _called(self, name: str, arguments: list[Value], node: Tree) -> Value:
        """A call of a function that is known to exist and to take these arguments."""
        function = self._functions.get(name)
        assert function is not None
        codes = [argument.code for argument in arguments]
        if self._has_many_calls:
            codes = [f"{_CALLS}.argument({code})" for code in codes]
        if function.column is not None:
            column = (
                self._payload_json()
                if name == "payload" and codes
                else self._column(function.column)
            )
            codes.insert(0, column.code)
        global_name = "fn_" + re.sub(r"\W", "·", name)  # a middle dot is valid in a Python name
        self._out.namespace[global_name] = function.call
        return self._out.let(
            "v",
            f"{global_name}({', '.join(codes)})",
            _KIND_OF_TYPE.get(function.returns.name, "any"),
        )

    def _check_literals(self, function: Function, node: exp.Anonymous) -> None:
        values: list[Any] = []
        before = len(self._problems)
        for position, argument in enumerate(node.expressions):
            value = constant_of(argument)
            values.append(NOT_LITERAL if value is None else value)
            text = None if value is None else function.problem_with(position, value)
            if text is not None:
                self._problem(argument, text, f"it is called {function.signature}")
        if (
            len(self._problems) == before
            and (problem := function.problem_with_call(values)) is not None
        ):
            blamed = node if problem[0] is None else node.expressions[problem[0]]
            self._problem(blamed, problem[1], f"it is called {function.signature}")

    # Conditions

    def _condition(self, node: Tree, scope: Scope, *, negated: bool = False) -> str:
        """Python source of a boolean, to be used once, at once: whether the condition is true or, with ``negated``,
        whether it is false. An ordering comparison with null is neither."""
        node = bare(node)
        if isinstance(node, TESTS):
            test = self._tested(node, scope, negated=negated)
        else:
            test = self._truth(node, self._expression(node, scope), negated=negated)
        if self._trace is not None:
            test = self._out.let("v", test).code
            self._tell("value", self._negated(node) if negated else node, test)
        return test

    def _negated(self, node: Tree) -> Tree:
        """NOT of a condition, as the trace shows it."""
        negation = place(exp.Not(this=node.copy()), *place_of(node))
        negation.parent = node.parent
        return negation

    def _truth(self, node: Tree, value: Value, *, negated: bool) -> str:
        if value.kind == "boolean":
            return f"(not {value.code})" if negated else value.code
        if value.is_literal or isinstance(node, (exp.Array, exp.GenerateSeries, exp.Struct)):
            self._problem(
                node,
                f"{shortened(text_of_tree(node))} is not a condition",
                "compare it with something",
            )
            return "False"
        self._out.at(node)
        if isinstance(node, exp.Anonymous):
            return (
                f"(not _truth_of_call({value.code}))"
                if negated
                else f"_truth_of_call({value.code})"
            )
        return f"{'_falsehood' if negated else '_truth'}({value.code})"

    def _tested(self, node: Tree, scope: Scope, *, negated: bool = False) -> str:
        """``_condition`` of one of ``TESTS``."""
        if type(node) in COMPARISONS:
            return self._comparison(node, scope, negated=negated)
        match node:
            case exp.And() | exp.Or():
                return self._junction(node, scope, negated=negated)
            case exp.Not():
                return self._not(node, scope, negated=negated)
            case exp.Between():
                return self._between(node, scope, negated=negated)
            case exp.Like() | exp.Escape():
                return self._like(node, scope, negated=negated)
            case exp.In():
                test = self._in(node, scope)
            case _:  # IS NULL
                value = self._out.variable(self._expression(node.this, scope), "v")
                test = f"({value.code} is _undefined or {value.code} is None)"
        return f"(not {test})" if negated else test

    def _comparison(self, node: Tree, scope: Scope, *, negated: bool) -> str:
        left = self._expression(node.this, scope)
        right = self._expression(node.expression, scope)
        opposite = OPPOSITES.get(type(node)) if negated else None
        if opposite is not None:
            return _compared(STRICT[opposite], left, right)
        test = _compared(COMPARISONS[type(node)], left, right)
        return f"(not {test})" if negated else test

    def _between(self, node: exp.Between, scope: Scope, *, negated: bool) -> str:
        """``x >= low AND x <= high``, with x read once."""
        value = self._out.variable(self._expression(node.this, scope), "v")
        low = self._expression(node.args["low"], scope)
        high = self._expression(node.args["high"], scope)
        if negated:
            return f"({_compared(STRICT[exp.LT], value, low)} or {_compared(STRICT[exp.GT], value, high)})"
        return f"({_compared(STRICT[exp.GTE], value, low)} and {_compared(STRICT[exp.LTE], value, high)})"

    def _like(self, node: Tree, scope: Scope, *, negated: bool) -> str:
        test, escape = (
            (node.this, node.expression.name)
            if isinstance(node, exp.Escape)
            else (node, like.ESCAPE)
        )
        value = self._expression(test.this, scope)
        pattern = self._expression(test.expression, scope)
        helper = "_unlike" if negated else "_like"
        if test.expression.is_string:
            try:
                matcher = like.matcher(test.expression.name, escape)
            except values.EvaluationError as error:
                self._problem(test.expression, str(error))
                return "False"
            name = self._out.hoisted("like", matcher, test.expression)
            inline = f"{'not ' * negated}{name}({value.code}) if type({value.code}) is str"
            return f"({inline} else {helper}({value.code}, {pattern.code}))"
        return f"{helper}({value.code}, {pattern.code}, {escape!r})"

    def _junction(self, node: Tree, scope: Scope, *, negated: bool) -> str:
        """AND, OR: in one line where no operand needs lines of its own, else a block that is left early.

        An AND is false where an operand is, an OR where all are.
        """
        parts = operands(node, type(node))
        word = "and" if isinstance(node, exp.And) != negated else "or"
        first = self._condition(parts[0], scope, negated=negated)
        outside = self._out.lines
        self._out.lines = []
        others: list[tuple[list[Line], str]] = []
        with self._out.block():
            for operand in parts[1:]:
                self._out.lines = []
                test = self._condition(operand, scope, negated=negated)
                others.append((self._out.lines, test))
        self._out.lines = outside
        if not any(lines for lines, _ in others):
            return f"({f' {word} '.join([first, *(test for _, test in others)])})"
        return self._long_junction(first, others, stop_at="not " if word == "and" else "")

    def _long_junction(
        self, first: str, others: list[tuple[list[Line], str]], *, stop_at: str
    ) -> str:
        result = self._out.fresh("v")
        self._out.emit(f"{result} = {first}")
        self._out.emit(f"while {'' if stop_at else 'not '}{result}:")
        with self._out.block():
            for position, (lines, test) in enumerate(others):
                if position:
                    self._out.emit(f"if {stop_at}{result}: break")
                self._out.lines += lines
                self._out.emit(f"{result} = {test}")
            self._out.emit("break")
        return result

    def _not(self, node: exp.Not, scope: Scope, *, negated: bool) -> str:
        inner = bare(node.this)
        if isinstance(inner, TESTS):
            return self._condition(inner, scope, negated=not negated)
        value = self._expression(inner, scope)
        wanted = "True" if negated else "False"
        if value.is_literal:
            return str(value.code == wanted)
        return f"({value.code} is {wanted})"

    def _in(self, node: exp.In, scope: Scope) -> str:
        value = self._expression(node.this, scope)
        items = [self._expression(item, scope) for item in node.expressions]
        if all(item.is_literal and item.kind in _EXACT_KINDS for item in items):
            constants = [constant_of(item) for item in node.expressions]
            name = self._out.hoisted(
                "choices", values.choices(constants), exp.Array(expressions=node.expressions)
            )
            return f"_is_one_of({value.code}, {name})"
        return f"_is_in({value.code}, ({', '.join(item.code for item in items)},))"

    def _tell(self, what: str, node: Tree, code: str = "None") -> None:
        """A line that calls the trace, where there is one."""
        if self._trace is None:
            return
        name = f"_node_{len(self._out.namespace)}"
        self._out.namespace |= {name: node, "_trace": self._trace}
        self._out.emit(f"_trace({what!r}, {name}, {code})")

    def _problem(self, node: Tree, message: str, suggestion: str | None = None) -> None:
        problem = Problem(message, "/sql", *place_of(node), suggestion)
        if problem not in self._problems:
            self._problems.append(problem)


def _test(code: str) -> Value:
    return Value(code, "test")


def _compared(operator: Operator, left: Value, right: Value) -> str:
    call = f"_{operator.function}({left.code}, {right.code})"
    inline = f"{left.code} {operator.python} {right.code}"
    if right.is_literal and not left.is_literal:
        if right.kind in ("int", "float"):
            return f"({inline} if type({left.code}) in _numbers else {call})"
        if right.kind == "string":
            return f"({inline} if type({left.code}) is str else {call})"
    return call


def _float_test(left: Value, right: Value) -> str | None:
    """Test under which the operation can be done in line: floats, and literals that cannot make it fail."""
    if left.kind in ("string", "boolean") or right.kind in ("string", "boolean", "undefined"):
        return None
    if left.is_literal and right.is_literal:
        return None
    if right.is_literal:
        return f"type({left.code}) is float" if _is_plain(right.code) else None
    if left.is_literal:
        return f"type({right.code}) is float and {right.code}" if _is_plain(left.code) else None
    return f"type({left.code}) is float and type({right.code}) is float and {right.code}"


def _is_plain(code: str) -> bool:
    """True if a numeric literal is not zero and far from the ends of the range of floats."""
    return 0.0 < abs(float(code)) < 1e300


def _constants_of(nodes: Sequence[Tree]) -> list[Any] | None:
    """The values of literals; None when one is something else, or undefined."""
    constants = [constant_of(node) for node in nodes]
    return None if None in constants else constants


def _count(number: int) -> str:
    return "1 argument" if number == 1 else f"{number} arguments"
