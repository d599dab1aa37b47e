"""A server at a socket in the run directory whose questions are lines of JSON: one for each connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from broker.cluster.channel import bind
from broker.core.errors import Unavailable

LINE: Final = b"\n"
"""The end of a question and of an answer."""
ASK_S: Final = 3.0
"""Seconds in which a question has to be there, and most answers."""


class LineServer:
    """``answer`` gets the line and writes to the connection, which is closed after it. Where it raises ``ValueError``
    or an error of a connection, who asked sees that the answer ends early."""

    def __init__(
        self,
        run: Path,
        name: str,
        answer: Callable[[bytes, asyncio.StreamWriter], Awaitable[None]],
    ) -> None:
        self._run = run
        self._name = name
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Answer from now on."""
        listening = bind(self._run, self._name, socket.SOCK_STREAM)
        listening.listen()
        self._server = await asyncio.start_unix_server(self._take, sock=listening)

    async def stop(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ASK_S):
                line = await reader.readuntil(LINE)
            await self._answer(line, writer)
            await writer.drain()
        except (
            OSError,
            EOFError,
            TimeoutError,
            ValueError,
            asyncio.LimitOverrunError,
            Unavailable,
        ):
            pass
        finally:
            writer.close()
