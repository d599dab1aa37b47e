"""One micro-batch into one table, exactly once, whatever is killed when.

The table is the truth. Its committed offsets are read, tasks write files for the records above them, and one commit
adds the files and moves the offsets, against the very version they were read from. A batch that comes again (the driver
died between the table's commit and Spark's) finds its offsets committed and adds nothing; a second driver's commit is
refused and it looks again. Dead letters are committed first, in their own table with their own offsets, so that neither
can be lost or doubled by a death in between.

Files of a commit that was refused are left for the cleaning of orphans: removing them here could remove what a commit
with an unclear end did add.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar

import pyarrow.compute as pc

from bridges.spark.columns.column import (
    DEAD_LETTER,
    ITEM,
    PROVENANCE,
    RAW,
    Column,
    columns_of_api,
    taken,
)
from bridges.spark.columns.layout import Layout, LayoutError
from bridges.spark.columns.place import Place
from bridges.spark.columns.store import place_of
from bridges.spark.columns.template import MOST_TABLES, NameTemplate
from bridges.spark.columns.types import column_name, folded
from bridges.spark.columns.value_sums import Sums, add_sums, packed
from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.evolution import Held, both, held, in_place
from bridges.spark.driver.spark_errors import sentence_of
from bridges.spark.tables.contract import (
    Binding,
    Change,
    CommitConflict,
    Details,
    LakeTable,
    Part,
    Range,
    Rest,
    ShardRange,
    TableRefused,
    until_committed,
    verify_files,
)
from bridges.spark.tables.formats import (
    DEAD_LETTERS_SUFFIX,
    dead_letters_place,
    of_part,
    open_dead_letters,
    open_expected,
    open_or_create,
)
from bridges.spark.tables.replacing import Rewrite, replace_ranges, rewritten_here
from bridges.spark.tasks.keys import Upsert
from bridges.spark.tasks.mapping import Reading, in_workers, refusal_of, work
from bridges.spark.tasks.rule_text import RuleText
from bridges.spark.tasks.task import (
    RAW_COLUMNS,
    REFUSED,
    ROWS_COLUMNS,
    DataFile,
    PartitionWriter,
    Plan,
    Refusal,
    TaskResult,
)
from broker.core.errors import Invalid, Problem, SluiceError, Unavailable
from pyspark_sluice.client import Positions
from pyspark_sluice.errors import SourceError

log = logging.getLogger("sluice.lake")
T = TypeVar("T")
# The positions of a stream, with those of a time where one is given.
PositionsAt = Callable[[datetime | None], Positions]
# An offset, a time, or offsets by shard; None is a default that depends on the use.
Point = int | datetime | dict[int, int] | None
# Maximum attempts of a batch against other writers before the query fails (and is restarted).
_ATTEMPTS = 8
# An error of delta-rs that is not an ``Exception``; its class cannot be imported.
_PANIC = "PanicException"
# For so long, in microseconds, a record may be on its way into the stream.
_SETTLED_US = 5_000_000
# Versions that are searched for the key of a table: other commits may follow the last batch.
_LOOKED_AT = 20


class Gap(SluiceError):
    """A batch that starts after the table's end: committing it would lose the records between."""


class RecordsRefused(SluiceError):
    """The table does not take some record of a batch. ``seen`` are the records of the batch: by shard the first offset
    and the one after the last."""

    def __init__(self, reason: str, seen: Mapping[int, tuple[int, int]]) -> None:
        super().__init__(reason)
        self.seen = seen


