"""The topic index: what building it costs, and what reading one topic of many takes.

    python -m benchmarks.topic_index [--records 10000000] [--topics 100000] [--directory DIR]

Records are spread evenly over the topics, which is the worst case. Processor times are those of the range server
and its builders; bytes are what is read from files, cached by the system or not. The exit status is 1 if a topic's
first record takes longer than 100 ms, or reading a topic more than three times the bytes of its records.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage import frames
from broker.storage.rocksdb.follower import Follower
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams.topic_index.index import Progress, TopicIndex, messages
from broker.streams.topic_index.report import INDEXED, Wanted
from broker.streams.topic_index.upkeep import FOLDER, Upkeep

LOG: Final = LogShard(16)
GROUP: Final = 8192
TOPICS_READ: Final = 100
FIRST_MS: Final = 100.0
RATIO: Final = 3.0
_ONE_LOOK_BYTES: Final = 4096


class Read(NamedTuple):
    """Reading one topic: milliseconds to its first record and to all, bytes of its records and bytes read for them."""

    first_ms: float
    all_ms: float
    own_bytes: int
    read_bytes: int


def main() -> int:
    """Print the figures; 1 if one misses its target."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.topic_index", description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--directory", type=Path)
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=asked.directory))
    try:
        return _measured(place, asked.records, asked.topics)
    finally:
        shutil.rmtree(place)


def topic(number: int) -> str:
    """The topic of a number."""
    return f"site/{number % 500}/meter/{number:06d}/power"


def _measured(place: Path, records: int, topics: int) -> int:
    with_store = RocksStore(place, "os")
    fill(with_store, records, topics)
    with_store.commit(
        Batch(puts={INDEXED + b"%d" % LOG.log: msgspec.json.encode(Wanted(1, 10 * 1024**3, None))})
    )
    follower = Follower(place, place / "ranges")
    upkeep = Upkeep(place, follower, 0.1, lambda report: None)
    began_s, cpu_s = time.perf_counter(), _cpu_s()
    while upkeep.index is None or _next(upkeep.index) < records:
        upkeep.step()
    took_s, cpu_s = time.perf_counter() - began_s, _cpu_s() - cpu_s
    frames_bytes, index_bytes = _size(place / "rocksdb"), _size(place / FOLDER)
    print(f"{records:,} records, {topics:,} topics")
    print(f"built in {took_s:.0f} s, {cpu_s / records * 1e6:.1f} µs of processor time a record")
    print(
        f"{index_bytes / records:.1f} bytes a record on disk, beside {frames_bytes / records:.1f}",
        flush=True,
    )
    _wait_for_compaction()
    chance = random.Random(7)
    chosen = [topic(chance.randrange(topics)) for _ in range(TOPICS_READ)]
    reads = [_read(follower, upkeep.index, one, records) for one in chosen]
    first_ms = median(read.first_ms for read in reads)
    ratio = sum(read.read_bytes for read in reads) / sum(read.own_bytes for read in reads)
    print(
        f"one topic: first record after {first_ms:.1f} ms, at most {max(read.first_ms for read in reads):.1f}"
    )
    print(
        f"all after {median(read.all_ms for read in reads):.1f} ms; {ratio:.2f} bytes read for one",
        flush=True,
    )
    scan = _read(follower, None, chosen[0], records)
    print(
        f"without the index: all after {scan.all_ms:,.0f} ms, {scan.read_bytes / max(1, scan.own_bytes):,.0f} bytes"
    )
    upkeep.index.close()
    with_store.close()
    return int(first_ms > FIRST_MS or ratio > RATIO)


def fill(store: RocksStore, records: int, topics: int) -> None:
    chance, start_us = random.Random(1), 1_700_000_000_000_000
    names, clients = (
        [topic(number) for number in range(topics)],
        [f"c{number}" for number in range(topics)],
    )
    for first in range(0, records, GROUP):
        group = []
        for number in range(first, min(records, first + GROUP)):
            one = int(chance.random() * topics)
            payload = b'{"device":"meter-%06d","kwh":%.3f,"volt":%.1f,"amps":%.2f,"ok":true,"n":%d}' % (
                one, chance.random() * 1e5, 220 + chance.random() * 20, chance.random() * 16, number,
            )  # fmt: skip
            group.append(
                StreamRecord(start_us + number * 100, names[one], payload, 1, False, clients[one])
            )
        store.commit(Batch({LOG: group}))


def _read(follower: Follower, index: TopicIndex | None, name: str, end: int) -> Read:
    before, began_s = _read_bytes(), time.perf_counter()
    found: list[bytes | memoryview] = []
    first_s = 0.0
    for piece in _pieces(messages(follower, index, LOG, 0, end, TopicFilter.parse(name))):
        first_s = first_s or time.perf_counter() - began_s
        found.append(piece)
    all_s, read = time.perf_counter() - began_s, _read_bytes() - before
    own = (
        pa.ipc.open_stream(b"".join([frames.schema_message(), *found, frames.END_MESSAGE]))
        .read_all()
        .nbytes
    )
    return Read(first_s * 1e3, all_s * 1e3, own, read)


def _pieces(found: Iterator[bytes | memoryview | Progress]) -> Iterator[bytes | memoryview]:
    return (piece for piece in found if not isinstance(piece, Progress))


def _next(index: TopicIndex) -> int:
    epochs = index.epochs(LOG)
    return epochs[-1].next_offset if epochs else 0


def _cpu_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def _read_bytes() -> int:
    """Bytes that this process has read from files."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["rchar"])


def _wait_for_compaction() -> None:
    """Wait until RocksDB reads nothing by itself, which would count as read for a topic."""
    before = -1
    while (now := _read_bytes()) - before > _ONE_LOOK_BYTES:
        before = now
        time.sleep(2)


def _size(directory: Path) -> int:
    return sum(os.stat(file).st_size for file in directory.rglob("*") if file.is_file())


if __name__ == "__main__":
    sys.exit(main())
