"""Expressions over clients in settings: checked when the settings are read, compiled once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from transforms.variform.compiler import Expression, compile_expression
from transforms.variform.errors import CompileError, EvalError


def _checked(source: str) -> str:
    try:
        compile_expression(source)
    except CompileError as error:
        raise ValueError(f"is not a valid expression: {error}") from None
    return source


# The text of a variform expression that compiles.
ExpressionText = Annotated[str, AfterValidator(_checked)]


class Condition:
    """Expressions that must all give exactly ``true``."""

    def __init__(self, sources: list[str]) -> None:
        self._expressions: list[Expression] = [compile_expression(source) for source in sources]

    def holds(self, bindings: Mapping[str, Any]) -> tuple[bool, str | None]:
        """True if they hold; and the error of an expression that failed: it does not hold either."""
        for expression in self._expressions:
            try:
                if expression.evaluate(bindings) != "true":
                    return False, None
            except EvalError as error:
                return False, f"{expression.source}: {error}"
        return True, None
