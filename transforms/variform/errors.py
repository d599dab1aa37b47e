"""Errors of an expression: when it is compiled, and when it is evaluated.

::

    VariformError
    ├── CompileError   syntax, unknown function, wrong number of arguments; has a place
    └── EvalError      the expression fails on these bindings
        └── Unbound    a variable is not there; some functions turn this into ""
"""

from __future__ import annotations

from typing import Any


class VariformError(ValueError):
    """Root of all errors of this language."""


class CompileError(VariformError):
    """The expression cannot be used. ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int, column: int, suggestion: str | None = None) -> None:
        self.message = message
        self.line = line
        self.column = column
        self.suggestion = suggestion
        tail = f"; {suggestion}" if suggestion else ""
        super().__init__(f"line {line}, column {column}: {message}{tail}")


class EvalError(VariformError):
    """Evaluation failed. ``reason`` is a stable word (``badarg``, ``var_unbound``), ``details`` what goes with it."""

    def __init__(self, reason: str, message: str, **details: Any) -> None:
        self.reason = reason
        self.details = details
        super().__init__(message)


class Unbound(EvalError):
    """A variable has no value, or its path leads through something that is not a map."""

    def __init__(self, name: str) -> None:
        super().__init__("var_unbound", f"variable '{name}' has no value", var_name=name)


def badarg(function: str, message: str) -> EvalError:
    """The error of a function that was given what it does not take."""
    return EvalError("badarg", f"{function}: {message}", function=function)
