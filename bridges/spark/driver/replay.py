"""A range of a stream again, into the table it fills: the same read, the same conversion, the same place.

Where the table's rows are made by a rule, the rule as it is now runs again: so a corrected rule rebuilds its rows.

The rows of the range are replaced in one commit, those of its dead letters in another; doing it twice leaves the same
table. The streaming job keeps running: the second to commit reads the table again.

The broker plans a replay and passes it to the lake job with the table; the job runs it on a thread of its own and
reports on it with the table.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.value_sums import Sums, add_sums, packed
from bridges.spark.driver import shadow
from bridges.spark.driver.api import LakeApi, Spec
from bridges.spark.driver.audit import audit_spec
from bridges.spark.driver.batch import (
    Point,
    PositionsAt,
    RecordsRefused,
    RunTasks,
    TableSpec,
    TableWriter,
    discard,
    offsets_of,
    refused_records,
    refusing,
    stream_tasks,
)
from bridges.spark.driver.diff import compare
from bridges.spark.driver.member_places import clean_unused, part_place
from bridges.spark.driver.progress import Cancelled, RangeProgress
from bridges.spark.driver.retype import retype
from bridges.spark.driver.spark_errors import sentence_of
from bridges.spark.driver.upkeep import compact_all, expire, in_one_worker, retain, tables_of
from bridges.spark.driver.upserts import open_writer
from bridges.spark.tables.contract import (
    CommitConflict,
    Details,
    LakeTable,
    Range,
    ShardRange,
    TableLost,
)
from bridges.spark.tables.formats import (
    dead_letters_place,
    exists,
    of_part,
    open_dead_letters,
    open_expected,
    open_table,
)
from bridges.spark.tables.replacing import overlapping, pieces, places_in
from bridges.spark.tasks.task import Plan, Refusal, TaskResult
from broker.config.places import leaves_out
from broker.core.errors import Invalid, NotFound, Problem, SluiceError
from broker.core.times import rfc3339, rfc3339_of
from pyspark_sluice.client import Positions, check_held
from pyspark_sluice.errors import RangeGone, SourceError

log = logging.getLogger("sluice.lake")
# Below this a further task costs more than it saves.
_MIN_TASK_ROWS = 20_000
_WHAT = "the range cannot be replayed"


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Result of a replay, or with ``dry_run`` its preview. The times are those of the rows and dead letters that it
    replaces."""

    table: str
    dry_run: bool
    ranges: list[Range]
    records: int
    rows_before: int
    dead_letters_before: int
    published_from: str | None
    published_to: str | None
    rows_after: int | None = None
    dead_letters_after: int | None = None
    version: int | None = None
    replay: str | None = None
    rule: str | None = None
    """The rule that runs again on the messages of the range."""
    filtered_after: int | None = None
    """Messages that gave no row since the rule's WHERE, or its topics, leave them out."""
    missing: list[Range] = field(default_factory=list)
    """Records that the table had, or was to have, and the stream no longer has."""
    recreates: bool = False
    """True if the table was lost, and is accepted as it is, or made again where it is gone."""
    fills: bool = False
    """True if the job then fills it from where it ends, in place of a replay."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def planned(
    spec: TableSpec,
    positions: PositionsAt,
    start: Point,
    end: Point,
    records: Sequence[tuple[int, int]] = (),
) -> ReplayReport:
    """The ranges that a replay would read again and replace, without changing anything.

    Args:
        spec: the table.
        positions: where its stream begins and ends.
        start: the first offset, or a time: the first record published at or after it; None for the first record that
            the stream still has of those in the table.
        end: the offset after the last, or a time; None for the end of the table. Times are cut to the table's range.
            Where offsets are given by shard, here or for the start, other shards are left out.
        records: single records by shard and offset, in order, in place of a range.

    Raises:
        Invalid: offsets that the table does not have or the stream no longer has, or an end before the start.
    """
    table = open_table(spec.format, spec.place, spec.binding)
    dead = open_dead_letters(spec.format, spec.place, spec.binding, create=False)
    where = positions(None)
    starts = offsets_of(positions, start, "/from")
    ends = offsets_of(positions, end, "/to")
    if records and (start is not None or end is not None):
        raise Invalid(
            _WHAT, [Problem("records: expected no range in addition to single records", "/records")]
        )
    if isinstance(start, datetime) and isinstance(end, datetime) and end < start:
        raise Invalid(
            _WHAT,
            [
                Problem(
                    f"it ends at {rfc3339_of(end)}, before its start at {rfc3339_of(start)}", "/to"
                )
            ],
        )
    chosen = _joined(records)
    if unknown := {part.shard for part in chosen} - {position.shard for position in where.shards}:
        raise Invalid(_WHAT, [Problem(f"the stream has no shard {min(unknown)}", "/records")])
    ranges_of_records = []
    for position in where.shards:
        shard = position.shard
        first = 0
        following = 0
        if leaves_out(shard, start, end):
            continue
        if table is not None:
            first = table.first(shard) or 0
            following = table.next(shard) or 0
        if records:
            wanted = [part for part in chosen if part.shard == shard]
        else:
            low = starts.get(shard, max(first, position.first))
            high = ends.get(shard, following)
            if isinstance(start, datetime):
                low = max(low, first)
            if isinstance(end, datetime):
                high = min(high, following)
            if isinstance(start, int | dict) and isinstance(end, int | dict) and high < low:
                raise Invalid(
                    _WHAT, [Problem(f"it ends at offset {high}, before its start at {low}", "/to")]
                )
            wanted = [Range(shard, low, high)] if high > low else []
        for part in wanted:
            low = part.start
            high = part.end
            if spec.upsert is not None and (records or high < following):
                text = (
                    f"table {spec.name!r} has a key: a replay reads to its end, offset {following} of shard {shard}: "
                    f"a later record may replace or delete what it gives. Try: a start and no end."
                )
                raise Invalid(_WHAT, [Problem(text, "/records" if records else "/to")])
            if low < first or high > following:
                text = (
                    f"table {spec.name!r} has offsets [{first}, {following}) of shard {shard}, not all of [{low}, "
                    f"{high}); a replay replaces what is in the table, the job adds the rest"
                )
                raise Invalid(
                    _WHAT,
                    [Problem(text, "/records" if records else "/from" if low < first else "/to")],
                )
            try:
                check_held(where, shard, low, high)
            except RangeGone as error:
                raise Invalid(
                    _WHAT, [Problem(str(error), "/records" if records else "/from")]
                ) from error
        ranges_of_records += wanted
    return _before(spec, table, dead, ranges_of_records)


def check_whole(spec: TableSpec) -> None:
    """Raise ``TableLost`` where a table that was written is not there, or not as it was written."""
    for part, was in spec.expected.items():
        with of_part(spec.name, part):
            open_expected(spec.format, part_place(spec.place, part), spec.binding, was)


def planned_again(
    spec: TableSpec, positions: PositionsAt, begins: Mapping[int, int], ends: Mapping[int, int]
) -> ReplayReport:
    """The ranges that a replay would read of a table that was lost, and those that the stream no longer has.

    Args:
        spec: the table.
        positions: where its stream begins and ends.
        begins: the first offset of each shard that the table had.
        ends: the offset after the last.
    """
    spec = replace(spec, expected={})
    table = open_table(spec.format, spec.place, spec.binding)
    marks = {} if table is None else {shard: table.next(shard) for shard in ends}
    has_all = all((marks.get(shard) or 0) >= end for shard, end in ends.items())
    missing = []
    ranges = []
    for position in positions(None).shards:
        mark = None if has_all else marks.get(position.shard)
        start = begins.get(position.shard, position.first) if mark is None else mark
        if start < position.first:
            missing.append(Range(position.shard, start, position.first))
        if (low := max(start, position.first)) < position.next:
            ranges.append(Range(position.shard, low, position.next))
    if has_all:  # but for dead letters, or rows that another engine removed
        return replace(planned(spec, positions, None, None), missing=missing, recreates=True)
    plan = _before(spec, table, None, [])
    records = sum(part.end - part.start for part in ranges)
    return replace(
        plan, ranges=ranges, records=records, missing=missing, recreates=True, fills=True
    )


def _joined(records: Sequence[tuple[int, int]]) -> list[Range]:
    """Records by shard and offset, in order, as ranges."""
    ranges_in_table: list[Range] = []
    for shard, offset in records:
        if ranges_in_table and (ranges_in_table[-1].shard, ranges_in_table[-1].end) == (
            shard,
            offset,
        ):
            ranges_in_table[-1] = Range(shard, ranges_in_table[-1].start, offset + 1)
        else:
            ranges_in_table.append(Range(shard, offset, offset + 1))
    return ranges_in_table


def _before(
    spec: TableSpec, table: LakeTable | None, dead: LakeTable | None, ranges: Sequence[Range]
) -> ReplayReport:
    """The present rows and dead letters."""
    rows, letters = (
        _Held() if lake_table is None else _held(lake_table, ranges) for lake_table in (table, dead)
    )
    first = min(rows.first_us, letters.first_us)
    last = max(rows.last_us, letters.last_us)
    records = sum(part.end - part.start for part in ranges)
    rule = None if spec.rule is None else spec.rule.name
    first_at, last_at = (
        rfc3339(time_ms * 1000) if rows.rows or letters.rows else None for time_ms in (first, last)
    )
    return ReplayReport(
        spec.name,
        True,
        list(ranges),
        records,
        rows.rows,
        letters.rows,
        first_at,
        last_at,
        rule=rule,
    )


@dataclass(slots=True)
class _Held:
    """Rows of ranges, and when the first and the last were published."""

    rows: int = 0
    first_us: int = 1 << 62
    last_us: int = -1

    def add(self, rows: int, first_us: int, last_us: int) -> None:
        self.rows += rows
        self.first_us, self.last_us = min(self.first_us, first_us), max(self.last_us, last_us)


def _held(table: LakeTable, ranges: Sequence[Range]) -> _Held:
    """The rows in the ranges: of files at their edges read, of the others as the table knows them."""
    whole, part = overlapping(table, ranges)
    totals = _Held()
    for span in whole:
        totals.add(span.rows, span.low["_published_at"], span.high["_published_at"])
    for batch in places_in(table, [entry.path for entry in part], ranges):
        times = batch.column("_published_at").cast(pa.int64())
        if len(times):
            totals.add(len(times), *pc.min_max(times).as_py().values())
    return totals


class Replayed:
    """A table that a range is replayed into."""

    def __init__(self, spec: TableSpec, session: Any = None) -> None:
        self.spec = spec
        self._writer = open_writer(spec, f"replay-{uuid.uuid4().hex[:12]}", session)

    def run(
        self, ranges: Sequence[Range], read: Callable[[Sequence[Range]], RunTasks]
    ) -> ReplayReport:
        """Read the ranges again and replace what they gave before.

        Raises:
            CommitConflict: the table is changed by others all the time.
        """
        if self.spec.upsert is not None:  # it may have got further since the replay was planned
            ranges = [
                replace(part, end=self._writer.table.next(part.shard) or part.end)
                for part in ranges
            ]
        before = _before(self.spec, self._writer.table, self._writer.dead_letters, ranges)
        replay = uuid.uuid4().hex
        try:
            details, version = self._run(ranges, read, replay, {})
        except RecordsRefused:
            refusals = self._refusals(ranges)
            if not refusals:
                raise
            details, version = self._run(ranges, read, replay, refusals)
        rows = sum(part.row_count for part in details.ranges)
        return replace(
            before,
            dry_run=False,
            rows_after=rows if self.spec.upsert is None else _held(self._writer.table, ranges).rows,
            dead_letters_after=sum(part.dead for part in details.ranges),
            version=version,
            replay=replay,
            filtered_after=sum(part.filtered for part in details.ranges),
        )

    def _run(
        self,
        ranges: Sequence[Range],
        read: Callable[[Sequence[Range]], RunTasks],
        replay: str,
        refusals: Mapping[int, Mapping[int, Refusal]],
    ) -> tuple[Details, int]:
        """Read ranges and replace what they gave before; the commit's details and its version."""
        plan = replace(self._writer.plan(), floors={}, dead_floors={}, refusals=refusals)
        results, plan = self._writer.run_agreed(read(ranges), plan)
        try:
            details = Details(
                self._writer.job,
                _counted(ranges, results, has_sums=self.spec.upsert is None),
                replay,
            )
            with refusing(results):
                return details, self._replace(ranges, results, plan, details)
        finally:
            if self.spec.upsert is not None:  # the merges have written files of their own
                discard(plan, [replace(result, dead_files=[]) for result in results])

    def _refusals(self, ranges: Sequence[Range]) -> dict[int, dict[int, Refusal]]:
        """The records of ranges that the table did not take before."""
        refusals: dict[int, dict[int, Refusal]] = {}
        for shard, offset, reason in refused_records(self._writer.dead_letters):
            if any(each.shard == shard and each.start <= offset < each.end for each in ranges):
                refusals.setdefault(shard, {})[offset] = Refusal(reason, is_buried=False)
        return refusals

    def _replace(
        self, ranges: Sequence[Range], results: Sequence[TaskResult], plan: Plan, details: Details
    ) -> int:
        writer = self._writer
        rows = [file for result in results for file in result.files]
        letters = [file for result in results for file in result.dead_files]
        writer.table.until_committed(partial(writer.add_columns, plan, results))
        return writer.replace_both(ranges, rows, letters, details)


