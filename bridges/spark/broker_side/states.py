"""States of lake tables, by the reports of the lake job; the store keeps the offsets and the last audit of each."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import nan
from typing import Any, Final, NamedTuple

from bridges.spark.broker_side.local import LocalSpark
from bridges.spark.broker_side.table_spec import LakeTableSpec, Places
from bridges.spark.broker_side.traces import TableTraces
from bridges.spark.broker_side.views import (
    LastAudit,
    ReplayProgress,
    TableProgress,
    TableReplay,
    TableResult,
)
from broker.core.clock import Clock
from broker.core.errors import SluiceError, Unavailable
from broker.core.feature import Services
from broker.core.kinds import counted
from broker.core.objects import Spec
from broker.core.ordered import OrderedObjects
from broker.core.times import rfc3339

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
# Begin of the keys under which the store keeps what the last audit of each table found.
_AUDITS: Final = "lake/audits/"
_SHOWN_PROBLEMS: Final = 20
# A job reports at least every 5 s; one that is silent for so long has ended or hangs.
_GONE_S: Final = 12.0
_MINUTE_S: Final = 60.0
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
# Kinds of alarms of a table.
_ALARMS: Final = ("failed", "dead_letters", "late", "held", "audit")
# Figures of tables that get advice on their layout.
_SMALL_FILE_BYTES = 16_000_000
_FEW_FILES = 30
_MANY_PARTITIONS = 100
_SMALL_PARTITION_BYTES = 32_000_000
_LARGE_TABLE_BYTES = 100_000_000_000


@dataclass(eq=False)
class Order:
    """An order that was passed to the lake job, and the last report on it."""

    order: TableReplay
    clock: Clock
    state: str = "running"
    done: int = 0
    error: str | None = None
    result: TableResult | None = None
    heard_s: float = field(init=False)
    is_heard: bool = False
    """True if the lake job has reported on it."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.heard_s = self.clock.monotonic_s()

    def note(self, progress: ReplayProgress) -> None:
        if progress["id"] != self.order["id"]:
            return
        self.state = progress["state"]
        self.done = progress["done"]
        self.error = progress["error"]
        self.result = progress["result"]
        self.heard_s = self.clock.monotonic_s()
        self.is_heard = True
        self.changed.set()

    @property
    def verb(self) -> str:
        """Name of the work."""
        return next((verb for member, verb in _VERBS.items() if self.order.get(member)), "replay")


class _Count(NamedTuple):
    """Number of rows and dead letters of a table at one time."""

    at_s: float
    rows: int
    dead_letters: int


