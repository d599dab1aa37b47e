"""Rules: their SQL, its test and lineage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from ui.api.models.shapes import ObjectList


class RuleCode(BaseModel):
    """What a rule was compiled to."""

    language: Literal["python"]
    source: str


class RuleTest(BaseModel, extra="forbid"):
    """A rule's SQL and the columns of the event to run it on."""

    language: Literal["sql", "jq"] = "sql"
    jq: str | None = None
    reads: list[str] | None = Field(None, alias="from")
    sql: str | None = None
    event: dict[str, Any] = {}


class RuleCheck(BaseModel, extra="forbid"):
    """A rule, or its SQL alone, that need not be saved."""

    name: str = "check"
    language: Literal["sql", "jq"] = "sql"
    sql: str | None = Field(None, examples=['SELECT payload.t AS t, clientid FROM "meters/#" WHERE payload.t > 20'])
    jq: str | None = None
    reads: list[str] | None = Field(None, alias="from")
    actions: list[dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    enable: bool = True
    description: str = ""


class RuleExplain(BaseModel, extra="forbid"):
    """SQL, or the name of a rule, and the columns of the event to run it on."""

    sql: str | None = None
    name: str | None = None
    language: Literal["sql", "jq"] = "sql"
    jq: str | None = None
    reads: list[str] | None = Field(None, alias="from")
    event: dict[str, Any] = {}


class LineageOrigin(BaseModel):
    """A column of the event; ``path`` is a place in it, as ``tags[].k``."""

    column: str
    path: str | None
    type: str


class LineageColumn(BaseModel):
    """A column of the rows: its type, the SQL that makes it, and what that reads."""

    name: str
    type: str
    spark_type: str
    expression: str
    origins: list[LineageOrigin] = Field(alias="from")


class LineageCondition(BaseModel):
    """A condition that decides whether there is a row: ``WHERE`` or ``INCASE``."""

    clause: str
    expression: str
    origins: list[LineageOrigin] = Field(alias="from")


class RuleLineage(BaseModel):
    """What the columns of a rule's rows are computed from, and the conditions for a row."""

    rule: str
    columns: list[LineageColumn]
    conditions: list[LineageCondition]


class TemplateRender(BaseModel, extra="forbid"):
    """A template with ``${...}`` and the row that fills it."""

    template: str
    row: dict[str, Any] = {}


class FunctionList(ObjectList):
    """Functions of the rule language; ``origin`` is ``sluice`` or the plugin they are from."""

    plugins: list[dict[str, Any]]
