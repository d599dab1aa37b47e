"""The values of a table's rows, compared with the sums that commits keep, and with the stream's records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from bridges.spark.columns.value_sums import BLOCK, Sums, add_rows, add_sums
from bridges.spark.driver.api import LakeApi
from bridges.spark.driver.batch import TableSpec, results_of
from bridges.spark.driver.history import WORDS
from bridges.spark.driver.stretches import Cells
from bridges.spark.tables.contract import LakeTable, Range, Version
from bridges.spark.tables.formats import dead_letters_place
from bridges.spark.tasks.mapping import Reading, in_workers, read_by, work
from bridges.spark.tasks.task import PartitionWriter, Plan, Refusal, ShardCount, TableFiles
from pyspark_sluice.client import Positions

# Versions that are searched for commits that are not of the lake job.
_LOOKED_AT: Final = 1000
# Such commits, or several in a row, whose rows are compared with those before.
_GROUPS: Final = 20
_SHOWN: Final = 5
# Records that a task converts again.
_TASK_RECORDS: Final = 100_000
# Offsets of rows, in order, and the hash of each.
Places = tuple[Any, Any]


class Values:
    """The sums of the rows of a shard, by the ranges of which the ledger has one."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self._sums = np.zeros(len(cells.start), np.uint64)
        self.compared = 0
        """Rows whose values are in a sum."""

    def add(self, start: int, end: int, offsets: Any, hashes: Any) -> None:
        """Take the rows of a range of offsets."""
        parts = self._cells.within(start, end)
        places = np.searchsorted(self._cells.start[parts], offsets, "right") - 1
        is_in = places >= 0
        if is_in.any():
            is_in &= offsets < self._cells.end[parts][places]
        np.add.at(self._sums[parts], places[is_in], hashes[is_in])
        self.compared += int(is_in.sum())

    def wrong(self) -> Iterator[tuple[int, int, int]]:
        """The ranges of which the rows are not as they were written, and the least version that wrote some of one."""
        wrong_range: tuple[int, int, int] | None = None
        for at in np.flatnonzero(self._sums != self._cells.sum).tolist():
            start = int(self._cells.start[at])
            end = int(self._cells.end[at])
            version = int(self._cells.version[at])
            if wrong_range is not None and wrong_range[1] == start:
                wrong_range = wrong_range[0], end, min(version, wrong_range[2])
                continue
            if wrong_range is not None:
                yield wrong_range
            wrong_range = start, end, version
        if wrong_range is not None:
            yield wrong_range


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of rows from others at the same places: offsets of rows that changed, are gone, or are new."""

    changed: Any
    removed: Any
    added: Any

    @classmethod
    def between(cls, before: Places, after: Places) -> Difference:
        """Compare rows by offset and hash; several rows of one record are distinguished by their values alone."""
        removed = _only_in(before, after)
        added = _only_in(after, before)
        changed = np.intersect1d(removed, added)
        return cls(changed, np.setdiff1d(removed, changed), np.setdiff1d(added, changed))

    def __bool__(self) -> bool:
        return bool(len(self.changed) or len(self.removed) or len(self.added))

    @property
    def text(self) -> str:
        """A sentence for users: the number of records whose rows differ, and the offsets of the first ones."""
        parts = (("changed", self.changed), ("removed", self.removed), ("added", self.added))
        return ", ".join(f"{verb} {_shown(offsets)}" for verb, offsets in parts if len(offsets))


def _only_in(some: Places, others: Places) -> Any:
    """The offsets of rows that the others do not have as often."""
    places, counts = np.unique(others[1], return_counts=True)
    order = np.argsort(some[1], kind="stable")
    hashes = some[1][order]
    firsts = np.searchsorted(hashes, hashes)
    at = np.searchsorted(places, hashes)
    is_known = at < len(places)
    is_known[is_known] = places[at[is_known]] == hashes[is_known]
    often = np.zeros(len(hashes), np.int64)
    often[is_known] = counts[at[is_known]]
    return np.unique(some[0][order[np.arange(len(hashes)) - firsts >= often]])


def _shown(offsets: Any) -> str:
    subject = "the rows of record" if len(offsets) == 1 else f"the rows of {len(offsets)} records"
    first = ", ".join(map(str, offsets[:_SHOWN])) + (", ..." if len(offsets) > _SHOWN else "")
    return f"{subject} {first}" if len(offsets) == 1 else f"{subject} ({first})"


def foreign_changes(
    table: LakeTable, read: Callable[[LakeTable], Places], since: int
) -> Iterator[str]:
    """A clause for each commit that is not of the lake job, or several in a row, that changed rows after a version.

    Args:
        table: the table as it is now.
        read: reads the rows of the range in question.
        since: the version that wrote them.
    """
    versions = [commit for commit in table.versions(_LOOKED_AT) if commit.version >= since]
    before: dict[int, Version] = {commit.version: other for commit, other in pairwise(versions)}
    groups = [
        list(group)
        for is_ours, group in groupby(versions, lambda version: version.details is not None)
        if not is_ours
    ]
    for group in groups[:_GROUPS]:
        foreign = [version for version in group if version.operation not in WORDS]
        earlier = before.get(group[-1].version)
        if not foreign or earlier is None:
            continue
        numbers = [commit.version for commit in foreign]
        names = ", ".join(dict.fromkeys(version.operation.lower() for version in reversed(foreign)))
        many = f"versions {numbers[-1]} to {numbers[0]} ({names}), which are"
        who = f"version {numbers[0]} ({names}), which is" if len(foreign) == 1 else many
        try:
            tables = [table.at(version) for version in (earlier.version, group[0].version)]
            difference = Difference.between(*(read(table) for table in tables))
        except Exception:  # noqa: BLE001 - of several libraries: the version or its files are gone
            yield f"{who} not of the lake job, may have changed them, and the rows of before are gone"
            continue
        if difference:
            yield f"{who} not of the lake job, {difference.text}"


class Rerun:
    """Converts the records of a table's stream again, in the workers of a session, and writes nothing."""

    def __init__(self, session: Any, api: LakeApi, spec: TableSpec) -> None:
        self._session = session
        self._api = api
        self._spec = spec
        self._reading: Reading | None = None

    def prepare(
        self, table: LakeTable, refusals: dict[int, dict[int, Refusal]], where: Positions
    ) -> None:
        """Take the columns of the table as it is, the records that it did not take, and where the stream is."""
        spec = self._spec
        columns = table.columns()
        plan = Plan(
            stream=spec.binding.stream,
            kind=spec.kind,
            columns=columns,
            pending=tuple(
                key for key in spec.pending if key not in {column.key for column in columns}
            ),
            table=spec.place.directory,
            dead=dead_letters_place(spec.place.directory),
            rule=spec.rule,
            layout=spec.layout(columns),
            refusals=refusals,
        )
        token = self._api.reader_token(spec.binding.stream)
        names = tuple(spec.source_columns().split(","))
        self._reading = Reading(self._api.url, token, where, names, plan)

    def sums(self, span: Range) -> Sums:
        """The sums of the rows that a range of the stream gives."""
        pieces = [
            [Range(span.shard, start, min(span.end, start + _TASK_RECORDS))]
            for start in range(span.start, span.end, _TASK_RECORDS)
        ]
        run = work("bridges.spark.driver.audit_values", "summed", self._reading)
        sums: Sums = {}
        for result in results_of(in_workers(self._session, run, pieces), self._spec.place.url):
            for count in result.shards:
                add_sums(sums, count.sums)
        return sums

    def rows(self, span: Range) -> Places:
        """The rows that a range of the stream gives, in this process."""
        assert self._reading is not None
        writer = _Summing(self._reading.plan)
        for batch in read_by(self._reading, [span]):
            writer.add(batch)
        writer.finish()
        offsets, hashes = (
            np.concatenate([np.empty(0, kind), *parts]) for kind, parts in writer.kept()
        )
        order = np.argsort(offsets, kind="stable")
        return offsets[order], hashes[order]


