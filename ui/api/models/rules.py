"""Rules: their SQL, its test and lineage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from ui.api.models.shapes import Page


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


class FunctionExample(BaseModel):
    """A call, and what it gives; SQL on the example of the event `message.publish`."""

    expression: str
    result: Any


class LanguageFunction(BaseModel):
    """A function of rules (`sql`) or transformations (`variform`). `origin` is `sluice` or the plugin it is from."""

    name: str
    language: Literal["sql", "variform"]
    category: str
    signature: str
    returns: str
    documentation: str
    origin: str
    examples: list[FunctionExample]


class FunctionPlugin(BaseModel):
    """An installed package with functions for rules; `problems` are those that could not be loaded, and why."""

    name: str
    package: str
    version: str
    functions: list[str]
    problems: list[str]


class FunctionList(Page[LanguageFunction]):
    """Functions of rules and transformations."""

    plugins: list[FunctionPlugin]


class EventColumn(BaseModel):
    """A column of an event; `nullable` ones may be absent."""

    name: str
    type: str
    nullable: bool
    text: str


class EventDescription(BaseModel):
    """An event that rules can read: `topic` is what `FROM` names, `example` a whole event, `rule` SQL to start from."""

    name: str
    topic: str
    text: str
    columns: list[EventColumn]
    example: dict[str, Any]
    rule: str


class EventList(Page[EventDescription]):
    """Events that rules can read."""
