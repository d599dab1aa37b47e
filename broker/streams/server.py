"""The range server: a process of its own that serves offset ranges of streams as Arrow over HTTP.

It reads the store as a RocksDB secondary, so that a cluster that reads a stream takes nothing from the broker's
process; and what is in tiers from their object stores. Started by ``broker.streams.ranges_process`` with one line of
JSON on standard input; answers with one line of JSON on standard output when it listens, and one whenever the topic
index or a tier changed; ends when its input does, or when its parent dies.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import chain, islice
from pathlib import Path
from resource import RLIMIT_NOFILE, getrlimit
from socket import AF_INET6, SHUT_RDWR, SO_REUSEADDR, SOCK_STREAM, SOL_SOCKET, getaddrinfo, socket
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import parse_qs, urlsplit

import msgspec

from broker.core.errors import PeerError, SluiceError
from broker.core.lazy_module import LazyModule
from broker.core.process import die_with_parent
from broker.core.room import Room
from broker.core.topic import TopicFilter
from broker.storage import frames
from broker.storage.rocksdb.follower import Follower, FrameReader, RangeMissing
from broker.storage.store import LogShard
from broker.storage.without_pandas import keep_pandas_out
from broker.streams import tickets
from broker.streams.certificate import Certificate
from broker.streams.other_cells import CELL_LOGS
from broker.streams.tier import upload
from broker.streams.tier.objects import TierStores
from broker.streams.tier.reading import TieredReader
from broker.streams.tier.report import TierReport
from broker.streams.topic_index import upkeep
from broker.streams.topic_index.index import Page, Progress, TopicIndex, messages, read_page
from broker.streams.topic_index.report import IndexReport
from broker.streams.topic_index.upkeep import Upkeep

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.storage import records
    from broker.streams import files
else:
    pa = LazyModule("pyarrow")
    records = LazyModule("broker.storage.records")
    files = LazyModule("broker.streams.files")

ARROW: Final = "arrow"
MEDIA_TYPE: Final = "application/vnd.apache.arrow.stream"
# Time limit of a request that waits for offsets that are not there yet.
WAIT_S: Final = 5.0
# Requests with a good ticket that are served at a time; further ones wait. As many more wait for offsets.
MAX_REQUESTS: Final = 64
# Bytes, and the time in which a reader has to take them while other requests wait.
_SLOW_BYTES: Final = 256 * 1024
_SLOW_S: Final = 5.0
# Half of them may be without a request that had a good ticket; an older one of these is closed for each further one.
# A quarter of the file descriptors, where that is less.
MAX_CONNECTIONS: Final = 1024
# The most records that a page may be asked for.
MAX_PAGE: Final = 10_000
_IDLE_TIMEOUT_S: Final = 120.0
# Time limit of a connection without a request that has a good ticket.
_UNAUTHENTICATED_S: Final = 10.0
_CHUNK_BYTES: Final = 512 * 1024
# Maximum size of a request's lines together.
_HEAD_BYTES: Final = 32 * 1024
_telling = threading.Lock()


class Asked(NamedTuple):
    """A request's parameters."""

    shard: LogShard
    start: int
    end: int
    topic_filter: TopicFilter | None
    limit: int | None
    form: str


class AskedTime(NamedTuple):
    """A request for the offset of a time in the tier."""

    shard: LogShard
    at_us: int


class Refused(Exception):
    """A request that gets no records: the status, what to do about it, and further members of the problem."""

    def __init__(self, status: HTTPStatus, detail: str, **members: str) -> None:
        self.status = status
        self.members = members
        super().__init__(detail)


