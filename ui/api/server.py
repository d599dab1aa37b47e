"""Serves the API inside the broker's process, on its event loop, through uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from typing import Any, cast

import uvicorn
from fastapi import FastAPI

from broker.core.errors import ConfigError
from ui.api.connections import Room
from ui.api.context import ApiContext

_STOP_TIMEOUT_S = 3
_BACKLOG = 128
"""Connections that the system keeps until they are accepted: all may be accepted, with a descriptor each, before the
first of those beyond the limit is closed."""


class ApiServer:
    """One HTTP listener. The socket is bound here, so that a port in use is one clear sentence."""

    def __init__(self, app: FastAPI, host: str, port: int) -> None:
        self._app, self._host, self._port = app, host, port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen, and return the address once requests are served; port 0 takes any that is free.

        Raises:
            broker.core.errors.ConfigError: the address cannot be bound; says why and what to do.
        """
        context: ApiContext = self._app.state.context
        settings = context.settings
        room = Room(settings.max_connections, settings.header_timeout, settings.body_timeout, context.metrics)
        listener = _bind(self._host, self._port)
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            self._app,
            http=cast(Any, room.protocol),
            backlog=_BACKLOG,
            proxy_headers=False,
            lifespan="off",
            loop="none",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_TIMEOUT_S,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]), name="management API")
        await self._until_serving(self._server, self._task)
        context.base_url = f"http://{_in_url(host)}:{port}"
        return host, port

    async def stop(self) -> None:
        """Accept no more, finish the requests that run, close. May be called twice."""
        if self._server is None or self._task is None:
            return
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


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise _refused(
            host, port, f"the host is not known ({error.strerror})", "name an address of this machine"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refused(host, port, *_why(error)) from None
    return listener


def _why(error: OSError) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use", "stop the program that has it, or choose another port (0 takes any)"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address", "use 127.0.0.1, or 0.0.0.0 for all addresses"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "ports below 1024 are not for ordinary users", "choose a port above 1023"
    return str(error.strerror or error), "choose another address"


def _refused(host: str, port: int, why: str, advice: str) -> ConfigError:
    return ConfigError([f"the management API cannot listen on {_in_url(host)}:{port}: {why}; {advice}"])


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
