"""Runs of test cases: the outcome of each, and its differences from the expected one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from broker.core.kinds import counted
from broker.core.objects import Spec
from rules.spec import Expectation, TestCase
from rules.trials.tester import RuleOutcome


class CaseResult(TypedDict):
    """A test case that was run: its ``outcome``, null where the event cannot be used, and how it differs from the one
    that was expected, where it does."""

    name: str
    passed: bool
    outcome: RuleOutcome | None
    difference: NotRequired[str]


class CasesReport(TypedDict):
    """The test cases of a rule that were run, and how many passed and failed."""

    passed: int
    failed: int
    cases: list[CaseResult]


# Result of the SQL for an event, as ``rules:test`` returns it; raises ``Invalid`` if the event is not valid.
Try = Callable[[Spec], RuleOutcome]

_MOST_DIFFERENCES = 5


def run_cases(cases: Sequence[TestCase], run: Try) -> list[CaseResult]:
    """Each case with ``passed``, the ``outcome`` it had, and where it differs ``difference`` in words."""
    return [_run(case, run) for case in cases]


def report(cases: Sequence[CaseResult]) -> CasesReport:
    """The answer about cases that were run."""
    passed = sum(case["passed"] for case in cases)
    return {"passed": passed, "failed": len(cases) - passed, "cases": list(cases)}


def refuse_failures(name: str, cases: Sequence[CaseResult]) -> None:
    """Raise ``Invalid`` with a problem for each case that failed."""
    problems = [
        Problem(f"test case {case['name']!r}: {case['difference']}", f"/tests/{position}")
        for position, case in enumerate(cases)
        if not case["passed"]
    ]
    if problems:
        headline = (
            f"rule {name!r} fails {len(problems)} of its {len(cases)} test cases and was not saved"
        )
        raise Invalid(headline, problems, code="test_case_failed")


def _run(case: TestCase, run: Try) -> CaseResult:
    try:
        outcome = run(case.event)
    except Invalid as error:
        return {
            "name": case.name,
            "passed": False,
            "outcome": None,
            "difference": f"the event cannot be used: {error}",
        }
    difference = _difference(case.expect, outcome)
    result: CaseResult = {"name": case.name, "passed": difference is None, "outcome": outcome}
    return result if difference is None else {**result, "difference": difference}


def _difference(expected: Expectation, outcome: RuleOutcome) -> str | None:
    """Differences of an outcome, None where it does not differ."""
    if expected.rows == [] and "reason" in outcome:
        return None  # no array to walk gives no rows
    if expected.outcome != outcome["outcome"]:
        return f"expected {_words(expected)}, got {_got(outcome)}"
    if isinstance(expected.error, str):
        message = outcome["error"]["message"]
        return (
            None
            if expected.error in message
            else f"expected an error with {expected.error!r}, got {message!r}"
        )
    if expected.rows is None:
        return None
    differences = list(_differences(expected.rows, outcome["rows"], "rows"))
    more = len(differences) - _MOST_DIFFERENCES
    return (
        "; ".join(differences[:_MOST_DIFFERENCES] + ([f"and {more} more"] if more > 0 else []))
        or None
    )


def _differences(expected: Any, got: Any, where: str) -> Iterator[str]:
    """Each place in which two values differ. Numbers are compared by value; true is not a number."""
    if isinstance(expected, dict) and isinstance(got, dict):
        for key in {**expected, **got}:
            if key not in got:
                yield f"{where}.{key} is missing, expected {_text(expected[key])}"
            elif key not in expected:
                yield f"{where}.{key} is {_text(got[key])}, which was not expected"
            else:
                yield from _differences(expected[key], got[key], f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(got, list):
        if len(expected) != len(got):
            yield f"{where} has {len(got)} instead of {len(expected)}: {_text(got)}"
        else:
            for position, (item, other) in enumerate(zip(expected, got, strict=True)):
                yield from _differences(item, other, f"{where}[{position}]")
    elif expected != got or isinstance(expected, bool) != isinstance(got, bool):
        yield f"{where} is {_text(got)}, expected {_text(expected)}"


def _words(expected: Expectation) -> str:
    if expected.rows is not None:
        return counted(len(expected.rows), "row")
    return "no result" if expected.no_result else "an error"


def _got(outcome: RuleOutcome) -> str:
    if outcome["outcome"] == "rows":
        return f"rows {_text(outcome['rows'])}"
    return (
        "no result"
        if outcome["outcome"] == "no_result"
        else f"the error {outcome['error']['message']!r}"
    )


def _text(value: Any) -> str:
    text = jsontext.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"
