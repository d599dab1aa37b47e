"""The lakehouse's verbs: the job's report, the preview and history of a table, audit, and replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from bridges.spark.broker_side.views import (
    AuditDepth,
    FoundShadow,
    ReplayReport,
    SwapReport,
    TableAudit,
    TableDiff,
    TableHistory,
    TablePreview,
    TableShadow,
)
from broker.admin.jobs import Job, Jobs
from broker.core.errors import Conflict, NotFound
from ui.api.bodies import Json, answer
from ui.api.context import Lake
from ui.api.effects import DryRun
from ui.api.jobs import result_of
from ui.api.models.streams import ReplayRequest, TableReport
from ui.api.operation import Handler, Operations
from ui.api.parameters import NamePath, places_of

Member = Annotated[str | None, Query(description="One of the tables that the rows of a table with `tables` go into.")]


class SharedReads:
    """Reads of tables on threads, one at a time for each question: ten open pages read the table once."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._running: dict[tuple[Any, ...], asyncio.Task[Json]] = {}

    async def preview(self, table: str, limit: int, dead_letters: bool, member: str | None) -> Json:
        """The newest rows or dead letters."""
        return await self._share(("preview", table, limit, dead_letters, member))

    async def history(self, table: str, limit: int, member: str | None) -> Json:
        """Files, versions and schemas."""
        return await self._share(("history", table, limit, member))

    async def shadow(self, table: str) -> Json:
        """Progress of the shadow; not shared, since a read that began before the end of a job does not show it."""
        return await self._read(("shadow", table))

    async def _share(self, question: tuple[Any, ...]) -> Json:
        task = self._running.get(question)
        if task is None:
            task = asyncio.create_task(self._read(question), name=f"{question[0]} of table {question[1]}")
            self._running[question] = task
            task.add_done_callback(lambda done: self._finished(question, done))
        return await asyncio.shield(task)

    async def _read(self, question: tuple[Any, ...]) -> Json:
        verb, *arguments = question
        return await asyncio.to_thread(lambda: answer(getattr(self._lake, verb)(*arguments)))

    def _finished(self, question: tuple[Any, ...], task: asyncio.Task[Json]) -> None:
        del self._running[question]
        if not task.cancelled():
            task.exception()  # retrieved, so that asyncio does not log it when every request for it is gone


def add_lake(router: APIRouter, lake: Lake, jobs: Jobs) -> None:
    """Add the verbs of tables."""
    ops = Operations(router, "Lake", "table")
    _add_reads(ops, lake)
    _add_replays(partial(ops.post, may_be_a_job=True, takes_key=True), lake, jobs)
    _add_audits(partial(ops.post, may_be_a_job=True, takes_key=True), lake, jobs)


def _add_reads(ops: Operations, lake: Lake) -> None:
    reads = SharedReads(lake)

    @ops.put(
        "/lake/tables/{name}/report",
        "reportTable",
        "Report the progress of a table's job",
    )
    def report(name: NamePath, body: TableReport) -> None:
        """The lake job calls this to report its progress. The dashboard and the table show what was reported last."""
        lake.report(name, body.model_dump())

    @ops.get(
        "/lake/tables/{name}/preview",
        "previewTable",
        "Show the newest rows of a table",
        answer=TablePreview,
        problems=(409,),
    )
    async def preview(
        name: NamePath,
        limit: Annotated[int, Query(ge=1, le=1000)] = 20,
        dead_letters: Annotated[bool, Query(description="Show dead letters instead.")] = False,
        member: Member = None,
    ) -> Json:
        """Reads the newest rows from the files of the table, newest first. Of a table with `tables` those of the 20
        that were written last, or of one `member`."""
        return await reads.preview(name, limit, dead_letters, member)

    @ops.get(
        "/lake/tables/{name}/history",
        "getTableHistory",
        "Show the history of a table",
        answer=TableHistory,
        problems=(409,),
    )
    async def history(name: NamePath, limit: Annotated[int, Query(ge=1, le=1000)] = 50, member: Member = None) -> Json:
        """Reads the table's own log, or that of a `member`: files, the last versions with the offsets that each covers,
        schemas."""
        return await reads.history(name, limit, member)

    @ops.get(
        "/lake/tables/{name}/shadow",
        "getTableShadow",
        "Show the shadow of a table",
        answer=FoundShadow,
        problems=(409,),
    )
    async def shadow(name: NamePath) -> Json:
        """Reads from the shadow how far its replay is. It is `null` where the table has none."""
        return await reads.shadow(name)


