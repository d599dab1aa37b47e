"""Routes of rules that save: test cases run before that. Catalogues of events and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, cast

from fastapi import APIRouter, Path, Query, Request

from broker.core.kinds import Kind, kind_at
from broker.core.objects import Spec
from rules.service import RuleService
from ui.api.backtests import add_backtests
from ui.api.context import ApiContext
from ui.api.deadline import BoundedCalls
from ui.api.effects import DryRun
from ui.api.models.rules import EventList, FunctionList
from ui.api.objects import KindRoutes, Objects, Options, Prepare, Saving, whole_list
from ui.api.operation import Operations
from ui.api.parameters import NamePath
from ui.api.rule_tables import add_rule_tables

Force = Annotated[bool, Query(description="Save it even when it fails its test cases.")]
VersionPath = Annotated[int, Path(ge=1, description="The number of a version.")]

PartOfName = Annotated[str, Query(description="Part of the name.")]

_ONE = "/rules/{name}"
# Characters of SQL from which on it is compiled off the event loop.
_LONG_SQL = 4_000


async def _forced(force: Force = False) -> bool:
    return force


async def _deleting(
    force: Annotated[
        bool, Query(description="Delete it even when rules read its rows or tables run it.")
    ] = False,
) -> Options:
    return {"force": force}


def _takes_long(spec: Spec) -> bool:
    """Return whether a rule is compiled off the event loop: a jq program may need a worker process for that."""
    sql = spec.get("sql")
    return spec.get("language") == "jq" or (
        isinstance(sql, str) and (len(sql) > _LONG_SQL or "jq" in sql.lower())
    )


def add_catalogues(router: APIRouter, context: ApiContext) -> None:
    """Add ``GET /events`` and ``GET /functions``."""
    ops = Operations(router, "Rules", "catalogue", "none")

    @ops.get(
        "/events",
        "listEvents",
        "List the events that rules can read",
        answer=EventList,
        problems=(422,),
    )
    def list_events(name: PartOfName = "") -> Spec:
        """Returns what `FROM` may name besides topic filters: for each event its columns with their types, an example,
        and SQL to start from. `message.publish` is what topic filters read.
        """
        return whole_list([event for event in context.events() if name in event["name"]])

    @ops.get(
        "/functions",
        "listFunctions",
        "List the functions of rules and transformations",
        answer=FunctionList,
        problems=(422,),
    )
    def list_functions(
        name: PartOfName = "",
        language: Annotated[
            Literal["sql", "variform"] | None,
            Query(description="That of rules, or of transformations."),
        ] = None,
    ) -> Spec:
        """Returns functions with signatures and examples, and the plugins that provide some of them."""
        functions = [
            function
            for function in context.functions()
            if name in function["name"] and language in (None, function["language"])
        ]
        return {**whole_list(functions), "plugins": list(context.plugins())}


def add_rules(
    router: APIRouter, kind: Kind, service: RuleService, context: ApiContext, calls: BoundedCalls
) -> KindRoutes:
    """Add saving and deleting rules, which compile and run test cases, and what else creates something."""

    async def prepare(spec: Spec, _name: str | None, force: bool) -> tuple[Options, Options]:
        """Compiles what takes long, and runs test cases, off the event loop and with a deadline."""
        if _takes_long(spec):
            await calls.run("compiling the rule", lambda: service.prepare(spec))
        if not spec.get("tests"):
            return {}, {}
        if not force:
            await calls.run("running the test cases", lambda: service.try_cases(spec))
        return {"force": True}, {"force": True}

    def warnings(spec: Mapping[str, Any]) -> Sequence[Any]:
        return service.check(dict(spec))["warnings"]

    routes = KindRoutes(
        router,
        kind,
        service,
        context,
        Saving(prepare, _forced, warnings=warnings, deleting=_deleting),
    )
    routes.add()
    _add_restoring(routes, service, prepare)
    add_backtests(router, service, calls)
    streams, tables = (context.services.get(path) for path in ("streams", "lake/tables"))
    if streams is not None and tables is not None:
        add_rule_tables(
            routes,
            KindRoutes(router, kind_at("lake/tables"), tables, context),
            cast(Objects, streams),
            prepare,
            context.together,
            calls,
        )
    return routes


def _add_restoring(routes: KindRoutes, service: RuleService, prepare: Prepare) -> None:
    @routes.ops.post(
        f"{_ONE}/versions/{{number}}:restore",
        "restoreRuleVersion",
        "Restore a version of a rule",
        answer=routes.kind,
        problems=(409, 412),
        may_be_dry=True,
        topics="any",
    )
    async def restore_version(
        name: NamePath,
        number: VersionPath,
        request: Request,
        force: Force = False,
        dry_run: DryRun = False,
    ) -> Any:
        """Saves the old version again, as the newest one. Its test cases run first."""
        old = service.version(name, number)["rule"]
        _, options = await prepare(old, name, force)
        routes.check(request, name)
        restore = partial(service.restore, name, number, **options)
        return await routes.written(request, name, old, restore, is_dry=dry_run)
