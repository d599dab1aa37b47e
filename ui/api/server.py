"""Serves the API inside the broker's process, on its event loop, through uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from broker.core.hosts import address_text
from ui.api.connections import HttpRoom, Way
from ui.api.context import ApiContext
from ui.api.listening import BACKLOG, Certificate, bind
from ui.api.live import MAX_FRAME_BYTES

_STOP_TIMEOUT_S = 3
# Seconds between looks at the files of the certificate.
_REFRESH_S = 10


class ApiServer:
    """One HTTP listener, of HTTPS with a ``certificate``. ``listener`` is a socket that listens already, which the
    server closes; a unix socket is for the other cells of this broker, or for its other machines."""

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        listener: socket.socket | None = None,
        certificate: Certificate | None = None,
        way: Way = "clients",
    ) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._listener = listener
        self._certificate = certificate
        self._way = way
        self._refreshing: asyncio.TimerHandle | None = None
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen, and return the address once requests are served; port 0 takes any that is free.

        Raises:
            broker.core.errors.ConfigError: the address cannot be bound; says why and what to do.
        """
        context: ApiContext = self._app.state.context
        settings = context.api_settings
        room = HttpRoom(
            settings.max_connections,
            settings.header_timeout,
            settings.body_timeout,
            context.metrics,
            way=self._way,
        )
        listener = self._listener or bind(self._host, self._port)
        certificate = self._certificate
        host, port = listener.getsockname()[:2] if self._way == "clients" else ("", 0)
        config = uvicorn.Config(
            self._app,
            http=cast(Any, room.protocol),
            backlog=BACKLOG,
            proxy_headers=False,
            lifespan="off",
            loop="none",
            ws=cast(Any, room.websocket),
            ws_max_size=MAX_FRAME_BYTES,
            ws_per_message_deflate=False,
            ws_ping_interval=settings.body_timeout,
            ws_ping_timeout=settings.body_timeout,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
            ssl_context_factory=None
            if certificate is None
            else lambda _config, _default: certificate.context,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(
            self._server.serve(sockets=[listener]), name="management API"
        )
        await self._until_serving(self._server, self._task)
        if self._way == "clients":
            scheme = "http" if certificate is None else "https"
            context.base_url = f"{scheme}://{address_text(host, port)}"
        self._refresh()
        return host, port

    def _refresh(self) -> None:
        if self._certificate is not None:
            self._certificate.refresh()
            self._refreshing = asyncio.get_running_loop().call_later(_REFRESH_S, self._refresh)

    async def stop(self) -> None:
        """Accept no more, finish the requests that run, close. May be called twice."""
        if self._server is None or self._task is None:
            return
        if self._refreshing is not None:
            self._refreshing.cancel()
        self._server.should_exit = True
        await self._task
        self._server = self._task = None

    @staticmethod
    async def _until_serving(server: _Server, task: asyncio.Task[None]) -> None:
        serving = asyncio.create_task(server.serving.wait(), name="management API start")
        await asyncio.wait({serving, task}, return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        if task.done():
            await task


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, which are the broker's, and with an event where it has a flag."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
