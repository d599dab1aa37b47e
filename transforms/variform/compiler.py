"""A tree to one Python function.

The generated source is flat: each part that is evaluated conditionally (the arguments of ``coalesce``, ``is_empty`` and
``iif``) becomes a function of its own, so that the nesting of an expression never meets the limits of Python's own
compiler. For ``concat([topic, '/', payload.t])`` it reads::

    def whole(b):
        try:
            v1 = b["topic"]
        except (KeyError, TypeError, IndexError):
            raise Unbound("topic") from None
        if not v1 and (v1 is None or v1.__class__ is list): v1 = ""
        ...
        v3 = g_concat(c_sequence("concat", [v1, "/", v2]))
        return v3 if v3.__class__ is str else render(v3)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broker.core.kinds import counted
from transforms.variform import functions
from transforms.variform.errors import CompileError, EvalError, Unbound, VariformError
from transforms.variform.lexer import error_at, place
from transforms.variform.parser import Array, Call, Literal, Node, Variable, parse
from transforms.variform.registry import Check, Function
from transforms.variform.time_limit import FEW, check_time, ends_ns, time_limit
from transforms.variform.values import is_empty, name_of, render

Bindings = Mapping[str, Any]
Evaluate = Callable[[Bindings], Any]

# Calls of an expression that are not timed one by one: what runs it does that for all.
_UNSEEN_CALLS: Final = 2
_CHECK: Final = "    if ends_ns(): check_time()"
_MAY_GIVE_BYTES = frozenset({"base64_decode", "hexstr2bin"})


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled expression.

    ``evaluate(bindings)`` gives text, or with ``raw`` the value with its type; it raises ``EvalError``. ``roots`` are
    the first names of all variables: bindings need hold no others. ``may_give_bytes`` is true where a function in it
    can yield bytes that are not text.
    """

    source: str
    evaluate: Evaluate
    roots: frozenset[str]
    may_give_bytes: bool


def compile_expression(
    source: str, *, raw: bool = False, in_transformations: bool = False
) -> Expression:
    """Compile an expression.

    Args:
        source: the text.
        raw: give the value as it is; otherwise as text, where a list or a map is an error.
        in_transformations: also know ``json_encode`` and ``json_decode``.

    Raises:
        CompileError: with line, column and, for unknown functions, a suggestion.
    """
    generator = _Generator(source, in_transformations=in_transformations)
    generator.whole(parse(source), raw=raw)
    code = "\n".join(generator.lines)
    namespace: dict[str, Any] = {
        **generator.names,
        "Unbound": Unbound,
        "is_empty": is_empty,
        "holds": _holds,
        "or_empty": _or_empty,
        "any_is": _any_is,
        "one_of": _one_of,
        "only_list": _only_list,
        "first_filled": _first_filled,
        "render": render,
        "failed": _failed,
        "check_time": check_time,
        "ends_ns": ends_ns,
        "VariformError": VariformError,
    }
    # the source is generated here, from a checked tree
    exec(compile(code, "<variform>", "exec"), namespace)
    evaluate = namespace["whole"]
    return Expression(
        source,
        time_limit()(evaluate) if generator.calls > FEW else evaluate,
        frozenset(generator.roots),
        bool(generator.called & _MAY_GIVE_BYTES),
    )


