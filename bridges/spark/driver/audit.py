"""Proof by offset: every record of the stream that the table claims to cover is in it, or in its dead letters, once.

What is read is the table itself, not what was said while it was written: the shard and offset of every row and of every
dead letter, and of the rows of a rule, which may give several a record, their item number and how many a commit wrote.
The ledger is checked too: its batches must follow each other without a gap or an overlap. Rows are read by ranges
of offsets, of which one is in memory. Where values are audited too, all columns are read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.column import ITEM, PROVENANCE
from bridges.spark.columns.value_sums import BLOCK, hashed_columns, row_hashes
from bridges.spark.driver.api import LakeApi, Spec
from bridges.spark.driver.audit_values import (
    Difference,
    Rerun,
    Values,
    foreign_changes,
    wrong_blocks,
)
from bridges.spark.driver.batch import TableSpec, refused_records
from bridges.spark.driver.ledger import ledger_of
from bridges.spark.driver.member_places import open_members
from bridges.spark.driver.progress import RangeProgress
from bridges.spark.driver.spark_errors import sentence_of
from bridges.spark.driver.stretches import (
    COMMIT,
    LOST,
    REMOVED,
    Stretches,
    cells_of,
    is_batch,
    stretches_of,
)
from bridges.spark.tables.contract import LakeTable, Range
from bridges.spark.tables.formats import open_dead_letters, open_table
from bridges.spark.tasks.keys import keys_of
from bridges.spark.tasks.task import RANGED, Refusal
from broker.config.allowed import trusted
from broker.core.errors import SluiceError, Unavailable, Unreadable
from broker.core.kinds import are, counted
from pyspark_sluice.client import Positions, ShardPosition
from pyspark_sluice.errors import SourceError

Depth = Literal["offsets", "values", "deep"]
_SHOWN: Final = 5
_SHOWN_RANGES: Final = 100
# About how many rows are read at once.
_PIECE_ROWS: Final = 1_000_000
# Maximum ranges with other values for which the commit that changed them is searched.
_EXPLAINED: Final = 10
# Records of such a range whose rows are compared with those of versions before.
_COMPARED: Final = 32 * BLOCK
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
# A replay changes table and dead letters one after the other: findings in between are checked again.
_ATTEMPTS: Final = 3


@dataclass(slots=True)
class ShardAudit:
    """Findings of a shard. ``first`` up to, not including, ``next`` are the offsets that it should cover."""

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
    """Records of a table with a key whose row a later one of their key has replaced, or that deleted it."""
    expired: int = 0
    """Records that retention removed from the stream before the table had them; a problem until it is accepted."""
    removed: int = 0
    """Records that the table's own ``retention`` removed from it by their age."""
    missing_at: list[dict[str, int]] = field(default_factory=list)
    doubled_at: list[dict[str, int]] = field(default_factory=list)
    """The first ranges of such offsets."""
    compared: int | None = None
    """Rows whose values were compared with the written or repeated ones; None where values are not audited."""


@dataclass(slots=True)
class AuditReport:
    """The outcome: ``ok`` when every record is accounted for; ``problems`` are sentences."""

    table: str
    stream: str
    version: int
    shards: list[ShardAudit] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    key: list[str] = field(default_factory=list)
    """Columns of the key of a table with a key."""
    tables: list[str] = field(default_factory=list)
    """Names of the members of a table with members."""

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def audit_table(table: str, *, url: str, token: str, depth: Depth = "offsets") -> AuditReport:
    """Audit a table of the broker at ``url``.

    Raises:
        broker.core.errors.NotFound: there is no such table.
        broker.core.errors.Unavailable: the broker does not answer.
    """
    api = LakeApi(url, token)
    spec = api.table(table)
    try:
        where = api.stream(spec["stream"], deadline_s=5.0).positions()
        with trusted():
            return audit_spec(spec, where, depth=depth, api=api)
    except SourceError as error:
        raise Unavailable(str(error)) from error


