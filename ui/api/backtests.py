"""Back-tests of rules over HTTP: started under the rules, looked at and cancelled as jobs of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from broker.core.objects import Spec
from ui.api.deadline import BoundedCalls
from ui.api.models.rules import Backtest
from ui.api.models.shapes import Anything, ObjectList
from ui.api.operation import described
from ui.api.wire import answer, read_object

_TAGS: list[Any] = ["Rules"]
JobPath = Annotated[str, Path(max_length=64, description="The identifier of a back-test.")]


class BacktestVerbs(Protocol):
    """The verbs of back-tests (``rules.service``). All but the first run on the event loop and return at once."""

    def backtest_wish(self, body: Spec) -> Any: ...

    def backtest(self, wish: Any) -> Spec: ...

    def backtests(self) -> Sequence[Spec]: ...

    def backtest_of(self, id: str) -> Spec: ...

    def cancel_backtest(self, id: str) -> Spec: ...


def add_backtests(router: APIRouter, service: BacktestVerbs, calls: BoundedCalls) -> None:
    """Add the routes. None is started while the node is overloaded."""

    @router.post(
        "/rules:backtest",
        operation_id="backtestRule",
        tags=_TAGS,
        summary="Run SQL over a range of a stream, beside the rule that runs now; Location is the job",
        **described(body=Backtest, answer=Anything, status=202, problems=(404,)),
    )
    async def start(request: Request) -> Response:
        body = await read_object(request)
        wish = await calls.run("compiling the rule", lambda: service.backtest_wish(body))
        job = service.backtest(wish)
        started = answer(job, 202)
        started.headers["Location"] = f"{request.url.path.removesuffix('/rules:backtest')}/backtests/{job['id']}"
        return started

    @router.get(
        "/backtests",
        operation_id="listBacktests",
        tags=_TAGS,
        summary="The back-tests that run or are over, newest first",
        **described(answer=ObjectList),
    )
    async def list_backtests() -> Response:
        jobs = service.backtests()
        return answer({"items": jobs, "next": None, "total": len(jobs), "total_is_estimate": False})

    @router.get(
        "/backtests/{id}",
        operation_id="getBacktest",
        tags=_TAGS,
        summary="State, progress and result of a back-test",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def get_backtest(id: JobPath) -> Response:
        return answer(service.backtest_of(id))

    @router.post(
        "/backtests/{id}:cancel",
        operation_id="cancelBacktest",
        tags=_TAGS,
        summary="End a back-test",
        **described(answer=Anything, problems=(404, 422)),
    )
    async def cancel_backtest(id: JobPath) -> Response:
        return answer(service.cancel_backtest(id))
