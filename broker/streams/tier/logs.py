"""Reader of streams for users and replays: the store, and before that what is in the tier."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.core.errors import Unavailable
from broker.core.lazy_module import LazyModule
from broker.core.stream import ShardRange, StreamRecord
from broker.storage.store import LogShard, Store
from broker.streams.range_client import RangeClient
from broker.streams.tier.ledger import TierLedger

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")


class Logs(Protocol):
    """Reader of logs; ``broker.storage.store.Store`` is one."""

    def range_of(self, shard: LogShard) -> ShardRange:
        """The offsets that can be read."""

    def offset_at(self, shard: LogShard, ts_us: int) -> int:
        """The first offset whose record's ``ts_us`` is at or after the given one, else ``next_offset``."""

    def read(
        self, shard: LogShard, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        """At most ``limit`` records with offsets from ``from_offset`` on, in order; trimmed ones are skipped."""

    def read_arrow(
        self, shard: LogShard, from_offset: int, to_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """The records with offsets in ``[from_offset, to_offset)`` that are there, in order, in batches."""


class TieredLogs:
    """Implements ``Logs``. What is in the tier is asked of the range server and takes as long as the object store:
    for threads.

    Raises (all but ``range_of``):
        Unavailable: the object store or the range server does not answer; says why.
    """

    def __init__(self, store: Store, ledger: TierLedger, client: RangeClient) -> None:
        self._store = store
        self._ledger = ledger
        self._client = client

    def range_of(self, shard: LogShard) -> ShardRange:
        """See ``Logs``."""
        return self._ledger.readable(shard)

    def offset_at(self, shard: LogShard, ts_us: int) -> int:
        """See ``Logs``."""
        if (
            self.range_of(shard) != self._store.range_of(shard)
            and ts_us <= self._ledger.held(shard).running_max_us
        ):
            with self._client.ask(shard, {"at": max(0, ts_us)}) as answer:
                offset = answer.read().decode()
                if offset:
                    return int(offset)
        return self._store.offset_at(shard, ts_us)

    def read(
        self, shard: LogShard, from_offset: int, limit: int
    ) -> Sequence[tuple[int, StreamRecord]]:
        """See ``Logs``."""
        start = max(from_offset, self.range_of(shard).first_offset)
        if start >= self._store.range_of(shard).first_offset:
            return self._store.read(shard, start, limit)
        batches = self.read_arrow(
            shard, start, min(start + limit, self._store.range_of(shard).next_offset)
        )
        return [entry for batch in batches for entry in records.decode(batch)]

    def read_arrow(
        self, shard: LogShard, from_offset: int, to_offset: int
    ) -> Iterator[pa.RecordBatch]:
        """See ``Logs``."""
        at = max(from_offset, self.range_of(shard).first_offset)
        end = min(to_offset, self._store.range_of(shard).first_offset)
        if at < end:
            with self._client.ask(shard, {"from": at, "to": end}) as answer:
                try:
                    for batch in pa.ipc.open_stream(answer):
                        yield batch
                        at = batch.column(0)[-1].as_py() + 1
                except pa.ArrowException as error:
                    raise Unavailable(
                        f"the answer of the range server ended early: {error}"
                    ) from error
            if at < end:
                raise Unavailable(f"the answer of the range server ended at offset {at} of {end}")
        if at < to_offset:
            yield from self._store.read_arrow(shard, at, to_offset)
