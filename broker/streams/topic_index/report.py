"""What the broker and the range server tell each other of the topic index."""

from __future__ import annotations

from typing import Final

import msgspec

# Before the number of a log that is to be indexed, in the store's key space; the value is a ``Wanted`` as JSON.
INDEXED: Final = b"streams/indexed/"

# So many records of a shard may wait while its index counts as ready; more are indexed at once.
READY_RECORDS: Final = 131_072


class Wanted(msgspec.Struct, frozen=True):
    """That a log is to be indexed: how many shards it has, and what each keeps."""

    shards: int
    bytes: int
    age_us: int | None


class ShardIndex(msgspec.Struct, frozen=True):
    """Up to where a shard is indexed, and the bytes of its chunks before compression."""

    log: int
    shard: int
    next_offset: int
    size_bytes: int


class IndexReport(msgspec.Struct, frozen=True, tag=True):
    """What the range server tells the broker of the index; ``problem`` is why the last work failed."""

    shards: list[ShardIndex] = []
    problem: str | None = None
    runs: int = 0
