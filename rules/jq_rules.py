"""Rules written in jq alone: ``language: jq``, the program in ``jq``, what it reads in ``from``.

Such a rule is a statement whose JQ clause makes the rows of all columns of the event, with the payload decoded where it
is JSON. So everything that looks at rules (types, explain, tests, Spark) knows one language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.core.errors import Invalid, Problem
from rules.jq.blocking import check
from rules.jq.program import ProgramError


def is_jq(spec: Mapping[str, Any]) -> bool:
    """Whether a spec or a request is in jq."""
    return spec.get("language") == "jq"


def with_sql(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec in jq with the statement that it stands for as ``sql``.

    Raises:
        Invalid: the program does not compile, or it reads nothing.
    """
    program, sources = spec.get("jq"), spec.get("from", ())
    problems = []
    if spec.get("sql") not in (None, "", _standing_for(program, sources)):
        problems.append(Problem("a rule in jq has no sql", "/sql", suggestion="leave it out, or leave out language"))
    if not isinstance(program, str) or not program.strip():
        problems.append(Problem("a jq program is wanted", "/jq", suggestion="write . for all columns as they are"))
    else:
        problems += _problems(program)
    if not _are_sources(sources):
        problems.append(Problem("a list of topic filters or events is wanted", "/from"))
    if problems or not isinstance(program, str):
        raise Invalid("the rule cannot be used", problems)
    return {**spec, "sql": statement(program, sources)}


def about_sources(problem: Problem) -> Problem:
    """A problem of the statement that a program stands for, told of what was sent: all but the sources is checked."""
    return replace(problem, pointer="/from", line=None, column=None) if problem.pointer == "/sql" else problem


def statement(program: str, sources: Sequence[str]) -> str:
    """The SQL that a program stands for."""
    quoted = ", ".join('"' + source.replace('"', '""') + '"' for source in sources)
    text = program.replace("'", "''")
    return f"SELECT *, json_or_text(payload) AS payload JQ '{text}' FROM {quoted}"


def _standing_for(program: Any, sources: Any) -> str | None:
    """The statement, as a rule that is shown has it and that is sent back."""
    return statement(program, sources) if isinstance(program, str) and _are_sources(sources) else None


def _are_sources(sources: Any) -> bool:
    return isinstance(sources, (list, tuple)) and bool(sources) and all(isinstance(one, str) and one for one in sources)


def _problems(program: str) -> list[Problem]:
    try:
        check(program)
    except ProgramError as error:
        return [Problem(error.sentence, "/jq", error.line, error.column)]
    return []
