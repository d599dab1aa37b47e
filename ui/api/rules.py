"""Rules over HTTP: the five verbs with filters, preconditions and test cases, and the life of a rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from broker.core.kinds import Kind
from broker.core.objects import Spec
from ui.api import preconditions
from ui.api.backtests import BacktestVerbs, add_backtests
from ui.api.deadline import BoundedCalls
from ui.api.models.rules import RuleCode, RuleLineage
from ui.api.models.shapes import Anything, Object, ObjectList
from ui.api.object_routes import ObjectRoutes
from ui.api.objects import KindRoutes, Objects, created_answer, exists, named, whole_list
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.rule_spark import add_spark
from ui.api.wire import answer, read_object

Force = Annotated[bool, Query(description="Save it even when it fails its test cases.")]
VersionPath = Annotated[int, Path(ge=1, description="The number of a version.")]

RULES = "rules"
"""The path of the kind."""
_TAG = "Rules"
_TAGS: list[Any] = [_TAG]
_ONE = "/rules/{name}"


class RuleVerbs(Objects, BacktestVerbs, Protocol):
    """The service of rules (``rules.service``)."""

    def create(self, spec: Spec, *, force: bool = False) -> Spec: ...

    def replace(self, name: str, spec: Spec, *, force: bool = False) -> Spec: ...

    def delete(self, name: str, *, force: bool = False) -> None: ...

    def prepare(self, spec: Spec) -> None: ...

    def versions(self, name: str) -> Sequence[Spec]: ...

    def version(self, name: str, number: int) -> Spec: ...

    def difference(self, name: str, before: int, after: int) -> Spec: ...

    def restore(self, name: str, number: int, *, force: bool = False) -> Spec: ...

    def try_cases(self, spec: Spec) -> None: ...

    def run_cases(self, name: str) -> Spec: ...

    def program_of(self, name: str) -> str: ...

    def lineage(self, name: str) -> Spec: ...

    def spark_form(self, name: str) -> Spec: ...


_LONG_SQL = 4_000
"""Characters of SQL from which on it is compiled off the event loop."""


class _Saving:
    """Saves rules: test cases are run first, off the event loop and with a deadline."""

    def __init__(self, service: RuleVerbs, calls: BoundedCalls) -> None:
        self._service, self._calls = service, calls

    async def options(self, spec: Spec, force: bool) -> dict[str, bool]:
        """Arguments for the verb that saves the spec, whose test cases have passed then, and whose SQL is compiled."""
        if _takes_long(spec):
            await self._calls.run("compiling the rule", lambda: self._service.prepare(spec))
        if not spec.get("tests"):
            return {}
        if not force:
            await self._calls.run("running the test cases", lambda: self._service.try_cases(spec))
        return {"force": True}


def _takes_long(spec: Spec) -> bool:
    """Whether a rule is compiled off the event loop: a jq program may have to be compiled in a worker process."""
    sql = spec.get("sql")
    return spec.get("language") == "jq" or (isinstance(sql, str) and (len(sql) > _LONG_SQL or "jq" in sql.lower()))


def add_rules(router: APIRouter, kind: Kind, service: RuleVerbs, calls: BoundedCalls) -> None:
    """Add all that rules have, but what is tried without being saved (``ui.api.verbs``)."""
    saving, routes, one = _Saving(service, calls), KindRoutes(router, kind, service), ObjectRoutes(router, _ONE, _TAG)
    routes.add_reading()
    _add_writing(router, routes, service, saving)
    routes.add_abilities()
    one.show(
        "/code",
        "getRuleCode",
        "Show the Python function that a rule was compiled to",
        "The broker runs this function for every message that the rule reads.",
        lambda name: {"language": "python", "source": service.program_of(name)},
        RuleCode,
    )
    one.show(
        "/lineage",
        "getRuleLineage",
        "Show what the columns of a rule's rows are made of",
        "For each column its type, its expression and the event columns that it reads; and the conditions for a row.",
        service.lineage,
        RuleLineage,
    )
    add_spark(one, service)
    _add_versions(router, routes, one, service, saving)
    _add_cases(router, service, calls)
    add_backtests(router, service, calls)


def _add_writing(router: APIRouter, routes: KindRoutes, service: RuleVerbs, saving: _Saving) -> None:
    @router.post(**routes.create())
    async def create_rule(request: Request, force: Force = False) -> Response:
        spec = named(await read_object(request), None)
        made = service.create(spec, **await saving.options(spec, force))
        return routes.with_etag(request, created_answer(request, made), spec["name"])

    @router.put(**routes.put())
    async def put_rule(name: NamePath, request: Request, force: Force = False) -> Response:
        spec = named(await read_object(request), checked_name(name))
        options = await saving.options(spec, force)
        preconditions.check(request, routes.etag(name))
        if exists(service, name):
            saved: Response = answer(service.replace(name, spec, **options))
        else:
            saved = created_answer(request, service.create(spec, **options))
        return routes.with_etag(request, saved, name)

    @router.delete(**routes.delete())
    async def delete_rule(
        name: NamePath,
        request: Request,
        force: Annotated[bool, Query(description="Delete it even when other rules read its rows.")] = False,
    ) -> Response:
        preconditions.check(request, routes.etag(checked_name(name)))
        service.delete(name, force=force)
        return Response(status_code=204)

    @router.patch(**routes.patch())
    async def patch_rule(name: NamePath, request: Request, force: Force = False) -> Response:
        patch, etag = await read_object(request), routes.etag(checked_name(name))
        spec = named(service.patched(name, patch), name)
        options = await saving.options(spec, force)
        preconditions.check(request, routes.etag(name))
        if routes.etag(name) != etag:  # changed while the test cases ran
            spec = named(service.patched(name, patch), name)
        return routes.with_etag(request, answer(service.replace(name, spec, **options)), name)


def _add_versions(
    router: APIRouter, routes: KindRoutes, one: ObjectRoutes, service: RuleVerbs, saving: _Saving
) -> None:
    one.show(
        "/versions",
        "listRuleVersions",
        "List the versions of a rule",
        "Those that are kept, newest first, each with the time it was saved and what changed.",
        lambda name: whole_list(service.versions(name)),
        ObjectList,
    )

    @router.get(
        f"{_ONE}/versions/{{number}}",
        operation_id="getRuleVersion",
        tags=_TAGS,
        summary="Show a version of a rule",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def get_version(name: NamePath, number: VersionPath) -> Response:
        """Returns the rule as it was saved then."""
        return answer(service.version(checked_name(name), number))

    @router.get(
        f"{_ONE}/versions/{{number}}/diff",
        operation_id="compareRuleVersions",
        tags=_TAGS,
        summary="Compare two versions of a rule",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def compare_versions(
        name: NamePath, number: VersionPath, to: Annotated[int, Query(ge=1, description="The other version.")]
    ) -> Response:
        """Returns a unified diff of the two versions."""
        return answer(service.difference(checked_name(name), number, to))

    @router.post(
        f"{_ONE}/versions/{{number}}:restore",
        operation_id="restoreRuleVersion",
        tags=_TAGS,
        summary="Restore a version of a rule",
        **described(answer=Object, problems=(404, 409, 412, 422)),
    )
    async def restore_version(name: NamePath, number: VersionPath, request: Request, force: Force = False) -> Response:
        """Saves the old version again, as the newest one. Its test cases run first."""
        options = await saving.options(service.version(checked_name(name), number)["rule"], force)
        preconditions.check(request, routes.etag(name))
        return routes.with_etag(request, answer(service.restore(name, number, **options)), name)


def _add_cases(router: APIRouter, service: RuleVerbs, calls: BoundedCalls) -> None:
    @router.post(
        f"{_ONE}:test-cases",
        operation_id="runRuleTestCases",
        tags=_TAGS,
        summary="Run the saved test cases of a rule",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def run_cases(name: NamePath) -> Response:
        """Runs each saved test case and reports what differs from the expectation."""
        service.get(checked_name(name))
        return answer(await calls.run("running the test cases", lambda: service.run_cases(name)))
