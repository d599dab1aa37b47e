"""Rules written in jq alone: ``language: jq``, the program in ``jq``, what it reads in ``from``.

Such a rule is a statement whose JQ clause makes the rows of all columns of the event, with the payload decoded where it
is JSON. So everything that looks at rules (types, explain, tests, Spark) knows one language.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from broker.core.errors import Invalid, Problem
from rules.jq.evaluation import PROGRAMS
from rules.jq.program import ProgramError

LANGUAGES: Final = ("sql", "jq")


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
    if not isinstance(program, str) or not program.strip():
        problems.append(Problem("a jq program is wanted", "/jq", suggestion="write . for all columns as they are"))
    else:
        problems += _problems(program)
    if not _are_sources(sources):
        problems.append(Problem("a list of topic filters or events is wanted", "/from"))
    if problems or not isinstance(program, str):
        raise Invalid("the rule cannot be used", problems)
    return {**spec, "sql": statement(program, sources)}


def statement(program: str, sources: Sequence[str]) -> str:
    """The SQL that a program stands for."""
    quoted = ", ".join('"' + source.replace('"', '""') + '"' for source in sources)
    text = program.replace("'", "''")
    return f"SELECT *, json_or_text(payload) AS payload JQ '{text}' FROM {quoted}"


def _are_sources(sources: Any) -> bool:
    return isinstance(sources, (list, tuple)) and bool(sources) and all(isinstance(one, str) and one for one in sources)


def _problems(program: str) -> list[Problem]:
    try:
        PROGRAMS.get(program)
    except ProgramError as error:
        return [Problem(error.sentence, "/jq", error.line, error.column)]
    return []
