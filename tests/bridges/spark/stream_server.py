"""A small broker side for tests: streams in memory, the management API's part that Spark needs, and a range server."""

from __future__ import annotations

import io
import json
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from broker.core.reader_token import stream_of
from broker.core.topic import TopicFilter
from broker.storage.records import of_topics
from pyspark_sluice.records import WIRE_SCHEMA

TOKEN = "test-token"
START_US = 1_767_225_600_000_000
"""When the first record of a stream was published (2026-01-01); each record is a millisecond after the one before."""


@dataclass
class MemoryShard:
    """Records of a shard as one table, from ``first`` on."""

    records: pa.Table = field(default_factory=WIRE_SCHEMA.empty_table)
    first: int = 0

    @property
    def next(self) -> int:
        return self.first + int(self.records.num_rows)


@dataclass
class MemoryStream:
    """A stream of one or more shards."""

    name: str
    kind: str
    log: int
    shards: list[MemoryShard]
    epoch: str = field(default_factory=lambda: str(uuid.uuid4()))


class StreamServer:
    """Streams, positions, ranges, tables and reports over HTTP, with the contract of the real broker."""

    def __init__(self) -> None:
        self.streams: dict[str, MemoryStream] = {}
        self.tables: dict[str, dict[str, Any]] = {}
        self.reports: dict[str, dict[str, Any]] = {}
        self.ranges_served = 0
        self.failures = 0
        """How many of the next range requests answer 503."""
        self.cut_after: int | None = None
        """When set, the next range answer ends after so many records, once."""
        self._ticket = ""
        self._port = 0
        self._servers: list[ThreadingHTTPServer] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def is_serving(self) -> bool:
        return bool(self._servers)

    def start(self) -> None:
        """Serve; a second start after ``stop`` is a broker that came back on its port, with another range server."""
        self._ticket = uuid.uuid4().hex
        for port in (self._port, 0):
            server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self._servers.append(server)
        self._port = self._servers[0].server_port

    def stop(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()
        self._servers = []

    def stop_ranges(self) -> None:
        """Serve no more records."""
        ranges = self._servers[-1]
        ranges.shutdown()
        ranges.server_close()

    def make(self, name: str, kind: str = "rows", shards: int = 1) -> MemoryStream:
        """A new empty stream; one of the same name is replaced, with another epoch."""
        stream = MemoryStream(
            name, kind, 100 + len(self.streams), [MemoryShard() for _ in range(shards)]
        )
        self.streams[name] = stream
        return stream

    def append(self, name: str, payloads: Iterable[bytes | dict[str, Any]], shard: int = 0) -> None:
        """Append records, one a payload; dictionaries become JSON."""
        into = self.streams[name].shards[shard]
        data = [item if isinstance(item, bytes) else json.dumps(item).encode() for item in payloads]
        into.records = pa.concat_tables([into.records, record_table(into.next, data)])

    def trim(self, name: str, before: int, shard: int = 0) -> None:
        kept = self.streams[name].shards[shard]
        kept.records, kept.first = kept.records.slice(before - kept.first), before

    def answer(self, method: str, target: str, token: str, body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body for a request."""
        parts = urlsplit(target)
        path = [unquote(part) for part in parts.path.strip("/").split("/")]
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if path[0] == "streams":
            return (
                self._range(path, query)
                if token == self._ticket
                else _problem(401, "the ticket is not valid")
            )
        of_reader = stream_of(token, TOKEN)
        if token != TOKEN and of_reader is None:
            return _problem(401, "the token is not valid")
        if of_reader is not None and path[2:] != ["streams", of_reader, "positions"]:
            return _problem(403, f"the token only reads records of {of_reader!r}")
        match [method, *path[2:]]:
            case ["GET", "streams", name, "positions"] if name in self.streams:
                return _json(self._positions(self.streams[name], query.get("at")))
            case ["POST", "lake", "tables:open"]:
                return _json({"tables": list(self.tables.values())})
            case ["PUT", "lake", "tables", name, "report"] if name in self.tables:
                self.reports[name] = json.loads(body)
                return 204, "application/json", b""
        return _problem(404, f"there is no {'/'.join(path)}")

    def _positions(self, stream: MemoryStream, at: str | None) -> dict[str, Any]:
        shards = []
        for number, shard in enumerate(stream.shards):
            entry = {
                "shard": number,
                "first_offset": str(shard.first),
                "next_offset": str(shard.next),
            }
            if at is not None:
                entry["at_offset"] = str(_offset_at(shard, at))
            shards.append(entry)
        return {
            "stream": stream.name,
            "kind": stream.kind,
            "epoch": stream.epoch,
            "log": stream.log,
            "shards": shards,
            "ranges_url": f"http://127.0.0.1:{self._servers[-1].server_port}",
            "ticket": self._ticket,
            "now_us": str(time.time_ns() // 1000),
        }

    def _range(self, path: Sequence[str], query: dict[str, str]) -> tuple[int, str, bytes]:
        stream = next((one for one in self.streams.values() if one.log == int(path[1])), None)
        if stream is None:
            return _problem(404, f"there is no log {path[1]}")
        if self.failures:
            self.failures -= 1
            return _problem(503, "starting")
        shard, start, end = stream.shards[int(path[2])], int(query["from"]), int(query["to"])
        if start < shard.first or end > shard.next:
            return _problem(416, f"the shard holds [{shard.first}, {shard.next})")
        self.ranges_served += 1
        if self.cut_after is not None:
            end, self.cut_after = min(end, start + self.cut_after), None
        found = shard.records.slice(start - shard.first, end - start)
        if "filter" in query:
            wanted = TopicFilter.parse(query["filter"])
            found = pa.Table.from_batches(
                [of_topics(one, wanted) for one in found.to_batches()], WIRE_SCHEMA
            )
        return 200, "application/vnd.apache.arrow.stream", _ipc(found)


def record_table(first: int, payloads: Sequence[bytes]) -> pa.Table:
    """Records with these payloads, offsets from ``first`` on."""
    count = len(payloads)
    columns = {
        "offset": pa.array(range(first, first + count), pa.int64()),
        "ts": pa.array(
            [START_US + 1000 * (first + i) for i in range(count)], WIRE_SCHEMA.field("ts").type
        ),
        "topic": pa.array([f"plant/7/meter/{i % 5}" for i in range(count)]),
        "payload": pa.array(payloads, pa.binary()),
        "qos": pa.array([1] * count, pa.int8()),
        "retain": pa.array([False] * count),
        "client_id": pa.array([f"meter-{i % 5}" for i in range(count)]),
        "username": pa.nulls(count, pa.string()),
        "properties": pa.nulls(count, pa.string()),
        "rule": pa.array(["hot"] * count),
    }
    return pa.table(columns, schema=WIRE_SCHEMA)


def _offset_at(shard: MemoryShard, at: str) -> int:
    wanted = (
        int(at) * 1000
        if at.isdigit()
        else int(datetime.fromisoformat(at).astimezone(UTC).timestamp() * 1e6)
    )
    times = shard.records.column("ts").cast(pa.int64()).to_pylist()
    return shard.first + next((i for i, ts in enumerate(times) if ts >= wanted), len(times))


def _ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, WIRE_SCHEMA) as writer:
        writer.write_table(table, max_chunksize=16_384)
    return sink.getvalue()


def _json(document: Any) -> tuple[int, str, bytes]:
    return 200, "application/json", json.dumps(document).encode()


def _problem(status: int, detail: str) -> tuple[int, str, bytes]:
    return (
        status,
        "application/problem+json",
        json.dumps({"status": status, "detail": detail}).encode(),
    )


def _handler(server: StreamServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status, kind, body = server.answer(
                self.command, self.path, token, self.rfile.read(length)
            )
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: tests read assertions, not access logs."""

    return Handler
