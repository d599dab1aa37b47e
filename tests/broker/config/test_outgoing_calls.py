"""Calls to servers that users name leave no connection behind, however they end."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from broker.config.outgoing import CallFailed, GuardedNetwork, call
from broker.config.ssrf import AddressGuard, SsrfSettings
from tests.support.certificates import Authority
from tests.support.http_service import Reply, Service
from tests.support.mqtt_server import on_loop
from tests.support.waiting import until

GUARD = AddressGuard(SsrfSettings())
LARGE = b"\0x\xff" * 300_000


@pytest.fixture(autouse=True)
def nothing_is_collected() -> Iterator[None]:
    """The collector would close what is left behind."""
    gc.disable()
    yield
    gc.enable()


class Silent:
    """Takes connections, and says nothing."""

    def __init__(self) -> None:
        self.port = self.taken = 0
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken += 1
        self.begun.set()
        with suppress(OSError):
            while await reader.read(65536):
                pass
        self.ended.set()
        writer.close()


@asynccontextmanager
async def silent() -> AsyncIterator[Silent]:
    server = Silent()
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0) as listening:
        server.port = listening.sockets[0].getsockname()[1]
        yield server


async def _get(scheme: str, port: int, timeout_s: float) -> tuple[int, bytes]:
    context = ssl.create_default_context() if scheme == "https" else None
    url = f"{scheme}://127.0.0.1:{port}/"
    return await call("GET", url, GUARD, context, timeout_s=timeout_s, most_bytes=1)


@pytest.mark.parametrize("scheme", ["http", "https"])
@on_loop
async def test_a_server_that_says_nothing_is_left_when_the_time_is_over(scheme: str) -> None:
    async with silent() as server:
        with pytest.raises(CallFailed, match=r"no answer within 0\.2 s"):
            await _get(scheme, server.port, 0.2)
        assert server.taken == 1
        await server.ended.wait()


@pytest.mark.parametrize("scheme", ["http", "https"])
@on_loop
async def test_a_call_that_is_given_up_closes_its_connection(scheme: str) -> None:
    async with silent() as server:
        calling = asyncio.create_task(_get(scheme, server.port, 60))
        await server.begun.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        await server.ended.wait()


@on_loop
async def test_a_server_that_does_not_speak_tls_is_named_and_left() -> None:
    async with silent() as server:

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"220 plant.example ESMTP\r\n")
            await server.serve(reader, writer)

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
            with pytest.raises(CallFailed, match=r"it cannot be reached .*WRONG_VERSION"):
                await _get("https", listening.sockets[0].getsockname()[1], 60)
            await server.ended.wait()


@on_loop
async def test_an_unknown_certificate_is_named(tmp_path: Path) -> None:
    async with _service(Authority(tmp_path)) as service:
        with pytest.raises(CallFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await _get("https", service.port, 60)


@on_loop
async def test_a_large_answer_over_tls_is_whole(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusted = ssl.create_default_context(cafile=str(authority.file))
    async with _service(authority) as service:
        answer = await call(
            "POST", service.url, GUARD, trusted, timeout_s=60, most_bytes=len(LARGE), content=LARGE
        )
        assert answer == (200, LARGE)
        with pytest.raises(CallFailed, match="longer than 1000 bytes"):
            await call("GET", service.url, GUARD, trusted, timeout_s=60, most_bytes=1000)


@asynccontextmanager
async def _service(authority: Authority) -> AsyncIterator[Service]:
    files = authority.sign("service", {"CN": "service"}, ["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    service = Service(lambda _: Reply(body=LARGE), context)
    await service.up()
    try:
        yield service
    finally:
        await service.down()


@on_loop
async def test_a_connection_that_the_system_gives_up_is_a_failed_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does for a host that no longer answers anything."""

    async def lost(*_: object) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    async with silent() as server:
        monkeypatch.setattr(asyncio.StreamReader, "read", lost)
        with pytest.raises(CallFailed, match=r"it cannot be reached .no answer in time"):
            await _get("http", server.port, 60)


@pytest.mark.parametrize("last", [b"HTTP/1.1 408 Request Timeout\r\n\r\n", b""])
@on_loop
async def test_an_idle_connection_on_which_something_came_is_not_used_again(last: bytes) -> None:
    """A server may end it with an answer that nothing asked for (RFC 9110, section 15.5.9)."""
    is_asked = asyncio.Event()

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"ok")
        await is_asked.wait()
        writer.write(last)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        stream = await GuardedNetwork(GUARD).connect_tcp("127.0.0.1", port, 10)
        assert await stream.read(100, 10) == b"ok"
        assert not stream.get_extra_info("is_readable")
        is_asked.set()
        await until(lambda: stream.get_extra_info("is_readable"))
        await stream.aclose()
