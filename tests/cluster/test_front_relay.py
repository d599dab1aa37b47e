"""The API at a machine without the first cell waits a moment for that cell, which may be moving."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from broker.admin.api_settings import ApiSettings
from broker.app.api import Api
from broker.cluster.channel import bind
from broker.cluster.front_relay import FrontRelay
from broker.core.cells import Machine, Place
from broker.core.relayed import FRONT_SOCKET
from tests.support.waiting import until


async def _ask(relay: FrontRelay) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*await relay.start())
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    return reader, writer


async def _answer(
    taken: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    taken.set()
    await reader.readline()  # whom the request is of
    writer.write(b"1")
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
    writer.close()


async def _cut_off(
    taken: asyncio.Event, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """As a tunnel does, whose machine no longer runs the cell."""
    taken.set()
    writer.close()


class _Health:
    """Of a cell that is about to move."""

    def not_ready(self) -> str | None:
        return "its clients are moving to another machine"

    def remark(self) -> str:
        return "ok"


def _relay(run: Path) -> FrontRelay:
    listener = socket.create_server(("127.0.0.1", 0))
    return FrontRelay(Place(1, 2, run), _Health(), 8, listener)


def test_a_request_waits_for_the_first_cell(tmp_path: Path) -> None:
    async def test() -> None:
        relay = _relay(tmp_path)
        reader, writer = await _ask(relay)
        for answer in (_cut_off, _answer):
            taken = asyncio.Event()
            listening = bind(tmp_path, FRONT_SOCKET, socket.SOCK_STREAM)
            listening.listen()
            server = await asyncio.start_unix_server(partial(answer, taken), sock=listening)
            await taken.wait()
            server.close()
        assert await reader.readline() == b"HTTP/1.1 204 No Content\r\n"
        writer.close()
        await relay.stop()

    asyncio.run(test())


def test_a_request_is_refused_where_the_first_cell_stays_away(tmp_path: Path) -> None:
    async def test() -> None:
        relay = _relay(tmp_path)
        reader, writer = await _ask(relay)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"cell 0, which answers for all machines, does not run" in answer
        writer.close()
        await relay.stop()

    asyncio.run(test())


def test_a_client_that_is_gone_already_is_no_fault(tmp_path: Path) -> None:
    async def test() -> None:
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        relay = _relay(tmp_path)
        with socket.create_connection(relay._listener.getsockname()) as gone:
            gone.sendall(b"GET / HTTP/1.1\r\n\r\n")
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        reader, writer = await asyncio.open_connection(*await relay.start())
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")  # it comes second
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        await until(lambda: not relay._tasks)
        await relay.stop()
        gc.collect()
        assert faults == []

    uvloop.run(test())  # which asks for the address of the client when it is used


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/readyz", b"503 Service Unavailable", b"its clients are moving to another machine"),
        ("/livez?by=balancer", b"200 OK", b"ok"),
    ],
)
def test_probes_are_answered_for_this_machine(
    path: str, status: bytes, text: bytes, tmp_path: Path
) -> None:
    async def test() -> None:
        relay = _relay(tmp_path)
        reader, writer = await asyncio.open_connection(*await relay.start())
        writer.write(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        assert body == text + b"\n"
        writer.close()
        await relay.stop()

    asyncio.run(test())


def test_the_first_cell_on_another_machine_has_an_address_for_the_lake_job(tmp_path: Path) -> None:
    machines = [Machine("a", "", 0, 0, 1), Machine("b", "", 0, 1, 1)]
    node: Any = SimpleNamespace(api_settings=ApiSettings())
    api = Api(node, None, Place(0, 2, tmp_path, machines, machine="b", owners=[1, 1]))  # type: ignore[arg-type]  # not begun
    host, port = api.local_address
    socket.create_connection((host, port)).close()
    asyncio.run(api.stop())
    assert (host, api.address) == ("127.0.0.1", ("", 0))
