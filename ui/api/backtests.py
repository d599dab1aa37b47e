"""Back-tests of rules over HTTP: started under the rules, looked at and cancelled as jobs of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from broker.core.objects import Spec
from rules.trials.backtest import BacktestRequest, BacktestView
from ui.api.bodies import answer
from ui.api.deadline import BoundedCalls
from ui.api.models.rules import BacktestPage
from ui.api.objects import whole_list
from ui.api.operation import Operations

JobPath = Annotated[str, Path(max_length=64, description="The identifier of a back-test.")]


class BacktestVerbs(Protocol):
    """The verbs of back-tests (``rules.service``). All but the first run on the event loop and return at once."""

    def backtest_request(self, body: Spec) -> Any: ...

    def backtest(self, request: Any) -> BacktestView: ...

    def backtests(self) -> Sequence[BacktestView]: ...

    def backtest_of(self, id: str) -> BacktestView: ...

    def cancel_backtest(self, id: str) -> BacktestView: ...

    def follow_backtests(self, on_change: Callable[[BacktestView], None]) -> None: ...


def add_backtests(router: APIRouter, service: BacktestVerbs, calls: BoundedCalls) -> None:
    """Add the routes. None is started while the node is overloaded."""
    ops = Operations(router, "Rules")

    @ops.post(
        "/rules:backtest",
        "backtestRule",
        "Back-test SQL or a rule",
        body=BacktestRequest,
        answer=BacktestView,
        status=202,
        takes_key=True,
        problems=(404,),
    )
    async def start(request: Request, body: Spec) -> Response:
        """Runs SQL or a rule over a range of a stream and compares the rows with those of the running rule. Starts a
        job; `Location` is its address.
        """
        checked = await calls.run("compiling the rule", lambda: service.backtest_request(body))
        job = service.backtest(checked)
        started = answer(job, 202)
        started.headers["Location"] = f"{request.url.path.removesuffix('/rules:backtest')}/backtests/{job['id']}"
        return started

    @ops.get("/backtests", "listBacktests", "List back-tests", answer=BacktestPage)
    def list_backtests() -> Spec:
        """Returns running back-tests and those that ended, newest first."""
        return whole_list(service.backtests())

    @ops.get("/backtests/{id}", "getBacktest", "Show a back-test", answer=BacktestView)
    def get_backtest(id: JobPath) -> BacktestView:
        """Returns the state, the progress and, once it ended, the result."""
        return service.backtest_of(id)

    @ops.post("/backtests/{id}:cancel", "cancelBacktest", "Cancel a back-test", answer=BacktestView)
    def cancel_backtest(id: JobPath) -> BacktestView:
        """Stops the job. Results so far are kept."""
        return service.cancel_backtest(id)
