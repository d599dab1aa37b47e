"""Upkeep of a table: small files joined, old versions removed, rows removed by their age.

The lake job does some of it on its own; users order it as jobs, with a preview. It runs while batches are written: a
commit that is overtaken is made again. What reads and writes rows runs in one task of Spark, for one table at a time
(``in_one_worker``), so the driver and the other workers continue with the batches of the other tables.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from bridges.spark.columns.place import Place
from bridges.spark.driver.batch import TableSpec
from bridges.spark.driver.ledger import Ledger
from bridges.spark.driver.member_places import open_members
from bridges.spark.driver.spark_errors import sentence_of
from bridges.spark.tables.contract import (
    EXPIRED,
    MANY_SMALL_FILES,
    Binding,
    Details,
    LakeTable,
    ShardRange,
    TableRefused,
)
from bridges.spark.tables.formats import open_dead_letters, open_table
from bridges.spark.tasks.mapping import in_workers, work
from broker.core.errors import SluiceError

log = logging.getLogger("sluice.lake")

T = TypeVar("T")
_RETENTION_EVERY_S = 3600.0
_one_at_a_time = threading.Lock()
# Entered, it keeps batches of the same table from committing.
Turn = contextlib.AbstractContextManager[Any]
_NO_TURN: Turn = contextlib.nullcontext()


def in_one_worker(
    session: Any,
    function: Callable[..., Any],
    *arguments: Any,
    turn: Turn = _NO_TURN,
) -> Any:
    """Call a function of a module in a task of a session, which leaves the other workers to batches; what it returned,
    as JSON has it. Where there is no other worker, or a worker lacks the library of a format, it runs in this process.
    ``turn`` is taken when no other call runs.

    A worker that is killed is replaced, and the function called again: it must do the rest then.

    Raises:
        TableRefused: it failed.
    """
    with _one_at_a_time, turn:
        if session is None or session.sparkContext.defaultParallelism < 2:
            return function(*arguments)
        return _in_worker(session, function, arguments)


def _in_worker(session: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    task = work(__name__, called.__name__, (function.__module__, function.__name__, arguments))
    [text] = in_workers(session, task, [None])
    answer = json.loads(text)
    if "No module named" in answer.get("failure", ""):
        log.warning("lake.upkeep_in_driver reason=%s", sentence_of(answer["failure"]))
        return function(*arguments)
    if "failure" in answer:
        raise TableRefused(sentence_of(answer["failure"]))
    if "refused" in answer:
        raise TableRefused(answer["refused"])
    return answer["result"]


def called(plan: tuple[str, str, tuple[Any, ...]], _: None) -> str:
    """Call a function by module, name and arguments, in a task; JSON of its result, or of its error."""
    module, name, arguments = plan
    try:
        return json.dumps({"result": getattr(import_module(module), name)(*arguments)})
    except SluiceError as error:
        return json.dumps({"refused": str(error)})
    except Exception:  # noqa: BLE001 - of many libraries; a task that fails is run again by Spark
        return json.dumps({"failure": traceback.format_exc()})


def tidy(
    spec: TableSpec, ledger: Ledger, now: float, session: Any = None, turn: Turn = _NO_TURN
) -> LakeTable | None:
    """Bring the ledger up to date, then remove what the table has of old versions and small files; the table.

    Many small files are joined in a worker of the session during batches; quick work, in a turn between them.
    """
    # Tables of its own: those of the writer belong to the thread of the batches.
    rows = open_table(spec.format, spec.place, spec.binding)
    tables = _tidied(spec)
    ledger.sync(spec, now)
    if session is not None and any(
        table.compact(dry_run=True).files >= MANY_SMALL_FILES for table in _tidied(spec)
    ):
        in_one_worker(session, tidy_all, spec)
        return rows
    with turn:
        for table in tables:
            if table.tidy():
                log.info("lake.tidied table=%s version=%s", table.place, table.version())
    return rows


def tidy_all(spec: TableSpec) -> None:
    """Tidy a table, in a worker."""
    tidy(spec, Ledger(spec.place, spec.name), time.monotonic())


def tidy_one(table_format: str, place: Place, binding: Binding) -> bool:
    """Tidy one of many tables, in a worker; whether anything was done."""
    table = open_table(table_format, place, binding)
    return table is not None and table.tidy()


def _tidied(spec: TableSpec) -> list[LakeTable]:
    """The table and its dead letters, as far as they are there and small files are joined: those of a table with a key
    are those of parts of its keys."""
    rows = None if spec.upsert is not None else open_table(spec.format, spec.place, spec.binding)
    dead = open_dead_letters(spec.format, spec.place, spec.binding, create=False)
    return [table for table in (rows, dead) if table is not None]


def compact_all(spec: TableSpec) -> dict[str, Any]:
    """Join the small files of a table; the report."""
    return compact(spec.name, tables_of(spec), dry_run=False)


def tables_of(spec: TableSpec) -> list[LakeTable]:
    """The table, its dead letters and its members, as far as they are there."""
    rows = open_table(spec.format, spec.place, spec.binding)
    dead = open_dead_letters(spec.format, spec.place, spec.binding, create=False)
    members = (
        [] if spec.members is None else open_members(spec.format, spec.place, spec.binding).values()
    )
    return [table for table in (rows, dead, *members) if table is not None]


def compact(name: str, tables: list[LakeTable], *, dry_run: bool) -> dict[str, Any]:
    """Join small files of the tables, or count them; the report."""
    done = [table.until_committed(partial(table.compact, dry_run=dry_run)) for table in tables]
    counts = {
        key: sum(getattr(entry, key) for entry in done) for key in ("files", "bytes", "files_after")
    }
    return {"table": name, "dry_run": dry_run, **counts}


def expire(
    name: str, tables: list[LakeTable], older_than_s: float, *, dry_run: bool
) -> dict[str, Any]:
    """Remove versions that are older with the files that only they have, or count them; the report."""
    done = [
        table.until_committed(partial(table.expire, older_than_s, dry_run=dry_run))
        for table in tables
    ]
    counts = {
        key: sum(getattr(entry, key) for entry in done) for key in ("snapshots", "files", "bytes")
    }
    return {"table": name, "dry_run": dry_run, **counts}


class Retention:
    """Removes the rows of a table that are older than its ``retention``, at intervals."""

    def __init__(self, retention_s: float | None) -> None:
        self._retention_s = retention_s
        self._next_at = 0.0

    def apply(
        self,
        spec: TableSpec,
        job: str,
        now: float,
        session: Any = None,
        turn: Turn = _NO_TURN,
    ) -> int:
        """Remove them when it is time, in a turn between batches; how many rows. ``now`` is in seconds of a clock that
        never goes back."""
        if self._retention_s is None or now < self._next_at:
            return 0
        before = datetime.fromtimestamp(time.time() - self._retention_s, UTC)
        removed = int(in_one_worker(session, remove_rows, spec, job, before, turn=turn))
        self._next_at = now + _RETENTION_EVERY_S
        return removed


def retain(
    spec: TableSpec, job: str, older_than_s: float, *, dry_run: bool, session: Any = None
) -> dict[str, Any]:
    """Remove rows and dead letters that were published longer ago, in a worker, or count them; the report."""
    before = datetime.fromtimestamp(time.time() - older_than_s, UTC)
    if dry_run:
        rows = remove_rows(spec, job, before, dry_run=True)
    else:
        rows = int(in_one_worker(session, remove_rows, spec, job, before))
    return {"table": spec.name, "dry_run": dry_run, "rows": rows}


def remove_rows(spec: TableSpec, job: str, before: datetime, *, dry_run: bool = False) -> int:
    """Remove rows and dead letters that were published before a time; of a table with partitions by that time, before
    the last one that begins then. Whole files go where all their rows do. How many rows and dead letters it were.

    The commit to the table has the number by shard, dead letters included, so the audit does not miss them; these are
    removed after it. With ``dry_run`` nothing is removed.
    """
    tables = tables_of(spec)
    if not tables:
        return 0
    before = spec.layout(tables[0].columns()).floor("_published_at", before)
    if dry_run:
        return sum(table.places_before(before).num_rows for table in tables)

    def removed() -> int:
        places = [table.places_before(before) for table in tables]
        ranges = _ranges(pa.concat_tables(places), has_rule=spec.rule is not None)
        if ranges:
            tables[0].delete_before(before, Details(job, ranges, kind=EXPIRED))
        return sum(table.num_rows for table in places)

    count = tables[0].until_committed(removed)
    for table in tables[1:]:
        table.until_committed(partial(table.delete_before, before, Details(job, (), kind=EXPIRED)))
    return count


def _ranges(places: pa.Table, *, has_rule: bool) -> tuple[ShardRange, ...]:
    """By shard, the offsets that the rows are in, and how many records they are."""
    removed = []
    shards = places.column("_shard").to_numpy()
    offsets = places.column("_offset").to_numpy()
    for shard in np.unique(shards).tolist():
        mine = offsets[shards == shard]
        records = len(np.unique(mine)) if has_rule else len(mine)
        removed.append(
            ShardRange(shard, int(mine.min()), int(mine.max()) + 1, 0, 0, 0, expired=records)
        )
    return tuple(removed)
