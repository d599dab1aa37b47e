"""How much work a jq program can do at most, as a power of the size of its input, or that nobody knows.

The analysis walks the tree with what is known of the values that flow through it: how many there are for one input of
the program, how large one can be, and how large all are together, each as a bound in the input's size n (bytes of
JSON). A program for which that works out has no loop but those over its input, so it ends; and the bound tells up to
which size of input it ends within a given time. It is conservative: what is not understood is ``Unbounded``.

A list of safe forms (paths, construction, conditions, arithmetic, ``select``, ``map``, one iteration) would be shorter.
It would take 26 of the 42 programs of the documentation and the tests that are bounded here, and not
``.clientid as $c | .payload.readings[] | {client: $c, t}``. Rules with the others would be put off through the store
and could not drop their messages any more, and checks would refuse them.

Sizes are bytes; work is microseconds, from what was measured per step and per item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from rules.jq.bound import INPUT, NONE, ONE, Bound
from rules.jq.builtins import PAIRWISE, PER_ITEM_US, SIMPLE, TEXT
from rules.jq.forms import (
    KNOWN,
    Unbounded,
    added_to_state,
    check_target,
    is_number,
    is_single,
    literal,
    mentions,
)  # fmt: skip
from rules.jq.lexer import Unreadable
from rules.jq.parser import parse
from rules.jq.tree import (
    Array,
    Binary,
    Bind,
    Break,
    Call,
    Define,
    Expr,
    Fold,
    Format,
    Identity,
    If,
    Index,
    Iterate,
    Label,
    Negate,
    Number,
    Object,
    Recursion,
    Slice,
    Text,
    Try,
    Variable,
)  # fmt: skip

STEP_US: Final = 0.3
BYTE_US: Final = 0.05
"""Per byte of input read and of output written, and per byte copied: what small numbers in an array cost."""
_COMPARISON_US: Final = 0.06
_COPY_US: Final = 0.001
"""Per byte of a state that is copied, once a step of ``reduce``: 20 ns an item."""
_ITEM: Final = 0.5
"""Items per byte: an item and its comma take two."""
_LONGEST_NUMBER: Final = Bound.of(24)
_MAX_RANGE: Final = 1000
_MAX_STEPS: Final = 5000


@dataclass(frozen=True, slots=True)
class Flow:
    """Values that flow: how many, how large one may be, how large all are together."""

    count: Bound
    largest: Bound
    total: Bound

    def __or__(self, other: Flow) -> Flow:
        return Flow(self.count | other.count, self.largest | other.largest, self.total | other.total)

    def each(self, size: Bound) -> Flow:
        """As many values, each at most of this size."""
        return Flow(self.count, size, self.count * size)


_NOTHING: Final = Flow(NONE, NONE, NONE)


@dataclass(frozen=True, slots=True)
class _Closure:
    """A function's body or an argument, with the names it sees."""

    parameters: tuple[str, ...]
    body: Expr
    scope: _Scope


@dataclass(frozen=True, slots=True)
class _Scope:
    variables: Mapping[str, Flow]
    functions: Mapping[tuple[str, int], _Closure]
    busy: frozenset[int] = frozenset()
    """Closures that are being walked: to meet one again is recursion."""

    def with_variables(self, names: tuple[str, ...], value: Flow) -> _Scope:
        return _Scope({**self.variables, **dict.fromkeys(names, value)}, self.functions, self.busy)


def work_of(program: str) -> Bound:
    """The most microseconds that the program works on an input of n bytes, reading and writing included.

    Raises:
        Unbounded: no such bound is known.
    """
    try:
        tree = parse(program)
        return _Analysis().of(tree)
    except Unreadable as error:
        raise Unbounded(f"it is beyond what is analysed ({error})", error.at) from None
    except RecursionError:
        raise Unbounded("it nests too deep to be analysed", 0) from None


