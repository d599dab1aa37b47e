"""Connections of HTTP clients, with the streams of asyncio: what ``httpcore`` asks of a network.

Its own leaves a connection open whose call is cancelled during the handshake of TLS, and may read a unix socket twice
on uvloop (httpcore 1.0, anyio 4.16).
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from broker.core.lazy_module import LazyModule

if TYPE_CHECKING:
    import httpcore

    _Base = httpcore.AsyncNetworkStream
else:
    httpcore = LazyModule("httpcore")
    _Base = object

# ``create_connection`` or ``create_unix_connection`` of the loop, without the protocol.
Connect = Callable[[Callable[[], asyncio.StreamReaderProtocol]], Awaitable[tuple[Any, Any]]]


@contextmanager
def _raising(timed_out: type[Exception], failed: type[Exception]) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise timed_out("no answer in time") from error
    except OSError as error:
        raise failed(error.strerror or str(error)) from error


class _Reader(asyncio.StreamReader):
    """Knows how many bytes have come that were not read."""

    unread = 0

    def feed_data(self, data: Any) -> None:
        self.unread += len(data)
        super().feed_data(data)

    async def read(self, n: int = -1) -> bytes:
        data = await super().read(n)
        self.unread -= len(data)
        return data


class HttpStream(_Base):
    """A connection. Times are seconds, or None for no limit."""

    def __init__(self, reader: _Reader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def opened(cls, connect: Connect, timeout: float | None) -> HttpStream:
        """Connect; raises ``ConnectError`` or ``ConnectTimeout``."""
        loop = asyncio.get_running_loop()
        reader = _Reader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        with _raising(httpcore.ConnectTimeout, httpcore.ConnectError):
            async with asyncio.timeout(timeout):
                transport, _ = await connect(lambda: protocol)
        return cls(reader, asyncio.StreamWriter(transport, protocol, reader, loop))

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
        """A connection that is idle and ``is_readable`` cannot be used again: the other end has closed it, or said
        something without a request, as that the next one came too late."""
        if info == "is_readable":
            is_over = self._reader.at_eof() or self._writer.is_closing()
            return is_over or self._reader.unread > 0
        return self._writer.get_extra_info(info)
