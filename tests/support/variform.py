"""What the tables of variform have in common: the variables, and how a case is checked."""

from __future__ import annotations

from typing import Any

import pytest

from transforms.variform.compiler import compile_expression
from transforms.variform.errors import EvalError

E = EvalError
"""Stands for: evaluation fails."""

RAW = {
    "u": "alice",
    "n": 5,
    "f": 2.5,
    "t": True,
    "nul": None,
    "empty": "",
    "el": [],
    "em": {},
    "l": ["a", "b", "c"],
    "m": {"k": 1, "a b": 2, "1": "one", "_x": 3, "nul": None},
    "deep": {"a": {"b": "x"}},
    "multi": "a\r\nb",
}
"""What variables stand for in the tables."""


def evaluate(source: str, /, *, raw: bool = False, **bindings: Any) -> Any:
    """What an expression comes to, with these variables beside those of ``RAW``."""
    return compile_expression(source, raw=raw).evaluate({**RAW, **bindings})


def check(source: str, expected: Any, *, raw: bool = False) -> None:
    """That an expression comes to this, of this very type, or fails where that is ``E``."""
    if expected is E:
        with pytest.raises(EvalError):
            evaluate(source, raw=raw)
    else:
        got = evaluate(source, raw=raw)
        assert (got, type(got)) == (expected, type(expected))
