"""The functions there are, by name; families add theirs with a decorator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Implementation = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Function:
    """One function; ``least`` and ``most`` count its arguments.

    ``keeps_empty`` passes empty lists on as they are (elsewhere a variable bound to one reads as ""), and
    ``only_in_transformations`` is true for what exists nowhere else.
    """

    name: str
    call: Implementation
    least: int
    most: int
    keeps_empty: bool
    only_in_transformations: bool
    help: str

    @property
    def arity(self) -> str:
        """How many arguments it takes, as a person says it."""
        if self.least == self.most:
            return f"{self.least} argument{'' if self.least == 1 else 's'}"
        return f"{self.least} to {self.most} arguments"


FUNCTIONS: dict[str, Function] = {}
"""Every function by name. Filled when ``transforms.variform.functions`` is imported."""


def function(
    name: str,
    least: int,
    most: int | None = None,
    *,
    keeps_empty: bool = False,
    only_in_transformations: bool = False,
) -> Callable[[Implementation], Implementation]:
    """Register an implementation. It takes values in order and raises ``EvalError`` for what it does not take."""

    def add(implementation: Implementation) -> Implementation:
        FUNCTIONS[name] = Function(
            name,
            implementation,
            least,
            least if most is None else most,
            keeps_empty,
            only_in_transformations,
            (implementation.__doc__ or "").strip(),
        )
        return implementation

    return add