@dataclass(frozen=True, slots=True)
class Members:
    """Limit of the tables that rows go into, of which the template gives the names."""

    template: NameTemplate
    most: int

    @classmethod
    def of(cls, tables: str, most: int | None) -> Members | None:
        """From the API's spec; None where the rows are the table's own."""
        return cls(NameTemplate.parse(tables), most or MOST_TABLES) if tables else None


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The job's description of a table."""

    name: str
    format: str
    place: Place
    kind: str
    binding: Binding
    columns: tuple[Column, ...] = ()
    pending: tuple[str, ...] = ()
    shards: tuple[int, ...] = (0,)
    rule: RuleText | None = None
    """Runs on the messages of a *topics* stream; None where the table is the stream itself."""
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    upsert: Upsert | None = None
    """Rules of a table with a key; None where each record is a row."""
    members: Members | None = None
    """None where rows are the table's own."""
    expected: Mapping[str, Part] = field(default_factory=dict)
    """The tables that the job has written, by the ends of their paths: nothing, that of dead letters, of members."""

    def __post_init__(self) -> None:
        if self.rule is not None and ITEM not in self.columns:
            object.__setattr__(self, "columns", (ITEM, *self.columns))

    @classmethod
    def of_api(cls, spec: dict[str, Any], where: Positions) -> TableSpec:
        """From the API's spec and the stream's positions.

        Raises:
            Unavailable: the table's rule cannot be run now.
            SecretUnreadable: a credential of the table's store is not there.
        """
        columns: Sequence[Column] = RAW
        pending: Sequence[str] = ()
        rule = _rule_of(spec)
        if where.kind == "rows" or rule:
            columns, pending = columns_of_api(spec.get("columns") or ())
        return cls(
            spec["name"],
            spec["format"],
            place_of(spec),
            where.kind,
            Binding(spec["stream"], where.epoch),
            tuple(columns),
            tuple(pending),
            tuple(shard.shard for shard in where.shards),
            rule,
            tuple(spec.get("partition_by") or ()),
            tuple(spec.get("sort_by") or ()),
            Upsert.of(spec.get("key") or (), spec.get("delete_when") or "", len(where.shards)),
            Members.of(spec.get("tables") or "", spec.get("max_tables")),
            {name: Part(**part) for name, part in (spec.get("expected") or {}).items()},
        )

    def layout(self, columns: Sequence[Column]) -> Layout:
        """Layout of a table with these columns after provenance.

        Raises:
            TableRefused: it cannot be.
        """
        types = {column.name: column.type for column in (*PROVENANCE, *columns)}
        try:
            return Layout.parse(self.format, self.partition_by, self.sort_by, types)
        except LayoutError as error:
            raise TableRefused(f"{error.member}: {error}") from error

    def source_columns(self) -> str:
        """The columns that tasks need of the source, as its option takes them.

        Raises:
            Invalid: the table's rule cannot run in Spark.
        """
        columns: tuple[str, ...] = (
            RAW_COLUMNS if self.kind == "topics" and self.rule is None else ROWS_COLUMNS
        )
        if self.rule is not None:
            from bridges.spark.tasks.rule_run import RuleRun

            columns += RuleRun(self.rule).columns
        if self.upsert is not None and self.upsert.delete_when:
            from bridges.spark.tasks.condition import Condition

            columns += Condition(self.upsert.delete_when).columns
        return ",".join(dict.fromkeys(columns))


