"""Jobs of all cells while one of them is away."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from broker.core import jsontext
from broker.core.cells import Place
from tests.support.mqtt_server import on_loop
from tests.support.waiting import within
from ui.api.cell_calls import Away, Reply
from ui.api.cell_jobs import JobsOfCells
from ui.api.json_bodies import Json

_JOB = {
    "id": "1",
    "state": "running",
    "progress": {"done": 0, "total": 5},
    "rate": None,
    "eta_s": None,
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": None,
    "error": None,
}


class OtherCell:
    """Begins a job, and answers no more."""

    async def require_all(self, asked: object) -> None:
        """It is there."""

    async def send(self, asked: object, cell: int, *_: object) -> Reply:
        return Reply(cell, 202, jsontext.encode(_JOB))

    async def ask(self, cell: int, *_: object, **__: object) -> Away:
        return Away(cell, "it does not run")


@on_loop
async def test_a_job_that_the_client_does_not_wait_for_is_shown_as_it_began() -> None:
    other: Any = OtherCell()
    jobs = JobsOfCells(Place(0, 2, Path()), other, other)
    request = SimpleNamespace(path_params={}, headers={"prefer": "respond-async"})
    asked: Any = SimpleNamespace(
        request=request, method="POST", sent=None, values={}, parameters=list
    )

    async def act() -> Json:
        return Json(jsontext.encode(_JOB), 202)

    answer = await within(jobs.answer(asked, act), 5)
    shown = jsontext.decode(bytes(answer.body))
    assert (answer.status_code, shown["state"], shown["progress"]["total"]) == (202, "running", 10)
