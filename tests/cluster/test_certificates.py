"""Certificates of machines are renewed while processes run, and broken ones stop nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from broker.cluster.certificates import Certificates, context_of
from broker.cluster.nats.line import Line
from broker.cluster.nats.server import NatsServer, Told
from broker.cluster.settings import ClusterSettings
from tests.support.certificates import Authority, Files
from tests.support.node import eventually
from tests.support.processes import free_port

_WITHIN_S = 30.0


def _sign(authority: Authority, name: str = "a") -> Files:
    return authority.sign(name, {"CN": name}, [name, "127.0.0.1"])


def _settings(files: Files, authority: Authority, port: int) -> ClusterSettings:
    return ClusterSettings.model_validate(
        {
            "machine": "a",
            "machines": {name: {"address": "127.0.0.1:7946"} for name in "abc"},
            "tls": {**files.settings, "cacertfile": str(authority.file)},
            "nats": {"run": True, "port": port},
        }
    )


@contextmanager
def _nats(files: Files, authority: Authority, port: int) -> Iterator[list[str]]:
    """What a client hears of a server until it is connected; the numbers of the certificates that clients show."""
    context = context_of(str(files.cert), str(files.key), str(authority.file), is_server=True)
    shown: list[str] = []

    def serve() -> None:
        while True:
            try:
                link, _ = listening.accept()
            except OSError:
                return
            with link, suppress(OSError):
                link.sendall(b"INFO {}\r\n")
                with context.wrap_socket(link, server_side=True) as tls:
                    certificate: Any = tls.getpeercert()
                    shown.append(certificate["serialNumber"])
                    tls.recv(4096)
                    tls.sendall(b"PONG\r\n")

    with socket.create_server(("127.0.0.1", port)) as listening:
        thread = Thread(target=serve, name="server of NATS")
        thread.start()
        try:
            yield shown
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(_WITHIN_S)


def test_a_client_of_nats_shows_a_renewed_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "cluster")
    port = free_port()
    cluster = _settings(_sign(authority), authority, port)
    with _nats(_sign(authority, "b"), authority, port) as shown:
        line = Line(cluster.nats_places, "test")
        for _ in range(2):
            line._connect("127.0.0.1", port, time.monotonic() + _WITHIN_S)
            line.close()
            _sign(authority)
        Path(cluster.tls.certfile).write_text("no certificate")
        for same in (line, Line(cluster.nats_places, "a copy that begins now")):
            same._connect("127.0.0.1", port, time.monotonic() + _WITHIN_S)
            same.close()
    first, second, *later = shown
    assert first != second
    assert later == [second] * 2


def _shown_by(told: Told) -> int:
    """Number of the certificate that a server shows to its clients."""
    client = context_of(told.certfile, told.keyfile, told.cacertfile, is_server=False)
    with socket.create_connection((told.host, told.port), _WITHIN_S) as link:
        link.recv(4096)
        with client.wrap_socket(link, server_hostname=told.host) as tls:
            shown: Any = tls.getpeercert()
            return int(shown["serialNumber"], 16)


@pytest.mark.process
def test_a_server_that_runs_already_gets_what_changed_meanwhile(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "cluster")
    files = _sign(authority)
    told = Told(
        directory=str(tmp_path / "nats"), cluster="plant", machine="a", host="127.0.0.1", port=free_port(),
        route_port=free_port(), hosts=["127.0.0.1"], certfile=str(files.cert), keyfile=str(files.key),
        cacertfile=str(authority.file),
    )  # fmt: skip
    servers = [NatsServer(told), NatsServer(told), NatsServer(replace(told, port=free_port()))]
    first, again, moved = servers
    with ExitStack() as ends:
        for server in servers:
            ends.callback(server.stop)
        first.start()
        eventually(lambda: first.is_open)
        before = _shown_by(told)
        _sign(authority)
        again.start()
        assert first.is_running
        eventually(lambda: _shown_by(told) != before)
        moved.start()
        assert not again.is_running  # its parent has not asked how it ended
        assert not first.is_running
        eventually(lambda: moved.is_open)
    assert not moved.is_running


def test_who_begins_with_a_broken_certificate_waits_for_another(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "cluster")
    files = _sign(authority)
    good = files.cert.read_bytes()
    files.cert.write_text("no certificate")
    cluster = _settings(files, authority, free_port())
    tls = cluster.nats_places.tls
    assert tls is not None
    with pytest.raises(ssl.SSLError):
        tls.context()
    files.cert.write_bytes(good)
    tls.context()


def test_a_file_that_cannot_be_read_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "cluster")
    files = _sign(authority)
    tls = Certificates(str(files.cert), str(files.key), str(authority.file))
    before = tls.context()
    good = files.cert.read_bytes()
    files.cert.write_bytes(b"x" * len(good))
    changed = files.cert.stat()
    assert tls.context() is before
    files.cert.write_bytes(good)
    os.utime(files.cert, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert tls.context() is not before


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_an_authority_that_was_replaced_is_no_longer_trusted(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    """A listener takes the files of the time of each connection."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    old, new = (Authority(tmp_path / name, "cluster") for name in ("old", "new"))
    before, after = _sign(old), _sign(new)
    tls = Certificates(str(before.cert), str(before.key), str(old.file), is_server=True)
    clients = [
        context_of(str(files.cert), str(files.key), str(authority.file), is_server=False)
        for files, authority in (
            (_sign(old, "b"), old), (_sign(new, "b"), new), (_sign(old, "c"), new),
        )
    ]  # fmt: skip

    async def connects(port: int, client: ssl.SSLContext) -> bool:
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client, server_hostname="a"
            )
        except ssl.SSLError:
            return False
        try:
            writer.write(b"x")
            return await reader.read(1) == b"x"
        except OSError:
            return False
        finally:
            writer.transport.abort()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        writer.close()

    async def test() -> None:
        listening = tls.of_listener()
        async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=listening) as server:
            port = server.sockets[0].getsockname()[1]
            assert [await connects(port, client) for client in clients] == [True, False, False]
            after.cert.replace(before.cert)
            after.key.replace(before.key)
            new.file.replace(old.file)
            assert [await connects(port, client) for client in clients] == [False, True, False]

    run(test())
