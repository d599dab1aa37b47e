"""Verbs of lake tables: create, change, delete, list, and a preview of their rows.

Runs in the broker, which need not have Spark's packages: modules that read tables are imported on first use.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from functools import partial, wraps
from math import inf, nan
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from bridges.spark.broker_side.advice import advice_of
from bridges.spark.broker_side.table_spec import LakeTableSpec, Places, audit_problem, checked, parse_spec
from bridges.spark.broker_side.views import (
    AuditDepth,
    Clean,
    CleanReport,
    CompactReport,
    DiscardReport,
    ExpireReport,
    FoundShadow,
    GapReport,
    LastAudit,
    RecreateReport,
    ReplayProgress,
    ReplayReport,
    RetainReport,
    Retype,
    RetypeReport,
    ShardOffsetRange,
    SwapReport,
    TableAudit,
    TableDiff,
    TableHistory,
    TablePreview,
    TableProgress,
    TableReplay,
    TableResult,
    TableShadow,
)
from bridges.spark.columns.store import place_of
from bridges.spark.tasks.failures import sentence_of
from bridges.spark.tasks.rule_text import RuleText
from broker.config.places import Place
from broker.config.secret_text import SecretUnreadable
from broker.core.contributor import Change, Contributor, Uses
from broker.core.errors import (
    Conflict,
    Invalid,
    MissingDependency,
    NotFound,
    Problem,
    SluiceError,
    Unavailable,
    Unreadable,
)
from broker.core.feature import Services
from broker.core.kinds import counted
from broker.core.marks import marked
from broker.core.objects import ObjectSection, Reference, Spec
from broker.core.ordered import ObjectVerbs
from broker.core.times import rfc3339, rfc3339_of

log = logging.getLogger("sluice.lake")
P = ParamSpec("P")
T = TypeVar("T")
# Members of a table as it is shown that say how it is doing; ignored when it is sent back.
_SHOWN_ONLY = frozenset(
    {
        "columns",
        "rule_text",
        "is_expected",
        "expected",
        "begins",
        "store",
        "catalog_settings",
        "state",
        "reason",
        "advice",
        "report",
        "replay",
        "lag_records",
        "lag_s",
        "valid_through",
        "rows",
        "dead_letters",
        "last_audit",
    }
)
# Members of a report that are metrics.
_FIGURES: Final = {
    "rows": ("table_rows", "rows of a table"),
    "files": ("table_files", "data files of a table"),
    "dead_letters": ("table_dead_letters", "dead letters of a table"),
    "commit_s": ("table_commit_seconds", "how long the last commit of a table took"),
}
# Begin of the keys under which the store keeps what each table has, as its job reported last: ``offsets``, ``begins``
# and ``parts``. Without offsets, the table is to begin there again.
_KEPT: Final = "lake/tables/"
# The parts of a table of which is known that its job has written it, and no more.
_WRITTEN: Final = {"": {"id": None, "version": 0}}
# Members of the order of a replay that the lake job gets.
_OF_JOB: Final = ("ranges", "into", "rate", "columns", "rule_text", "swap")
# Begin of the keys under which the store keeps what the last audit of each table found.
_AUDITS: Final = "lake/audits/"
# A scheduled audit that did not start or end is started again after so long, or after its interval.
_AUDIT_AGAIN_S: Final = 600.0
_FIRST_AUDIT_S: Final = 10.0
_SHOWN_PROBLEMS: Final = 20
# A job reports at least every 5 s; one that is silent for so long has ended or hangs.
_GONE_S: Final = 12.0
_MINUTE_S: Final = 60.0
# A replay fails when the lake job has reported nothing about it for so long: Spark has restarted by then.
_SILENT_S: Final = 120.0
_LOOK_AGAIN_S: Final = 0.5
# Members of an order, and what the work is called; without one of these it is a replay.
_VERBS: Final = {
    "retype": "retype",
    "accept_gap": "acceptance",
    "clean": "cleaning",
    "compact": "compaction",
    "expire": "expiry",
    "retain": "removal of rows",
    "diff": "comparison",
    "swap": "swap",
    "discard": "removal of the shadow",
    "audit": "audit",
}
# Member tables that a preview of the table reads.
_PREVIEWED: Final = 20
# The types of columns that may be in the names of tables.
_NAMING: Final = ("string", "enum", "integer", "long", "double", "boolean", "date")


def _reads(
    read: Callable[Concatenate[LakeTableService, str, P], T],
) -> Callable[Concatenate[LakeTableService, str, P], T]:
    """Say in a sentence why the files of a table cannot be read, whichever library finds out."""

    @wraps(read)
    def reading(self: LakeTableService, name: str, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(self, name, *args, **kwargs)
        except SecretUnreadable as error:
            raise Unavailable(f"table {name!r} cannot be read: {error}") from error
        except SluiceError:
            raise
        except Exception as error:
            log.exception("lake.not_read", extra={"table": name})
            reason = sentence_of("".join(traceback.format_exception(error)), self._objects.get(name).path)
            kind = Unreadable if isinstance(error, FileNotFoundError) else Unavailable
            raise kind(f"table {name!r} cannot be read: {reason}") from error

    return reading  # type: ignore[return-value]  # the name may be a keyword too


@dataclass(eq=False)
class _Replaying:
    """A replay that was passed to the lake job, and what that reported about it last."""

    order: TableReplay
    state: str = "running"
    done: int = 0
    error: str | None = None
    result: TableResult | None = None
    heard_s: float = field(default_factory=time.monotonic)
    is_heard: bool = False
    """True if the lake job has reported on it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, progress: ReplayProgress) -> None:
        if progress["id"] != self.order["id"]:
            return
        self.state = progress["state"]
        self.done = progress["done"]
        self.error = progress["error"]
        self.result = progress["result"]
        self.heard_s = time.monotonic()
        self.is_heard = True
        self.changed.set()

    @property
    def verb(self) -> str:
        """Name of the work."""
        return next((verb for member, verb in _VERBS.items() if self.order.get(member)), "replay")


class _Failed(Unavailable):
    """The lake job says that an order failed."""


class _Count(NamedTuple):
    """Number of rows and dead letters of a table at one time."""

    at_s: float
    rows: int
    dead_letters: int