class TableStates:
    """States of tables, by the reports of the lake job. Used on the event loop."""

    def __init__(
        self,
        services: Services,
        tables: OrderedObjects[LakeTableSpec],
        places: Places,
        job: LocalSpark,
    ) -> None:
        self._services = services
        self.clock = services.node.clock
        self._tables = tables
        self._places = places
        self._job = job
        self._positions = services.storage.positions
        self._values = services.storage.values
        self.reports: dict[str, dict[str, Any]] = {}
        """The last report on each table."""
        self.orders: dict[str, Order] = {}
        """The order that the lake job has for each table."""
        self._counts: dict[str, deque[_Count]] = {}
        """Counts of the last minute, by table; the last one is of the last report."""
        self._kept: dict[str, Mapping[str, Any]] = {}
        """Values in the store, as far as they were read."""
        self._waiting: dict[str, dict[int, tuple[int, int]]] = {}
        """By table and shard, the first record that the table does not have, and when it was published."""
        self._last_audits: dict[str, LastAudit | None] = {}
        self._traces = TableTraces(tables, services.monitoring, self.clock)
        """Values in the store, as far as they were read."""

    def changed(self) -> None:
        """Run the lake job while there are tables, and show the lag of each."""
        self._job.want(bool(self._tables.names()))
        metrics = self._services.monitoring.metrics
        for name in self._tables.names():
            help = "records that a stream holds and its table does not have yet"
            metrics.gauge(
                "table_lag_records", partial(self._lag_of, name, self._lag), help, table=name
            )
            help = "age of the oldest record that a table does not have yet"
            metrics.gauge(
                "table_lag_seconds", partial(self._lag_of, name, self._lag_s), help, table=name
            )

    def forget(self, name: str) -> None:
        """Drop all that was reported about a table."""
        self.keep(name, None)
        self.reports.pop(name, None)
        self._traces.forget(name)
        self._counts.pop(name, None)
        self._waiting.pop(name, None)
        self._values.put(_AUDITS + name, None)
        self._last_audits.pop(name, None)
        for kind in _ALARMS:
            self._services.monitoring.alarms.deactivate(_alarm(kind, name))
        self._services.monitoring.metrics.remove(table=name)

    def keep(self, name: str, kept: Mapping[str, Any] | None) -> None:
        """Keep figures of a table over a restart of the broker; None removes them."""
        self._values.put(_KEPT + name, None if kept is None else json.dumps(kept).encode())
        self._kept[name] = kept or {}

    def kept_of(self, spec: LakeTableSpec) -> Mapping[str, Any]:
        """Figures of a table by its job's last report, before or after the broker started; empty for a table that is
        new in its place."""
        if spec.name not in self._kept:
            text = self._values.get(_KEPT + spec.name)
            self._kept[spec.name] = json.loads(text) if text else {}
        kept = self._kept[spec.name]
        if (
            kept.get("path") != spec.path
            or spec.stream not in self._services.storage.streams.names()
        ):
            return {}
        return kept if kept["epoch"] == self._positions(spec.stream)["epoch"] else {}

    def note_start(self, spec: LakeTableSpec, offsets: Mapping[int, int]) -> None:
        """Keep where a table is to begin, as long as no job has begun it: what it lacks is known without one. Without
        offsets it is not known."""
        self.kept_of(spec)
        kept = self._kept[spec.name]
        if kept.get("offsets") or kept.get("begins"):
            # perhaps of another path, which the table may have again
            return
        if offsets:
            start = {str(shard): str(offset) for shard, offset in offsets.items()}
            self.keep(
                spec.name,
                {"path": spec.path, "epoch": self._positions(spec.stream)["epoch"], "start": start},
            )
        elif kept:
            self.keep(spec.name, None)

    def _kept_offsets(self, spec: LakeTableSpec) -> Mapping[str, str]:
        """The offsets that a table had."""
        offsets: Mapping[str, str] = self.kept_of(spec).get("offsets", {})
        return offsets

    def expected(self, spec: LakeTableSpec) -> Mapping[str, Any]:
        """The tables that the job has written, as it reported them last."""
        kept = self.kept_of(spec)
        return (kept.get("parts") or _WRITTEN) if kept.get("offsets") else {}

    def _note_offsets(self, spec: LakeTableSpec, report: Spec) -> None:
        """Keep which offsets a table has."""
        offsets = report.get("offsets")
        parts = report.get("parts")
        kept = self.kept_of(spec)
        if (
            report["state"] == "failed"
            or not offsets
            or (offsets, parts) == (kept.get("offsets"), kept.get("parts"))
        ):
            return
        if spec.stream in self._services.storage.streams.names():
            epoch = self._positions(spec.stream)["epoch"]
            members = ("offsets", "parts", "begins", "rows", "dead_letters")
            self.keep(
                spec.name,
                {
                    "path": spec.path,
                    "epoch": epoch,
                    **{member: report.get(member) for member in members},
                },
            )

    def report(self, name: str, report: Spec) -> None:
        """Take a progress report of the job on a table."""
        self._note_offsets(self._tables.get(name), report)
        self._traces.report(name, report)
        self.reports[name] = {key: report.get(key) for key in TableProgress.__annotations__}
        if name in self.orders and report.get("replay"):
            self.orders[name].note(report["replay"])
        if report["state"] == "running" and not self._is_outdated(report):
            self._job.succeeded()
        count = _Count(
            self.clock.monotonic_s(), report.get("rows") or 0, report.get("dead_letters") or 0
        )
        self._counts.setdefault(name, deque()).append(count)
        metrics = self._services.monitoring.metrics
        for member, (metric, help) in _FIGURES.items():
            metrics.gauge(metric, partial(self._figure_of, name, member), help, table=name)

    def look(self) -> None:
        """Activate and deactivate the alarms of tables as things are now."""
        alarms = self._services.monitoring.alarms
        for spec in self._tables:
            state, reason = self.state(spec)
            text = f"table {spec.name!r} failed: {reason}"
            alarms.set(
                _alarm("failed", spec.name), state == "failed", text, table=spec.name, reason=reason
            )
            rows, dead = self._last_minute(spec.name)
            records = counted(rows + dead, "record")
            text = f"table {spec.name!r}: {dead} of {records} of the last minute are dead letters"
            is_many = dead > 0 and 10 * dead > rows + dead
            alarms.set(
                _alarm("dead_letters", spec.name),
                is_many,
                text,
                table=spec.name,
                rows=rows,
                dead_letters=dead,
            )
            lag = self._lag(spec)
            lag_s = self._lag_s(spec)
            text = (
                f"table {spec.name!r} lacks {counted(lag or 0, 'record')} of stream {spec.stream!r}; the oldest was "
                f"published {lag_s or 0:.0f} s ago"
            )
            is_late = lag_s is not None and lag_s > spec.max_lag + spec.commit_interval
            alarms.set(
                _alarm("late", spec.name),
                is_late,
                text,
                table=spec.name,
                lag_records=lag,
                lag_s=lag_s,
            )
            held_columns = self.reports.get(spec.name, {}).get("held") or [{"effect": ""}]
            text = f"table {spec.name!r}: {held_columns[0]['effect']}"
            alarms.set(
                _alarm("held", spec.name), bool(held_columns[0]["effect"]), text, table=spec.name
            )
            audit = self.last_audit(spec.name)
            count, first = (
                (audit["problem_count"], audit["problems"][0])
                if audit and not audit["ok"]
                else (0, "")
            )
            text = f"table {spec.name!r}: the last audit found {counted(count, 'problem')}: {first}"
            alarms.set(_alarm("audit", spec.name), count > 0, text, table=spec.name, problems=count)

    def _last_minute(self, name: str) -> tuple[int, int]:
        """Number of rows and dead letters that a table got."""
        counts = self._counts.get(name)
        if not counts:
            return 0, 0
        while len(counts) > 1 and self.clock.monotonic_s() - counts[0].at_s > _MINUTE_S:
            counts.popleft()
        return max(0, counts[-1].rows - counts[0].rows), max(
            0, counts[-1].dead_letters - counts[0].dead_letters
        )

    def statuses(self) -> Sequence[Spec]:
        """Status of each table, for the dashboard."""
        return [self.status(spec) for spec in self._tables]

    def note_audit(self, name: str, problems: Sequence[str]) -> None:
        """Keep the outcome of an audit with its table."""
        audit: LastAudit = {
            "at": rfc3339(self.clock.now_ns()),
            "ok": not problems,
            "problem_count": len(problems),
            "problems": [*problems[:_SHOWN_PROBLEMS]],
        }
        self._values.put(_AUDITS + name, json.dumps(audit).encode())
        self._last_audits[name] = audit

    def last_audit(self, name: str) -> LastAudit | None:
        """The outcome of the last audit of a table, also of one before the broker started."""
        if name not in self._last_audits:
            text = self._values.get(_AUDITS + name)
            self._last_audits[name] = json.loads(text) if text else None
        return self._last_audits[name]

    def size(self, spec: LakeTableSpec, member: str) -> int | None:
        """The rows or dead letters of a table by its last report, before or after the broker started."""
        size = self.reports.get(spec.name, {}).get(member)
        if size is None and self._kept_offsets(spec):
            size = self.kept_of(spec).get(member)
        return None if size is None else int(size)

    def check_job(self) -> None:
        """Raise ``Unavailable`` where no lake job runs or starts: neither the broker's own nor one that reports."""
        if self._job.state()["state"] in ("starting", "running"):
            return
        now = self.clock.monotonic_s()
        reporting = (name for name, report in self.reports.items() if report["state"] != "stopped")
        if not any(now - self._counts[name][-1].at_s <= _GONE_S for name in reporting):
            raise Unavailable(
                f"expected a running lake job; {self.why_no_job()}. Try: sluice lake run."
            )

    def why_no_job(self) -> str:
        """The end of a sentence: the state of the broker's own lake job."""
        job = self._job.state()
        return f"it is {job['state']}" + (f": {job['reason']}" if job["reason"] else "")

    def status(self, spec: LakeTableSpec) -> Spec:
        """Status of a table, for the dashboard."""
        report = self.reports.get(spec.name, {})
        state, reason = self.state(spec)
        return {
            "name": spec.name,
            "stream": spec.stream,
            "format": spec.format,
            "path": spec.path,
            "state": state,
            "reason": reason,
            "rows": self.size(spec, "rows"),
            "dead_letters": self.size(spec, "dead_letters"),
            "rows_per_s": report.get("rows_per_s"),
            "lag_records": self._lag(spec),
            "lag_s": self._lag_s(spec),
            "last_commit_at": report.get("last_commit_at"),
            "last_commit_rows": report.get("last_commit_rows"),
        }

    def state(self, spec: LakeTableSpec) -> tuple[str, str | None]:
        """The state of a table, and the reason of one that needs one."""
        forbidden = self._places.forbidden_store(spec.path) or self._places.forbidden_catalog(
            spec.catalog
        )
        if forbidden is not None:
            return "failed", forbidden
        report = self.reports.get(spec.name, {})
        job = self._job.state()
        if job["state"] == "failed":
            return "failed", job["reason"]
        if not report or self._is_outdated(report):
            return "starting" if job["state"] in ("starting", "running") else "stopped", job[
                "reason"
            ]
        silent_s = self.clock.monotonic_s() - self._counts[spec.name][-1].at_s
        if silent_s > _GONE_S and report["state"] != "stopped":
            return (
                "failed",
                f"the lake job has reported nothing for {silent_s:.0f} s. Try: sluice lake run.",
            )
        if error := report.get("last_error"):
            return report["state"], error["message"]
        if report["state"] == "starting":
            idle = self._lag(spec) == 0
            since = (
                "since the lake job started"
                if self._kept_offsets(spec) or report.get("rows")
                else "yet"
            )
            return (
                "starting",
                "the stream has no new records" if idle else f"no batch has succeeded {since}",
            )
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

    def waits(self, spec: LakeTableSpec) -> dict[int, tuple[int, int]] | None:
        """The records that the stream holds and the table does not have yet: by shard the first, and how many. Where
        the job has not reported, those that the table had when it did last. None without a stream, and for a new table
        that is to begin at a time that was still to come when it was saved, before the job has found it."""
        if spec.stream not in self._services.storage.streams.names():
            return None
        report = self.reports.get(spec.name, {})
        kept = self.kept_of(spec)
        begun = kept.get("offsets") or kept.get("begins")
        offsets = begun or kept.get("start")
        if begun or report.get("state") != "failed":
            # else of an older stream of that name, or of another path
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
        waits = self.waits(spec)
        return None if waits is None else sum(count for _, count in waits.values())

    def _lag_s(self, spec: LakeTableSpec) -> float | None:
        """Age of the oldest of them; 0 where the table has all."""
        waits = self.waits(spec)
        if waits is None:
            return None
        times = [
            self._time_of(spec, shard, start) for shard, (start, count) in waits.items() if count
        ]
        published_us = [time_us for time_us in times if time_us is not None]
        return (
            max(0.0, round(self.clock.now_ns() / 1e9 - min(published_us) / 1_000_000, 1))
            if published_us
            else None
            if times
            else 0.0
        )

    def valid_through(self, spec: LakeTableSpec) -> str | None:
        """The time of publishing up to which every record is in the table."""
        waits = self.waits(spec)
        if waits is None:
            return None
        times = [
            self._time_of(spec, shard, start) for shard, (start, count) in waits.items() if count
        ]
        before_us = [time_us - 1 for time_us in times if time_us is not None]
        if len(before_us) < len(times):
            return None
        now_us = int(self._positions(spec.stream).get("now_us") or self.clock.now_ns() // 1000)
        return rfc3339(min(before_us, default=now_us) * 1000)

    def _time_of(self, spec: LakeTableSpec, shard: int, offset: int) -> int | None:
        """When a record that waits was published (µs since 1970), read once while it is the first one; None if it
        was removed since."""
        first_waiting = self._waiting.setdefault(spec.name, {})
        if first_waiting.get(shard, (None, 0))[0] != offset:
            try:
                time_us = self._services.storage.history.time_of(spec.stream, shard, offset)
            except SluiceError:
                time_us = None
            if time_us is None:
                return None
            first_waiting[shard] = offset, time_us
        return first_waiting[shard][1]

    def _lag_of(self, name: str, lag: Callable[[LakeTableSpec], float | None]) -> float:
        value = lag(self._tables.get(name))
        return nan if value is None else value

    def _figure_of(self, name: str, member: str) -> float:
        figure = self.reports[name].get(member)
        return nan if figure is None else figure


def _alarm(kind: str, table: str) -> str:
    return f"table_{kind}:{table}"


def advice_of(name: str, report: Mapping[str, Any], partition_by: Sequence[str]) -> list[str]:
    """Sentences of advice; most tables need none."""
    rows, files, size, partitions = (
        report.get(key) or 0 for key in ("rows", "files", "bytes", "partitions")
    )
    if not files or not size:
        return []
    sentences = []
    if partitions >= _MANY_PARTITIONS and size / partitions < _SMALL_PARTITION_BYTES:
        sentences.append(
            f"{counted(partitions, 'partition')} for {counted(rows, 'row')}. Try: partitions that are larger, such as "
            f"day(_published_at), or none."
        )
    elif not partition_by and size > _LARGE_TABLE_BYTES:
        sentences.append(
            f"{size / 1e9:,.0f} GB without partitions: readers of a day look at all files. Try: partition_by = "
            f"[day(_published_at)]."
        )
    if files >= _FEW_FILES and files >= 2 * partitions and size / files < _SMALL_FILE_BYTES:
        sentences.append(
            f"{files:,} files average {size / files / 1e6:,.1f} MB. Try: sluice lake tables compact {name}."
        )
    return sentences
