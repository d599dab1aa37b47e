"""The API at a machine that does not have the first cell: what comes there is relayed to it, which answers."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Final, Protocol

import msgspec

from broker.cluster.carry import READ_BYTES, carry
from broker.cluster.channel import connect
from broker.core.cells import Place
from broker.core.relayed import FRONT_SOCKET, Relayed

_REFRESH_S: Final = 10.0
_HANDSHAKE_S: Final = 10.0
_AWAY: Final = "cell 0, which answers for all machines, does not run or cannot be reached"


class Certificate(Protocol):
    """TLS of the API (``ui.api.listening``)."""

    context: ssl.SSLContext

    def refresh(self) -> None: ...


class FrontRelay:
    """One listener, of HTTPS with a ``certificate``; at most ``most`` concurrent connections. It does as
    ``ui.api.server.ApiServer``."""

    def __init__(
        self, place: Place, listener: socket.socket, certificate: Certificate | None, most: int
    ) -> None:
        self._place = place
        self._listener = listener
        self._certificate = certificate
        self._most = most
        self._server: asyncio.Server | None = None
        self._refreshing: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> tuple[str, int]:
        """Take connections; the address."""
        self._server = await asyncio.start_server(
            self._accepted,
            sock=self._listener,
            ssl=None if self._certificate is None else self._certificate.context,
            ssl_handshake_timeout=None if self._certificate is None else _HANDSHAKE_S,
        )
        self._refresh()
        host, port = self._listener.getsockname()[:2]
        return host, port

    async def stop(self) -> None:
        """Take no more, and end those that are relayed. May be called twice."""
        if self._server is None:
            return
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._server.close()
        self._server = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _refresh(self) -> None:
        if self._certificate is not None:
            self._certificate.refresh()
            self._refreshing = asyncio.get_running_loop().call_later(_REFRESH_S, self._refresh)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= self._most:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._relay(reader, writer), name="relay to the first cell")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            peer: Any = writer.get_extra_info("peername")
            relayed = Relayed(str(peer[0]), int(peer[1]), self._certificate is not None)
            try:
                link = connect(self._place.run, FRONT_SOCKET, socket.SOCK_STREAM)
            except OSError:
                await _refuse(reader, writer)
                return
            far_reader, far_writer = await asyncio.open_unix_connection(sock=link, limit=READ_BYTES)
            try:
                far_writer.write(msgspec.json.encode(relayed) + b"\n")
                if not await self._is_there(far_reader):
                    await _refuse(reader, writer)
                    return
                await carry(reader, writer, far_reader, far_writer)
            finally:
                far_writer.transport.abort()
        except OSError:
            pass  # one side is gone
        finally:
            writer.transport.abort()

    @staticmethod
    async def _is_there(reader: asyncio.StreamReader) -> bool:
        """True once the first cell has taken the connection; the way there ends where it is not."""
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                return await reader.read(1) != b""
        except TimeoutError:
            return False


async def _refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the first request, whatever it is."""
    body = msgspec.json.encode(
        {"title": "Service Unavailable", "status": 503, "code": "unavailable", "detail": _AWAY}
    )
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    async with asyncio.timeout(_HANDSHAKE_S):
        await reader.read(READ_BYTES)  # else the answer is lost with what was not read
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