def _counted(
    ranges: Sequence[Range], results: Sequence[TaskResult], *, has_sums: bool
) -> tuple[ShardRange, ...]:
    counted = []
    for part in ranges:
        counts = [
            count for result in results for count in result.shards if count.shard == part.shard
        ]
        mine = [count for count in counts if part.start <= count.first < part.end]
        read = sum(count.last + 1 - count.first for count in mine)
        if read != part.end - part.start:
            raise CommitConflict(
                f"{read} records came for [{part.start}, {part.end}) of shard {part.shard}"
            )
        written, dead, filtered, rows = (
            sum(getattr(count, name) for count in mine)
            for name in ("written", "dead", "filtered", "rows")
        )
        sums: Sums = {}
        for count in mine:
            add_sums(sums, count.sums)
        text = packed(sums, part.start, part.end) if has_sums else ""
        counted.append(
            ShardRange(
                part.shard, part.start, part.end, read, written, dead, filtered, rows, sums=text
            )
        )
    return tuple(counted)


def in_spark(
    session: Any,
    api: LakeApi,
    spec: TableSpec,
    ranges: Sequence[Range],
    progress: RangeProgress | None = None,
) -> RunTasks:
    """Run tasks over ranges of the table's stream, in a session, piece by piece."""
    progress = progress or RangeProgress()

    def run(plan: Plan) -> list[TaskResult]:
        results: list[TaskResult] = []
        where = api.stream(spec.binding.stream).positions()
        progress.done = 0
        try:
            for piece in progress.over(ranges):
                size = sum(part.end - part.start for part in piece)
                rows = max(_MIN_TASK_ROWS, -(-size // session.sparkContext.defaultParallelism))
                results += stream_tasks(session, api, spec, where, list(pieces(piece, rows)))(plan)
        except BaseException:
            discard(plan, results)
            raise
        return results

    return run


def cleaned(spec: TableSpec, older_than_s: float, dry_run: bool) -> dict[str, Any]:
    """Remove files that no version of a table or of its dead letters refers to, or count them; the report."""
    tables = tables_of(spec)
    dead = dead_letters_place(spec.place).url
    counts = {table.place.url: len(table.clean(older_than_s, dry_run=dry_run)) for table in tables}
    of_dead = counts.pop(dead, 0)
    unused = clean_unused(spec.place, tables, older_than_s, dry_run=dry_run)
    files = sum(counts.values()) + unused
    return {"table": spec.name, "dry_run": dry_run, "files": files, "dead_letter_files": of_dead}


def retype_column(spec: TableSpec, job: str, column: str, kind: str) -> dict[str, Any]:
    """Give a column of a table another type; the report."""
    return retype(open_writer(spec, job), column, kind).as_dict()


def runs_beside(order: Spec) -> bool:
    """True if a table is filled while the order runs: those that do not change all rows retry their commits."""
    beside = ("ranges", "compact", "expire", "retain", "diff", "swap", "discard", "audit")
    return any(order.get(name) for name in beside)


def is_alone(table: Spec) -> bool:
    """True if a table's query must not run during the ordered replay: the end of a table with a key must not
    move, and other orders than replays change all rows. An audit changes nothing."""
    order = table["replay"]
    return not runs_beside(order) or bool(table.get("key") and not order.get("audit"))


class ReplayRun:
    """A replay that the broker asked for, on a thread of its own. ``order`` is the ``replay`` of the table."""

    def __init__(
        self, session: Any, api: LakeApi, table: Spec, on_end: Callable[[], None] = lambda: None
    ) -> None:
        self._session = session
        self._api = api
        self._order = table["replay"]
        self._on_end = on_end
        order = self._order
        self.id: str = order["id"]
        self._spec = {**table, "columns": order["columns"], "rule_text": order["rule_text"]}
        self._ranges = [Range(**part) for part in order["ranges"]]
        self._must_be_alone = is_alone(table)
        self._progress = RangeProgress(order.get("rate"), is_paused=bool(order.get("pause")))
        self._state = "running"
        self._outcome: dict[str, Any] = {"error": None, "result": None}
        self._thread = threading.Thread(
            target=self._run, name=f"replay {table['name']}", daemon=True
        )
        self._thread.start()

    @property
    def is_alone(self) -> bool:
        """True if the table's query must not run at the same time."""
        return self._state == "running" and self._must_be_alone

    def follow(self, order: Spec) -> None:
        """Take what was asked since: to wait, to continue, to end."""
        self._progress.is_paused = bool(order.get("pause"))
        if order["cancel"]:
            self.cancel()

    def cancel(self) -> None:
        """End it after the piece that it reads now; nothing is replaced."""
        self._progress.is_cancelled = True

    def report(self) -> dict[str, Any]:
        """Progress, as the API takes it; ``at`` changes while it runs."""
        at = rfc3339(time.time_ns()) if self._state == "running" else None
        return {
            "id": self.id,
            "state": self._state,
            "done": self._progress.done,
            "at": at,
            **self._outcome,
        }

    def _run(self) -> None:
        if self._session is not None:  # tasks of the queries get their share of the workers
            self._session.sparkContext.setLocalProperty("spark.scheduler.pool", "replays")
        try:
            where = self._api.stream(self._spec["stream"]).positions()
            self._outcome["result"] = self._result(TableSpec.of_api(self._spec, where), where)
            self._state = "done"
        except Cancelled:
            self._state = "cancelled"
        except (SluiceError, SourceError) as error:
            self._outcome["error"], self._state = str(error), "failed"
        except Exception as error:
            log.exception("lake.replay_failed table=%s", self._spec["name"])
            self._outcome["error"], self._state = (
                sentence_of(str(error), self._spec["path"]),
                "failed",
            )
        self._on_end()

    def _result(self, spec: TableSpec, where: Positions) -> dict[str, Any]:
        if "" in spec.expected and not exists(spec.format, spec.place):
            with of_part(spec.name):
                raise TableLost.gone(spec.place)
        if wanted := self._order["retype"]:
            arguments = spec, f"retype-{self.id}", wanted["column"], wanted["type"]
            return dict(in_one_worker(self._session, retype_column, *arguments))
        if self._order["accept_gap"]:
            writer = TableWriter(spec, f"gap-{self.id}")
            gaps, version = writer.accept_gap(where)
            ranges = [{"shard": gap.shard, "start": gap.start, "end": gap.end} for gap in gaps]
            return {
                "table": spec.name,
                "ranges": ranges,
                "records": sum(gap.lost for gap in gaps),
                "version": version,
            }
        if wanted := self._order["clean"]:
            return cleaned(spec, wanted["older_than_s"], wanted["dry_run"])
        if depth := self._order.get("audit"):
            return audit_spec(
                self._spec, where, self._progress, depth=depth, api=self._api, session=self._session
            ).as_dict()
        if self._order.get("compact"):
            return dict(in_one_worker(self._session, compact_all, spec))
        if wanted := self._order.get("expire"):
            return expire(spec.name, tables_of(spec), wanted["older_than_s"], dry_run=False)
        if wanted := self._order.get("retain"):
            return retain(
                spec,
                f"retain-{self.id}",
                wanted["older_than_s"],
                dry_run=False,
                session=self._session,
            )
        if self._order.get("diff"):
            return compare(self._session, spec, self._progress)
        if self._order.get("swap"):
            return shadow.swap(spec, open_writer(spec, f"swap-{self.id}", self._session))
        if self._order.get("discard"):
            return shadow.discard(spec)
        if self._order.get("into"):
            with suppress(NotFound):
                self._progress.done = shadow.Shadow.open(spec).as_dict(spec.name)["done"]
            return shadow.fill(
                spec, self._order["replay"], self._ranges, partial(self._reads, spec)
            ).as_dict(spec.name)
        read = partial(in_spark, self._session, self._api, spec, progress=self._progress)
        return Replayed(spec, self._session).run(self._ranges, read).as_dict()

    def _reads(self, spec: TableSpec, ranges: Sequence[Range]) -> Iterator[RunTasks]:
        """A read for each piece of ranges; the next one when the piece before is committed."""
        beside = shadow.shadow_of(spec)
        for piece in self._progress.over(ranges):
            yield in_spark(self._session, self._api, beside, piece)
