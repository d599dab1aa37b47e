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
    CleanReport,
    CompactReport,
    DiscardReport,
    ExpireReport,
    FoundShadow,
    GapReport,
    RecreateReport,
    ReplayReport,
    RetainReport,
    RetypeReport,
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
from ui.api.models.streams import CleanRequest, ExpireRequest, ReplayRequest, RetainRequest, RetypeRequest, TableReport
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
        """How far the shadow is; not shared, since a read that began before the end of a job does not show it."""
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
    ops = Operations(router, "Lake")
    _add_reads(ops, lake)
    _add_replays(partial(ops.post, may_be_a_job=True, takes_key=True), lake, jobs)
    _add_upkeep(partial(ops.post, may_be_a_job=True, takes_key=True), lake, jobs)
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

    @ops.post(
        "/lake/tables/{name}:recreate", "recreateTable", "Create a table again that is gone", answer=RecreateReport
    )
    def recreate(name: NamePath) -> RecreateReport:
        """A table that was removed, replaced by another one or put back to an older version is `failed`: its job does
        not create it again by itself, as records may be gone from the stream. The same holds for its dead-letter table
        and the tables that its rows go into. This lets it go on: what is gone is created again with what the stream
        still has, what is there stays as it is."""
        return lake.recreate(name)


async def _shadow_of(lake: Lake, table: str) -> TableShadow:
    if (found := (await asyncio.to_thread(lake.shadow, table))["shadow"]) is None:
        raise NotFound("shadow of table", table, f"make one: sluice replay {table} --into shadow")
    return found


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
        found = await _shadow_of(lake, name)
        job = jobs.start("diff", name, "records", found["done"], lambda job: lake.diff(job.id, name, job.advance))
        return await result_of(request, job)

    @post("/lake/tables/{name}:swap", "swapTable", "Put the shadow in the place of a table's rows", answer=SwapReport)
    async def swap(name: NamePath, request: Request, dry_run: DryRun = False) -> Response | TableShadow:
        """Replaces the rows of the replayed ranges by those of the shadow in one commit, then the dead letters, and
        removes the shadow. Other rows stay, and so do records that arrived meanwhile. With `dry_run` returns the
        shadow. It is a job, which continues when the broker starts again: `Prefer: respond-async` does not wait for its
        end.
        """
        found = await _shadow_of(lake, name)
        if not found["is_complete"]:
            text = f"the shadow of table {name!r} has {found['done']} of {found['records']} records. Try: wait for it."
            raise Conflict(text)
        if dry_run:
            return found
        return await result_of(request, jobs.start("swap", name, "records", found["records"], order={"swap": True}))

    jobs.takes_orders("swap", lambda job: lake.swap(job.id, job.name, job.advance))

    @post("/lake/tables/{name}:discard", "discardTableShadow", "Remove the shadow of a table", answer=DiscardReport)
    async def discard(name: NamePath, request: Request) -> Response | DiscardReport:
        """Removes the shadow with its files; the table stays as it is. It is no error when there is none. It is a job:
        `Prefer: respond-async` does not wait for its end.
        """
        job = jobs.start("discard", name, "files", 0, lambda job: lake.discard(job.id, name, job.advance))
        return await result_of(request, job)


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
                description="`values`: also compares values with the sums that commits keep. `deep`: also with what "
                "the stream gives again. Default: the table's `audit_depth`."
            ),
        ] = None,
    ) -> Response | TableAudit:
        """Proves by offset that every record of the stream is a row, was filtered, or is a dead letter. The lake job
        reads the table by ranges of offsets; the table is filled meanwhile. It is a job, which can be paused and
        continues when the broker starts again: `Prefer: respond-async` does not wait for its end.
        """
        return await result_of(request, await start(name, depth))

    jobs.takes_orders(
        "audit", lambda job: lake.audit(job.id, job.name, job.order or {}, job.advance, lambda: job.is_paused)
    )
    lake.starts_audits(start)


