"""A table of a rule, created with all that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from broker.core.errors import AlreadyExists, Invalid, Problem
from broker.core.objects import Spec
from broker.core.topic import covers
from ui.api.deadline import BoundedCalls
from ui.api.effects import DryRun, effect_of, would_change
from ui.api.json_bodies import answer
from ui.api.models.shapes import Affected, Body
from ui.api.objects import KindRoutes, Objects, Prepare, exists
from ui.api.parameters import NamePath
from ui.api.security import require_also

# Writes all that is saved inside the block to disk at once.
Together = Callable[[], AbstractContextManager[None]]


class TableOfRule(Body):
    """The format of the table's files, and what the table follows."""

    format: Literal["delta", "iceberg"] = "delta"
    follows: Literal["messages", "rows"] = Field(
        default="messages",
        description="`messages`: a stream of the messages that the rule reads; the table runs the rule over them, so a "
        "replay after a correction rebuilds older rows. `rows`: the stream that the rule writes its rows to; a replay "
        "cannot apply a corrected rule to older rows.",
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The table; the stream that it follows, None where that exists; the rule as it writes there, None where it does
    or need not; and the consequence for later corrections of the rule."""

    table: Spec
    stream: Spec | None
    rule: Spec | None
    consequence: str


class RuleTables:
    """Creates tables of rules: each with the stream that it follows, and with the rule's action where it needs one."""

    def __init__(
        self, rules: Objects, streams: Objects, tables: Objects, together: Together
    ) -> None:
        self._rules = rules
        self._streams = streams
        self._tables = tables
        self._together = together

    def create(self, name: str, plan: _Plan) -> Spec:
        """Create all of it, or nothing when any of it cannot be; the table. All is saved at once."""
        before = self._rules.patched(name, {})
        with ExitStack() as undo:
            with self._together():
                if plan.stream is not None:
                    self._streams.create(plan.stream)
                    undo.callback(self._streams.delete, plan.stream["name"])
                table: Any = self._tables.create(plan.table)
                undo.callback(self._tables.delete, plan.table["name"])
                if plan.rule is not None:
                    self._rules.replace(name, plan.rule, force=True)  # its cases are about the SQL
                    undo.callback(self._rules.replace, name, before, force=True)
            undo.pop_all()
        return dict(table)

    def over_messages(self, name: str, format: str, topics: Sequence[str]) -> _Plan:
        """Plan a table that runs the rule over the messages on its topics.

        It follows the narrowest stream that captures all of them, or a new one.

        Raises:
            Invalid: the rule reads something besides messages.
        """
        if others := [source for source in self._rules.get(name)["from"] if source not in topics]:
            text = (
                f"expected a rule that reads messages only, got FROM {', '.join(map(repr, others))}"
            )
            problem = Problem(text, "/follows", suggestion="Try: follows = rows")
            raise Invalid(f"the table of rule {name!r} cannot be created", [problem])
        narrowest: Sequence[str] | None = None
        stream = f"{name}-messages"
        fresh = True
        for candidate in self._streams.list():
            captured = candidate.get("topics", [])
            if _cover(captured, topics) and (narrowest is None or _cover(narrowest, captured)):
                narrowest = captured
                stream = candidate["name"]
                fresh = False
        return _Plan(
            {"format": format, "name": name, "stream": stream, "rule": name},
            {"name": stream, "topics": list(topics)} if fresh else None,
            None,
            f"Table {name!r} runs rule {name!r} over the messages in stream {stream!r}, so a replay after a correction "
            f"of the rule rebuilds older rows, as far back as the stream has messages.",
        )

    def of_rows(self, name: str, format: str) -> _Plan:
        """Plan a table of the rows that the rule writes to a stream: its first one, or a new one."""
        actions = self._rules.patched(name, {}).get("actions", [])
        written = next((action["stream"] for action in actions if action["type"] == "stream"), None)
        stream = written or name
        writing = None
        if written is None:
            writing = self._rules.patched(
                name, {"actions": [*actions, {"type": "stream", "stream": stream}]}
            )
        return _Plan(
            {"format": format, "name": stream, "stream": stream},
            None if exists(self._streams, stream) else {"name": stream},
            writing,
            f"Table {stream!r} holds the rows that rule {name!r} writes, so a correction of the rule changes later "
            f"rows only, and a replay cannot rebuild older ones.",
        )

    async def effect(self, name: str, plan: _Plan) -> Spec:
        """Effect of ``create``. Raises its errors, as far as they can be known before the stream exists."""
        affected = []
        if plan.stream is None:
            await would_change(partial(self._tables.create, plan.table))
        elif exists(self._tables, plan.table["name"]):
            raise AlreadyExists(self._tables.kind, plan.table["name"])
        else:
            await would_change(partial(self._streams.create, plan.stream))
            topics = plan.stream.get("topics", [])
            how = (
                f"would be created, and capture {', '.join(topics)}"
                if topics
                else "would be created"
            )
            affected.append(Affected(kind="stream", name=plan.stream["name"], how=how))
        if plan.rule is not None:  # an action must name a stream that exists
            after = self._rules.patched(name, {}) if affected else plan.rule
            await would_change(partial(self._rules.replace, name, after, force=True))
            how = f"would write its rows to stream {plan.table['stream']}"
            affected.append(Affected(kind="rule", name=name, how=how))
        return effect_of("create", None, plan.table, affected, [plan.consequence])


def _cover(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Return whether each narrow topic filter is covered by one of the wide ones."""
    levels = [tuple(wide_filter.split("/")) for wide_filter in wide]
    return all(
        any(covers(covering, tuple(other.split("/"))) for covering in levels) for other in narrow
    )


def add_rule_tables(
    routes: KindRoutes,
    tables: KindRoutes,
    streams: Objects,
    prepare: Prepare,
    together: Together,
    calls: BoundedCalls,
) -> None:
    """Add ``POST /rules/{name}:create-table``."""
    rules = routes.service
    lake: Any = tables.service
    creator = RuleTables(rules, streams, lake, together)

    @routes.ops.post(
        f"{routes.one}:create-table",
        "createRuleTable",
        "Create a table from a rule",
        body=TableOfRule,
        answer=tables.kind,
        problems=(404, 409, 412),
        takes_key=True,
        may_be_dry=True,
    )
    async def create_table(
        name: NamePath, body: TableOfRule, request: Request, dry_run: DryRun = False
    ) -> Response:
        """Creates a table that runs the rule over a stream of messages, or one that follows the stream of the rule's
        rows. A stream that is missing, and the action of the rule that writes rows to it, are created with it: all of
        it, or nothing.
        """
        for kind in (routes.kind, tables.kind):
            require_also(request, kind.name)
        require_also(request, "stream")
        rules.get(name)
        if body.follows == "messages":
            topics = await calls.run(
                "checking the rule for Spark", partial(lake.topics_of_rule, name)
            )
            plan = creator.over_messages(name, body.format, topics)
        else:
            plan = creator.of_rows(name, body.format)
        await prepare(rules.patched(name, {}), name, True)
        routes.check(request, name)
        return (
            answer(await creator.effect(name, plan))
            if dry_run
            else tables.answered(request, creator.create(name, plan))
        )
