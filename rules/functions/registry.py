"""Functions by name, with the facts that compiler, type checker and documentation need of each.

A function is a Python function with annotated parameters and one decorator::

    @function(returns="string")
    def upper(s: Text) -> str:
        \"\"\"The text in upper case.\"\"\"
        return s.upper()

The annotations (``Text``, ``Int``, ...) say what arguments are accepted; the decorator generates a wrapper that checks
them at the price of one type test each. A parameter with a default is optional, ``*args`` takes any number. The same
checks run when a rule is saved on arguments that are literals, and a pure call of literals only is tried then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, Unpack, get_args, get_type_hints

from typing_extensions import TypedDict

from broker.core.errors import did_you_mean
from broker.core.examples import FunctionView, examples_in
from broker.core.schema import FieldType
from rules.functions.spark_form import SparkForm
from rules.sql.values import NUMBERS, EvaluationError, string, type_name

# The origin of functions that are part of the product; those of plugins name the plugin.
STANDARD_ORIGIN: Final = "sluice"

# Examples of each function, on the published message (``rules.event_catalogue``).
EXAMPLES: Final = Path(__file__).with_name("examples.txt")

# Placeholder of an argument whose value is known only when the rule runs.
NOT_LITERAL: Final = object()


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of a parameter: ``test`` is a Python expression that holds for values to be passed unchanged;
    ``convert`` turns others into the function's type, or raises ``ValueError`` with the expected type.

    In ``test`` the value is ``{v}`` and ``allowed`` is ``{a}``. ``shortcut`` is the conversion of the most usual other
    type in line, as test and expression: a call of ``convert`` costs 250 ns.
    """

    name: str
    test: str
    convert: Callable[[Any], Any]
    allowed: frozenset[str] = frozenset()
    shortcut: tuple[str, str] | None = None
    checks_literals: bool = False
    """Literals are converted when a rule is saved even where ``test`` holds: to compile them, so that errors are
    reported then."""

    def accepts(self, value: Any) -> bool:
        """True if the value is passed unchanged. For literals, when a rule is saved."""
        names = {"_numbers": NUMBERS, "allowed": self.allowed, "value": value}
        return bool(eval(self.test.format(v="value", a="allowed"), names))


