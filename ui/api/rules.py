"""Rules over HTTP: the five verbs with filters, preconditions and test cases, and the life of a rule."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from broker.core.objects import ObjectService, Spec
from ui.api import preconditions
from ui.api.backtests import BacktestVerbs, add_backtests
from ui.api.deadline import BoundedCalls
from ui.api.models.rules import RuleCode, RuleLineage, RulePatch
from ui.api.models.shapes import Anything, Object, ObjectList
from ui.api.object_routes import ObjectRoutes
from ui.api.objects import Cursor, Kind, Limit, add_reorder, created_answer, exists, named, page_of, whole_list
from ui.api.operation import described
from ui.api.parameters import NamePath, checked_name
from ui.api.rule_filters import Filter
from ui.api.rule_spark import add_spark
from ui.api.wire import answer, read_object

Force = Annotated[bool, Query(description="Save it even when it fails its test cases.")]
VersionPath = Annotated[int, Path(ge=1, description="The number of a version.")]

RULES = "rules"
"""The path of the kind."""
_TAG = "Rules"
_TAGS: list[Any] = [_TAG]
_ONE = "/rules/{name}"


class RuleVerbs(ObjectService, BacktestVerbs, Protocol):
    """The service of rules (``rules.service``). ``force`` is passed when it is set, and for all the rules have."""

    def etag(self, name: str) -> str: ...

    def patched(self, name: str, patch: Spec) -> Spec: ...

    def enable(self, name: str, enabled: bool) -> Spec: ...

    def metrics(self, name: str) -> Spec: ...

    def reset_metrics(self, name: str) -> None: ...

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

    def __init__(self, service: Any, calls: BoundedCalls) -> None:
        self._service, self._calls = service, calls

    def etag(self, name: str) -> str | None:
        """The rule's ETag; None when there is no such rule."""
        find = getattr(self._service, "etag", None)
        return find(name) if find is not None and exists(self._service, name) else None

    async def options(self, spec: Spec, force: bool) -> dict[str, bool]:
        """Arguments for the verb that saves the spec, whose test cases have passed then, and whose SQL is compiled."""
        prepare = getattr(self._service, "prepare", None)
        if prepare is not None and _takes_long(spec):
            await self._calls.run("compiling the rule", lambda: prepare(spec))
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
    """Add all that rules have, but what is tried without being saved (``ui.api.verbs``).

    As for those, a path exists where the service has the method for it; the five verbs are always there.
    """
    saving, one = _Saving(service, calls), ObjectRoutes(router, _ONE, _TAG)
    _add_reading(router, service, saving)
    _add_writing(router, kind, service, saving)
    if hasattr(service, "enable"):
        one.change(":enable", "enableRule", "Switch a rule on", lambda name: service.enable(name, True))
        one.change(":disable", "disableRule", "Switch a rule off", lambda name: service.enable(name, False))
    if hasattr(service, "patched"):
        _add_patching(router, service, saving)
    _add_explanations(one, service)
    if hasattr(service, "metrics"):
        summary = "Counters and rates of a rule and of its actions, and how long it takes"
        one.show("/metrics", "getRuleMetrics", summary, service.metrics)
        one.act("/metrics:reset", "resetRuleMetrics", "Set the counters of a rule to zero", service.reset_metrics)
    if hasattr(service, "versions"):
        _add_versions(router, one, service, saving)
    if hasattr(service, "run_cases"):
        _add_cases(router, service, calls)
    if hasattr(service, "backtest"):
        add_backtests(router, service, calls)
    reorder = getattr(service, "reorder", None)
    if reorder is not None:
        add_reorder(router, kind, service, reorder)


def _add_reading(router: APIRouter, service: RuleVerbs, saving: _Saving) -> None:
    @router.get(
        "/rules",
        operation_id="listRules",
        tags=_TAGS,
        summary="List rules in their order",
        **described(answer=ObjectList, problems=(422,)),
    )
    async def list_rules(wanted: Filter, limit: Limit = 100, cursor: Cursor = None) -> Response:
        return answer(page_of(wanted.select(service.list()), limit, cursor))

    @router.get(
        _ONE,
        operation_id="getRule",
        tags=_TAGS,
        summary="Show a rule; ETag is its version",
        **described(answer=Object, problems=(404, 422)),
    )
    async def get_rule(name: NamePath, request: Request) -> Response:
        shown = answer(service.get(checked_name(name)))
        return preconditions.with_etag(request, shown, saving.etag(name))


