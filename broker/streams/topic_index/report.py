"""Messages between the broker and the range server about the topic index."""

from __future__ import annotations

from typing import Final

import msgspec

# Prefix of the number of an indexed log, in the store's key space; the value is a ``Wanted`` as JSON.
INDEXED: Final = b"streams/indexed/"

# Number of records of a shard that may wait while its index counts as ready; more are indexed at once.
READY_RECORDS: Final = 131_072


class Wanted(msgspec.Struct, frozen=True, omit_defaults=True):
    """Request to index a log: its number of shards, from ``first_shard`` on, and the retention of each."""

    shards: int
    bytes: int
    age_us: int | None
    first_shard: int = 0


class ShardIndex(msgspec.Struct, frozen=True):
    """Offset up to which a shard is indexed, and the bytes of its chunks before compression."""

    log: int
    shard: int
    next_offset: int
    size_bytes: int


class IndexReport(msgspec.Struct, frozen=True, tag=True):
    """Report of the range server on the index; ``problem`` is why the last work failed."""

    shards: list[ShardIndex] = []
    problem: str | None = None
    runs: int = 0
