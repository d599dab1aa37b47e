"""Batches into a table with a key, on the driver: plan the merge, and commit its files with the offsets.

The commit removes exactly the files that the merge has read. Where another writer was first, it is refused, and the
batch is merged again with the table's files of that moment.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow.compute as pc

from bridges.spark.columns.column import Column
from bridges.spark.driver.batch import TableSpec, TableWriter, has_types, rewritten_in
from bridges.spark.driver.ledger import ledger_of
from bridges.spark.driver.members import MembersWriter
from bridges.spark.driver.spark_errors import sentence_of
from bridges.spark.tables.contract import (
    Change,
    CommitConflict,
    Details,
    LakeTable,
    Range,
    ShardRange,
    TableRefused,
    verify_files,
)
from bridges.spark.tables.formats import open_table
from bridges.spark.tables.replacing import rewritten_here
from bridges.spark.tasks.condition import Condition
from bridges.spark.tasks.leaves import cover, leaves_of
from bridges.spark.tasks.mapping import in_workers, work
from bridges.spark.tasks.merge import Merged, MergePlan, RunMerges, Unit, merge, units_of
from bridges.spark.tasks.staged import StagedWriter
from bridges.spark.tasks.task import DataFile, PartitionWriter, Plan, TaskResult

# Seconds for which a file is kept that a batch has replaced: longer than a query that has begun to read it.
KEPT_REPLACED_S: Final = 900
# The parts of a record that a dead letter has.
_OF_LETTERS: Final = frozenset({"topic", "payload", "client_id", "ts", "shard", "offset"})
# For a table whose files are all of another engine: a task's memory is that of a part of it.
_MANY_LEAVES: Final = cover({f"{number:04b}": "" for number in range(16)})


def merges_in(session: Any) -> RunMerges:
    """Run merges in Spark, a task a unit. They raise ``TableRefused`` where one could not write."""

    def run(plan: MergePlan, units: Sequence[Any]) -> list[Merged]:
        run_unit = work("bridges.spark.tasks.merge", "merged", plan)
        merged_units = [Merged.from_json(text) for text in in_workers(session, run_unit, units)]
        for merged_unit in merged_units:
            if merged_unit.failure is not None:
                raise TableRefused(sentence_of(merged_unit.failure, plan.table.url))
        return merged_units

    return run


def merges_here(plan: MergePlan, units: Sequence[Any]) -> list[Merged]:
    """Run merges in this process, one after the other."""
    return [merge(plan, unit) for unit in units]


def open_writer(spec: TableSpec, job: str, session: Any = None) -> TableWriter:
    """The writer of a table, whose merges run in a session; without one in this process."""
    if spec.members is not None:
        return MembersWriter(spec, job)
    if spec.upsert is None:
        return TableWriter(spec, job, rewritten_here if session is None else rewritten_in(session))
    return UpsertWriter(spec, job, merges_here if session is None else merges_in(session))


class UpsertWriter(TableWriter):
    """Writes the batches of one stream into one table with a key. Used by one thread."""

    def __init__(self, spec: TableSpec, job: str, run_merges: RunMerges) -> None:
        assert spec.upsert is not None
        super().__init__(spec, job)
        self._upsert = spec.upsert
        self._run_merges = run_merges
        self._old: LakeTable | None = None
        """The table for the removal of old files, which knows how far it is."""

    def plan(self) -> Plan:
        return replace(super().plan(), upsert=self._upsert)

    def reconverter(self, plan: Plan) -> PartitionWriter:
        return StagedWriter(plan, self._upsert)

    def settled_letters(self) -> dict[int, int]:
        """The records that are older than a deletion, as their key may be the deleted one, and all where the condition
        reads parts that a dead letter does not have."""
        ends = self.ends(self.table)
        when = self._upsert.delete_when
        if when and not _OF_LETTERS.issuperset(Condition(when).columns):
            return ends
        ledger = ledger_of(self.spec, self.table)
        last = pc.max(ledger.filter(pc.greater(ledger["deleted"], 0))["table_version"]).as_py()
        before = (
            []
            if last is None
            else ledger.filter(pc.less_equal(ledger["table_version"], last)).to_pylist()
        )
        return {
            shard: max([row["to_offset"] for row in before if row["shard"] == shard], default=0)
            for shard in ends
        }

    def retyped(
        self,
        columns: Sequence[Column],
        results: Sequence[TaskResult],
        details: Details,
        dead: Mapping[int, int],
    ) -> int:
        files = [file for result in results for file in result.files]
        try:
            leaves, foreign = leaves_of(self.table.data_files())
            units = units_of(leaves, _all_leaves(leaves, foreign), (), files, everything=True)
            plan = MergePlan(self.spec.place.directory, tuple(columns), self._upsert, is_whole=True)
            merged = self._run(plan, units)
            rows = Counter[int]()
            for count in (count for result in results for count in result.shards):
                rows[count.shard] += count.rows
            ranges = [
                ShardRange(
                    shard,
                    self.table.first(shard) or 0,
                    end,
                    rows[shard] + letters,
                    rows[shard],
                    letters,
                )
                for shard, end in self.ends(self.table).items()
                for letters in (dead.get(shard, 0),)
            ]
            added = [file for result in merged for file in result.files]
            keys = sum(file.rows for file in added)
            counted = _counted(ranges, files, merged)
            # Details of a replay: the ranges that came before are covered again.
            details = replace(
                details, ranges=counted, replay=self.job, keys=keys, key=self._upsert.key
            )
            return self.table.commit(Change(details, added, columns=columns, removes_all=True))
        finally:
            self._discard(files)

    def _append(
        self, results: Sequence[TaskResult], details: Details, plan: Plan, columns: Sequence[Column]
    ) -> int:
        files = [file for result in results for file in result.files]
        try:
            if self.ends(self.table) != plan.floors or not has_types(self.table, columns):
                raise CommitConflict("the table's offsets moved, or its columns changed")
            return self._merged(files, details)
        finally:
            self._discard(files)

    def forget_replaced(self) -> None:
        if self._old is None:
            self._old = open_table(self.spec.format, self.spec.place, self.spec.binding)
        if self._old is not None:
            self._old.refresh()
            self._old.forget_replaced(KEPT_REPLACED_S)

    def replace(self, ranges: Sequence[Range], files: Sequence[DataFile], details: Details) -> int:
        """Put rows in the place of all that came after the starts of ranges, which end where the table does."""
        return self.table.until_committed(partial(self._replace, ranges, files, details))

    def _replace(self, ranges: Sequence[Range], files: Sequence[DataFile], details: Details) -> int:
        if any(self.table.next(part.shard) != part.end for part in ranges):
            raise CommitConflict("the table has further records since the replay began")
        # Marks, so that a batch which is committed at the same time is refused, or this one is.
        marks = tuple(
            ShardRange(shard, end, end, 0, 0, 0) for shard, end in self.ends(self.table).items()
        )
        return self._merged(files, details, ranges, marks)

    def _merged(
        self,
        files: Sequence[DataFile],
        details: Details,
        ranges: Sequence[Range] = (),
        marks: Sequence[ShardRange] | None = None,
    ) -> int:
        present_files = self.table.data_files()
        leaves, foreign = leaves_of(present_files)
        units = units_of(
            leaves, _all_leaves(leaves, foreign), foreign, files, everything=bool(ranges)
        )
        replaced = tuple((part.shard, part.start, part.end) for part in ranges)
        plan = MergePlan(self.spec.place.directory, self.table.columns(), self._upsert, replaced)
        results = self._run(plan, units)
        added = [file for result in results for file in result.files]
        removed = sorted({path for result in results for path in result.removed})
        keys = (
            sum(present_files.values())
            - sum(present_files[path] for path in removed)
            + sum(file.rows for file in added)
        )
        details = replace(
            details,
            ranges=_counted(details.ranges, files, results),
            keys=keys,
            key=self._upsert.key,
        )
        return self.table.commit(Change(details, added, removed, marks=marks))

    def _run(self, plan: MergePlan, units: Sequence[Unit]) -> list[Merged]:
        results = self._run_merges(plan, units)
        for result in results:
            verify_files(plan.table, result.files, result.host)
        return results

    def _discard(self, files: Sequence[DataFile]) -> None:
        place = self.spec.place
        with contextlib.suppress(Exception):  # of three libraries; what is left is cleaned later
            place.remove([place.path_of(file.path) for file in files])


def _all_leaves(leaves: Mapping[str, str], foreign: Sequence[str]) -> list[str]:
    return _MANY_LEAVES if foreign and not leaves else cover(leaves)


def _counted(
    ranges: Sequence[ShardRange], files: Sequence[DataFile], results: Sequence[Merged]
) -> tuple[ShardRange, ...]:
    """The ranges with the outcome of their rows."""
    superseded = Counter[int]()
    deleted = Counter[int]()
    for file in files:
        superseded.update({int(shard): count for shard, count in file.stats["superseded"].items()})
    for result in results:
        superseded.update(result.superseded)
        deleted.update(result.deleted)
    return tuple(
        replace(part, superseded=superseded.pop(part.shard, 0), deleted=deleted.pop(part.shard, 0))
        for part in ranges
    )
