"""HTTP over a unix socket: connections are kept, and every way to fail has its error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest

from tests.support.mqtt_server import on_loop
from tests.support.waiting import until
from ui.api.cell_sockets import CellSocket

URL = "http://localhost/"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Server:
    """A server on a unix socket, with a client of it."""

    def __init__(self, path: str) -> None:
        transport = CellSocket(path, 4)
        self.pool = transport._pool
        self.client = httpx.AsyncClient(transport=transport, trust_env=False)
        self.connections = 0


@asynccontextmanager
async def serving(directory: Path, answer: Answer) -> AsyncIterator[Server]:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await answer(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    path = str(directory / "socket")
    server = Server(path)
    async with server.client, await asyncio.start_unix_server(connected, path):
        yield server


@on_loop
async def test_connections_are_kept_and_bounded_and_no_reader_completes_a_future(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    readers: list[Any] = []
    monkeypatch.setattr(type(loop), "add_reader", lambda *arguments: readers.append(arguments))
    body = b"x" * 1_000_000

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % len(body) + body)
        await writer.drain()

    async with serving(tmp_path, answer) as server:
        answers = await asyncio.gather(*(server.client.get(URL) for _ in range(20)))
        assert all(answer.content == body for answer in answers)
        assert server.connections == 4
    assert not readers


@on_loop
async def test_a_kept_connection_that_the_other_end_closed_is_not_used(tmp_path: Path) -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % 2 + b"ok")
        writer.close()

    async with serving(tmp_path, answer) as server:
        for number in range(1, 4):
            assert (await server.client.get(URL)).text == "ok"
            assert server.connections == number
            await until(lambda: all(kept.has_expired() for kept in server.pool.connections))


@on_loop
async def test_each_failure_has_its_error(tmp_path: Path) -> None:
    async def silent(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        return None

    async def cut(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD % 9 + b"half")
        writer.close()

    async with serving(tmp_path, silent) as server:
        with pytest.raises(httpx.ReadTimeout):
            await server.client.get(URL, timeout=0.05)
    (tmp_path / "socket").unlink(missing_ok=True)
    async with serving(tmp_path, cut) as server:
        with pytest.raises(httpx.RemoteProtocolError):
            await server.client.get(URL)
    (tmp_path / "socket").unlink(missing_ok=True)
    async with httpx.AsyncClient(transport=CellSocket(str(tmp_path / "socket"), 1)) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(URL)


@on_loop
async def test_a_write_to_a_connection_that_was_closed_is_an_error_of_the_connection(
    tmp_path: Path,
) -> None:
    async def never(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        raise AssertionError("nothing is written")

    async with serving(tmp_path, never) as server:
        backend = server.pool._network_backend
        stream = await backend.connect_unix_socket(str(tmp_path / "socket"))
        await stream.aclose()
        await asyncio.sleep(0)  # the loop closes it in its next turn
        with pytest.raises(httpcore.WriteError):
            await stream.write(b"x")
