"""Rules: their SQL, its test and lineage."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from rules.functions.plugin_loading import Plugin
from rules.functions.registry import FunctionView
from rules.trials.backtest import BacktestView
from rules.versions import VersionRow
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


class VersionPage(Page[VersionRow]):
    """The versions of a rule, newest first."""


class BacktestPage(Page[BacktestView]):
    """Back-tests, newest first, without their results."""


class TemplateRender(BaseModel, extra="forbid"):
    """A template with ``${...}`` and the row that fills it."""

    template: str
    row: dict[str, Any] = {}


class FunctionList(Page[FunctionView]):
    """Functions of the rule language, and the plugins that some of them are from."""

    plugins: list[Plugin]
