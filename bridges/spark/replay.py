"""A range of a stream again, into the table it fills: the same read, the same conversion, the same place.

Where the table's rows are made by a rule, the rule as it is now runs again: so a corrected rule rebuilds its rows.

The rows of the range are replaced in one commit, those of its dead letters in another; doing it twice leaves the same
table. The streaming job keeps running: the second to commit reads the table again.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow.compute as pc

from bridges.spark.api import LakeApi
from bridges.spark.batch import RunTasks, TableSpec, TableWriter, discard, spark_tasks
from bridges.spark.session import lake_session, parallelism
from bridges.spark.tables.contract import CommitConflict, Details, LakeTable, Range, ShardRange
from bridges.spark.task import Plan, TaskResult
from broker.core.errors import Invalid, Unavailable
from pyspark_sluice.client import Positions, StreamClient, check_held
from pyspark_sluice.errors import SourceError

T = TypeVar("T")
_ATTEMPTS = 30
"""The streaming job commits about once a second, a replacement takes a fraction of that."""


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What a replay did, or with ``dry_run`` would do."""

    table: str
    dry_run: bool
    ranges: tuple[Range, ...]
    records: int
    rows_before: int
    dead_letters_before: int
    rows_after: int | None = None
    dead_letters_after: int | None = None
    version: int | None = None
    replay: str | None = None
    rule: str | None = None
    """The rule that runs again on the messages of the range."""
    filtered_after: int | None = None
    """Messages that gave no row since the rule's WHERE, or its topics, leave them out."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def text(self) -> str:
        """For people."""
        places = ", ".join(f"[{one.start}, {one.end}) of shard {one.shard}" for one in self.ranges) or "nothing"
        now = f"{self.rows_before} rows and {self.dead_letters_before} dead letters"
        by = f" by rule {self.rule}" if self.rule else ""
        if self.dry_run:
            return f"would replay {places}{by}: {self.records} records, which are {now} of table {self.table} now"
        filtered = f", {self.filtered_after} filtered" if self.rule else ""
        return (
            f"replayed {places}{by}: {self.records} records, which were {now} of table {self.table}, are "
            f"{self.rows_after} rows and {self.dead_letters_after} dead letters{filtered} (version {self.version})"
        )


def run(
    table: str,
    from_: str,
    to: str,
    *,
    url: str,
    token: str,
    directory: Path,
    dry_run: bool = False,
    rule: str | None = None,
    master: str = "local[2,4]",
    driver_memory: str = "1g",
) -> ReplayReport:
    """Replay a range of a table of the broker at ``url``.

    Args:
        table: the table's name.
        from_: the first offset, or a time (RFC 3339): the first record published at or after it.
        to: the offset after the last, or a time.
        url: the management API.
        token: its token.
        directory: takes Spark's scratch files.
        dry_run: count, and change nothing.
        rule: another rule than the table's, to run on the messages of the range.
        master: Spark's master.
        driver_memory: memory of Spark's driver.

    Raises:
        broker.core.errors.Invalid: the range is not one, or not in the table.
        broker.core.errors.NotFound: there is no such table.
        broker.core.errors.Unavailable: the stream does not hold the range any more, or the broker does not answer.
    """
    api = LakeApi(url, token)
    spec = api.table(table)
    if rule is not None:
        spec = _with_rule(spec, api.rule(rule))
    client = api.stream(spec["stream"], deadline_s=5.0)
    try:
        replayed = Replayed(TableSpec.of_api(spec, client.positions()))
        ranges = replayed.ranges(client, from_, to)
    except SourceError as error:
        raise Unavailable(str(error)) from error
    if dry_run or not ranges:
        return replayed.preview(ranges)
    with lake_session(directory, master, driver_memory) as session:
        return replayed.run(ranges, lambda ranges: in_spark(session, api, replayed.spec, ranges))


def _with_rule(spec: dict[str, Any], rule: dict[str, Any]) -> dict[str, Any]:
    """The table's spec with another rule.

    Raises:
        Invalid: the table has none: what its rows come from is not in its stream.
    """
    if not spec.get("rule"):
        raise Invalid(
            f"table {spec['name']!r} is filled from what stream {spec['stream']!r} holds, and no rule runs for it; "
            f"make a table with a rule and a stream of messages, which is filled from the first message that is kept"
        )
    node = spec["rule_text"].get("node", "")
    return {**spec, "columns": rule["columns"], "rule_text": {"name": rule["name"], "sql": rule["sql"], "node": node}}


class Replayed:
    """A table that a range is replayed into."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        self._writer = TableWriter(spec, f"replay-{uuid.uuid4().hex[:12]}")

    def ranges(self, client: StreamClient, from_: str, to: str) -> tuple[Range, ...]:
        """What is between two places, each an offset or a time. Times are resolved once, and cut to what the table has.

        Raises:
            Invalid: offsets that the table does not have, or an end before the start.
            RangeGone: the stream does not hold the range any more.
        """
        starts, where = _resolve(client, from_)
        ends, where = _resolve(client, to)
        found = []
        for shard in self.spec.shards:
            start, end = starts[shard], ends[shard]
            first, next_ = self._writer.table.first(shard), self._writer.table.next(shard)
            if _is_time(from_) and first is not None:
                start = max(start, first)
            if _is_time(to) and next_ is not None:
                end = min(end, next_)
            if start > end:
                raise Invalid(f"the range ends at offset {end} of shard {shard}, before its start at {start}")
            if start == end:
                continue
            if first is None or next_ is None or start < first or end > next_:
                held = f"[{first}, {next_})" if first is not None else "none"
                raise Invalid(
                    f"table {self.spec.name!r} has offsets {held} of shard {shard}, not all of [{start}, {end}); "
                    f"replay what is in the table, the job brings what is not"
                )
            check_held(where, shard, start, end)
            found.append(Range(shard, start, end))
        return tuple(found)

    def preview(self, ranges: Sequence[Range]) -> ReplayReport:
        """What is there now."""
        writer = self._writer
        dead = _count(writer.dead_letters, ranges) if writer.dead_letters else 0
        records = sum(one.end - one.start for one in ranges)
        rule = None if self.spec.rule is None else self.spec.rule.name
        return ReplayReport(self.spec.name, True, tuple(ranges), records, _count(writer.table, ranges), dead, rule=rule)

    def run(self, ranges: Sequence[Range], read: Callable[[Sequence[Range]], RunTasks]) -> ReplayReport:
        """Read the ranges again and replace what they gave before.

        Raises:
            CommitConflict: the table is changed by others all the time.
        """
        before, replay = self.preview(ranges), uuid.uuid4().hex
        plan = replace(self._writer.plan(), floors={}, dead_floors={})
        results, plan = self._writer.run_agreed(read(ranges), plan)
        try:
            details = Details(self._writer.job, _counted(ranges, results), replay)
            version = self._replace(ranges, results, plan, details)
        finally:
            # Both formats have read the files and written their own.
            discard(self.spec.path, results)
        return replace(
            before,
            dry_run=False,
            rows_after=sum(one.row_count for one in details.ranges),
            dead_letters_after=sum(one.dead for one in details.ranges),
            version=version,
            replay=replay,
            filtered_after=sum(one.filtered for one in details.ranges),
        )

    def _replace(self, ranges: Sequence[Range], results: Sequence[TaskResult], plan: Plan, details: Details) -> int:
        writer = self._writer
        rows = [file for result in results for file in result.files]
        letters = [file for result in results for file in result.dead_files]
        dead = writer.open_dead_letters(create=bool(letters))
        _until_committed(writer.table, lambda: writer.add_columns(plan, results))
        version = _until_committed(writer.table, lambda: writer.table.replace(ranges, rows, details))
        if dead is not None:
            # A death before this leaves records that are both or neither: the audit shows it, the same replay fixes it.
            _until_committed(dead, lambda: dead.replace(ranges, letters, replace(details, kind="dead")))
        return version