def summed(reading: Reading, ranges: Sequence[Range]) -> str:
    """The work of a task: the sums of the rows that ranges of a stream give, as a ``TaskResult`` as text."""
    writer = _Summing(reading.plan)
    for batch in read_by(reading, ranges):
        writer.add(batch)
    return writer.finish().to_json()


def wrong_blocks(span: Range, mine: Places, theirs: Sums) -> list[Range]:
    """The blocks of a range in which the rows of the table are not those that the stream gives."""
    sums: Sums = {}
    add_rows(sums, *mine)
    blocks = sorted(
        {
            block
            for block in sums.keys() | theirs.keys()
            if sums.get(block, 0) != theirs.get(block, 0)
        }
    )
    return [
        Range(span.shard, max(span.start, block * BLOCK), min(span.end, (block + 1) * BLOCK))
        for block in blocks
    ]


class _Summing(PartitionWriter):
    """Converts records, and keeps the sums of their rows and nothing else."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._rows, self._dead = _Nowhere(plan.table), _Nowhere(plan.dead)
        self._kept: list[Places] = []

    def _sum(self, batch: pa.RecordBatch, hashes: Any, count: ShardCount) -> None:
        super()._sum(batch, hashes, count)
        self._kept.append((batch.column("offset").to_numpy(), hashes))

    def kept(self) -> Iterator[tuple[Any, list[Any]]]:
        """Offsets and hashes of the rows, each with their type."""
        yield np.int64, [offsets for offsets, _ in self._kept]
        yield np.uint64, [hashes for _, hashes in self._kept]


class _Nowhere(TableFiles):
    """Drops rows."""

    def add(self, *_: Any) -> None:
        """Drop the rows."""
