"""Commits of a cell with a commit log in three servers of NATS that sync each, against the same commits synced to the
own disk, one after the other.

    python -m benchmarks.commit_log [--commits 1000] [--directory DIR]

Each commit has 130 records, some 20 kB, as a busy cell's groups have. Wanted: 500 commits/s with the log, on a quiet
machine; processor time of the store and the servers together at most 1.5 times that of the store alone.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import psutil

from broker.cluster.nats.log import NatsLog, StreamSettings
from broker.core.errors import Unavailable
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from tests.support.nats import Nats, nats
from tests.support.node import eventually

RECORDS = 130
WANTED_PER_S = 500
SHARD = LogShard(16)


def main() -> int:
    """Whether a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=1000)
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        alone = RocksStore(place / "alone")
        show("synced to the own disk", *commits(alone, options.commits, None))
        with nats(place) as servers:
            log = NatsLog(servers.places, "benchmark", 0, "benchmark")
            eventually(lambda: _makes(log))
            store = RocksStore(place / "logged", log=log)
            rate = show("in three servers of NATS", *commits(store, options.commits, servers))
        return int(rate < WANTED_PER_S)
    finally:
        shutil.rmtree(place)


def commits(
    store: RocksStore, count: int, servers: Nats | None
) -> tuple[list[float], float, float]:
    """How long each commit took, and the processor time of this process and of the servers, in seconds."""
    processes = [] if servers is None else [psutil.Process(one.pid) for one in servers.servers]
    batches = [
        Batch({SHARD: [StreamRecord(at, f"site/{at % 50}/t", bytes(130), 1, False, "c")] * RECORDS})
        for at in range(count)
    ]
    before_s = time.process_time()
    servers_s = sum(map(_used_s, processes))
    took_s = []
    for batch in batches:
        began_s = time.perf_counter()
        store.commit(batch)
        took_s.append(time.perf_counter() - began_s)
    used_s = time.process_time() - before_s
    store.close()
    return took_s, used_s, sum(map(_used_s, processes)) - servers_s


def show(what: str, took_s: list[float], used_s: float, servers_s: float) -> float:
    """Print the figures; commits in a second."""
    count = len(took_s)
    took_s = sorted(took_s)
    rate = count / sum(took_s)
    p50_ms, p99_ms = took_s[count // 2] * 1e3, took_s[count * 99 // 100] * 1e3
    own_ms, theirs_ms = used_s / count * 1e3, servers_s / count * 1e3
    print(
        f"{what}: {rate:.0f} commits/s, p50 {p50_ms:.2f} ms, p99 {p99_ms:.1f} ms; "
        f"processor {own_ms:.2f} ms a commit, and {theirs_ms:.2f} ms in the servers",
        flush=True,
    )
    return rate


def _used_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _makes(log: NatsLog) -> bool:
    try:
        log.make(StreamSettings(3, 1024 * 1024 * 1024))
    except Unavailable:  # the servers have no leader yet
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
