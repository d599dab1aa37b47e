"""A rule as it is sent and saved."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from pydantic import (
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from broker.config.model import Bounded
from broker.config.names import repeated
from broker.config.spec_problems import spec_problems
from broker.core.errors import Invalid, Problem
from rules.actions.spec import TYPES, AnyAction, Effect, in_our_form
from rules.jq.blocking import check
from rules.jq.program import ProgramError

_NAME = re.compile(r"[0-9A-Za-z][-0-9A-Za-z_.]*", re.ASCII)
MAX_NAME_BYTES = 254


class _Model(Bounded):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


# Maximum test cases of a rule, which run on every save.
MAX_CASES: Final = 100


class Expectation(_Model):
    """Expected outcome, one of three: these rows, no result, or an error (any, or one whose text holds this)."""

    rows: list[dict[str, Any]] | None = None
    no_result: Literal[True] | None = None
    error: Literal[True] | str | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Expectation:
        if len(self.model_fields_set) == 1 and self.outcome is not None:
            return self
        raise ValueError(
            'must be one of {"rows": [...]}, {"no_result": true}, {"error": true} and {"error": "text"}'
        )

    @property
    def outcome(self) -> str | None:
        """``rows``, ``no_result`` or ``error``, as the test API names them."""
        return next(
            (name for name in ("rows", "no_result", "error") if getattr(self, name) is not None),
            None,
        )


class TestCase(_Model):
    """A case: the columns of an event, as ``rules:test`` takes them, and what is expected."""

    __test__ = False  # not one of pytest's

    name: str = Field(min_length=1, max_length=200)
    event: dict[str, Any]
    expect: Expectation


class RuleSpec(_Model):
    """A rule: its SQL and what to do with the rows, in order.

    With the language jq, ``sql`` is what ``jq`` and ``from`` stand for.
    """

    model_config = ConfigDict(json_schema_extra=lambda schema: schema["required"].remove("sql"))

    name: str
    language: Literal["sql", "jq"] = "sql"
    sql: str = Field(description="The statement; left out only if the language is jq.")
    jq: str | None = None
    reads: list[str] = Field(default_factory=list, alias="from")
    actions: list[AnyAction] = Field(default_factory=list)
    enable: bool = True
    description: str = ""
    tests: list[TestCase] = Field(default_factory=list, max_length=MAX_CASES)

    @field_validator("tests")
    @classmethod
    def _tests(cls, value: list[TestCase]) -> list[TestCase]:
        if names := repeated(case.name for case in value):
            raise ValueError(f"two test cases are named {names[0]!r}")
        return value

    @field_validator("actions", mode="before")
    @classmethod
    def _in_our_form(cls, value: Any) -> Any:
        return [in_our_form(item) for item in value] if isinstance(value, list) else value

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if _NAME.fullmatch(value) and len(value) <= MAX_NAME_BYTES:
            return value
        raise ValueError(
            "must begin with a letter or digit and hold letters, digits, '-', '_' and '.' only"
        )

    @model_serializer(mode="wrap")
    def _as_sent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Members that only rules in jq have stay away from others."""
        members: dict[str, Any] = dump(self)
        by_alias = members.pop("from", [])
        reads = members.pop("reads", by_alias)
        if self.language == "jq":
            return {**members, "from": reads}
        for name in ("language", "jq"):
            members.pop(name, None)
        return members

    @property
    def decides(self) -> bool:
        """True if it may drop the message that it runs on."""
        return any(isinstance(action, Effect) for action in self.actions)


# Members of a shown rule that are left out when it is sent back.
READ_ONLY = (
    "state", "problem", "columns", "warnings", "metrics", "last_error", "from", "action_details", "version",
    "created_at", "updated_at",
)  # fmt: skip


def checked_name(spec: dict[str, Any]) -> str:
    """The name of a rule that may be wrong otherwise.

    Raises:
        Invalid: it is not a valid name.
    """
    return parse_spec({"name": spec.get("name"), "sql": ""}).name


def parse_spec(spec: dict[str, Any]) -> RuleSpec:
    """The spec of a rule, checked.

    Raises:
        Invalid: with every problem, each with a JSON pointer.
    """
    members = {key: value for key, value in spec.items() if key not in READ_ONLY}
    if is_jq(spec):
        members = with_sql({**members, "from": spec.get("from")})
    try:
        return RuleSpec.model_validate(members)
    except ValidationError as error:
        raise Invalid("the rule cannot be saved", spec_problems(error, RuleSpec, TYPES)) from None


# Rules written in jq alone: ``language: jq``, the program in ``jq``, what it reads in ``from``.


def is_jq(spec: Mapping[str, Any]) -> bool:
    """True if a spec or a request is in jq."""
    return spec.get("language") == "jq"


def with_sql(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec in jq with the statement that it stands for as ``sql``.

    Raises:
        Invalid: the program does not compile, or it reads nothing.
    """
    program = spec.get("jq")
    sources = spec.get("from", ())
    problems = []
    if spec.get("sql") not in (None, "", _standing_for(program, sources)):
        problems.append(
            Problem(
                "a rule in jq takes no sql",
                "/sql",
                suggestion="leave it out, or leave out language",
            )
        )
    if not isinstance(program, str) or not program.strip():
        problems.append(
            Problem(
                "expected a jq program", "/jq", suggestion="write . for all columns as they are"
            )
        )
    else:
        problems += _problems(program)
    if not _are_sources(sources):
        problems.append(Problem("expected a list of topic filters or events", "/from"))
    if problems or not isinstance(program, str):
        raise Invalid("the rule cannot be used", problems)
    return {**spec, "sql": statement(program, sources)}


def about_sources(problem: Problem) -> Problem:
    """A problem of the statement that a program stands for, at its place in the request body: all but the sources is
    checked."""
    return (
        replace(problem, pointer="/from", line=None, column=None)
        if problem.pointer == "/sql"
        else problem
    )


def statement(program: str, sources: Sequence[str]) -> str:
    """The SQL that a program stands for."""
    quoted = ", ".join('"' + source.replace('"', '""') + '"' for source in sources)
    text = program.replace("'", "''")
    return f"SELECT *, json_or_text(payload) AS payload JQ '{text}' FROM {quoted}"


def _standing_for(program: Any, sources: Any) -> str | None:
    """The statement, as a rule that is shown has it and that is sent back."""
    return (
        statement(program, sources) if isinstance(program, str) and _are_sources(sources) else None
    )


def _are_sources(sources: Any) -> bool:
    return (
        isinstance(sources, (list, tuple))
        and bool(sources)
        and all(isinstance(source, str) and source for source in sources)
    )


def _problems(program: str) -> list[Problem]:
    try:
        check(program)
    except ProgramError as error:
        return [Problem(error.sentence, "/jq", error.line, error.column)]
    return []