# The arguments of a call as far as they are literals, else ``NOT_LITERAL``.
Literals = Sequence[Any]
# Problem of a call: the argument (from 0) and the reason; None when it is correct.
CallCheck = Callable[[Literals], "tuple[int, str] | None"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; ``kind`` is None when anything goes."""

    name: str
    kind: Kind | None
    is_optional: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A function rules can call. ``call`` checks its arguments.

    ``column`` names the event column passed as first argument (functions that look at the event);
    ``most`` is None when there is no upper bound of arguments. ``usage`` is the signature where it differs from
    the parameters. A pure function has the same result for the same arguments and no effect. One that may wait asks
    another system: a rule that calls it can hold up its caller.
    """

    name: str
    call: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    least: int
    most: int | None
    returns: FieldType
    documentation: str
    column: str | None = None
    usage: str | None = None
    check: CallCheck | None = None
    is_pure: bool = True
    may_wait: bool = False
    origin: str = STANDARD_ORIGIN
    category: str = ""
    """The module that it is from: ``strings``, ``times``."""
    spark: tuple[SparkForm, ...] = ()
    """Forms in Spark SQL, by the types of its arguments; without one it runs in the compiled rule only."""

    @property
    def signature(self) -> str:
        """``name(a, b[, c])`` for messages and documentation."""
        if self.usage is not None:
            return self.name + self.usage
        needed = [p.name for p in self.parameters[: self.least]]
        optional = [p.name for p in self.parameters[self.least :]]
        text = ", ".join(needed) + "".join(
            f"[, {name}]" if needed else f"[{name}]" for name in optional
        )
        return f"{self.name}({text}{'' if self.most is not None else ', ...'})".replace("(, ", "(")

    def takes(self, count: int) -> bool:
        """True if it can be called with this number of arguments."""
        return count >= self.least and (self.most is None or count <= self.most)

    def problem_with(self, position: int, value: Any) -> str | None:
        """Problem of a literal as argument ``position`` (from 0), or None."""
        kind = self.parameters[position].kind if position < len(self.parameters) else None
        if kind is None or (kind.accepts(value) and not kind.checks_literals):
            return None
        try:
            converted(value, kind, self.name, position + 1)
        except EvaluationError as error:
            return str(error)
        return None

    def problem_with_call(self, values: Literals) -> tuple[int | None, str] | None:
        """Problem of a call whose literals are each acceptable: the argument to blame (from 0), and the reason."""
        if self.check is not None and (problem := self.check(values)) is not None:
            position, text = problem
            return position, f"{self.name}: {text}"
        if self.is_pure and self.column is None and values and NOT_LITERAL not in values:
            try:
                self.call(*values)
            except EvaluationError as error:
                return None, str(error)
        return None

    def as_dict(self) -> FunctionView:
        """View for the API."""
        return {
            "name": self.name,
            "language": "sql",
            "category": self.category,
            "signature": self.signature,
            "returns": "any" if self.returns.name == "unknown" else self.returns.name,
            "documentation": self.documentation,
            "origin": self.origin,
            "examples": examples_in(EXAMPLES).get(self.name, []),
        }


class Functions:
    """The functions a node knows: the standard ones and those that features and plugins add."""

    def __init__(self, functions: Iterable[Function] = ()) -> None:
        self._by_name = {function.name: function for function in functions}
        self._when_tried: list[Callable[[], Iterable[Function]]] = []
        self._not_made: list[Callable[[], Iterable[Function]]] = []
        """Replacements that are made once a statement uses such a function: that takes as long as most trials."""

    def add(self, function: Function) -> None:
        """Make a function known; replaces one of that name."""
        self._by_name[function.name] = function

    def when_tried(self, stand_ins: Callable[[], Iterable[Function]]) -> None:
        """Register replacements of functions that are not pure: the same functions on a copy of the state."""
        self._when_tried.append(stand_ins)

    def trial(self) -> Functions:
        """A set of its own for SQL that is only tried: what it writes to memory does not stay."""
        tried = Functions(self._by_name.values())
        tried._not_made = self._when_tried
        return tried

    def get(self, name: str) -> Function | None:
        """The function of that name."""
        function = self._by_name.get(name)
        if self._not_made and function is not None and not function.is_pure:
            stand_ins = [stand_in for make in self._not_made for stand_in in make()]
            self._not_made = []
            self._by_name.update((stand_in.name, stand_in) for stand_in in stand_ins)
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Function]:
        return iter(sorted(self._by_name.values(), key=lambda function: function.name))

    def suggestion(self, name: str) -> str | None:
        """``did you mean 'upper'?`` for a name that is not known."""
        return did_you_mean(name, self._by_name)


# Filled by the decorator as the families are imported (see ``library``).
STANDARD: Final[dict[str, Function]] = {}


# Kinds of parameters


def _text(value: Any) -> str:
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is bytes:
        raise ValueError("valid UTF-8 text, not a binary string")
    raise ValueError(f"a string, not {type_name(value)}")


def _strict_text(value: Any) -> str:
    if type(value) is bytes:
        raise ValueError("valid UTF-8 text, not a binary string")
    raise ValueError(f"a string, not {type_name(value)}")


def _data(value: Any) -> bytes:
    if type(value) is str:
        return value.encode()
    raise ValueError(f"a string, not {type_name(value)}")