class _Generator:
    """Writes the function ``whole``, and ``f0``, ``f1``, ... for parts of it."""

    def __init__(self, source: str, *, in_transformations: bool) -> None:
        self._source = source
        self._in_transformations = in_transformations
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self.roots: set[str] = set()
        self.called: set[str] = set()
        self.calls = self._functions = self._values = 0

    def whole(self, node: Node, *, raw: bool) -> None:
        """Write ``whole``, the function of the expression: what Python itself raises in it is an ``EvalError``."""
        body: list[str] = []
        result = self._node(node, body, keep=raw, tail=raw)
        if raw:
            body.append(f"    return {result}")
        else:
            if isinstance(node, Call) and node.name == "coalesce":
                result = f"one_of({result})"
            body += [f"    r = {result}", "    return r if r.__class__ is str else render(r)"]
        self.lines += [
            "def whole(b):",
            "    try:",
            *("    " + line for line in body),
            "    except VariformError:",
            "        raise",
            "    except Exception as error:",
            "        raise failed(error) from error",
        ]

    def function(self, node: Node, *, tail: bool) -> str:
        """Write a function for a node, and give its name. ``tail``: its value is the raw result."""
        name = f"f{self._functions}"
        self._functions += 1
        body: list[str] = []
        result = self._node(node, body, keep=tail, tail=tail)
        self.lines += [f"def {name}(b):", *body, f"    return {result}"]
        return name

    def _node(self, node: Node, body: list[str], *, keep: bool, tail: bool = False) -> str:
        """Write what computes a node, and give the Python expression of its value."""
        if isinstance(node, Literal):
            return self._constant(node.value)
        if isinstance(node, Variable):
            return self._variable(node, body, keep=keep)
        if isinstance(node, Array):
            return "[" + ", ".join([self._node(item, body, keep=keep) for item in node.items]) + "]"
        return self._call(node, body, tail=tail)

    def _constant(self, value: Any) -> str:
        if isinstance(value, (str, bool)) or abs(value) < 2**31:
            return repr(value)
        return self._name_of(f"k{len(self.names)}", value)

    def _variable(self, node: Variable, body: list[str], *, keep: bool) -> str:
        self.roots.add(node.path[0])
        self._values += 1
        name = f"v{self._values}"
        steps = "".join(f"[{key!r}]" for key in node.path)
        body += [
            "    try:",
            f"        {name} = b{steps}",
            "    except (KeyError, TypeError, IndexError):",
            f"        raise Unbound({'.'.join(node.path)!r}) from None",
        ]
        if keep:
            body.append(f"    if {name} is None: {name} = ''")
        else:
            body.append(
                f"    if not {name} and ({name} is None or {name}.__class__ is list): {name} = ''"
            )
        return name

    def _call(self, node: Call, body: list[str], *, tail: bool) -> str:
        if node.name in functions.LAZY:
            least, most, *_ = functions.LAZY[node.name]
            self._check_count(node, least, most, counted(least, "argument"))
            write = {
                "and": self._and,
                "coalesce": self._coalesce,
                "iif": self._iif,
                "is_empty": self._is_empty,
                "or": self._or,
            }[node.name]
            return write(node, body, tail)
        function = self._find(node)
        self._check_count(node, function.least, function.most, function.arity)
        self.called.add(function.name)
        arguments = [
            self._node(argument, body, keep=function.keeps_empty) for argument in node.arguments
        ]
        checked = [
            self._checked(function.name, check, argument)
            for check, argument in zip(function.checks, arguments, strict=False)
        ]
        self.calls += 1
        if self.calls > _UNSEEN_CALLS:
            body.append(_CHECK)
        return self._assign(
            body, f"{self._name_of('g_' + function.name, function.call)}({', '.join(checked)})"
        )

    def _checked(self, function: str, check: Check | None, argument: str) -> str:
        if check is None:
            return argument
        return f"{self._name_of('c_' + check.__name__, check)}({function!r}, {argument})"

    def _and(self, node: Call, body: list[str], tail: bool) -> str:
        return self._assign(body, f"not any_is(False, {self._parts(node.arguments)}, b)")

    def _or(self, node: Call, body: list[str], tail: bool) -> str:
        return self._assign(body, f"any_is(True, {self._parts(node.arguments)}, b)")

    def _parts(self, nodes: Sequence[Node]) -> str:
        """A tuple of functions, one for each node."""
        return f"({', '.join([self.function(node, tail=False) for node in nodes])},)"

    def _coalesce(self, node: Call, body: list[str], tail: bool) -> str:
        only = node.arguments[0]
        if len(node.arguments) == 1 and not isinstance(only, Array):
            part = self.function(only, tail=False)
            return self._assign(body, f"only_list(or_empty({part}, b))")
        items = (
            only.items if len(node.arguments) == 1 and isinstance(only, Array) else node.arguments
        )
        return self._assign(body, f"first_filled({self._parts(items)}, b)")

    def _iif(self, node: Call, body: list[str], tail: bool) -> str:
        condition = self.function(node.arguments[0], tail=False)
        then, otherwise = (self._branch(argument, tail) for argument in node.arguments[1:])
        return self._assign(body, f"{then} if holds(or_empty({condition}, b)) else {otherwise}")

    def _branch(self, node: Node, tail: bool) -> str:
        return (
            self._constant(node.value)
            if isinstance(node, Literal)
            else f"{self.function(node, tail=tail)}(b)"
        )

    def _is_empty(self, node: Call, body: list[str], tail: bool) -> str:
        part = self.function(node.arguments[0], tail=False)
        return self._assign(body, f"is_empty(or_empty({part}, b))")

    def _assign(self, body: list[str], value: str) -> str:
        """Keep the order of evaluation: a call is made at its place, and its value named."""
        self._values += 1
        body.append(f"    v{self._values} = {value}")
        return f"v{self._values}"

    def _name_of(self, name: str, value: Any) -> str:
        """A global name of the generated source that stands for a value."""
        name = name.replace(".", "_")
        self.names[name] = value
        return name

    def _find(self, node: Call) -> Function:
        function = functions.find(node.name, in_transformations=self._in_transformations)
        if function is not None:
            return function
        close = functions.suggestion(node.name, in_transformations=self._in_transformations)
        module, dot, _ = node.name.rpartition(".")
        if dot and module not in functions.MODULES:
            raise error_at(
                self._source,
                node.at,
                f"no module '{module}'; functions are in 'maps' and 'lists'",
                close,
            )
        raise error_at(self._source, node.at, f"no function '{node.name}'", close)

    def _check_count(self, node: Call, least: int, most: int, arity: str) -> None:
        count = len(node.arguments)
        if not least <= count <= most:
            line, column = place(self._source, node.at)
            raise CompileError(f"function '{node.name}' takes {arity}, not {count}", line, column)