class _Analysis:
    def __init__(self) -> None:
        self._work = NONE
        self._steps = 0

    def of(self, tree: Expr) -> Bound:
        everything = Flow(ONE, INPUT, INPUT)
        self._spend(everything.total * BYTE_US)
        result = self._walk(
            tree, everything, _Scope({"ENV": everything, "__loc__": Flow(ONE, Bound.of(64), Bound.of(64))}, {})
        )
        self._spend(result.total * BYTE_US)
        return self._work + Bound.of(5)

    def _spend(self, work: Bound) -> None:
        self._work = self._work + work

    def _walk(self, node: Expr, given: Flow, scope: _Scope) -> Flow:
        """What the expression gives for all values of ``given`` together; its work is added up."""
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise Unbounded("it is too long to be analysed", node.at)
        self._spend(given.count * STEP_US)
        return _WALKERS[type(node)](self, node, given, scope)

    # Values that are there

    def _identity(self, node: Identity, given: Flow, scope: _Scope) -> Flow:
        return given

    def _number(self, node: Number, given: Flow, scope: _Scope) -> Flow:
        return given.each(_LONGEST_NUMBER)

    def _variable(self, node: Variable, given: Flow, scope: _Scope) -> Flow:
        value = scope.variables.get(node.name)
        if value is None:
            raise Unbounded(f"${node.name} is not known", node.at)
        return given.each(value.largest)

    def _recursion(self, node: Recursion, given: Flow, scope: _Scope) -> Flow:
        self._spend(given.total * (2 * _ITEM))
        return Flow(given.total, given.largest, given.total * given.largest)

    def _text(self, node: Text, given: Flow, scope: _Scope) -> Flow:
        size, count = Bound.of(6.0 * len(node.literal) + 2), given.count
        total = given.count * size
        growth = SIMPLE[node.format or "@text"].growth if (node.format or "@text") in SIMPLE else None
        if node.parts and growth is None:
            raise Unbounded(f"{node.format} is not analysed", node.at)
        for part in node.parts:
            inserted = self._walk(part, given, scope)
            size, total = size + inserted.largest * (growth or 1), total + inserted.total * (growth or 1)
            count = self._product(count, part, inserted)
        result = Flow(count, size, total if is_single(node) else count * size)
        self._spend(result.total * BYTE_US)
        return result

    def _format(self, node: Format, given: Flow, scope: _Scope) -> Flow:
        return self._simple(node.name, node.at, given)

    # Paths

    def _index(self, node: Index, given: Flow, scope: _Scope) -> Flow:
        found = self._walk(node.term, given, scope)
        if isinstance(node.index, (Text, Number)) and not (isinstance(node.index, Text) and node.index.parts):
            return found
        keys = self._walk(node.index, given, scope)
        self._spend(found.count * keys.largest * found.largest * _COMPARISON_US)  # .[[...]] looks for a part
        return self._joined(node.term, found, node.index, keys)

    def _slice(self, node: Slice, given: Flow, scope: _Scope) -> Flow:
        found = self._walk(node.term, given, scope)
        self._spend(found.total * BYTE_US)
        for end in (node.first, node.last):
            if end is not None:
                if not is_single(end):
                    raise Unbounded("a range with several ends", node.at)
                self._walk(end, given, scope)
        return found

    def _iterate(self, node: Iterate, given: Flow, scope: _Scope) -> Flow:
        found = self._walk(node.term, given, scope)
        items = found.total * _ITEM
        self._spend(items * STEP_US)
        return Flow(items, found.largest, found.total)

    # Making values

    def _array(self, node: Array, given: Flow, scope: _Scope) -> Flow:
        if node.inner is None:
            return given.each(Bound.of(2))
        items = self._walk(node.inner, given, scope)
        self._spend(items.count * STEP_US)
        size = items.total + items.count + Bound.of(2)
        return Flow(given.count, size, size + given.count * 2)

    def _object(self, node: Object, given: Flow, scope: _Scope) -> Flow:
        count, size, total = given.count, Bound.of(2), given.count * 2
        for key, value in node.members:
            for part in (key, value):
                found = self._walk(part, given, scope)
                count = self._product(count, part, found)
                size, total = size + found.largest + Bound.of(2), total + found.total + found.count * 2
        self._spend(count * (STEP_US * max(1, len(node.members))))
        return Flow(count, size, total if is_single(node) else count * size)

    def _negate(self, node: Negate, given: Flow, scope: _Scope) -> Flow:
        return self._walk(node.inner, given, scope).each(_LONGEST_NUMBER)

    # Operators

    def _binary(self, node: Binary, given: Flow, scope: _Scope) -> Flow:
        if node.operator == "|":
            return self._walk(node.right, self._walk(node.left, given, scope), scope)
        if node.operator == ",":
            left, right = self._walk(node.left, given, scope), self._walk(node.right, given, scope)
            return Flow(left.count + right.count, left.largest | right.largest, left.total + right.total)
        if node.operator == "//":
            return self._walk(node.left, given, scope) | self._walk(node.right, given, scope)
        if node.operator in ("=", "|=", "+=", "-=", "*=", "/=", "%=", "//="):
            return self._assignment(node, given, scope)
        left, right = self._walk(node.left, given, scope), self._walk(node.right, given, scope)
        both = self._joined(node.left, left, node.right, right)
        if node.operator in ("and", "or", "==", "!=", "<", "<=", ">", ">="):
            self._spend((both.total + left.total + right.total) * BYTE_US)
            return both.each(Bound.of(5))
        return self._arithmetic(node, both, left, right)

    def _arithmetic(self, node: Binary, both: Flow, left: Flow, right: Flow) -> Flow:
        is_one_number = is_number(node.left) or is_number(node.right)
        if (is_one_number and node.operator in ("+", "-", "/")) or node.operator == "%":
            return both.each(_LONGEST_NUMBER)
        growth = 1.0
        if node.operator == "-":
            pairs = left.total * right.largest if is_single(node) else both.count * left.largest * right.largest
            self._spend(pairs * (_ITEM * _ITEM * _COMPARISON_US))
        elif node.operator == "/":
            growth = 4
        elif node.operator == "*":
            if is_number(node.left) and is_number(node.right):
                return both.each(_LONGEST_NUMBER)
            growth = self._times(node)
        size = (left.largest + right.largest) * growth + _LONGEST_NUMBER
        total = (left.total + right.total) * growth + both.count * 24
        result = Flow(both.count, size, total if is_single(node) else both.count * size)
        self._spend(result.total * BYTE_US)
        return result

    def _times(self, node: Binary) -> float:
        """A string times a number is the string many times over; bytes that are copied like this cost a tenth."""
        for operand in (node.left, node.right):
            times = literal(operand)
            if times is not None:
                return max(1.0, abs(times) * 0.1)
        if isinstance(node.left, Object) or isinstance(node.right, Object):
            return 1.0
        raise Unbounded("a string may be multiplied by a number from the input", node.at)

    def _assignment(self, node: Binary, given: Flow, scope: _Scope) -> Flow:
        check_target(node.left)
        places = self._walk(node.left, given, scope)
        self._spend(places.count * 10 + given.total * BYTE_US)
        if node.operator == "|=":
            values = self._walk(node.right, places, scope)
            grown = values.total + places.count * 40
            return Flow(given.count, given.largest + grown, given.total + grown)
        values = self._walk(node.right, given, scope)
        count = self._product(given.count, node.right, values)
        if node.operator == "*=" and literal(node.right) is None:
            raise Unbounded("a string may be multiplied by a number from the input", node.at)
        times = abs(literal(node.right) or 0) + 1 if node.operator == "*=" else 4 if node.operator == "/=" else 1
        if node.operator == "-=" and not is_number(node.right):
            self._spend(given.total * values.largest * (_ITEM * _ITEM * _COMPARISON_US))
        if is_single(node.left) and is_single(node.right):
            grown = values.total + places.count * 40
            return Flow(count, given.largest * times + grown, given.total * times + grown)
        size = given.largest * times + places.count * (values.largest + Bound.of(40))
        return Flow(count, size, count * size)

    # Control

    def _if(self, node: If, given: Flow, scope: _Scope) -> Flow:
        result, remaining = _NOTHING, given
        for condition, then in node.branches:
            tested = self._walk(condition, remaining, scope)
            if not is_single(condition):
                remaining = Flow(
                    remaining.count + tested.count, given.largest, (remaining.count + tested.count) * given.largest
                )
            result = _either(result, self._walk(then, remaining, scope), is_single(condition))
        otherwise = remaining if node.otherwise is None else self._walk(node.otherwise, remaining, scope)
        return _either(result, otherwise, all(is_single(condition) for condition, _ in node.branches))

    def _try(self, node: Try, given: Flow, scope: _Scope) -> Flow:
        result = self._walk(node.body, given, scope)
        if node.handler is None:
            return result
        caught = self._walk(node.handler, given.each(given.largest + result.largest + Bound.of(200)), scope)
        return Flow(result.count + caught.count, result.largest | caught.largest, result.total + caught.total)

    def _label(self, node: Label, given: Flow, scope: _Scope) -> Flow:
        return self._walk(node.body, given, scope)

    def _break(self, node: Break, given: Flow, scope: _Scope) -> Flow:
        return _NOTHING

    def _bind(self, node: Bind, given: Flow, scope: _Scope) -> Flow:
        source = self._walk(node.source, given, scope)
        inner = scope.with_variables(node.names, source)
        for key in node.keys:
            if not is_single(key):
                raise Unbounded("a pattern with several keys", node.at)
            self._walk(key, given, inner)
        if is_single(node.source):
            return self._walk(node.body, given, inner)
        return self._walk(node.body, Flow(source.count, given.largest, source.count * given.largest), inner)

    def _fold(self, node: Fold, given: Flow, scope: _Scope) -> Flow:
        """The state may grow by a sum of what the items give, and is copied once an item."""
        source = self._walk(node.source, given, scope)
        if node.keys or not is_single(node.initial):
            raise Unbounded(f"this form of {node.keyword} is not analysed", node.at)
        initial = self._walk(node.initial, given, scope)
        inner = scope.with_variables(node.names, source)
        added = self._added(node, source, inner)
        state = initial.largest + added + source.count * 40
        if is_number(node.initial) and isinstance(node.update, Binary) and node.update.operator in ("+", "-", "*"):
            state = _LONGEST_NUMBER
        self._spend(source.count * (state * _COPY_US + Bound.of(10)))
        if node.keyword == "reduce":
            return Flow(given.count, state, given.count * state)
        states = Flow(source.count, state, source.count * state)
        return states if node.extract is None else self._walk(node.extract, states, inner)

    def _added(self, fold: Fold, items: Flow, scope: _Scope) -> Bound:
        """What all steps together add to the state; no step may look at the state itself."""
        added = added_to_state(fold.update)
        given = Flow(items.count, Bound.of(4), items.count * 4)
        times = mentions(added, fold.names)
        if times is None:
            return self._walk(added, given, scope).total
        # An item is added as often as it is named, so the items together count, not the largest of them for each step.
        own = self._walk(added, given, scope.with_variables(fold.names, Flow(items.count, NONE, NONE)))
        return own.total + items.total * times

    # Functions

    def _define(self, node: Define, given: Flow, scope: _Scope) -> Flow:
        for name in (node.name, *node.parameters):
            if name in KNOWN:
                raise Unbounded(f"{name} is defined anew", node.at)
        functions = dict(scope.functions)
        inner = _Scope(scope.variables, functions, scope.busy)
        functions[node.name, len(node.parameters)] = _Closure(node.parameters, node.body, inner)
        return self._walk(node.rest, given, inner)

    def _call(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        closure = scope.functions.get((node.name, len(node.arguments)))
        if closure is not None:
            return self._call_own(node, closure, given, scope)
        if not node.arguments:
            if node.name == "empty":
                return _NOTHING
            if node.name in ("recurse", "paths"):
                return self._recursion(Recursion(node.at), given, scope)
            if node.name == "flatten":
                self._spend(given.total * given.largest * (_ITEM * BYTE_US) + given.total * 6)
                return given
            if node.name == "transpose":
                self._spend(given.total * given.largest)
                return given.each(given.largest * given.largest * 3)
            return self._simple(node.name, node.at, given)
        special = _CALLS.get((node.name, len(node.arguments)))
        if special is not None:
            return special(self, node, given, scope)
        if len(node.arguments) == 1 and node.name in PER_ITEM_US:
            return self._per_item(node, given, scope)
        if len(node.arguments) == 1 and node.name in TEXT | PAIRWISE:
            return self._with_argument(node, given, scope)
        raise Unbounded(f"{node.name} may not end, or may take any time", node.at)

    def _call_own(self, node: Call, closure: _Closure, given: Flow, scope: _Scope) -> Flow:
        if id(closure.body) in scope.busy or id(closure.body) in closure.scope.busy:
            raise Unbounded(f"{node.name} calls itself", node.at)
        busy = scope.busy | closure.scope.busy | {id(closure.body)}
        variables, functions = dict(closure.scope.variables), dict(closure.scope.functions)
        count = given.count
        for parameter, argument in zip(closure.parameters, node.arguments, strict=True):
            name = parameter.removeprefix("$")
            functions[name, 0] = _Closure((), argument, _Scope(scope.variables, scope.functions, scope.busy))
            if parameter.startswith("$"):
                values = self._walk(argument, given, scope)
                variables[name] = values
                count = self._product(count, argument, values)
        inputs = given if count == given.count else Flow(count, given.largest, count * given.largest)
        return self._walk(closure.body, inputs, _Scope(variables, functions, busy))

    def _simple(self, name: str, at: int, given: Flow) -> Flow:
        known = SIMPLE.get(name)
        if known is None:
            raise Unbounded(f"{name} may not end, or may take any time", at)
        self._spend(given.total * (_ITEM * known.item_us))
        if known.is_small or known.is_number:
            return given.each(Bound.of(40))
        return Flow(
            given.count, given.largest * known.growth + Bound.of(8), given.total * known.growth + given.count * 8
        )

    def _per_item(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        items = Flow(given.total * _ITEM, given.largest, given.total)
        if node.name == "add":
            items = given
        elif node.name == "with_entries":
            items = Flow(items.count, items.largest + Bound.of(28), items.total * 14)
        self._spend(items.count * PER_ITEM_US[node.name])
        results = self._walk(node.arguments[0], items, scope)
        self._spend(results.count * STEP_US)
        if node.name in ("map", "map_values", "with_entries", "add"):
            size = results.total + results.count * 2 + Bound.of(2)
            return Flow(given.count, size, size + given.count * 2)
        self._spend(results.total * _COMPARISON_US)
        return Flow(given.count, given.largest * 3, given.total * 3)

    def _with_argument(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        argument = self._walk(node.arguments[0], given, scope)
        if not is_single(node.arguments[0]):
            raise Unbounded(f"an argument of {node.name} with several values", node.at)
        count = given.count
        if node.name in PAIRWISE:
            pairs = given.total * argument.largest * (_ITEM * _ITEM)
            self._spend((pairs + given.total + argument.total) * _COMPARISON_US)
        else:
            self._spend((given.total + argument.total) * BYTE_US)
        return Flow(count, given.largest * 6 + Bound.of(8), given.total * 6 + given.count * 8)

    def _select(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        tested = self._walk(node.arguments[0], given, scope)
        if is_single(node.arguments[0]):
            return given
        count = given.count + tested.count
        return Flow(count, given.largest, count * given.largest)

    def _generated(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        """``first(f)``, ``last(f)``, ``isempty(f)``, ``path(f)``...: what the last argument gives, or less."""
        for argument in node.arguments[:-1]:
            if not is_single(argument):
                raise Unbounded(f"an argument of {node.name} with several values", argument.at)
            self._walk(argument, given, scope)
        results = self._walk(node.arguments[-1], given, scope)
        if node.name == "path":
            return results.each(given.largest + Bound.of(30))
        return Flow(results.count + given.count, results.largest, results.total)

    def _generator_tested(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        """``any(generator; condition)``, ``all(generator; condition)``."""
        self._walk(node.arguments[1], self._walk(node.arguments[0], given, scope), scope)
        return given.each(Bound.of(5))

    def _tested(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        """``any(condition)``, ``all(condition)``: of each item."""
        items = Flow(given.total * _ITEM, given.largest, given.total)
        self._walk(node.arguments[0], items, scope)
        return given.each(Bound.of(5))

    def _join(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        separator = self._walk(node.arguments[0], given, scope)
        if not is_single(node.arguments[0]):
            raise Unbounded("an argument of join with several values", node.at)
        size = given.largest + given.largest * separator.largest * _ITEM + Bound.of(2)
        total = given.total + given.total * separator.largest * _ITEM + given.count * 2
        self._spend(given.total * (_ITEM * 7) + total * BYTE_US)
        return Flow(given.count, size, total)

    def _range(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        ends = [literal(argument) for argument in node.arguments]
        if any(end is None for end in ends):
            raise Unbounded("a range without literal ends", node.at)
        first, last = (0.0, ends[0]) if len(ends) == 1 else (ends[0], ends[1])
        assert first is not None
        assert last is not None
        if last - first > _MAX_RANGE:
            raise Unbounded(f"a range of more than {_MAX_RANGE} numbers", node.at)
        count = given.count * max(1.0, last - first + 1)
        self._spend(count * STEP_US)
        return Flow(count, _LONGEST_NUMBER, count * 24)

    def _delete(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        places = self._walk(node.arguments[0], given, scope)
        self._spend(places.count * 6 + given.total * BYTE_US)
        return given

    def _getpath(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        path = self._walk(node.arguments[0], given, scope)
        self._spend(path.total * STEP_US)
        if is_single(node.arguments[0]):
            return given
        count = given.count * path.count
        return Flow(count, given.largest, count * given.largest)

    def _raise(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        self._walk(node.arguments[0], given, scope)
        return given

    def _two_numbers(self, node: Call, given: Flow, scope: _Scope) -> Flow:
        count = given.count
        for argument in node.arguments:
            count = self._product(count, argument, self._walk(argument, given, scope))
        return Flow(count, _LONGEST_NUMBER, count * 24)

    # Several values

    def _product(self, count: Bound, node: Expr, values: Flow) -> Bound:
        """How many combinations there are, with those of one more expression."""
        return count if is_single(node) else count * (values.count | ONE)

    def _joined(self, left: Expr, a: Flow, right: Expr, b: Flow) -> Flow:
        """The pairs that two expressions on the same input give."""
        largest = a.largest | b.largest
        if is_single(left) and is_single(right):
            return Flow(a.count | b.count, largest, a.total | b.total)
        if is_single(left) or is_single(right):
            count = b.count if is_single(left) else a.count
        else:
            count = a.count * b.count
        return Flow(count, largest, count * largest)


def _either(left: Flow, right: Flow, is_single: bool) -> Flow:
    if is_single:
        return left | right
    return Flow(left.count + right.count, left.largest | right.largest, left.total + right.total)


_Walker = Callable[..., Flow]

_CALLS: Final[Mapping[tuple[str, int], _Walker]] = {
    ("select", 1): _Analysis._select,
    ("first", 1): _Analysis._generated,
    ("last", 1): _Analysis._generated,
    ("isempty", 1): _Analysis._generated,
    ("path", 1): _Analysis._generated,
    ("limit", 2): _Analysis._generated,
    ("skip", 2): _Analysis._generated,
    ("nth", 2): _Analysis._generated,
    ("any", 1): _Analysis._tested,
    ("all", 1): _Analysis._tested,
    ("any", 2): _Analysis._generator_tested,
    ("all", 2): _Analysis._generator_tested,
    ("join", 1): _Analysis._join,
    ("range", 1): _Analysis._range,
    ("range", 2): _Analysis._range,
    ("del", 1): _Analysis._delete,
    ("getpath", 1): _Analysis._getpath,
    ("error", 1): _Analysis._raise,
    ("debug", 1): _Analysis._raise,
    ("pow", 2): _Analysis._two_numbers,
    ("fmin", 2): _Analysis._two_numbers,
    ("fmax", 2): _Analysis._two_numbers,
    ("fmod", 2): _Analysis._two_numbers,
}

_WALKERS: Final[Mapping[type[object], _Walker]] = {
    Identity: _Analysis._identity,
    Recursion: _Analysis._recursion,
    Number: _Analysis._number,
    Text: _Analysis._text,
    Format: _Analysis._format,
    Variable: _Analysis._variable,
    Index: _Analysis._index,
    Slice: _Analysis._slice,
    Iterate: _Analysis._iterate,
    Array: _Analysis._array,
    Object: _Analysis._object,
    Negate: _Analysis._negate,
    Binary: _Analysis._binary,
    Bind: _Analysis._bind,
    Fold: _Analysis._fold,
    If: _Analysis._if,
    Try: _Analysis._try,
    Label: _Analysis._label,
    Break: _Analysis._break,
    Define: _Analysis._define,
    Call: _Analysis._call,
}
