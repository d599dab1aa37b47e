"""A rule as it is sent and saved."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)  # fmt: skip

from broker.config.spec_problems import spec_problems
from broker.core.errors import Invalid
from rules.actions.spec import TYPES, AnyAction, Effect, in_our_form
from rules.cases import MAX_CASES, TestCase
from rules.jq_rules import is_jq, with_sql

_NAME = re.compile(r"[0-9A-Za-z][-0-9A-Za-z_.]*", re.ASCII)
MAX_NAME_BYTES = 254


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class RuleSpec(_Model):
    """A rule: its SQL and what to do with the rows, in order.

    With the language jq, ``sql`` is what ``jq`` and ``from`` stand for (``rules.jq_rules``).
    """

    name: str
    language: Literal["sql", "jq"] = "sql"
    sql: str
    jq: str | None = None
    reads: list[str] = Field(default_factory=list, alias="from")
    actions: list[AnyAction] = Field(default_factory=list)
    enable: bool = True
    description: str = ""
    tests: list[TestCase] = Field(default_factory=list, max_length=MAX_CASES)

    @field_validator("tests")
    @classmethod
    def _tests(cls, value: list[TestCase]) -> list[TestCase]:
        names = [case.name for case in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two test cases are named {name!r}")
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
        raise ValueError("must begin with a letter or digit and hold letters, digits, '-', '_' and '.' only")

    @model_serializer(mode="wrap")
    def _as_sent(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Members that only rules in jq have stay away from others."""
        members: dict[str, Any] = dump(self)
        reads = members.pop("reads", [])
        if self.language == "jq":
            return {**members, "from": reads}
        for name in ("language", "jq"):
            members.pop(name, None)
        return members

    @property
    def decides(self) -> bool:
        """Whether it may drop the message that it runs on."""
        return any(isinstance(action, Effect) for action in self.actions)


READ_ONLY = (
    "state",
    "problem",
    "columns",
    "warnings",
    "metrics",
    "last_error",
    "from",
    "action_details",
    "version",
    "created_at",
    "updated_at",
)
"""Members of a shown rule that are left out when it is sent back."""


def checked_name(spec: dict[str, Any]) -> str:
    """The name of a rule that may be wrong otherwise.

    Raises:
        Invalid: it is no name.
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
