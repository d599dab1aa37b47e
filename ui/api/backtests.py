"""The start of back-tests of rules."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from broker.core.objects import Spec
from rules.service import RuleService
from rules.trials.backtest import BacktestRequest, BacktestView
from ui.api.deadline import BoundedCalls
from ui.api.json_bodies import answer
from ui.api.operation import Operations


def add_backtests(router: APIRouter, service: RuleService, calls: BoundedCalls) -> None:
    """Add ``POST /rules:backtest``. None is started while the node is overloaded."""
    ops = Operations(router, "Rules", "back-test", "named")

    @ops.post(
        "/rules:backtest",
        "backtestRule",
        "Back-test SQL or a rule",
        body=BacktestRequest,
        answer=BacktestView,
        does="try",
        at="shards",
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
        started.headers["Location"] = (
            f"{request.url.path.removesuffix('/rules:backtest')}/backtests/{job['id']}"
        )
        return started
