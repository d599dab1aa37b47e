"""The store and streams: group commit by group size, the writer's cost on the loop, and ranges read back.

    python benchmarks/store.py [--records 1000000] [--directory DIR]

The directory should be on the disk that is to be measured; what is made there is removed.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import pyarrow as pa

from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.storage.writer import Writer
from broker.streams.maintenance import Sealer
from broker.streams.ranges_process import RangesProcess

LOG = LogShard(16)
PAYLOAD = b'{"device":"meter-0001","ts":1700000000123,"kwh":12345.678,"volt":229.9,"amps":3.21,"ok":true,"n":%07d}'
SECONDS = 1.5


def record(number: int) -> StreamRecord:
    payload = PAYLOAD % (number % 10_000_000)
    return StreamRecord(
        time.time_ns() // 1000, f"site/{number % 50}/meter", payload, 1, False, f"c{number % 50}"
    )


@contextmanager
def store_in(directory: Path, durability: Literal["fsync", "os"]) -> Iterator[RocksStore]:
    place = Path(tempfile.mkdtemp(dir=directory))
    store = RocksStore(place, durability)
    try:
        yield store
    finally:
        store.close()
        shutil.rmtree(place)


def commits(directory: Path, durability: Literal["fsync", "os"], size: int) -> tuple[float, float]:
    """Records a second and milliseconds a commit, groups of one size committed one after the other."""
    group = [record(number) for number in range(size)]
    with store_in(directory, durability) as store:
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < SECONDS:
            store.commit(Batch({LOG: group}))
            count += 1
        took = time.perf_counter() - started
    return size * count / took, took / count * 1000


async def written(
    directory: Path, durability: Literal["fsync", "os"], count: int
) -> tuple[float, float]:
    """Records a second through the writer, and microseconds of the loop an append takes, 256 outstanding at a turn."""
    records = [record(number) for number in range(1000)]
    with store_in(directory, durability) as store:
        writer = Writer(store, asyncio.get_running_loop())
        done = asyncio.Event()
        relief = asyncio.Event()
        writer.on_relief(relief.set)
        started, appending = time.perf_counter(), 0.0
        for turn in range(count // 256):
            begun = time.perf_counter()
            for position in range(256):
                writer.append(LOG, records[(turn + position) % 1000])
            appending += time.perf_counter() - begun
            if writer.is_congested:
                relief.clear()
                await relief.wait()
            await asyncio.sleep(0)
        writer.when_committed(lambda error: done.set())
        await done.wait()
        took = time.perf_counter() - started
        await writer.close()
    return count / took, appending / count * 1e6


def download(url: str, ticket: str) -> bytes:
    """The body of a range, by the cheapest client there is."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
    connection.request(
        "GET", f"{parts.path}?{parts.query}", headers={"Authorization": f"Bearer {ticket}"}
    )
    answer, body = connection.getresponse(), bytearray()
    while piece := answer.read(1024 * 1024):
        body += piece
    connection.close()
    return bytes(body)


async def served(directory: Path, count: int, group: int) -> tuple[float, float, float]:
    """Records a second and MB a second of one download, and records a second of four at once, from the range server."""
    place = Path(tempfile.mkdtemp(dir=directory))
    store = RocksStore(place, "os")
    for start in range(0, count, group):
        store.commit(
            Batch({LOG: [record(number) for number in range(start, min(count, start + group))]})
        )
    sealer = Sealer(store)
    while sealer.seal(LOG):
        pass
    ranges = RangesProcess(place)
    await ranges.start()
    access = ranges.access(LOG.log)
    url = f"{access['ranges_url']}/streams/{LOG.log}/0?from="
    await asyncio.to_thread(download, f"{url}0&to={count}", access["ticket"])
    started = time.perf_counter()
    body = await asyncio.to_thread(download, f"{url}0&to={count}", access["ticket"])
    took = time.perf_counter() - started
    assert pa.ipc.open_stream(body).read_all().num_rows == count
    quarter = count // 4
    started = time.perf_counter()
    await asyncio.gather(
        *(
            asyncio.to_thread(
                download, f"{url}{n * quarter}&to={(n + 1) * quarter}", access["ticket"]
            )
            for n in range(4)
        )
    )
    together = time.perf_counter() - started
    await ranges.stop()
    store.close()
    shutil.rmtree(place)
    return count / took, len(body) / took / 1e6, count / together


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    durabilities: tuple[Literal["fsync", "os"], ...] = ("fsync", "os")
    for durability in durabilities:
        for size in (1, 10, 100, 1000, 10_000):
            rate, took_ms = commits(options.directory, durability, size)
            print(
                f"commit {durability:5} groups of {size:6}: {rate:12,.0f} records/s {took_ms:8.3f} ms"
            )
        rate, append_us = asyncio.run(written(options.directory, durability, options.records // 2))
        print(
            f"writer {durability:5} 256 at a turn    : {rate:12,.0f} records/s {append_us:8.3f} µs an append"
        )
    for group in (10, 1000):
        rate, speed, together = asyncio.run(served(options.directory, options.records, group))
        name = f"ranges, groups of {group:4}, sealed"
        print(f"{name}: {rate:12,.0f} records/s {speed:8,.0f} MB/s, 4 at once {together:,.0f}")


if __name__ == "__main__":
    main()
