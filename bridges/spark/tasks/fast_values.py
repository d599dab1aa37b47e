"""Columns of a type from values that Arrow's JSON reader can read, all rows at once.

What the reader has no type for it reads as text or whole numbers, which become the column's type in one call. Whatever
might not mean the same as ``bridges.spark.tasks.values`` says is left to that.
"""

from __future__ import annotations

from binascii import a2b_base64
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.types import ARROW_TYPES, ColumnType
from bridges.spark.tasks.values import DATE_TEXT, DECIMAL_TEXT, EXACT, EXACT_DIGITS, UNITS
from broker.core.marks import BASE64

_AS_THEY_ARE: Final = frozenset({"boolean", "long", "double", "string", "enum"})
_TIME_TEXT: Final = (
    rf"^{DATE_TEXT}T[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]{{1,6}})?(Z|[+-][0-9]{{2}}:[0-9]{{2}})$"
)
_YEAR_1_S = -62_135_596_800
_YEAR_10000_S = 253_402_300_800
_DAY_S = 86_400


class NotAtOnce(Exception):
    """A value might not fit, or its type is beyond the reader."""


def reading_type(kind: ColumnType, sample: Any) -> pa.DataType:
    """The type that the reader reads for a type; ``sample`` is a value, which decides if times and decimals are text or
    numbers.

    Raises:
        NotAtOnce: it cannot.
    """
    if kind.name in _AS_THEY_ARE:
        return ARROW_TYPES[kind.name]
    if kind.name == "binary":
        return (
            pa.struct([pa.field(BASE64, pa.string())]) if isinstance(sample, dict) else pa.string()
        )
    if kind.name == "decimal":
        return (
            pa.string()
            if isinstance(sample, str) or kind.precision > EXACT_DIGITS
            else pa.float64()
        )
    if kind.name == "date" or kind.name in UNITS:
        return pa.int64() if isinstance(sample, int) else pa.string()
    if kind.name == "struct":
        members = sample if isinstance(sample, dict) else {}
        return pa.struct(
            [pa.field(key, reading_type(inner, members.get(key))) for key, inner in kind.members]
        )
    if kind.name == "array" and kind.item is not None:
        return pa.list_(
            reading_type(kind.item, sample[0] if isinstance(sample, list) and sample else None)
        )
    raise NotAtOnce


def has_forms(kind: ColumnType) -> bool:
    """True if values of the type have several forms: text, numbers or marks."""
    inner = [member for _, member in kind.members] if kind.item is None else [kind.item]
    return (
        kind.name in ("date", "decimal", "binary")
        or kind.name in UNITS
        or any(map(has_forms, inner))
    )


def finished(array: pa.Array, kind: ColumnType) -> pa.Array:
    """The column of its type, from the reader's result.

    Raises:
        NotAtOnce: a value might not fit.
    """
    if kind.name == "struct":
        columns = [finished(array.field(at), inner) for at, (_, inner) in enumerate(kind.members)]
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns, fields=list(kind.arrow), mask=mask)
    if kind.name == "array" and kind.item is not None:
        mask = array.is_null() if array.null_count else None
        return pa.ListArray.from_arrays(
            array.offsets, finished(array.values, kind.item), type=kind.arrow, mask=mask
        )
    if kind.name == "double":
        largest = pc.max(pc.abs(array)).as_py()
        if largest is not None and largest >= EXACT:  # 2**53 + 1 has become 2**53
            raise NotAtOnce
        return array
    if kind.name in _AS_THEY_ARE:
        return array
    if pa.types.is_struct(array.type):
        return _of_marks(array)
    try:
        if pa.types.is_floating(array.type):
            return _of_doubles(array, kind)
        return (
            _of_numbers(array, kind) if pa.types.is_integer(array.type) else _of_text(array, kind)
        )
    except pa.ArrowException:
        raise NotAtOnce from None


def _of_marks(array: pa.Array) -> pa.Array:
    texts = pc.struct_field(array, 0)
    if texts.null_count != array.null_count:
        raise NotAtOnce
    try:
        values = [
            None if text is None else a2b_base64(text.encode(), strict_mode=True)
            for text in texts.to_pylist()
        ]
    except ValueError:
        raise NotAtOnce from None
    return pa.array(values, pa.binary())


def _of_text(array: pa.Array, kind: ColumnType) -> pa.Array:
    pattern = {"binary": None, "decimal": rf"^{DECIMAL_TEXT}$", "date": rf"^{DATE_TEXT}$"}.get(
        kind.name, _TIME_TEXT
    )
    if pattern is not None and pc.all(pc.match_substring_regex(array, pattern)).as_py() is False:
        raise NotAtOnce
    values = array.cast(kind.arrow)
    if kind.name in UNITS:
        _check_years(pc.min_max(values.cast(pa.int64())).as_py(), 1_000_000)
    return values


def _check_years(bounds: dict[str, int | None], per_s: float) -> None:
    """Leave times outside of the years 1 to 9999 in UTC to the other way. Raises ``NotAtOnce``."""
    low = bounds["min"]
    high = bounds["max"]
    if (
        low is not None
        and high is not None
        and (low < _YEAR_1_S * per_s or high >= _YEAR_10000_S * per_s)
    ):
        raise NotAtOnce


def _of_numbers(array: pa.Array, kind: ColumnType) -> pa.Array:
    is_time = kind.name in UNITS
    _check_years(
        pc.min_max(array).as_py(),
        1_000_000 // UNITS[kind.name].microseconds if is_time else 1 / _DAY_S,
    )
    if not is_time:
        return array.cast(pa.int32()).cast(kind.arrow)
    return pc.multiply(array, UNITS[kind.name].microseconds).cast(kind.arrow)


def _of_doubles(array: pa.Array, kind: ColumnType) -> pa.Array:
    """Decimals of so few digits that each has its own double, which is that of its steps divided by their size."""
    values = array.fill_null(0.0).to_numpy()
    size = 10.0**kind.scale
    steps = np.rint(values * size)
    if not ((np.abs(steps) < 10.0**kind.precision) & (steps / size == values)).all():
        raise NotAtOnce
    low = steps.astype(np.int64)
    words = np.column_stack([low, low >> 63])
    decimals = pa.Array.from_buffers(kind.arrow, len(array), [None, pa.py_buffer(words.tobytes())])
    return pc.if_else(pc.is_valid(array), decimals, None) if array.null_count else decimals
