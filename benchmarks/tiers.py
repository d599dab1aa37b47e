"""Tiers of streams: what they cost those who publish, and how fast segments are uploaded and read.

    python -m benchmarks.tiers [--records 2000000] [--count 200000] [--rounds 5] [--directory DIR]

Two brokers capture the same load in a stream, one of them with a tier in a directory, in turns. The figure is the
processor time of the broker's process for each message; the range server's, which uploads, is printed beside it. Then a
stream of messages of 180 bytes is uploaded to an S3 store on this machine (moto, in one process of Python) and to a
directory, trimmed, and read in order. Rates are of bytes as the stream holds them, before compression. The exit status
is 1 if publishing costs more than 5 % more.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
import psutil

from benchmarks.bare import load
from benchmarks.load import cpu_s
from benchmarks.pipeline import create, serving
from benchmarks.topic_index import LOG, fill
from broker.storage.rocksdb.follower import Follower
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch
from broker.streams.tier import report
from broker.streams.tier.objects import TierStores
from broker.streams.tier.reading import TieredReader
from broker.streams.tier.report import Held, TierReport, Uploaded, Wanted
from broker.streams.tier.upload import Uploads
from tests.support.s3_server import KEYS, S3Server

WANTED: Final = 1.05
_TOPICS: Final = 1000


def main() -> int:
    """Print the figures; 1 if publishing costs too much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tiers", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--count", type=int, default=200_000, help="messages in a turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path)
    asked = parser.parse_args()
    os.environ["SLUICE_OVERLOAD__ENABLE"] = "false"  # this machine may be doing other things
    ratio = _publishing(asked.rounds, asked.count)
    for name, where in (("directory", _directory), ("S3 (moto)", _s3)):
        place = Path(tempfile.mkdtemp(dir=asked.directory))
        try:
            with where(place) as (url, stores):
                _moving(name, place, asked.records, url, stores)
        finally:
            shutil.rmtree(place)
    return int(ratio > WANTED)


def _publishing(rounds: int, count: int) -> float:
    with serving() as plain, serving() as tiered:
        for (ready, folder), has_tier in ((plain, False), (tiered, True)):
            tier = {"tier": {"url": f"{folder}/tiers/bench", "after": "1s"}} if has_tier else {}
            create(ready["api"], "streams", {"name": "bench", "topics": ["bench/#"], **tier})
        costs: tuple[list[float], list[float]] = ([], [])
        ranges: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 1):
            for (ready, _), own, others in zip((plain, tiered), costs, ranges, strict=True):
                pid, child = int(ready["pid"]), _ranges_pid(int(ready["pid"]))
                before, child_before = cpu_s(pid), cpu_s(child)
                load(
                    int(ready["mqtt"].rpartition(":")[2]),
                    ("--qos", "1", "--count", str(count), "--idle", "2"),
                )
                if turn:  # the first is for warming up
                    own.append((cpu_s(pid) - before) / count * 1e6)
                    others.append((cpu_s(child) - child_before) / count * 1e6)
    for name, own, others in zip(("without a tier", "with a tier"), costs, ranges, strict=True):
        print(
            f"{name:16} {median(own):7.2f} µs a message ({min(own):.2f} to {max(own):.2f}), ",
            end="",
        )
        print(f"range server {median(others):.2f}", flush=True)
    ratio = median(costs[1]) / median(costs[0])
    print(f"{'ratio':16} {ratio:7.3f}", flush=True)
    return ratio


def _ranges_pid(pid: int) -> int:
    children = psutil.Process(pid).children()
    return next(int(one.pid) for one in children if "broker.streams.server" in one.cmdline())


Where = Callable[[Path], AbstractContextManager[tuple[str, list[dict[str, Any]]]]]


def _directory(place: Path) -> AbstractContextManager[tuple[str, list[dict[str, Any]]]]:
    return nullcontext((str(place / "tier"), []))


class _s3(AbstractContextManager[tuple[str, list[dict[str, Any]]]]):
    def __init__(self, place: Path) -> None:
        self._server = S3Server(place)

    def __enter__(self) -> tuple[str, list[dict[str, Any]]]:
        self._server.__enter__()
        self._server.make_bucket("tiers")
        store = {
            "url": "s3://tiers",
            "endpoint": self._server.endpoint,
            "region": "us-east-1",
            **KEYS,
        }
        return "s3://tiers/bench", [store]

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()


def _moving(name: str, place: Path, records: int, url: str, stores: list[dict[str, Any]]) -> None:
    data = place / "data"
    store = RocksStore(data, "os")
    fill(store, records, _TOPICS)
    wanted = Wanted("bench", "epoch", 1, url, 0, None)
    store.commit(Batch(puts={report.wanted_key(LOG.log): msgspec.json.encode(wanted)}))
    size, held, objects = store.size_of(LOG), Held(), 0

    def record(told: TierReport) -> None:
        nonlocal held, objects
        if isinstance(told, Uploaded):
            held, objects = held.with_segment(told.segment), objects + told.segment.size_bytes
            key = report.segment_key(LOG, told.segment.first_offset)
            puts: dict[bytes, bytes | None] = {key: msgspec.json.encode(told.segment)}
            store.commit(Batch(puts={**puts, report.held_key(LOG): msgspec.json.encode(held)}))

    follower, opened = Follower(data, place / "ranges"), _Stores(stores)
    uploads = Uploads(follower, opened, record)
    uploads.step()
    time.sleep(2.1)  # offsets settle
    began_s, used_s = time.perf_counter(), time.process_time()
    while held.next_offset < records:
        uploads.step()
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - used_s
    print(
        f"{name}: {records:,} records, {size / 1e6:.0f} MB, {held.segments} segments, {objects / 1e6:.0f} MB"
    )
    print(
        f"  uploaded at {size / took_s / 1e6:.0f} MB/s, {used_s / records * 1e6:.2f} µs a record",
        flush=True,
    )
    store.trim(LOG, records)
    follower.refresh()
    reader = TieredReader(follower, opened)
    began_s, used_s = time.perf_counter(), time.process_time()
    read = sum(len(message) for message in reader.messages(LOG, 0, records))
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - used_s
    print(
        f"  read at {read / took_s / 1e6:.0f} MB/s, {used_s / records * 1e6:.2f} µs a record",
        flush=True,
    )
    store.close()


class _Stores(TierStores):
    """Takes keys as they are, which settings refuse."""

    def _options(self, url: str) -> dict[str, str]:
        return {name: value for name, value in self._stores[0].items() if name != "url"}


if __name__ == "__main__":
    sys.exit(main())