def audit_spec(
    spec: Spec,
    where: Positions,
    progress: RangeProgress | None = None,
    *,
    depth: Depth = "offsets",
    api: LakeApi | None = None,
    session: Any = None,
) -> AuditReport:
    """Audit a table by its spec against the positions of its stream.

    Args:
        spec: the table.
        where: the positions.
        progress: how far it is; by it others pause and cancel the audit.
        depth: whether values are audited too, by the sums of commits; ``deep``: also by the stream's records.
        api: what a deep audit reads the stream by.
        session: whose workers do so; without one it is done in this process.
    """
    report = AuditReport(spec["name"], spec["stream"], 0)
    progress = progress or RangeProgress()
    for attempt in range(_ATTEMPTS):
        try:
            table = TableSpec.of_api(spec, where)
            rerun = Rerun(session, api, table) if depth == "deep" and api is not None else None
            audit = _Audit(
                table, where, progress, api=api, has_values=depth != "offsets", rerun=rerun
            )
            report = audit.run()
            if report.ok or not audit.is_outdated():
                break
        except (SluiceError, SourceError):
            raise
        except FileNotFoundError as error:
            # the table replaces its files, and removes them after a while
            if attempt == _ATTEMPTS - 1:
                raise _unreadable(spec, error) from error
        except Exception as error:
            raise _unreadable(spec, error) from error
    if not report.version and _had_records(spec):
        raise Unreadable(
            f"table {spec['name']!r} is not at {spec['path']}, where its job has written it"
        )
    return report


def _unreadable(spec: Spec, error: Exception) -> Unreadable:
    text = str(error)
    reason = sentence_of(text, spec["path"]) if "\n" in text else text
    return Unreadable(f"table {spec['name']!r} at {spec['path']} cannot be read: {reason}")


def _had_records(spec: Spec) -> bool:
    """True if the table's job reported records that it has."""
    return bool(spec.get("is_expected")) or any(
        int(end) for end in ((spec.get("report") or {}).get("offsets") or {}).values()
    )


def audit_once(spec: TableSpec, where: Positions) -> AuditReport:
    """Audit a table as it is now; a replay that commits while it runs may look like a problem."""
    return _Audit(spec, where, RangeProgress()).run()


class _Rows:
    """The rows of a table, read by ranges of offsets."""

    def __init__(
        self, table: LakeTable, *, is_member: bool = False, has_values: bool = False
    ) -> None:
        self.table = table
        self.is_member = is_member
        self._has_values = has_values
        self._names = [*RANGED[:2], *([ITEM.name] if ITEM in table.columns() else [])]
        self._columns = table.columns()
        everything = (column.name for column in (*PROVENANCE, *self._columns))
        self._read = table.reader([*everything] if has_values else self._names)
        self._files = table.files()
        low, high = (
            [[file.get(name) for name in RANGED[:2]] for file in side] for side in self._bounds()
        )
        self._low = np.array(
            [[_LEAST if value is None else value for value in entry] for entry in low]
        ).reshape(-1, 2)
        self._high = np.array(
            [[_MOST if value is None else value for value in entry] for entry in high]
        ).reshape(-1, 2)

    def _bounds(self) -> tuple[list[Mapping[str, int]], list[Mapping[str, int]]]:
        return [file.low for file in self._files], [file.high for file in self._files]

    def within(self, span: Range) -> tuple[Any, Any, Any]:
        """The offsets of the rows of a range, their item numbers, -1 in rows from before tables had them, and the
        hashes of their values, if they are read; in order."""
        apart = (self._low[:, 0] > span.shard) | (self._high[:, 0] < span.shard)
        apart |= (self._low[:, 1] >= span.end) | (self._high[:, 1] < span.start)
        paths = [self._files[at].path for at in np.flatnonzero(~apart).tolist()]
        parts = []
        for batch in self._read(paths, span):
            shards, offsets, items = _places(batch.select(self._names))
            mine = _inside(shards, offsets, [span])
            hashes = np.zeros(len(offsets), np.uint64)
            if self._has_values:
                arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
                hashes = row_hashes(hashed_columns(arrays, self._columns), batch.num_rows)
            parts.append((offsets[mine], items[mine], hashes[mine]))
        return _together(parts)

    def outside(self, ranges: Sequence[Range]) -> Counter[int]:
        """By shard, how many rows are in none of the ranges; of a member, those above them are of a batch that is being
        committed."""
        counted_rows = Counter[int]()
        firsts = {part.shard: part.start for part in ranges}
        paths = [file.path for file in self._files if not file.is_inside(ranges)]
        for batch in self._read(paths, None):
            shards, offsets, _ = _places(batch.select(self._names))
            others = ~_inside(shards, offsets, ranges)
            shards = shards[others]
            offsets = offsets[others]
            if self.is_member:
                starts = np.array([firsts.get(shard, 0) for shard in shards.tolist()], np.int64)
                shards = shards[offsets < starts]
            counted_rows.update(shards.tolist())
        return counted_rows


