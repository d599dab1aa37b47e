"""A tree to the Python source of one function, compiled once.

The function runs per message, so the source is what a person would write for that rule by hand: columns come straight
from the message, a path is read once however often the rule names it, arithmetic and comparison test for the usual
types in line and call ``values`` for the rest, aliases are local variables. Nothing is looked up by name, no dictionary
of columns is built. Lines of the source are mapped to places in the SQL, so that a failure can say where.

Order is the language's: the SELECT list left to right, then WHERE; FOREACH list, WHERE, then per item INCASE and DO.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from sqlglot import exp

from broker.core.errors import Invalid, Problem
from rules.functions.registry import Functions
from rules.sql import columns as column_source
from rules.sql import like, paths, values
from rules.sql.code import NOTHING, EventColumns, MessageColumns, NamedColumns, Scope, Trace, Value
from rules.sql.conditions import Conditions
from rules.sql.limits import (
    FEW_CALLS,
    FEW_COLUMNS,
    INLINE_BYTES,
    INLINE_ROWS,
    INLINE_WORK,
    MAX_ITEMS_INLINE,
    MAX_ROW_BYTES,
    MAX_ROW_MEMBERS,
    MAX_ROWS,
    MAX_WORK_NS,
    ROWS_IN_A_TURN,
)
from rules.sql.optimizer import optimized
from rules.sql.printer import text_of_tree
from rules.sql.tree import END_INDEX, Path, Tree, jq_of, operands, path_of, place_of
from rules.sql.values import UNDEFINED, EvaluationError
from rules.sql.work import CHAIN, WORK, counted

Row = dict[str, Any]
Result = Row | list[Row] | None
"""A row, the rows of FOREACH, or None when WHERE does not hold."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a rule knows besides the message: the columns ``node``, ``metadata`` and ``timestamp``."""

    node: str
    metadata: Row
    now_ms: Callable[[], int]


class Lengthy(Exception):
    """FOREACH has more to walk than the caller can wait for; to be evaluated by ``Program.parts``."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled rule for one kind of input, a message or an occurrence. A FOREACH is a generator (``walks``)."""

    function: Callable[[Any], Any]
    source: str
    places: tuple[tuple[int, int], ...]
    walks: bool = False

    @property
    def run(self) -> Callable[[Any], Result]:
        """Gives the result, however long that takes."""
        return _to_the_end(self.function, inf) if self.walks else self.function

    @property
    def run_short(self) -> Callable[[Any], Result]:
        """Gives the result where an array has at most ``MAX_ITEMS_INLINE`` items, and fails where it has more."""
        return _to_the_end(self.function, MAX_ITEMS_INLINE) if self.walks else self.function

    @property
    def at_once(self) -> Callable[[Any], Result]:
        """Gives the result, or raises ``Lengthy`` before anything is evaluated for the items of a long array."""
        return _first_part(self.function) if self.walks else self.function

    def parts(self, given: Any) -> Generator[int, None, Result]:
        """Evaluates a long array part by part, to return the result in the end."""
        if not self.walks:
            result: Result = self.function(given)
            return result
        result = yield from self.function(given)
        return result

    def place_of(self, error: BaseException) -> tuple[int, int] | None:
        """Line and column of the SQL where an error of ``run`` came from."""
        code, step, found = self.function.__code__, error.__traceback__, None
        while step is not None:
            if step.tb_frame.f_code is code and step.tb_lineno <= len(self.places):
                found = self.places[step.tb_lineno - 1]
            step = step.tb_next
        return found


def _to_the_end(walk: Callable[[Any], Iterator[int]], most_items: float) -> Callable[[Any], Result]:
    def run(given: Any) -> Result:
        if CHAIN.is_late:
            raise EvaluationError("the rules before this one took too long for it to look at a list at once")
        parts, walked = walk(given), 0
        try:
            while walked <= most_items:
                walked += next(parts)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise EvaluationError(f"FOREACH of a rule that drops messages walks at most {most_items} items")

    return run


def _first_part(walk: Callable[[Any], Iterator[int]]) -> Callable[[Any], Result]:
    def run(given: Any) -> Result:
        try:
            next(walk(given))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise Lengthy("the array of FOREACH is long")

    return run


