"""Upkeep of a table: small files joined, old versions removed, rows removed by their age.

The lake job does some of it by itself; people order it as jobs, with a preview. It runs while batches are written: a
commit that is overtaken is made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from bridges.spark.batch import TableSpec
from bridges.spark.members.places import open_members
from bridges.spark.tables.contract import EXPIRED, CommitConflict, Details, LakeTable, ShardRange
from bridges.spark.tables.formats import open_dead_letters, open_table

T = TypeVar("T")
_ATTEMPTS = 30
"""The writing job commits about once a second at most."""
_RETENTION_EVERY_S = 3600.0


def tables_of(spec: TableSpec) -> list[LakeTable]:
    """The table, its dead letters and its members, as far as they are there."""
    rows = open_table(spec.format, spec.place, spec.binding)
    dead = open_dead_letters(spec.format, spec.place, spec.binding, create=False)
    members = [] if spec.members is None else open_members(spec.format, spec.place, spec.binding).values()
    return [one for one in (rows, dead, *members) if one is not None]


def compact(name: str, tables: list[LakeTable], *, dry_run: bool) -> dict[str, Any]:
    """Join small files of the tables, or count them; the report."""
    done = [until_committed(one, lambda table: table.compact(dry_run=dry_run)) for one in tables]
    counts = {key: sum(getattr(one, key) for one in done) for key in ("files", "bytes", "files_after")}
    return {"table": name, "dry_run": dry_run, **counts}


def expire(name: str, tables: list[LakeTable], older_than_s: float, *, dry_run: bool) -> dict[str, Any]:
    """Remove versions that are older with the files that only they have, or count them; the report."""
    done = [until_committed(one, lambda table: table.expire(older_than_s, dry_run=dry_run)) for one in tables]
    counts = {key: sum(getattr(one, key) for one in done) for key in ("snapshots", "files", "bytes")}
    return {"table": name, "dry_run": dry_run, **counts}


def until_committed(table: LakeTable, change: Callable[[LakeTable], T]) -> T:
    """Make a change again on the newest version where another writer was first.

    Raises:
        CommitConflict: others were first again and again.
    """
    for _ in range(_ATTEMPTS):
        try:
            return change(table)
        except CommitConflict:
            table.refresh()
    raise CommitConflict(f"{table.place} has constant conflicts with other writers. Try: run it again.")


class Retention:
    """Removes the rows of a table that are older than its ``retention``, at intervals."""

    def __init__(self, retention_s: float | None) -> None:
        self._retention_s = retention_s
        self._next_at = 0.0

    def apply(self, spec: TableSpec, job: str, now: float) -> int:
        """Remove them when it is time; how many rows. ``now`` is in seconds of a clock that never goes back."""
        if self._retention_s is None or now < self._next_at:
            return 0
        removed = remove_rows(spec, job, datetime.fromtimestamp(time.time() - self._retention_s, UTC))
        self._next_at = now + _RETENTION_EVERY_S
        return removed


def remove_rows(spec: TableSpec, job: str, before: datetime) -> int:
    """Remove rows and dead letters that were published before a time; of a table with partitions by that time, before
    the last one that begins then. Whole files go where all their rows do. How many rows and dead letters it were.

    The commit to the table has the number by shard, dead letters included, so the audit does not miss them; these are
    removed after it.
    """
    tables = tables_of(spec)
    if not tables:
        return 0
    before = spec.layout(tables[0].columns()).floor("_published_at", before)

    def removed(table: LakeTable) -> int:
        found = [one.places_before(before) for one in tables]
        ranges = _ranges(pa.concat_tables(found), has_rule=spec.rule is not None)
        if ranges:
            table.delete_before(before, Details(job, ranges, kind=EXPIRED))
        return sum(one.num_rows for one in found)

    count = until_committed(tables[0], removed)
    for dead in tables[1:]:
        until_committed(dead, lambda table: table.delete_before(before, Details(job, (), kind=EXPIRED)))
    return count


def _ranges(places: pa.Table, *, has_rule: bool) -> tuple[ShardRange, ...]:
    """By shard, the offsets that the rows are in, and how many records they are."""
    found = []
    shards, offsets = places.column("_shard").to_numpy(), places.column("_offset").to_numpy()
    for shard in np.unique(shards).tolist():
        mine = offsets[shards == shard]
        records = len(np.unique(mine)) if has_rule else len(mine)
        found.append(ShardRange(shard, int(mine.min()), int(mine.max()) + 1, 0, 0, 0, expired=records))
    return tuple(found)
