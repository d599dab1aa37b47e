"""A replay into a shadow: a second table, which takes the table's place for the replayed ranges when it is swapped.

The shadow is filled as any table is, so its committed offsets say how far the replay is, whatever was killed when. Its
first commit says what was ordered. A swap copies its files and commits them in the place of the rows of these ranges;
doing it twice leaves the same table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from bridges.spark.columns.column import PROVENANCE, arrow_schema
from bridges.spark.columns.value_sums import packed, together
from bridges.spark.driver.batch import RunTasks, TableSpec, TableWriter, has_types
from bridges.spark.driver.evolution import in_place
from bridges.spark.tables.contract import Change, Details, LakeTable, Range, ShardRange
from bridges.spark.tables.files import copied
from bridges.spark.tables.formats import open_dead_letters, open_table
from bridges.spark.tables.replacing import replace_ranges
from broker.core.errors import Conflict, Invalid, NotFound, Problem
from broker.core.kinds import counted
from broker.core.times import rfc3339

SUFFIX: Final = "__shadow"
# The kind of the commit that says what was ordered; it covers no record.
_ORDERED: Final = "shadow"
# Files that are copied at once.
_COPIES: Final = 8


def shadow_of(spec: TableSpec) -> TableSpec:
    """The shadow of a table, as a table."""
    return replace(spec, place=spec.place.beside(SUFFIX), expected={})


@dataclass(frozen=True, slots=True)
class Shadow:
    """A shadow as it is: of which replay, of which ranges, and how far."""

    rows: LakeTable
    dead: LakeTable | None
    replay: str
    ranges: tuple[Range, ...]
    started_ms: int

    @classmethod
    def open(cls, spec: TableSpec) -> Self:
        """The shadow of a table.

        Raises:
            NotFound: it has none.
        """
        if (shadow := cls.find(spec)) is None:
            raise NotFound(
                "shadow of table", spec.name, f"make one: sluice replay {spec.name} --into shadow"
            )
        return shadow

    @classmethod
    def find(cls, spec: TableSpec) -> Self | None:
        """The shadow of a table, if it has one."""
        beside = shadow_of(spec)
        rows = open_table(spec.format, beside.place, spec.binding)
        ordered = (
            []
            if rows is None
            else [version for version in rows.commits() if version.details.kind == _ORDERED]
        )
        if rows is None or not ordered:
            return None
        details = ordered[0].details
        ranges = tuple(Range(part.shard, part.start, part.end) for part in details.ranges)
        dead = open_dead_letters(spec.format, beside.place, spec.binding, create=False)
        return cls(rows, dead, details.replay or "", ranges, ordered[0].at_ms)

    def left(self) -> list[Range]:
        """The ranges that are not in it yet."""
        starts = [max(part.start, self.rows.next(part.shard) or 0) for part in self.ranges]
        return [
            replace(part, start=start)
            for part, start in zip(self.ranges, starts, strict=True)
            if start < part.end
        ]

    def counted(self) -> tuple[ShardRange, ...]:
        """The outcome of the records of each range, by the commits."""
        done = [
            part
            for version in self.rows.commits()
            if version.details.kind == "rows"
            for part in version.details.ranges
        ]
        shard_counts = []
        for span in self.ranges:
            mine = [
                part
                for part in done
                if part.shard == span.shard and span.start <= part.start < span.end
            ]
            counts = {
                name: sum(getattr(part, name) for part in mine)
                for name in ("read", "written", "dead", "filtered")
            }
            sums = together((part.sums, part.start, part.end) for part in mine)
            text = "" if sums is None else packed(sums, span.start, span.end)
            rows = sum(part.row_count for part in mine)
            shard_counts.append(
                ShardRange(span.shard, span.start, span.end, **counts, rows=rows, sums=text)
            )
        return tuple(shard_counts)

    def as_dict(self, table: str) -> dict[str, Any]:
        """The shadow for the API."""
        counts = self.counted()
        return {
            "table": table,
            "replay": self.replay,
            "started_at": rfc3339(self.started_ms * 1_000_000),
            "ranges": [
                {"shard": part.shard, "start": part.start, "end": part.end} for part in self.ranges
            ],
            "records": sum(part.end - part.start for part in self.ranges),
            "done": sum(count.read for count in counts),
            "rows": sum(count.row_count for count in counts),
            "dead_letters": sum(count.dead for count in counts),
            "filtered": sum(count.filtered for count in counts),
            "is_complete": not self.left(),
        }


def check_new(spec: TableSpec) -> None:
    """Refuse a shadow that cannot be made. Raises ``Invalid``."""
    text = None
    if spec.upsert is not None:
        text = f"table {spec.name!r} has a key, and its rows depend on each other. Try: another table with the rule."
    elif open_table(spec.format, shadow_of(spec).place, spec.binding) is not None:
        text = f"table {spec.name!r} has a shadow. Try: sluice lake tables swap {spec.name}, or discard."
    if text is not None:
        raise Invalid("the replay into a shadow cannot be started", [Problem(text, "/into")])


def fill(
    spec: TableSpec,
    replay: str,
    ranges: Sequence[Range],
    read: Callable[[Sequence[Range]], Iterator[RunTasks]],
) -> Shadow:
    """Fill the shadow from where it is; ``read`` gives the reads of ranges, each of one piece."""
    live = open_table(spec.format, spec.place, spec.binding)
    has = () if live is None else live.columns()
    columns = {column.key: column for column in (*has, *in_place(has, spec.columns, spec.format))}
    beside = replace(shadow_of(spec), columns=tuple(columns.values()))
    if live is not None:
        beside = replace(beside, partition_by=live.partitions())
    writer = TableWriter(beside, f"shadow-{replay}")
    if not writer.table.commits():
        ordered = tuple(ShardRange(part.shard, part.start, part.end, 0, 0, 0) for part in ranges)
        writer.table.commit(Change(Details(writer.job, ordered, replay, kind=_ORDERED), marks=()))
    shadow = Shadow.open(spec)
    if shadow.replay != replay:
        raise Conflict(
            f"table {spec.name!r} has the shadow of another replay. Try: sluice lake tables discard."
        )
    for part in shadow.left():
        if writer.table.next(part.shard) != part.start:
            writer.begin({part.shard: part.start})
        for run in read([part]):
            writer.write(run)
    return Shadow.open(spec)


def swap(spec: TableSpec, writer: TableWriter) -> dict[str, Any]:
    """Put the rows and dead letters of the shadow in the place of those of its ranges, and remove it; the report.

    Raises:
        Conflict: the shadow is not complete, or no longer fits the table.
    """
    shadow = Shadow.open(spec)
    if left := sum(part.end - part.start for part in shadow.left()):
        raise Conflict(
            f"the shadow of table {spec.name!r} lacks {counted(left, 'record')}. Try: sluice jobs resume, or discard."
        )
    if shadow.rows.partitions() != writer.table.partitions():
        raise Conflict(
            f"table {spec.name!r} has other partitions than its shadow. Try: discard it, and replay again."
        )
    writer.evolve(shadow.rows.columns())
    if not has_types(writer.table, shadow.rows.columns()):
        raise Conflict(
            f"table {spec.name!r} has other columns than its shadow. Try: discard it, and replay again."
        )
    details = Details(writer.job, shadow.counted(), shadow.replay)
    version = _taken(writer.table, shadow.rows, shadow.ranges, details, writer)
    dead = writer.open_dead_letters(create=shadow.dead is not None)
    if dead is not None:
        # A death before this is seen by the audit; the same swap continues with the dead letters.
        _taken(dead, shadow.dead, shadow.ranges, replace(details, kind="dead"), writer)
    report = {**shadow.as_dict(spec.name), "version": version}
    discard(spec)
    return report


def _taken(
    table: LakeTable,
    shadow: LakeTable | None,
    ranges: Sequence[Range],
    details: Details,
    writer: TableWriter,
) -> int:
    """Commit what a shadow has, where a swap that was killed did not; the version."""
    for commit in table.commits():
        if commit.details.replay == details.replay:
            return commit.version
    if shadow is None:
        return replace_ranges(table, ranges, [], details, writer.rewrite)
    ids = {column.key: column.ids for column in table.columns()}
    is_same = all(ids.get(column.key) == column.ids for column in shadow.columns())
    schema = None if is_same else arrow_schema((*PROVENANCE, *table.columns()))
    with ThreadPoolExecutor(_COPIES) as copies:
        files = list(
            copies.map(
                lambda file: copied(shadow.place, file, table.place, schema), shadow.written()
            )
        )
    return replace_ranges(table, ranges, files, details, writer.rewrite)


def discard(spec: TableSpec) -> dict[str, Any]:
    """Remove the shadow, as far as it is there; the report."""
    beside = shadow_of(spec)
    dead = open_dead_letters(spec.format, beside.place, spec.binding, create=False)
    rows = open_table(spec.format, beside.place, spec.binding)
    tables = [table for table in (dead, rows) if table is not None]
    for table in tables:
        table.drop()
    return {"table": spec.name, "discarded": bool(tables)}
