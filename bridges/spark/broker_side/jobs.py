"""Jobs of lake tables: planned here, passed to the lake job with the table, and followed until their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from math import inf
from typing import Any, Final, cast

from bridges.spark.broker_side.reads import TableFiles, reads_files
from bridges.spark.broker_side.service import LakeTableService, lake_module
from bridges.spark.broker_side.states import Order
from bridges.spark.broker_side.table_spec import LakeTableSpec, audit_problem
from bridges.spark.broker_side.views import (
    AuditDepth,
    Clean,
    CleanReport,
    CompactReport,
    DiscardReport,
    ExpireReport,
    GapReport,
    RecreateReport,
    ReplayReport,
    RetainReport,
    Retype,
    RetypeReport,
    ShardOffsetRange,
    SwapReport,
    TableAudit,
    TableDiff,
    TableShadow,
)
from broker.config.places import Place
from broker.core.errors import Conflict, Invalid, Problem, SluiceError, Unavailable
from broker.core.objects import Spec

# Told how much of a job is done; returns whether to continue.
Advance = Callable[[int], bool]
IsPaused = Callable[[], bool]
# Members of the order of a replay that the lake job gets.
_OF_JOB: Final = ("ranges", "into", "rate", "columns", "rule_text", "swap")
# A scheduled audit that did not start or end is started again after so long, or after its interval.
_AUDIT_AGAIN_S: Final = 600.0
_FIRST_AUDIT_S: Final = 10.0
# A replay fails when the lake job has reported nothing about it for so long: Spark has restarted by then.
_SILENT_S: Final = 120.0
_LOOK_AGAIN_S: Final = 0.5


class _Failed(Unavailable):
    """The lake job says that an order failed."""


class TableJobs(TableFiles):
    """Jobs that the lake job does on tables. Plans block on files: call them on a thread."""

    def __init__(self, tables: LakeTableService) -> None:
        super().__init__(tables)
        self._clock = tables.states.clock
        self._audits_at_s: dict[str, float] = {}
        """When the last scheduled audit of each table was started, or tried to be."""
        self._start_audit: Callable[..., object] | None = None
        self._audits_from_s = inf
        self._starting: set[asyncio.Task[None]] = set()

    def recreate(self, name: str) -> RecreateReport:
        """Continue a table as it is, and create its missing tables again, filled with the records its stream still
        has."""
        spec = self._tables.spec(name)
        kept = self._states.kept_of(spec)
        begins = {member: kept[member] for member in ("begins", "start") if kept.get(member)}
        self._states.keep(
            name, (begins and {"path": kept["path"], "epoch": kept["epoch"], **begins}) or None
        )
        self._states.reports.pop(name, None)
        return {"table": name, "path": spec.path}

    def plan_audit(self, name: str, depth: AuditDepth | None = None) -> int:
        """Number of records that an audit covers; without a depth it is that of the table. Blocks on files: call it on
        a thread.

        Raises:
            Invalid: the table cannot be audited so.
            Unavailable: no lake job is running.
        """
        spec = self._tables.spec(name)
        depth = depth or spec.audit_depth
        if text := audit_problem(spec, depth):
            raise Invalid(f"lake table {name!r} cannot be audited", [Problem(text, "/depth")])
        self._states.check_job()
        total = 0
        with suppress(Exception):
            # of several libraries; the audit says why the table cannot be read
            table = self._open(spec)
            shards = (
                [
                    int(position["shard"])
                    for position in self._tables.positions(spec.stream)["shards"]
                ]
                if table
                else []
            )
            total = sum((table.next(shard) or 0) - (table.first(shard) or 0) for shard in shards)
        return total

    def audit_order(self, name: str, depth: AuditDepth | None = None) -> Spec:
        """An audit as it is kept until it is over."""
        return {"audit": depth or self._tables.spec(name).audit_depth}

    async def audit(
        self,
        id: str,
        name: str,
        order: Mapping[str, Any],
        advance: Advance,
        is_paused: IsPaused = lambda: False,
    ) -> TableAudit:
        """Run an order of ``audit_order`` in the lake job, and return its findings."""
        try:
            report: TableAudit | None = await self._ordered(
                id, name, advance, is_paused, waits_for_job=True, **order
            )
        except _Failed as error:
            self._states.note_audit(name, [str(error)])
            raise
        if report is not None:  # it was not cancelled
            self._states.note_audit(name, report["problems"])
        return cast(TableAudit, report)

    def starts_audits(self, start: Callable[..., object]) -> None:
        """Take the function that starts an audit as a job, from a table's name, the unit, the number of records and the
        order. The first one waits for jobs that continue after a start of the broker."""
        self._start_audit, self._audits_from_s = start, self._clock.monotonic_s() + _FIRST_AUDIT_S

    def audit_when_due(self) -> None:
        """Start the audit of each table whose interval has passed since the last one ended."""
        now_s = self._clock.monotonic_s()
        for spec in self._tables.specs() if now_s >= self._audits_from_s else ():
            if self._is_audit_due(spec, now_s):
                self._audits_at_s[spec.name] = now_s
                task = asyncio.create_task(
                    self._audit_on_schedule(spec.name), name=f"scheduled audit of table {spec.name}"
                )
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)

    def _is_audit_due(self, spec: LakeTableSpec, now_s: float) -> bool:
        if (
            spec.audit_interval is None
            or spec.name in self._states.orders
            or self._states.state(spec)[0] == "stopped"
        ):
            return False
        tried_s = self._audits_at_s.get(spec.name, -inf)
        if now_s - tried_s < min(spec.audit_interval, _AUDIT_AGAIN_S):
            return False
        last = self._states.last_audit(spec.name)
        return (
            last is None
            or self._clock.now_ns() / 1e9 - datetime.fromisoformat(last["at"]).timestamp()
            >= spec.audit_interval
        )

    async def _audit_on_schedule(self, name: str) -> None:
        assert self._start_audit is not None
        with suppress(SluiceError):  # no lake job runs; it is tried again
            total = await asyncio.to_thread(self.plan_audit, name)
            self._start_audit(name, "records", total, order=self.audit_order(name))

    @reads_files
    def plan_replay(
        self,
        name: str,
        start: Place | None,
        end: Place | None,
        rule: str | None,
        records: Sequence[tuple[int, int]] | None = None,
        into: str | None = None,
    ) -> ReplayReport:
        """The records that a replay of a range, or of single records by shard and offset, would read again and the rows
        that it would replace. Blocks on files: call it on a thread.

        Raises:
            Invalid: the range is not one, not in the table, or no longer in the stream; or the rule cannot run.
        """
        replay = lake_module("bridges.spark.driver.replay")
        table_spec = lake_module("bridges.spark.driver.batch").TableSpec
        spec = self._tables.job_spec(self._tables.spec(name), rule)
        where = partial(self._tables.positions_at, spec["stream"])
        table = table_spec.of_api(spec, where(None))
        try:
            replay.check_whole(table)
        except lake_module("bridges.spark.tables.contract").TableLost as lost:
            if (
                start is not None
                or end is not None
                or records
                or rule is not None
                or into is not None
            ):
                text = f"{lost} Such a replay takes no range, rule or shadow."
                raise Conflict(text) from None
            kept = self._states.kept_of(self._tables.spec(name))
            begins, ends = (
                {int(shard): int(offset) for shard, offset in (kept.get(member) or {}).items()}
                for member in ("begins", "offsets")
            )
            again: ReplayReport = replay.planned_again(table, where, begins, ends).as_dict()
            if spec["tables"] and not again["fills"]:
                raise Conflict(f"{lost} A table with 'tables' cannot be replayed here.") from None
            return again
        if spec["tables"]:
            text = f"table {name!r} has 'tables', which are not replayed. Try: a new table with a start."
            raise Invalid("the range cannot be replayed", [Problem(text)])
        table.source_columns()
        if into is not None:
            lake_module("bridges.spark.driver.shadow").check_new(table)
        plan: ReplayReport = replay.planned(table, where, start, end, records or ()).as_dict()
        return plan

    async def replay(
        self,
        id: str,
        name: str,
        order: Mapping[str, Any],
        advance: Advance,
        is_paused: IsPaused = lambda: False,
    ) -> ReplayReport | TableShadow:
        """Run an order of ``replay_order`` in the lake job, and return its report. ``id`` is that of the job.
        ``advance`` is called with the number of records read, and returns whether to continue.

        Raises:
            Invalid: the table is being replayed.
            Unavailable: the lake job fails, or does not report.
        """
        if order.get("recreates"):
            self.recreate(name)
        if order.get("fills"):
            return await self._filled(name, order["ranges"], order["missing"], advance)
        job_order = {member: order[member] for member in _OF_JOB if member in order}
        report: ReplayReport | TableShadow = await self._ordered(
            id, name, advance, is_paused, waits_for_job=True, **job_order
        )
        if order.get("recreates"):
            return cast("ReplayReport", {**report, "recreates": True, "missing": order["missing"]})
        return report

    async def _filled(
        self,
        name: str,
        ranges: Sequence[ShardOffsetRange],
        missing: Sequence[ShardOffsetRange],
        advance: Advance,
    ) -> ReplayReport:
        """Wait until a table that is created again has the records of ranges; what it has then."""
        failed_s = self._clock.monotonic_s()
        while True:
            spec = self._tables.spec(name)
            report = self._states.reports.get(name, {})
            offsets = report.get("offsets") or {}
            ends = {span["shard"]: int(offsets.get(str(span["shard"]), 0)) for span in ranges}
            done = sum(
                max(0, min(ends[span["shard"]], span["end"]) - span["start"]) for span in ranges
            )
            is_there = bool(report.get("parts")) and report.get("state") != "failed"
            is_over = is_there and all(ends[span["shard"]] >= span["end"] for span in ranges)
            if not advance(done if is_there else 0) or is_over:
                return {
                    "table": name, "dry_run": False, "ranges": list(ranges), "records": done, "rows_before": 0,
                    "dead_letters_before": 0, "published_from": None, "published_to": None,
                    "rows_after": report.get("rows"), "dead_letters_after": report.get("dead_letters"),
                    "version": report.get("table_version"), "replay": None, "rule": spec.rule or None,
                    "filtered_after": None, "missing": list(missing), "recreates": True, "fills": True,
                }  # fmt: skip
            if is_there:
                failed_s = self._clock.monotonic_s()
            elif self._clock.monotonic_s() - failed_s > _SILENT_S:
                _, reason = self._states.state(spec)
                raise Unavailable(f"the replay failed: {reason or self._states.why_no_job()}")
            await asyncio.sleep(_LOOK_AGAIN_S)

    def replay_order(
        self,
        name: str,
        plan: ReplayReport,
        rule: str | None,
        into: str | None = None,
        rate: int | None = None,
    ) -> Spec:
        """A replay as it is kept until it is over: with the rule as it is now, even if the rule changes later. Empty if
        there is nothing to replay.

        Raises:
            Unavailable: no lake job is running.
        """
        if not (plan["ranges"] or plan["recreates"]):
            return {}
        self._states.check_job()
        spec = self._tables.job_spec(self._tables.spec(name), rule)
        order = {"ranges": plan["ranges"], "into": into, "rate": rate}
        order |= {member: plan[member] for member in ("recreates", "fills", "missing")}
        return {**order, "columns": spec["columns"], "rule_text": spec.get("rule_text")}

    @reads_files
    def plan_diff(self, name: str) -> TableShadow:
        """The shadow of a table that has one. Blocks on files: call it on a thread.

        Raises:
            NotFound: it has none.
        """
        shadow: TableShadow = (
            lake_module("bridges.spark.driver.shadow")
            .Shadow.open(self._table_spec(name))
            .as_dict(name)
        )
        return shadow

    def plan_swap(self, name: str) -> TableShadow:
        """The shadow of a table, which is complete. Blocks on files: call it on a thread.

        Raises:
            NotFound: it has none.
            Conflict: the replay into it is not over.
        """
        shadow = self.plan_diff(name)
        if not shadow["is_complete"]:
            counts = f"{shadow['done']} of {shadow['records']} records"
            raise Conflict(f"the shadow of table {name!r} has {counts}. Try: wait for it.")
        return shadow

    def swap_order(self) -> Spec:
        """A swap as it is kept until it is over."""
        return {"swap": True}

    async def diff(self, id: str, name: str, advance: Advance) -> TableDiff:
        """Compare a table and its shadow in the lake job."""
        report: TableDiff = await self._ordered(id, name, advance, diff=True)
        return report

    async def swap(self, id: str, name: str, advance: Advance) -> SwapReport:
        """Put a shadow in the place of the rows of its ranges, in the lake job."""
        report: SwapReport = await self._ordered(id, name, advance, swap=True)
        return report

    async def discard(self, id: str, name: str, advance: Advance) -> DiscardReport:
        """Remove a shadow, in the lake job."""
        report: DiscardReport = await self._ordered(id, name, advance, discard=True)
        return report

    @reads_files
    def plan_retype(self, name: str, column: str, kind: str) -> int:
        """Number of rows and dead letters that a retype would convert again. Blocks on files: call it on a thread.

        Raises:
            Invalid: there is no such column or type, or the table's columns cannot be changed.
        """
        spec = self._tables.spec(name)
        table_spec = lake_module("bridges.spark.driver.batch").TableSpec
        tables = [self._open(spec), self._open(spec, dead_letters=True)]
        columns = tables[0].columns() if tables[0] is not None else ()
        table = table_spec.of_api(
            self._tables.job_spec(spec), self._tables.positions_at(spec.stream, None)
        )
        lake_module("bridges.spark.driver.retype").check_retype(table, columns, column, kind)
        return sum(opened.rows() for opened in tables if opened is not None)

    async def retype(
        self, id: str, name: str, column: str, kind: str, advance: Advance
    ) -> RetypeReport:
        """Give a column another type, and convert rows and dead letters again, in the lake job."""
        retype: Retype = {"column": column, "type": kind}
        report: RetypeReport = await self._ordered(id, name, advance, retype=retype)
        return report

    async def accept_gap(self, id: str, name: str, advance: Advance) -> GapReport:
        """Continue a table after records that retention removed, in the lake job."""
        report: GapReport = await self._ordered(id, name, advance, accept_gap=True)
        return report

    async def clean(
        self, id: str, name: str, older_than_s: float, dry_run: bool, advance: Advance
    ) -> CleanReport:
        """Remove files that no version of a table refers to, or count them, in the lake job."""
        clean: Clean = {"older_than_s": older_than_s, "dry_run": dry_run}
        report: CleanReport = await self._ordered(id, name, advance, clean=clean)
        return report

    def plan_compact(self, name: str) -> CompactReport:
        """The files that a compaction would join. Blocks on files: call it on a thread.

        Raises:
            Invalid: the table has a key.
        """
        if self._tables.spec(name).key:
            text = "the files of a table with a key are arranged by key, and each batch writes some again"
            raise Invalid(f"lake table {name!r} cannot be compacted", [Problem(text)])
        plan: CompactReport = self._upkeep(name, "compact")
        return plan

    async def compact(self, id: str, name: str, advance: Advance) -> CompactReport:
        """Join the small files of a table and of its dead letters, in the lake job."""
        report: CompactReport = await self._ordered(id, name, advance, compact=True)
        return report

    def plan_expire(self, name: str, older_than_s: float) -> ExpireReport:
        """The files that would be removed with old versions. Blocks on files: call it on a thread."""
        plan: ExpireReport = self._upkeep(name, "expire", older_than_s)
        return plan

    async def expire(
        self, id: str, name: str, older_than_s: float, advance: Advance
    ) -> ExpireReport:
        """Remove old versions of a table and of its dead letters, in the lake job."""
        report: ExpireReport = await self._ordered(
            id, name, advance, expire={"older_than_s": older_than_s}
        )
        return report

    @reads_files
    def plan_retain(self, name: str, older_than_s: float | None) -> RetainReport:
        """Number of rows and dead letters that would be removed by their age. Blocks on files: call it on a thread.

        Raises:
            Invalid: the table has a key, or no age is given and it has no ``retention``.
        """
        spec = self._tables.spec(name)
        if spec.key:
            text = "the files of a table with a key are arranged by key, and its rows have no age"
            raise Invalid(f"rows of lake table {name!r} cannot be removed", [Problem(text)])
        age_s = spec.retention if older_than_s is None else older_than_s
        if age_s is None:
            text = "older_than: expected a duration, as the table has no 'retention', got none"
            raise Invalid(
                f"rows of lake table {name!r} cannot be removed", [Problem(text, "/older_than")]
            )
        upkeep = lake_module("bridges.spark.driver.upkeep")
        plan: RetainReport = upkeep.retain(self._table_spec(name), "", age_s, dry_run=True)
        return plan

    async def retain(
        self, id: str, name: str, older_than_s: float | None, advance: Advance
    ) -> RetainReport:
        """Remove the rows and dead letters of a table that were published longer ago, in the lake job."""
        age_s = self._tables.spec(name).retention if older_than_s is None else older_than_s
        report: RetainReport = await self._ordered(
            id, name, advance, retain={"older_than_s": age_s}
        )
        return report

    @reads_files
    def _upkeep(self, name: str, verb: str, *arguments: Any) -> Any:
        """The report of a dry run of an upkeep verb."""
        upkeep = lake_module("bridges.spark.driver.upkeep")
        return getattr(upkeep, verb)(
            name, upkeep.tables_of(self._table_spec(name)), *arguments, dry_run=True
        )

    async def _ordered(
        self,
        id: str,
        name: str,
        advance: Advance,
        is_paused: IsPaused = lambda: False,
        *,
        waits_for_job: bool = False,
        **parameters: Any,
    ) -> Any:
        """Pass an order to the lake job with the table, and wait for its end; the result. An order that the job has not
        taken fails once no job is running, unless it waits for one, as after a start of the broker."""
        if (busy := self._states.orders.get(name)) is not None:
            text = f"the job {busy.order['id']} works on it already ({busy.verb}). Try: wait for its end, or cancel it."
            raise Invalid(f"lake table {name!r} is busy", [Problem(text)])
        spec = self._tables.job_spec(self._tables.spec(name))
        order: Any = {
            "ranges": [],
            "retype": None,
            "accept_gap": False,
            "clean": None,
            "cancel": False,
        }
        order |= {"compact": False, "expire": None, "replay": id, "pause": is_paused()}
        order |= {
            "id": id,
            "columns": spec["columns"],
            "rule_text": spec.get("rule_text"),
            **parameters,
        }
        replaying = self._states.orders[name] = Order(order, self._clock)
        try:
            while replaying.state == "running":
                self._tables.spec(name)
                replaying.order["cancel"] = not advance(replaying.done)
                replaying.order["pause"] = is_paused()
                if not replaying.is_heard and not waits_for_job:
                    self._states.check_job()
                if self._clock.monotonic_s() - replaying.heard_s > _SILENT_S:
                    raise Unavailable(
                        f"the lake job reported nothing for {_SILENT_S:g} s; {self._states.why_no_job()}"
                    )
                replaying.changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await replaying.changed.wait()
        finally:
            del self._states.orders[name]
        advance(replaying.done)
        if replaying.state == "failed":
            raise _Failed(f"the {replaying.verb} failed: {replaying.error}")
        return replaying.result
