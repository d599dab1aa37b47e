"""Rows as JSON text become typed columns.

Two ways with one meaning: all payloads at once through Arrow's JSON reader (1.4 to 2.0 M rows/s of 100 B on one core),
and row by row through msgspec (0.3 M), which is taken for a batch in which something does not fit, to find what and
where. A row that does not fit is left out of the columns, with a sentence that says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bridges.spark.columns import ARROW_TYPES, Column

_EXACT = 2**53
"""Whole numbers up to here are exact as double."""
_FAST_TYPES = frozenset({"boolean", "long", "double", "string"})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN = 60
_WORDS: dict[type, str] = {dict: "an object", list: "an array", str: "the text"}
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_decode_time = msgspec.json.Decoder(datetime).decode


class Misfit(ValueError):
    """A value that its column does not take; the text says what was expected and what was found. ``key`` is the
    column's and ``type`` the one that would take it, where there is a column."""

    def __init__(self, text: str, key: str | None = None, type: str = "") -> None:
        super().__init__(text)
        self.key, self.type = key, type


@dataclass(slots=True)
class Discovery:
    """A key that the table has no column for: the type that most of its values have, the first row (of the batch) with
    one, and how many values have which type."""

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


def convert(payloads: pa.BinaryArray, columns: Sequence[Column], pending: Sequence[str] = ()) -> Converted:
    """Columns of a batch of rows. ``pending`` are keys known to come, of which only nulls were seen so far."""
    fast = _convert_at_once(payloads, columns, pending)
    return fast if fast is not None else _convert_by_row(payloads, columns)


def _convert_at_once(payloads: pa.BinaryArray, columns: Sequence[Column], pending: Sequence[str]) -> Converted | None:
    """Everything in one call, or None when a row might not fit (or a type is beyond the reader)."""
    count = len(payloads)
    if count == 0 or not all(column.type in _FAST_TYPES for column in columns):
        return None
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), payloads), b"\n")[0].as_buffer()
    if np.count_nonzero(np.frombuffer(lines, np.uint8) == 0x0A) != count - 1:
        return None
    fields = [pa.field(column.key, ARROW_TYPES[column.type]) for column in columns]
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
    except pa.ArrowException:
        return None
    if table.num_rows != count:
        return None
    arrays = {column.key: table.column(column.key).combine_chunks() for column in columns}
    if any(column.type == "double" and _may_be_inexact(arrays[column.key]) for column in columns):
        return None
    return Converted(arrays)


def _may_be_inexact(doubles: pa.Array) -> bool:
    largest = pc.max(pc.abs(doubles)).as_py()
    return largest is not None and largest > _EXACT


def _convert_by_row(payloads: pa.BinaryArray, columns: Sequence[Column]) -> Converted:
    known = {column.key: (column, _TAKERS[column.type]) for column in columns}
    values: dict[str, list[Any]] = {column.key: [] for column in columns}
    result = Converted({})
    found: dict[str, _Found] = {}
    kept = 0
    rows = [_object(payload) for payload in payloads.to_pylist()]
    votes = _votes(rows, known)
    for index, row in enumerate(rows):
        try:
            if isinstance(row, Misfit):
                raise row
            taken = {key: _take(key, row.get(key), take) for key, (_, take) in known.items()}
            fresh = _take_unknown(row, known, votes, result.null_keys)
        except Misfit as misfit:
            result.errors[index] = str(misfit)
            if misfit.key is not None:
                result.misfits.setdefault(misfit.key, Counter())[misfit.type] += 1
            continue
        for key, value in taken.items():
            values[key].append(value)
        for key, (kind, value) in fresh.items():
            if key not in found:
                found[key] = _Found(kind, index, {})
            found[key].values[kept] = value
        kept += 1
    result.arrays = {key: pa.array(values[key], ARROW_TYPES[column.type]) for key, (column, _) in known.items()}
    for key, what in found.items():
        spread = [what.values.get(at) for at in range(kept)]
        result.arrays[key] = pa.array(spread, ARROW_TYPES[what.type])
        result.discovered[key] = Discovery(what.type, what.row, dict(votes[key]))
    result.null_keys -= set(found)
    return result


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
        return Misfit(f"the row is {_describe(row)}, not an object with a member a column")
    return row


def _votes(rows: Sequence[dict[str, Any] | Misfit], known: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """How many values of each key without a column have which type, the type of the first one first."""
    votes: dict[str, Counter[str]] = {}
    for row in rows:
        if isinstance(row, dict):
            for key, value in row.items():
                if value is not None and key not in known:
                    votes.setdefault(key, Counter())[_type_of(value)] += 1
    return votes


def _take(key: str, value: Any, take: Callable[[Any], Any]) -> Any:
    if value is None:
        return None
    try:
        return take(value)
    except Misfit as misfit:
        text = f"column {key!r} takes {misfit}, the row has {_describe(value)}"
        raise Misfit(text, key, _type_of(value)) from None


def _take_unknown(
    row: Mapping[str, Any], known: Mapping[str, Any], votes: Mapping[str, Counter[str]], null_keys: set[str]
) -> dict[str, tuple[str, Any]]:
    """Type and value of each key that has no column; it gets the type of most of its values in the batch."""
    fresh = {}
    for key, value in row.items():
        if key in known:
            continue
        if value is None:
            null_keys.add(key)
            continue
        kind = votes[key].most_common(1)[0][0]
        fresh[key] = (kind, _take(key, value, _TAKERS[kind]))
    return fresh


def _type_of(value: Any) -> str:
    """The type of a column made for a value. Any number makes a double: 21 may be followed by 21.5."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "double"
    return "string" if isinstance(value, str) else "json"


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise Misfit("true or false")


def _long(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, float) and value % 1):
        raise Misfit("a whole number")
    if not -(2**63) <= value < 2**63:
        raise Misfit("a whole number of 64 bits")
    return int(value)


def _double(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Misfit("a number")
    if isinstance(value, int) and abs(value) > _EXACT:
        raise Misfit(f"a number, exact only up to {_EXACT}")
    return float(value)


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise Misfit("a string")


def _json(value: Any) -> str:
    return _encode(value).decode()


def _binary(value: Any) -> bytes:
    return _string(value).encode()


def _timestamp(value: Any) -> datetime:
    """RFC 3339 text, or milliseconds since 1970 as the rule language counts them."""
    if isinstance(value, str):
        try:
            moment = _decode_time(_encode(value))
        except ValueError:
            raise Misfit("a time as RFC 3339 text or in milliseconds") from None
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return _EPOCH + timedelta(milliseconds=value)
        except OverflowError:
            raise Misfit("a time between the years 1 and 9999") from None
    raise Misfit("a time as RFC 3339 text or in milliseconds")


_TAKERS: dict[str, Callable[[Any], Any]] = {
    "boolean": _boolean,
    "long": _long,
    "double": _double,
    "string": _string,
    "json": _json,
    "binary": _binary,
    "timestamp": _timestamp,
}


def _describe(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    kind = _WORDS.get(type(value), "the number")
    text = _encode(value).decode()
    return f"{kind} {text if len(text) <= _SHOWN else text[:_SHOWN] + '...'}"
