"""Forgetting: records that are too old, then the oldest of what is too much. Whole frames; offsets are never reused."""

from __future__ import annotations

from broker.storage.store import LogShard, Store
from broker.streams.settings import Retention


def trim_point(store: Store, shard: LogShard, retention: Retention, now_us: int) -> int:
    """The offset below which a shard's records may go.

    Args:
        store: where the shard is; only its directory is read.
        shard: the shard.
        retention: what to keep; ``bytes`` is this shard's share.
        now_us: the wall clock.
    """
    oldest_us = now_us - retention.age * 1_000_000
    excess_bytes = store.size_of(shard) - retention.bytes
    point = store.range_of(shard).first_offset
    for entry in store.directory(shard):
        if entry.max_ts_us >= oldest_us and excess_bytes <= 0:
            break
        point = entry.next_offset
        excess_bytes -= entry.size_bytes
    return point


def enforce(store: Store, shard: LogShard, retention: Retention, now_us: int) -> int:
    """Trim a shard to its retention; how many records went. Blocking; for the writer thread."""
    before = store.range_of(shard).first_offset
    point = trim_point(store, shard, retention, now_us)
    if point > before:
        store.trim(shard, point)
    return point - before