class _Reader:
    """A connection, as the room sees it. ``link`` is its socket, or that of TLS."""

    def __init__(self, link: socket) -> None:
        self.link = link
        self.opened_s = time.monotonic()
        self.is_busy = self.is_cut = False
        self._taken_bytes = 0
        self._blocked_s = 0.0
        self._sending_since_s: float | None = None

    def send(self, data: memoryview) -> None:
        """Send bytes, and measure how long the reader takes for them."""
        while data:
            began_s = self._sending_since_s = time.monotonic()
            size = self.link.send(data)
            self._sending_since_s = None
            self._blocked_s += time.monotonic() - began_s
            self._taken_bytes += size
            if self._taken_bytes >= _SLOW_BYTES:
                self.served_anew()
            data = data[size:]

    def served_anew(self) -> None:
        """Measure from here on."""
        self._taken_bytes = 0
        self._blocked_s = 0.0

    def blocked_s(self, now_s: float) -> float:
        """Time for which the server has waited for the reader to take the last bytes."""
        since_s = self._sending_since_s
        return self._blocked_s + (0.0 if since_s is None else now_s - since_s)

    def make_room(self) -> None:
        """Cut the connection off; its thread ends then."""
        self.is_cut = True
        with suppress(OSError):  # it has ended already, or TLS is taking the descriptor
            socket.shutdown(self.link, SHUT_RDWR)


