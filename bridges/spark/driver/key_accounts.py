"""The audit of a table with a key, in addition to offsets.

The rows that later records replaced are gone, so that each was there once cannot be seen in the table. What can be:
there is one row a key; the batches, which follow each other without a gap, add up; and the table has as many rows as
its last commit counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.column import PROVENANCE
from bridges.spark.tables.contract import LakeTable
from bridges.spark.tasks.keys import keys_of
from broker.core.kinds import counted


def check_keys(problems: list[str], table: LakeTable, key: Sequence[str], ledger: pa.Table) -> None:
    """Add a sentence for each way in which keys and rows are not as the commits say."""
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
        problems.append(f"{counted(nulls, 'row')} without a value for the key's column {without[0]!r}")
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
        problems.append(f"the last commit of the lake job left {counted(last, 'row')}, the table has {rows.num_rows}")
    problems += [
        f"shard {row['shard']}: the batch [{row['from_offset']}, {row['to_offset']}) has more superseded and deleted "
        f"rows than rows"
        for row in ledger.to_pylist()
        if (row["rows"] or 0) < (row["superseded"] or 0) + (row["deleted"] or 0)
    ]


def check_dead_letters(problems: list[str], shard: int, found: int, ledger: pa.Table) -> None:
    """Add a sentence where there are not as many dead letters as the commits counted.

    A replay replaces those from an offset on: of a batch that the offset is in, it is not known how many are left.
    """
    kept: list[tuple[int, int, int, bool]] = []
    for row in ledger.filter(pc.equal(ledger["shard"], shard)).sort_by("table_version").to_pylist():
        start = row["from_offset"]
        end = row["to_offset"]
        kept = [
            entry if entry[1] <= start else (entry[0], start, entry[2], False) for entry in kept if entry[0] < start
        ]
        kept.append((start, end, row["dead"], True))
    least = sum(entry[2] for entry in kept if entry[3])
    most = sum(entry[2] for entry in kept)
    if not least <= found <= most:
        written = counted(most, "dead letter") if least == most else f"{least} to {counted(most, 'dead letter')}"
        problems.append(f"shard {shard}: the batches have written {written}, the table has {found}")