def _refuse(what: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        raise ValueError(f"{what}, not {type_name(value)}")

    return convert


def _map(value: Any) -> Any:
    from rules.sql.paths import decoded

    inner = decoded(value)
    if type(inner) is dict:
        return inner
    raise ValueError(f"a map or the JSON text of one, not {type_name(value)}")


# UTF-8 text; a boolean is taken as its name.
Text = Annotated[str, Kind("string", "type({v}) is str", _text)]
# UTF-8 text and nothing else.
StrictText = Annotated[str, Kind("string", "type({v}) is str", _strict_text)]
# Any string, as bytes.
Data = Annotated[
    bytes,
    Kind("string", "type({v}) is bytes", _data, shortcut=("type({v}) is str", "{v}.encode()")),
]
Int = Annotated[int, Kind("integer", "type({v}) is int", _refuse("an integer"))]
Float = Annotated[float, Kind("float", "type({v}) is float", _refuse("a float"))]
Number = Annotated[float, Kind("number", "type({v}) in _numbers", _refuse("a number"))]
Bool = Annotated[bool, Kind("boolean", "type({v}) is bool", _refuse("a boolean"))]
Items = Annotated[list[Any], Kind("array", "type({v}) is list", _refuse("an array"))]
# A map, or JSON text of one, decoded.
Members = Annotated[dict[str, Any], Kind("map", "type({v}) is dict", _map)]


def choice(*words: str) -> Kind:
    """A parameter kind: one of a few words."""
    allowed = frozenset(words)
    listed = ", ".join(f"'{word}'" for word in words)

    def convert(value: Any) -> Any:
        if type(value) is str and value in allowed:
            return value
        raise ValueError(
            f"one of {listed}, not {value!r}" if type(value) is str else f"one of {listed}"
        )

    return Kind("string", "type({v}) is str and {v} in {a}", convert, allowed)


def between(least: int, most: int) -> Kind:
    """A parameter kind: an integer in a range."""

    def convert(value: Any) -> Any:
        if type(value) is int:
            raise ValueError(f"an integer from {least} to {most}")
        raise ValueError(f"an integer from {least} to {most}, not {type_name(value)}")

    return Kind("integer", f"type({{v}}) is int and {least} <= {{v}} <= {most}", convert)


def at_least(least: int) -> Kind:
    """A parameter kind: an integer that is not too small."""

    def convert(value: Any) -> Any:
        if type(value) is int:
            raise ValueError(f"an integer of at least {least}")
        raise ValueError(f"an integer of at least {least}, not {type_name(value)}")

    return Kind("integer", f"type({{v}}) is int and {{v}} >= {least}", convert)


def converted(value: Any, kind: Kind, name: str, position: int) -> Any:
    """An argument that is not accepted as it is, as the function takes it.

    Raises:
        EvaluationError: names function and argument.
    """
    try:
        return kind.convert(value)
    except ValueError as error:
        raise EvaluationError(f"{name}: argument {position} must be {error}") from None


# The decorator


class Options(TypedDict, total=False):
    """A function's properties in addition to its parameters and its docstring."""

    returns: str | FieldType
    """The type of results; ``binary`` results may be any string."""
    name: str
    """The name in rules, where Python's differs."""
    column: str
    """The event column passed as first argument."""
    arity: tuple[int, int | None]
    """Least and most arguments, for functions that take ``*args``."""
    usage: str
    """The signature after the name, as ``([start,] len, list)``, where it differs from the parameters."""
    check: CallCheck
    """Looks at the literals of a call when a rule is saved."""
    is_pure: bool
    """Same result for the same arguments, and no effect."""
    may_wait: bool
    """Asks another system."""
    spark: tuple[SparkForm, ...]
    """The function in Spark SQL."""
    errors: tuple[type[Exception], ...]
    """Exceptions of the implementation when it cannot give a result; the text becomes that of an
    ``EvaluationError``."""


F = TypeVar("F", bound=Callable[..., Any])


def function(*, aliases: tuple[str, ...] = (), **options: Unpack[Options]) -> Callable[[F], F]:
    """Make a Python function callable from rules, also under the further names ``aliases``."""

    def register(implementation: F) -> F:
        registered = make(implementation, **options)
        for alias in (registered.name, *aliases):
            STANDARD[alias] = replace(registered, name=alias)
        return implementation

    return register


def make(implementation: Callable[..., Any], **options: Unpack[Options]) -> Function:
    """A ``Function`` of a Python function, for features that add theirs to a node's ``Functions``."""
    public = options.get("name") or implementation.__name__.rstrip("_")
    returns = options.get("returns", "unknown")
    hints = get_type_hints(implementation, include_extras=True)
    parameters = inspect.signature(implementation).parameters.values()
    described = tuple(
        Parameter(p.name, _kind_of(hints.get(p.name)), p.default is not p.empty)
        for p in parameters
        if p.kind is not p.VAR_POSITIONAL
    )
    is_variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    hidden = 1 if "column" in options else 0
    least = sum(not p.is_optional for p in described) - hidden
    most = None if is_variadic else len(described) - hidden
    kind = returns if isinstance(returns, FieldType) else FieldType(returns)
    call = _checked(
        public, implementation, described, is_variadic, hidden, kind, options.get("errors", ())
    )
    least, most = options.get("arity", (least, most))
    return Function(
        public, call, described[hidden:], least, most, kind, inspect.getdoc(implementation) or "",
        options.get("column"), options.get("usage"), options.get("check"), options.get("is_pure", True),
        options.get("may_wait", False), spark=options.get("spark", ()),
        category=implementation.__module__.rpartition(".")[2],
    )  # fmt: skip


def _kind_of(hint: Any) -> Kind | None:
    for extra in get_args(hint)[1:]:
        if isinstance(extra, Kind):
            return extra
    # Text | None = None: an optional parameter
    for member in get_args(hint):
        kind = _kind_of(member)
        if kind is not None:
            return kind
    return None


def _checked(
    name: str,
    implementation: Callable[..., Any],
    parameters: tuple[Parameter, ...],
    is_variadic: bool,
    hidden: int,
    returns: FieldType,
    errors: tuple[type[Exception], ...],
) -> Callable[..., Any]:
    """The implementation behind its argument checks, as one generated function (a loop over checks costs 3x)."""
    names = [p.name for p in parameters]
    head = [f"{p.name}=_absent" if p.is_optional else p.name for p in parameters] + [
        "*rest"
    ] * is_variadic
    lines: list[str] = []
    for position, parameter in enumerate(parameters):
        if parameter.is_optional:
            lines.append(
                f"    if {parameter.name} is _absent: return {_returned(returns, names[:position])}"
            )
        if parameter.kind is not None:
            lines += _check(
                parameter.name,
                parameter.kind,
                f"_k{position}, {name!r}, {position + 1 - hidden}",
                position,
            )
    lines.append("    return " + _returned(returns, names + ["*rest"] * is_variadic))
    if errors:
        translate = [
            "    except _errors as error:",
            f"        raise _failure({name!r}, str(error)) from None",
        ]
        lines = ["    try:", *("    " + line for line in lines), *translate]
    lines.insert(0, f"def {_identifier(name)}({', '.join(head)}):")
    namespace: dict[str, Any] = {
        "_absent": object(),
        "_call": implementation,
        "_converted": converted,
        "_errors": errors,
        "_failure": failure,
        "_numbers": NUMBERS,
        "_string": string,
    }
    for position, parameter in enumerate(parameters):
        namespace[f"_k{position}"] = parameter.kind
        namespace[f"_a{position}"] = parameter.kind.allowed if parameter.kind is not None else None
    exec(compile("\n".join(lines), f"<function {name}>", "exec"), namespace)
    wrapper: Callable[..., Any] = namespace[_identifier(name)]
    return wrapper


def _check(name: str, kind: Kind, blame: str, position: int) -> list[str]:
    """Lines that leave a parameter as the function takes it."""
    places = {"v": name, "a": f"_a{position}"}
    call = f"{name} = _converted({name}, {blame})"
    if kind.shortcut is None:
        return [f"    if not ({kind.test.format(**places)}): {call}"]
    test, expression = (text.format(**places) for text in kind.shortcut)
    return [
        f"    if {test}: {name} = {expression}",
        f"    elif not ({kind.test.format(**places)}): {call}",
    ]


def _returned(returns: FieldType, arguments: list[str]) -> str:
    call = f"_call({', '.join(arguments)})"
    return f"_string({call})" if returns.name == "binary" else call


def _identifier(name: str) -> str:
    return "fn_" + "".join(c if c.isalnum() else "_" for c in name)


def failure(name: str, text: str) -> EvaluationError:
    """The error of a function that cannot give a result."""
    return EvaluationError(f"{name}: {text}")