class _Places:
    """Places of requests that are served, handed on in the order of arrival. While requests wait, readers that do not
    take what they asked for lose theirs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._served: set[_Reader] = set()
        self._waiting: deque[tuple[_Reader, threading.Event]] = deque()

    @contextmanager
    def taken(self, reader: _Reader) -> Iterator[None]:
        """A place; waits until one is free."""
        reader.served_anew()
        turn = threading.Event()
        with self._lock:
            if len(self._served) < self._most:
                self._served.add(reader)
                turn.set()
            else:
                self._waiting.append((reader, turn))
        while not turn.wait(1):
            self._end_slow_readers()
        try:
            yield
        finally:
            with self._lock:
                self._served.discard(reader)
                if self._waiting:
                    following, turn = self._waiting.popleft()
                    self._served.add(following)
                    turn.set()

    def _end_slow_readers(self) -> None:
        """Cut off as many as wait, the slowest first. They ask for the rest again."""
        now_s = time.monotonic()
        with self._lock:
            slow = [reader for reader in self._served if reader.blocked_s(now_s) > _SLOW_S]
            slow.sort(key=lambda reader: -reader.blocked_s(now_s))
            ended = slow[: len(self._waiting)]
        for reader in ended:
            reader.make_room()


class OtherStores:
    """The stores of other cells, each opened when it is first read. ``directories`` are theirs by the number of the
    cell, RocksDB notes what it reads in folders of ``scratch``."""

    def __init__(self, directories: Mapping[int, Path], scratch: Path, stores: TierStores) -> None:
        self._directories = directories
        self._scratch = scratch
        self._stores = stores
        self._readers: dict[int, TieredReader] = {}
        self._opening = threading.Lock()

    def reader(self, cell: int) -> TieredReader:
        """Reads the store of a cell.

        Raises:
            Refused: there is no such cell.
            Unavailable: it has no store yet, or one that cannot be read.
        """
        with self._opening:
            if cell not in self._readers:
                if cell not in self._directories:
                    raise Refused(HTTPStatus.NOT_FOUND, f"there is no cell {cell}")
                follower = Follower(self._directories[cell], self._scratch / str(cell))
                self._readers[cell] = TieredReader(follower, self._stores)
            return self._readers[cell]


class RangeServer(HTTPServer):
    """A thread a connection, since a thread that hands stored bytes to a socket is out of Python's way: 2.5 GB/s here,
    where uvicorn and Starlette carried 0.6 to 1.0. Memory is bounded by one piece a request that is served."""

    request_queue_size = 512

    def __init__(
        self,
        host: str,
        port: int,
        reader: TieredReader,
        secret: bytes,
        certificate: Certificate | None = None,
        others: OtherStores | None = None,
    ) -> None:
        family, _, _, _, address = getaddrinfo(host, port, type=SOCK_STREAM)[0]
        self.address_family = AF_INET6 if family == AF_INET6 else self.address_family
        self.reader = reader
        self.others = others
        self.secret = secret
        self._certificate = certificate
        self.upkeep: Upkeep | None = None
        descriptors, _ = getrlimit(RLIMIT_NOFILE)
        most = min(MAX_CONNECTIONS, descriptors // 4)
        self._room = Room[_Reader](most, most // 2)
        self._room_lock = threading.Lock()
        self.places = _Places(MAX_REQUESTS)
        self.waits = threading.BoundedSemaphore(MAX_REQUESTS)
        # ``_serve`` makes ours
        super().__init__((str(address[0]), int(address[1])), BaseHTTPRequestHandler)

    @property
    def index(self) -> TopicIndex | None:
        """The topic index, once there is one."""
        return None if self.upkeep is None else self.upkeep.index

    def reading(self, shard: LogShard) -> tuple[TieredReader, TopicIndex | None, LogShard]:
        """The reader of a shard, and its place there. The topic index is that of the own cell.

        Raises:
            Refused: there is no such cell.
            Unavailable: its store cannot be read.
        """
        cell, log = divmod(shard.log, CELL_LOGS)
        if cell == 0 or self.others is None:
            return self.reader, self.index, shard
        return self.others.reader(cell), None, LogShard(log, shard.shard)

    def server_bind(self) -> None:
        """Bind without asking a name server for this machine's name, as the base class does. A port is free
        at once, although a killed process has left connections on it behind."""
        self.socket.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def process_request(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        assert isinstance(request, socket)
        reader = _Reader(request)
        with self._room_lock:
            is_taken = self._room.enter(reader, client_address[0])
        if not is_taken:
            self.shutdown_request(request)
            return
        threading.Thread(
            target=self._serve, args=(request, client_address, reader), daemon=True
        ).start()

    def service_actions(self) -> None:
        """Close connections that did not authenticate in time. The base class calls this twice a second."""
        last_s = time.monotonic() - _UNAUTHENTICATED_S
        with self._room_lock:
            for reader in self._room.lobby:
                if reader.opened_s < last_s:
                    self._room.leave(reader)
                    reader.make_room()

    @contextmanager
    def busy(self, reader: _Reader) -> Iterator[None]:
        """A connection with a request that has a good ticket keeps its place in the room."""
        reader.is_busy = True
        with self._room_lock:
            self._room.authenticated(reader)
        try:
            yield
        finally:
            reader.is_busy = False
            with self._room_lock:
                self._room.answered(reader)

    def _serve(self, request: socket, client_address: Any, reader: _Reader) -> None:
        """Serve one connection, over TLS where there is a certificate; the handshake is this thread's."""
        try:
            if self._certificate is None:
                _Handler(request, client_address, self, reader)
            else:
                context = self._certificate.context()
                with context.wrap_socket(
                    request, server_side=True, do_handshake_on_connect=False
                ) as secured:
                    reader.link = secured
                    if not reader.is_cut:
                        secured.do_handshake()
                        _Handler(secured, client_address, self, reader)
        except Exception:  # noqa: BLE001  one connection must not end the others
            self.handle_error(request, client_address)
        finally:
            with self._room_lock:
                self._room.leave(reader)
            self.shutdown_request(request)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Say what failed in a line; that a client went away is not worth one."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"range server: {client_address}: {error!r}", file=sys.stderr)


class _Head(io.BufferedReader):
    """The lines of requests. ``http.server`` alone takes 6.5 MB of them for each, before it knows of any ticket."""

    left = 0
    """The bytes that the lines of the present request may still have."""

    def readline(self, size: int | None = -1) -> bytes:
        """Raise ``HTTPException`` where the lines are too long together, which is answered with 431."""
        assert size is not None
        line = super().readline(min(size, self.left + 1))
        self.left -= len(line)
        if self.left < 0:
            raise HTTPException(f"expected headers of at most {_HEAD_BYTES} bytes together")
        return line