def _add_upkeep(post: Callable[..., Callable[[Handler], Handler]], lake: Lake, jobs: Jobs) -> None:
    @post("/lake/tables/{name}:retype", "retypeTable", "Give a column of a table another type", answer=RetypeReport)
    async def retype(name: NamePath, body: RetypeRequest, request: Request) -> Response | RetypeReport:
        """Converts all rows and dead letters again: dead letters that fit become rows, rows that do not fit become dead
        letters. The table is not filled meanwhile. It is a job: `Prefer: respond-async` does not wait for its end.
        """
        total = await asyncio.to_thread(lake.plan_retype, name, body.column, body.type)
        job = jobs.start(
            "retype", name, "rows", total, lambda job: lake.retype(job.id, name, body.column, body.type, job.advance)
        )
        return await result_of(request, job)

    @post(
        "/lake/tables/{name}:clean",
        "cleanTable",
        "Remove files that no version of a table refers to",
        answer=CleanReport,
    )
    async def clean(
        name: NamePath, body: CleanRequest, request: Request, dry_run: DryRun = False
    ) -> Response | CleanReport:
        """Removes what tasks that were killed and commits that were refused left, and files that were joined. With
        `dry_run` returns how many. The table is not filled meanwhile. It is a job: `Prefer: respond-async` does not
        wait for its end.
        """
        job = jobs.start(
            "clean", name, "files", 0, lambda job: lake.clean(job.id, name, body.older_than, dry_run, job.advance)
        )
        return await result_of(request, job)

    @post("/lake/tables/{name}:compact", "compactTable", "Join the small files of a table", answer=CompactReport)
    async def compact(name: NamePath, request: Request, dry_run: DryRun = False) -> Response | CompactReport:
        """Joins the small files of each partition, of the table and of its dead letters; rows stay as they are, and
        the table is filled meanwhile. With `dry_run` returns what would be joined. It is a job: `Prefer: respond-async`
        does not wait for its end.
        """
        plan = await asyncio.to_thread(lake.plan_compact, name)
        if dry_run:
            return plan
        job = jobs.start("compact", name, "files", plan["files"], lambda job: lake.compact(job.id, name, job.advance))
        return await result_of(request, job)

    @post("/lake/tables/{name}:expire", "expireTable", "Remove old versions of a table", answer=ExpireReport)
    async def expire(
        name: NamePath, body: ExpireRequest, request: Request, dry_run: DryRun = False
    ) -> Response | ExpireReport:
        """Removes versions that are older, and the files that only they have, of the table and of its dead letters. The
        newest version stays, and so do Iceberg's branches and tags; a time shorter than a Delta table promises by its
        `delta.deletedFileRetentionDuration` is refused. With `dry_run` returns what would go. It is a job:
        `Prefer: respond-async` does not wait for its end.
        """
        plan = await asyncio.to_thread(lake.plan_expire, name, body.older_than)
        if dry_run:
            return plan
        job = jobs.start(
            "expire", name, "files", plan["files"],
            lambda job: lake.expire(job.id, name, body.older_than, job.advance),
        )  # fmt: skip
        return await result_of(request, job)

    @post("/lake/tables/{name}:retain", "retainTable", "Remove old rows of a table", answer=RetainReport)
    async def retain(
        name: NamePath, body: RetainRequest, request: Request, dry_run: DryRun = False
    ) -> Response | RetainReport:
        """Removes rows and dead letters that were published longer ago, as the lake job does about once an hour in
        tables with `retention`; of a table with partitions by `_published_at` whole partitions. With `dry_run` returns
        how many. It is a job: `Prefer: respond-async` does not wait for its end.
        """
        plan = await asyncio.to_thread(lake.plan_retain, name, body.older_than)
        if dry_run:
            return plan
        job = jobs.start(
            "retain", name, "rows", plan["rows"], lambda job: lake.retain(job.id, name, body.older_than, job.advance)
        )
        return await result_of(request, job)

    @post(
        "/lake/tables/{name}:accept-gap",
        "acceptTableGap",
        "Continue a table after records that retention removed",
        answer=GapReport,
    )
    async def accept_gap(name: NamePath, request: Request) -> Response | GapReport:
        """Continues with the first record that the stream has; the ledger records which ones the table lacks. It is a
        job: `Prefer: respond-async` does not wait for its end.
        """
        job = jobs.start("accept-gap", name, "records", 0, lambda job: lake.accept_gap(job.id, name, job.advance))
        return await result_of(request, job)