def _until_committed(table: LakeTable, change: Callable[[], T]) -> T:
    for _ in range(_ATTEMPTS):
        try:
            return change()
        except CommitConflict:
            table.refresh()
    raise CommitConflict(
        f"{table.directory} has constant conflicts with other writers; stop the lake job and try again"
    )


def _resolve(client: StreamClient, place: str) -> tuple[Mapping[int, int], Positions]:
    """The offsets that a place means, per shard."""
    where = client.positions(at=place if _is_time(place) else None)
    if _is_time(place):
        return {one.shard: one.next if one.at is None else one.at for one in where.shards}, where
    return {one.shard: int(place) for one in where.shards}, where


def _is_time(place: str) -> bool:
    return not place.strip().isdigit()


def _counted(ranges: Sequence[Range], results: Sequence[TaskResult]) -> tuple[ShardRange, ...]:
    counted = []
    for one in ranges:
        mine = [count for result in results for count in result.shards if count.shard == one.shard]
        read = sum(count.last + 1 - count.first for count in mine)
        if read != one.end - one.start:
            raise CommitConflict(f"{read} records came for [{one.start}, {one.end}) of shard {one.shard}")
        written, dead, filtered, rows = (
            sum(getattr(count, name) for count in mine) for name in ("written", "dead", "filtered", "rows")
        )
        counted.append(ShardRange(one.shard, one.start, one.end, read, written, dead, filtered, rows))
    return tuple(counted)


def _count(table: LakeTable, ranges: Sequence[Range]) -> int:
    places = table.scan(["_shard", "_offset"])
    found = 0
    for one in ranges:
        inside = pc.and_(
            pc.equal(places["_shard"], one.shard),
            pc.and_(pc.greater_equal(places["_offset"], one.start), pc.less(places["_offset"], one.end)),
        )
        found += pc.sum(inside).as_py() or 0
    return found


def in_spark(session: Any, api: LakeApi, spec: TableSpec, ranges: Sequence[Range]) -> RunTasks:
    """Run tasks over ranges of the table's stream, in a session."""
    starts = {one.shard: one.start for one in ranges}
    ends = {one.shard: one.end for one in ranges}
    idle = {shard: 0 for shard in spec.shards if shard not in starts}
    master = session.sparkContext.master
    frame = (
        session.read.format("sluice")
        .option("url", api.url)
        .option("token", api.token)
        .option("stream", spec.binding.stream)
        .option("columns", spec.source_columns())
        .option("startingOffsets", json.dumps({**idle, **starts}))
        .option("endingOffsets", json.dumps({**idle, **ends}))
        .option("partitions", parallelism(master))
        .option("minPartitionRows", 20_000)
        .load()
    )
    return spark_tasks(frame)