class _Wire(io.BufferedIOBase):
    """The sending side of a connection."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._reader.send(view)
        return len(view)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "sluice"
    sys_version = ""
    disable_nagle_algorithm = True
    timeout = _IDLE_TIMEOUT_S
    server: RangeServer

    def __init__(
        self, request: socket, client_address: Any, server: RangeServer, reader: _Reader
    ) -> None:
        self._reader = reader
        super().__init__(request, client_address, server)

    def setup(self) -> None:
        """Read the lines of requests within a bound, and measure how fast answers are taken."""
        super().setup()
        self.rfile = self._head = _Head(self.rfile.detach())
        self.wfile = _Wire(self._reader)

    def handle_one_request(self) -> None:
        """Serve a request, or end the connection where its first line is too long."""
        self._head.left = _HEAD_BYTES
        try:
            super().handle_one_request()
        except HTTPException:
            self.close_connection = True

    def do_GET(self) -> None:
        """``/streams/LOG/SHARD?from=A&to=B``: the records [A, B) as an Arrow IPC stream; with ``&filter=FILTER`` those
        whose topics it matches, with ``&format=ndjson`` or ``parquet`` as such a file. With ``&limit=N`` as well a page
        of them: at least N records, if the scan finds enough of them within its bound; the header
        ``next-offset`` is the offset to resume from. ``/streams/LOG/SHARD?at=TIME``, in microseconds: the first offset
        in the tier that is at or after the time, as text; empty if there is none."""
        try:
            shard, query = self._authenticated()
        except Refused as refused:
            self._refuse(refused)
            return
        with self.server.busy(self._reader):
            self._answer(shard, query)

    def _answer(self, shard: LogShard, query: dict[str, list[str]]) -> None:
        with ExitStack() as place:
            try:
                reader, index, shard = self.server.reading(shard)
                asked = _asked(shard, query)
                if isinstance(asked, Asked):
                    self._wait_for(reader, asked)
                place.enter_context(self.server.places.taken(self._reader))
                if isinstance(asked, AskedTime):
                    offset = reader.offset_at(*asked)
                    self._send_body(b"" if offset is None else b"%d" % offset, "text/plain")
                    return
                if asked.limit is not None:
                    self._send_page(_page(reader, index, asked, asked.limit))
                    return
                pieces = (_pieces if asked.form == ARROW else _file)(reader, index, asked)
                first = next(pieces)
            except Refused as refused:
                self._refuse(refused)
            except RangeMissing as missing:
                assert isinstance(asked, Asked)
                self._refuse(_missing(missing, asked))
            except SluiceError as error:
                self._refuse(Refused(HTTPStatus.SERVICE_UNAVAILABLE, str(error)))
            else:
                self._send(
                    first,
                    pieces,
                    MEDIA_TYPE if asked.form == ARROW else files.MEDIA_TYPES[asked.form],
                )

    def _wait_for(self, reader: TieredReader, asked: Asked) -> None:
        """Wait for offsets that are not there yet, without a place."""
        where = asked.shard, asked.start, asked.end
        try:
            reader.wait_for(*where, 0)
        except RangeMissing:
            with self.server.waits:
                reader.wait_for(*where, WAIT_S)

    def log_message(self, format: str, *args: Any) -> None:
        """Normal traffic logs nothing."""

    def _authenticated(self) -> tuple[LogShard, dict[str, list[str]]]:
        """The shard and the parameters of a request that has a good ticket."""
        if self.request_version != self.protocol_version:
            raise Refused(
                HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
                "ask by HTTP/1.1, in which a cut answer shows",
            )
        url = urlsplit(self.path)
        shard = _shard(url.path)
        query = parse_qs(url.query)
        if not self._may_read(query, shard.log):
            raise Refused(
                HTTPStatus.UNAUTHORIZED,
                "the ticket is missing, expired or for another stream; request positions again",
            )
        return shard, query

    def _may_read(self, query: dict[str, list[str]], log: int) -> bool:
        scheme, _, ticket = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            ticket = query.get("ticket", [""])[0]
        return tickets.is_good(self.server.secret, ticket.strip(), log, time.time())

    def _send(self, first: bytes, rest: Iterator[bytes | memoryview], media_type: str) -> None:
        """The pieces in chunks. Where one fails, the connection ends without the last chunk, which clients notice."""
        self.send_response(HTTPStatus.OK)
        self.send_header("content-type", media_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        self._send_chunk(first)
        for piece in rest:
            self._send_chunk(piece)
        self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.headers.get("connection", "").lower() == "close"

    def _send_page(self, page: Page) -> None:
        body = b"".join((frames.schema_message(), *page.messages, frames.END_MESSAGE))
        self._send_body(body, MEDIA_TYPE, **{"next-offset": str(page.next_offset)})

    def _send_body(self, body: bytes, media_type: str, **headers: str) -> None:
        self.send_response(HTTPStatus.OK)
        for name, value in {
            "content-type": media_type,
            "content-length": str(len(body)),
            **headers,
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _send_chunk(self, piece: bytes | memoryview) -> None:
        if not piece:  # it would be the last one
            return
        self.wfile.write(b"%x\r\n" % len(piece))
        self.wfile.write(piece)
        self.wfile.write(b"\r\n")

    def _refuse(self, refused: Refused) -> None:
        status = refused.status
        problem = {
            "type": "about:blank",
            "title": status.phrase,
            "status": status.value,
            "detail": str(refused),
        }
        body = json.dumps(problem | refused.members).encode()
        self.send_response(status)
        self.send_header("content-type", "application/problem+json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _asked(shard: LogShard, query: dict[str, list[str]]) -> Asked | AskedTime:
    if "at" in query:
        return AskedTime(shard, _offset(query, "at"))
    start = _offset(query, "from")
    end = _offset(query, "to")
    if end < start:
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"the range ends at {end}, before it begins at {start}"
        )
    form = query.get("format", [ARROW])[0]
    if form not in (ARROW, *files.FORMATS):
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"expected the format {ARROW}, ndjson or parquet, got {form!r}"
        )
    limit = _offset(query, "limit") if "limit" in query else None
    text = query.get("filter", [None])[0]
    try:
        topic_filter = None if text is None else TopicFilter.parse(text)
    except PeerError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, str(error)) from None
    if limit is not None and (topic_filter is None or not 0 < limit <= MAX_PAGE):
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"limit: expected 1 to {MAX_PAGE}, with filter, got {limit}"
        )
    if limit is not None and form != ARROW:
        raise Refused(
            HTTPStatus.BAD_REQUEST, f"limit: expected the format {ARROW} with it, got {form}"
        )
    return Asked(shard, start, end, topic_filter, limit, form)


def _page(reader: FrameReader, index: TopicIndex | None, asked: Asked, limit: int) -> Page:
    assert asked.topic_filter is not None
    batches = messages(reader, index, asked.shard, asked.start, asked.end, asked.topic_filter)
    return read_page(batches, asked.end, limit)


def _pieces(reader: FrameReader, index: TopicIndex | None, asked: Asked) -> Iterator[Any]:
    """The range as an Arrow IPC stream. Small frames are joined; the first piece is the schema. The
    first records are read before that: a tier that does not answer is then known."""
    batches = _messages(reader, index, asked)
    first = list(islice(batches, 1))
    yield frames.schema_message()
    waiting: list[bytes | memoryview] = []
    size = 0
    for message in chain(first, batches):
        if not isinstance(message, Progress):
            waiting.append(message)
            size += len(message)
        if size >= _CHUNK_BYTES or (waiting and isinstance(message, Progress)):
            yield waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting = []
            size = 0
    waiting.append(frames.END_MESSAGE)
    yield b"".join(waiting)


def _messages(
    reader: FrameReader, index: TopicIndex | None, asked: Asked
) -> Iterator[bytes | memoryview | Progress]:
    shard, start, end, topic_filter, *_ = asked
    if topic_filter is None:
        return reader.messages(shard, start, end)
    return messages(reader, index, shard, start, end, topic_filter)


def _file(reader: FrameReader, index: TopicIndex | None, asked: Asked) -> Iterator[bytes]:
    """The range as a file. The first piece is empty: what cannot be read is known by then."""
    batches = _messages(reader, index, asked)
    first = list(islice(batches, 1))
    yield b""
    sink = _Sink()
    writer = files.WRITERS[asked.form](cast(IO[bytes], sink))
    for message in chain(first, batches):
        if not isinstance(message, Progress):
            batch = pa.ipc.read_record_batch(pa.py_buffer(message), records.SCHEMA)
            writer.write(asked.shard.shard, batch)
        if sink.size >= _CHUNK_BYTES:
            yield sink.take()
    writer.close()
    yield sink.take()


class _Sink(io.RawIOBase):
    """A file that is taken away while it is written."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = self._taken = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._pieces.append(piece)
        self.size += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self._taken + self.size

    def take(self) -> bytes:
        """Return the bytes written since the last call."""
        data = b"".join(self._pieces)
        self._pieces = []
        self._taken = self._taken + self.size
        self.size = 0
        return data


