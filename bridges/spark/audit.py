"""Proof by offset: every record of the stream that the table claims to cover is in it, or in its dead letters, once.

What is read is the table itself, not what was said while it was written: the shard and offset of every row and of every
dead letter, and of the rows of a rule, which may give several a record, their item number and how many a commit wrote.
The ledger is checked beside it: its batches must follow each other without a gap or an overlap.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.api import LakeApi, Spec
from bridges.spark.batch import TableSpec
from bridges.spark.columns import ITEM
from bridges.spark.ledger import ledger_of
from bridges.spark.members.places import open_members
from bridges.spark.tables.contract import LakeTable
from bridges.spark.tables.formats import open_dead_letters, open_table
from bridges.spark.upsert.accounts import check_dead_letters, check_keys
from broker.config.allowed import trusted
from broker.core.errors import SluiceError, Unavailable, Unreadable
from pyspark_sluice.client import Positions, ShardPosition
from pyspark_sluice.errors import SourceError

_SHOWN = 5
_SHOWN_RANGES = 100
_ATTEMPTS = 3
"""A replay changes table and dead letters one after the other: what is found in between is looked at again."""


@dataclass(slots=True)
class ShardAudit:
    """What was found of a shard. ``first`` up to, not including, ``next`` are the offsets that it should cover."""

    shard: int
    first: int
    next: int
    rows: int = 0
    dead_letters: int = 0
    filtered: int = 0
    missing: int = 0
    doubled: int = 0
    outside: int = 0
    lag: int = 0
    superseded: int = 0
    """Of a table with a key: records whose row a later one of their key has replaced, or that deleted it."""
    expired: int = 0
    """Records that retention removed from the stream before the table had them; a problem until it is accepted."""
    removed: int = 0
    """Records that the table's own ``retention`` removed from it by their age."""
    missing_at: list[dict[str, int]] = field(default_factory=list)
    doubled_at: list[dict[str, int]] = field(default_factory=list)
    """The first ranges of such offsets."""


