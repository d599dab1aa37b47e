"""Sums of hashes of rows, by which an audit sees whether their values are those that were written.

The hash of a row is made of its values by the keys of their columns, not of how a file has them: null adds nothing, so
a column or a member that is added changes no hash. Neither does another name of a column, a wider type of numbers, the
order of a map, the bits of a NaN or the sign of zero. Sums do not depend on the order of rows and can be added up.
Imports nothing of the broker: runs on executors.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.column import ITEM, PROVENANCE, Column

# Offsets of which one sum is kept, where a commit has more.
BLOCK: Final = 16_384
_MASK: Final = (1 << 64) - 1
_STEP, _FIRST, _SECOND = map(
    np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# The hash of a null in a list or a map.
_NOTHING: Final = np.uint64(0x5851F42D4C957F2D)
_NAN: Final = np.uint64(0x7FF8000000000000)
# By how many bytes of a word are of a string, the bits that count.
_TAILS: Final = np.array([(1 << 8 * count) - 1 for count in range(8)] + [_MASK], np.uint64)
# Different values of a sample, up to which each value is hashed once.
_FEW: Final = 32

# By block, the sum of the hashes of its rows modulo 2**64.
Sums = dict[int, int]


def hashed_columns(
    arrays: Mapping[str, pa.Array], columns: Iterable[Column]
) -> dict[str, pa.Array]:
    """The input of a row's hash, out of arrays by the names of columns: its provenance, and its values by the
    keys of their columns. The number of a row among those of its record is left out."""
    values = {column.name: arrays[column.name] for column in PROVENANCE}
    for column in columns:
        if column.key != ITEM.key and column.name in arrays:
            values[f"row.{column.key}"] = arrays[column.name]
    return values


def row_hashes(columns: Mapping[str, pa.Array], rows: int) -> Any:
    """The hash of each row, ``uint64``."""
    total = np.zeros(rows, np.uint64)
    for name, values in columns.items():
        total += _member(name, values)
    return _mixed(total)


def add_rows(sums: Sums, offsets: Any, hashes: Any) -> None:
    """Add rows to the sums of their blocks."""
    if len(offsets) == 0:
        return
    blocks, places = np.unique(offsets // BLOCK, return_inverse=True)
    totals = np.zeros(len(blocks), np.uint64)
    np.add.at(totals, places, hashes)
    add_sums(sums, dict(zip(blocks.tolist(), totals.tolist(), strict=True)))


def add_sums(sums: Sums, others: Mapping[int, int]) -> None:
    """Add sums of other rows."""
    for block, total in others.items():
        sums[block] = (sums.get(block, 0) + total) & _MASK


def blocks_of(start: int, end: int) -> range:
    """The blocks that a range of offsets is in."""
    return range(start // BLOCK, (end - 1) // BLOCK + 1 if end > start else start // BLOCK)


def packed(sums: Mapping[int, int], start: int, end: int) -> str:
    """The sums of a range of offsets as text, one for each of its blocks."""
    return " ".join(f"{sums.get(block, 0):x}" for block in blocks_of(start, end))


def unpacked(text: str, start: int, end: int) -> Sums | None:
    """The sums that ``packed`` returned, or None, as in commits from before there were sums."""
    numbers = [int(number, 16) for number in text.split()]
    blocks = blocks_of(start, end)
    return dict(zip(blocks, numbers, strict=True)) if len(numbers) == len(blocks) else None


def together(parts: Iterable[tuple[str, int, int]]) -> Sums | None:
    """The sums of several ranges, each as text; None where one has none."""
    sums: Sums = {}
    for text, start, end in parts:
        unpacked_sums = unpacked(text, start, end)
        if unpacked_sums is None:
            return None
        add_sums(sums, unpacked_sums)
    return sums


def _mixed(values: Any) -> Any:
    """Spread the bits of whole numbers (the finalizer of SplitMix64), in place."""
    values ^= values >> np.uint64(30)
    values *= _FIRST
    values ^= values >> np.uint64(27)
    values *= _SECOND
    values ^= values >> np.uint64(31)
    return values


@lru_cache(maxsize=4096)
def _seed(name: str) -> np.uint64:
    return np.uint64(
        int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    )


def _member(name: str, values: pa.Array) -> Any:
    """The part of a column, or of a member of a struct, in the hash of its row: nothing where it is null."""
    hashes = _mixed(_hashes(values) + _seed(name))
    if values.null_count:
        hashes[_nulls(values)] = 0
    return hashes


def _nulls(values: pa.Array) -> Any:
    return values.is_null().to_numpy(zero_copy_only=False)


def _hashes(values: pa.Array) -> Any:
    """A hash of each value; what it is for null does not matter."""
    kind = values.type
    types = pa.types
    if types.is_dictionary(kind):
        return _hashes(values.dictionary_decode())
    if types.is_null(kind):
        return np.zeros(len(values), np.uint64)
    if types.is_struct(kind):
        return _hashes_of_structs(values)
    if types.is_map(kind):
        return _hashes_of_maps(values)
    if types.is_list(kind) or types.is_large_list(kind):
        return _hashes_of_lists(values)
    if types.is_decimal(kind):
        return _hashes_of_decimals(values)
    if (
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    ):
        return _hashes_of_texts(values)
    if types.is_floating(kind):
        return _hashes_of_floats(values)
    if types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif types.is_timestamp(kind):
        values = values.cast(pa.timestamp("us", kind.tz), safe=False)
    elif types.is_date64(kind):
        values = values.cast(pa.date32())
    if types.is_date32(values.type):
        values = values.cast(pa.int32())
    return pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False).view(np.uint64)


def _hashes_of_floats(values: pa.Array) -> Any:
    # no -0.0
    numbers = pc.fill_null(values.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0
    bits = numbers.view(np.uint64)
    bits[np.isnan(numbers)] = _NAN
    return bits


def _hashes_of_decimals(values: pa.Array) -> Any:
    values = values.cast(pa.decimal128(38, values.type.scale))
    words = np.frombuffer(values.buffers()[1], np.uint64)[
        2 * values.offset : 2 * (values.offset + len(values))
    ]
    return _mixed(words[0::2] + _STEP) + words[1::2]


def _hashes_of_structs(values: pa.StructArray) -> Any:
    total = np.full(len(values), _STEP)  # a struct of nulls is not null
    for field, member in zip(values.type, values.flatten(), strict=True):
        total += _member(field.name, member)
    return total


def _hashes_of_lists(values: pa.Array) -> Any:
    offsets = values.offsets.to_numpy()
    items = values.values.slice(offsets[0], offsets[-1] - offsets[0])
    offsets = offsets - offsets[0]
    places = np.arange(len(items), dtype=np.int64) - np.repeat(offsets[:-1], np.diff(offsets))
    return _sums_of(_mixed(_items(items) + places.astype(np.uint64) * _STEP), offsets)


def _hashes_of_maps(values: pa.MapArray) -> Any:
    offsets = values.offsets.to_numpy()
    start = offsets[0]
    count = offsets[-1] - offsets[0]
    # The buffers of a slice are those of the slice or of the whole, as the release of Arrow has it.
    keys, items = (
        part if len(part) == count else part.slice(start, count)
        for part in (values.keys, values.items)
    )
    return _sums_of(_mixed(_mixed(_items(keys) + _STEP) + _items(items)), offsets - start)


def _items(values: pa.Array) -> Any:
    """Hashes of the values of lists and maps, where null is a value."""
    hashes = _hashes(values)
    if values.null_count:
        hashes = np.where(_nulls(values), _NOTHING, hashes)
    return hashes


def _sums_of(items: Any, offsets: Any) -> Any:
    """By list, the sum of the hashes of its items, mixed with how many there are."""
    totals = np.zeros(len(items) + 1, np.uint64)
    np.cumsum(items, out=totals[1:])
    lengths = np.diff(offsets).astype(np.uint64)
    return _mixed(totals[offsets[1:]] - totals[offsets[:-1]] + (lengths + np.uint64(1)) * _FIRST)


def _hashes_of_texts(values: pa.Array) -> Any:
    if len(values) > 2 * _FEW and len(pc.unique(values[:: max(1, len(values) // 64)])) <= _FEW:
        encoded = values.dictionary_encode()
        if len(encoded.dictionary) <= len(values) // 4:
            hashes = _hashes_of_bytes(encoded.dictionary)
            return np.append(hashes, np.uint64(0))[
                pc.fill_null(encoded.indices, len(hashes)).to_numpy()
            ]
    return _hashes_of_bytes(values)


def _hashes_of_bytes(values: pa.Array) -> Any:
    """Hashes of texts, eight bytes at a time."""
    is_large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    _, ends, data = values.buffers()
    width = np.int64 if is_large else np.int32
    offsets = np.frombuffer(ends, width)[values.offset : values.offset + len(values) + 1].astype(
        np.int64
    )
    size = int(offsets[-1] - offsets[0])
    padded = np.zeros(size + 8, np.uint8)
    if size:
        padded[:size] = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    lengths = np.diff(offsets)
    counts = (lengths + 7) >> 3
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    places = np.arange(firsts[-1], dtype=np.int64) - np.repeat(firsts[:-1], counts)
    begun = places << 3
    words = np.ndarray((size + 1,), np.dtype("<u8"), padded, strides=(1,))[
        np.repeat(offsets[:-1], counts) + begun
    ]
    words &= _TAILS[np.minimum(np.repeat(lengths, counts) - begun, 8)]
    words += (places.astype(np.uint64) + np.uint64(1)) * _STEP
    totals = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(_mixed(words), out=totals[1:])
    return _mixed(totals[firsts[1:]] - totals[firsts[:-1]] + lengths.astype(np.uint64) * _SECOND)