def _parts(items: Any, size: int, inline: int, inline_bytes: int) -> Sequence[Sequence[Any]]:
    """What FOREACH walks: one part, or an empty one and many, after each of which the program stops for a moment.

    Args:
        items: the array; anything else has no items.
        size: the bytes of the payload, which each row may hold.
        inline: how many items are walked without stopping.
        inline_bytes: the same, as items times ``size``.
    """
    if type(items) is not list:
        return ()
    count = len(items)
    if count <= inline and count * size <= inline_bytes:
        return (items,)
    step = max(1, min(ROWS_IN_A_TURN, inline, inline_bytes // max(1, size)))
    return [(), *(items[at : at + step] for at in range(0, count, step))]


def compile_for_messages(tree: exp.Select, functions: Functions, surroundings: Surroundings) -> Program:
    """The function that takes a ``Message``.

    Raises:
        Invalid: unknown functions, wrong numbers of arguments, literals that cannot be; all of them at once.
    """
    return _Compiler(functions, MessageColumns()).program(tree, surroundings)


def compile_for_templates(
    tree: exp.Select, functions: Functions, surroundings: Surroundings, names: frozenset[str]
) -> Program | None:
    """The same for a rule whose rows go nowhere but into templates that name these columns.

    ``*`` makes those columns only, with the payload as bytes: 3 µs a message less. None where the rule gains nothing.
    """
    stars = [isinstance(item, exp.Star) for item in tree.expressions]
    if "foreach" in tree.meta or jq_of(tree) is not None or stars[:1] != [True] or stars.count(True) > 1:
        return None
    return _Compiler(functions, NamedColumns(names)).program(tree, surroundings)


def compile_for_events(
    tree: exp.Select, functions: Functions, surroundings: Surroundings, trace: Trace | None = None
) -> Program:
    """The function that takes an ``Occurrence``. Raises as ``compile_for_messages``.

    With ``trace`` the program also tells each value at the moment it is there, in the order of evaluation: it is the
    same program with lines between its lines.
    """
    return _Compiler(functions, EventColumns(), trace).program(tree, surroundings)


_HELPERS: Final[dict[str, Any]] = {
    "_undefined": UNDEFINED, "_numbers": values.NUMBERS,
    "_add": values.add, "_subtract": values.subtract, "_multiply": values.multiply, "_divide": values.divide,
    "_integer_divide": values.integer_divide, "_modulo": values.modulo, "_negate": values.negate,
    "_overflow": values.overflow, "_concat": values.concat,
    "_equal": values.equal, "_not_equal": values.not_equal, "_less": values.less,
    "_less_or_equal": values.less_or_equal, "_greater": values.greater, "_greater_or_equal": values.greater_or_equal,
    "_identical": values.identical, "_is_in": values.is_in, "_is_one_of": values.is_one_of, "_truth": values.truth,
    "_like": like.like, "_jq_rows": values.rows_of_outputs, "_parts": _parts, "_too_many_rows": values.too_many_rows,
    "_check_row": values.check_row,
    "_size": column_source.payload_size, "_may_exceed": column_source.may_exceed, "_work": WORK, "_counted": counted,
    "_truth_of_call": values.truth_of_call, "_string": values.string, "_key": paths.key, "_index": paths.index,
    "_part": paths.part, "_writable": paths.writable,
    "_integers": paths.integers, "_put": paths.put, "_end": paths.END, "_Index": paths.Index,
    "_dotted": paths.dotted, "_flags": column_source.flags,
    "_present": column_source.present, "_properties": column_source.properties,
    "_all_columns": column_source.all_columns, "_soft_json": column_source.soft_json,
}  # fmt: skip


class _Compiler(Conditions):
    """Writes whole statements."""

    def program(self, tree: exp.Select, surroundings: Surroundings) -> Program:
        if self._trace is None:  # which is told about the nodes of the tree as it is written
            tree = optimized(tree, self._functions)
        self._has_many_calls = sum(1 for _ in tree.find_all(exp.Anonymous)) > FEW_CALLS
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
        return Program(namespace["rule"], source, places, "foreach" in tree.meta)

    def _source(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        head = [(f"# {name}: {text}", (1, 1)) for name, text in self._constants.items()]
        head.append((f"def rule({self._columns.argument}):", (1, 1)))
        if isinstance(self._columns, EventColumns):
            head.append(("    columns = occurrence.columns", (1, 1)))
        elif self._uses_client:
            head.append(("    client = message.client", (1, 1)))
        head.append((f"    _work.left = {MAX_WORK_NS}", (1, 1)))
        lines = head + self._lines
        return "\n".join(text for text, _ in lines) + "\n", tuple(where for _, where in lines)

    def _select(self, tree: exp.Select) -> None:
        scope = Scope()
        self._fields(tree.expressions, scope)
        self._where(tree.args.get("where"), scope, "return None")
        call, row = jq_of(tree), self._checked_row(tree.expressions, scope)
        self._emit(f"return {row if call is None else self._jq_rows(call, row)}")

    def _jq_rows(self, call: exp.Anonymous, row: str) -> str:
        """The rows of a JQ clause: what the program gives for the row."""
        self._at(call)
        found = self._functions.get("jq")
        if found is None:
            self._problem(call, "this installation has no jq")
            return "None"
        self._check_literals(found, call)
        outputs = self._called("jq", [self._literal(call.expressions[0]), Value(row, "map")], call)
        return f"_jq_rows({outputs.code})"

    def _foreach(self, tree: exp.Select) -> None:
        inner: exp.Select = tree.args["from_"].this.this
        scope = Scope()
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
        item, part = self._fresh(item_name), self._fresh("part")
        inline, inline_bytes, most = _bounds(tree)
        items = self._variable(items, "items")
        self._emit(f"for {part} in _parts({items.code}, {self._columns.size}, {inline}, {inline_bytes}):")
        with self._block():
            self._emit(f"for {item} in {part}:")
            with self._block():
                scope.names[item_name] = Value(item)
                self._tell("ITEM", last, item)
                self._where(tree.args.get("where"), scope, "continue", "INCASE")
                done = Scope(outer=scope)
                self._fields(tree.expressions, done, "DO")
                self._emit(f"rows.append({self._checked_row(tree.expressions, done)})")
            self._emit(f"if len(rows) > {most}: _too_many_rows({most})")
            self._emit(f"if {part} is not {items.code}:")
            with self._block():
                left = self._fresh("left")
                self._emit(f"{left} = _work.left")
                self._emit(f"yield len({part})")
                self._emit(f"_work.left = {left}")
        self._emit("return rows")

    def _walked(self, last: Tree, scope: Scope) -> Value:
        """The array FOREACH walks; the payload itself is decoded."""
        node = last.this if isinstance(last, exp.Alias) else last
        value = self._expression(node, scope)
        return self._payload_json() if value.is_payload else self._variable(value, "items")

    def _where(self, where: exp.Where | None, scope: Scope, otherwise: str, clause: str = "WHERE") -> None:
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

    def _fields(self, fields: Sequence[Tree], scope: Scope, clause: str = "SELECT") -> None:
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

    def _star(self, scope: Scope) -> None:
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
        elif path.root == "payload":
            before = self._payload_json() if before.is_payload else self._let("payload", f"_writable({before.code})")
        steps = ", ".join(self._target_step(step, scope) for step in path.steps)
        scope.names[path.root] = self._let(path.root, f"_put({before.code}, ({steps},), {value.code})")

    def _selected_by_star(self, name: str, scope: Scope) -> Value:
        """What ``*`` selected under a name."""
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
        row, columns = self._row(scope), sum(1 for field in fields if not isinstance(field, exp.Star))
        if columns <= FEW_COLUMNS:
            return row
        made, size = self._fresh("row"), self._columns.size
        self._emit(f"{made} = {row}")
        built_ns = MAX_WORK_NS - 2 * MAX_ROW_BYTES / columns
        self._emit(f"if {self._columns.is_large(MAX_ROW_BYTES // columns)} or _work.left < {built_ns}:")
        with self._block():
            self._emit(f"_check_row({made}, {size})")
        return made

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


def _bounds(tree: exp.Select) -> tuple[int, int, int]:
    """How many items a FOREACH walks without stopping, the same in bytes, and how many rows it gives."""
    clauses = [clause for clause in (*tree.expressions, tree.args.get("where")) if clause is not None]
    work = sum(1 for clause in clauses for _ in clause.walk())
    calls = sum(1 for clause in clauses for _ in clause.find_all(exp.Anonymous))
    members = sum(_STAR_MEMBERS if isinstance(field, exp.Star) else 1 for field in tree.expressions)
    return (
        min(INLINE_ROWS, max(1, INLINE_WORK // work)),
        INLINE_BYTES // max(1, calls // 4, len(tree.expressions)),
        min(MAX_ROWS, max(1, MAX_ROW_MEMBERS // members)),
    )


_STAR_MEMBERS: Final = 20


def _implicit_name(node: Tree) -> str:
    return node.name if isinstance(node, exp.Literal) and node.is_string else text_of_tree(node)
