"""HTTP over the unix sockets of cells."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import httpcore
import httpx

from broker.config.http_stream import HttpStream


class _Backend(httpcore.AsyncNetworkBackend):
    """Connects to unix sockets."""

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        del socket_options
        connect = asyncio.get_running_loop().create_unix_connection
        return await HttpStream.opened(partial(connect, path=path), timeout)


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