def _add_writing(router: APIRouter, kind: Kind, service: RuleVerbs, saving: _Saving) -> None:
    @router.post(
        "/rules",
        operation_id="createRule",
        tags=_TAGS,
        summary="Create a rule",
        **described(body=kind.model, answer=Object, status=201, problems=(409,)),
    )
    async def create_rule(request: Request, force: Force = False) -> Response:
        spec = named(await read_object(request), None)
        made = service.create(spec, **await saving.options(spec, force))
        return preconditions.with_etag(request, created_answer(request, made), saving.etag(spec["name"]))

    @router.put(
        _ONE,
        operation_id="putRule",
        tags=_TAGS,
        summary="Create or replace a rule",
        **described(body=kind.model, answer=Object, problems=(409, 412), also_creates=True),
    )
    async def put_rule(name: NamePath, request: Request, force: Force = False) -> Response:
        spec = named(await read_object(request), checked_name(name))
        options = await saving.options(spec, force)
        preconditions.check(request, saving.etag(name))
        if exists(service, name):
            saved: Response = answer(service.replace(name, spec, **options))
        else:
            saved = created_answer(request, service.create(spec, **options))
        return preconditions.with_etag(request, saved, saving.etag(name))

    @router.delete(
        _ONE,
        operation_id="deleteRule",
        tags=_TAGS,
        summary="Delete a rule",
        **described(status=204, problems=(404, 409, 412, 422)),
    )
    async def delete_rule(
        name: NamePath,
        request: Request,
        force: Annotated[bool, Query(description="Delete it even when other rules read its rows.")] = False,
    ) -> Response:
        preconditions.check(request, saving.etag(checked_name(name)))
        service.delete(name, **({"force": True} if force else {}))
        return Response(status_code=204)


def _add_patching(router: APIRouter, service: RuleVerbs, saving: _Saving) -> None:
    @router.patch(
        _ONE,
        operation_id="patchRule",
        tags=_TAGS,
        summary="Change members of a rule, by JSON Merge Patch",
        **described(body=RulePatch, answer=Object, problems=(404, 409, 412)),
    )
    async def patch_rule(name: NamePath, request: Request, force: Force = False) -> Response:
        patch, etag = await read_object(request), saving.etag(checked_name(name))
        spec = named(service.patched(name, patch), name)
        options = await saving.options(spec, force)
        preconditions.check(request, saving.etag(name))
        if saving.etag(name) != etag:  # changed while the test cases ran
            spec = named(service.patched(name, patch), name)
        saved = answer(service.replace(name, spec, **options))
        return preconditions.with_etag(request, saved, saving.etag(name))


def _add_explanations(one: ObjectRoutes, service: RuleVerbs) -> None:
    """What a rule was compiled to, where its columns come from, and the same in Spark."""
    if hasattr(service, "program_of"):
        summary = "The Python function that a rule was compiled to"
        one.show("/code", "getRuleCode", summary, partial(_code_of, service), RuleCode)
    if hasattr(service, "lineage"):
        summary = "What the columns of a rule's rows are made of"
        one.show("/lineage", "getRuleLineage", summary, service.lineage, RuleLineage)
    if hasattr(service, "spark_form"):
        add_spark(one, service)


def _code_of(service: RuleVerbs, name: str) -> Spec:
    return {"language": "python", "source": service.program_of(name)}


def _add_versions(router: APIRouter, one: ObjectRoutes, service: RuleVerbs, saving: _Saving) -> None:
    summary = "The versions of a rule that are kept, newest first"
    one.show("/versions", "listRuleVersions", summary, lambda name: whole_list(service.versions(name)), ObjectList)

    @router.get(
        f"{_ONE}/versions/{{number}}",
        operation_id="getRuleVersion",
        tags=_TAGS,
        summary="A version of a rule",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def get_version(name: NamePath, number: VersionPath) -> Response:
        return answer(service.version(checked_name(name), number))

    @router.get(
        f"{_ONE}/versions/{{number}}/diff",
        operation_id="compareRuleVersions",
        tags=_TAGS,
        summary="What changed from this version to another",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def compare_versions(
        name: NamePath, number: VersionPath, to: Annotated[int, Query(ge=1, description="The other version.")]
    ) -> Response:
        return answer(service.difference(checked_name(name), number, to))

    @router.post(
        f"{_ONE}/versions/{{number}}:restore",
        operation_id="restoreRuleVersion",
        tags=_TAGS,
        summary="Make a rule again what it was, as a new version",
        **described(answer=Object, problems=(404, 409, 412, 422)),
    )
    async def restore_version(name: NamePath, number: VersionPath, request: Request, force: Force = False) -> Response:
        options = await saving.options(service.version(checked_name(name), number)["rule"], force)
        preconditions.check(request, saving.etag(name))
        restored = answer(service.restore(name, number, **options))
        return preconditions.with_etag(request, restored, saving.etag(name))


def _add_cases(router: APIRouter, service: RuleVerbs, calls: BoundedCalls) -> None:
    @router.post(
        f"{_ONE}:test-cases",
        operation_id="runRuleTestCases",
        tags=_TAGS,
        summary="Run the saved test cases of a rule",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def run_cases(name: NamePath) -> Response:
        service.get(checked_name(name))
        return answer(await calls.run("running the test cases", lambda: service.run_cases(name)))
