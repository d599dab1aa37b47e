"""Layout of a table's rows in its files: partitions, and the order of rows within a file.

Used on the driver and in tasks, so it imports nothing of the broker. Partition values are those of Iceberg's
specification, https://iceberg.apache.org/spec/#partition-transforms; times are taken in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

# Maximum partitions of a micro-batch: each is a file at least.
MOST_PARTITIONS: Final = 1000
_ENTRY = re.compile(r"\s*(?:(\w+)\(\s*(?:(\d+)\s*,)?\s*([^(),]+?)\s*\)|([^(),]+?))\s*")
_TIMES = frozenset({"timestamp", "date"})
_NUMBERS = frozenset({"integer", "long"})
_TEXTS = frozenset({"string", "enum"})
_PLAIN = _TEXTS | _NUMBERS | {"boolean", "date"}
# The column types that a transform takes.
_TAKES: Final[Mapping[str, frozenset[str]]] = {
    "identity": _PLAIN,
    "year": _TIMES,
    "month": _TIMES,
    "day": _TIMES,
    "hour": frozenset({"timestamp"}),
    "bucket": _NUMBERS | _TIMES | _TEXTS,
    "truncate": _NUMBERS | _TEXTS,
}
_SIZED: Final = {"bucket": (2, 10_000), "truncate": (1, 1_000_000)}
_OF_FORMAT: Final = {"delta": ("identity", "day"), "iceberg": tuple(_TAKES)}
_SUFFIX: Final = {"truncate": "trunc"}
_EPOCH_YEAR: Final = 1970


class LayoutError(ValueError):
    """A table cannot be laid out so; the text is a sentence. ``member`` is that of the table's spec."""

    def __init__(self, text: str, member: str = "partition_by") -> None:
        super().__init__(text)
        self.member = member


