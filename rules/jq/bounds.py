"""Up to which size of input a jq program may run on the event loop: a short list of forms whose time is bounded.

One pass reads the program by jq's grammar and precedence and follows the values through it: how many there are for an
input of n bytes, how large one may be, and how large all are together. A program of listed forms has no loop but those
over its input, so it ends. What is not listed (definitions, regular expressions, ``while``, ``recurse(f)``,
what can make an array of any length...) runs in a worker process; jq's compiler decides what a program is.

Sizes are bytes of JSON; work is microseconds, from times of jq 1.8 per step and per item of arrays of 8,000 and
32,000 items, rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rules.jq.lexer import INSERT, Token, Unreadable, tokens

MAX_INLINE_BYTES: Final = 64 * 1024
# A program that may take longer on so small an input always goes to a worker.
_MIN_INLINE_BYTES: Final = 64
# Maximum time that a program may hold up the event loop, on the worst input of its size.
INLINE_BUDGET_US: Final = 10_000.0

_STEP_US: Final = 0.3
# Per byte of input read and of output written, and per byte copied: what small numbers in an array cost.
_BYTE_US: Final = 0.05
_COMPARISON_US: Final = 0.06
# Items per byte: an item and its comma take two.
_ITEM: Final = 0.5
_NUMBER_BYTES: Final = 24.0
_MAX_INDEX: Final = 1000
_MAX_DEPTH: Final = 60

# Precedence of operators.
_POWER: Final = {
    "//": 1, **dict.fromkeys(("=", "|=", "+=", "-=", "*=", "/=", "%=", "//="), 2), "or": 3, "and": 4,
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), 5), "+": 6, "-": 6, "*": 7, "/": 7, "%": 7,
}  # fmt: skip
_KEYWORDS: Final = frozenset(
    {
        "def",
        "then",
        "elif",
        "else",
        "end",
        "as",
        "catch",
        "label",
        "break",
        "import",
        "include",
        "__loc__",
    }
)


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of its input alone: one result, at most ``growth`` times as large, ``item_us`` per item of it.

    ``kind`` is ``number`` for a result that is a number, ``small`` for one whose size does not depend on the input.
    """

    growth: float = 1.0
    item_us: float = 0.5
    kind: str = ""


_NUMBERS: Final = (
    "floor", "ceil", "round", "trunc", "rint", "nearbyint", "sqrt", "cbrt", "exp", "exp2", "exp10", "expm1", "log",
    "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh",
    "atanh", "significand", "logb", "gamma", "lgamma", "tgamma", "fabs", "length", "utf8bytelength", "tonumber", "now",
    "infinite", "nan", "mktime", "fromdate", "fromdateiso8601",
)  # fmt: skip
_SMALL: Final = (
    "true", "false", "null", "not", "type", "isnan", "isinfinite", "isnormal", "isfinite", "toboolean", "gmtime",
    "todate", "todateiso8601",
)  # fmt: skip
_SELECTIONS: Final = (
    "objects", "arrays", "strings", "numbers", "booleans", "nulls", "iterables", "scalars", "values", "finites",
    "normals", "abs", "debug", "stderr", "error", "first", "last", "toarray", "env",
)  # fmt: skip
# Functions without arguments, and formats.
_FUNCTIONS: Final[dict[str, _Function]] = {
    **dict.fromkeys(_NUMBERS, _Function(kind="number")),
    **dict.fromkeys(_SMALL, _Function(kind="small")),
    **dict.fromkeys(_SELECTIONS, _Function()),
    **dict.fromkeys(
        ("ascii_downcase", "ascii_upcase", "trim", "ltrim", "rtrim"), _Function(1, 0.02)
    ),
    **dict.fromkeys(
        ("tostring", "tojson", "@text", "@json", "@base64", "@base32"), _Function(2, 0.6)
    ),
    **dict.fromkeys(("@csv", "@tsv"), _Function(2, 1)),
    **dict.fromkeys(("any", "all"), _Function(1, 2, "small")),
    **dict.fromkeys(("add", "sort", "unique", "reverse", "min", "max"), _Function(1, 3)),
    **dict.fromkeys(("keys", "keys_unsorted"), _Function(6, 2)),
    "@html": _Function(6, 0.6),
    "@uri": _Function(3, 0.6),
    "@sh": _Function(4, 1),
    "@base64d": _Function(1, 0.6),
    "fromjson": _Function(1, 2),
    "explode": _Function(8, 0.2),
    "implode": _Function(1, 0.5),
    "to_entries": _Function(14, 6),
    "from_entries": _Function(2, 8),
}
# Functions whose argument is evaluated once per item of the input, and what an item costs besides.
_PER_ITEM_US: Final = {
    "map": 2.0, "sort_by": 6.0, "group_by": 8.0, "unique_by": 8.0, "min_by": 4.0, "max_by": 4.0, "map_values": 10.0,
    "with_entries": 35.0, "add": 3.0, "any": 2.0, "all": 2.0,
}  # fmt: skip
# Functions of one argument that look at input and argument once.
_TEXT: Final = frozenset(
    {"startswith", "endswith", "ltrimstr", "rtrimstr", "trimstr", "split", "has", "in"}
)
# Functions of one argument that may compare everything in the input with everything in the argument.
_PAIRWISE: Final = frozenset({"contains", "inside", "index", "rindex", "indices", "IN"})
# Functions of one argument that give what it gives, or less.
_GENERATED: Final = frozenset({"first", "last", "isempty"})
_OF_NUMBERS: Final = frozenset({"pow", "fmin", "fmax", "fmod"})


