"""HTTP over the unix sockets of cells, with the streams of asyncio.

httpcore reads a unix socket by a callback of the loop that completes a future. On uvloop it may come twice, which the
loop logs as an error (anyio 4.16, ``_wait_until_readable``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx


@contextmanager
def _raising(timed_out: type[Exception], failed: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timed_out("no answer in time") from error
    except OSError as error:
        raise failed(str(error)) from error


class _Stream(httpcore.AsyncNetworkStream):
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with _raising(httpcore.ReadTimeout, httpcore.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._writer.is_closing():  # uvloop raises RuntimeError then
            raise httpcore.WriteError("the other end has closed the connection")
        with _raising(httpcore.WriteTimeout, httpcore.WriteError):
            self._writer.write(buffer)
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def aclose(self) -> None:
        self._writer.transport.abort()

    def get_extra_info(self, info: str) -> Any:
        """A connection that is idle and ``is_readable`` was closed by the other end."""
        if info == "is_readable":
            return self._reader.at_eof() or self._writer.is_closing()
        return None


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to unix sockets."""

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        del socket_options
        with _raising(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                return _Stream(*await asyncio.open_unix_connection(path))


class CellSocket(httpx.AsyncHTTPTransport):
    """A transport to one cell with ``max_connections`` at most, which are kept for 30 s."""

    def __init__(self, path: str, max_connections: int) -> None:
        # not that of the base class, which loads certificates, too
        self._pool = httpcore.AsyncConnectionPool(
            uds=path,
            max_connections=max_connections,
            keepalive_expiry=30.0,
            network_backend=_Backend(),
        )
