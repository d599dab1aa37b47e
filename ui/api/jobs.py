"""Jobs: their results as answers, and back-tests as jobs."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request
from starlette.responses import Response

from broker.admin.jobs import Job, Jobs, NoPause
from broker.core.errors import Unavailable
from broker.core.objects import Spec
from rules.service import RuleService
from rules.trials.backtest import BacktestView
from ui.api.json_bodies import answer

PATH = "/api/v1/jobs"


async def result_of(request: Request, job: Job) -> Response:
    """The result of a job; with ``Prefer: respond-async`` at once the job, as 202 with its address."""
    if "respond-async" not in request.headers.get("prefer", ""):
        return answer(await job.over())
    started = answer({**job.as_dict(), "result": None}, 202)
    started.headers["Location"] = f"{PATH}/{job.id}"
    return started


class BacktestJobs(NoPause):
    """Back-tests as jobs (``broker.admin.jobs.JobSource``)."""

    def __init__(self, service: RuleService, jobs: Jobs) -> None:
        self._service = service
        service.follow_backtests(lambda view: jobs.keep(_job_of(view)))

    def known(self) -> Sequence[Spec]:
        """See ``JobSource``."""
        try:
            backtests = self._service.backtests()
        except Unavailable:  # a node without streams has none
            return []
        return [_job_of(backtest) for backtest in backtests]

    def cancel(self, id: str) -> object:
        """See ``JobSource``."""
        return self._service.cancel_backtest(id)


def _job_of(view: BacktestView) -> Spec:
    members = ("id", "state", "progress", "rate", "eta_s", "started_at", "ended_at", "error")
    return {
        **{member: value for member, value in view.items() if member in members},
        "kind": "back-test",
        "name": view["rule"] or view["stream"],
        "result_url": f"/api/v1/backtests/{view['id']}" if view["state"] == "done" else None,
    }