def _places(batch: pa.RecordBatch) -> tuple[Any, Any, Any]:
    """Shard, offset and item number of rows, -1 for a missing one."""
    columns = [batch.column(at) for at in range(batch.num_columns)]
    columns += [pa.nulls(batch.num_rows, pa.int32())] * (3 - len(columns))
    shard, offset, item = (
        pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
        for column in columns
    )
    return shard, offset, item


def _inside(shards: Any, offsets: Any, ranges: Sequence[Range]) -> Any:
    """A mask of the rows whose place is in one of the ranges."""
    is_inside = np.zeros(len(shards), bool)
    for part in ranges:
        is_inside |= (shards == part.shard) & (offsets >= part.start) & (offsets < part.end)
    return is_inside


@dataclass(slots=True)
class _Found:
    """Offsets that are not as they should be, in order: how many, the first ones and the first ranges."""

    count: int = 0
    first: list[int] = field(default_factory=list)
    ranges: list[dict[str, int]] = field(default_factory=list)

    def add(self, starts: Any, ends: Any) -> None:
        """Take ranges of offsets, which are above those before."""
        self.count += int((ends - starts).sum())
        for start, end in zip(
            starts[:_SHOWN_RANGES].tolist(), ends[:_SHOWN_RANGES].tolist(), strict=True
        ):
            self.first += range(start, min(end, start + _SHOWN - len(self.first)))
            if self.ranges and self.ranges[-1]["end"] == start:
                self.ranges[-1]["end"] = end
            elif len(self.ranges) < _SHOWN_RANGES:
                self.ranges.append({"start": start, "end": end})

    def say(self, report: AuditReport, shard: int, singular: str, plural: str) -> None:
        """Add the problem, if there is one."""
        if not self.count:
            return
        shown = ", ".join(map(str, self.first)) + (", ..." if self.count > len(self.first) else "")
        sentence = (
            f"record {shown} {singular}"
            if self.count == 1
            else f"{self.count} records {plural} ({shown})"
        )
        report.problems.append(f"shard {shard}: {sentence}")


