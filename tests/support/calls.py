"""Calling functions of rules the way rules do: as SQL, compiled, on the columns of one event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from broker.core.errors import Invalid, Problem
from rules.functions.library import standard
from rules.functions.registry import Functions
from rules.sql.compiler.columns import Event
from rules.sql.compiler.compile import compile_for_events
from rules.sql.compiler.program import RuleContext
from rules.sql.syntax.parser import parse
from rules.sql.values import UNDEFINED, EvaluationError

NOW_MS = 1_700_000_000_123
_SURROUNDINGS = RuleContext("n1", {"rule_id": "r1"}, lambda: NOW_MS)


def evaluate(expression: str, functions: Functions | None = None, /, **columns: Any) -> Any:
    """The value of an expression on an event with these columns.

    Raises:
        Invalid: the expression cannot be saved.
        EvaluationError: it cannot be evaluated.
    """
    program = compile_for_events(
        parse(f'SELECT {expression} AS x FROM "#"'), functions or standard(), _SURROUNDINGS
    )
    row = program.run(Event(columns))
    assert isinstance(row, Mapping)
    return row.get("x", UNDEFINED)


def same(got: Any, want: Any) -> bool:
    """Equality by value and type, at any depth: 1 is not 1.0, true is not 1."""
    if type(got) is not type(want):
        return False
    if isinstance(want, dict):
        return got.keys() == want.keys() and all(same(got[key], want[key]) for key in want)
    if isinstance(want, list):
        return len(got) == len(want) and all(map(same, got, want))
    return bool(got == want)


def check(expression: str, want: Any, /, **columns: Any) -> None:
    """Hold the value of an expression against what is wanted."""
    got = evaluate(expression, **columns)
    assert same(got, want), f"{expression} gives {got!r}, not {want!r}"


def fails(expression: str, message: str, /, **columns: Any) -> None:
    """An expression must be refused, when saved or when run, with this in the message."""
    with pytest.raises((Invalid, EvaluationError)) as caught:
        evaluate(expression, **columns)
    error = caught.value
    text = (
        "; ".join(problem.message for problem in error.problems)
        if isinstance(error, Invalid)
        else str(error)
    )
    assert message in text, f"{expression} is refused with {text!r}"


def refused(expression: str, functions: Functions | None = None, /) -> tuple[Problem, ...]:
    """What is said of an expression when it is saved."""
    with pytest.raises(Invalid) as caught:
        compile_for_events(
            parse(f'SELECT {expression} AS x FROM "#"'), functions or standard(), _SURROUNDINGS
        )
    return caught.value.problems