def main() -> None:
    """Serve until standard input ends."""
    keep_pandas_out()
    line = sys.stdin.readline()
    if not line:  # the broker ended before it had settings for this
        return
    settings = json.loads(line)
    die_with_parent(settings["parent"])
    directory = Path(settings["directory"])
    follower = Follower(directory, directory / "ranges")
    files = settings["certfile"], settings["keyfile"]
    certificate = Certificate(*files) if all(files) else None
    secret = bytes.fromhex(settings["secret"])
    stores = TierStores(settings["stores"])
    reader = TieredReader(follower, stores)
    directories = {int(cell): Path(path) for cell, path in settings["others"].items()}
    others = OtherStores(directories, directory / "ranges", stores)
    server = RangeServer(settings["host"], settings["port"], reader, secret, certificate, others)
    host, port = server.server_address[:2]
    print(json.dumps({"host": host, "port": port}), flush=True)
    server.upkeep = upkeep.start(directory, follower, settings["index_delay"], _tell)
    upload.start(follower, stores, _tell)
    threading.Thread(
        target=_follow_parent, args=(server, stores), name="parent watch", daemon=True
    ).start()
    server.serve_forever()


def _follow_parent(server: RangeServer, stores: TierStores) -> None:
    """Take new secrets of tickets, and stores with other credentials, from the parent, and end with it."""
    while line := sys.stdin.readline():
        order = json.loads(line)
        if "stores" in order:
            stores.use(order["stores"])
        else:
            server.secret = bytes.fromhex(order["secret"])
    os._exit(0)


