"""Stream to table: rows a second that the lake job brings from a stream on disk into a Delta or Iceberg table.

    python -m benchmarks.lake [--rows 3000000] [--format delta] [--shape nested] [--directory DIR] [--s3] [--by-day]
    python -m benchmarks.lake --tables 20 [--rows 1000000] [--format delta] [--directory DIR]
    python -m benchmarks.lake --keys 1000000 [--format delta] [--directory DIR] [--s3]

The store, the range server, Spark and the table are the real ones, all on this machine; only the management API is
a small stand-in that answers what the job asks. With ``--s3`` the table is in an object store, moto on this machine.
With ``--by-day`` records are of three days, and the table is first filled without partitions and then with one a day.
Each record is a row of about 100 B of JSON with five members; with ``--shape nested`` the same five are in two structs,
one of them in an array. Printed are the time until the first rows are in the
table, which is mostly Spark starting, and the rate from there on; then the rate of a replay of the whole table, and the
most memory that the driver and its JVM ever had.

With ``--keys`` the table has a key: first each key gets a row, then each of them is updated once, in another order.
Printed is the rate of the updates.

With ``--tables`` the same rows are filled into one table, and split into so many by a template of their names.
Printed is the processor time of each, and the share of rows a second of processor time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from bridges.spark.broker_side.local import LocalSpark
from bridges.spark.broker_side.settings import LakeSettings
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams.ranges_process import RangesProcess
from tests.support.s3_server import KEYS, S3Server

LOG = LogShard(16)
PAYLOAD = b'{"device":"meter-%04d","temperature":%d.%02d,"pressure":%d,"status":"running-ok","site":"plant-7"}'
COLUMNS = {
    "device": "string",
    "temperature": "double",
    "pressure": "long",
    "status": "string",
    "site": "string",
}
NESTED_PAYLOAD = b'{"device":"meter-%04d","is":{"t":%d.%02d,"p":%d},"in":[{"status":"running-ok","site":"plant-7"}]}'
NESTED_COLUMNS = {
    "device": "string",
    "is": "struct<t: double, p: long>",
    "in": "array<struct<status: string, site: string>>",
}
SHAPES = {"flat": (PAYLOAD, COLUMNS), "nested": (NESTED_PAYLOAD, NESTED_COLUMNS)}
FORMATS = ("delta", "iceberg")
GROUP = 10_000
"""Records of one commit group."""
PATIENCE_S = 600.0
UPSERTS_PER_S = 50_000
DAY_US = 86_400_000_000
BY_DAY = 0.8
"""The share of rows a second that a table with a partition a day must have of those of one without."""
WANTED_PER_S, STORE_PER_S, REPLAY_PER_S, DRIVER_BYTES = 250_000, 100_000, 150_000, 1_000_000_000
FEW, FEW_S = 10, 3.0
"""A replay of so many rows must be done in so many seconds: the median of five."""


def main() -> int:
    """The number of figures that were missed, of one format or both."""
    options = _options()
    missed = 0
    for table_format in options.format or FORMATS:
        place = Path(tempfile.mkdtemp(dir=options.directory))
        try:
            with _table_at(place, in_store=options.s3) as table:
                wanted = STORE_PER_S if options.s3 else WANTED_PER_S
                payload, columns = SHAPES[options.shape]
                given = [{"name": name, "type": kind} for name, kind in columns.items()]
                spec = {"format": table_format, "columns": given, **table}
                if options.keys:
                    missed += asyncio.run(measure_upserts(place, options.keys, spec))
                elif options.by_day:
                    missed += _compare(place, options.rows, spec, payload)
                elif options.tables:
                    _split(place, options.rows, spec, options.tables)
                else:
                    missed += asyncio.run(
                        measure(place, options.rows, spec, wanted, payload)
                    ).missed
        finally:
            shutil.rmtree(place)
    return missed


def _compare(place: Path, rows: int, table: dict[str, Any], payload: bytes) -> int:
    """Fill a table without partitions and one with a partition a day; 1 where the second is too slow."""
    cpu_us = []
    for name, layout in (("plain", {}), ("by-day", {"partition_by": ["day(_published_at)"]})):
        (place / name).mkdir()
        path = {"path": f"{table['path']}-{name}"}
        run = asyncio.run(
            measure(place / name, rows, {**table, **path, **layout}, WANTED_PER_S, payload, days=3)
        )
        cpu_us.append(run.cpu_us)
        print(name, flush=True)
    share = cpu_us[0] / cpu_us[1]
    print(f"by day {share:.0%} of the rows a second of processor time (wanted {BY_DAY:.0%})")
    return int(share < BY_DAY)


def _split(place: Path, rows: int, table: dict[str, Any], tables: int) -> None:
    """Fill one table and then many, twice in turn, with rows of as many sites."""
    payload = PAYLOAD.replace(b"plant-7", b"plant-%02d")
    cpu_us: dict[str, list[float]] = {"one table": [], f"{tables} tables": []}
    for turn in range(2):
        for name, layout in zip(
            cpu_us, ({}, {"tables": "t_${site}", "max_tables": tables}), strict=True
        ):
            there = place / f"{name}-{turn}".replace(" ", "-")
            there.mkdir()
            one = {**table, **layout, "path": f"{table['path']}-{there.name}"}
            cpu_us[name].append(asyncio.run(measure_fill(there, rows, one, payload, tables)))
            print(
                f"{table['format']}, {name}: {cpu_us[name][-1]:.2f} s of processor time a million rows",
                flush=True,
            )
    alone, split = (min(one) for one in cpu_us.values())
    print(f"{tables} tables {alone / split:.0%} of the rows a second of processor time of one")


async def measure_fill(
    place: Path, rows: int, table: dict[str, Any], payload: bytes, sites: int
) -> float:
    """Fill a table once Spark runs; the processor time of the job a row, in microseconds."""
    (place / "data").mkdir()
    store = RocksStore(place / "data", "os")
    ranges = RangesProcess(place / "data")
    fill(store, GROUP, payload, sites=sites)
    await ranges.start()
    api = Api(store, ranges, table)
    spark = LocalSpark(LakeSettings(), place / "lake", place / "lake.log")
    spark.want(True)
    await spark.start(api.url, "token")
    try:
        await api.wait_for(lambda report: report["rows"] == GROUP)
        before_s = _cpu_s(psutil.Process(spark.state()["pid"]))
        fill(store, rows, payload, sites=sites)
        last = await api.wait_for(lambda report: report["rows"] == rows + GROUP)
        assert len(last["tables"]) == (sites if "tables" in table else 0), last
        return (_cpu_s(psutil.Process(spark.state()["pid"])) - before_s) * 1e6 / rows
    finally:
        await spark.stop()
        await ranges.stop()
        api.stop()
        store.close()


@contextmanager
def _table_at(place: Path, *, in_store: bool) -> Iterator[dict[str, Any]]:
    """Where the table is, as the API says it."""
    if not in_store:
        yield {"path": str(place / "lake" / "readings")}
        return
    (place / "s3").mkdir()
    with S3Server(place / "s3") as store:
        store.make_bucket("lake")
        keys = {name: f"${{env:SLUICE_SECRET_{name.upper()}}}" for name in KEYS}
        os.environ |= {f"SLUICE_SECRET_{name.upper()}": value for name, value in KEYS.items()}
        where = {"url": "s3://lake", "endpoint": store.endpoint, "region": "us-east-1", **keys}
        yield {"path": "s3://lake/tables/readings", "store": where}


class Run(NamedTuple):
    """How many figures were missed, and the processor time of the job and its children for a row, after the first
    ones, in microseconds."""

    missed: int
    cpu_us: float


async def measure(
    place: Path, rows: int, table: dict[str, Any], wanted_per_s: int, payload: bytes, days: int = 1
) -> Run:
    """Fill a stream, start the job on it, time what it reports, and print."""
    (place / "data").mkdir()
    store = RocksStore(place / "data", "os")
    ranges = RangesProcess(place / "data")
    fill(store, rows, payload, days)
    await ranges.start()
    api = Api(store, ranges, table)
    spark = LocalSpark(LakeSettings(), place / "lake", place / "lake.log")
    spark.want(True)
    began = time.monotonic()
    await spark.start(api.url, "token")
    try:
        first = await api.wait_for(lambda report: report["rows"] > 0)
        first_at, first_rows = time.monotonic(), first["rows"]
        at_first_s = _cpu_s(psutil.Process(spark.state()["pid"]))
        print(
            f"{table['format']}: {first_rows:,} rows after {first_at - began:.1f} s, Spark's start included"
        )
        await api.wait_for(lambda report: report["rows"] >= rows)
        filled = (rows - first_rows) / (time.monotonic() - first_at)
        missed = _tell(f"sustained over the other {rows - first_rows:,} rows", filled, wanted_per_s)
        cpu_us = (
            (_cpu_s(psutil.Process(spark.state()["pid"])) - at_first_s) * 1e6 / (rows - first_rows)
        )
        print(f"{cpu_us:.2f} s of processor time a million of them")
        missed += _tell("of a replay", rows / await api.replay(0, rows), REPLAY_PER_S)
        took_s = sorted([await api.replay(start, start + FEW) for start in range(0, 5 * FEW, FEW)])[
            2
        ]
        print(
            f"{took_s:.1f} s for a replay of {FEW} rows (wanted {FEW_S:g}, {'ok' if took_s <= FEW_S else 'MISSED'})"
        )
        missed += took_s > FEW_S
        driver = psutil.Process(spark.state()["pid"])
        [java] = [one for one in driver.children() if one.name() == "java"]
        size, jvm = _peak_bytes(driver.pid), _peak_bytes(java.pid)
        verdict = "ok" if size <= DRIVER_BYTES else "MISSED"
        print(
            f"driver at most {size / 1e6:,.0f} MB (wanted {DRIVER_BYTES / 1e6:,.0f}, {verdict}), JVM {jvm / 1e6:,.0f}"
        )
        return Run(missed + (size > DRIVER_BYTES), cpu_us)
    finally:
        await spark.stop()
        await ranges.stop()
        api.stop()
        store.close()


async def measure_upserts(place: Path, keys: int, table: dict[str, Any]) -> int:
    """Update each key of a table once, time what the job reports, and print; 1 if the rate was missed."""
    (place / "data").mkdir()
    store = RocksStore(place / "data", "os")
    ranges = RangesProcess(place / "data")
    for seed in (0, 1):
        fill_keys(store, keys, seed)
    await ranges.start()
    api = Api(store, ranges, {**table, "key": ["device"]})
    spark = LocalSpark(LakeSettings(), place / "lake", place / "lake.log")
    spark.want(True)
    await spark.start(api.url, "token")
    try:
        first = _end(await api.wait_for(lambda report: _end(report) >= keys))
        driver, began = psutil.Process(spark.state()["pid"]), time.monotonic()
        worked = _cpu_s(driver)
        last = await api.wait_for(lambda report: _end(report) >= 2 * keys)
        updates, took, worked = 2 * keys - first, time.monotonic() - began, _cpu_s(driver) - worked
        assert last["rows"] == keys, last
        print(
            f"{table['format']}: {updates:,} updates of {keys:,} keys in {took:.1f} s, "
            f"{worked:.1f} s of processors; {last['files']} files; "
            f"driver at most {_peak_bytes(driver.pid) / 1e6:,.0f} MB"
        )
        return _tell("of updates", updates / took, UPSERTS_PER_S)
    finally:
        await spark.stop()
        await ranges.stop()
        api.stop()
        store.close()


def _end(report: dict[str, Any]) -> int:
    return int((report.get("offsets") or {}).get("0", 0))


def fill_keys(store: RocksStore, keys: int, seed: int) -> None:
    """Append a record a key, in a random order."""
    now = time.time_ns() // 1000
    order = np.random.default_rng(seed).permutation(keys)
    for first in range(0, keys, GROUP):
        group = order[first : first + GROUP].tolist()
        store.commit(Batch({LOG: [_record(number, PAYLOAD, now, number) for number in group]}))


def _cpu_s(process: psutil.Process) -> float:
    """The processor time of a process and of its children, those that have ended included."""
    times = []
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times.append(one.cpu_times())
    return float(
        sum(one.user + one.system + one.children_user + one.children_system for one in times)
    )


def fill(
    store: RocksStore, rows: int, payload: bytes = PAYLOAD, days: int = 1, sites: int = 0
) -> None:
    """Append the records, in commit groups as the broker makes them, evenly over the days before now, and in turn of so
    many sites, where the payload has a place for one."""
    now, apart = time.time_ns() // 1000, days * DAY_US // rows
    for first in range(0, rows, GROUP):
        numbers = range(first, min(first + GROUP, rows))
        records = [
            _record(number, payload, now - (rows - number) * apart, sites=sites)
            for number in numbers
        ]
        store.commit(Batch({LOG: records}))


def _record(
    number: int, template: bytes, at_us: int, device: int | None = None, sites: int = 0
) -> StreamRecord:
    device = number % 50 if device is None else device
    site = (number % sites,) if sites else ()
    payload = template % (device, number % 40, number % 100, 1000 + number % 30, *site)
    topic = f"plant/7/meter/{number % 50}"
    return StreamRecord(at_us, topic, payload, 1, False, f"meter-{number % 50}", rule="readings")


def _tell(what: str, per_s: float, wanted: int) -> int:
    print(
        f"{per_s:,.0f} rows/s {what} (wanted {wanted:,}, {'ok' if per_s >= wanted else 'MISSED'})",
        flush=True,
    )
    return int(per_s < wanted)


def _peak_bytes(pid: int) -> int:
    """The most memory that a process ever had resident."""
    [line] = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    ]
    return int(line.split()[1]) * 1024


class Api:
    """What the job asks of the management API: positions, one table, and a place for its reports."""

    def __init__(self, store: RocksStore, ranges: RangesProcess, table: dict[str, Any]) -> None:
        pace = {"commit_interval": 1.0, "commit_rows": 100_000}
        self._table: dict[str, Any] = {"name": "readings", "stream": "readings", **pace, **table}
        self._store, self._ranges = store, ranges
        self._loop = asyncio.get_running_loop()
        self._reported = asyncio.Event()
        self._report: dict[str, Any] = {"rows": 0}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    async def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first report of which the condition holds."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self._report):
                self._reported.clear()
                await self._reported.wait()
        return self._report

    async def replay(self, start: int, end: int) -> float:
        """Order a replay, as the broker does; the seconds until the broker knows that it is done."""
        began, id = time.monotonic(), f"r{time.monotonic_ns()}"
        order = {
            "id": id,
            "ranges": [{"shard": 0, "start": start, "end": end}],
            "retype": None,
            "cancel": False,
        }
        order |= {
            "accept_gap": False,
            "clean": None,
            "columns": self._table["columns"],
            "rule_text": None,
        }
        self._table["replay"] = order

        def is_over(report: dict[str, Any]) -> bool:
            replay = report["replay"] or {}
            return replay.get("id") == id and replay["state"] != "running"

        done = (await self.wait_for(is_over))["replay"]
        assert (done["result"] or {}).get("rows_after") == end - start, done
        self._table["replay"] = None
        return time.monotonic() - began

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> Any:
        """The document for a request."""
        if path.endswith("/positions"):
            held = self._store.range_of(LOG)
            shard = {
                "shard": 0,
                "first_offset": str(held.first_offset),
                "next_offset": str(held.next_offset),
            }
            place = {
                "stream": "readings",
                "kind": "rows",
                "epoch": "benchmark",
                "log": LOG.log,
                "shards": [shard],
            }
            return {**place, **self._ranges.access(LOG.log)}
        if path.endswith("/report"):
            self._report = json.loads(body)
            if self._report["last_error"]:
                print(f"the job says: {self._report['last_error']['message']}")
            self._loop.call_soon_threadsafe(self._reported.set)
            return {}
        return [self._table]


def _handler(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            received = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.dumps(api.answer(self.path.partition("?")[0], received)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: figures are printed, not requests."""

    return Handler


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument(
        "--keys", type=int, default=0, help="measure a table with so many keys instead"
    )
    parser.add_argument(
        "--tables", type=int, default=0, help="compare so many tables by a template with one"
    )
    parser.add_argument(
        "--format", choices=FORMATS, action="append", help="default: both, one after the other"
    )
    parser.add_argument("--shape", choices=SHAPES, default="flat", help="of the rows")
    parser.add_argument("--s3", action="store_true", help="table in an S3 store on this machine")
    parser.add_argument(
        "--by-day",
        action="store_true",
        help="compare a table with a partition a day with one without",
    )
    parser.add_argument("--directory", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