@dataclass(frozen=True, slots=True)
class PartitionField:
    """One value that all rows of a file share: a transform of a column of a type; ``size`` is the number of buckets or
    the width."""

    transform: str
    column: str
    type: str
    size: int | None = None

    @property
    def name(self) -> str:
        """The partition's name in the table, as Iceberg would call it."""
        if self.transform == "identity":
            return self.column
        return f"{self.column}_{_SUFFIX.get(self.transform, self.transform)}"

    @property
    def text(self) -> str:
        """The form in a table's ``partition_by``."""
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({'' if self.size is None else f'{self.size}, '}{self.column})"

    def values(self, column: pa.Array) -> pa.Array:
        """The partition value of each row: years, months, days or hours since 1970, a bucket, or a value."""
        if self.transform == "identity":
            return column
        if self.size is not None:
            encoded = column.dictionary_encode()
            transformed = partial(_bucket if self.transform == "bucket" else _truncated, self.size)
            if pa.types.is_temporal(column.type):
                encoded = column.cast(
                    pa.int32() if pa.types.is_date32(column.type) else pa.int64()
                ).dictionary_encode()
            unique = [
                None if value is None else transformed(value)
                for value in encoded.dictionary.to_pylist()
            ]
            kind = pa.int32() if self.transform == "bucket" else column.type
            return pa.array(unique, kind).take(encoded.indices)
        return _PERIODS[self.transform](column)


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitions of a table, and the columns that rows of a file are sorted by, each with whether it descends."""

    format: str = "delta"
    partition: tuple[PartitionField, ...] = ()
    sort: tuple[tuple[str, bool], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.partition or self.sort)

    @classmethod
    def parse(
        cls,
        table_format: str,
        partition_by: Sequence[str],
        sort_by: Sequence[str],
        types: Mapping[str, str],
    ) -> Layout:
        """From a table's spec and the types of its columns by name.

        Raises:
            LayoutError: a transform or a column is not one, or the format does not have it.
        """
        fields = tuple(_field(text, table_format, types) for text in partition_by)
        if len({field.name for field in fields}) < len(fields):
            raise LayoutError(f"expected each partition once, got {', '.join(partition_by)}")
        if taken := next(
            (field for field in fields if field.transform != "identity" and field.name in types),
            None,
        ):
            raise LayoutError(
                f"{taken.text} makes a column {taken.name!r}, which the table has already"
            )
        timed = [field.column for field in fields if field.transform in _PERIODS]
        if twice := next((name for name in timed if timed.count(name) > 1), None):
            raise LayoutError(
                f"expected one of year, month, day and hour of {twice!r}, got {', '.join(partition_by)}"
            )
        order = [_order(text, types) for text in sort_by]
        if len({name for name, _ in order}) < len(order):
            raise LayoutError(f"expected each column once, got {', '.join(sort_by)}", "sort_by")
        return cls(table_format, fields, tuple(order))

    @property
    def texts(self) -> tuple[str, ...]:
        """The partitions as in a table's ``partition_by``."""
        return tuple(field.text for field in self.partition)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of partitions in the table that are not a column's name."""
        return tuple(field.name for field in self.partition if field.transform != "identity")

    def as_read(self, columns: Mapping[str, pa.Array]) -> Mapping[str, pa.Array]:
        """Columns by name as readers of the table get them: Delta has no empty text in a column that it partitions
        by."""
        names = {
            field.column for field in self.partition if field.transform == "identity"
        } & columns.keys()
        texts = [name for name in names if pa.types.is_string(columns[name].type)]
        if self.format != "delta" or not texts:
            return columns
        nulls = {
            name: pc.if_else(pc.equal(columns[name], ""), None, columns[name]) for name in texts
        }
        return {**columns, **nulls}

    @property
    def sort_texts(self) -> tuple[str, ...]:
        """The order as in a table's ``sort_by``."""
        return tuple(f"{name} desc" if descends else name for name, descends in self.sort)

    def floor(self, column: str, at: datetime) -> datetime:
        """The begin of the partition that a time of a column is in; the time itself without such a partition."""
        for field in self.partition:
            if field.column == column and field.transform in _PERIODS:
                fields = ("year", "month", "day", "hour")
                kept = fields.index(field.transform) + 1
                year, month, day, hour = [getattr(at, name) for name in fields[:kept]] + [1, 1, 0][
                    kept - 1 :
                ]
                at = datetime(year, month, day, hour, tzinfo=UTC)
        return at

    def split(self, rows: pa.Table) -> Iterator[tuple[list[Any], pa.Table]]:
        """The rows of each partition, sorted, with the values of its fields.

        Raises:
            LayoutError: there are more partitions than a batch may have.
        """
        if not self.partition:
            yield [], self.sorted(rows)
            return
        columns = [
            field.values(rows.column(field.column).combine_chunks()) for field in self.partition
        ]
        codes = np.zeros(rows.num_rows, np.int64)
        for column in columns:
            encoded = pc.dictionary_encode(column, null_encoding="encode")
            codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
            if len(columns) > 1:  # dense again, as products of many large columns would not fit
                codes = np.unique(codes, return_inverse=True)[1]
        check_partitions(int(codes.max(initial=0)) + 1, self)
        places = np.arange(rows.num_rows)
        if np.any(codes[1:] < codes[:-1]):
            # a radix sort, as partitions are few
            places = np.argsort(codes.astype(np.int16), kind="stable")
            rows = rows.take(pa.array(places))
            codes = codes[places]
        ends = [*(np.flatnonzero(np.diff(codes)) + 1).tolist(), rows.num_rows]
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            values = [column[places[start]].as_py() for column in columns]
            yield values, self.sorted(rows.slice(start, end - start))

    def sorted(self, rows: pa.Table) -> pa.Table:
        """The rows in the table's order; as they are where it has none."""
        if not self.sort:
            return rows
        keys = [(name, "descending" if descends else "ascending") for name, descends in self.sort]
        return rows.sort_by(keys)


def check_partitions(count: int, layout: Layout) -> None:
    """Refuse a batch of more partitions than one may have. Raises ``LayoutError``."""
    if count > MOST_PARTITIONS:
        raise LayoutError(
            f"a batch has rows of {count:,} partitions by {', '.join(layout.texts)}, more than {MOST_PARTITIONS:,}. "
            f"Try: partitions of a longer time or fewer buckets, or a smaller lake.max_rows_per_trigger."
        )