def _failed(error: Exception) -> EvalError:
    return EvalError(
        "badarg", f"evaluation failed: {error}" if str(error) else f"evaluation failed: {error!r}"
    )


def _or_empty(part: Evaluate, bindings: Bindings) -> Any:
    try:
        return part(bindings)
    except Unbound:
        return ""


def _holds(value: Any) -> bool:
    """A boolean as it is, anything else when it is not empty: the text ``false`` and 0 hold."""
    return value if value.__class__ is bool else not is_empty(value)


def _any_is(wanted: bool, parts: tuple[Evaluate, ...], bindings: Bindings) -> bool:
    """True if a part has this truth value: a boolean or its text; absent values and "" are false."""
    for part in parts:
        value = _or_empty(part, bindings)
        if value.__class__ is not bool:
            if value not in ("true", "false", ""):
                raise EvalError("badarg", f"and, or: expected a boolean, got {name_of(value)}")
            value = value == "true"
        if value is wanted:
            return True
    return False


def _first_filled(parts: tuple[Evaluate, ...], bindings: Bindings) -> Any:
    for part in parts:
        value = _or_empty(part, bindings)
        if not is_empty(value):
            return value
    return ""


def _one_of(value: Any) -> Any:
    """Result of ``coalesce`` as text: of a list, the first item that is not empty, as with a list as its argument."""
    return (
        next((item for item in value if not is_empty(item)), "")
        if value.__class__ is list
        else value
    )


def _only_list(value: Any) -> Any:
    if value.__class__ is list:
        return _one_of(value)
    if is_empty(value):
        return ""
    raise EvalError("coalesce_badarg", f"coalesce: expected a list, got {name_of(value)}")
