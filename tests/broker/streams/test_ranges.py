"""The range server as it runs: a child process, real HTTP, read back by pyarrow."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from pydantic import ValidationError

from broker.core.errors import ConfigError
from broker.core.stream import StreamRecord
from broker.storage.records import SCHEMA
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams import tickets
from broker.streams.maintenance import Sealer
from broker.streams.ranges_process import RangesProcess
from broker.streams.server import MAX_REQUESTS
from broker.streams.settings import RangeServerSettings
from tests.support.certificates import Authority
from tests.support.node import eventually

ROOT = Path(__file__).parents[3]
LOG = LogShard(16)
PROMPT_S = 20.0
"""A read takes some milliseconds, on a machine that is busy with other tests some seconds."""


def record(number: int) -> StreamRecord:
    return StreamRecord(
        number,
        f"t/{number}",
        b"%d" % number,
        1,
        False,
        "c",
        None,
        None,
        "r" if number % 2 else None,
    )


def append(store: RocksStore, *numbers: int) -> None:
    store.commit(Batch({LOG: [record(n) for n in numbers]}))


class Running:
    """A range server over a store, on an event loop of its own thread, as the broker has it."""

    def __init__(self, directory: Path, settings: RangeServerSettings | None = None) -> None:
        self.ranges = RangesProcess(directory, settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.run(self.ranges.start())

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def stop(self) -> None:
        self.run(self.ranges.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def url(
        self, start: int | str, end: int | str, log: int = 16, shard: int = 0, topics: str = ""
    ) -> str:
        chosen = f"&filter={quote(topics)}" if topics else ""
        return f"{self.ranges.access(log)['ranges_url']}/streams/{log}/{shard}?from={start}&to={end}{chosen}"

    def get(self, start: int, end: int, ticket: str | None = None, **where: Any) -> pa.Table:
        ticket = ticket or self.ranges.access(where.get("log", 16))["ticket"]
        request = urllib.request.Request(
            self.url(start, end, **where), headers={"Authorization": f"Bearer {ticket}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert answer.headers["content-type"] == "application/vnd.apache.arrow.stream"
                return pa.ipc.open_stream(answer).read_all()
        except urllib.error.HTTPError as error:
            error.close()  # it has the socket
            raise

    def refused(
        self, start: int | str, end: int | str, ticket: str, topics: str = ""
    ) -> tuple[int, dict[str, Any]]:
        url = self.url(start, end, topics=topics)
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {ticket}"})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        with refused.value as error:
            assert error.headers["content-type"] == "application/problem+json"
            return error.code, json.load(error)


@contextmanager
def running(directory: Path, settings: RangeServerSettings | None = None) -> Iterator[Running]:
    server = Running(directory, settings)
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    opened = RocksStore(tmp_path, "os")
    yield opened
    opened.close()


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_any_range_is_served_exactly_whatever_frames_it_cuts(
    store: RocksStore, tmp_path: Path
) -> None:
    for start in range(0, 50, 5):
        append(store, *range(start, start + 5))
    store.merge(LOG, 10, 30)
    with running(tmp_path) as server:
        for start, end in [
            (0, 50),
            (0, 5),
            (3, 4),
            (4, 6),
            (12, 29),
            (7, 43),
            (49, 50),
            (20, 20),
            (50, 50),
            (0, 0),
        ]:
            table = server.get(start, end)
            assert table.schema.equals(SCHEMA)
            assert table.column("offset").to_pylist() == list(range(start, end))
            assert table.column("payload").to_pylist() == [b"%d" % n for n in range(start, end)]
            assert table.column("rule").to_pylist() == [
                "r" if n % 2 else None for n in range(start, end)
            ]


def test_a_filter_selects_topics(store: RocksStore, tmp_path: Path) -> None:
    for start in range(0, 50, 5):
        append(store, *range(start, start + 5))
    store.merge(LOG, 10, 30)
    with running(tmp_path) as server:
        for topics, start, end, found in [
            ("t/12", 0, 50, [12]),
            ("t/12", 13, 50, []),
            ("t/+", 7, 23, [*range(7, 23)]),
            ("+/29", 0, 30, [29]),
            ("#", 3, 4, [3]),
            ("x/#", 0, 50, []),
        ]:
            table = server.get(start, end, topics=topics)
            assert table.schema.equals(SCHEMA)
            assert table.column("offset").to_pylist() == found
        status, problem = server.refused(0, 5, server.ranges.access(16)["ticket"], topics="t/#/x")
        assert status == 400
        assert "'#' must be the whole last level" in problem["detail"]


def test_records_appended_after_the_start_are_served_and_waited_for(
    store: RocksStore, tmp_path: Path
) -> None:
    with running(tmp_path) as server:
        append(store, 0, 1)
        assert server.get(0, 2).num_rows == 2
        later = threading.Timer(0.5, lambda: append(store, 2, 3))
        later.start()
        assert server.get(1, 4).column("offset").to_pylist() == [1, 2, 3]
        later.join()


def test_what_is_not_there_is_refused_with_what_is(store: RocksStore, tmp_path: Path) -> None:
    append(store, 0, 1)
    append(store, 2, 3)
    store.trim(LOG, 2)
    with running(tmp_path) as server:
        ticket = server.ranges.access(16)["ticket"]
        status, problem = server.refused(0, 3, ticket)
        assert (status, problem["first_offset"], problem["next_offset"]) == (416, "2", "4")
        assert "holds [2, 4), the others are trimmed by retention" in problem["detail"]
        status, problem = server.refused(3, 9, ticket)
        assert (status, problem["next_offset"]) == (416, "4")
        assert "not appended yet" in problem["detail"]
        assert server.refused("x", 3, ticket)[0] == 400
        assert server.refused(-1, 3, ticket)[0] == 400
        assert "before it begins" in server.refused(3, 2, ticket)[1]["detail"]


def test_only_a_good_ticket_for_the_log_opens_it(store: RocksStore, tmp_path: Path) -> None:
    append(store, 0)
    secret = b"s" * 32
    with running(tmp_path) as server:
        good = server.ranges.access(16)["ticket"]
        tampered = good[:-2] + ("AA" if not good.endswith("AA") else "BB")
        expired = tickets.issue(server.ranges._secret, 16, int(time.time()) - 1)
        for bad in (
            "",
            "x",
            tampered,
            expired,
            server.ranges.access(17)["ticket"],
            tickets.issue(secret, 16, 2**40),
        ):
            assert server.refused(0, 1, bad)[0] == 401
        with urllib.request.urlopen(f"{server.url(0, 1)}&ticket={good}", timeout=60) as answer:
            assert pa.ipc.open_stream(answer).read_all().num_rows == 1


def rows_over_tls(server: Running, authority: Authority) -> int:
    """Read one record from a server whose certificate this authority signed."""
    headers = {"Authorization": f"Bearer {server.ranges.access(16)['ticket']}"}
    request, trust = (
        urllib.request.Request(server.url(0, 1), headers=headers),
        ssl.create_default_context(),
    )
    trust.load_verify_locations(authority.file)
    with urllib.request.urlopen(request, timeout=60, context=trust) as answer:
        return int(pa.ipc.open_stream(answer).read_all().num_rows)


def test_records_over_tls_and_the_certificate_is_renewed(store: RocksStore, tmp_path: Path) -> None:
    append(store, 0)
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    files = first.sign("server", {"CN": "ranges"}, ["127.0.0.1"])
    renewed = second.sign("renewed", {"CN": "ranges"}, ["127.0.0.1"])
    settings = RangeServerSettings(
        bind="127.0.0.1:0", certfile=str(files.cert), keyfile=str(files.key)
    )
    with running(tmp_path, settings) as server:
        assert server.ranges.access(16)["ranges_url"].startswith("https://127.0.0.1:")
        assert rows_over_tls(server, first) == 1
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            rows_over_tls(server, second)
        renewed.key.replace(files.key)
        renewed.cert.replace(files.cert)
        assert rows_over_tls(server, second) == 1
        files.cert.write_text("half a certificate")
        assert rows_over_tls(server, second) == 1
        plain = server.url(0, 1).replace("https:", "http:")
        with pytest.raises(OSError, match=r"Remote end closed|reset"):
            urllib.request.urlopen(plain, timeout=60)


def silent(
    address: tuple[str, int], count: int, stack: ExitStack, hosts: int = 1
) -> list[socket.socket]:
    """Connections on which nothing is sent, from addresses 127.0.0.2 and following."""
    return [
        stack.enter_context(
            socket.create_connection(address, 60, (f"127.0.0.{2 + number % hosts}", 0))
        )
        for number in range(count)
    ]


def seconds_of_a_read(server: Running) -> float:
    began_s = time.monotonic()
    assert server.get(0, 1).num_rows == 1
    return time.monotonic() - began_s


@pytest.mark.parametrize("hosts", [1, 5])
def test_silent_connections_keep_no_reader_out(
    store: RocksStore, tmp_path: Path, hosts: int
) -> None:
    append(store, 0)
    with running(tmp_path) as server, ExitStack() as stack:
        links = silent(server.ranges.address, 1200, stack, hosts)
        assert seconds_of_a_read(server) < PROMPT_S
        assert links[0].recv(1) == b""
        for link in links:  # also those that begin a request, and go on with it now and then
            with suppress(OSError):
                link.sendall(b"GET /streams/16/0?from=0&to=1 HTTP/1.1\r\nx-one-more: ")
        assert seconds_of_a_read(server) < PROMPT_S
        for link in links:
            with suppress(OSError):
                link.sendall(b"x")
        assert seconds_of_a_read(server) < PROMPT_S


def test_a_reader_with_a_ticket_keeps_its_connection(store: RocksStore, tmp_path: Path) -> None:
    append(store, 0)
    with running(tmp_path) as server, ExitStack() as stack:
        reader = http.client.HTTPConnection(*server.ranges.address, timeout=60)
        stack.callback(reader.close)
        bearer = {"authorization": f"Bearer {server.ranges.access(16)['ticket']}"}
        for _ in range(2):
            reader.request("GET", "/streams/16/0?from=0&to=1", headers=bearer)
            assert pa.ipc.open_stream(reader.getresponse().read()).read_all().num_rows == 1
            silent(server.ranges.address, 1200, stack)


def test_readers_that_are_idle_hold_no_place_of_a_request(
    store: RocksStore, tmp_path: Path
) -> None:
    append(store, 0)
    with running(tmp_path) as server, ExitStack() as stack:
        bearer = {"authorization": f"Bearer {server.ranges.access(16)['ticket']}"}
        for _ in range(MAX_REQUESTS + 6):
            reader = http.client.HTTPConnection(*server.ranges.address, timeout=60)
            stack.callback(reader.close)
            reader.request("GET", "/streams/16/0?from=0&to=1", headers=bearer)
            assert reader.getresponse().read()
        assert seconds_of_a_read(server) < PROMPT_S


def asking(
    server: Running, count: int, stack: ExitStack, end: int, trust: ssl.SSLContext | None = None
) -> list[socket.socket]:
    """Readers with a ticket that ask for records, and take none of them."""
    head = f"GET /streams/16/0?from=0&to={end} HTTP/1.1\r\n"
    head += f"authorization: Bearer {server.ranges.access(16)['ticket']}\r\n\r\n"
    links = []
    for link in silent(server.ranges.address, count, stack):
        if trust is not None:
            link = stack.enter_context(trust.wrap_socket(link, server_hostname="127.0.0.1"))
        link.sendall(head.encode())
        links.append(link)
    return links


def append_large(store: RocksStore) -> int:
    """Append more than the buffers of a connection hold; returns the number of records."""
    for number in range(20):
        large = StreamRecord(number, "t", os.urandom(1_000_000), 1, False, "c", None, None, None)
        store.commit(Batch({LOG: [large]}))
    return 20


def test_readers_that_take_nothing_give_their_places_to_others(
    store: RocksStore, tmp_path: Path
) -> None:
    count = append_large(store)
    with running(tmp_path) as server, ExitStack() as stack:
        slow, *_ = asking(server, MAX_REQUESTS, stack, count)
        taken = 0
        others_have_read = threading.Event()

        def take() -> None:
            """Read 0.4 MB a second until others have read: slow, but not for nothing."""
            nonlocal taken
            while piece := slow.recv(400_000):
                taken += len(piece)
                others_have_read.wait(len(piece) / 400_000)

        thread = threading.Thread(target=take)
        thread.start()
        began_s = time.monotonic()
        for _ in range(3):
            assert seconds_of_a_read(server) < PROMPT_S
        assert time.monotonic() - began_s < PROMPT_S
        others_have_read.set()
        slow.shutdown(socket.SHUT_WR)  # it has no further request
        thread.join()
        assert taken > count * 1_000_000


def test_readers_of_offsets_that_are_not_there_hold_no_places(
    store: RocksStore, tmp_path: Path
) -> None:
    append(store, 0)
    with running(tmp_path) as server, ExitStack() as stack:
        for _ in range(8):
            asking(server, MAX_REQUESTS, stack, 100)
        assert seconds_of_a_read(server) < PROMPT_S


def test_silent_connections_keep_no_reader_out_over_tls(store: RocksStore, tmp_path: Path) -> None:
    append(store, 0)
    authority = Authority(tmp_path)
    files = authority.sign("server", {"CN": "ranges"}, ["127.0.0.1"])
    settings = RangeServerSettings(
        bind="127.0.0.1:0", certfile=str(files.cert), keyfile=str(files.key)
    )
    with running(tmp_path, settings) as server, ExitStack() as stack:
        links = silent(server.ranges.address, 1200, stack, 3)
        began_s = time.monotonic()
        assert rows_over_tls(server, authority) == 1
        assert time.monotonic() - began_s < PROMPT_S
        assert links[0].recv(1) == b""


def test_readers_that_take_nothing_give_their_places_to_others_over_tls(
    store: RocksStore, tmp_path: Path
) -> None:
    count = append_large(store)
    authority = Authority(tmp_path)
    files = authority.sign("server", {"CN": "ranges"}, ["127.0.0.1"])
    settings = RangeServerSettings(
        bind="127.0.0.1:0", certfile=str(files.cert), keyfile=str(files.key)
    )
    trust = ssl.create_default_context(cafile=str(authority.file))
    with running(tmp_path, settings) as server, ExitStack() as stack:
        asking(server, MAX_REQUESTS, stack, count, trust)
        began_s = time.monotonic()
        assert rows_over_tls(server, authority) == 1
        assert time.monotonic() - began_s < PROMPT_S


def test_a_connection_without_a_ticket_is_closed_in_time(store: RocksStore, tmp_path: Path) -> None:
    append(store, 0)
    with running(tmp_path) as server, socket.create_connection(server.ranges.address, 60) as link:
        link.sendall(b"GET /streams/16/0?from=0&to=1 HTTP/1.1\r\nx-one-more: ")
        assert link.recv(1) == b""


@pytest.mark.parametrize(
    "head", [(b"x: " + b"1" * 1000 + b"\r\n") * 60, b"x: " + b"1" * 60_000 + b"\r\n"]
)
def test_headers_of_a_connection_without_a_ticket_are_bounded_together(
    store: RocksStore, tmp_path: Path, head: bytes
) -> None:
    append(store, 0)
    with running(tmp_path) as server:
        with socket.create_connection(server.ranges.address, 60) as link:
            link.sendall(b"GET /streams/16/0?from=0&to=1 HTTP/1.1\r\n" + head)
            assert link.recv(100).startswith(b"HTTP/1.1 431 ")
        with socket.create_connection(server.ranges.address, 60) as link:
            link.sendall(b"GET /" + b"x" * 60_000)
            with suppress(ConnectionResetError):
                assert link.recv(1) == b""
        assert server.get(0, 1).num_rows == 1


@pytest.mark.parametrize(
    ("members", "wrong"),
    [
        ({"bind": "0.0.0.0:0", "allow_clear_text": True}, "expected advertised_url"),
        ({"bind": "10.0.0.1:18084"}, "allow_clear_text = true"),
        ({"bind": "18084"}, "write HOST:PORT"),
        ({"certfile": "a.pem"}, "expected certfile and keyfile, or neither"),
        ({"advertised_url": "broker.example:18084"}, "pattern"),
    ],
)
def test_settings_that_cannot_work(members: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        RangeServerSettings(**members)


@pytest.mark.parametrize(
    ("advertised", "readers_use"),
    [
        ("https://b.example:18084/", "https://b.example:{port}"),
        ("https://b.example", "https://b.example:{port}"),
        ("https://[fd00::2]:18084", "https://[fd00::2]:{port}"),
        (None, "http://127.0.0.1:{port}"),
    ],
)
def test_readers_of_a_cell_of_another_machine_get_the_host_of_this_one(
    store: RocksStore, tmp_path: Path, advertised: str | None, readers_use: str
) -> None:
    append(store, 0)
    settings = RangeServerSettings(bind="127.0.0.1:1", advertised_url=advertised).for_guest()
    with running(tmp_path, settings) as server:
        _, port = server.ranges.address
        assert server.ranges.url == readers_use.format(port=port)


def test_a_certificate_that_cannot_be_used_is_reported_at_the_start(tmp_path: Path) -> None:
    settings = RangeServerSettings(
        certfile=str(tmp_path / "none.pem"), keyfile=str(tmp_path / "none.key")
    )
    with pytest.raises(
        ConfigError, match=r"range_server: certfile and keyfile cannot be used: .*No such file"
    ):
        RangesProcess(tmp_path, settings)


def test_the_server_comes_back_on_its_port_when_it_dies(store: RocksStore, tmp_path: Path) -> None:
    append(store, 0)
    with running(tmp_path) as server, socket.create_connection(server.ranges.address) as reader:
        address, pid = server.ranges.address, server.ranges.pid
        assert pid is not None
        reader.sendall(b"GET /streams/16/0 HTTP/1.1\r\n\r\n")
        assert reader.recv(10)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: server.ranges.pid not in (None, pid), what="a new child")
        eventually(lambda: answers(server), what="an answer")
        assert server.ranges.address == address
        assert server.ranges.restarts == 1
        child = server.ranges.pid
    assert child is not None
    assert not is_alive(child)


def answers(server: Running) -> bool:
    try:
        return bool(server.get(0, 1).num_rows == 1)
    except OSError:
        return False


BROKER = """
import asyncio, sys
from pathlib import Path
from broker.storage.rocksdb.store import RocksStore
from broker.streams.ranges_process import RangesProcess

