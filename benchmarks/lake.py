"""Stream to table: rows a second that the lake job brings from a stream on disk into a Delta or Iceberg table.

    python benchmarks/lake.py [--rows 3000000] [--format delta] [--directory DIR]

The store, the range server, Spark and the table are the real ones, all on this machine; only the management API is
a small stand-in that answers what the job asks. Each record is a row of about 100 B of JSON with five members. Printed
are the time until the first rows are in the table, which is mostly Spark starting, and the rate from there on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bridges.spark.local import LocalSpark
from bridges.spark.settings import LakeSettings
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams.ranges_process import RangesProcess

LOG = LogShard(16)
PAYLOAD = b'{"device":"meter-%04d","temperature":%d.%02d,"pressure":%d,"status":"running-ok","site":"plant-7"}'
COLUMNS = {"device": "string", "temperature": "double", "pressure": "long", "status": "string", "site": "string"}
GROUP = 10_000
"""Records of one commit group."""
PATIENCE_S = 600.0


def main() -> None:
    """Measure once and print."""
    options = _options()
    place = Path(tempfile.mkdtemp(dir=options.directory))
    try:
        asyncio.run(measure(place, options.rows, options.format))
    finally:
        shutil.rmtree(place)


async def measure(place: Path, rows: int, table_format: str) -> None:
    """Fill a stream, start the job on it, and time what it reports."""
    (place / "data").mkdir()
    store = RocksStore(place / "data", "os")
    ranges = RangesProcess(place / "data")
    fill(store, rows)
    await ranges.start()
    api = Api(store, ranges, {"format": table_format, "path": str(place / "lake" / "readings")})
    spark = LocalSpark(LakeSettings(), place / "lake", place / "lake.log")
    spark.want(True)
    began = time.monotonic()
    await spark.start(api.url, "token")
    try:
        first = await api.wait_for(lambda report: report["rows"] > 0)
        first_at, first_rows = time.monotonic(), first["rows"]
        print(f"{first_rows:,} rows after {first_at - began:.1f} s, Spark's start included")
        await api.wait_for(lambda report: report["rows"] >= rows)
        took_s = time.monotonic() - first_at
        print(f"{(rows - first_rows) / took_s:,.0f} rows/s sustained over the other {rows - first_rows:,} rows")
    finally:
        await spark.stop()
        await ranges.stop()
        api.stop()
        store.close()


def fill(store: RocksStore, rows: int) -> None:
    """Append the records, in commit groups as the broker makes them."""
    for first in range(0, rows, GROUP):
        store.commit(Batch({LOG: [_record(number) for number in range(first, min(first + GROUP, rows))]}))


def _record(number: int) -> StreamRecord:
    payload = PAYLOAD % (number % 50, number % 40, number % 100, 1000 + number % 30)
    topic = f"plant/7/meter/{number % 50}"
    return StreamRecord(time.time_ns() // 1000, topic, payload, 1, False, f"meter-{number % 50}", rule="readings")


class Api:
    """What the job asks of the management API: positions, one table, and a place for its reports."""

    def __init__(self, store: RocksStore, ranges: RangesProcess, table: dict[str, str]) -> None:
        columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
        pace = {"commit_interval": 1.0, "commit_rows": 100_000}
        self._table = {"name": "readings", "stream": "readings", "columns": columns, **pace, **table}
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

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, body: bytes) -> Any:
        """The document for a request."""
        if path.endswith("/positions"):
            held = self._store.range_of(LOG)
            shard = {"shard": 0, "first_offset": str(held.first_offset), "next_offset": str(held.next_offset)}
            place = {"stream": "readings", "kind": "rows", "epoch": "benchmark", "log": LOG.log, "shards": [shard]}
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--format", choices=("delta", "iceberg"), default="delta")
    parser.add_argument("--directory", type=Path, default=None)
    return parser.parse_args()


if __name__ == "__main__":
    main()
