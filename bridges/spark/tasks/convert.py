"""Rows as JSON text become typed columns.

Two ways with one meaning: all payloads at once through Arrow's JSON reader (1.4 to 2.0 M rows/s of 100 B on one core),
and row by row through msgspec (0.3 M), which is taken for a batch in which something does not fit, to find what and
where. A row that does not fit is left out of the columns, with a sentence that says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bridges.spark.columns.column import Column
from bridges.spark.columns.types import ARROW_TYPES, MOST_COLUMNS, ColumnType
from bridges.spark.tasks.fast_values import NotAtOnce, finished, has_forms, reading_type
from bridges.spark.tasks.values import Misfit, NoPlace, described, grown, sentence, taker, type_of

_decode = msgspec.json.Decoder().decode


@dataclass(slots=True)
class Discovery:
    """A key that the table has no column for: the type that most of its values have, the first row (of the batch) with
    one, and how many values have which type. Or one whose column gets further members: its type with them."""

    type: str
    row: int
    votes: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Converted:
    """``arrays`` by column key, of the rows that fit; ``errors`` says for each other row (by its index) why."""

    arrays: dict[str, pa.Array]
    errors: dict[int, str] = field(default_factory=dict)
    discovered: dict[str, Discovery] = field(default_factory=dict)
    null_keys: set[str] = field(default_factory=set)
    """Keys without a column that had null and nothing else."""
    misfits: dict[str, Counter[str]] = field(default_factory=dict)
    """By key, of how many rows that did not fit its column the value has which type."""


def convert(
    payloads: pa.BinaryArray, columns: Sequence[Column], pending: Sequence[str] = ()
) -> Converted:
    """Columns of a batch of rows. ``pending`` are keys known to come, of which only nulls were seen so far."""
    fast = _convert_at_once(payloads, columns, pending)
    return fast if fast is not None else _convert_by_row(payloads, columns)


def _convert_at_once(
    payloads: pa.BinaryArray, columns: Sequence[Column], pending: Sequence[str]
) -> Converted | None:
    """Everything in one call, or None when a row might not fit (or a type is beyond the reader)."""
    count = len(payloads)
    if count == 0:
        return None
    kinds = {column.key: column.parsed for column in columns}
    sample = _object(payloads[0].as_py()) if any(map(has_forms, kinds.values())) else {}
    if isinstance(sample, Misfit):
        return None
    try:
        fields = [pa.field(key, reading_type(kind, sample.get(key))) for key, kind in kinds.items()]
    except NotAtOnce:
        return None
    lines = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), payloads), b"\n"
    )[0].as_buffer()
    if np.count_nonzero(np.frombuffer(lines, np.uint8) == 0x0A) != count - 1:
        return None
    fields += [pa.field(key, pa.null()) for key in pending]
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(lines),
            # One block: a row that is cut by a block's end would be refused.
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(fields), unexpected_field_behavior="error"
            ),
        )
        if table.num_rows != count:
            return None
        return Converted(
            {key: finished(table.column(key).combine_chunks(), kind) for key, kind in kinds.items()}
        )
    except (pa.ArrowException, NotAtOnce):
        return None


def _convert_by_row(payloads: pa.BinaryArray, columns: Sequence[Column]) -> Converted:
    rows = [_object(payload) for payload in payloads.to_pylist()]
    objects = [row for row in rows if isinstance(row, dict)]
    kinds = {column.key: column.parsed for column in columns}
    room = MOST_COLUMNS - sum(kind.width for kind in kinds.values())
    result = Converted({})
    for key, kind in kinds.items():
        if kind.name in ("struct", "array"):
            kinds[key] = grown(
                kind, [row[key] for row in objects if row.get(key) is not None], room
            )
            room -= kinds[key].width - kind.width
            if kinds[key] is not kind:
                result.discovered[key] = Discovery(
                    kinds[key].text, next(i for i, row in enumerate(rows) if _has(row, key))
                )
    takers = {key: taker(kind) for key, kind in kinds.items()}
    values: dict[str, list[Any]] = {key: [] for key in takers}
    kinds_of_keys: dict[str, _Found] = {}
    kept = 0
    votes = _votes(objects, takers, room)
    for index, row in enumerate(rows):
        try:
            if isinstance(row, Misfit):
                raise row
            taken = {key: _take(key, row.get(key), take) for key, take in takers.items()}
            fresh = _take_unknown(row, takers, votes, result.null_keys)
        except _Refused as refused:
            result.errors[index] = str(refused)
            result.misfits.setdefault(refused.key, Counter())[refused.type] += 1
            continue
        except Misfit as misfit:
            result.errors[index] = str(misfit)
            continue
        for key, value in taken.items():
            values[key].append(value)
        for key, (kind_name, value) in fresh.items():
            if key not in kinds_of_keys:
                kinds_of_keys[key] = _Found(kind_name, index, {})
            kinds_of_keys[key].values[kept] = value
        kept += 1
    result.arrays = {key: pa.array(values[key], kind.arrow) for key, kind in kinds.items()}
    for key, key_values in kinds_of_keys.items():
        spread = [key_values.values.get(at) for at in range(kept)]
        result.arrays[key] = pa.array(spread, ARROW_TYPES[key_values.type])
        result.discovered[key] = Discovery(key_values.type, key_values.row, dict(votes[key]))
    result.null_keys -= set(kinds_of_keys)
    return result


def _has(row: dict[str, Any] | Misfit, key: str) -> bool:
    return isinstance(row, dict) and row.get(key) is not None


class _Refused(ValueError):
    """A value of the column ``key`` that does not fit; ``type`` is the one that would take it."""

    def __init__(self, text: str, key: str, type: str) -> None:
        super().__init__(text)
        self.key = key
        self.type = type


@dataclass(slots=True)
class _Found:
    type: str
    row: int
    values: dict[int, Any]
    """By the place among the rows kept."""


def _object(payload: bytes | None) -> dict[str, Any] | Misfit:
    try:
        row = _decode(payload or b"")
    except (ValueError, RecursionError) as error:
        return Misfit(f"the row is not JSON: {error or 'it nests too deep'}")
    if not isinstance(row, dict):
        return Misfit(f"the row is {described(row)}, not an object with a member a column")
    return row


def _votes(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], room: int
) -> dict[str, Counter[str]]:
    """Votes for the types of keys without a column, the type of a key's first value first; of as many keys as
    there is room for."""
    votes: dict[str, Counter[str]] = {}
    for row in rows:
        for key, value in row.items():
            if value is not None and key not in columns and (key in votes or len(votes) < room):
                votes.setdefault(key, Counter())[type_of(value)] += 1
    return votes


def _take(key: str, value: Any, take: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    try:
        return take(value)
    except Misfit as misfit:
        raise _Refused(sentence(key, value, misfit), key, type_of(value)) from None


def _take_unknown(
    row: Mapping[str, Any],
    columns: Mapping[str, Any],
    votes: Mapping[str, Counter[str]],
    null_keys: set[str],
) -> dict[str, tuple[str, Any]]:
    """Type and value of each key that has no column; it gets the type of most of its values in the batch."""
    fresh = {}
    for key, value in row.items():
        if key in columns:
            continue
        if value is None:
            null_keys.add(key)
            continue
        if key not in votes:
            raise _Refused(sentence(key, value, NoPlace("")), key, type_of(value))
        kind = votes[key].most_common(1)[0][0]
        fresh[key] = (kind, _take(key, value, taker(ColumnType(kind))))
    return fresh
