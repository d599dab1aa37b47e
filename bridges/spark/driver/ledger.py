"""The ledger: a row per commit and shard, for users and for the audit.

What counts is in the commits themselves, atomic with the data; the ledger is a Delta table made from them, from time to
time, which outlives the cleaning of a table's log. Writing it late or not at all loses nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from bridges.spark.columns.place import Place
from bridges.spark.driver.batch import TableSpec
from bridges.spark.tables.contract import Committed, LakeTable
from bridges.spark.tables.delta import delta_table
from bridges.spark.tables.files import read_columns
from bridges.spark.tables.formats import open_table

DIRECTORY = "_ledger"
SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("table_id", pa.string()),
        ("table_version", pa.int64()),
        ("stream", pa.string()),
        ("shard", pa.int32()),
        ("from_offset", pa.int64()),
        ("to_offset", pa.int64()),
        ("read", pa.int64()),
        ("written", pa.int64()),
        ("filtered", pa.int64()),
        ("dead", pa.int64()),
        ("lost", pa.int64()),
        ("rows", pa.int64()),
        ("superseded", pa.int64()),
        ("deleted", pa.int64()),
        ("keys", pa.int64()),
        ("expired", pa.int64()),
        ("sums", pa.string()),
        ("is_rewritten", pa.bool_()),
        ("job", pa.string()),
        ("replay", pa.string()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
    ]
)
_INTERVAL_S = 30.0
_MANY_FILES = 100
_ATTEMPTS = 8


class Ledger:
    """The rows of one table in the ledger, which is next to the tables."""

    def __init__(self, of: Place, table: str) -> None:
        self._place = of.parent.child(DIRECTORY)
        self._table = table
        self._next_at = 0.0

    def due(self, now: float) -> bool:
        """Return whether it is time to sync again; ``now`` in seconds of a clock that never goes back."""
        return now >= self._next_at

    def sync(self, spec: TableSpec, now: float) -> int:
        """Add the commits that are not in the ledger yet; returns how many there were."""
        self._next_at = now + _INTERVAL_S
        table = open_table(spec.format, spec.place, spec.binding)
        if table is None:
            return 0
        for attempt in range(_ATTEMPTS):
            try:
                return self._add(spec, table)
            except CommitFailedError:
                # another driver was first, or it was this call, and the answer was lost
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError  # never: the last attempt returns or raises

    def _add(self, spec: TableSpec, table: LakeTable) -> int:
        """Add the commits that the ledger does not have, to the very version of it that was read."""
        ledger = self._opened() or DeltaTable.create(
            self._place.url, SCHEMA, mode="ignore", storage_options=self._place.storage_options
        )
        last_version = ledger.transaction_version(self._mark(table.identity()))
        fresh = table.commits(-1 if last_version is None else int(last_version))
        if fresh:
            marks = [Transaction(self._mark(table.identity()), fresh[-1].version)]
            write_deltalake(
                ledger,
                ledger_rows(spec, table.identity(), fresh),
                mode="append",
                schema_mode="merge",
                commit_properties=CommitProperties(app_transactions=marks),
            )
            self._tidy()
        return len(fresh)

    def go_back(self, table: LakeTable) -> None:
        """Forget the commits that a table has not, as it was put back to an older version: their numbers come again."""
        ledger = self._opened()
        id = table.identity()
        last_version = None if ledger is None else ledger.transaction_version(self._mark(id))
        if ledger is None or last_version is None or int(last_version) <= table.version():
            return
        marks = CommitProperties(app_transactions=[Transaction(self._mark(id), table.version())])
        ledger.delete(
            f"table_id = '{id}' AND table_version > {table.version()}", commit_properties=marks
        )

    def rows(self, table_id: str) -> pa.Table:
        """The ledger of the table with this identity."""
        ledger = self._opened()
        if ledger is None:
            return SCHEMA.empty_table()
        files = pa.table(ledger.get_add_actions(flatten=True)).column("path").to_pylist()
        paths = [self._place.path_of(unquote(path)) for path in files]
        return read_columns(self._place, paths, SCHEMA, pc.field("table_id") == table_id)

    def _tidy(self) -> None:
        """Join the small files that syncing leaves, when there are many."""
        ledger = delta_table(self._place)
        if len(ledger.file_uris()) >= _MANY_FILES:
            # Rows that another job adds at the same time win; the files are joined another time.
            with contextlib.suppress(CommitFailedError):
                ledger.optimize.compact(max_concurrent_tasks=1)
                delta_table(self._place).vacuum(dry_run=False)

    def _opened(self) -> DeltaTable | None:
        try:
            return delta_table(self._place)
        except TableNotFoundError:
            return None

    @staticmethod
    def _mark(table_id: str) -> str:
        return f"sluice/ledger/{table_id}"


def ledger_of(spec: TableSpec, table: LakeTable) -> pa.Table:
    """The ledger's rows with those of commits that it does not have yet, up to the table's version."""
    kept = Ledger(spec.place, spec.name).rows(table.identity())
    kept = kept.filter(pc.less_equal(kept["table_version"], table.version()))
    last = pc.max(kept["table_version"]).as_py() if kept.num_rows else -1
    return pa.concat_tables([kept, ledger_rows(spec, table.identity(), table.commits(last))])


def ledger_rows(spec: TableSpec, table_id: str, commits: Sequence[Committed]) -> pa.Table:
    """The commits as rows of the ledger."""
    rows = [
        row
        for version in commits
        for row in _rows(spec.name, table_id, spec.binding.stream, version)
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _rows(table: str, table_id: str, stream: str, commit: Committed) -> list[dict[str, object]]:
    at = datetime.fromtimestamp(commit.at_ms / 1000, UTC)
    details = commit.details
    return [
        {
            "table": table,
            "table_id": table_id,
            "table_version": commit.version,
            "stream": stream,
            "shard": part.shard,
            "from_offset": part.start,
            "to_offset": part.end,
            "read": part.read,
            "written": part.written,
            "filtered": part.filtered,
            "dead": part.dead,
            "lost": part.lost,
            "rows": part.row_count,
            "superseded": part.superseded,
            "deleted": part.deleted,
            "keys": details.keys,
            "expired": part.expired,
            "sums": part.sums,
            "is_rewritten": is_rewritten,
            "job": details.job,
            "replay": details.replay,
            "committed_at": at,
        }
        for ranges, is_rewritten in ((details.ranges, False), (details.rewritten, True))
        for part in ranges
    ]