def _field(text: str, table_format: str, types: Mapping[str, str]) -> PartitionField:
    match = _ENTRY.fullmatch(text)
    if match is None:
        raise LayoutError(
            f"expected COLUMN or TRANSFORM(COLUMN), such as day(_published_at), got {text!r}"
        )
    transform = match[1] or "identity"
    column = match[3] or match[4]
    size = None if match[2] is None else int(match[2])
    transforms = _OF_FORMAT[table_format]
    if transform not in transforms:
        names = ", ".join("COLUMN" if entry == "identity" else f"{entry}()" for entry in transforms)
        raise LayoutError(f"expected one of {names} with format {table_format!r}, got {text!r}")
    _check_column(column, types, "partition_by")
    if types[column] not in _TAKES[transform]:
        kinds = ", ".join(sorted(_TAKES[transform]))
        raise LayoutError(
            f"{text}: expected a column of type {kinds}; {column!r} is {types[column]}"
        )
    if transform in _SIZED:
        low, high = _SIZED[transform]
        if size is None or not low <= size <= high:
            raise LayoutError(
                f"expected {transform}(N, {column}) with N from {low} to {high:,}, got {text!r}"
            )
    elif size is not None:
        raise LayoutError(f"expected {transform}({column}), got {text!r}")
    return PartitionField(transform, column, types[column], size)


def _order(text: str, types: Mapping[str, str]) -> tuple[str, bool]:
    name, _, direction = text.strip().partition(" ")
    if direction.strip().lower() not in ("", "asc", "desc"):
        raise LayoutError(f"expected COLUMN, or COLUMN desc, got {text!r}", "sort_by")
    _check_column(name, types, "sort_by")
    return name, direction.strip().lower() == "desc"


def _check_column(name: str, types: Mapping[str, str], member: str) -> None:
    if name not in types:
        raise LayoutError(f"expected one of the columns {', '.join(types)}; got {name!r}", member)


def _day(column: pa.Array) -> pa.Array:
    return pc.floor_temporal(column, unit="day").cast(pa.date32()).cast(pa.int32())


def _hour(column: pa.Array) -> pa.Array:
    return pc.divide(pc.floor_temporal(column, unit="hour").cast(pa.int64()), 3_600_000_000).cast(
        pa.int32()
    )


def _year(column: pa.Array) -> pa.Array:
    return pc.subtract(pc.year(column), _EPOCH_YEAR).cast(pa.int32())


def _month(column: pa.Array) -> pa.Array:
    years = pc.multiply(pc.subtract(pc.year(column), _EPOCH_YEAR), 12)
    return pc.add(years, pc.subtract(pc.month(column), 1)).cast(pa.int32())


_PERIODS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    "day": _day,
    "hour": _hour,
    "month": _month,
    "year": _year,
}


def _truncated(width: int, value: Any) -> Any:
    return value[:width] if isinstance(value, str) else value - value % width


def _bucket(count: int, value: Any) -> int:
    data = (
        value.encode() if isinstance(value, str) else int(value).to_bytes(8, "little", signed=True)
    )
    return (_murmur3(data) & 0x7FFFFFFF) % count


@lru_cache(65_536)
def _murmur3(data: bytes) -> int:
    """Murmur3, x86, 32 bits, seed 0, as Iceberg hashes; in Python, as executors need not have a package for it."""
    hashed = 0
    full = len(data) & ~3
    for at in range(0, full, 4):
        block = int.from_bytes(data[at : at + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        hashed ^= ((block << 15 | block >> 17) * 0x1B873593) & 0xFFFFFFFF
        hashed = ((hashed << 13 | hashed >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    if len(data) > full:
        block = int.from_bytes(data[full:], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        hashed ^= ((block << 15 | block >> 17) * 0x1B873593) & 0xFFFFFFFF
    hashed ^= len(data)
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return hashed ^ hashed >> 16