class Unbounded(Exception):
    """The program may not end, or may take any time; says why."""


@dataclass(frozen=True, slots=True)
class _Flow:
    """Values that an expression gives: how many, how large one may be, how large all are together."""

    count: float
    largest: float
    total: float
    is_single: bool = True
    """True if there is at most one for one input."""
    kind: str = ""
    """``number``, ``text`` or ``object`` where it can be nothing else (but null)."""
    is_place: bool = False
    """True if it may be assigned to without making an array as long as a number in the input says."""
    literal: float | None = None

    def each(self, size: float, kind: str = "") -> _Flow:
        """The same number of values, each at most of this size."""
        return _Flow(self.count, size, self.count * size, self.is_single, kind)


def inline_bytes(program: str) -> int:
    """The size of input up to which the program takes no longer than the event loop can wait.

    Raises:
        Unbounded: no such size is known.
    """
    size = MAX_INLINE_BYTES
    try:
        words = tokens(program)
        while size >= _MIN_INLINE_BYTES:
            if _Analysis(words, size).work() <= INLINE_BUDGET_US:
                return size
            size //= 2
    except Unreadable as error:
        raise Unbounded(f"it is beyond what is analysed ({error})") from None
    except RecursionError:
        raise Unbounded("it nests too deep to be analysed") from None
    raise Unbounded(f"it may take longer than {INLINE_BUDGET_US / 1000:g} ms on a small input")


