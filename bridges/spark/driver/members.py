"""Batches into a table with members, on the driver: dead letters, then each member, last the table itself.

The table has no rows of its own: its commit says that a batch is in all members. After a death before it, the batch
comes again, perhaps with another end: tasks pass over what a member has by its own committed offsets. New members are
created, and columns added, before anything of a batch is committed: the batch that comes again decides the same.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow.fs as fs

from bridges.spark.columns.column import Column
from bridges.spark.driver.batch import (
    Figures,
    Outcome,
    RunTasks,
    TableSpec,
    TableWriter,
    discard,
    evolved,
    figures_of,
)
from bridges.spark.driver.member_places import (
    at_once,
    member_of,
    member_place,
    members_place,
    open_members,
    part_of,
)
from bridges.spark.driver.upkeep import in_one_worker, tidy_one
from bridges.spark.tables.contract import (
    MANY_SMALL_FILES,
    Change,
    CommitConflict,
    Details,
    LakeTable,
    Part,
    ShardRange,
    TableLost,
    TableRefused,
)
from bridges.spark.tables.formats import of_part, open_or_create, open_table
from bridges.spark.tasks.split import Split
from bridges.spark.tasks.task import DataFile, Plan, TaskResult
from broker.core.times import rfc3339

_ATTEMPTS: Final = 8
# Names of tables that could not be created, which are remembered.
_MOST_REFUSED: Final = 1000


@dataclass(slots=True)
class Member:
    """A member table, and its figures as of the last commit. ``fresh`` files were added since it was tidied."""

    table: LakeTable
    figures: Figures
    fresh: int = 0
    committed_at: str | None = None

    def add(self, files: Sequence[DataFile]) -> None:
        """Count files that were committed."""
        was = self.figures
        rows = sum(file.rows for file in files)
        size = sum(file.size for file in files)
        self.figures = replace(
            was, rows=was.rows + rows, files=was.files + len(files), bytes=was.bytes + size
        )
        self.fresh += len(files)
        self.committed_at = rfc3339(time.time_ns())


@dataclass(slots=True)
class _Share:
    """A batch's share for a member: files, and the number of rows by shard."""

    files: list[DataFile] = field(default_factory=list)
    rows: Counter[int] = field(default_factory=Counter)

    def range(self, span: ShardRange, ends: Mapping[int, int]) -> ShardRange:
        """The range that the batch adds to the member; ``ends`` are those that are above those of the table."""
        rows = self.rows[span.shard]
        return ShardRange(
            span.shard, max(span.start, ends.get(span.shard, 0)), span.end, rows, rows, 0
        )


def _shares(results: Sequence[TaskResult]) -> dict[str, _Share]:
    shares: dict[str, _Share] = {}
    for result in results:
        for name, rows in result.members.items():
            shares.setdefault(name, _Share()).rows.update(rows)
        for file in result.files:
            name, _, path = file.path.partition("/")
            shares[name].files.append(replace(file, path=path))
    return shares


