"""Jobs that each cell carries out on its own data, under one identifier: they are shown as one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from typing import Any, Final

from starlette.responses import Response

from broker.admin.jobs import JOB_ID, NOTHING_TO_DO
from broker.admin.rights import Actor
from broker.core import jsontext
from broker.core.cells import Place
from broker.core.errors import Conflict, Invalid, NotFound, SluiceError, Unavailable
from broker.core.objects import Spec
from ui.api.cell_calls import Away, CellCalls, Reply, not_there, reply_of, there
from ui.api.cell_config import Act
from ui.api.cell_joins import summed
from ui.api.cell_requests import Asked, CellRequests, with_missing
from ui.api.jobs import PATH as JOBS_PATH
from ui.api.json_bodies import Json

# Seconds between looks at the parts of a job whose end is waited for.
_JOB_STEP_S: Final = 0.2
# Seconds after which a cell that does not answer is asked for its part again.
_AGAIN_S: Final = 1.0
_NOT_FOUND: Final = 404

JOB_HEADER: Final = "sluice-job"
"""Header of a call from the front with the identifier of the job to begin."""
# States of a job in one cell that decide for all, in this order.
_DECIDE: Final = ("running", "paused", "failed", "interrupted", "cancelled")


def is_over(job: Spec) -> bool:
    """True if a job has ended."""
    return job["state"] not in ("running", "paused")


def joined(parts: Sequence[Spec]) -> Spec:
    """A job as its cells show it, as one."""
    if len(parts) == 1:
        return parts[0]
    states = [part["state"] for part in parts]
    state = next((state for state in _DECIDE if state in states), states[0])
    ended = [part["ended_at"] for part in parts]
    job = {
        **parts[0],
        "state": state,
        "progress": {
            **parts[0]["progress"],
            **{name: sum(part["progress"][name] for part in parts) for name in ("done", "total")},
        },
        "rate": _of_any(sum, [part["rate"] for part in parts]),
        "eta_s": _of_any(max, [part["eta_s"] for part in parts]),
        "started_at": min(part["started_at"] for part in parts),
        "ended_at": None if None in ended else max(ended),
        "error": next((part["error"] for part in parts if part["error"]), None),
    }
    if "result" in parts[0]:
        job["result"] = results([part["result"] for part in parts])
    return job


def results(parts: Iterable[Any]) -> Any:
    """The results of the parts of a job, as one: numbers added, lists one behind the other."""
    total: Any = None
    for part in parts:
        total = summed(total, part)
    return total


def together(jobs: Iterable[Spec]) -> list[Spec]:
    """Jobs of all cells, those of one identifier as one, newest first."""
    by_id: dict[str, list[Spec]] = {}
    for job in jobs:
        by_id.setdefault(job["id"], []).append(job)
    one_each = [joined(parts) for parts in by_id.values()]
    return sorted(one_each, key=lambda job: str(job["started_at"]), reverse=True)


def _of_any(how: Any, values: Sequence[Any]) -> Any:
    numbers = [value for value in values if value is not None]
    return how(numbers) if numbers else None


class JobsOfCells:
    """Jobs that are begun, shown and changed in all cells that have them."""

    def __init__(self, place: Place, calls: CellCalls, requests: CellRequests) -> None:
        self._place = place
        self._calls = calls
        self._requests = requests

    async def answer(self, asked: Asked, act: Act) -> Response:
        """Jobs are begun in all cells, each on its own data, or shown and changed in those that have them."""
        if "id" in asked.request.path_params:
            return await self._one_job(asked, act)
        if asked.method == "GET":
            replies, away = await self._requests.to_all(asked, act)
            jobs = [job for reply in replies if reply.is_good for job in reply.value["items"]]
            items = together(jobs)
            page = {**replies[0].value, "items": items, "total": len(items)}
            return with_missing(page, away)
        return await self._begin_job(asked, act)

    async def _one_job(self, asked: Asked, act: Act) -> Response:
        """A job of all cells that have it, shown or changed."""
        others = [
            asyncio.ensure_future(self._requests.to_cell(asked, cell))
            for cell in self._place.others
        ]
        parts: list[Spec] = []
        missing: SluiceError | None = None
        try:
            parts.append(reply_of(self._place.number, await act()).value)
        except (NotFound, Conflict) as error:
            missing = error
        answers = await asyncio.gather(*others)
        replies = [answer for answer in answers if isinstance(answer, Reply)]
        parts += [reply.value for reply in replies if reply.is_good]
        away = [answer for answer in answers if isinstance(answer, Away)]
        refused = next((r for r in replies if not r.is_good and r.status != _NOT_FOUND), None)
        if parts:
            return with_missing(joined(parts), away)
        if refused is not None and not isinstance(missing, Conflict):
            return refused.response()
        if away:
            raise not_there(away[0])
        assert missing is not None
        raise missing

    async def _begin_job(self, asked: Asked, act: Act) -> Response:
        """Begin a job under one identifier in all cells; all must be there. One that has nothing to do is left out."""
        await self._requests.require_all(asked)
        id = secrets.token_hex(8)
        sent = None if asked.sent is None else dict(asked.sent)
        rate = None if sent is None else sent.get("rate", asked.default("rate"))
        if sent is not None and rate is not None:
            sent["rate"] = max(1, rate // self._place.count)
        headers = {JOB_HEADER: id, "prefer": "respond-async"}
        answers = await asyncio.gather(
            *(
                self._requests.send(asked, cell, sent, asked.parameters(), headers)
                for cell in self._place.others
            )
        )
        jobs = {
            answer.cell: answer.value
            for answer in answers
            if isinstance(answer, Reply) and answer.is_good
        }
        begun = list(jobs)
        failed = [
            answer
            for answer in answers
            if isinstance(answer, Away) or not (answer.is_good or answer.code == NOTHING_TO_DO)
        ]
        if failed:
            await self._cancel_job(id, begun)
            return there(failed[0]).response()
        JOB_ID.set(id)
        own: Spec | None = None
        is_waited = "respond-async" not in asked.request.headers.get("prefer", "")
        try:
            changed: dict[str, Any] = {}
            if sent is not None and rate is not None:
                body = asked.values["body"].model_copy(update={"rate": sent["rate"]})
                changed["body"] = body
            own = reply_of(self._place.number, await act(**changed)).value
        except Invalid as error:
            if error.code != NOTHING_TO_DO or not begun:
                await self._cancel_job(id, begun)
                raise
        except SluiceError:
            await self._cancel_job(id, begun)
            raise
        if not is_waited:
            parts = [*([own] if own else []), *jobs.values()]
            started = Json(jsontext.encode(joined(parts)), 202)
            started.headers["Location"] = f"{JOBS_PATH}/{id}"
            return started
        parts = await self._parts(id, begun)
        while not all(map(is_over, parts)):
            await asyncio.sleep(_JOB_STEP_S)
            parts = await self._parts(id, begun)
        if lost := next((part for part in parts if part["state"] != "done"), None):
            raise SluiceError(lost["error"] or f"the job was {lost['state']} in a cell")
        done = [*([own] if own else []), *(part["result"] for part in parts)]
        return Json(jsontext.encode(results(done)))

    async def _parts(self, id: str, cells: Sequence[int]) -> list[Spec]:
        """A job in other cells. One that is away is waited for: it continues the job, or shows how it ended."""
        parts: list[Spec] = []
        for cell in cells:
            while True:
                answer = await self._calls.ask(
                    cell, "GET", f"{JOBS_PATH}/{id}", actor=Actor("front")
                )
                if isinstance(answer, Reply):
                    break
                await asyncio.sleep(_AGAIN_S)
            if not answer.is_good:
                raise Unavailable(f"cell {cell} has lost job {id}: {answer.detail}")
            parts.append(answer.value)
        return parts

    async def _cancel_job(self, id: str, cells: Sequence[int]) -> None:
        path = f"{JOBS_PATH}/{id}:cancel"
        await asyncio.gather(
            *(self._calls.ask(cell, "POST", path, actor=Actor("front")) for cell in cells)
        )
