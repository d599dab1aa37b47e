"""Rules: their SQL, its test and lineage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from broker.core.examples import FunctionView
from rules.functions.plugin_loading import Plugin
from ui.api.models.shapes import Page


class RuleCode(BaseModel):
    """Code that a rule was compiled to."""

    language: Literal["python"]
    source: str


class _RuleText(BaseModel, extra="forbid"):
    language: Literal["sql", "jq"] = "sql"
    jq: str | None = None
    reads: list[str] | None = Field(None, alias="from")
    sql: str | None = Field(
        None, examples=['SELECT payload.t AS t, clientid FROM "meters/#" WHERE payload.t > 20']
    )


class RuleSources(BaseModel, extra="forbid"):
    """Sources in `FROM`: topic filters, events, sources and rules."""

    sources: list[str] = Field(alias="from", max_length=100, examples=[["meters/#"]])


class SqlText(BaseModel, extra="forbid"):
    """The SQL of a rule."""

    sql: str = Field(examples=['select payload.t as t from "meters/#" where payload.t > 20'])


class RuleTest(_RuleText):
    """A rule's SQL and the columns of the event to run it on."""

    event: dict[str, Any] = {}


class RuleTests(_RuleText):
    """A rule's SQL and the columns of the events to run it on."""

    events: list[dict[str, Any]] = Field(max_length=100)


class RuleCheck(_RuleText):
    """A rule, or its SQL alone, that need not be saved."""

    name: str = "check"
    actions: list[str | dict[str, Any]] = []
    tests: list[dict[str, Any]] = []
    enable: bool = True
    description: str = ""


class RuleExplain(RuleTest):
    """SQL, or the name of a rule, and the columns of the event to run it on; `actions` are those of the SQL."""

    name: str | None = None
    actions: list[str | dict[str, Any]] = []


class TemplateRender(BaseModel, extra="forbid"):
    """A template with ``${...}`` and the row that fills it."""

    template: str
    row: dict[str, Any] = {}


class FunctionList(Page[FunctionView]):
    """Functions of rules and transformations."""

    plugins: list[Plugin]


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
