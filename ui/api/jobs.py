"""Jobs: all long work that there is, its progress and its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from broker.admin.jobs import Job, Jobs, NoPause
from broker.core.errors import Unavailable
from broker.core.objects import Spec
from rules.trials.backtest import BacktestView
from ui.api.backtests import BacktestVerbs
from ui.api.bodies import answer
from ui.api.models.jobs import JobList, JobWithResult
from ui.api.objects import Cursor, Limit, page_of
from ui.api.operation import Operations

JobId = Annotated[str, Path(max_length=64, description="The identifier of a job.")]
PATH = "/api/v1/jobs"


def add_jobs(router: APIRouter, jobs: Jobs) -> None:
    """Add ``/jobs``."""
    ops = Operations(router, "Jobs")

    @ops.get("/jobs", "listJobs", "List jobs", answer=JobList, problems=(422,))
    def list_jobs(limit: Limit = 100, cursor: Cursor = None) -> Spec:
        """Returns back-tests, replays and audits of tables, replays of streams, dead letters that are sent again and
        quarantined messages that are published again: those that run, and the last ones that ended. What ran when the
        broker stopped is listed as `interrupted`, but for replays and audits, which continue.
        """
        return page_of(jobs.known(), limit, cursor, "id")

    @ops.get("/jobs/{id}", "getJob", "Show a job", answer=JobWithResult, problems=(404, 422))
    def get_job(id: JobId) -> Spec:
        """Returns the state, the progress and, once it ended, the result or where that is."""
        return jobs.get(id)

    @ops.post("/jobs/{id}:cancel", "cancelJob", "Cancel a job", answer=JobWithResult, problems=(404, 422))
    def cancel_job(id: JobId) -> Spec:
        """Ends the job after the piece that it works on. What is done stays done. It is no error when it is over."""
        return jobs.cancel(id)

    @ops.post("/jobs/{id}:pause", "pauseJob", "Pause a job", answer=JobWithResult, problems=(404, 409, 422))
    def pause_job(id: JobId) -> Spec:
        """Has a replay of a stream or table, or an audit, wait, also across restarts of the broker. Other jobs cannot
        be paused."""
        return jobs.pause(id)

    @ops.post("/jobs/{id}:resume", "resumeJob", "Resume a job", answer=JobWithResult, problems=(404, 409, 422))
    def resume_job(id: JobId) -> Spec:
        """Has a replay or an audit continue that is paused, or a replay of a stream that failed."""
        return jobs.resume(id)


async def result_of(request: Request, job: Job) -> Response:
    """The result of a job; with ``Prefer: respond-async`` at once the job, as 202 with its address."""
    if "respond-async" not in request.headers.get("prefer", ""):
        return answer(await job.over())
    started = answer({**job.as_dict(), "result": None}, 202)
    started.headers["Location"] = f"{PATH}/{job.id}"
    return started


class BacktestJobs(NoPause):
    """Back-tests as jobs (``broker.admin.jobs.JobSource``)."""

    def __init__(self, service: BacktestVerbs, jobs: Jobs) -> None:
        self._service = service
        service.follow_backtests(lambda view: jobs.keep(_job_of(view)))

    def known(self) -> Sequence[Spec]:
        """See ``JobSource``."""
        try:
            found = self._service.backtests()
        except Unavailable:  # a node without streams has none
            return []
        return [_job_of(one) for one in found]

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
