"""Changes that a swap would make: the rows of a table and of its shadow compared, record by record, by tasks of Spark.

Rows are the same one where shard, offset and, for a record with several rows, their number are. Columns that say where
a row is from are not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.column import ITEM, PROVENANCE, Column, arrow_schema
from bridges.spark.columns.place import Place
from bridges.spark.driver.batch import TableSpec
from bridges.spark.driver.progress import RangeProgress
from bridges.spark.driver.shadow import Shadow
from bridges.spark.driver.spark_errors import sentence_of
from bridges.spark.tables.contract import LakeTable, Range, TableRefused
from bridges.spark.tables.files import batches_of
from bridges.spark.tables.formats import open_dead_letters, open_table
from bridges.spark.tables.replacing import inside, pieces
from bridges.spark.tasks.mapping import in_workers, work

# Rows of a report that are shown.
SAMPLES: Final = 20
# Records that a task compares.
_RECORDS: Final = 250_000
# Tasks between two reports of progress.
_WAVE: Final = 16
# Characters of a value that are shown.
_TEXT: Final = 200
_OWN: Final = frozenset(column.name for column in PROVENANCE)


@dataclass(frozen=True, slots=True)
class Side:
    """The files of one of the tables that may have rows of a piece."""

    place: Place
    columns: tuple[Column, ...]
    files: tuple[tuple[str, Mapping[str, Any]], ...]
    """Paths, and the values of columns that files lack."""

    def rows(self, ranges: Sequence[Range]) -> pa.Table:
        # Rows from before tables had item numbers are the same rows.
        schema = arrow_schema(
            (*PROVENANCE, *(column for column in self.columns if column.key != ITEM.key))
        )
        paths = [path for path, _ in self.files]
        constants = {path: values for path, values in self.files if values}
        kept = [
            batch.filter(pa.array(inside(batch, ranges)))
            for batch in batches_of(self.place, paths, schema, constants)
        ]
        return pa.Table.from_batches([batch for batch in kept if batch.num_rows], schema)


@dataclass(slots=True)
class Diff:
    """Rows that are the same, changed, or in one of the tables only; by column how often it changed; and some rows."""

    same: int = 0
    changed: int = 0
    only_table: int = 0
    only_shadow: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None

    def add(self, other: Diff) -> None:
        """Take what another piece has."""
        for name in ("same", "changed", "only_table", "only_shadow"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.columns = dict(Counter(self.columns) + Counter(other.columns))
        self.samples = (self.samples + other.samples)[:SAMPLES]

    def as_dict(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        del built["failure"]
        return built


Piece = tuple[Side | None, Side | None, tuple[Range, ...]]


def compare(session: Any, spec: TableSpec, progress: RangeProgress) -> dict[str, Any]:
    """Compare a table and its shadow, in tasks; the report."""
    shadow = Shadow.open(spec)
    left = {(part.shard, part.end): part.start for part in shadow.left()}
    ends = ((part, left.get((part.shard, part.end), part.end)) for part in shadow.ranges)
    ranges = [replace(entry, end=end) for entry, end in ends if end > entry.start]
    dead = open_dead_letters(spec.format, spec.place, spec.binding, create=False)
    pairs = (open_table(spec.format, spec.place, spec.binding), shadow.rows), (dead, shadow.dead)
    sides = [(_sides_of(current), _sides_of(other)) for current, other in pairs]
    diffs = (Diff(), Diff())
    for wave in progress.over(ranges, _WAVE * _RECORDS):
        for diff, (table_side, other) in zip(diffs, sides, strict=True):
            work_of_wave = [
                (table_side(piece), other(piece), tuple(piece)) for piece in pieces(wave, _RECORDS)
            ]
            for text in in_workers(
                session, work("bridges.spark.driver.diff", "compared", None), work_of_wave
            ):
                part_diff = msgspec.json.decode(text, type=Diff)
                if part_diff.failure is not None:
                    raise TableRefused(sentence_of(part_diff.failure, spec.place.url))
                diff.add(part_diff)
    rows, letters = (diff.as_dict() for diff in diffs)
    about = {
        "table": spec.name,
        "replay": shadow.replay,
        "records": progress.done,
        "is_complete": not left,
    }
    return {**about, "rows": rows, "dead_letters": letters}


def _sides_of(table: LakeTable | None) -> Callable[[Sequence[Range]], Side | None]:
    """The plan for tasks that read the rows of ranges of a table."""
    if table is None:
        return lambda _: None
    files = table.files()
    place = table.place
    columns = table.columns()

    def side(ranges: Sequence[Range]) -> Side:
        touched = table.unmasked([file for file in files if not file.is_apart(ranges)])
        return Side(
            place.directory,
            columns,
            tuple((place.path_of(file.path), file.constants) for file in touched),
        )

    return side


def compared(_: None, piece: Piece) -> str:
    """The work of a task: its ``Diff`` as text."""
    table, shadow, ranges = piece
    empty = arrow_schema(PROVENANCE).empty_table()
    before, after = (empty if side is None else side.rows(ranges) for side in (table, shadow))
    return msgspec.json.encode(_compared(before, after)).decode()


def _compared(before: pa.Table, after: pa.Table) -> Diff:
    before = _ordered(before)
    after = _ordered(after)
    keys, other = _keys(before, after)
    _, mine, theirs = np.intersect1d(keys, other, assume_unique=True, return_indices=True)
    gone = np.setdiff1d(np.arange(len(keys)), mine)
    fresh = np.setdiff1d(np.arange(len(other)), theirs)
    left = before.take(pa.array(mine))
    right = after.take(pa.array(theirs))
    names = [
        name
        for name in dict.fromkeys((*before.column_names, *after.column_names))
        if name not in _OWN
    ]
    differing = {name: _differ(_column(left, name), _column(right, name)) for name in names}
    changed = np.logical_or.reduce([np.zeros(len(mine), bool), *differing.values()])
    diff = Diff(int((~changed).sum()), int(changed.sum()), len(gone), len(fresh))
    diff.columns = {name: int(mask.sum()) for name, mask in differing.items() if mask.any()}
    for at in np.flatnonzero(changed)[:SAMPLES].tolist():
        columns = [name for name in names if differing[name][at]]
        diff.samples.append(_sample("changed", left, right, at, at, columns))
    for at in gone[:SAMPLES].tolist():
        diff.samples.append(_sample("only_table", before, None, at, at, names))
    for at in fresh[:SAMPLES].tolist():
        diff.samples.append(_sample("only_shadow", None, after, at, at, names))
    diff.samples = diff.samples[:SAMPLES]
    return diff


def _ordered(rows: pa.Table) -> pa.Table:
    """By place; the rows of one record by their values, as the order in files is the layout's."""
    rows = rows.combine_chunks().sort_by([("_shard", "ascending"), ("_offset", "ascending")])
    places = _places(rows)
    _, starts, counts = np.unique(places, return_index=True, return_counts=True)
    if not (counts > 1).any():
        return rows
    order = np.arange(len(places))
    names = sorted(set(rows.column_names) - _OWN)
    for start, count in zip(starts[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True):
        texts = [
            repr([row[name] for name in names]) for row in rows.slice(start, count).to_pylist()
        ]
        order[start : start + count] = start + np.array(sorted(range(count), key=texts.__getitem__))
    return rows.take(pa.array(order))


def _places(rows: pa.Table) -> Any:
    return (rows.column("_shard").to_numpy().astype(np.int64) << 48) | rows.column(
        "_offset"
    ).to_numpy()


def _keys(before: pa.Table, after: pa.Table) -> tuple[Any, Any]:
    """A number for each row that the same row of the other table has too."""
    places = [_places(table_side) for table_side in (before, after)]
    places_of_both = np.unique(np.concatenate(places))
    indices = []
    for entry in places:
        _, starts, counts = np.unique(entry, return_index=True, return_counts=True)
        numbers = np.arange(len(entry)) - np.repeat(starts, counts)
        indices.append(np.searchsorted(places_of_both, entry) * (1 << 24) + numbers)
    return indices[0], indices[1]


def _column(rows: pa.Table, name: str) -> pa.ChunkedArray:
    return (
        rows.column(name)
        if name in rows.column_names
        else pa.chunked_array([pa.nulls(rows.num_rows)])
    )


def _differ(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Any:
    """Mask of the rows in which two columns have different values; null is one, and so is NaN."""
    if left.type == right.type and not pa.types.is_nested(left.type):
        differs = pc.fill_null(pc.not_equal(left, right), False).to_numpy()
        differs |= pc.is_null(left).to_numpy() != pc.is_null(right).to_numpy()
        if pa.types.is_floating(left.type):
            differs &= ~(pc.fill_null(pc.and_(pc.is_nan(left), pc.is_nan(right)), False).to_numpy())
        return differs
    return np.array(
        [a != b for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)], bool
    )


def _sample(
    kind: str,
    before: pa.Table | None,
    after: pa.Table | None,
    mine: int,
    theirs: int,
    columns: Sequence[str],
) -> dict[str, Any]:
    rows = [
        None if entry is None else entry.slice(at, 1).to_pylist()[0]
        for entry, at in ((before, mine), (after, theirs))
    ]
    sample: dict[str, Any] = next(row for row in rows if row is not None)
    shown = [
        None if row is None else {name: _text(row.get(name)) for name in columns} for row in rows
    ]
    return {
        "kind": kind,
        "shard": sample["_shard"],
        "offset": sample["_offset"],
        "table": shown[0],
        "shadow": shown[1],
    }


def _text(value: Any) -> str | None:
    if value is None:
        return None
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= _TEXT else text[:_TEXT] + "…"