class MembersWriter(TableWriter):
    """Writes the batches of one stream into the members of a table. Used by one thread."""

    def __init__(self, spec: TableSpec, job: str) -> None:
        assert spec.members is not None
        super().__init__(spec, job)
        if self.table.rows():
            raise TableRefused(
                f"the table at {spec.place} has rows of its own. Try: another 'path' for 'tables'."
            )
        self._template = spec.members.template
        self._most = spec.members.most
        self._refused: dict[str, str] = {}
        self._members: dict[str, Member] = {}
        self._seen: dict[int, int] | None = None
        """The table's ends when the members were as they are here; None where that is not known."""
        self.refresh()

    def refresh(self) -> None:
        super().refresh()
        if self._seen is not None and self._seen == self.ends(self.table):
            self._check_there()
        else:
            members = open_members(self.spec.format, self.spec.place, self.spec.binding)
            was = {member_of(part): identity for part, identity in self.spec.expected.items()}
            was |= {name: member.table.part for name, member in self._members.items()}
            for name, part in was.items():
                if name is not None:
                    self._check_is(name, members.get(name), part)
            self._members = {name: self._opened(name, table) for name, table in members.items()}
            self._seen = self.ends(self.table)

    def _check_is(self, name: str, member: LakeTable | None, was: Part) -> None:
        """Raise ``TableLost`` where a member is not there as it was written."""
        with of_part(self.spec.name, part_of(name)):
            if member is None:
                raise TableLost.gone(member_place(self.spec.place, name))
            member.check_is(was)

    def parts(self) -> dict[str, Part]:
        return super().parts() | {
            part_of(name): member.table.part for name, member in self._members.copy().items()
        }

    def refresh_all(self) -> None:
        self._seen = None
        self.refresh()

    def _opened(self, name: str, table: LakeTable) -> Member:
        evolved(table, self.table.columns(), self.spec.format)
        table.set_layout(self.spec.layout(table.columns()))
        before = self._members.get(name)
        figures = figures_of(table)
        return Member(table, figures, figures.files, before.committed_at if before else None)

    @property
    def _room(self) -> int:
        """Number of members that may still be added."""
        return max(0, self._most - len(self._members))

    def figures(self) -> Figures:
        sizes = [member.figures for member in list(self._members.values())]
        counts = {
            name: sum(getattr(size, name) for size in sizes)
            for name in ("rows", "files", "bytes", "partitions")
        }
        return Figures(**counts)

    def member_figures(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "path": member.table.place.url,
                "rows": member.figures.rows,
                "files": member.figures.files,
                "bytes": member.figures.bytes,
                "last_commit_at": member.committed_at,
            }
            for name, member in sorted(self._members.copy().items())
        ]

    def plan(self) -> Plan:
        base_plan = super().plan()
        ahead = {
            name: self._ahead(member.table, base_plan) for name, member in self._members.items()
        }
        split = Split(
            self._template.parts,
            self._most,
            frozenset(self._members),
            self._room,
            dict(self._refused),
            {name: ends for name, ends in ahead.items() if ends},
            self._own_columns(base_plan.columns),
        )
        return replace(base_plan, table=members_place(self.spec.place), split=split)

    def with_columns(self, plan: Plan, columns: Sequence[Column]) -> Plan:
        plan = super().with_columns(plan, columns)
        assert plan.split is not None
        for member in self._members.values() if self.table.has_ids else ():
            with contextlib.suppress(CommitConflict):  # the commit sees that it lacks columns
                evolved(member.table, plan.columns, self.spec.format)
        return replace(plan, split=replace(plan.split, columns=self._own_columns(plan.columns)))

    def _own_columns(self, columns: Sequence[Column]) -> dict[str, tuple[Column, ...]]:
        """The columns of members that have other identifiers than these columns: they were created later."""
        ids = {column.key: column.ids for column in columns}
        columns_by_member = {}
        for name, member in self._members.items() if self.table.has_ids else ():
            by_key = {column.key: column for column in member.table.columns()}
            own = tuple(by_key.get(column.key, column) for column in columns)
            if any(column.ids != ids[column.key] for column in own):
                columns_by_member[name] = own
        return columns_by_member

    def _ahead(self, member: LakeTable, plan: Plan) -> dict[int, int]:
        """The ends of a member's shards that are above those of the table: of a batch that was not finished."""
        return {
            shard: end
            for shard, end in self.ends(member).items()
            if end > plan.floors.get(shard, 0)
        }

    def run_agreed(self, run: RunTasks, plan: Plan) -> tuple[list[TaskResult], Plan]:
        """Also until tasks write for no member that cannot be created, and for no more than there may be."""
        for attempt in range(_ATTEMPTS):
            results, plan = super().run_agreed(run, plan)
            assert plan.split is not None
            fresh: dict[str, tuple[int, int]] = {}
            for name, place in (entry for result in results for entry in result.tables.items()):
                fresh[name] = min(place, fresh.get(name, place))
            if self._admit(sorted(fresh, key=lambda name: fresh[name])):
                break
            discard(plan, results)
            room = self._room if attempt < _ATTEMPTS - 2 else 0
            split = replace(
                plan.split, names=frozenset(self._members), room=room, refused=dict(self._refused)
            )
            plan = replace(plan, split=split)
        return results, plan

    def _commit(self, results: Sequence[TaskResult], plan: Plan) -> Outcome:
        self.add_columns(plan, results)
        return super()._commit(results, plan)

    def _admit(self, names: Sequence[str]) -> bool:
        """Create members while there may be more; whether all of these are there then."""
        for name in names:
            if name not in self._members and self._room:
                try:
                    self._members[name] = Member(self._created(name), Figures())
                except TableRefused as error:
                    if len(self._refused) >= _MOST_REFUSED:
                        self._refused.clear()
                    self._refused[name] = f"table {name!r} cannot be created: {error}"
        return all(name in self._members for name in names)

    def _created(self, name: str) -> LakeTable:
        columns = self.table.columns()
        place = member_place(self.spec.place, name)
        return open_or_create(
            self.spec.format, place, self.spec.binding, columns, self.spec.layout(columns)
        )

    def _append(
        self, results: Sequence[TaskResult], details: Details, plan: Plan, columns: Sequence[Column]
    ) -> int:
        self._seen = None
        details = replace(details, tables=self._template.text)
        shares = _shares(results)
        at_once(
            lambda name: self._commit_member(name, shares[name], details, plan, columns), shares
        )
        version = super()._append([], details, plan, columns)
        self._seen = self.ends(self.table)
        return version

    def _check_there(self) -> None:
        """Raise ``TableLost`` where the open version of a member is gone, on which a commit would build."""
        tables = {name: member.table for name, member in self._members.items()}
        infos = self.spec.place.files.get_file_info(
            [table.newest_file() for table in tables.values()]
        )
        for (name, table), info in zip(tables.items(), infos, strict=True):
            if info.type is fs.FileType.NotFound:
                with of_part(self.spec.name, part_of(name)):
                    table.refresh()

    def _commit_member(
        self, name: str, share: _Share, details: Details, plan: Plan, columns: Sequence[Column]
    ) -> None:
        assert plan.split is not None
        member = self._members[name]
        member_floors = plan.split.floors.get(name, {})
        table = member.table
        evolved(table, columns, self.spec.format)
        details = replace(
            details, ranges=tuple(share.range(part, member_floors) for part in details.ranges)
        )
        change = Change(details, share.files)
        self.append(table, change, plan, columns, lambda: self._ahead(table, plan) == member_floors)
        member.add(share.files)

    def tidy(self, session: Any = None) -> None:
        """Join small files, and remove old versions, of members that many files were added to."""
        for member in list(self._members.values()):
            if member.fresh < MANY_SMALL_FILES:
                continue
            arguments = self.spec.format, member.table.place, self.spec.binding
            if in_one_worker(session, tidy_one, *arguments):
                # A table of its own: the one of the writer belongs to the thread of the batches.
                table = open_table(*arguments)
                member.figures = member.figures if table is None else figures_of(table)
            member.fresh = 0
