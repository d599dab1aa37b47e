"""HTTP/1.1 over one connection of asyncio: a request at a time, kept open in between.

Written on h11, since a request over httpx takes eight times the CPU, and with sixteen at once twenty-five times
(``benchmarks/http_client.py``), and since httpx resolves names itself, behind the back of the guard of addresses.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import h11

Headers = Sequence[tuple[bytes, bytes]]
_HEAD_BYTES: Final = 64 * 1024
"""Of an answer's status and headers, at most."""


class Request(NamedTuple):
    """One request; ``target`` and ``headers`` are as they go out, ``Host`` among the latter."""

    method: bytes
    target: bytes
    headers: Headers
    body: bytes = b""


class Answer(NamedTuple):
    """What the service said; ``is_cut`` tells that the body was longer than wanted and the rest was not read."""

    status: int
    headers: Headers
    body: bytes
    is_cut: bool

    def header(self, name: bytes) -> str:
        """The first header of that name in lower case; empty where there is none."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), "")


class ConnectionCut(ConnectionError):
    """The connection ended before the answer did. ``was_silent``: nothing of the answer had come; ``is_refused``: TLS
    ended it, as a server does that wants another certificate."""

    def __init__(self, message: str, *, was_silent: bool, is_refused: bool = False) -> None:
        self.was_silent, self.is_refused = was_silent, is_refused
        super().__init__(message)


class BadAnswer(Exception):
    """What came is not HTTP."""


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, a request at a time. Not usable any more once ``is_open`` is false."""

    def __init__(self) -> None:
        self.is_open = False
        self.answers = 0
        """Given so far: one that was used before may be closed by the other side at any moment."""
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._waiting: asyncio.Future[Answer] | None = None
        self._response: h11.Response | None = None
        self._chunks: list[bytes] = []
        self._size, self._most = 0, 0

    async def exchange(self, request: Request, most_bytes: int) -> Answer:
        """Send a request and read its answer, up to ``most_bytes`` of its body. Cancelled, the connection is closed.

        Raises:
            ConnectionCut: the connection ended.
            BadAnswer: what came is not HTTP.
        """
        if not self.is_open:
            raise ConnectionCut("the connection was closed", was_silent=True)
        http, self._most, self._size = self._http, most_bytes, 0
        self._response, self._chunks = None, []
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            head = http.send(h11.Request(method=request.method, target=request.target, headers=list(request.headers)))
            body = http.send(h11.Data(data=request.body)) if request.body else b""
            http.send(h11.EndOfMessage())
            self._transport.write((head or b"") + (body or b""))
            answer = await self._waiting
            self.answers += 1
            return answer
        except BaseException:
            self.close()
            raise
        finally:
            self._waiting = None

    def close(self) -> None:
        """Give it up at once."""
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        self._transport, self.is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        if self._waiting is None or self._waiting.done():
            self.close()  # an answer to nothing: what follows would be taken for the next one
            return
        self._http.receive_data(data)
        self._read()

    def eof_received(self) -> bool:
        """See ``asyncio.Protocol``."""
        self._end("the connection was closed before the answer was complete")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self.is_open = False
        said = _said(error) if error is not None else "the connection was closed before the answer was complete"
        self._end(said, is_refused=isinstance(error, ssl.SSLError))

    def _end(self, why: str, *, is_refused: bool = False) -> None:
        """Nothing more comes. An answer without a length ends with that."""
        if self._waiting is None or self._waiting.done():
            self.close()
            return
        self._http.receive_data(b"")
        self._read(is_over=True)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self._cut(why, is_refused=is_refused))
        self.close()

    def _cut(self, why: str, *, is_refused: bool) -> ConnectionCut:
        return ConnectionCut(why, was_silent=self._response is None, is_refused=is_refused)

    def _read(self, *, is_over: bool = False) -> None:
        assert self._waiting is not None
        try:
            while not self._waiting.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.Response):
                    self._response = event
                elif isinstance(event, h11.Data):
                    self._take(event.data)
                elif isinstance(event, h11.EndOfMessage):
                    self._complete()
                elif isinstance(event, h11.ConnectionClosed):
                    return
        except h11.RemoteProtocolError as error:
            if not is_over and not self._waiting.done():
                self._waiting.set_exception(BadAnswer(f"what it answers is not HTTP: {error}"))

    def _take(self, data: bytes) -> None:
        room = self._most - self._size
        self._size += len(data)
        self._chunks.append(bytes(data[:room]) if len(data) > room else bytes(data))
        if self._size > self._most:
            self._settle(is_cut=True)
            self.close()

    def _complete(self) -> None:
        self._settle(is_cut=False)
        both_done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if both_done and not self._http.trailing_data[0]:  # else the next request would be answered with that
            self._http.start_next_cycle()
        else:
            self.close()

    def _settle(self, *, is_cut: bool) -> None:
        assert self._response is not None
        assert self._waiting is not None
        if not self._waiting.done():
            headers = [(bytes(name), bytes(value)) for name, value in self._response.headers]
            self._waiting.set_result(Answer(self._response.status_code, headers, b"".join(self._chunks), is_cut))


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS was refused: {(error.reason or str(error)).lower().replace('_', ' ')}"
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
