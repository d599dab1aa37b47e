"""Keys of rows, and which of several rows with one key is the last.

A key is one or more columns. Its canonical form is bytes, made of the values and not of how a library prints them, as
its hash says in which file of the table the row is. Imports nothing of the broker: runs on executors.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridges.spark.columns.column import PROVENANCE

# In files between tasks, whether a row removes its key. A column of a table has no space in its name.
DELETED: Final = "is deleted"
HASH_BITS: Final = 32
# Columns that a record has whatever its payload is.
RECORD_COLUMNS: Final = frozenset(column.name for column in PROVENANCE)


@dataclass(frozen=True, slots=True)
class Upsert:
    """Rules by which a table keeps one row a key.

    ``delete_when`` is a condition of the rule language on the record: where it holds, the key is removed. With
    ``by_time`` the last record of a key is the one with the highest time of publishing, then shard, then offset; that
    is for keys whose records may be in several shards. Without, it is the one with the highest offset.
    """

    key: tuple[str, ...]
    delete_when: str = ""
    by_time: bool = False

    @classmethod
    def of(cls, key: Sequence[str], delete_when: str, shards: int) -> Upsert | None:
        """The rules for the key of a table whose stream has ``shards``; None without a key."""
        # All records of a client are in one shard, so a key with the client has one too.
        by_time = shards > 1 and "_client_id" not in key
        return cls(tuple(key), delete_when, by_time) if key else None

    @property
    def has_tombstones(self) -> bool:
        """True if a record without a payload has a key, which it then removes."""
        return RECORD_COLUMNS.issuperset(self.key)


def keys_of(rows: pa.Table, key: Sequence[str]) -> pa.Array:
    """The key of each row, in canonical form. No part of a key may be null."""
    parts = [_canonical(rows.column(name).combine_chunks()) for name in key]
    if len(parts) == 1:
        return parts[0]
    # The lengths first: ("a", "bc") is not ("ab", "c").
    lengths = [pc.binary_length(part).cast(pa.string()).cast(pa.binary()) for part in parts[:-1]]
    mark = pa.scalar(b":", pa.binary())
    pieces: list[pa.Array] = []
    for length in lengths:
        pieces += [length, mark]
    return pc.binary_join_element_wise(*pieces, *parts, pa.scalar(b"", pa.binary()))


def _canonical(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_floating(kind):
        return _canonical_double(values)
    if pa.types.is_timestamp(kind) or pa.types.is_boolean(kind):
        values = values.cast(pa.int64())
    if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        values = values.cast(pa.string())
    return values.cast(pa.binary())


def _canonical_double(values: pa.Array) -> pa.Array:
    """A whole number is as it is as ``long``, so that the column may become one; others are their bits."""
    is_whole = pc.and_(pc.equal(values, pc.floor(values)), pc.less(pc.abs(values), float(1 << 53)))
    whole = pc.if_else(is_whole, values, 0.0).cast(pa.int64()).cast(pa.string())
    bits = pc.binary_join_element_wise("x", values.view(pa.int64()).cast(pa.string()), "")
    return pc.if_else(is_whole, whole, bits).cast(pa.binary())


def hashes_of(keys: pa.Array) -> Any:
    """The hash of each key, ``uint32``."""
    encoded = keys.dictionary_encode()
    hashes = np.fromiter(
        map(zlib.crc32, encoded.dictionary.to_pylist()), np.uint32, len(encoded.dictionary)
    )
    # The first bits decide about the file, and those of a CRC are alike for keys of one length that differ at the end.
    mixed = (hashes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - HASH_BITS)
    return mixed.astype(np.uint32)[encoded.indices.to_numpy()]


def last_of_each(rows: pa.Table, upsert: Upsert) -> tuple[Any, pa.Array]:
    """Mask of the rows that are the last of their key, and the keys of all. Of rows at one place the later one is."""
    keys = keys_of(rows, upsert.key)
    is_last = np.zeros(len(keys), bool)
    if len(keys):
        codes = keys.dictionary_encode().indices.to_numpy()
        places = [rows.column("_offset").to_numpy()]
        if upsert.by_time:
            places += [
                rows.column("_shard").to_numpy(),
                rows.column("_published_at").cast(pa.int64()).to_numpy(),
            ]
        order = np.lexsort((*places, codes))
        is_last[order[np.append(np.diff(codes[order]) != 0, True)]] = True
    return is_last, keys