async def serve(directory):
    store = RocksStore(directory)
    ranges = RangesProcess(directory)
    await ranges.start()
    print(ranges.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(serve(Path(sys.argv[1])))
"""


def test_the_server_dies_with_a_killed_broker(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BROKER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        child = int(broker.stdout.readline())
        assert is_alive(child)
        broker.kill()
        broker.wait()
        eventually(lambda: not is_alive(child), what="the child is gone")


WRITE = """
import os, sys
from pathlib import Path
from broker.core.stream import StreamRecord
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Batch, LogShard
from broker.streams.maintenance import Sealer

LOG = LogShard(16)
store = RocksStore(Path(sys.argv[1]), "os")
store._db._db.set_options({"write_buffer_size": "1048576", "max_bytes_for_level_base": "2097152"})
sealer, number = Sealer(store), store.range_of(LOG).next_offset
while True:
    for _ in range(20):
        numbers = range(number, number + 50)
        store.commit(Batch({LOG: [StreamRecord(n, "t", os.urandom(200), 1, False, "c") for n in numbers]}))
        number += 50
    while sealer.seal(LOG):
        pass
    if number % 20_000 == 0:
        store.trim(LOG, number - 300_000)
    print(store.range_of(LOG).first_offset, number, flush=True)
"""


def follow(server: Running, writer: subprocess.Popen[str], turns: int) -> int:
    """Read what the writer says is there, newest first; how many records were read after so many of its turns."""
    total = 0
    assert writer.stdout is not None
    for turn in range(turns):
        first, number = map(int, writer.stdout.readline().split())
        if turn % 4:
            continue
        start = max(first + 50_000 if first else 0, number - 20_000 * (1 + turn % 7))
        offsets = server.get(start, number).column("offset")
        assert offsets.to_pylist() == list(range(start, number))
        total += len(offsets)
    return total


@pytest.mark.parametrize("turns", [80, pytest.param(1000, marks=pytest.mark.heavy)])
def test_a_reader_misses_nothing_while_a_writer_flushes_seals_trims_and_is_killed(
    tmp_path: Path, turns: int
) -> None:
    RocksStore(tmp_path).close()
    with running(tmp_path) as server:
        for _ in range(2):
            command = [sys.executable, "-c", WRITE, str(tmp_path)]
            with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
                try:
                    assert follow(server, writer, turns) > 10_000
                finally:
                    writer.kill()


def test_a_sealed_stream_reads_as_before(store: RocksStore, tmp_path: Path) -> None:
    for start in range(0, 6000, 10):
        append(store, *range(start, start + 10))
    with running(tmp_path) as server:
        before = server.get(0, 6000)
        sealer = Sealer(store)
        assert sealer.seal(LOG)
        assert server.get(0, 6000).equals(before)
        assert server.get(4090, 4200).equals(before.slice(4090, 110))


def test_a_ticket_ends_with_the_right_that_it_came_from(store: RocksStore, tmp_path: Path) -> None:
    append(store, *range(10))
    with running(tmp_path) as server:
        ticket = server.ranges.access(16)["ticket"]
        assert server.get(0, 10, ticket).num_rows == 10

        async def revoke() -> None:
            server.ranges.revoke_tickets()

        server.run(revoke())
        eventually(lambda: server.get(0, 10).num_rows == 10)
        assert server.refused(0, 10, ticket)[0] == 401
        ended = server.ranges.access(16, time.time() - 1)
        assert server.refused(0, 10, ended["ticket"])[0] == 401
        soon = server.ranges.access(16, time.time() + 60)
        assert server.get(0, 10, soon["ticket"]).num_rows == 10
        assert datetime.fromisoformat(soon["expires_at"]).timestamp() <= time.time() + 60
        pid = server.ranges.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)  # the next one knows the secret of now
        eventually(lambda: server.ranges.restarts == 1 and server.ranges.pid is not None)
        eventually(lambda: server.get(0, 10).num_rows == 10)
        assert server.refused(0, 10, ticket)[0] == 401