class Job(Protocol):
    """The job that fills the tables."""

    def want(self, wanted: bool) -> None:
        """Start or end the job: whether there are tables to fill."""
        ...

    def succeeded(self) -> None:
        """A table was filled, or found complete."""
        ...

    def state(self) -> Mapping[str, Any]:
        """``state``, its ``reason``, and ``started_at``: when the process started that does the work (RFC 3339)."""
        ...


class LakeTableService(ObjectVerbs[LakeTableSpec], Contributor):
    """Lake tables, and what the job reports about them."""

    kind = "lake table"

    def __init__(self, services: Services, section: ObjectSection, places: Places, job: Job) -> None:
        super().__init__(section, lambda spec: spec.model_dump(mode="json"))
        self._services = services
        self._places = places
        self._job = job
        self._positions = services.storage.positions
        self._reports: dict[str, dict[str, Any]] = {}
        self._counts: dict[str, deque[_Count]] = {}
        """Counts of the last minute, by table; the last one is of the last report."""
        self._replays: dict[str, _Replaying] = {}
        self._kept: dict[str, Mapping[str, Any]] = {}
        """Values in the store, as far as they were read."""
        self._waiting: dict[str, dict[int, tuple[int, int]]] = {}
        """By table and shard, the first record that the table does not have, and when it was published."""
        self._last_audits: dict[str, LastAudit | None] = {}
        """Values in the store, as far as they were read."""
        self._audits_at_s: dict[str, float] = {}
        """When the last scheduled audit of each table was started, or tried to be."""
        self._start_audit: Callable[..., object] | None = None
        self._audits_from_s = inf
        self._starting: set[asyncio.Task[None]] = set()

    def load(self, specs: Sequence[Spec]) -> builtins.list[str]:
        """Take the tables of the configuration; gives a sentence for each that cannot be used.

        The stream and the path are not checked: the job finds them, and a broker starts with its tables even if a disk
        is gone.
        """
        problems = []
        for spec in specs:
            try:
                parsed = checked(spec)
                self._objects.check_free(parsed.name)
            except SluiceError as error:
                problems.append(self._objects.refusal(spec, error))
                continue
            self._objects.adopt(parsed.name, parsed.model_copy(update={"path": self._places.path_of(parsed)}))
        self._changed()
        return problems

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change a table; its files are those of one stream, format and kind of rows."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        parsed = self._compiled({**spec, "name": name})
        if parsed.path == before.path and bool(parsed.rule) != bool(before.rule):
            text = f"the table at {before.path} has rows of {'a rule' if before.rule else 'the stream itself'}"
            raise Invalid(
                f"lake table {name!r} cannot be saved", [Problem(f"{text}; give another path with it", "/rule")]
            )
        for member in ("stream", "format", "key", "tables"):
            if parsed.path == before.path and getattr(parsed, member) != getattr(before, member):
                value = getattr(before, member) or "none"
                text = f"the table at {before.path} has {member} {value!r}; give another path with it"
                raise Invalid(f"lake table {name!r} cannot be saved", [Problem(text, f"/{member}")])
        if parsed.path == before.path and parsed.format == "delta" and parsed.partition_by != before.partition_by:
            text = (
                f"the Delta table at {before.path} is partitioned by {', '.join(before.partition_by) or 'nothing'}, "
                f"which cannot change; give another path with it"
            )
            raise Invalid(f"lake table {name!r} cannot be saved", [Problem(text, "/partition_by")])
        return self._put(parsed)

    def delete(self, name: str) -> None:
        """Forget the table; its files stay."""
        super().delete(name)
        self._keep(name, None)
        self._reports.pop(name, None)
        self._counts.pop(name, None)
        self._waiting.pop(name, None)
        self._services.storage.values.put(_AUDITS + name, None)
        self._last_audits.pop(name, None)
        for alarm in (_failed(name), _burying(name), _late(name), _holding(name), _audited(name)):
            self._services.monitoring.alarms.deactivate(alarm)
        self._services.monitoring.metrics.remove(table=name)

    def recreate(self, name: str) -> RecreateReport:
        """Continue a table as it is, and create its missing tables again, filled with the records its stream still
        has."""
        spec = self._objects.get(name)
        kept = self._kept_of(spec)
        begins = {member: kept[member] for member in ("begins", "start") if kept.get(member)}
        self._keep(name, (begins and {"path": kept["path"], "epoch": kept["epoch"], **begins}) or None)
        self._reports.pop(name, None)
        return {"table": name, "path": spec.path}

    def _keep(self, name: str, kept: Mapping[str, Any] | None) -> None:
        self._services.storage.values.put(_KEPT + name, None if kept is None else json.dumps(kept).encode())
        self._kept[name] = kept or {}

    def _kept_of(self, spec: LakeTableSpec) -> Mapping[str, Any]:
        """Figures of a table by its job's last report, before or after the broker started; empty for a table that is
        new in its place."""
        if spec.name not in self._kept:
            text = self._services.storage.values.get(_KEPT + spec.name)
            self._kept[spec.name] = json.loads(text) if text else {}
        kept = self._kept[spec.name]
        if kept.get("path") != spec.path or spec.stream not in self._services.storage.streams.names():
            return {}
        return kept if kept["epoch"] == self._positions(spec.stream)["epoch"] else {}

    def _put(self, item: LakeTableSpec) -> Spec:
        super()._put(item)
        self._note_start(item)
        return self._shown(item)

    def _note_start(self, spec: LakeTableSpec) -> None:
        """Keep where a table is to begin, as long as no job has begun it: what it lacks is known without one."""
        self._kept_of(spec)
        kept = self._kept[spec.name]
        if kept.get("offsets") or kept.get("begins"):  # perhaps of another path, which the table may have again
            return
        start = spec.start
        if start is None or (isinstance(start, datetime) and start.timestamp() > time.time()):
            if kept:
                self._keep(spec.name, None)
            return
        starts = _lake_module("bridges.spark.driver.batch").starts_of(partial(self._where, spec.stream), start)
        offsets = {str(shard): str(offset) for shard, offset in starts.items()}
        self._keep(spec.name, {"path": spec.path, "epoch": self._positions(spec.stream)["epoch"], "start": offsets})

    def _kept_offsets(self, spec: LakeTableSpec) -> Mapping[str, str]:
        """The offsets that a table had."""
        offsets: Mapping[str, str] = self._kept_of(spec).get("offsets", {})
        return offsets

    def _expected(self, spec: LakeTableSpec) -> Mapping[str, Any]:
        """The tables that the job has written, as it reported them last."""
        kept = self._kept_of(spec)
        return (kept.get("parts") or _WRITTEN) if kept.get("offsets") else {}

    def _note_offsets(self, spec: LakeTableSpec, report: Spec) -> None:
        """Keep which offsets a table has."""
        offsets = report.get("offsets")
        parts = report.get("parts")
        kept = self._kept_of(spec)
        if report["state"] == "failed" or not offsets or (offsets, parts) == (kept.get("offsets"), kept.get("parts")):
            return
        if spec.stream in self._services.storage.streams.names():
            epoch = self._positions(spec.stream)["epoch"]
            members = ("offsets", "parts", "begins", "rows", "dead_letters")
            self._keep(
                spec.name, {"path": spec.path, "epoch": epoch, **{member: report.get(member) for member in members}}
            )

    def report(self, name: str, report: Spec) -> None:
        """Take a progress report of the job on a table."""
        self._note_offsets(self._objects.get(name), report)
        self._reports[name] = {key: report.get(key) for key in TableProgress.__annotations__}
        if name in self._replays and report.get("replay"):
            self._replays[name].note(report["replay"])
        if report["state"] == "running" and not self._is_outdated(report):
            self._job.succeeded()
        count = _Count(time.monotonic(), report.get("rows") or 0, report.get("dead_letters") or 0)
        self._counts.setdefault(name, deque()).append(count)
        metrics = self._services.monitoring.metrics
        for member, (metric, help) in _FIGURES.items():
            metrics.gauge(metric, partial(self._figure_of, name, member), help, table=name)

    def look(self) -> None:
        """Activate and deactivate the alarms of tables as things are now."""
        alarms = self._services.monitoring.alarms
        for spec in self._objects:
            state, reason = self._state(spec, self._reports.get(spec.name, {}))
            text = f"table {spec.name!r} failed: {reason}"
            alarms.set(_failed(spec.name), state == "failed", text, table=spec.name, reason=reason)
            rows, dead = self._last_minute(spec.name)
            text = (
                f"table {spec.name!r}: {dead} of {counted(rows + dead, 'record')} of the last minute are dead letters"
            )
            is_many = dead > 0 and 10 * dead > rows + dead
            alarms.set(_burying(spec.name), is_many, text, table=spec.name, rows=rows, dead_letters=dead)
            lag = self._lag(spec)
            lag_s = self._lag_s(spec)
            text = (
                f"table {spec.name!r} lacks {counted(lag or 0, 'record')} of stream {spec.stream!r}; the oldest was "
                f"published {lag_s or 0:.0f} s ago"
            )
            is_late = lag_s is not None and lag_s > spec.max_lag + spec.commit_interval
            alarms.set(_late(spec.name), is_late, text, table=spec.name, lag_records=lag, lag_s=lag_s)
            held_columns = self._reports.get(spec.name, {}).get("held") or [{"effect": ""}]
            text = f"table {spec.name!r}: {held_columns[0]['effect']}"
            alarms.set(_holding(spec.name), bool(held_columns[0]["effect"]), text, table=spec.name)
            audit = self._last_audit(spec.name)
            count, first = (audit["problem_count"], audit["problems"][0]) if audit and not audit["ok"] else (0, "")
            text = f"table {spec.name!r}: the last audit found {counted(count, 'problem')}: {first}"
            alarms.set(_audited(spec.name), count > 0, text, table=spec.name, problems=count)
            self._audit_when_due(spec, state)

    def _last_minute(self, name: str) -> tuple[int, int]:
        """Number of rows and dead letters that a table got."""
        counts = self._counts.get(name)
        if not counts:
            return 0, 0
        while len(counts) > 1 and time.monotonic() - counts[0].at_s > _MINUTE_S:
            counts.popleft()
        return max(0, counts[-1].rows - counts[0].rows), max(0, counts[-1].dead_letters - counts[0].dead_letters)

    def statuses(self) -> Sequence[Spec]:
        """Status of each table, for the dashboard."""
        return [self._status(spec) for spec in self._objects]

    @_reads
    def preview(self, name: str, limit: int, dead_letters: bool = False, member: str | None = None) -> TablePreview:
        """The newest rows or dead letters of a table, newest first; without ``member`` those of the members that were
        written last. Blocks on files: call it on a thread."""
        spec = self._objects.get(name)
        opened = self._open(spec, dead_letters=dead_letters, member=None if dead_letters else member)
        if opened is None:
            return {"columns": [], "rows": []}
        if not spec.tables or dead_letters or member is not None:
            rows = opened.newest(limit)
        else:
            members = [self._open(spec, member=member_name) for member_name in self._written_last(name)]
            parts = [part.newest(limit) for part in members if part is not None]
            rows = _lake_module("bridges.spark.driver.member_places").newest_of([opened.newest(limit), *parts], limit)
        shown = [{key: _plain(value) for key, value in row.items()} for row in rows.to_pylist(maps_as_pydicts="strict")]
        return {"columns": rows.column_names, "rows": shown, "version": opened.version()}

    def _written_last(self, name: str) -> builtins.list[str]:
        """The members of a table that the job wrote last, as far as it reported."""
        members = (self._reports.get(name) or {}).get("tables") or []
        members = sorted(members, key=lambda member: member["last_commit_at"] or "", reverse=True)
        return [member["name"] for member in members[:_PREVIEWED]]

    @_reads
    def history(self, name: str, limit: int, member: str | None = None) -> TableHistory:
        """Files, versions and schemas of a table or of a member, newest first. Blocks on files: call it on a thread."""
        opened = self._open(self._objects.get(name), member=member)
        history: TableHistory = _lake_module("bridges.spark.driver.history").history_of(opened, limit)
        return history

    def plan_audit(self, name: str, depth: AuditDepth | None = None) -> int:
        """Number of records that an audit covers; without a depth it is that of the table. Blocks on files: call it on
        a thread.

        Raises:
            Invalid: the table cannot be audited so.
            Unavailable: no lake job is running.
        """
        spec = self._objects.get(name)
        depth = depth or spec.audit_depth
        if text := audit_problem(spec, depth):
            raise Invalid(f"lake table {name!r} cannot be audited", [Problem(text, "/depth")])
        self._check_job()
        total = 0
        with suppress(Exception):  # of several libraries; the audit says why the table cannot be read
            table = self._open(spec)
            shards = [int(position["shard"]) for position in self._positions(spec.stream)["shards"]] if table else []
            total = sum((table.next(shard) or 0) - (table.first(shard) or 0) for shard in shards)
        return total

    def audit_order(self, name: str, depth: AuditDepth | None = None) -> Spec:
        """An audit as it is kept until it is over."""
        return {"audit": depth or self._objects.get(name).audit_depth}

    async def audit(
        self,
        id: str,
        name: str,
        order: Mapping[str, Any],
        advance: Callable[[int], bool],
        is_paused: Callable[[], bool] = lambda: False,
    ) -> TableAudit:
        """Run an order of ``audit_order`` in the lake job, and return its findings."""
        try:
            report: TableAudit | None = await self._ordered(id, name, advance, is_paused, waits_for_job=True, **order)
        except _Failed as error:
            self._note_audit(name, [str(error)])
            raise
        if report is not None:  # it was not cancelled
            self._note_audit(name, report["problems"])
        return cast(TableAudit, report)

    def _note_audit(self, name: str, problems: Sequence[str]) -> None:
        audit: LastAudit = {
            "at": rfc3339(time.time_ns()),
            "ok": not problems,
            "problem_count": len(problems),
            "problems": [*problems[:_SHOWN_PROBLEMS]],
        }
        self._services.storage.values.put(_AUDITS + name, json.dumps(audit).encode())
        self._last_audits[name] = audit

    def _last_audit(self, name: str) -> LastAudit | None:
        if name not in self._last_audits:
            text = self._services.storage.values.get(_AUDITS + name)
            self._last_audits[name] = json.loads(text) if text else None
        return self._last_audits[name]

    def starts_audits(self, start: Callable[..., object]) -> None:
        """Take the function that starts an audit as a job, from a table's name, the unit, the number of records and the
        order. The first one waits for jobs that continue after a start of the broker."""
        self._start_audit, self._audits_from_s = start, time.monotonic() + _FIRST_AUDIT_S

    def _audit_when_due(self, spec: LakeTableSpec, state: str) -> None:
        """Start the audit of a table whose interval has passed since the last one ended."""
        if spec.audit_interval is None or self._start_audit is None or state == "stopped" or spec.name in self._replays:
            return
        now_s = time.monotonic()
        last = self._last_audit(spec.name)
        if now_s < self._audits_from_s:
            return
        tried_s = self._audits_at_s.get(spec.name, -inf)
        if now_s - tried_s < min(spec.audit_interval, _AUDIT_AGAIN_S):
            return
        if last is not None and time.time() - datetime.fromisoformat(last["at"]).timestamp() < spec.audit_interval:
            return
        self._audits_at_s[spec.name] = now_s
        task = asyncio.create_task(self._audit_on_schedule(spec.name), name=f"scheduled audit of table {spec.name}")
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _audit_on_schedule(self, name: str) -> None:
        assert self._start_audit is not None
        with suppress(SluiceError):  # no lake job runs; it is tried again
            total = await asyncio.to_thread(self.plan_audit, name)
            self._start_audit(name, "records", total, order=self.audit_order(name))

    @_reads
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
        replay = _lake_module("bridges.spark.driver.replay")
        table_spec = _lake_module("bridges.spark.driver.batch").TableSpec
        spec = self._job_spec(self._objects.get(name), rule)
        where = partial(self._where, spec["stream"])
        table = table_spec.of_api(spec, where(None))
        try:
            replay.check_whole(table)
        except _lake_module("bridges.spark.tables.contract").TableLost as lost:
            if start is not None or end is not None or records or rule is not None or into is not None:
                text = f"{lost} Such a replay takes no range, rule or shadow."
                raise Conflict(text) from None
            kept = self._kept_of(self._objects.get(name))
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
            _lake_module("bridges.spark.driver.shadow").check_new(table)
        plan: ReplayReport = replay.planned(table, where, start, end, records or ()).as_dict()
        return plan

    async def replay(
        self,
        id: str,
        name: str,
        order: Mapping[str, Any],
        advance: Callable[[int], bool],
        is_paused: Callable[[], bool] = lambda: False,
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
        advance: Callable[[int], bool],
    ) -> ReplayReport:
        """Wait until a table that is created again has the records of ranges; what it has then."""
        failed_s = time.monotonic()
        while True:
            spec = self._objects.get(name)
            report = self._reports.get(name, {})
            offsets = report.get("offsets") or {}
            ends = {span["shard"]: int(offsets.get(str(span["shard"]), 0)) for span in ranges}
            done = sum(max(0, min(ends[span["shard"]], span["end"]) - span["start"]) for span in ranges)
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
                failed_s = time.monotonic()
            elif time.monotonic() - failed_s > _SILENT_S:
                _, reason = self._state(spec, report)
                raise Unavailable(f"the replay failed: {reason or self._why_no_job()}")
            await asyncio.sleep(_LOOK_AGAIN_S)

    def replay_order(
        self, name: str, plan: ReplayReport, rule: str | None, into: str | None = None, rate: int | None = None
    ) -> Spec:
        """A replay as it is kept until it is over: with the rule as it is now, even if the rule changes later. Empty if
        there is nothing to replay.

        Raises:
            Unavailable: no lake job is running.
        """
        if not (plan["ranges"] or plan["recreates"]):
            return {}
        self._check_job()
        spec = self._job_spec(self._objects.get(name), rule)
        order = {"ranges": plan["ranges"], "into": into, "rate": rate}
        order |= {member: plan[member] for member in ("recreates", "fills", "missing")}
        return {**order, "columns": spec["columns"], "rule_text": spec.get("rule_text")}

    @_reads
    def shadow(self, name: str) -> FoundShadow:
        """Progress of the shadow of a table, if it has one. Blocks on files: call it on a thread."""
        shadow = _lake_module("bridges.spark.driver.shadow").Shadow.find(self._table_spec(name))
        return {"shadow": None if shadow is None else shadow.as_dict(name)}

    def plan_diff(self, name: str) -> TableShadow:
        """The shadow of a table that has one. Blocks on files: call it on a thread.

        Raises:
            NotFound: it has none.
        """
        shadow = self.shadow(name)["shadow"]
        if shadow is None:
            raise NotFound("shadow of table", name, f"make one: sluice replay {name} --into shadow")
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

    async def diff(self, id: str, name: str, advance: Callable[[int], bool]) -> TableDiff:
        """Compare a table and its shadow in the lake job."""
        report: TableDiff = await self._ordered(id, name, advance, diff=True)
        return report

    async def swap(self, id: str, name: str, advance: Callable[[int], bool]) -> SwapReport:
        """Put a shadow in the place of the rows of its ranges, in the lake job."""
        report: SwapReport = await self._ordered(id, name, advance, swap=True)
        return report

    async def discard(self, id: str, name: str, advance: Callable[[int], bool]) -> DiscardReport:
        """Remove a shadow, in the lake job."""
        report: DiscardReport = await self._ordered(id, name, advance, discard=True)
        return report

    def _table_spec(self, name: str) -> Any:
        spec = self._job_spec(self._objects.get(name))
        return _lake_module("bridges.spark.driver.batch").TableSpec.of_api(spec, self._where(spec["stream"], None))

    @_reads
    def plan_retype(self, name: str, column: str, kind: str) -> int:
        """Number of rows and dead letters that a retype would convert again. Blocks on files: call it on a thread.

        Raises:
            Invalid: there is no such column or type, or the table's columns cannot be changed.
        """
        spec = self._objects.get(name)
        table_spec = _lake_module("bridges.spark.driver.batch").TableSpec
        tables = [self._open(spec), self._open(spec, dead_letters=True)]
        columns = tables[0].columns() if tables[0] is not None else ()
        table = table_spec.of_api(self._job_spec(spec), self._where(spec.stream, None))
        _lake_module("bridges.spark.driver.retype").check_retype(table, columns, column, kind)
        return sum(opened.rows() for opened in tables if opened is not None)

    async def retype(self, id: str, name: str, column: str, kind: str, advance: Callable[[int], bool]) -> RetypeReport:
        """Give a column another type, and convert rows and dead letters again, in the lake job."""
        retype: Retype = {"column": column, "type": kind}
        report: RetypeReport = await self._ordered(id, name, advance, retype=retype)
        return report

    async def accept_gap(self, id: str, name: str, advance: Callable[[int], bool]) -> GapReport:
        """Continue a table after records that retention removed, in the lake job."""
        report: GapReport = await self._ordered(id, name, advance, accept_gap=True)
        return report

    async def clean(
        self, id: str, name: str, older_than_s: float, dry_run: bool, advance: Callable[[int], bool]
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
        if self._objects.get(name).key:
            text = "the files of a table with a key are arranged by key, and each batch writes some again"
            raise Invalid(f"lake table {name!r} cannot be compacted", [Problem(text)])
        plan: CompactReport = self._upkeep(name, "compact")
        return plan

    async def compact(self, id: str, name: str, advance: Callable[[int], bool]) -> CompactReport:
        """Join the small files of a table and of its dead letters, in the lake job."""
        report: CompactReport = await self._ordered(id, name, advance, compact=True)
        return report

    def plan_expire(self, name: str, older_than_s: float) -> ExpireReport:
        """The files that would be removed with old versions. Blocks on files: call it on a thread."""
        plan: ExpireReport = self._upkeep(name, "expire", older_than_s)
        return plan

    async def expire(self, id: str, name: str, older_than_s: float, advance: Callable[[int], bool]) -> ExpireReport:
        """Remove old versions of a table and of its dead letters, in the lake job."""
        report: ExpireReport = await self._ordered(id, name, advance, expire={"older_than_s": older_than_s})
        return report

    def plan_retain(self, name: str, older_than_s: float | None) -> RetainReport:
        """Number of rows and dead letters that would be removed by their age. Blocks on files: call it on a thread.

        Raises:
            Invalid: the table has a key, or no age is given and it has no ``retention``.
        """
        spec = self._objects.get(name)
        if spec.key:
            text = "the files of a table with a key are arranged by key, and its rows have no age"
            raise Invalid(f"rows of lake table {name!r} cannot be removed", [Problem(text)])
        age_s = spec.retention if older_than_s is None else older_than_s
        if age_s is None:
            text = "older_than: expected a duration, as the table has no 'retention', got none"
            raise Invalid(f"rows of lake table {name!r} cannot be removed", [Problem(text, "/older_than")])
        plan: RetainReport = self._rows_older(name, age_s)
        return plan

    @_reads
    def _rows_older(self, name: str, age_s: float) -> Any:
        return _lake_module("bridges.spark.driver.upkeep").retain(self._table_spec(name), "", age_s, dry_run=True)

    async def retain(
        self, id: str, name: str, older_than_s: float | None, advance: Callable[[int], bool]
    ) -> RetainReport:
        """Remove the rows and dead letters of a table that were published longer ago, in the lake job."""
        age_s = self._objects.get(name).retention if older_than_s is None else older_than_s
        report: RetainReport = await self._ordered(id, name, advance, retain={"older_than_s": age_s})
        return report

    @_reads
    def _upkeep(self, name: str, verb: str, *arguments: Any) -> Any:
        """The report of a dry run of an upkeep verb."""
        upkeep = _lake_module("bridges.spark.driver.upkeep")
        return getattr(upkeep, verb)(name, upkeep.tables_of(self._table_spec(name)), *arguments, dry_run=True)

    async def _ordered(
        self,
        id: str,
        name: str,
        advance: Callable[[int], bool],
        is_paused: Callable[[], bool] = lambda: False,
        *,
        waits_for_job: bool = False,
        **given: Any,
    ) -> Any:
        """Pass an order to the lake job with the table, and wait for its end; the result. An order that the job has not
        taken fails once no job is running, unless it waits for one, as after a start of the broker."""
        if (busy := self._replays.get(name)) is not None:
            text = f"the job {busy.order['id']} works on it already ({busy.verb}). Try: wait for its end, or cancel it."
            raise Invalid(f"lake table {name!r} is busy", [Problem(text)])
        spec = self._job_spec(self._objects.get(name))
        order: Any = {"ranges": [], "retype": None, "accept_gap": False, "clean": None, "cancel": False}
        order |= {"compact": False, "expire": None, "replay": id, "pause": is_paused()}
        order |= {"id": id, "columns": spec["columns"], "rule_text": spec.get("rule_text"), **given}
        replaying = self._replays[name] = _Replaying(order)
        try:
            while replaying.state == "running":
                self._objects.get(name)
                replaying.order["cancel"] = not advance(replaying.done)
                replaying.order["pause"] = is_paused()
                if not replaying.is_heard and not waits_for_job:
                    self._check_job()
                if time.monotonic() - replaying.heard_s > _SILENT_S:
                    raise Unavailable(f"the lake job reported nothing for {_SILENT_S:g} s; {self._why_no_job()}")
                replaying.changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(replaying.changed.wait(), _LOOK_AGAIN_S)
        finally:
            del self._replays[name]
        advance(replaying.done)
        if replaying.state == "failed":
            raise _Failed(f"the {replaying.verb} failed: {replaying.error}")
        return replaying.result

    def uses(self) -> Uses:
        """The streams that fill tables, and the rules that tables run."""
        for spec in self._objects:
            user = Reference(self.kind, spec.name)
            yield user, Reference("stream", spec.stream)
            if spec.rule:
                yield user, Reference("rule", spec.rule)

    def consequences(self, change: Change) -> Iterator[str]:
        """Remains of a table that is deleted, and effects of a changed rule on tables that run it."""
        before = change.before or {}
        after = change.after
        if change.target.kind == "rule" and after is not None and before.get("sql") != after.get("sql"):
            for table in self._objects:
                if table.rule == change.target.name:
                    yield f"Table {table.name!r} keeps its rows as they are; the changed rule makes its new rows."
        spec = self._objects.find(change.target.name) if change.target.kind == self.kind else None
        if spec is None or (after is not None and after.get("path") in (None, spec.path, before.get("path"))):
            return
        rows = self._size(spec, "rows")
        letters = self._size(spec, "dead_letters")
        kept = "All rows" if rows is None else counted(rows, "row")
        kept += f" and {counted(letters, 'dead letter')}" if letters else ""
        yield f"{kept} stay in {spec.path}. New records of stream {spec.stream!r} are no longer written there."

    def _size(self, spec: LakeTableSpec, member: str) -> int | None:
        """The rows or dead letters of a table by its last report, before or after the broker started."""
        size = self._reports.get(spec.name, {}).get(member)
        if size is None and self._kept_offsets(spec):
            size = self._kept_of(spec).get(member)
        return None if size is None else int(size)

    def unread_of(self, stream: str) -> Mapping[int, int]:
        """First offset by shard that a table of a stream does not have yet, or that a replay must read."""
        tables = [spec for spec in self._objects if spec.stream == stream and spec.holds_stream]
        starts: builtins.list[tuple[int, int]] = []
        for spec in tables:
            waits = self._waits(spec)
            if waits is None:  # the job has not found yet where the table begins
                shards = self._positions(stream)["shards"]
                starts += [(int(position["shard"]), int(position["first_offset"])) for position in shards]
            else:
                starts += [(shard, start) for shard, (start, _) in waits.items()]
            if spec.name in self._replays:
                starts += [(span["shard"], span["start"]) for span in self._replays[spec.name].order["ranges"]]
        return {shard: min(start for each, start in starts if each == shard) for shard, _ in starts}

    def _compiled(self, spec: Spec) -> LakeTableSpec:
        parsed = parse_spec(spec, self._places, self._services.storage.streams.names(), _SHOWN_ONLY)
        self._check_rule(parsed)
        self._check_key(parsed)
        self._check_layout(parsed)
        self._check_tables(parsed)
        if parsed.start is not None:
            _lake_module("bridges.spark.driver.batch").starts_of(partial(self._where, parsed.stream), parsed.start)
        for other in self._objects:
            if other.name != parsed.name and _is_within(parsed, other):
                text = f"lake table {other.name!r} lies in {other.path} already; choose another path"
                raise Invalid(f"lake table {parsed.name!r} cannot be saved", [Problem(text, "/path")])
        return parsed

    def _check_rule(self, spec: LakeTableSpec) -> None:
        """Refuse a rule that there is not, or that Spark cannot run on this stream."""
        if not spec.rule:
            return
        problems = []
        if self._positions(spec.stream)["kind"] != "topics":
            text = f"stream {spec.stream!r} holds rows of rules; a rule runs on a stream of messages"
            problems.append(Problem(text, "/stream", suggestion="make a stream of the topics that the rule reads"))
        try:
            self.topics_of_rule(spec.rule)
        except NotFound as error:
            problems.append(Problem(str(error), "/rule"))
        except Invalid as error:
            problems += [Problem(problem.message, "/rule") for problem in error.problems]
        if problems:
            raise Invalid(f"lake table {spec.name!r} cannot be saved", problems)

    def topics_of_rule(self, name: str) -> builtins.list[str]:
        """The topic filters of a rule that Spark can run.

        Raises:
            NotFound: no such rule.
            Invalid: Spark cannot run it.
        """
        rule_run = _lake_module("bridges.spark.tasks.rule_run")
        rule = rule_run.RuleRun(RuleText(name, self._services.contributors.rule_for_spark(name)["sql"]))
        return ["/".join(levels) for levels in rule.filters]

    def _check_key(self, spec: LakeTableSpec) -> None:
        """Refuse a key of columns that the table cannot have, and a condition that does not compile."""
        if not spec.key:
            return
        columns = _lake_module("bridges.spark.columns.column")
        fixed = {column.name: column.type for column in columns.PROVENANCE}
        if spec.rule or self._positions(spec.stream)["kind"] == "rows":
            row_columns, _ = columns.columns_of_api(self._job_spec(spec)["columns"])
            types = fixed | {column.name: column.type for column in row_columns}
            unknown: builtins.list[str] = []  # further columns follow from the rows
        else:
            types = fixed | {column.name: column.type for column in columns.RAW}
            unknown = [name for name in spec.key if name not in types]
        problems = [
            Problem(
                f"expected columns of the table ({', '.join(types)}), got {name!r}",
                "/key",
                suggestion="give the table a rule that selects it, as payload.device AS device",
            )
            for name in unknown
        ]
        problems += [
            Problem(f"{name}: expected a column with one value a row, got {types[name]}", "/key")
            for name in spec.key
            if types.get(name, "").startswith(("json", "struct", "array", "map"))
        ]
        if spec.delete_when:
            problem = _lake_module("bridges.spark.tasks.condition").condition_problem(spec.delete_when)
            problems += [problem] if problem is not None else []
        if problems:
            raise Invalid(f"lake table {spec.name!r} cannot be saved", problems)

    def _known_columns(self, spec: LakeTableSpec) -> tuple[dict[str, str], bool]:
        """The columns that a table has from the start with their types, and whether rows may give it more."""
        columns = _lake_module("bridges.spark.columns.column")
        is_raw = not spec.rule and self._positions(spec.stream)["kind"] == "topics"
        own = columns.RAW if is_raw else columns.columns_of_api(self._job_spec(spec)["columns"])[0]
        return {column.name: column.type for column in (*columns.PROVENANCE, *own)}, not is_raw

    def _check_tables(self, spec: LakeTableSpec) -> None:
        """Refuse names of tables made of columns that there cannot be, or that have no text for one."""
        if not spec.tables:
            return
        types, has_more = self._known_columns(spec)
        template = _lake_module("bridges.spark.columns.template").NameTemplate.parse(spec.tables)
        for name in template.columns:
            kind = types.get(name, "string" if has_more else None)
            if kind is None:
                text = f"expected columns of the table ({', '.join(types)}), got {name!r}"
            elif kind not in _NAMING:
                text = f"{name}: expected a column of type {', '.join(_NAMING)}, got {kind}"
            else:
                continue
            hint = "give the table a rule that selects it, as payload.site AS site"
            raise Invalid(f"lake table {spec.name!r} cannot be saved", [Problem(text, "/tables", suggestion=hint)])

    def _check_layout(self, spec: LakeTableSpec) -> None:
        """Refuse partitions and an order that the table's format or columns do not have."""
        if not spec.partition_by and not spec.sort_by:
            return
        layout = _lake_module("bridges.spark.columns.layout")
        types, _ = self._known_columns(spec)
        try:
            layout.Layout.parse(spec.format, spec.partition_by, spec.sort_by, types)
        except layout.LayoutError as error:
            problem = Problem(str(error), f"/{error.member}")
            raise Invalid(f"lake table {spec.name!r} cannot be saved", [problem]) from None

    def _changed(self) -> None:
        self._job.want(bool(self._objects.names()))
        metrics = self._services.monitoring.metrics
        for name in self._objects.names():
            help = "records that a stream holds and its table does not have yet"
            metrics.gauge("table_lag_records", partial(self._lag_of, name, self._lag), help, table=name)
            help = "age of the oldest record that a table does not have yet"
            metrics.gauge("table_lag_seconds", partial(self._lag_of, name, self._lag_s), help, table=name)

    def _where(self, stream: str, at: datetime | None) -> Any:
        """Positions of a stream, and with a time its offsets then, as a reader over HTTP would get them."""
        positions = self._positions(stream, None if at is None else round(at.timestamp() * 1_000_000))
        return _lake_module("pyspark_sluice.client").Positions.parse({"ranges_url": "", "ticket": "", **positions})

    def _check_job(self) -> None:
        """Raise ``Unavailable`` where no lake job runs or starts: neither the broker's own nor one that reports."""
        if self._job.state()["state"] in ("starting", "running"):
            return
        now = time.monotonic()
        reporting = (name for name, report in self._reports.items() if report["state"] != "stopped")
        if not any(now - self._counts[name][-1].at_s <= _GONE_S for name in reporting):
            raise Unavailable(f"expected a running lake job; {self._why_no_job()}. Try: sluice lake run.")

    def _why_no_job(self) -> str:
        job = self._job.state()
        return f"it is {job['state']}" + (f": {job['reason']}" if job["reason"] else "")

    def _job_spec(self, spec: LakeTableSpec, rule_name: str | None = None) -> Spec:
        """A table as the job needs it: with its rule, or why it has none. Another rule than its own must be usable."""
        table = {**spec.model_dump(mode="json"), **self._places.settings_of(spec)}
        kept = self._kept_of(spec)
        table["is_expected"] = bool(kept.get("offsets"))
        table["expected"] = self._expected(spec)
        table["begins"] = None if table["is_expected"] else kept.get("begins")
        if rule_name is not None and not spec.rule:
            text = (
                f"no rule runs for table {spec.name!r}: it is filled from the rows of stream {spec.stream!r}; create a "
                f"table with a rule and a stream of messages"
            )
            raise Invalid("the table cannot be replayed with a rule", [Problem(text, "/rule")])
        if not spec.rule:
            return {**table, "columns": self._services.contributors.columns_of_stream(spec.stream)}
        try:
            rule = self._services.contributors.rule_for_spark(rule_name or spec.rule)
        except SluiceError as error:
            if rule_name is not None:
                raise Invalid("the rule cannot run in Spark", [Problem(str(error), "/rule")]) from error
            return {**table, "columns": [], "rule_text": {"name": spec.rule, "problem": str(error)}}
        columns = [dict(column) for column in rule["columns"]]
        return {**table, "columns": columns, "rule_text": {key: rule[key] for key in ("name", "sql", "node")}}

    def _shown(self, spec: LakeTableSpec) -> Spec:
        status = self._status(spec)
        doing = {key: status[key] for key in ("state", "reason", "lag_records", "lag_s", "rows", "dead_letters")}
        replaying = self._replays.get(spec.name)
        replay = None if replaying is None else replaying.order
        report = self._reports.get(spec.name)
        doing["valid_through"] = self._valid_through(spec)
        doing["advice"] = advice_of(spec.name, report or {}, spec.partition_by)
        audit = self._last_audit(spec.name)
        return {**self._job_spec(spec), **doing, "report": report, "replay": replay, "last_audit": audit}

    def _status(self, spec: LakeTableSpec) -> Spec:
        report = self._reports.get(spec.name, {})
        state, reason = self._state(spec, report)
        return {
            "name": spec.name,
            "stream": spec.stream,
            "format": spec.format,
            "path": spec.path,
            "state": state,
            "reason": reason,
            "rows": self._size(spec, "rows"),
            "dead_letters": self._size(spec, "dead_letters"),
            "rows_per_s": report.get("rows_per_s"),
            "lag_records": self._lag(spec),
            "lag_s": self._lag_s(spec),
            "last_commit_at": report.get("last_commit_at"),
            "last_commit_rows": report.get("last_commit_rows"),
        }

    def _state(self, spec: LakeTableSpec, report: Mapping[str, Any]) -> tuple[str, str | None]:
        forbidden = self._places.forbidden_store(spec.path) or self._places.forbidden_catalog(spec.catalog)
        if forbidden is not None:
            return "failed", forbidden
        job = self._job.state()
        if job["state"] == "failed":
            return "failed", job["reason"]
        if not report or self._is_outdated(report):
            return "starting" if job["state"] in ("starting", "running") else "stopped", job["reason"]
        silent_s = time.monotonic() - self._counts[spec.name][-1].at_s
        if silent_s > _GONE_S and report["state"] != "stopped":
            return "failed", f"the lake job has reported nothing for {silent_s:.0f} s. Try: sluice lake run."
        if error := report.get("last_error"):
            return report["state"], error["message"]
        if report["state"] == "starting":
            idle = self._lag(spec) == 0
            since = "since the lake job started" if self._kept_offsets(spec) or report.get("rows") else "yet"
            return "starting", "the stream has no new records" if idle else f"no batch has succeeded {since}"
        if report["state"] == "running" and (over := report.get("over_max_tables")):
            reason = f"table {spec.name!r} has its max_tables of {spec.max_tables} tables"
            text = f"{counted(over, 'row')} became {'a dead letter' if over == 1 else 'dead letters'}: {reason}"
            return "degraded", f"{text}. Try: a larger max_tables."
        if report["state"] == "running" and (held_columns := report.get("held")):
            others = f" (and {len(held_columns) - 1} more)" if len(held_columns) > 1 else ""
            return "degraded", held_columns[0]["effect"] + others
        return report["state"], None

    def _is_outdated(self, report: Mapping[str, Any]) -> bool:
        """Return whether the job was restarted since the report: nothing has succeeded in the new process yet."""
        return (report.get("at") or "") < (self._job.state()["started_at"] or "")

    def _waits(self, spec: LakeTableSpec) -> dict[int, tuple[int, int]] | None:
        """The records that the stream holds and the table does not have yet: by shard the first, and how many. Where
        the job has not reported, those that the table had when it did last. None without a stream, and for a new table
        that is to begin at a time that was still to come when it was saved, before the job has found it."""
        if spec.stream not in self._services.storage.streams.names():
            return None
        report = self._reports.get(spec.name, {})
        kept = self._kept_of(spec)
        begun = kept.get("offsets") or kept.get("begins")
        offsets = begun or kept.get("start")
        if begun or report.get("state") != "failed":  # else of an older stream of that name, or of another path
            offsets = report.get("offsets") or offsets
        if report.get("is_lost"):  # a user may have all of it replayed
            offsets = kept.get("begins") or {}
        elif not offsets and spec.start is not None:
            return None
        offsets = offsets or {}
        waits = {}
        for position in self._positions(spec.stream)["shards"]:
            shard = int(position["shard"])
            first = int(position["first_offset"])
            start = max(int(offsets.get(str(shard), 0)), first)
            waits[shard] = start, max(0, int(position["next_offset"]) - start)
        return waits

    def _lag(self, spec: LakeTableSpec) -> int | None:
        """Records that the stream holds and the table does not have yet."""
        waits = self._waits(spec)
        return None if waits is None else sum(count for _, count in waits.values())

    def _lag_s(self, spec: LakeTableSpec) -> float | None:
        """Age of the oldest of them; 0 where the table has all."""
        waits = self._waits(spec)
        if waits is None:
            return None
        times = [self._time_of(spec, shard, start) for shard, (start, count) in waits.items() if count]
        published_us = [time_us for time_us in times if time_us is not None]
        return (
            max(0.0, round(time.time() - min(published_us) / 1_000_000, 1)) if published_us else None if times else 0.0
        )

    def _valid_through(self, spec: LakeTableSpec) -> str | None:
        """The time of publishing up to which every record is in the table."""
        waits = self._waits(spec)
        if waits is None:
            return None
        times = [self._time_of(spec, shard, start) for shard, (start, count) in waits.items() if count]
        before_us = [time_us - 1 for time_us in times if time_us is not None]
        return None if len(before_us) < len(times) else rfc3339(min(before_us) * 1000 if before_us else time.time_ns())

    def _time_of(self, spec: LakeTableSpec, shard: int, offset: int) -> int | None:
        """When a record that waits was published (µs since 1970), read once while it is the first one; None if it
        was removed since."""
        first_waiting = self._waiting.setdefault(spec.name, {})
        if first_waiting.get(shard, (None, 0))[0] != offset:
            try:
                records = self._services.storage.history.read(spec.stream, shard, offset, 1)
            except SluiceError:
                records = []
            if not records:
                return None
            first_waiting[shard] = offset, records[0][1].ts_us
        return first_waiting[shard][1]

    def _lag_of(self, name: str, lag: Callable[[LakeTableSpec], float | None]) -> float:
        value = lag(self._objects.get(name))
        return nan if value is None else value

    def _figure_of(self, name: str, member: str) -> float:
        figure = self._reports[name].get(member)
        return nan if figure is None else figure

    def _open(self, spec: LakeTableSpec, *, dead_letters: bool = False, member: str | None = None) -> Any:
        formats = _lake_module("bridges.spark.tables.formats")
        binding = _lake_module("bridges.spark.tables.contract").Binding
        place = place_of({**spec.model_dump(mode="json"), **self._places.settings_of(spec)})
        members = _lake_module("bridges.spark.driver.member_places")
        part = ""
        if member is not None:
            if not spec.tables or not members.is_name(member):
                raise NotFound("member table", member, f"see sluice lake tables show {spec.name}")
            part = members.part_of(member)
        elif dead_letters:
            part = formats.DEAD_LETTERS_SUFFIX
        place = members.part_place(place, part)
        opened = formats.open_table(spec.format, place, binding(spec.stream, self._positions(spec.stream)["epoch"]))
        if opened is None and part in self._expected(spec):
            with formats.of_part(spec.name, part):
                raise _lake_module("bridges.spark.tables.contract").TableLost.gone(place)
        return opened


def _is_within(one: LakeTableSpec, other: LakeTableSpec) -> bool:
    """Return whether two tables are in the same place, or one is in the place of the other's members."""
    pairs = ((one, other), (other, one))
    return one.path == other.path or any(a.tables and b.path.startswith(f"{a.path}__tables/") for a, b in pairs)


def _failed(table: str) -> str:
    return f"table_failed:{table}"


def _burying(table: str) -> str:
    return f"table_dead_letters:{table}"


def _late(table: str) -> str:
    return f"table_late:{table}"


def _holding(table: str) -> str:
    return f"table_held:{table}"


def _audited(table: str) -> str:
    return f"table_audit:{table}"


def _lake_module(name: str) -> Any:
    """A module that needs Spark's extra.

    Raises:
        MissingDependency: a package is not installed.
    """
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"reading lake tables needs the package {error.name!r}; install it with pip install 'sluicemq[spark]'"
        ) from error


def _plain(value: Any) -> Any:
    """A value as JSON can say it."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, datetime):
        return rfc3339_of(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return marked(value)
    return marked(value)