class _Analysis:
    """Reads a program for inputs of one size. Each method reads one form and gives its values for all of ``flow``."""

    def __init__(self, words: Sequence[Token], size: int) -> None:
        self._words = words
        self._next = 0
        self._depth = 0
        self._input = _Flow(1, size, size, is_place=True)
        self._variables = {"$ENV": self._input, "$__loc__": _Flow(1, 64, 64)}
        self._work = 5.0

    def work(self) -> float:
        """The most microseconds that the program works, reading and writing included."""
        self._spend(self._input.total * _BYTE_US)
        result = self._input if self._word.kind == "end" else self._pipe(self._input)
        if self._word.kind != "end":
            raise Unreadable(f"unexpected {self._word.text!r}", self._word.at)
        self._spend(result.total * _BYTE_US)
        return self._work

    def _spend(self, work: float) -> None:
        self._work += work

    # Words

    @property
    def _word(self) -> Token:
        return self._words[self._next]

    def _is(self, *texts: str) -> bool:
        word = self._word
        return word.kind in ("symbol", "name") and word.text in texts

    def _take(self) -> Token:
        word = self._word
        if word.kind != "end":
            self._next += 1
        return word

    def _took(self, *texts: str) -> bool:
        if self._is(*texts):
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._took(text):
            raise Unreadable(f"{text!r} was expected", self._word.at)

    # Operators

    def _pipe(self, flow: _Flow) -> _Flow:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise Unreadable("the program nests too deep", self._word.at)
        left = self._operators(flow)
        while self._took(","):
            left = _one_after_another(left, self._operators(flow))
        if self._took("|"):
            left = _piped(left, self._pipe(left))
        self._depth -= 1
        return left

    def _operators(self, flow: _Flow, power: int = 1) -> _Flow:
        left = self._postfix(flow)
        while self._word.kind in ("symbol", "name") and _POWER.get(self._word.text, 0) >= power:
            operator = self._take().text
            binds = _POWER[operator]
            self._spend(flow.count * _STEP_US)
            right = self._operators(left if operator == "|=" else flow, binds + (operator != "//"))
            left = self._binary(operator, flow, left, right)
        return left

    def _binary(self, operator: str, flow: _Flow, left: _Flow, right: _Flow) -> _Flow:
        if operator == "//":
            return _either(left, right)
        if _POWER[operator] == 2:
            return self._assignment(operator, flow, left, right)
        both = _joined(left, right)
        if operator in ("+", "-", "*", "/", "%"):
            return self._arithmetic(operator, both, left, right)
        self._spend((both.total + left.total + right.total) * _BYTE_US)
        return both.each(5)

    def _arithmetic(self, operator: str, both: _Flow, left: _Flow, right: _Flow) -> _Flow:
        numbers = (left.kind == "number") + (right.kind == "number")
        if operator == "%" or numbers == 2 or (numbers == 1 and operator != "*"):
            # with one number nothing but another one goes, '*' apart
            return both.each(_NUMBER_BYTES, "number")
        growth = 1.0
        if operator == "-":
            pairs = (
                left.total * right.largest
                if both.is_single
                else both.count * left.largest * right.largest
            )
            self._spend(pairs * (_ITEM * _ITEM * _COMPARISON_US))
        elif operator == "/":
            growth = 4
        elif operator == "*":
            growth = _times(left, right)
        size = (left.largest + right.largest) * growth + _NUMBER_BYTES
        total = (left.total + right.total) * growth + both.count * _NUMBER_BYTES
        self._spend((total if both.is_single else both.count * size) * _BYTE_US)
        return replace(
            both, largest=size, total=total if both.is_single else both.count * size, kind=""
        )

    def _assignment(self, operator: str, flow: _Flow, places: _Flow, values: _Flow) -> _Flow:
        if not places.is_place:
            raise Unbounded("what is assigned to is not a plain path")
        self._spend(places.count * 10 + flow.total * _BYTE_US)
        grown = values.total + places.count * 40
        if operator == "|=":
            return _Flow(flow.count, flow.largest + grown, flow.total + grown)
        times = _times(values, values) if operator == "*=" else 4.0 if operator == "/=" else 1.0
        if operator == "-=" and values.kind != "number":
            self._spend(flow.total * values.largest * (_ITEM * _ITEM * _COMPARISON_US))
        if places.is_single and values.is_single:
            return _Flow(flow.count, flow.largest * times + grown, flow.total * times + grown)
        count = _product(flow.count, values)
        size = flow.largest * times + places.count * (values.largest + 40)
        return _Flow(count, size, count * size, values.is_single)

    # Terms

    def _postfix(self, flow: _Flow) -> _Flow:
        self._spend(flow.count * _STEP_US)
        if self._took("-"):
            inner = self._postfix(flow)
            negative = None if inner.literal is None else -inner.literal
            return replace(inner.each(_NUMBER_BYTES, "number"), literal=negative)
        if self._took("try"):
            return self._try(flow)
        if self._is("reduce", "foreach"):
            return self._suffixes(self._fold(flow), flow)
        term = self._suffixes(self._term(flow), flow)
        if not self._took("as"):
            # binds tighter than any operator: '1 + . as $x | ...' is '1 + (. as $x | ...)'
            return term
        outside = self._bind(term)
        body = self._pipe(
            flow if term.is_single else _Flow(term.count, flow.largest, term.count * flow.largest)
        )
        self._variables = outside
        return replace(body, is_single=body.is_single and term.is_single)

    def _try(self, flow: _Flow) -> _Flow:
        body = self._postfix(flow)
        if not self._took("catch"):
            return body
        caught = self._postfix(flow.each(flow.largest + body.largest + 200))
        single = body.is_single and caught.is_single
        return replace(_one_after_another(body, caught), is_single=single)

    def _fold(self, flow: _Flow) -> _Flow:
        """``reduce`` and ``foreach`` whose state is a number."""
        keyword = self._take().text
        source = self._suffixes(self._term(flow), flow)
        self._expect("as")
        outside = self._bind(source)
        self._expect("(")
        initial = self._pipe(flow)
        self._expect(";")
        states = _Flow(source.count, _NUMBER_BYTES, source.count * _NUMBER_BYTES, kind="number")
        update = self._pipe(states)
        if (
            initial.kind != "number"
            or update.kind != "number"
            or not (initial.is_single and update.is_single)
        ):
            raise Unbounded(f"the state of {keyword} may grow")
        if keyword == "foreach":
            states = replace(self._pipe(states) if self._took(";") else states, is_single=False)
        self._expect(")")
        self._spend(source.count * 10)
        self._variables = outside
        return (
            replace(flow.each(_NUMBER_BYTES, "number"), is_single=True)
            if keyword == "reduce"
            else states
        )

    def _bind(self, source: _Flow) -> dict[str, _Flow]:
        """Read the pattern behind ``as`` and the ``|`` behind it, if any; gives the variables outside."""
        outside = self._variables
        names: list[str] = []
        kind = source.kind if self._word.kind == "variable" else ""
        self._pattern(names)
        if self._is("?//"):
            raise Unreadable("alternatives of patterns", self._word.at)
        value = replace(source, kind=kind, is_place=False, literal=None)
        self._variables = {**outside, **dict.fromkeys(names, value)}
        if not self._is("("):
            self._expect("|")
        return outside

    def _pattern(self, names: list[str]) -> None:
        word = self._take()
        if word.kind == "variable":
            names.append(word.text)
        elif word.kind == "symbol" and word.text in ("[", "{"):
            more = True
            while more:
                if word.text == "{":
                    key = self._take()
                    if key.kind == "variable":
                        names.append(key.text)
                    elif key.kind not in ("name", "string"):
                        raise Unreadable(f"unexpected {key.text!r}", key.at)
                    if self._took(":"):
                        self._pattern(names)
                else:
                    self._pattern(names)
                more = self._took(",")
            self._expect("]" if word.text == "[" else "}")
        else:
            raise Unreadable(f"unexpected {word.text!r}", word.at)

    def _suffixes(self, term: _Flow, flow: _Flow) -> _Flow:
        while True:
            self._spend(term.count * _STEP_US)
            if self._word.kind == "field":
                self._take()
                term = replace(term, kind="", literal=None)
            elif self._took("?"):
                pass
            elif self._is("[") or (self._is(".") and self._words[self._next + 1].text == "["):
                self._took(".")
                term = self._brackets(term, flow)
            elif self._is(".") and self._words[self._next + 1].kind == "string":
                self._take()
                term = self._index(term, self._string(flow, "@text"))
            else:
                return term

    def _brackets(self, term: _Flow, flow: _Flow) -> _Flow:
        self._expect("[")
        if self._took("]"):
            items = term.total * _ITEM
            self._spend(items * _STEP_US)
            return _Flow(items, term.largest, term.total, is_single=False, is_place=term.is_place)
        ends = [] if self._is(":") else [self._pipe(flow)]
        is_slice = self._took(":")
        if is_slice and not self._is("]"):
            ends.append(self._pipe(flow))
        self._expect("]")
        if not is_slice:
            return self._index(term, ends[0])
        if not all(end.is_single for end in ends):
            raise Unbounded("a range with several ends")
        self._spend(term.total * _BYTE_US)
        return replace(term, kind="", is_place=False, literal=None)

    def _index(self, term: _Flow, key: _Flow) -> _Flow:
        is_place = term.is_place and (
            key.kind == "text" or (key.literal is not None and key.literal <= _MAX_INDEX)
        )
        if key.literal is None and key.kind != "text":
            # .[[...]] looks for a part
            self._spend(term.count * key.largest * term.largest * _COMPARISON_US)
        if key.is_single:
            return replace(term, kind="", is_place=is_place, literal=None)
        return replace(_joined(term, key), is_place=is_place)

    def _term(self, flow: _Flow) -> _Flow:
        word = self._word
        if word.kind == "string":
            return self._string(flow, "@text")
        self._take()
        if word.kind == "field":
            return replace(flow, is_single=True, kind="", is_place=True, literal=None)
        if word.kind == "number":
            return replace(
                flow.each(_NUMBER_BYTES, "number"), is_single=True, literal=float(word.text)
            )
        if word.kind == "format":
            is_text = self._word.kind == "string"
            return self._string(flow, word.text) if is_text else self._function(word.text, flow)
        if word.kind == "variable":
            value = self._variables.get(word.text)
            if value is None:
                raise Unbounded(f"{word.text} is not known")
            return replace(flow.each(value.largest, value.kind), is_single=True)
        if word.kind == "name":
            return self._call(word, flow)
        if word.text == "..":
            return self._recursion(flow)
        if word.text == ".":
            here = replace(flow, is_single=True, is_place=True, literal=None)
            return (
                self._index(here, self._string(flow, "@text"))
                if self._word.kind == "string"
                else here
            )
        if word.text == "(":
            inner = self._pipe(flow)
            self._expect(")")
            return inner
        if word.text == "[":
            return self._array(flow)
        if word.text == "{":
            return self._object(flow)
        raise Unreadable(f"unexpected {word.text!r}", word.at)

    def _recursion(self, flow: _Flow) -> _Flow:
        self._spend(flow.total * (2 * _ITEM))
        return _Flow(
            flow.total, flow.largest, flow.total * flow.largest, is_single=False, is_place=True
        )

    def _string(self, flow: _Flow, form: str) -> _Flow:
        function = _FUNCTIONS.get(form)
        if function is None:
            raise Unbounded(f"{form} is not analysed")
        result = replace(flow.each(2, "text"), is_single=True)
        while True:
            if self._word.kind != "string":
                raise Unreadable(f"unexpected {self._word.text!r}", self._word.at)
            piece = 6.0 * len(self._take().text)
            result = replace(
                result, largest=result.largest + piece, total=result.total + flow.count * piece
            )
            if not self._took(INSERT):
                break
            inserted = self._pipe(flow)
            self._expect(")")
            grown = replace(
                inserted,
                largest=inserted.largest * function.growth,
                total=inserted.total * function.growth,
            )
            result = _combined(result, grown)
        self._spend(result.total * _BYTE_US)
        return replace(result, kind="text")

    def _array(self, flow: _Flow) -> _Flow:
        alone = replace(flow, is_single=True)
        if self._took("]"):
            return alone.each(2)
        items = self._pipe(flow)
        self._expect("]")
        self._spend(items.count * _STEP_US)
        size = items.total + items.count + 2
        return replace(alone.each(0), largest=size, total=size + flow.count * 2)

    def _object(self, flow: _Flow) -> _Flow:
        result = replace(flow.each(2, "object"), is_single=True)
        while not self._took("}"):
            for part in self._member(flow):
                result = _combined(
                    result,
                    replace(part, largest=part.largest + 2, total=part.total + part.count * 2),
                )
            self._spend(result.count * _STEP_US)
            if not self._took(","):
                self._expect("}")
                break
        return replace(result, kind="object")

    def _member(self, flow: _Flow) -> tuple[_Flow, ...]:
        word = self._word
        if word.kind in ("string", "format"):
            form = self._take().text if word.kind == "format" else "@text"
            key = self._string(flow, form)
        elif self._took("("):
            key = self._pipe(flow)
            self._expect(")")
        elif word.kind in ("name", "number", "variable"):
            key = replace(flow.each(6.0 * len(self._take().text) + 2, "text"), is_single=True)
        else:
            raise Unreadable(f"unexpected {word.text!r}", word.at)
        if not self._took(":"):
            variable = self._variables.get(word.text)
            return key, replace(
                flow if variable is None else flow.each(variable.largest), is_single=True
            )
        value = self._operators(flow)
        while self._took("|"):
            value = _piped(value, self._operators(value))
        return key, value

    # Functions

    def _call(self, word: Token, flow: _Flow) -> _Flow:
        name = word.text
        if name == "if":
            return self._if(flow)
        if name in _KEYWORDS:
            raise Unbounded(f"{name} is not analysed")
        if not self._took("("):
            return self._function(name, flow)
        if name in _PER_ITEM_US:
            result = self._per_item(name, flow)
        elif name in _OF_NUMBERS:
            result = replace(self._pipe(flow), kind="")
            while self._took(";"):
                result = _joined(result, self._pipe(flow))
            result = result.each(_NUMBER_BYTES, "number")
        elif name == "range":
            result = self._range(flow)
        elif name in ("limit", "skip"):
            if not self._pipe(flow).is_single:
                raise Unbounded(f"an argument of {name} with several values")
            self._expect(";")
            result = self._pipe(flow)
        elif name in _TEXT | _PAIRWISE | _GENERATED or name in ("select", "del", "error", "join"):
            result = self._with_argument(name, flow, self._pipe(flow))
        else:
            raise Unbounded(f"{name} may not end, or may take any time")
        self._expect(")")
        return result

    def _function(self, name: str, flow: _Flow) -> _Flow:
        alone = replace(flow, is_single=True, is_place=False, literal=None)
        if name == "empty":
            return _Flow(0, 0, 0, is_place=True)
        if name in ("recurse", "paths"):
            return self._recursion(flow)
        if name == "flatten":
            self._spend(flow.total * flow.largest * (_ITEM * _BYTE_US) + flow.total * 6)
            return replace(alone, kind="")
        function = _FUNCTIONS.get(name)
        if function is None:
            raise Unbounded(f"{name} may not end, or may take any time")
        self._spend(flow.total * (_ITEM * function.item_us))
        if function.kind:
            return alone.each(40, function.kind)
        total = flow.total * function.growth + flow.count * 8
        return replace(alone, largest=flow.largest * function.growth + 8, total=total, kind="")

    def _per_item(self, name: str, flow: _Flow) -> _Flow:
        items = _Flow(flow.total * _ITEM, flow.largest, flow.total, is_place=True)
        if name == "add":
            items = replace(flow, is_place=True)
        elif name == "with_entries":
            items = replace(items, largest=items.largest + 28, total=items.total * 14)
        self._spend(items.count * _PER_ITEM_US[name])
        start = self._next
        results = self._pipe(items)
        if name in ("any", "all") and self._is(";"):  # any(generator; condition)
            self._next = start
            generated = self._pipe(flow)
            self._expect(";")
            results = self._pipe(generated)
        self._spend(results.count * _STEP_US)
        alone = replace(flow.each(5), is_single=True)
        if name in ("any", "all"):
            return alone
        if name in ("map", "map_values", "with_entries", "add"):
            size = results.total + results.count * 2 + 2
            return replace(alone, largest=size, total=size + flow.count * 2)
        self._spend(results.total * _COMPARISON_US)
        return replace(alone, largest=flow.largest * 3, total=flow.total * 3)

    def _with_argument(self, name: str, flow: _Flow, argument: _Flow) -> _Flow:
        alone = replace(flow, is_single=True, kind="", is_place=False, literal=None)
        if name in _GENERATED:
            return _Flow(argument.count + flow.count, argument.largest, argument.total)
        if name == "select":
            count = flow.count if argument.is_single else flow.count + argument.count
            total = flow.total if argument.is_single else count * flow.largest
            return _Flow(count, flow.largest, total, argument.is_single, flow.kind, is_place=True)
        if name == "del":
            self._spend(argument.count * 6 + flow.total * _BYTE_US)
            return alone
        if not argument.is_single:
            raise Unbounded(f"an argument of {name} with several values")
        if name == "error":
            return alone
        if name == "join":
            separators = argument.largest * _ITEM
            total = flow.total * (1 + separators) + flow.count * 2
            self._spend(flow.total * (_ITEM * 7) + total * _BYTE_US)
            return replace(alone, largest=flow.largest * (1 + separators) + 2, total=total)
        if name in _PAIRWISE:
            pairs = flow.total * argument.largest * (_ITEM * _ITEM)
            self._spend((pairs + flow.total + argument.total) * _COMPARISON_US)
        else:
            self._spend((flow.total + argument.total) * _BYTE_US)
        return replace(alone, largest=flow.largest * 6 + 8, total=flow.total * 6 + flow.count * 8)

    def _range(self, flow: _Flow) -> _Flow:
        ends = [self._pipe(flow).literal]
        if self._took(";"):
            ends.append(self._pipe(flow).literal)
        last = ends[-1]
        first = ends[0] if len(ends) > 1 else 0.0
        if last is None or first is None:
            raise Unbounded("a range without literal ends")
        if last - first > _MAX_INDEX:
            raise Unbounded(f"a range of more than {_MAX_INDEX} numbers")
        count = flow.count * max(1.0, last - first + 1)
        self._spend(count * _STEP_US)
        return _Flow(count, _NUMBER_BYTES, count * _NUMBER_BYTES, is_single=False, kind="number")

    def _if(self, flow: _Flow) -> _Flow:
        result = _Flow(0, 0, 0)
        remaining = flow
        is_single = True
        more = True
        while more:
            condition = self._pipe(remaining)
            self._expect("then")
            if not condition.is_single:
                is_single = False
                count = remaining.count + condition.count
                remaining = _Flow(count, flow.largest, count * flow.largest)
            result = (_either if is_single else _one_after_another)(result, self._pipe(remaining))
            more = self._took("elif")
        otherwise = (
            self._pipe(remaining) if self._took("else") else replace(remaining, is_single=True)
        )
        self._expect("end")
        return (_either if is_single else _one_after_another)(result, otherwise)


