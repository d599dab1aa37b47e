"""Rules over HTTP: what they have beside the verbs of every kind: test cases that run before saving, versions, Spark
SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Query, Request

from broker.core.kinds import Kind
from broker.core.objects import Spec
from ui.api.backtests import BacktestVerbs, add_backtests
from ui.api.context import ApiContext
from ui.api.deadline import BoundedCalls
from ui.api.effects import DryRun
from ui.api.models.rules import RuleCode, RuleLineage
from ui.api.models.shapes import Anything, Object, ObjectList
from ui.api.objects import KindRoutes, Objects, Options, Prepare, Saving, whole_list
from ui.api.parameters import NamePath

Force = Annotated[bool, Query(description="Save it even when it fails its test cases.")]
VersionPath = Annotated[int, Path(ge=1, description="The number of a version.")]

_ONE = "/rules/{name}"
_LONG_SQL = 4_000
"""Characters of SQL from which on it is compiled off the event loop."""


class RuleVerbs(Objects, BacktestVerbs, Protocol):
    """The service of rules (``rules.service``)."""

    def prepare(self, spec: Spec) -> None: ...

    def check(self, body: Spec) -> Spec: ...

    def versions(self, name: str) -> Sequence[Spec]: ...

    def version(self, name: str, number: int) -> Spec: ...

    def difference(self, name: str, before: int, after: int) -> Spec: ...

    def restore(self, name: str, number: int, *, force: bool = False) -> Spec: ...

    def try_cases(self, spec: Spec) -> None: ...

    def run_cases(self, name: str) -> Spec: ...

    def program_of(self, name: str) -> str: ...

    def lineage(self, name: str) -> Spec: ...

    def spark_form(self, name: str) -> Spec: ...


async def _forced(force: Force = False) -> bool:
    return force


async def _deleting(
    force: Annotated[bool, Query(description="Delete it even when other rules read its rows.")] = False,
) -> Options:
    return {"force": force}


def _takes_long(spec: Spec) -> bool:
    """Whether a rule is compiled off the event loop: a jq program may have to be compiled in a worker process."""
    sql = spec.get("sql")
    return spec.get("language") == "jq" or (isinstance(sql, str) and (len(sql) > _LONG_SQL or "jq" in sql.lower()))


def add_rules(router: APIRouter, kind: Kind, service: RuleVerbs, context: ApiContext, calls: BoundedCalls) -> None:
    """Add all that rules have, but what is tried without being saved (``ui.api.verbs``)."""

    async def prepare(spec: Spec, _name: str | None, force: bool) -> tuple[Options, Options]:
        """Compiles what takes long, and runs test cases, off the event loop and with a deadline."""
        if _takes_long(spec):
            await calls.run("compiling the rule", lambda: service.prepare(spec))
        if not spec.get("tests"):
            return {}, {}
        if not force:
            await calls.run("running the test cases", lambda: service.try_cases(spec))
        return {"force": True}, {"force": True}

    def warnings(spec: Mapping[str, Any]) -> Sequence[Spec]:
        found: Sequence[Spec] = service.check(dict(spec))["warnings"]
        return found

    routes = KindRoutes(router, kind, service, context, Saving(prepare, _forced, warnings=warnings, deleting=_deleting))
    routes.add()
    routes.show(
        "/code",
        "getRuleCode",
        "Show the Python function that a rule was compiled to",
        "The broker runs this function for every message that the rule reads.",
        lambda name: {"language": "python", "source": service.program_of(name)},
        RuleCode,
    )
    routes.show(
        "/lineage",
        "getRuleLineage",
        "Show what the columns of a rule's rows are made of",
        "For each column its type, its expression and the event columns that it reads; and the conditions for a row.",
        service.lineage,
        RuleLineage,
    )
    routes.show(
        "/spark",
        "getRuleSparkSql",
        "Show a rule as Spark SQL",
        "Where no equal Spark SQL is known, the answer says why; Spark then runs the compiled rule.",
        lambda name: _in_spark(service.spark_form(name)),
    )
    _add_versions(routes, service, prepare)

    @routes.ops.post(
        f"{_ONE}:test-cases",
        "runRuleTestCases",
        "Run the saved test cases of a rule",
        answer=Anything,
        problems=(404, 422),
    )
    async def run_cases(name: NamePath) -> Any:
        """Runs each saved test case and reports what differs from the expectation."""
        service.get(name)
        return await calls.run("running the test cases", lambda: service.run_cases(name))

    add_backtests(router, service, calls)


def _add_versions(routes: KindRoutes, service: RuleVerbs, prepare: Prepare) -> None:
    ops = routes.ops
    routes.show(
        "/versions",
        "listRuleVersions",
        "List the versions of a rule",
        "Those that are kept, newest first, each with the time it was saved and what changed.",
        lambda name: whole_list(service.versions(name)),
        ObjectList,
    )

    @ops.get(
        f"{_ONE}/versions/{{number}}",
        "getRuleVersion",
        "Show a version of a rule",
        answer=Anything,
        problems=(404, 422),
    )
    def get_version(name: NamePath, number: VersionPath) -> Any:
        """Returns the rule as it was saved then."""
        return service.version(name, number)

    @ops.get(
        f"{_ONE}/versions/{{number}}/diff",
        "compareRuleVersions",
        "Compare two versions of a rule",
        answer=Anything,
        problems=(404, 422),
    )
    def compare_versions(
        name: NamePath, number: VersionPath, to: Annotated[int, Query(ge=1, description="The other version.")]
    ) -> Any:
        """Returns a unified diff of the two versions."""
        return service.difference(name, number, to)

    @ops.post(
        f"{_ONE}/versions/{{number}}:restore",
        "restoreRuleVersion",
        "Restore a version of a rule",
        answer=Object,
        problems=(404, 409, 412, 422),
        may_be_dry=True,
    )
    async def restore_version(
        name: NamePath, number: VersionPath, request: Request, force: Force = False, dry_run: DryRun = False
    ) -> Any:
        """Saves the old version again, as the newest one. Its test cases run first."""
        old = service.version(name, number)["rule"]
        _, options = await prepare(old, name, force)
        routes.check(request, name)
        restore = partial(service.restore, name, number, **options)
        return await routes.written(request, name, old, restore, is_dry=dry_run)


def _in_spark(form: Spec) -> Spec:
    return {"language": "spark-sql", "source": form["sql"] or _comment(form["problem"]), **form}


def _comment(problem: Spec) -> str:
    where = f"line {problem['line']}, column {problem['column']}: " if problem.get("line") else ""
    return f"-- In Spark the compiled rule runs. Why it is not Spark SQL:\n-- {where}{problem['message']}"
