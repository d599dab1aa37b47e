"""Quarantine: what waits there, and publishing it again."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from broker.admin.jobs import Jobs
from broker.admin.quarantine import QuarantineService, QuarantineView, TakenAgain
from broker.core.objects import Spec
from ui.api.jobs import result_of
from ui.api.models.gates import QuarantinePage, TakeAgain
from ui.api.objects import Cursor, Limit, page_of
from ui.api.operation import Operations
from ui.api.parameters import NamePath, RecordId, places_of

Records = Annotated[
    list[RecordId] | None,
    Query(alias="record", max_length=200, description="Only this record, as `SHARD/OFFSET`; may be repeated."),
]


def add_quarantine(router: APIRouter, quarantine: QuarantineService, jobs: Jobs) -> None:
    """Add ``/quarantine`` and its verbs."""
    ops = Operations(router, "Quarantine")

    @ops.get("/quarantine", "listQuarantines", "List quarantines", answer=QuarantinePage)
    def list_quarantines(limit: Limit = 100, cursor: Cursor = None) -> Spec:
        """Returns the streams that keep messages stopped by validations and transformations."""
        return page_of(quarantine.overview(), limit, cursor, "stream")

    @ops.get("/quarantine/{name}", "getQuarantine", "List the messages of a quarantine", answer=QuarantineView)
    def show(name: NamePath, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> QuarantineView:
        """Returns the stopped messages, oldest first, each with the reason."""
        return quarantine.get(name, limit)

    @ops.post(
        "/quarantine/{name}:take-again",
        "takeQuarantineAgain",
        "Publish quarantined messages again",
        answer=TakenAgain,
        may_be_a_job=True,
        takes_key=True,
    )
    async def take_again(name: NamePath, body: TakeAgain, request: Request, records: Records = None) -> Response:
        """Publishes stopped messages again through all stages, oldest first, or each `record`. One that fails again is
        stopped again, with its new reason. It is a job: `Prefer: respond-async` does not wait for its end.
        """
        places = None if records is None else places_of(records)
        total = min(body.limit, quarantine.get(name, 0)["waiting"] if places is None else len(places))
        job = jobs.start(
            "quarantine",
            name,
            "messages",
            total,
            lambda job: quarantine.take_again(name, body.limit, job.advance, places),
        )
        return await result_of(request, job)
