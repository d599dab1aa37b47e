"""A column gets another type: all rows are converted again, and so are the dead letters, which may fit now.

Three commits, of which none loses a record: rows that no longer fit become dead letters; the table gets the rows that
fit, of both; the dead letters that fit are removed. A death in between leaves records in both places; the same again
finds them and fixes it. The payload of a row is made of its columns again, so the stream need not hold it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from bridges.spark.columns.column import DEAD_LETTER, PROVENANCE, Column
from bridges.spark.columns.types import ARROW_TYPES, ColumnType, NotAType, parse_type
from bridges.spark.columns.value_sums import Sums, add_sums, packed
from bridges.spark.driver.batch import Outcome, TableSpec, TableWriter, columns_after, discard
from bridges.spark.driver.evolution import held
from bridges.spark.tables.contract import (
    RETYPED,
    Change,
    Details,
    LakeTable,
    ShardRange,
    verify_files,
)
from bridges.spark.tables.files import copied
from bridges.spark.tasks.task import ShardCount
from bridges.spark.tasks.values import plain
from broker.core.errors import Invalid, Problem
from broker.core.kinds import counted

# Rows of a table up to which a column without a schema gets the type that most of its values have.
_SAMPLE_ROWS: Final = 1000
_SOURCE_NAMES = {"_shard": "shard", "_offset": "offset", "_published_at": "ts", "_topic": "topic"}
_SOURCE_NAMES |= {"_client_id": "client_id", "_rule": "rule"}
"""The source's names of the columns of provenance."""
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RetypeReport:
    """Result of a retype."""

    table: str
    column: str
    type: str
    rows_before: int
    dead_letters_before: int
    rows_after: int
    dead_letters_after: int
    version: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class EarlyTypes:
    """Retypes columns of a young table whose first values had another type than most of those that follow."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self._declared = {column.key for column in writer.spec.columns}
        self._misfits: dict[str, Counter[str]] = {}
        """By key, of how many values that its column did not take since the start have which type."""

    def follow(self, outcome: Outcome) -> bool:
        """After a batch: whether a column has another type since, so dead letters became rows, or rows dead letters."""
        for key, votes in outcome.misfits.items():
            self._misfits.setdefault(key, Counter()).update(votes)
        table = self._writer.table
        spec = self._writer.spec
        has_types = spec.rule is not None or spec.upsert is not None or spec.members is not None
        if not outcome.ranges or self._misfits.keys() <= self._declared or has_types:
            return False
        rows = table.rows()
        if rows - outcome.written >= _SAMPLE_ROWS:
            self._misfits = {}
            return False
        retyped = False
        for column in table.columns():
            [(kind, count)] = self._misfits.get(column.key, Counter()).most_common(1) or [("", 0)]
            if count > rows and column.key not in self._declared:
                retype(self._writer, column.name, kind)
                del self._misfits[column.key]
                retyped = True
        return retyped


def check_retype(spec: TableSpec, columns: Sequence[Column], column: str, kind: str) -> None:
    """Refuse what cannot be.

    Raises:
        Invalid: the table has no such column, there is no such type, or the columns are not the table's to change.
    """
    problems = []
    names = [column.name for column in columns]
    if spec.upsert is not None and column in spec.upsert.key:
        text = f"{column!r} is part of the table's key. Try: another 'path', which is filled from the stream again."
        problems.append(Problem(text, "/column"))
    elif spec.members is not None:
        text = "a table with 'tables' keeps its types. Try: another 'path', which is filled from the stream again."
        problems.append(Problem(text, "/column"))
    elif column in {field.column for field in spec.layout(columns).partition}:
        text = f"the table is partitioned by {column!r}. Try: another 'path', which is filled from the stream again."
        problems.append(Problem(text, "/column"))
    elif spec.rule is not None:
        if kind not in {
            field.wanted
            for field in held(columns, spec.columns, spec.format)
            if field.column == column
        }:
            text = f"rule {spec.rule.name!r} gives its types. Try: CAST in the rule, then what the table says is held."
            problems.append(Problem(text, "/column"))
    elif spec.kind == "topics":
        text = "the columns of a table of messages are fixed. Try: a table with a 'rule' that selects typed columns."
        problems.append(Problem(text, "/column"))
    elif column not in names:
        problems.append(
            Problem(f"expected one of: {', '.join(names) or 'none'}, got {column!r}", "/column")
        )
    try:
        parse_type(kind)
    except NotAType as error:
        problems.append(Problem(str(error), "/type"))
    if problems:
        raise Invalid(f"lake table {spec.name!r} cannot be retyped", problems)


def retype(writer: TableWriter, column: str, kind: str) -> RetypeReport:
    """Convert everything again with another type of a column.

    Raises:
        CommitConflict: others change the table all the time.
    """
    return writer.until_committed(partial(_retyped, writer, column, kind))


def _retyped(writer: TableWriter, name: str, kind: str) -> RetypeReport:
    table = writer.table
    dead = writer.dead_letters
    before = table.rows(), dead.rows() if dead is not None else 0
    ends = {shard: table.next(shard) or 0 for shard in writer.spec.shards}
    wanted = [
        replace(column, type=kind) if column.name == name else column for column in table.columns()
    ]
    columns = table.columns_after_rewrite(wanted)
    plan = replace(writer.plan(), columns=columns, floors={}, dead_floors={})
    rows = writer.reconverter(plan)
    letters = writer.reconverter(plan)
    waiting = _concatenated(
        [_places(batch) for batch in dead.batches()] if dead is not None else []
    )
    doubled = []
    for batch in table.batches():
        places = _places(batch)
        doubled.append(places[np.isin(places, waiting)])
        rows.reconvert(_records(batch, _payloads(batch, table.columns())))
    seen = _concatenated(doubled)
    left = Counter[int]()
    settled = writer.settled_letters()
    # The letters of a rule are messages, which it reads again in a replay.
    for batch in dead.batches() if dead is not None and writer.spec.rule is None else ():
        places = _places(batch)
        fresh = np.zeros(len(places), bool)
        fresh[np.unique(places, return_index=True)[1]] = True
        fresh &= ~np.isin(places, seen) & (places < _limits(batch, ends))
        seen = _concatenated([seen, places])
        stays = fresh & (places < _limits(batch, settled))
        letters.leave(batch.filter(pa.array(stays)))
        left.update(batch.column("_shard").filter(pa.array(stays)).to_pylist())
        batch = batch.filter(pa.array(fresh & ~stays))
        letters.retry(_records(batch, batch.column("payload").cast(pa.binary())))
    kept = rows.finish()
    letter_files = letters.finish()
    if writer.spec.rule is not None:
        left.update((waiting[waiting < _ends_of(waiting, ends)] >> 48).tolist())
    for count in (*kept.shards, *letter_files.shards):
        left[count.shard] += count.dead
    if kept.dead_files and writer.spec.rule is not None:
        discard(plan, [kept])
        lost = sum(file.rows for file in kept.dead_files)
        hint = "Try: another 'path' for the table, which is filled from the stream."
        text = f"{counted(lost, 'row')} cannot become {kind}. {hint}"
        raise Invalid(
            f"column {name!r} of lake table {writer.spec.name!r} stays as it is",
            [Problem(text, "/type")],
        )
    verify_files(plan.table, [*kept.files, *letter_files.files], kept.host)
    details = Details(writer.job, (), kind=RETYPED)
    if kept.dead_files:
        dead = writer.dead_letters = writer.open_dead_letters(create=True)
        assert dead is not None
        dead.commit(Change(details, kept.dead_files))
    rewritten = (
        ()
        if writer.spec.upsert is not None
        else tuple(_rewritten(table, ends, [*kept.shards, *letter_files.shards]))
    )
    converted = replace(details, rewritten=rewritten)
    version = writer.retyped(
        columns_after(columns, [kept, letter_files]), [kept, letter_files], converted, left
    )
    if dead is not None and writer.spec.rule is None:
        copies = [copied(plan.dead, file, plan.dead) for file in kept.dead_files]
        # Letters of a batch that is not in the table yet are left out: it comes again, and is converted as it is now.
        ranges = [
            ShardRange(shard, end, end, 0, 0, 0)
            for shard, end in ends.items()
            if dead.next(shard) is not None
        ]
        moved = replace(details, ranges=tuple(ranges))
        dead.commit(
            Change(
                moved, [*copies, *letter_files.dead_files], columns=DEAD_LETTER, removes_all=True
            )
        )
    after = table.rows(), dead.rows() if dead is not None else 0
    return RetypeReport(writer.spec.name, name, kind, *before, *after, version)


def _rewritten(
    table: LakeTable, ends: Mapping[int, int], counts: Sequence[ShardCount]
) -> Iterator[ShardRange]:
    """The sums that all rows have since."""
    for shard, end in ends.items():
        mine = [count for count in counts if count.shard == shard]
        sums = Sums()
        for span in mine:
            add_sums(sums, span.sums)
        first = table.first(shard)
        if first is not None:
            rows = sum(part.rows for part in mine)
            yield ShardRange(shard, first, end, 0, 0, 0, rows=rows, sums=packed(sums, first, end))


def _places(batch: pa.RecordBatch) -> Any:
    """Shard and offset of each row as one number."""
    return (batch.column("_shard").to_numpy().astype(np.int64) << 48) | batch.column(
        "_offset"
    ).to_numpy()


def _limits(batch: pa.RecordBatch, ends: Mapping[int, int]) -> Any:
    """For each row the place at which its shard ends."""
    return _ends_of(_places(batch), ends)


def _ends_of(places: Any, ends: Mapping[int, int]) -> Any:
    return np.array(
        [(shard << 48) | ends.get(shard, 0) for shard in (places >> 48).tolist()], np.int64
    )


def _concatenated(places: Sequence[Any]) -> Any:
    return np.concatenate([np.empty(0, np.int64), *places])


def _records(batch: pa.RecordBatch, payloads: pa.Array) -> pa.RecordBatch:
    """Rows of a table, or of its dead letters, as the source gives records."""
    types = {column.name: ARROW_TYPES[column.type] for column in PROVENANCE}
    arrays = {
        source: batch.column(name).cast(types[name]) for name, source in _SOURCE_NAMES.items()
    }
    return pa.RecordBatch.from_pydict({**arrays, "payload": payloads})


def _payloads(batch: pa.RecordBatch, columns: Sequence[Column]) -> pa.Array:
    """The rows as JSON again."""
    keys = [column.key for column in columns]
    values = [_plain(batch.column(column.name), column.parsed) for column in columns]
    rows = zip(*values, strict=True) if values else [()] * batch.num_rows
    texts = [
        _encode({key: entry for key, entry in zip(keys, row, strict=True) if entry is not None})
        for row in rows
    ]
    return pa.array(texts, pa.binary())


def _plain(array: pa.Array, kind: ColumnType) -> list[Any]:
    """The values as the JSON that they came from."""
    return [plain(kind, entry) for entry in array.to_pylist(maps_as_pydicts="strict")]
