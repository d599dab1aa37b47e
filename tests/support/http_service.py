"""An HTTP service on a loopback socket that does as it is told: answers, is slow, cuts connections, goes away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl

import h11

from tests.support.processes import free_port


@dataclass(slots=True)
class Received:
    """One request."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.target.partition("?")[2]))

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Reply:
    """What is answered. ``cut`` closes the connection instead; ``waits_for`` is awaited first."""

    status: int = 200
    body: bytes = b"{}"
    headers: list[tuple[str, str]] = field(default_factory=list)
    cut: bool = False
    waits_for: asyncio.Event | None = None
    raw: bytes = b""
    """Sent as it is, instead."""


Answer = Callable[[Received], Reply]


class Service:
    """An HTTP service that a test controls.

    ``taken`` are the requests that were answered with 2xx, ``received`` all. ``connections`` counts those that carried
    a request: a check of health opens one and sends nothing.
    """

    def __init__(
        self, answer: Answer = lambda request: Reply(), context: ssl.SSLContext | None = None
    ) -> None:
        self.answer, self.port = answer, free_port()
        self.received: list[Received] = []
        self.taken: list[Received] = []
        self.connections = 0
        self.most_at_once = self._at_once = 0
        self._context = context
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"{'https' if self._context else 'http'}://127.0.0.1:{self.port}"

    async def up(self) -> None:
        """Listen, at the same port as before."""
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self.port, ssl=self._context
            )

    async def down(self) -> None:
        """Be gone, as a process that was killed."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def __aenter__(self) -> Service:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        http = h11.Connection(h11.SERVER)
        has_carried = False
        try:
            with contextlib.suppress(
                ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError
            ):
                async for request in _requests(http, reader):
                    self.connections += not has_carried
                    has_carried = True
                    await self._answer(request, http, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(
        self, request: Received, http: h11.Connection, writer: asyncio.StreamWriter
    ) -> None:
        self.received.append(request)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            reply = self.answer(request)
            if reply.waits_for is not None:
                await reply.waits_for.wait()
        finally:
            self._at_once -= 1
        if reply.cut:
            raise ConnectionResetError
        if reply.raw:
            writer.write(reply.raw)
            await writer.drain()
            raise ConnectionResetError
        if 200 <= reply.status < 300:
            self.taken.append(request)
        body = b"" if request.method == "HEAD" else reply.body
        head = h11.Response(
            status_code=reply.status, headers=[("Content-Length", str(len(body))), *reply.headers]
        )
        parts = [http.send(head), http.send(h11.Data(data=body)), http.send(h11.EndOfMessage())]
        writer.write(b"".join(part for part in parts if part))
        await writer.drain()
        http.start_next_cycle()


async def _requests(http: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[Received]:
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head, body = event, bytearray()
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            headers = [(name.decode(), value.decode()) for name, value in head.headers]
            yield Received(head.method.decode(), head.target.decode(), headers, bytes(body))
        elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            return
