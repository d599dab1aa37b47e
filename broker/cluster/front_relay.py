"""The API at a machine that does not have the first cell: what comes there is relayed to it, which answers. Probes of
load balancers ask for this machine, and are answered here."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from time import monotonic
from typing import Any, Final, Protocol

import msgspec

from broker.cluster.carry import READ_BYTES, carry
from broker.cluster.channel import connect
from broker.core.cells import Place
from broker.core.relayed import FRONT_SOCKET, Relayed

_REFRESH_S: Final = 10.0
_HANDSHAKE_S: Final = 10.0
_PROBE: Final = re.compile(rb"GET /(livez|readyz)[ ?]")
_AWAY_S: Final = 1.0
_AGAIN_S: Final = 0.1
_AWAY: Final = "cell 0, which answers for all machines, does not run or cannot be reached"


class Certificate(Protocol):
    """TLS of the API (``ui.api.listening``)."""

    context: ssl.SSLContext

    def refresh(self) -> None: ...


class Health(Protocol):
    """Health of this cell (``broker.app.health.NodeHealth``)."""

    def not_ready(self) -> str | None: ...

    def remark(self) -> str: ...


class FrontRelay:
    """One listener, of HTTPS with a ``certificate``; at most ``most`` concurrent connections. It does as
    ``ui.api.server.ApiServer``."""

    def __init__(
        self,
        place: Place,
        health: Health,
        most: int,
        listener: socket.socket,
        certificate: Certificate | None = None,
    ) -> None:
        self._place = place
        self._health = health
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

    def _accepted(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._tasks) >= self._most:
            writer.transport.abort()
            return
        task = asyncio.create_task(self._relay(reader, writer), name="relay to the first cell")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: StreamReader, writer: StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                first = await reader.read(READ_BYTES)
            if (probe := _PROBE.match(first)) is not None:
                await self._answer(probe[1], writer)
                return
            peer: Any = writer.get_extra_info("peername")
            if peer is None:  # it is gone
                return
            relayed = Relayed(str(peer[0]), int(peer[1]), self._certificate is not None)
            first_cell = await self._first_cell(msgspec.json.encode(relayed) + b"\n")
            if first_cell is None:
                await _refuse(writer)
                return
            far_reader, far_writer = first_cell
            try:
                far_writer.write(first)
                await carry(reader, writer, far_reader, far_writer)
            finally:
                far_writer.transport.abort()
        except OSError:
            pass  # one side is gone
        finally:
            writer.transport.abort()

    async def _answer(self, probe: bytes, writer: StreamWriter) -> None:
        reason = None if probe == b"livez" else self._health.not_ready()
        text = "ok" if probe == b"livez" else reason or self._health.remark()
        status = "200 OK" if reason is None else "503 Service Unavailable"
        await _end_with(writer, status, "text/plain; charset=utf-8", f"{text}\n".encode())

    async def _first_cell(self, greeting: bytes) -> tuple[StreamReader, StreamWriter] | None:
        """A connection that the first cell has taken; None if there is none after ``_AWAY_S``. The way there ends for a
        moment when that cell moves."""
        until = monotonic() + _AWAY_S
        while True:
            with suppress(OSError):
                link = connect(self._place.run, FRONT_SOCKET, socket.SOCK_STREAM)
                reader, writer = await asyncio.open_unix_connection(sock=link, limit=READ_BYTES)
                try:
                    writer.write(greeting)
                    async with asyncio.timeout(_HANDSHAKE_S):
                        is_taken = await reader.read(1) != b""
                except BaseException:
                    writer.transport.abort()
                    raise
                if is_taken:
                    return reader, writer
                writer.transport.abort()
            if monotonic() > until:
                return None
            await asyncio.sleep(_AGAIN_S)


async def _refuse(writer: StreamWriter) -> None:
    """Answer the first request, whatever it is."""
    problem = {
        "title": "Service Unavailable",
        "status": 503,
        "code": "unavailable",
        "detail": _AWAY,
    }
    body = msgspec.json.encode(problem)
    status = "503 Service Unavailable\r\nRetry-After: 1"
    await _end_with(writer, status, "application/problem+json", body)


async def _end_with(writer: StreamWriter, status: str, media_type: str, body: bytes) -> None:
    fields = f"Content-Type: {media_type}\r\nContent-Length: {len(body)}\r\nConnection: close"
    head = f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n"
    async with asyncio.timeout(_HANDSHAKE_S):
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