def _rule_of(spec: dict[str, Any]) -> RuleText | None:
    rule = spec.get("rule_text")
    if not rule:
        return None
    if "problem" in rule:
        raise Unavailable(f"rule {rule['name']!r} cannot be run: {rule['problem']}")
    return RuleText(rule["name"], rule["sql"], rule["node"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a micro-batch. ``version`` is the table's after it, ``commit_s`` the seconds of its commits, ``read``
    false if there was no record to read."""

    version: int
    ranges: tuple[ShardRange, ...] = ()
    bytes: int = 0
    files: int = 0
    file_bytes: int = 0
    commit_s: float = 0.0
    read: bool = True
    misfits: Mapping[str, Counter[str]] = field(default_factory=dict)
    """By key, of how many values that the column does not take have which type."""
    over: int = 0
    """Rows that are dead letters since there would be too many member tables."""

    @property
    def written(self) -> int:
        """Rows, of which a record may give several."""
        return sum(part.row_count for part in self.ranges)

    @property
    def dead(self) -> int:
        return sum(part.dead for part in self.ranges)


def together(parts: Sequence[Outcome]) -> Outcome:
    """The outcome of a batch that was committed in parts, in their order."""
    misfits: dict[str, Counter[str]] = {}
    for key, votes in (entry for part in parts for entry in part.misfits.items()):
        misfits.setdefault(key, Counter()).update(votes)
    return Outcome(
        parts[-1].version,
        tuple(span for part in parts for span in part.ranges),
        sum(part.bytes for part in parts),
        sum(part.files for part in parts),
        sum(part.file_bytes for part in parts),
        sum(part.commit_s for part in parts),
        misfits=misfits,
        over=sum(part.over for part in parts),
    )


def _count(ranges: Mapping[int, tuple[int, int]]) -> int:
    return sum(max(0, end - start) for start, end in ranges.values())


def _first(ranges: Mapping[int, tuple[int, int]], count: int) -> dict[int, int]:
    """The ends of the first ``records`` records of ranges, shard by shard."""
    ends = {}
    for shard, (start, end) in ranges.items():
        taken_here = min(max(0, end - start), count)
        ends[shard] = start + taken_here
        count -= taken_here
    return ends


# Runs the tasks of a batch with a plan: in Spark, see ``stream_tasks``.
RunTasks = Callable[[Plan], list[TaskResult]]


def stream_tasks(
    session: Any, api: LakeApi, spec: TableSpec, where: Positions, pieces: Sequence[Sequence[Range]]
) -> RunTasks:
    """Run a task for each piece of the table's stream, in a session. They raise ``TableRefused`` where one could not
    write, and ``RecordsRefused`` where one could not write some record."""
    columns = tuple(spec.source_columns().split(","))

    def run(plan: Plan) -> list[TaskResult]:
        reading = Reading(api.url, api.reader_token(spec.binding.stream), where, columns, plan)
        write = work("bridges.spark.tasks.mapping", "read_and_written", reading)
        return results_of(in_workers(session, write, pieces), plan.table.url)

    return run


def results_of(texts: Iterable[str], url: str) -> list[TaskResult]:
    """The results of tasks for the table at a URL.

    Raises:
        TableRefused: one could not write.
        RecordsRefused: one could not write some record.
    """
    results = [TaskResult.from_json(text) for text in texts]
    for result in results:
        if result.failure is not None:
            raise TableRefused(sentence_of(result.failure, url))
    for result in results:
        if result.refused is not None:
            raise RecordsRefused(result.refused, seen_by(results))
    return results


def seen_by(results: Iterable[TaskResult]) -> dict[int, tuple[int, int]]:
    """The records that came to tasks: by shard the first offset, and the one after the last."""
    seen_ranges: dict[int, tuple[int, int]] = {}
    for shard, (first, end) in (entry for result in results for entry in result.seen.items()):
        earlier = seen_ranges.get(shard, (first, end))
        seen_ranges[shard] = min(earlier[0], first), max(earlier[1], end)
    return seen_ranges


@contextlib.contextmanager
def refusing(results: Sequence[TaskResult]) -> Iterator[None]:
    """Commit what tasks wrote in the block.

    Raises:
        RecordsRefused: the format's library fails, which is for the values of some record.
    """
    try:
        yield
    except (SluiceError, OSError, MemoryError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise RecordsRefused(refusal_of(error), seen_by(results)) from error


def rewritten_in(session: Any) -> Rewrite:
    """Write files again in Spark. Raises ``TableRefused`` where a task could not write."""

    def run(rests: Sequence[Rest]) -> list[TaskResult]:
        rewrite = work("bridges.spark.tables.replacing", "rewritten", None)
        return results_of(in_workers(session, rewrite, rests), rests[0].place.url if rests else "")

    return run


class TableWriter:
    """Writes the batches of one stream into one table. Used by one thread."""

    def __init__(self, spec: TableSpec, job: str, rewrite: Rewrite = rewritten_here) -> None:
        self.spec = spec
        self.job = job
        self.rewrite = rewrite
        self.positions: Callable[[], Positions] | None = None
        """The stream's present positions, for the times in commits; None without any."""
        layout = spec.layout(spec.columns)
        was = spec.expected.get("")
        if was is None:
            self.table: LakeTable = open_or_create(
                spec.format, spec.place, spec.binding, spec.columns, layout
            )
        else:
            with of_part(spec.name):
                self.table = open_expected(spec.format, spec.place, spec.binding, was)
        self.table.check_names()
        self._check_key()
        self._check_tables()
        self.dead_letters: LakeTable | None = None
        self.dead_letters = self.open_dead_letters(create=False)
        self._pending = set(spec.pending)
        self.evolve(spec.columns)
        self.table.set_layout(spec.layout(self.table.columns()))

    def _check_key(self) -> None:
        """Refuse a table with another key: its files are where that one puts their rows."""
        wanted = () if self.spec.upsert is None else self.spec.upsert.key
        commits = (version.details for version in self.table.versions(_LOOKED_AT))
        last = next(
            (version for version in commits if version is not None and version.keys is not None),
            None,
        )
        if last is not None and last.key != wanted:
            raise TableRefused(
                f"the table at {self.spec.place.url} has the key {', '.join(last.key)}, table {self.spec.name!r} "
                f"has {', '.join(wanted) or 'none'}. Try: the same 'key', or another 'path'."
            )

    def _check_tables(self) -> None:
        """Refuse a table whose rows are in other tables than these."""
        wanted = "" if self.spec.members is None else self.spec.members.template.text
        commits = (version.details for version in self.table.versions(_LOOKED_AT))
        for version in commits:
            if (
                version is not None
                and version.kind == "rows"
                and any(part.written for part in version.ranges)
            ):
                if version.tables != wanted:
                    raise TableRefused(
                        f"the table at {self.spec.place} was filled with 'tables' {version.tables or 'none'}, table "
                        f"{self.spec.name!r} has {wanted or 'none'}. Try: the same 'tables', or another 'path'."
                    )
                return

    @property
    def held(self) -> list[Held]:
        """Changes of the columns that wait for a retype."""
        return held(self.table.columns(), self.spec.columns, self.spec.format)

    def evolve(self, columns: Sequence[Column]) -> None:
        """Add columns and members that the table does not have, and widen those that it can."""
        evolved(self.table, columns, self.spec.format)

    def figures(self) -> Figures:
        """Size of the table now."""
        return figures_of(self.table)

    def member_figures(self) -> list[dict[str, Any]]:
        """The member tables as the API shows them."""
        return []

    def write(self, run: RunTasks) -> Outcome:
        """Commit a batch, or find that it is committed already. A record that the table does not take is a dead letter.

        Raises:
            Gap: records between the table's end and the batch would be missing.
            CommitConflict: other writers were first again and again.
        """
        try:
            return self._write(run)
        except RecordsRefused as refused:
            return self._write_in_parts(run, refused)

    def _write(
        self,
        run: RunTasks,
        until: Mapping[int, int] | None = None,
        refused: tuple[int, int, str] | None = None,
    ) -> Outcome:
        """Commit a batch up to these offsets, without a record (shard, offset and reason) that the table refuses."""

        def write() -> Outcome:
            plan = replace(self.plan(), until=until, refusals=self._refusals(refused))
            results, plan = self.run_agreed(run, plan)
            with refusing(results):
                return self._commit(results, plan)

        return self.until_committed(write)

    def until_committed(self, change: Callable[[], T]) -> T:
        """Make a change of the newest version of the table, again where another writer was first.

        Raises:
            CommitConflict: others were first again and again.
        """
        self.refresh()
        return until_committed(change, self.refresh, f"table {self.spec.name!r}", _ATTEMPTS)

    def _refusals(self, refused: tuple[int, int, str] | None) -> dict[int, dict[int, Refusal]]:
        if refused is None:
            return {}
        shard, offset, reason = refused
        return {shard: {offset: Refusal(reason, self._is_buried(shard, offset))}}

    def _is_buried(self, shard: int, offset: int) -> bool:
        """Return whether a record is a dead letter by now. The end of the dead letters does not say so: they may be
        committed for more of the batch than the table was."""
        if self.dead_letters is None or offset >= (self.dead_letters.next(shard) or 0):
            return False
        letters = self.dead_letters.scan(["_shard", "_offset"])
        is_it = pc.and_(pc.equal(letters["_shard"], shard), pc.equal(letters["_offset"], offset))
        return bool(pc.any(is_it).as_py())

    def _write_in_parts(self, run: RunTasks, refused: RecordsRefused) -> Outcome:
        """Commit a batch of which some record is refused: halves of it, until it is the record alone.

        Raises:
            RecordsRefused: the table does not take it as a dead letter either, so it is not for the record.
        """
        left = self._left(refused.seen)
        done = list[Outcome]()
        suspects = _count(left)
        while records := _count(left):
            size = max(1, suspects // 2) if suspects else records
            until = _first(left, size)
            try:
                done.append(self._write(run, until))
                suspects = max(0, suspects - size)
            except RecordsRefused as error:
                suspects = size
                if size == 1:
                    [(shard, offset)] = [
                        (shard, start) for shard, (start, _) in left.items() if until[shard] > start
                    ]
                    log.warning(
                        "lake.record_refused table=%s shard=%s offset=%s reason=%s",
                        self.spec.name,
                        shard,
                        offset,
                        error,
                    )
                    done.append(self._write(run, until, (shard, offset, str(error))))
                    suspects = 0
            left = self._left(left)
        return together(done)

    def _left(self, seen: Mapping[int, tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """The records that the table does not have yet."""
        ends = self.ends(self.table)
        return {
            shard: (max(start, ends.get(shard, 0)), end)
            for shard, (start, end) in sorted(seen.items())
        }

    def accept_gap(self, where: Positions) -> tuple[tuple[ShardRange, ...], int]:
        """Move the table's ends to the first records that the stream has; the ranges, and the table's version.

        Raises:
            CommitConflict: other writers were first again and again.
        """

        def accept() -> tuple[tuple[ShardRange, ...], int]:
            gaps = gaps_of(self.ends(self.table), where)
            return gaps, self.table.commit(
                Change(Details(self.job, gaps))
            ) if gaps else self.table.version()

        return self.until_committed(accept)

    def begin_again(self, begins: Mapping[int, int], where: Positions) -> None:
        """Let a table that was lost continue where it ends, or else where it began, without the records that the
        stream no longer has; these are noted as lost.

        Raises:
            CommitConflict: another writer was first.
        """
        starts = {**begins, **self.ends(self.table)}
        gaps = gaps_of(starts, where)
        fresh = {shard: start for shard, start in begins.items() if self.table.next(shard) is None}
        shards = {gap.shard for gap in gaps}
        starting = (
            ShardRange(shard, start, start, 0, 0, 0)
            for shard, start in fresh.items()
            if shard not in shards
        )
        if ranges := (*gaps, *starting):
            self.table.commit(
                Change(Details(self.job, tuple(sorted(ranges, key=lambda span: span.shard))))
            )

    def begin(self, starts: Mapping[int, int]) -> None:
        """Let a table without records begin at these offsets.

        Raises:
            CommitConflict: another writer was first.
        """
        ranges = tuple(
            ShardRange(shard, start, start, 0, 0, 0) for shard, start in sorted(starts.items())
        )
        self.table.commit(Change(Details(self.job, ranges)))

    def tidy(self, session: Any = None) -> None:
        """Tidy member tables, where there are any."""

    def forget_replaced(self) -> None:
        """Remove files that batches have replaced a while ago, where they replace any."""

    def replace_both(
        self,
        ranges: Sequence[Range],
        rows: Sequence[DataFile],
        letters: Sequence[DataFile],
        details: Details,
    ) -> int:
        """Replace the rows of ranges, and then the dead letters; returns the version of the rows.

        A death in between leaves records that are both or neither: the audit shows it, the same again fixes it.
        """
        dead = self.open_dead_letters(create=bool(letters))
        version = self.replace(ranges, rows, details)
        if dead is not None:
            replace_ranges(dead, ranges, letters, replace(details, kind="dead"), self.rewrite)
        return version

    def replace(self, ranges: Sequence[Range], files: Sequence[DataFile], details: Details) -> int:
        """Replace the rows of ranges by those of the files; returns the version.

        Raises:
            CommitConflict: another writer was first.
        """
        return replace_ranges(self.table, ranges, files, details, self.rewrite)

    def reconverter(self, plan: Plan) -> PartitionWriter:
        """The task that converts rows and dead letters again for a table with other columns."""
        return PartitionWriter(plan)

    def settled_letters(self) -> dict[int, int]:
        """By shard, the offset below which a dead letter stays one though it may fit."""
        return {}

    def retyped(
        self,
        columns: Sequence[Column],
        results: Sequence[TaskResult],
        details: Details,
        dead: Mapping[int, int],
    ) -> int:
        """Put the rows of results in the place of all, with these columns; the version. ``dead`` are the dead letters
        that there are afterwards, by shard.

        Raises:
            CommitConflict: another writer was first.
        """
        files = [file for result in results for file in result.files]
        return self.table.commit(Change(details, files, columns=columns, removes_all=True))

    def plan(self) -> Plan:
        """The plan for tasks, from the current table."""
        columns = self.table.columns()
        keys = {column.key for column in columns}
        return Plan(
            stream=self.spec.binding.stream,
            kind=self.spec.kind,
            columns=columns,
            pending=tuple(sorted(self._pending - keys)),
            table=self.spec.place.directory,
            dead=dead_letters_place(self.spec.place.directory),
            dead_columns=self._dead_columns(),
            floors=self.ends(self.table),
            dead_floors=self.ends(self.dead_letters),
            rule=self.spec.rule,
            layout=replace(self.spec, partition_by=self.table.partitions()).layout(columns),
        )

    def _dead_columns(self) -> tuple[Column, ...]:
        """The columns of dead letters, as their table has them or will have them."""
        if self.dead_letters is None:
            return self.table.columns_at_first(DEAD_LETTER)
        return tuple(column for column in self.dead_letters.columns() if column in DEAD_LETTER)

    def with_columns(self, plan: Plan, columns: Sequence[Column]) -> Plan:
        """A plan with further columns; the table gets them first, where it gives them identifiers."""
        for _ in range(_ATTEMPTS if self.table.has_ids else 0):
            with contextlib.suppress(CommitConflict):
                self.evolve(columns)
                break
            self.table.refresh()
        unchanged = {column: column for column in self.table.columns()}
        return replace(plan, columns=tuple(unchanged.get(column, column) for column in columns))

    def ends(self, table: LakeTable | None) -> dict[int, int]:
        """The committed end of each shard that has one."""
        if table is None:
            return {}
        table_ends = {shard: table.next(shard) for shard in self.spec.shards}
        return {shard: end for shard, end in table_ends.items() if end is not None}

    def run_agreed(self, run: RunTasks, plan: Plan) -> tuple[list[TaskResult], Plan]:
        """Run the tasks; once more where two tasks typed a new column differently, with the types settled, and where
        files have identifiers of columns, so that those of new ones are known.

        Raises:
            TableRefused: a file that a task wrote is not in the table's directory.
        """
        results = run(plan)
        for result in results:
            self._pending.update(result.null_keys)
        agreed = settle(plan.columns, results, plan.layout.names)
        if agreed is None and self.table.has_ids and any(result.discovered for result in results):
            agreed = tuple(columns_after(plan.columns, results))
        if agreed is not None:
            with refusing(results):
                plan, before = self.with_columns(plan, agreed), plan
            discard(before, results)
            results = run(plan)
        for result in results:
            verify_files(plan.table, result.files, result.host)
            verify_files(plan.dead, result.dead_files, result.host)
        return results, plan

    def _commit(self, results: Sequence[TaskResult], plan: Plan) -> Outcome:
        ranges = self._ranges(results)
        if not ranges:
            return Outcome(self.table.version(), read=any(result.shards for result in results))
        began = time.monotonic()
        details = Details(self.job, ranges, valid_through=self._valid_through(results, ranges))
        dead_files = [file for result in results for file in result.dead_files]
        columns = columns_after(plan.columns, results)
        if dead_files:
            self.table.refresh()
            if not self._can_have(plan.columns):
                raise CommitConflict("the table's columns changed")
            self.dead_letters = self.open_dead_letters(create=True)
            assert self.dead_letters is not None
            if self.ends(self.dead_letters) != plan.dead_floors:
                raise CommitConflict("another writer committed dead letters")
            # Letters of a batch that is committed in parts may be there for more of it.
            ends = {
                shard: max(end, plan.dead_floors.get(shard, 0))
                for shard, end in ((part.shard, part.end) for part in ranges)
            }
            dead_ranges = tuple(replace(part, end=ends[part.shard]) for part in ranges)
            self.dead_letters.commit(
                Change(Details(self.job, dead_ranges, kind="dead"), dead_files)
            )
        self.add_columns(plan, results)
        files = [file for result in results for file in result.files]
        version = self._append(results, details, plan, columns)
        size = sum(count.bytes for result in results for count in result.shards)
        misfits: dict[str, Counter[str]] = {}
        for result in results:
            for key, votes in result.misfits.items():
                misfits.setdefault(key, Counter()).update(votes)
        written = sum(file.size for file in files)
        took_s = time.monotonic() - began
        over = sum(result.over for result in results)
        return Outcome(
            version, ranges, size, len(files), written, took_s, misfits=misfits, over=over
        )

    def _valid_through(
        self, results: Sequence[TaskResult], ranges: Sequence[ShardRange]
    ) -> int | None:
        """The time of publishing up to which every record is in the table with a batch: the least of all shards. Of a
        shard that the batch has read to its end, that is a moment ago; of another one, just before its last record,
        which others may have been published at the same time as."""
        if self.positions is None:
            return None
        try:
            where = self.positions()
        except (SluiceError, SourceError):
            return self.table.valid_through()
        ends = {
            **where.first(),
            **self.ends(self.table),
            **{part.shard: part.end for part in ranges},
        }
        counts = sorted(
            (count for result in results for count in result.shards), key=lambda count: count.last
        )
        last = {count.shard: count.last_us for count in counts if count.last_us is not None}
        now_us = where.now_us
        times = list[int]()
        for shard, following in where.next().items():
            time_us = last.get(shard)
            if ends[shard] >= following and now_us is not None:
                time_us = max(time_us or 0, now_us - _SETTLED_US)
            elif time_us is not None:
                time_us -= 1
            if time_us is None:
                return self.table.valid_through()
            times.append(time_us if now_us is None else min(time_us, now_us))
        return max(min(times), self.table.valid_through() or 0)

    def add_columns(self, plan: Plan, results: Sequence[TaskResult]) -> None:
        """Give the table the columns that a plan has and that its tasks found."""
        self.evolve(columns_after(plan.columns, results))

    def _can_have(self, columns: Sequence[Column]) -> bool:
        """True if the table's columns are these, or become these when members are added that tasks have found."""
        columns_by_key = {column.key: column for column in self.table.columns()}
        return all(
            both(columns_by_key.get(column.key, column).parsed, column.parsed).text == column.type
            for column in columns
        )

    def _append(
        self, results: Sequence[TaskResult], details: Details, plan: Plan, columns: Sequence[Column]
    ) -> int:
        """Commit the files with these columns; where others only rewrote or compacted, on top of that."""
        files = [file for result in results for file in result.files]
        return self.append(
            self.table,
            Change(details, files),
            plan,
            columns,
            lambda: self.ends(self.table) == plan.floors,
        )

    def append(
        self,
        table: LakeTable,
        change: Change,
        plan: Plan,
        columns: Sequence[Column],
        is_next: Callable[[], bool],
    ) -> int:
        """Commit files with these columns while they come next in a table, whatever others rewrote; the version.

        Raises:
            CommitConflict: they do not, or no longer fit the table.
        """
        for _ in range(_ATTEMPTS):
            if not (
                is_next() and has_types(table, columns) and table.partitions() == plan.layout.texts
            ):
                break
            try:
                return table.commit(change)
            except CommitConflict:
                table.refresh()
        raise CommitConflict(
            f"{table.place}: the offsets moved, or the columns or partitions changed"
        )

    def _ranges(self, results: Iterable[TaskResult]) -> tuple[ShardRange, ...]:
        """The ranges that the batch adds, per shard.

        Raises:
            Gap: its records do not start where the table ends, or do not follow each other.
        """
        shard_ranges: dict[int, ShardRange] = {}
        sums: dict[int, Sums] = {}
        for count in sorted(
            (c for result in results for c in result.shards), key=lambda c: (c.shard, c.first)
        ):
            floor = self.table.next(count.shard)
            expected = shard_ranges[count.shard].end if count.shard in shard_ranges else floor
            if expected is not None and count.first > expected:
                raise Gap(
                    f"table {self.spec.name!r} ends at offset {expected} of shard {count.shard} and the batch starts "
                    f"at {count.first}: the records between would be missing"
                )
            before = shard_ranges.get(count.shard) or ShardRange(
                count.shard, max(count.first, floor or 0), 0, 0, 0, 0
            )
            fresh = count.last + 1 - count.first - count.skipped
            shard_ranges[count.shard] = replace(
                before,
                end=count.last + 1,
                read=before.read + fresh,
                written=before.written + count.written,
                dead=before.dead + count.dead,
                filtered=before.filtered + count.filtered,
                rows=before.row_count + count.rows,
            )
            add_sums(sums.setdefault(count.shard, {}), count.sums)
        if self.spec.upsert is not None:
            sums = {}
        return tuple(
            replace(entry, sums=packed(sums[entry.shard], entry.start, entry.end))
            if entry.shard in sums
            else entry
            for entry in shard_ranges.values()
            if entry.read > 0
        )

    def refresh_all(self) -> None:
        """The same as ``refresh``, where others may have changed anything."""
        self.refresh()

    def refresh(self) -> None:
        """Look at the newest version of table and dead letters.

        Raises:
            TableLost: one of them is not there, or not as it was.
        """
        with of_part(self.spec.name):
            self.table.refresh()
        self.dead_letters = self.open_dead_letters(create=False)

    def open_dead_letters(self, *, create: bool) -> LakeTable | None:
        """The dead-letter table as it is now. Raises ``TableLost`` where there was one, and it is not there."""
        spec = self.spec
        place = dead_letters_place(self.spec.place)
        with of_part(spec.name, DEAD_LETTERS_SUFFIX):
            if self.dead_letters is not None:
                self.dead_letters.refresh()
                return self.dead_letters
            if (was := spec.expected.get(DEAD_LETTERS_SUFFIX)) is not None:
                return open_expected(spec.format, place, spec.binding, was)
            return open_dead_letters(spec.format, spec.place, spec.binding, create=create)

    def parts(self) -> dict[str, Part]:
        """The tables that it writes, as they were written last."""
        table_parts = {"": self.table.part}
        if self.dead_letters is not None:
            table_parts[DEAD_LETTERS_SUFFIX] = self.dead_letters.part
        return table_parts

    def begins(self) -> dict[int, int]:
        """The first offset that the table has, or was accepted to lack, of each shard with one."""
        firsts = {shard: self.table.first(shard) for shard in self.spec.shards}
        return {shard: first for shard, first in firsts.items() if first is not None}


def refused_records(letters: LakeTable | None) -> Iterator[tuple[int, int, str]]:
    """Shard, offset and reason of the records that a table did not take, by its dead letters."""
    if letters is None:
        return
    refused = letters.scan(["_shard", "_offset", "_error", "_error_stage"])
    for entry in refused.filter(pc.equal(refused["_error_stage"], REFUSED)).to_pylist():
        yield entry["_shard"], entry["_offset"], entry["_error"]


def gaps_of(ends: Mapping[int, int], where: Positions) -> tuple[ShardRange, ...]:
    """The records that retention removed from the stream before a table with these ends had them."""
    return tuple(
        ShardRange(
            position.shard,
            ends[position.shard],
            position.first,
            0,
            0,
            0,
            lost=position.first - ends[position.shard],
        )
        for position in where.shards
        if ends.get(position.shard, position.first) < position.first
    )


def offsets_of(positions: PositionsAt, place: Point, pointer: str) -> dict[int, int]:
    """The offset by shard that a place means: a number is the offset in every shard, None has none.

    Raises:
        Invalid: it names a shard that the stream does not have.
    """
    if place is None:
        return {}
    if isinstance(place, datetime):
        return {
            position.shard: position.next if position.at is None else position.at
            for position in positions(place).shards
        }
    where = positions(None)
    offsets = place if isinstance(place, dict) else dict.fromkeys(where.first(), place)
    if unknown := offsets.keys() - where.first().keys():
        text = f"expected a shard from 0 to {len(where.shards) - 1} of stream {where.stream!r}, got {min(unknown)}"
        raise Invalid("not a place in the stream", [Problem(text, pointer)])
    return offsets


def starts_of(positions: PositionsAt, place: Point) -> dict[int, int]:
    """The first offset by shard of a table that begins at a place, or at the first record that is still held.

    Raises:
        Invalid: the stream does not have the shard, or ends before the offset.
    """
    starts = {**offsets_of(positions, place, "/start")}
    for position in positions(None).shards:
        if starts.get(position.shard, 0) > position.next:
            text = f"expected at most offset {position.next} of shard {position.shard}, got {starts[position.shard]}"
            raise Invalid(
                "the table cannot begin after the end of its stream", [Problem(text, "/start")]
            )
        starts[position.shard] = max(starts.get(position.shard, 0), position.first)
    return starts


def settle(
    columns: Sequence[Column], results: Sequence[TaskResult], partitions: Sequence[str] = ()
) -> tuple[Column, ...] | None:
    """The columns with the new ones of all tasks, where tasks disagree on type or name; None where they agree.
    ``partitions`` are names that no column can have.

    A new column gets the type that most of its values have, as it would have done in one task. A column that tasks have
    added different members to gets all of them.
    """
    discoveries = sorted(
        (column for result in results for column in result.discovered),
        key=lambda column: (column.offset, column.shard),
    )
    columns_by_key = {column.key: column for column in columns}
    by_key: dict[str, Column] = {}
    votes: dict[str, Counter[str]] = {}
    for discovery in discoveries:
        votes.setdefault(discovery.column.key, Counter()).update(discovery.votes)
        if before := columns_by_key.get(discovery.column.key):
            kind = both(by_key.get(discovery.column.key, before).parsed, discovery.column.parsed)
            by_key[discovery.column.key] = replace(before, type=kind.text)
    for discovery in discoveries:
        key = discovery.column.key
        by_key.setdefault(
            key, replace(discovery.column, type=(votes[key].most_common(1) or [("", 0)])[0][0])
        )
    settled = [by_key.pop(column.key, column) for column in columns]
    for column in by_key.values():
        settled.append(replace(column, name=column_name(column.key, taken(settled, partitions))))
    chosen = {column.key: column for column in settled}
    return (
        None
        if all(chosen[discovery.column.key] == discovery.column for discovery in discoveries)
        else tuple(settled)
    )


def columns_after(columns: Sequence[Column], results: Sequence[TaskResult]) -> list[Column]:
    """The columns with those, and the members, that tasks have found."""
    after = {column.key: column for column in columns}
    for column in (discovery.column for result in results for discovery in result.discovered):
        before = after.setdefault(column.key, column)
        after[column.key] = replace(before, type=both(before.parsed, column.parsed).text)
    return list(after.values())


def discard(plan: Plan, results: Iterable[TaskResult]) -> None:
    """Remove files that were never offered to a commit."""
    for result in results:
        for base, files in ((plan.table, result.files), (plan.dead, result.dead_files)):
            with contextlib.suppress(Exception):
                # of three libraries; what is left is cleaned later
                base.remove([base.path_of(file.path) for file in files])


@dataclass(frozen=True, slots=True)
class Figures:
    """Size of a table, or of several together."""

    rows: int = 0
    files: int = 0
    bytes: int = 0
    partitions: int = 1


def figures_of(table: LakeTable) -> Figures:
    """Size of a table, by its log."""
    files = table.files()
    partitions = {(file.earlier_spec, file.partition) for file in files}
    rows = sum(file.rows for file in files)
    return Figures(rows, len(files), sum(file.size for file in files), len(partitions) or 1)


def evolved(table: LakeTable, columns: Sequence[Column], table_format: str) -> None:
    """Add columns and members that a table does not have, and widen those that it can.

    Raises:
        CommitConflict: another writer was first.
    """
    keys = {column.key for column in table.columns()}
    names = {folded(column.name) for column in table.columns()}
    changed = in_place(table.columns(), columns, table_format)
    # One whose name another column has is left out: tasks find a name for it, and do without ``ITEM``.
    if changed := [
        column for column in changed if column.key in keys or folded(column.name) not in names
    ]:
        table.commit(Change(columns=changed))


def has_types(table: LakeTable, columns: Sequence[Column]) -> bool:
    """True if a table has these columns with the same types, as far as it has them."""
    columns_by_key = {column.key: column for column in table.columns()}
    return all(columns_by_key.get(column.key, column) == column for column in columns)