class _Audit:
    """An audit of a table as it is when it begins. It keeps the ledger and a piece of rows in memory."""

    def __init__(
        self,
        spec: TableSpec,
        where: Positions,
        progress: RangeProgress,
        *,
        api: LakeApi | None = None,
        has_values: bool = False,
        rerun: Rerun | None = None,
    ) -> None:
        self._spec = spec
        self._progress = progress
        self._has_values = has_values
        self._rerun = rerun
        self._table = open_table(spec.format, spec.place, spec.binding)
        # The table before its dead letters: those are committed first, so none that belongs to this version is missed.
        self._dead = open_dead_letters(spec.format, spec.place, spec.binding, create=False)
        # The stream after both: it does not end before the table does.
        self._where = where if api is None else api.stream(spec.binding.stream).positions()
        version = self._table.version() if self._table else 0
        self._report = AuditReport(spec.name, spec.binding.stream, version)
        self._report.key = list(spec.upsert.key) if spec.upsert else []
        self._has_rule = spec.rule is not None
        self._has_key = spec.upsert is not None
        progress.done = 0

    def is_outdated(self) -> bool:
        """True if rows or dead letters were replaced or removed since it began: it may have seen a part of that."""
        spec = self._spec
        if (
            self._dead is None
            and open_dead_letters(spec.format, spec.place, spec.binding, create=False) is not None
        ):
            return True
        return any(
            _were_replaced(table) for table in (self._table, self._dead) if table is not None
        )

    def run(self) -> AuditReport:
        spec = self._spec
        table = self._table
        report = self._report
        if table is None:
            for position in self._where.shards:
                report.shards.append(_nothing(position))
            return report
        rows = [_Rows(table, has_values=self._has_values)]
        if self._rerun is not None:
            self._rerun.prepare(table, self._refusals(), self._where)
        letters = [] if self._dead is None else [_Rows(self._dead)]
        if spec.members is not None:
            members = open_members(spec.format, spec.place, spec.binding)
            report.tables = list(members)
            rows += [
                _Rows(table, is_member=True, has_values=self._has_values)
                for table in members.values()
            ]
        covered = [
            Range(shard, first, end)
            for shard in {position.shard for position in self._where.shards}
            if (first := table.first(shard)) is not None and (end := table.next(shard)) is not None
        ]
        outside = sum((row.outside(covered) for row in rows), Counter[int]())
        # Dead letters above the table's end are those of a batch that is being committed.
        below = [Range(part.shard, part.start, _MOST) for part in covered]
        for letter in letters:
            outside.update(letter.outside(below))
        ledger = ledger_of(spec, table)
        for position in self._where.shards:
            ends = next((part for part in covered if part.shard == position.shard), None)
            mine = ledger.filter(pc.equal(ledger["shard"], position.shard))
            report.shards.append(
                self._audit_shard(
                    position, ends, outside.pop(position.shard, 0), rows, letters, mine
                )
            )
        if strays := outside.total():
            report.problems.append(f"{are(strays, 'row')} of no shard of the stream")
        if spec.upsert is not None:
            _check_keys(report.problems, table, spec.upsert.key, ledger)
        return report

    def _audit_shard(
        self,
        position: ShardPosition,
        ends: Range | None,
        outside: int,
        rows: Sequence[_Rows],
        letters: Sequence[_Rows],
        ledger: pa.Table,
    ) -> ShardAudit:
        report = self._report
        shard = position.shard
        if ends is None:
            if outside:
                report.problems.append(
                    f"shard {shard}: the table has {counted(outside, 'row')} and no record of writing them"
                )
            return replace(_nothing(position), rows=outside, outside=outside)
        first = ends.start
        end = ends.end
        audit = ShardAudit(shard, first, end, rows=outside, outside=outside)
        audit.filtered = _check_ledger(report, shard, first, end, ledger)
        stretches = stretches_of(ledger, first, end)
        values = Values(cells_of(ledger)) if self._has_values else None
        differing: list[Range] = []
        rows_held = np.zeros(len(stretches), np.int64)
        missing = np.zeros(len(stretches), np.int64)
        doubled = _Found()
        incomplete = _Found()
        for [piece] in self._progress.through([piece] for piece in self._pieces(ends, stretches)):
            in_rows, items, hashes = _together([each.within(piece) for each in rows])
            in_dead, _, _ = _together([each.within(piece) for each in letters])
            audit.rows, audit.dead_letters = (
                audit.rows + len(in_rows),
                audit.dead_letters + len(in_dead),
            )
            # A rule may give several rows a record: a record is then there once, however many rows it has.
            places = np.sort(
                np.concatenate([np.unique(in_rows) if self._has_rule else in_rows, in_dead])
            )
            repeated, partial = (
                _by_item(in_rows, items) if self._has_rule else (in_rows[:0], in_rows[:0])
            )
            repeated = np.union1d(places[1:][places[1:] == places[:-1]], repeated)
            doubled.add(repeated, repeated + 1)
            incomplete.add(partial, partial + 1)
            parts = stretches.within(piece.start, piece.end)
            starts = np.maximum(stretches.start[parts], piece.start)
            stops = np.minimum(stretches.end[parts], piece.end)
            rows_held[parts] += _counts(in_rows, starts, stops)
            missing[parts] += stops - starts - _counts(np.unique(places), starts, stops)
            if values is not None:
                values.add(piece.start, piece.end, in_rows, hashes)
                differing += self._differing(position, piece, in_rows, hashes)
        audit.expired = max(0, position.first - end)
        is_lost = stretches.kind == LOST
        if self._has_key:
            self._account_for_keys(audit, int(missing[~is_lost].sum()), ledger)
            gone = np.zeros(len(stretches), bool)
        else:
            gone = self._account_for(audit, stretches, rows_held, missing)
        lacking = self._lacking(shard, stretches, gone, rows, letters)
        lacking.count = int(missing[gone].sum())
        lacking.say(report, shard, "is in neither the table nor its dead letters", "are in neither")
        doubled.say(report, shard, "is there more than once", "are there more than once")
        incomplete.say(report, shard, "has some of its rows only", "have some of their rows only")
        if values is not None:
            audit.compared = audit.rows - outside if self._rerun is not None else values.compared
            self._say_values(shard, values, differing, rows)
        if outside:
            report.problems.append(
                f"shard {shard}: {counted(outside, 'row')} with offsets outside of [{first}, {end})"
            )
        if audit.expired:
            report.problems.append(
                f"shard {shard}: retention removed the records [{end}, {position.first}) before the table had them"
            )
        if position.next < end:
            report.problems.append(
                f"shard {shard}: the table ends at {end}, the stream before it, at {position.next}"
            )
        audit.lag = max(0, position.next - max(end, position.first))
        audit.expired += pc.sum(ledger["lost"]).as_py() or 0
        audit.missing = lacking.count
        audit.missing_at = lacking.ranges
        audit.doubled = doubled.count
        audit.doubled_at = doubled.ranges
        return audit

    def _differing(
        self, position: ShardPosition, piece: Range, offsets: Any, hashes: Any
    ) -> list[Range]:
        """The blocks of a piece in which the stream, as far as it has the records, gives other rows now."""
        piece = replace(
            piece, start=max(piece.start, position.first), end=min(piece.end, position.next)
        )
        if self._rerun is None or piece.start >= piece.end:
            return []
        mine = slice(*np.searchsorted(offsets, [piece.start, piece.end]))
        return wrong_blocks(piece, (offsets[mine], hashes[mine]), self._rerun.sums(piece))

    def _say_values(
        self, shard: int, values: Values, differing: Sequence[Range], rows: Sequence[_Rows]
    ) -> None:
        """Add the ranges with other values than were written, and the records that give other rows now."""
        for at, (start, end, since) in enumerate(values.wrong()):
            if at == _SHOWN_RANGES:
                self._report.problems.append(
                    f"shard {shard}: further ranges have other values than were written"
                )
                break
            text = f"shard {shard}: rows of [{start}, {end}) have other values than were written"
            part = Range(shard, start, min(end, start + _COMPARED))
            changes = list(self._changes(part, since, rows)) if at < _EXPLAINED else []
            if changes and part.end < end:
                text += f" (the first {_COMPARED:,} records were compared with those of before)"
            self._report.problems.append(
                ": ".join([text, "; ".join(changes)] if changes else [text])
            )
        for block in differing[:_EXPLAINED]:
            assert self._rerun is not None
            offsets, _, hashes = _together([table_rows.within(block) for table_rows in rows])
            difference = Difference.between(self._rerun.rows(block), (offsets, hashes))
            mismatch = f"shard {shard}: [{block.start}, {block.end}) differs from the records that the stream gives now"
            self._report.problems.append(f"{mismatch}: the table has {difference.text}")
        if len(differing) > _EXPLAINED:
            self._report.problems.append(
                f"shard {shard}: {len(differing) - _EXPLAINED} more blocks of {BLOCK:,} records differ from the "
                f"records that the stream gives now"
            )

    def _changes(self, span: Range, since: int, rows: Sequence[_Rows]) -> Iterator[str]:
        """The commits that are not of the lake job and changed rows of a range."""

        def read(table: LakeTable) -> tuple[Any, Any]:
            offsets, _, hashes = _Rows(table, has_values=True).within(span)
            return offsets, hashes

        for each in rows:
            name = f"table {each.table.place.name}: " if each.is_member else ""
            for clause in foreign_changes(each.table, read, 0 if each.is_member else since):
                yield name + clause

    def _refusals(self) -> dict[int, dict[int, Refusal]]:
        """The records that the table did not take, which are dead letters."""
        refusals: dict[int, dict[int, Refusal]] = {}
        for shard, offset, reason in refused_records(self._dead):
            refusals.setdefault(shard, {})[offset] = Refusal(reason, is_buried=True)
        return refusals

    def _pieces(self, covered: Range, stretches: Stretches) -> Iterator[Range]:
        """The range in pieces of about ``rows`` rows each that fit into memory."""
        if self._has_key:  # each file has rows of all offsets, and most records no longer have any
            assert self._table is not None
            rows = self._table.rows() + (0 if self._dead is None else self._dead.rows())
            yield from _cut(covered, rows // _PIECE_ROWS + 1)
            return
        start = covered.start
        weight = 0
        for stretch, size in zip(
            zip(stretches.start.tolist(), stretches.end.tolist(), strict=True),
            stretches.weight.tolist(),
            strict=True,
        ):
            if weight and weight + size > _PIECE_ROWS:
                yield Range(covered.shard, start, stretch[0])
                start = stretch[0]
                weight = 0
            weight += size
            if weight > _PIECE_ROWS:
                yield from _cut(Range(covered.shard, start, stretch[1]), -(-weight // _PIECE_ROWS))
                start = stretch[1]
                weight = 0
        yield from _cut(Range(covered.shard, start, covered.end), 1)

    def _account_for_keys(self, audit: ShardAudit, missing: int, ledger: pa.Table) -> None:
        """Hold the records of a table with a key that are not there against those that later ones replaced."""
        _check_dead_letters(self._report.problems, audit.shard, audit.dead_letters, ledger)
        audit.superseded = missing - audit.filtered
        if pc.any(
            pc.is_valid(ledger["replay"])
        ).as_py():  # it may have filtered others than the batches
            audit.superseded = max(0, audit.superseded)
        elif audit.superseded < 0:
            self._report.problems.append(
                f"shard {audit.shard}: {counted(-audit.superseded, 'record')} too many with rows or dead letters, "
                f"compared with the commits"
            )

    def _account_for(self, audit: ShardAudit, stretches: Stretches, held: Any, missing: Any) -> Any:
        """Hold what there is against what the commits say, stretch by stretch; a mask of the stretches in which more
        records are missing than were filtered, or removed by their age.

        Where a replay replaced part of a commit's rows, and where a removal cut into it, its numbers are bounds.
        """
        kind = stretches.kind
        allowed = stretches.filtered + stretches.removed
        gone = (missing > allowed) & (kind != LOST)
        removed = np.where((kind == REMOVED) & ~gone, np.minimum(missing, stretches.removed), 0)
        audit.removed = int(removed.sum())
        if not self._has_rule:
            return gone
        audit.filtered = int(np.where(~gone & (kind != LOST), missing - removed, 0).sum())
        is_whole = stretches.is_whole.astype(bool)
        counts = kind == COMMIT
        wrong = counts & ((held > stretches.rows) | (is_whole & (held < stretches.rows)))
        kept = counts & ~gone & is_whole & (missing < stretches.filtered)
        for at in np.flatnonzero(wrong | kept)[:_SHOWN_RANGES].tolist():
            where = f"[{stretches.start[at]}, {stretches.end[at]})"
            if wrong[at]:
                bound = "" if is_whole[at] else "at most "
                self._report.problems.append(
                    f"shard {audit.shard}: {where} has {counted(int(held[at]), 'row')}, and its commit wrote "
                    f"{bound}{stretches.rows[at]}"
                )
            if kept[at]:
                self._report.problems.append(
                    f"shard {audit.shard}: {where}: the rule had filtered "
                    f"{counted(int(stretches.filtered[at] - missing[at]), 'record')} with rows"
                )
        return gone

    def _lacking(
        self,
        shard: int,
        stretches: Stretches,
        gone: Any,
        rows: Sequence[_Rows],
        letters: Sequence[_Rows],
    ) -> _Found:
        """The first places of records that are in neither, of some stretches, which are read again."""
        totals = _Found()
        for at in np.flatnonzero(gone).tolist():
            stretch = Range(shard, int(stretches.start[at]), int(stretches.end[at]))
            for piece in _cut(stretch, int(stretches.weight[at]) // _PIECE_ROWS + 1):
                if len(totals.ranges) >= _SHOWN_RANGES:
                    return totals
                places, _, _ = _together([each.within(piece) for each in (*rows, *letters)])
                edges = np.concatenate([[piece.start - 1], np.unique(places), [piece.end]])
                is_gap = np.diff(edges) > 1
                totals.add(edges[:-1][is_gap] + 1, edges[1:][is_gap])
        return totals


def _were_replaced(table: LakeTable) -> bool:
    """True if a table has commits that do more than add a batch since it was opened."""
    before = table.version()
    table.refresh()
    fresh = [version.details for version in table.versions(after=before)]
    return any(
        entry is None or entry.replay is not None or entry.kind not in ("rows", "dead")
        for entry in fresh
    )


def _nothing(position: ShardPosition) -> ShardAudit:
    """A shard of which the table has nothing yet."""
    return ShardAudit(
        position.shard, position.first, position.first, lag=position.next - position.first
    )


def _cut(span: Range, count: int) -> Iterator[Range]:
    """A range in a number of parts of about the same length."""
    count = min(count, span.end - span.start)
    edges = (
        [span.start + (span.end - span.start) * at // count for at in range(count + 1)]
        if count > 0
        else []
    )
    yield from (Range(span.shard, start, end) for start, end in pairwise(edges))


def _together(parts: Sequence[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    """Offsets, item numbers and hashes of several parts, in order."""
    kinds = (np.int64, np.int64, np.uint64)
    offsets, items, hashes = (
        np.concatenate([np.empty(0, kind), *(part[at] for part in parts)])
        for at, kind in enumerate(kinds)
    )
    order = np.lexsort((items, offsets))
    return offsets[order], items[order], hashes[order]


def _counts(offsets: Any, starts: Any, ends: Any) -> Any:
    """Number of offsets, in order, that are in each range."""
    return np.searchsorted(offsets, ends) - np.searchsorted(offsets, starts)


def _by_item(offsets: Any, items: Any) -> tuple[Any, Any]:
    """The offsets of records that have a row several times, and of those that lack one before their last; rows in
    order."""
    numbered = items >= 0
    offsets = offsets[numbered]
    items = items[numbered]
    is_first = np.ones(len(offsets), bool)
    is_first[1:] = np.diff(offsets) != 0
    steps = np.where(is_first, items + 1, np.diff(items, prepend=0))
    return np.unique(offsets[steps == 0]), np.unique(offsets[steps > 1])


def _check_ledger(report: AuditReport, shard: int, first: int, end: int, ledger: pa.Table) -> int:
    """Check that the batches of a shard follow each other from ``first`` to ``end``; returns how many were filtered."""
    batches = ledger.filter(pc.and_(is_batch(ledger), pc.is_null(ledger["replay"])))
    batches = batches.sort_by([("from_offset", "ascending"), ("to_offset", "ascending")])
    names = ("from_offset", "to_offset", "read", "written", "filtered", "dead", "lost")
    start, stop, read, written, filtered, dead, lost = (
        pc.fill_null(batches[name], 0).to_numpy() for name in names
    )
    before = np.concatenate([[first], stop[:-1]]) if len(stop) else start
    breaks = start != before
    wrong = (read != stop - start - lost) | (read != written + filtered + dead)
    for at in np.flatnonzero(breaks | wrong)[:_SHOWN_RANGES].tolist():
        if breaks[at]:
            kind = "gap" if start[at] > before[at] else "overlap"
            report.problems.append(
                f"shard {shard}: the ledger has a {kind}: a batch ends at {before[at]}, the next starts at {start[at]}"
            )
        if wrong[at]:
            report.problems.append(
                f"shard {shard}: the batch [{start[at]}, {stop[at]}) does not add up in the ledger"
            )
    last = stop[-1] if len(stop) else first
    if last != end:
        report.problems.append(f"shard {shard}: the ledger ends at {last}, the table at {end}")
    return int(filtered.sum())


def _check_keys(
    problems: list[str], table: LakeTable, key: Sequence[str], ledger: pa.Table
) -> None:
    """Add a sentence for each way in which keys and rows are not as the commits say.

    The rows that later records replaced are gone, so that each was there once cannot be seen in the table. Instead:
    there is one row a key; the batches, which follow each other without a gap, add up; and the table has as many rows
    as its last commit counted.
    """
    names = {column.name for column in (*PROVENANCE, *table.columns())}
    if not names.issuperset(key):  # the first row brings the columns of the key
        if count := table.scan(["_offset"]).num_rows:
            column = next(name for name in key if name not in names)
            problems.append(f"{counted(count, 'row')} without the column {column!r} of the key")
        return
    rows = table.scan(list(key))
    named = ", ".join(key)
    without = [name for name in key if rows.column(name).null_count]
    if without:
        nulls = rows.column(without[0]).null_count
        problems.append(
            f"{counted(nulls, 'row')} without a value for the key's column {without[0]!r}"
        )
    else:
        count = pc.count_distinct(keys_of(rows, key)).as_py()
        if count < rows.num_rows:
            problems.append(
                f"{counted(rows.num_rows, 'row')} have {counted(count, 'different key')} ({named}): some keys have "
                f"several rows"
            )
    with_keys = ledger.filter(pc.is_valid(ledger["keys"])).sort_by("table_version")
    if with_keys.num_rows and with_keys["keys"][-1].as_py() != rows.num_rows:
        last = with_keys["keys"][-1].as_py()
        problems.append(
            f"the last commit of the lake job left {counted(last, 'row')}, the table has {rows.num_rows}"
        )
    problems += [
        f"shard {row['shard']}: the batch [{row['from_offset']}, {row['to_offset']}) has more superseded and deleted "
        f"rows than rows"
        for row in ledger.to_pylist()
        if (row["rows"] or 0) < (row["superseded"] or 0) + (row["deleted"] or 0)
    ]


def _check_dead_letters(problems: list[str], shard: int, letters: int, ledger: pa.Table) -> None:
    """Add a sentence where there are not as many dead letters as the commits counted.

    A replay replaces those from an offset on: of a batch that the offset is in, it is not known how many are left.
    """
    kept: list[tuple[int, int, int, bool]] = []
    for row in ledger.filter(pc.equal(ledger["shard"], shard)).sort_by("table_version").to_pylist():
        start = row["from_offset"]
        end = row["to_offset"]
        kept = [
            entry if entry[1] <= start else (entry[0], start, entry[2], False)
            for entry in kept
            if entry[0] < start
        ]
        kept.append((start, end, row["dead"], True))
    least = sum(entry[2] for entry in kept if entry[3])
    most = sum(entry[2] for entry in kept)
    if not least <= letters <= most:
        written = (
            counted(most, "dead letter")
            if least == most
            else f"{least} to {counted(most, 'dead letter')}"
        )
        problems.append(
            f"shard {shard}: the batches have written {written}, the table has {letters}"
        )
