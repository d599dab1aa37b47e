"""The functions there are, by name; families add theirs with a decorator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar, cast

from broker.core.kinds import counted
from transforms.variform.values import binary, integer, mapping, number, sequence, text

Implementation = Callable[..., Any]
F = TypeVar("F", bound=Implementation)
# ``check(function, value)``: the value as the function takes it. Raises ``EvalError``.
Check = Callable[[str, Any], Any]
_CHECKS: Mapping[str, Check | None] = {
    "str": text,
    "bytes": binary,
    "int": integer,
    "int | float": number,
    "list[Any]": sequence,
    "dict[str, Any]": mapping,
    "Any": None,
}
_RESULTS: Mapping[str, str] = {
    "str": "string", "bool": "boolean", "int": "integer", "int | float": "number", "list[Any]": "array",
    "list[str]": "array", "dict[str, Any]": "map",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Function:
    """One function; ``least`` and ``most`` count its arguments, each of which ``checks`` converts or refuses; None
    where any value is accepted.

    ``keeps_empty`` passes empty lists on as they are (elsewhere a variable bound to one reads as ""), and
    ``only_in_transformations`` is true for functions of transformations alone.
    """

    name: str
    call: Implementation
    least: int
    most: int
    checks: tuple[Check | None, ...]
    parameters: tuple[str, ...]
    returns: str
    category: str
    keeps_empty: bool
    only_in_transformations: bool
    help: str

    @property
    def arity(self) -> str:
        """The number of arguments, in words."""
        if self.least == self.most:
            return counted(self.least, "argument")
        return f"{self.least} to {self.most} arguments"

    @property
    def signature(self) -> str:
        """``name(a, b[, c])`` for documentation."""
        needed = ", ".join(self.parameters[: self.least])
        optional = self.parameters[self.least :]
        return f"{self.name}({needed}{''.join(f'[, {name}]' for name in optional)})"


# Every function by name. Filled when ``transforms.variform.functions`` is imported.
FUNCTIONS: dict[str, Function] = {}


def function(
    name: str, *, keeps_empty: bool = False, only_in_transformations: bool = False
) -> Callable[[F], F]:
    """Register an implementation, which raises ``EvalError`` for values that it does not accept.

    Its parameters say how many arguments there are, and their annotations what each must be: ``str``, ``bytes``
    (also given as text), ``int``, ``int | float``, ``list[Any]``, ``dict[str, Any]``, or ``Any``.
    """

    def add(implementation: F) -> F:
        code = cast(FunctionType, implementation)
        parameters = code.__code__.co_varnames[: code.__code__.co_argcount]
        FUNCTIONS[name] = Function(
            name,
            implementation,
            len(parameters) - len(code.__defaults__ or ()),
            len(parameters),
            tuple(_CHECKS[code.__annotations__[parameter]] for parameter in parameters),
            parameters,
            _RESULTS.get(code.__annotations__["return"], "any"),
            code.__module__.rpartition("functions_")[2],
            keeps_empty,
            only_in_transformations,
            (code.__doc__ or "").strip() + " Only in transformations." * only_in_transformations,
        )
        return implementation

    return add
