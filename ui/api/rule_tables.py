"""A table of a rule's rows, created with all that it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, Literal

from fastapi import Request
from starlette.responses import Response

from broker.core.errors import AlreadyExists
from broker.core.objects import Spec
from ui.api.effects import DryRun, effect_of, would_change
from ui.api.models.shapes import Affected, Body
from ui.api.objects import KindRoutes, Objects, Prepare, exists
from ui.api.parameters import NamePath
from ui.api.wire import answer

Together = Callable[[], AbstractContextManager[None]]
"""Has all that is saved meanwhile on disk at once."""


class TableOfRule(Body):
    """The format of the table's files."""

    format: Literal["delta", "iceberg"] = "delta"


class RuleTables:
    """Creates tables of rules' rows: the stream where the rule writes to none, the table, and the rule's action."""

    def __init__(self, rules: Objects, streams: Objects, tables: Objects, together: Together) -> None:
        self._rules, self._streams, self._tables, self._together = rules, streams, tables, together

    def create(self, name: str, spec: Mapping[str, Any]) -> Spec:
        """Create all of it, or nothing when any of it cannot be; the table. All is saved at once."""
        stream, writing = self.plan(name)
        before = self._rules.patched(name, {})
        with ExitStack() as undo:
            with self._together():
                if not exists(self._streams, stream):
                    self._streams.create({"name": stream})
                    undo.callback(self._streams.delete, stream)
                table: Any = self._tables.create({**spec, "name": stream, "stream": stream})
                undo.callback(self._tables.delete, stream)
                if writing is not None:
                    self._rules.replace(name, writing, force=True)  # its cases are about the SQL
                    undo.callback(self._rules.replace, name, before, force=True)
            undo.pop_all()
        return dict(table)

    def plan(self, name: str) -> tuple[str, Spec | None]:
        """The stream of the rule's rows, and the rule as it would write to it, None where it does."""
        actions = self._rules.patched(name, {}).get("actions", [])
        for action in actions:
            if action["type"] == "stream":
                return action["stream"], None
        return name, self._rules.patched(name, {"actions": [*actions, {"type": "stream", "stream": name}]})

    async def effect(self, name: str, spec: Mapping[str, Any]) -> Spec:
        """What ``create`` would do. Raises what it would, as far as it can be known before the stream exists."""
        stream, writing = self.plan(name)
        table, affected = {**spec, "name": stream, "stream": stream}, []
        if exists(self._streams, stream):
            await would_change(partial(self._tables.create, table))
        elif exists(self._tables, stream):
            raise AlreadyExists(self._tables.kind, stream)
        else:
            await would_change(partial(self._streams.create, {"name": stream}))
            affected.append(Affected(kind="stream", name=stream, how="would be created"))
        if writing is not None:  # an action must name a stream that exists
            after = self._rules.patched(name, {}) if affected else writing
            await would_change(partial(self._rules.replace, name, after, force=True))
            affected.append(Affected(kind="rule", name=name, how=f"would write its rows to stream {stream}"))
        return effect_of("create", None, table, affected)


def add_rule_tables(
    routes: KindRoutes, tables: KindRoutes, streams: Objects, prepare: Prepare, together: Together
) -> None:
    """Add ``POST /rules/{name}:create-table``."""
    rules = routes.service
    made = RuleTables(rules, streams, tables.service, together)

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
    async def create_table(name: NamePath, body: TableOfRule, request: Request, dry_run: DryRun = False) -> Response:
        """Creates a table that follows the stream of the rule's rows. A rule that writes to no stream gets one of its
        own name. All of it is created, or nothing. A replay of the table reads rows, and does not run the rule again.
        """
        rules.get(name)
        await prepare(rules.patched(name, {}), name, True)
        routes.check(request, name)
        spec = body.model_dump()
        return answer(await made.effect(name, spec)) if dry_run else tables.answered(request, made.create(name, spec))
