"""Arranges a run of records by topic, as a sorted file for the topic index: a process of its own for each run.

So the work takes nothing from the broker or from readers, and its memory is free again afterwards. Standard input has a
line of JSON (``Order``) and the records as an Arrow IPC stream; standard output gets the new ``Epoch`` as JSON.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
from rocksdict import SstFileWriter

from broker.core.lazy_module import LazyModule
from broker.core.process import die_with_parent
from broker.core.topic_keys import topic_key
from broker.storage.store import LogShard
from broker.streams.topic_index import layout
from broker.streams.topic_index.layout import Epoch, Row

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")

_NICENESS: Final = 10

Groups = dict[str, list[Row]]


class Order(msgspec.Struct, frozen=True):
    """Order to build a file at ``path`` for the shard, with records that follow ``epoch``."""

    path: str
    log: int
    shard: int
    epoch: Epoch
    parent: int


def build(order: Order, batches: Iterable[pa.RecordBatch]) -> Epoch:
    """Write the file.

    Args:
        order: what to build.
        batches: records in the order of offsets; at least one.

    Returns:
        The epoch with these records.
    """
    epoch = order.epoch
    groups = Groups()
    last: tuple[str, Row] | None = None
    first_us = 0
    for batch in batches:
        for offset, record in records.decode(batch):
            row = layout.row_of(offset, record)
            first_us = first_us if last else record.ts_us
            last = record.topic, row
            group = groups.get(record.topic)
            if group is None:
                groups[record.topic] = [row]
            else:
                group.append(row)
    assert last is not None
    prefix = layout.epoch_key(LogShard(order.log, order.shard), epoch.first_offset)
    chunks = [
        (layout.chunk_key(prefix, topic, chunk[-1][0]), layout.pack_rows(chunk))
        for topic in sorted(groups, key=topic_key)
        for chunk in _chunks(groups.pop(topic))
    ]
    size = sum(len(key) + len(value) for key, value in chunks)
    grown = Epoch(
        epoch.first_offset,
        last[1][0] + 1,
        epoch.first_us if epoch.next_offset > epoch.first_offset else first_us,
        last[1][1],
        epoch.size_bytes + size,
        layout.checksum(*last),
    )
    writer = SstFileWriter(layout.options())
    writer.open(order.path)
    writer[prefix] = layout.pack_epoch(grown)
    for key, value in chunks:
        writer[key] = value
    writer.finish()
    return grown


def _chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    start = size = 0
    for position, row in enumerate(rows):
        if position > start and (
            position - start == layout.CHUNK_RECORDS or size + len(row[2]) > layout.CHUNK_BYTES
        ):
            yield rows[start:position]
            start = position
            size = 0
        size += len(row[2])
    yield rows[start:]


def main() -> None:
    """Build what standard input says."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=Order)
    die_with_parent(order.parent)
    os.nice(_NICENESS)
    gc.disable()  # millions of tuples that live until the end
    epoch = build(order, pa.ipc.open_stream(sys.stdin.buffer))
    sys.stdout.buffer.write(msgspec.json.encode(epoch))


if __name__ == "__main__":
    main()
