"""Connections of HTTP clients, with the streams of asyncio: what ``httpcore`` asks of a network.

Its own leaves a connection open whose call is cancelled during the handshake of TLS, and may read a unix socket twice
on uvloop (httpcore 1.0, anyio 4.16).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from broker.core.lazy_module import LazyModule

if TYPE_CHECKING:
    import httpcore

    _Base = httpcore.AsyncNetworkStream
else:
    httpcore = LazyModule("httpcore")
    _Base = object

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextmanager
def _raising(timed_out: type[Exception], failed: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timed_out("no answer in time") from error
    except OSError as error:
        raise failed(error.strerror or str(error)) from error


class HttpStream(_Base):
    """A connection. Times are seconds, or None for no limit."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def opened(cls, opening: Awaitable[Ends], timeout: float | None) -> HttpStream:
        """Wait for ``asyncio.open_connection`` or its like; raises ``ConnectError`` or ``ConnectTimeout``."""
        with _raising(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                return cls(*await opening)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Some bytes; none at the end."""
        with _raising(httpcore.ReadTimeout, httpcore.ReadError):
            async with asyncio.timeout(timeout):
                return await self._reader.read(max_bytes)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send all."""
        if self._writer.is_closing():  # uvloop raises RuntimeError then
            raise httpcore.WriteError("the other end has closed the connection")
        with _raising(httpcore.WriteTimeout, httpcore.WriteError):
            self._writer.write(buffer)
            async with asyncio.timeout(timeout):
                await self._writer.drain()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> HttpStream:
        """The same connection from now on, with TLS; closed when that fails or is cancelled."""
        try:
            with _raising(httpcore.ConnectTimeout, httpcore.ConnectError):
                async with asyncio.timeout(timeout):
                    await self._writer.start_tls(ssl_context, server_hostname=server_hostname)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    def get_extra_info(self, info: str) -> Any:
        """A connection that is idle and ``is_readable`` was closed by the other end."""
        if info == "is_readable":
            return self._reader.at_eof() or self._writer.is_closing()
        return self._writer.get_extra_info(info)