def _either(left: _Flow, right: _Flow) -> _Flow:
    """The values of one or the other."""
    return _Flow(
        max(left.count, right.count),
        max(left.largest, right.largest),
        max(left.total, right.total),
        left.is_single and right.is_single,
        left.kind if left.kind == right.kind else "",
    )


def _one_after_another(left: _Flow, right: _Flow) -> _Flow:
    return _Flow(
        left.count + right.count,
        max(left.largest, right.largest),
        left.total + right.total,
        is_single=False,
        kind=left.kind if left.kind == right.kind else "",
        is_place=left.is_place and right.is_place,
    )


def _piped(left: _Flow, right: _Flow) -> _Flow:
    return replace(
        right,
        is_single=left.is_single and right.is_single,
        is_place=left.is_place and right.is_place,
    )


def _product(count: float, values: _Flow) -> float:
    """Number of combinations, with those of one more expression."""
    return count if values.is_single else count * max(values.count, 1.0)


def _combined(whole: _Flow, part: _Flow) -> _Flow:
    """Values that hold a value of each: strings and objects."""
    count = _product(whole.count, part)
    size = whole.largest + part.largest
    is_single = whole.is_single and part.is_single
    return _Flow(count, size, whole.total + part.total if is_single else count * size, is_single)


def _joined(left: _Flow, right: _Flow) -> _Flow:
    """The pairs that two expressions on the same input give, each as large as the larger of the two."""
    largest = max(left.largest, right.largest)
    if left.is_single and right.is_single:
        return _Flow(max(left.count, right.count), largest, max(left.total, right.total))
    if left.is_single or right.is_single:
        count = right.count if left.is_single else left.count
    else:
        count = left.count * right.count
    return _Flow(count, largest, count * largest, is_single=False)


def _times(left: _Flow, right: _Flow) -> float:
    """A string times a number is the string many times over; bytes that are copied like this cost a tenth."""
    for operand in (left, right):
        if operand.literal is not None:
            return max(1.0, abs(operand.literal) * 0.1)
    if "object" in (left.kind, right.kind):
        return 1.0
    raise Unbounded("a string may be multiplied by a number from the input")
