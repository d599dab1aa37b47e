"""Checks by SQL: ``SELECT ... [WHERE ...]`` in the rule language, without FROM. A message passes when a row comes out.

Every error is a failed check: a payload that is not JSON where a path is read, a comparison of kinds that do not
compare.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from broker.core.errors import Invalid, Problem
from broker.core.jsontext import JsonError
from broker.core.message import Message
from broker.core.objects import Reference
from broker.core.schema import SchemaLookup
from rules.functions.library import standard
from rules.functions.registry import Functions
from rules.functions.schemas import NOTHING, Waiting, schema_functions, schemas_in, waiting_of
from rules.jq.program import JqError, ProgramError, program_of
from rules.sql.compiler.compile import compile_for_messages
from rules.sql.compiler.program import RuleContext
from rules.sql.syntax.lexer import Token, tokens
from rules.sql.syntax.parser import parse
from rules.sql.syntax.tree import place_of
from rules.sql.values import EvaluationError
from schema_validation.checks import Check, CheckFailure
from schema_validation.serdes.base import Misfit

_SOURCE = ' FROM "#" '


@dataclass(frozen=True, slots=True)
class SqlCheck:
    """A compiled condition, or why it can never hold (``broken``)."""

    run: Callable[[Message], Any] | None
    broken: str = ""
    asked: Waiting = NOTHING
    """Requests that it may send to other processes."""
    named: frozenset[Reference] = frozenset()
    """The schemas and registries that its functions name."""

    def bind(self, index: int) -> Check:
        """The check of a message, at its place among the checks of a validation."""
        run = self.run
        broken = self.broken

        def failed(reason: str) -> CheckFailure:
            return CheckFailure(index, "sql", None, Misfit("", reason), False)

        def check(message: Message) -> CheckFailure | None:
            if run is None:
                return failed(broken)
            try:
                row = run(message)
            except JsonError as error:
                return failed(f"the payload is not JSON: {error}")
            except (EvaluationError, JqError) as error:
                return failed(f"the SQL fails: {error}")
            return failed("the condition of the SQL does not hold") if row is None else None

        return check


def check_functions(schemas: Callable[[], SchemaLookup]) -> Functions:
    """The functions that conditions may call: those of rules, over the schemas of the moment of a call."""
    functions = standard()
    for function in schema_functions(schemas):
        functions.add(function)
    return functions


def compile_sql_check(
    sql: str, functions: Functions, context: RuleContext, pointer: str, *, strict: bool
) -> SqlCheck:
    """Compile a condition.

    Args:
        sql: the text.
        functions: those it may call.
        context: node and clock, as for rules.
        pointer: place of the text in the request body, for problems.
        strict: refuse unknown functions; otherwise they make every message fail, as they would at run time.

    Raises:
        Invalid: the text does not parse, or has FROM or FOREACH.
    """
    try:
        tokens_of_sql = tokens(sql)
        _refuse_sources(tokens_of_sql)
        text, at = _with_source(sql, tokens_of_sql)
    except Invalid as error:
        raise _at(error, pointer, None) from None
    try:
        tree = parse(text)
    except Invalid as error:
        raise _at(error, pointer, at) from None
    try:
        _refuse_workers(tree)
        program = compile_for_messages(tree, functions, context)
        return SqlCheck(
            program.run, asked=waiting_of(tree, functions), named=frozenset(schemas_in(tree))
        )
    except Invalid as error:
        if strict:
            raise _at(error, pointer, at) from None
        return SqlCheck(None, str(error))


def _refuse_workers(tree: exp.Select) -> None:
    """A message waits for its checks, so a jq program must be known to end soon."""
    for call in tree.find_all(exp.Anonymous):
        if call.name == "jq" and call.expressions and isinstance(call.expressions[0], exp.Literal):
            try:
                program = program_of(call.expressions[0].name)
            except ProgramError:
                continue  # which compiling the statement says, with its place
            if not program.inline_bytes:
                message = f"jq: a message waits for its checks, and this program may not end: {program.why_not_inline}"
                raise Invalid(
                    "the check cannot be saved", [Problem(message, "/sql", *place_of(call))]
                )


def _refuse_sources(tokens: list[Token]) -> None:
    for token in tokens:
        if token.kind == "keyword" and token.text in ("FROM", "FOREACH"):
            message = (
                f"a check has no {token.text}: its messages are those of the validation's topics"
            )
            raise Invalid(
                "the check cannot be saved", [Problem(message, "/sql", token.line, token.column)]
            )


def _with_source(sql: str, tokens: list[Token]) -> tuple[str, tuple[int, int]]:
    """The text with the FROM that the language wants, and where it was put."""
    place = next(
        (token for token in tokens if token.kind == "keyword" and token.text == "WHERE"), tokens[-1]
    )
    lines = sql.split("\n")
    before = sum(len(line) + 1 for line in lines[: place.line - 1]) + place.column - 1
    return sql[:before] + _SOURCE + sql[before:], (place.line, place.column)


def _at(error: Invalid, pointer: str, inserted: tuple[int, int] | None) -> Invalid:
    """The error with its problems pointing into what was sent."""
    return Invalid(
        "the check cannot be saved",
        [_moved(problem, pointer, inserted) for problem in error.problems],
    )


def _moved(problem: Problem, pointer: str, inserted: tuple[int, int] | None) -> Problem:
    column = problem.column
    if inserted and column is not None and problem.line == inserted[0] and column > inserted[1]:
        column = max(inserted[1], column - len(_SOURCE))
    return replace(problem, pointer=pointer, column=column)
