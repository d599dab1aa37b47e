"""Offsets that are there to stay: a commit that failed to sync, and is taken back, is not among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.core.stream import ShardRange
from broker.storage.store import LogShard

_SETTLE_S: Final = 2.0


class Settled:
    """Remembers of each shard what it held some seconds ago."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._shards: dict[LogShard, tuple[int, int, float]] = {}

    def offset(self, shard: LogShard, held: ShardRange) -> int:
        """Offset up to which a shard with this range is settled."""
        now_s = self._monotonic_s()
        settled, seen, seen_at_s = self._shards.get(
            shard, (held.first_offset, held.next_offset, now_s)
        )
        if now_s - seen_at_s >= _SETTLE_S:
            settled = seen
            seen = held.next_offset
            seen_at_s = now_s
        self._shards[shard] = settled, seen, seen_at_s
        return settled
