"""HTTP connections within limits: how many, how long for a request's head, how long for reading an answer.

A connection is *busy* from the end of a request's body to the end of its answer; a WebSocket always is. At the limit,
one that has not authenticated makes room, else the one that has been idle for longest. Only where all have
authenticated and are busy is the new one refused.

Connections that another machine relays begin with a line that says whose they are (``Relayed``), and are answered with
one byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal, cast

import h11
import msgspec
from starlette.requests import HTTPConnection
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

from broker.core.relayed import TAKEN, Relayed
from broker.core.room import Room
from broker.observe.metrics import Counter, Metrics
from ui.api.cell_calls import OF_CELL

State = dict[str, Any]
Loop = asyncio.AbstractEventLoop | None
# Name, in the state of a request, of the function to call once its client has authenticated.
_AUTHENTICATED: Final = "authenticated"
_HELP: Final = "HTTP connections of the management API that were closed early, by reason"
# Seconds that the end of an answer may take to be sent once the connection is closing.
_LINGER_S: Final = 2.0
_STOPPING: Final = 1012
# Longest line of another machine.
_MOST_LINE_BYTES: Final = 1024
_BUSY: Final = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


Way = Literal["clients", "cells", "machines"]
"""Openers of the connections of a server: clients; other cells, whose requests are marked so; other machines, which
relay those of clients."""


class HttpRoom(Room["HttpConnection | WebSocketConnection"]):
    """The connections of one server, and their limits. ``metrics`` counts those closed early."""

    def __init__(
        self,
        most: int,
        header_timeout_s: float,
        read_timeout_s: float,
        metrics: Metrics,
        *,
        way: Way = "clients",
    ) -> None:
        super().__init__(most)
        self.way = way
        self.state: State = {OF_CELL: True} if way == "cells" else {}
        self.header_timeout_s = header_timeout_s
        self.read_timeout_s = read_timeout_s
        self._closed: dict[str, Counter] = {
            reason: metrics.counter("api_connections_closed", _HELP, reason=reason)
            for reason in ("max_connections", "header_timeout", "read_timeout")
        }
        if way == "clients":
            metrics.gauge(
                "api_connections", lambda: len(self), "HTTP connections of the management API"
            )

    def count(self, reason: str) -> None:
        """Count a connection that is closed early."""
        self._closed[reason].value += 1

    def protocol(
        self,
        config: Config,
        server_state: ServerState,
        app_state: State,
        _loop: Loop = None,
    ) -> HttpConnection:
        """Create the protocol of a connection; called by uvicorn."""
        make = RelayedConnection if self.way == "machines" else HttpConnection
        return make(self, config, server_state, {**app_state, **self.state}, _loop)

    def websocket(
        self, config: Config, server_state: ServerState, app_state: State
    ) -> WebSocketConnection:
        """Create the protocol of a connection that becomes a WebSocket; called by uvicorn."""
        return WebSocketConnection(self, config, server_state, {**app_state, **self.state})


def authenticated(request: HTTPConnection) -> None:
    """Let the connection of a request keep its place: the client has authenticated."""
    authenticated: Callable[[], None] | None = getattr(request.state, _AUTHENTICATED, None)
    if authenticated is not None:  # there is a server
        authenticated()


class HttpConnection(H11Protocol):
    """uvicorn's, with deadlines."""

    def __init__(
        self,
        room: HttpRoom,
        config: Config,
        server_state: ServerState,
        app_state: State,
        loop: Loop,
    ) -> None:
        super().__init__(
            config, server_state, {**app_state, _AUTHENTICATED: self._authenticated}, loop
        )
        self._room = room
        self._head_timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    @property
    def is_busy(self) -> bool:
        """True if a whole request waits for its answer."""
        return self._is_answering and not self.cycle.more_body

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Close the connection where there are too many; else start the clock for the first request."""
        super().connection_made(transport)
        if self._room.enter(self, self.client[0] if self.client else None):
            self._time_head()
        else:
            self._room.count("max_connections")
            transport.write(_BUSY)
            transport.close()

    def make_room(self) -> None:
        """Close the connection for another."""
        self._room.count("max_connections")
        self.transport.abort()

    def _authenticated(self) -> None:
        self._room.authenticated(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._leave()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Another protocol takes the socket, and the place."""
        self._leave()
        super().handle_websocket_upgrade(event)

    def _leave(self) -> None:
        self._room.leave(self)
        for timer in (self._head_timer, self._read_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests; the time for a head does not begin again with each."""
        super().data_received(data)
        if self.transport.get_protocol() is self:
            self._time_head()

    def on_response_complete(self) -> None:
        """The rest of the body and the head of the next request must come in time."""
        self._room.answered(self)
        super().on_response_complete()
        self._time_head()

    def pause_writing(self) -> None:
        """The client reads its answer too slowly; close it unless it resumes in time."""
        super().pause_writing()
        self._read_timer = self.loop.call_later(
            self._room.read_timeout_s, self._give_up, "read_timeout"
        )

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._read_timer is not None:
            self._read_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not a request; where an answer has begun already, only close."""
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.abort()

    def _time_head(self) -> None:
        """Run a timer while no request is being answered."""
        if self._is_answering:
            if self._head_timer is not None:
                self._head_timer.cancel()
            self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(
                self._room.header_timeout_s, self._give_up, "header_timeout"
            )

    def _give_up(self, reason: str) -> None:
        self._room.count(reason)
        if reason == "header_timeout" and self.cycle is None and not self.transport.is_closing():
            self.transport.write(_SLOW)
        self.transport.close()
        self.loop.call_later(_LINGER_S, self.transport.abort)


class RelayedConnection(HttpConnection):
    """The same behind another machine, once that has said whose it is."""

    _lines = b""
    _link: asyncio.Transport | None = None
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for the line."""
        self._link = transport
        self._late = self.loop.call_later(self._room.header_timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """The line first, then requests."""
        if self._link is None:
            super().data_received(data)
            return
        line, end, rest = (self._lines + data).partition(b"\n")
        self._lines = line
        if not end and len(line) <= _MOST_LINE_BYTES:
            return
        try:
            relayed = _RELAYED.decode(line)
        except msgspec.MsgspecError:
            self._link.abort()
            return
        link = self._link
        self._begin(relayed)
        link.write(TAKEN)
        if rest:
            super().data_received(rest)

    def _begin(self, relayed: Relayed) -> None:
        assert self._link is not None
        assert self._late is not None
        self._late.cancel()
        link, self._link = self._link, None
        super().connection_made(cast(asyncio.Transport, _Behind(link, relayed)))

    def eof_received(self) -> None:
        """It ends."""
        if self._link is None:
            super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other machine, or the client, is gone."""
        if self._link is None:
            super().connection_lost(exc)
        elif self._late is not None:
            self._late.cancel()


class _Behind:
    """A transport with the address and TLS of the client that another machine relays."""

    def __init__(self, link: asyncio.Transport, relayed: Relayed) -> None:
        self._link = link
        self._shown = {
            "socket": None,
            "peername": (relayed.host, relayed.port),
            "sslcontext": relayed.is_tls or None,
        }

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (
            self._shown[name] if name in self._shown else self._link.get_extra_info(name, default)
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)


class WebSocketConnection(WebSocketsSansIOProtocol):
    """uvicorn's, which waits for no client that does not read."""

    is_busy: Final = True

    def __init__(
        self, room: HttpRoom, config: Config, server_state: ServerState, app_state: State
    ) -> None:
        super().__init__(config, server_state, {**app_state, _AUTHENTICATED: self._authenticated})
        self._room = room

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It has the place of the HTTP connection that it was."""
        super().connection_made(transport)
        self._room.enter(self, self.client[0] if self.client else None)

    def make_room(self) -> None:
        """Close the connection for another."""
        self._room.count("max_connections")
        self.transport.abort()

    def _authenticated(self) -> None:
        self._room.authenticated(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._room.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Answers are not read, those to pings included; so no more frames are."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Answers are read again."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    async def receive(self) -> Any:
        """The next frame, once the answers to those before are read."""
        await self.writable.wait()
        return await super().receive()

    def shutdown(self) -> None:
        """The server stops."""
        if self.handshake_complete and not self.close_sent:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": _STOPPING})
            self.conn.send_close(_STOPPING, "the broker stops")
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        super().shutdown()

    def keepalive_timeout(self) -> None:
        """The client has not answered a ping."""
        super().keepalive_timeout()
        self._abort_soon()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application is done with it."""
        super().on_task_complete(task)
        self._abort_soon()

    def _abort_soon(self) -> None:
        self.loop.call_later(_LINGER_S, self.transport.abort)


_RELAYED: Final = msgspec.json.Decoder(Relayed)