def _tell(report: IndexReport | TierReport) -> None:
    with _telling:
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


def _shard(path: str) -> LogShard:
    parts = path.split("/")
    if (
        len(parts) != 4
        or parts[:2] != ["", "streams"]
        or not (_is_number(parts[2], 9) and _is_number(parts[3], 4))
    ):
        raise Refused(
            HTTPStatus.NOT_FOUND, f"there is nothing at {path!r}; ranges are at /streams/LOG/SHARD"
        )
    return LogShard(int(parts[2]), int(parts[3]))


def _offset(query: dict[str, list[str]], name: str) -> int:
    text = query.get(name, [""])[0]
    if not _is_number(text, 18):
        message = (
            f"the parameter {name!r} must be an offset, a whole number from 0 on, not {text!r}"
        )
        raise Refused(HTTPStatus.BAD_REQUEST, message)
    return int(text)


def _is_number(text: str, digits: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= digits


def _missing(missing: RangeMissing, asked: Asked) -> Refused:
    available = missing.held
    start = asked.start
    end = asked.end
    reason = "trimmed by retention" if start < available.first_offset else "not appended yet"
    return Refused(
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
        f"offsets [{start}, {end}) are not all there: the shard holds "
        f"[{available.first_offset}, {available.next_offset}), the others are {reason}",
        first_offset=str(available.first_offset),
        next_offset=str(available.next_offset),
    )


if __name__ == "__main__":
    main()