async def _shadow_of(lake: Lake, table: str) -> TableShadow:
    if (shadow := (await asyncio.to_thread(lake.shadow, table))["shadow"]) is None:
        raise NotFound("shadow of table", table, f"make one: sluice replay {table} --into shadow")
    return shadow


def _add_replays(post: Callable[..., Callable[[Handler], Handler]], lake: Lake, jobs: Jobs) -> None:
    @post("/lake/tables/{name}:replay", "replayTable", "Replay a range of a stream into a table", answer=ReplayReport)
    async def replay(
        name: NamePath, body: ReplayRequest, request: Request, dry_run: DryRun = False
    ) -> Response | ReplayReport:
        """Reads the range again and replaces its rows and dead letters; the rule of a table runs again as it is now.
        Without a range or `records` the table is rebuilt from all that the stream still has of it. A table that was
        lost is made again, as by `recreate`, and filled; `missing` are the records that the stream no longer has. With
        `dry_run` returns what would be replaced. Into a shadow, the table stays as it is until the shadow is swapped.
        It is a job, which can be paused and continues when the broker starts again: `Prefer: respond-async` does not
        wait for its end.
        """
        records = places_of(body.records or ())
        plan = await asyncio.to_thread(lake.plan_replay, name, body.start, body.end, body.rule, records, body.into)
        if dry_run or not (plan["ranges"] or plan["recreates"]):
            return plan
        order = lake.replay_order(name, plan, body.rule, body.into, body.rate)
        return await result_of(request, jobs.start("replay", name, "records", plan["records"], order=order))

    jobs.takes_orders(
        "replay", lambda job: lake.replay(job.id, job.name, job.order or {}, job.advance, lambda: job.is_paused)
    )

    @post("/lake/tables/{name}:diff", "diffTable", "Compare a table with its shadow", answer=TableDiff)
    async def diff(name: NamePath, request: Request) -> Response | TableDiff:
        """Compares the rows and dead letters of the ranges that the shadow has, by shard, offset and number of the row.
        It is a job: `Prefer: respond-async` does not wait for its end.
        """
        shadow = await _shadow_of(lake, name)
        job = jobs.start("diff", name, "records", shadow["done"], lambda job: lake.diff(job.id, name, job.advance))
        return await result_of(request, job)

    @post("/lake/tables/{name}:swap", "swapTable", "Put the shadow in the place of a table's rows", answer=SwapReport)
    async def swap(name: NamePath, request: Request, dry_run: DryRun = False) -> Response | TableShadow:
        """Replaces the rows of the replayed ranges by those of the shadow in one commit, then the dead letters, and
        removes the shadow. Other rows stay, and so do records that arrived in the meantime. With `dry_run` returns the
        shadow. It is a job, which continues when the broker starts again: `Prefer: respond-async` does not wait for its
        end.
        """
        shadow = await _shadow_of(lake, name)
        if not shadow["is_complete"]:
            text = (
                f"the shadow of table {name!r} has {shadow['done']} of {shadow['records']} records. Try: wait for it."
            )
            raise Conflict(text)
        if dry_run:
            return shadow
        return await result_of(request, jobs.start("swap", name, "records", shadow["records"], order={"swap": True}))

    jobs.takes_orders("swap", lambda job: lake.swap(job.id, job.name, job.advance))


def _add_audits(post: Callable[..., Callable[[Handler], Handler]], lake: Lake, jobs: Jobs) -> None:
    async def start(name: str, depth: AuditDepth | None = None) -> Job:
        order, total = await asyncio.to_thread(lake.plan_audit, name, depth)
        return jobs.start("audit", name, "records", total, order=order)

    @post("/lake/tables/{name}:audit", "auditTable", "Audit a table", answer=TableAudit)
    async def audit(
        name: NamePath,
        request: Request,
        depth: Annotated[
            AuditDepth | None,
            Query(
                description="`values`: also compares values with the sums that commits keep. `deep`: also with the "
                "records read from the stream again. Default: the table's `audit_depth`."
            ),
        ] = None,
    ) -> Response | TableAudit:
        """Proves by offset that every record of the stream is a row, was filtered, or is a dead letter. The lake job
        reads the table by ranges of offsets; the table is filled while it runs. It is a job, which can be paused and
        continues when the broker starts again: `Prefer: respond-async` does not wait for its end.
        """
        return await result_of(request, await start(name, depth))

    jobs.takes_orders(
        "audit", lambda job: lake.audit(job.id, job.name, job.order or {}, job.advance, lambda: job.is_paused)
    )
    lake.starts_audits(start)