@dataclass(slots=True)
class AuditReport:
    """The outcome: ``ok`` when every record is accounted for; ``problems`` are sentences."""

    table: str
    stream: str
    version: int
    shards: list[ShardAudit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    """Of a table with a key: its columns."""
    tables: list[str] = field(default_factory=list)
    """Of a table with members: their names."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}

    def text(self) -> str:
        """For people."""
        members = f", in {len(self.tables)} tables" if self.tables else ""
        lines = [f"table {self.table} from stream {self.stream}, version {self.version}{members}"]
        lines += [
            f"  shard {one.shard}: offsets {one.first} to {one.next}: {one.next - one.first} records = "
            f"{one.rows} rows + {one.dead_letters} dead letters + {one.filtered} filtered"
            f"{f' + {one.superseded} superseded or deleted' if self.key else ''}"
            f"{f' + {one.removed} removed by their age' if one.removed else ''}; {one.lag} more wait in the stream"
            for one in self.shards
        ]
        lines += [f"  PROBLEM: {problem}" for problem in self.problems]
        if not any(one.rows for one in self.shards):
            lines.append("  the table has no rows yet")
        lines.append("every record is accounted for, once" if self.ok else "records are not accounted for")
        return "\n".join(lines)


def audit_table(table: str, *, url: str, token: str) -> AuditReport:
    """Audit a table of the broker at ``url``.

    Raises:
        broker.core.errors.NotFound: there is no such table.
        broker.core.errors.Unavailable: the broker does not answer.
    """
    api = LakeApi(url, token)
    spec = api.table(table)
    try:
        where = api.stream(spec["stream"], deadline_s=5.0).positions()
    except SourceError as error:
        raise Unavailable(str(error)) from error
    with trusted():
        return audit_spec(spec, where)


def audit_spec(spec: Spec, where: Positions) -> AuditReport:
    """Audit a table by its spec against the positions of its stream."""
    report = AuditReport(spec["name"], spec["stream"], 0)
    for _ in range(_ATTEMPTS):
        try:
            report = audit_once(TableSpec.of_api(spec, where), where)
        except SluiceError:
            raise
        except Exception as error:
            raise Unreadable(f"table {spec['name']!r} at {spec['path']} cannot be read: {error}") from error
        if report.ok:
            break
    if not report.version and _had_records(spec):
        raise Unreadable(f"table {spec['name']!r} is not at {spec['path']}, where its job has written it")
    return report


def _had_records(spec: Spec) -> bool:
    """Whether the table's job reported records that it has."""
    return bool(spec.get("is_expected")) or any(
        int(end) for end in ((spec.get("report") or {}).get("offsets") or {}).values()
    )


def audit_once(spec: TableSpec, where: Positions) -> AuditReport:
    """Audit a table as it is now; a replay that commits meanwhile may look like a problem."""
    table = open_table(spec.format, spec.place, spec.binding)
    report = AuditReport(spec.name, spec.binding.stream, table.version() if table else 0)
    report.key = list(spec.upsert.key) if spec.upsert else []
    if table is None:
        for position in where.shards:
            waiting = position.next - position.first
            report.shards.append(ShardAudit(position.shard, position.first, position.first, lag=waiting))
        return report
    # The table before its dead letters: those are committed first, so none that belongs to this version is missed.
    dead = open_dead_letters(spec.format, spec.place, spec.binding, create=False)
    rows_seen, dead_seen = _places(table), _places(dead)
    if spec.members is not None:
        members = open_members(spec.format, spec.place, spec.binding)
        report.tables = list(members)
        rows_seen = _in_table(pa.concat_tables([rows_seen, *map(_places, members.values())]), table)
    ledger = ledger_of(spec, table)
    has_rule = spec.rule is not None
    for position in where.shards:
        one = _audit_shard(report, table, position, rows_seen, dead_seen, ledger, has_rule, spec.upsert is not None)
        report.shards.append(one)
    if spec.upsert is not None:
        check_keys(report.problems, table, spec.upsert.key, ledger)
    return report


def _audit_shard(
    report: AuditReport,
    table: LakeTable,
    position: ShardPosition,
    rows: pa.Table,
    dead: pa.Table,
    ledger: pa.Table,
    has_rule: bool,
    has_key: bool,
) -> ShardAudit:
    shard = position.shard
    in_rows = _offsets(rows, shard)
    first, end = table.first(shard), table.next(shard)
    if first is None or end is None:
        if len(in_rows):
            report.problems.append(f"shard {shard}: the table has {len(in_rows)} rows and no record of writing them")
        waiting = position.next - position.first
        return ShardAudit(shard, position.first, position.first, len(in_rows), outside=len(in_rows), lag=waiting)
    in_dead = _offsets(dead, shard)
    # Dead letters above the table's end are those of a batch that is being committed.
    in_dead = in_dead[in_dead < end]
    # A rule may give several rows a record: a record is then there once, however many rows it has.
    offsets = np.concatenate([np.unique(in_rows) if has_rule else in_rows, in_dead])
    repeated, incomplete = _by_item(rows, shard) if has_rule else (in_rows[:0], in_rows[:0])
    inside = offsets[(offsets >= first) & (offsets < end)]
    times = np.bincount(inside - first, minlength=end - first)
    missing, doubled = np.flatnonzero(times == 0) + first, np.flatnonzero(times > 1) + first
    doubled = np.union1d(doubled, repeated)
    outside = len(offsets) - len(inside)
    filtered = _check_ledger(report, shard, first, end, ledger)
    accepted = ledger.filter(pc.and_(pc.equal(ledger["shard"], shard), pc.greater(ledger["lost"], 0))).to_pylist()
    for gap in accepted:
        missing = missing[(missing < gap["from_offset"]) | (missing >= gap["to_offset"])]
    superseded = removed = of_removed = 0
    if has_key:
        check_dead_letters(report.problems, shard, len(in_dead), ledger)
        superseded, missing = len(missing) - filtered, missing[:0]
        is_replayed = pc.any(pc.is_valid(ledger["replay"])).as_py()
        if is_replayed:  # it may have filtered others than the batches
            superseded = max(0, superseded)
        elif superseded < 0:
            report.problems.append(
                f"shard {shard}: {-superseded} more records have rows or dead letters than the batches have written"
            )
    else:
        removed, missing, of_removed = _without_removed(shard, missing, ledger)
    if has_rule and not has_key:
        filtered, missing = _account_for(report, shard, np.sort(in_rows), missing, ledger)
        filtered += of_removed
    expired = max(0, position.first - end)
    _say(report, shard, "is in neither the table nor its dead letters", "are in neither", missing)
    _say(report, shard, "is there more than once", "are there more than once", doubled)
    _say(report, shard, "has some of its rows only", "have some of their rows only", incomplete)
    if outside:
        report.problems.append(f"shard {shard}: {outside} rows have offsets outside of [{first}, {end})")
    if expired:
        report.problems.append(
            f"shard {shard}: retention removed the records [{end}, {position.first}) before the table had them"
        )
    if position.next < end:
        report.problems.append(f"shard {shard}: the table ends at {end}, the stream before it, at {position.next}")
    lag = max(0, position.next - max(end, position.first))
    counts = (len(in_rows), len(in_dead), filtered, len(missing), len(doubled), outside)
    expired += sum(gap["lost"] for gap in accepted)
    found = _stretches(missing), _stretches(doubled)
    return ShardAudit(shard, first, end, *counts, lag, superseded, expired, removed, *found)


def _check_ledger(report: AuditReport, shard: int, first: int, end: int, ledger: pa.Table) -> int:
    """Whether the batches of a shard follow each other from ``first`` to ``end``; how many records were filtered."""
    mine = ledger.filter(pc.and_(pc.equal(ledger["shard"], shard), pc.is_null(ledger["replay"])))
    mine = mine.filter(_is_batch(mine))
    at, filtered = first, 0
    for row in mine.sort_by([("from_offset", "ascending"), ("to_offset", "ascending")]).to_pylist():
        if row["from_offset"] != at:
            kind = "gap" if row["from_offset"] > at else "overlap"
            report.problems.append(
                f"shard {shard}: the ledger has a {kind}: a batch ends at {at}, the next starts at {row['from_offset']}"
            )
        records = row["to_offset"] - row["from_offset"] - (row["lost"] or 0)
        if not row["read"] == records == row["written"] + row["filtered"] + row["dead"]:
            report.problems.append(
                f"shard {shard}: the batch [{row['from_offset']}, {row['to_offset']}) does not add up in the ledger"
            )
        at = row["to_offset"]
        filtered += row["filtered"]
    if at != end:
        report.problems.append(f"shard {shard}: the ledger ends at {at}, the table at {end}")
    return filtered


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Offsets of one commit that no later one replaced; ``is_whole`` when they are all that the commit had."""

    start: int
    end: int
    filtered: int
    rows: int
    is_whole: bool = True

    def without(self, start: int, end: int) -> list[_Stretch]:
        """What is left of it after a replay of a range."""
        if end <= self.start or start >= self.end:
            return [self]
        left = [(self.start, min(self.end, start)), (max(self.start, end), self.end)]
        return [_Stretch(one, other, self.filtered, self.rows, False) for one, other in left if one < other]


def _account_for(report: AuditReport, shard: int, in_rows: Any, missing: Any, ledger: pa.Table) -> tuple[int, Any]:
    """Hold rows against how many were written, and the records that gave none against how many the rule filtered,
    commit by commit; ``in_rows`` are the offsets of rows in order.

    Gives how many were filtered, and the offsets of stretches in which more records are missing than that. Where a
    replay replaced part of what a commit had, the numbers of the whole commit are bounds.
    """
    stretches: list[_Stretch] = []
    mine = ledger.filter(pc.equal(ledger["shard"], shard)).sort_by("table_version")
    for row in mine.filter(_is_batch(mine)).to_pylist():
        start, end = row["from_offset"], row["to_offset"]
        stretches = [left for one in stretches for left in one.without(start, end)]
        stretches.append(_Stretch(start, end, row["filtered"], row["written"] if row["rows"] is None else row["rows"]))
    for start, end, _ in _removals(shard, ledger):
        stretches = [left for one in stretches for left in one.without(start, end)]
    accounted, lost = 0, []
    for one in stretches:
        held = int(np.searchsorted(in_rows, one.end) - np.searchsorted(in_rows, one.start))
        if held > one.rows or (one.is_whole and held < one.rows):
            bound = "" if one.is_whole else "at most "
            report.problems.append(
                f"shard {shard}: [{one.start}, {one.end}) has {held} rows, and its commit wrote {bound}{one.rows}"
            )
        here = missing[(missing >= one.start) & (missing < one.end)]
        if len(here) > one.filtered:
            lost.append(here)
            continue
        accounted += len(here)
        if one.is_whole and len(here) < one.filtered:
            report.problems.append(
                f"shard {shard}: {one.filtered - len(here)} records of [{one.start}, {one.end}) have rows, and the "
                f"rule had filtered them"
            )
    return accounted, np.sort(np.concatenate(lost)) if lost else missing[:0]


def _is_batch(ledger: pa.Table) -> pa.ChunkedArray:
    """Which rows are of commits that cover records, and not of the removal of rows by their age."""
    return pc.equal(pc.fill_null(ledger["expired"], 0), 0)


def _removals(shard: int, ledger: pa.Table) -> list[tuple[int, int, int]]:
    """The stretches of offsets out of which rows were removed by their age, and how many."""
    mine = ledger.filter(pc.and_(pc.equal(ledger["shard"], shard), pc.greater(ledger["expired"], 0)))
    found: list[tuple[int, int, int]] = []
    for row in mine.sort_by("from_offset").to_pylist():
        start, end, count = row["from_offset"], row["to_offset"], row["expired"]
        if found and start < found[-1][1]:
            first, last, before = found.pop()
            start, end, count = first, max(last, end), before + count
        found.append((start, end, count))
    return found


def _without_removed(shard: int, missing: Any, ledger: pa.Table) -> tuple[int, Any, int]:
    """Hold the records that are not there against how many were removed by their age, stretch by stretch.

    Gives how many were removed, the offsets that this does not account for, and how many of those in such stretches a
    rule had filtered. Where more are missing than were removed and filtered, all of the stretch are given. After a
    replay of removed records the number that was removed is a bound.
    """
    removed = filtered = 0
    for start, end, count in _removals(shard, ledger):
        inside = (missing >= start) & (missing < end)
        here = int(inside.sum())
        overlapping = pc.and_(pc.less(ledger["from_offset"], end), pc.greater(ledger["to_offset"], start))
        batches = ledger.filter(pc.and_(pc.equal(ledger["shard"], shard), overlapping))
        left_out = pc.sum(batches.filter(_is_batch(batches))["filtered"]).as_py() or 0
        if here > count + left_out:
            continue
        removed += min(here, count)
        filtered += max(0, here - count)
        missing = missing[~inside]
    return removed, missing, filtered


_PLACES = pa.schema([("_shard", pa.int32()), ("_offset", pa.int64()), (ITEM.name, pa.int32())])


def _places(table: LakeTable | None) -> pa.Table:
    """Where rows are from; the item is null in those from before tables had it."""
    if table is None:
        return _PLACES.empty_table()
    if ITEM in table.columns():
        return table.scan(_PLACES.names).cast(_PLACES)
    places = table.scan(_PLACES.names[:2])
    return pa.table([*places.columns, pa.nulls(places.num_rows, pa.int32())], schema=_PLACES)


def _by_item(rows: pa.Table, shard: int) -> tuple[Any, Any]:
    """The offsets of records that have a row several times, and of those that lack one before their last."""
    numbered = rows.filter(pc.and_(pc.equal(rows["_shard"], shard), pc.is_valid(rows[ITEM.name])))
    offsets, items = (numbered.column(name).to_numpy() for name in _PLACES.names[1:])
    order = np.lexsort((items, offsets))
    offsets, items = offsets[order], items[order]
    is_first = np.ones(len(offsets), bool)
    is_first[1:] = np.diff(offsets) != 0
    steps = np.where(is_first, items + 1, np.diff(items, prepend=0))
    return np.unique(offsets[steps == 0]), np.unique(offsets[steps > 1])


def _in_table(places: pa.Table, table: LakeTable) -> pa.Table:
    """Without those above the table's ends, of members that a batch in progress is committed to."""
    shards, offsets = places.column("_shard").to_numpy(), places.column("_offset").to_numpy()
    ends = {shard: table.next(shard) or 0 for shard in np.unique(shards).tolist()}
    below = np.zeros(len(shards), bool)
    for shard, end in ends.items():
        below |= (shards == shard) & (offsets < end)
    return places.filter(pa.array(below))


def _offsets(places: pa.Table, shard: int) -> Any:
    return places.filter(pc.equal(places["_shard"], shard)).column("_offset").to_numpy()


def _stretches(offsets: Any) -> list[dict[str, int]]:
    """The first ranges of consecutive offsets."""
    if len(offsets) == 0:
        return []
    found = np.split(offsets, np.flatnonzero(np.diff(offsets) > 1) + 1)
    return [{"start": int(one[0]), "end": int(one[-1]) + 1} for one in found[:_SHOWN_RANGES]]


def _say(report: AuditReport, shard: int, one: str, many: str, offsets: Any) -> None:
    if len(offsets) == 0:
        return
    shown = ", ".join(str(offset) for offset in offsets[:_SHOWN]) + (", ..." if len(offsets) > _SHOWN else "")
    what = f"record {shown} {one}" if len(offsets) == 1 else f"{len(offsets)} records {many} ({shown})"
    report.problems.append(f"shard {shard}: {what}")
