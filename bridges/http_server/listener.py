"""The own listener of a connector for posted messages, with or without TLS: HTTP/1.1 by h11.

It knows one path, ``/ingest/NAME`` and what follows it, and ``POST``. Clients that send nothing, or send slowly, are
cut off. Where there are too many connections, those that have not authenticated make room first. A request of 100 bytes
takes 135 to 150 µs of CPU, as much as through uvicorn, which has no deadline for a request's head and cannot replace
certificates while it listens.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

import h11

from bridges.http_server.settings import ListenSettings
from bridges.resource.errors import BadSettings
from broker.core import jsontext
from broker.core.errors import SluiceError, Unavailable
from broker.core.json_values import problem_to_wire
from broker.core.receivers import Post, PostRefused, Receiver
from broker.core.room import Room
from broker.observe.log import get_logger

_log = get_logger(__name__)

PREFIX: Final = "/ingest/"
_READ_BYTES: Final = 64 * 1024
# A request line with its headers must come within this time of the connection, or of the answer before it.
_HEAD_S: Final = 10.0
_HANDSHAKE_S: Final = 10.0
# A client that does not read its answer within this time is cut off.
_ANSWER_S: Final = 10.0
# Connections that the system keeps until they are accepted.
_BACKLOG: Final = 128
# Seconds to wait when the system gives no more sockets.
_PAUSE_S: Final = 1.0
# So long is read on behind a request that was refused before its end, so that the answer arrives.
_DRAIN_S: Final = 2.0
# Interval of checks for changed certificate files.
_LOOK_S: Final = 10.0
# Requests that run when the listener ends have so long.
_END_S: Final = 2.0

Find = Callable[[str], Receiver | None]


class Answer(NamedTuple):
    """The response to a request."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = {}


class PostListener:
    """A connector's own listener for posted data."""

    def __init__(self, settings: ListenSettings, find: Find, look_s: float = _LOOK_S) -> None:
        self._settings = settings
        self._find = find
        self._look_s = look_s
        self._renewing: asyncio.Task[None] | None = None
        self._listening: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self._room = Room[_Connection](settings.max_connections)
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen.

        Raises:
            BadSettings: the address is not available, or a file of TLS cannot be used.
        """
        settings = self._settings
        host, port = settings.address
        tls = await asyncio.to_thread(settings.ssl.context)
        try:
            self._listening = await _listening_at(host, port)
        except OSError as error:
            raise BadSettings(f"cannot listen on {settings.bind}: {_why(error)}") from None
        self._accepting = [
            asyncio.create_task(self._accept(listening, tls), name=f"accept at {settings.bind}")
            for listening in self._listening
        ]
        if tls is not None:
            self._renewing = asyncio.create_task(
                self._renew(tls), name=f"certificates of {settings.bind}"
            )

    async def _renew(self, used: ssl.SSLContext) -> None:
        """Read files of certificates again when they are others; those who are connected keep what they began with."""
        tls = self._settings.ssl
        where = self._settings.bind
        seen = await asyncio.to_thread(lambda: tls.seen)
        while True:
            await asyncio.sleep(self._look_s)
            now = await asyncio.to_thread(lambda: tls.seen)
            if now == seen:
                continue
            seen = now
            try:
                # one that fits, before the one in use is touched
                await asyncio.to_thread(tls.context)
                tls.load(used)
            except BadSettings as error:
                _log.error(
                    "http_server.certificate_not_reloaded", listener=where, reason=str(error)
                )
            else:
                _log.info("http_server.certificate_reloaded", listener=where)

    async def stop(self) -> None:
        """Listen no more; requests that run have a moment."""
        listening = self._listening
        self._listening = []
        for task in self._accepting:
            task.cancel()
        await asyncio.gather(*self._accepting, return_exceptions=True)
        for link in listening:
            link.close()
        if self._renewing is not None:
            self._renewing.cancel()
        if self._serving:
            await asyncio.wait(self._serving, timeout=_END_S)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def port(self) -> int:
        """Port of the listener; 0 while it does not listen."""
        return int(self._listening[0].getsockname()[1]) if self._listening else 0

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                link, address = await loop.sock_accept(listening)
            except ConnectionError:  # it left before it was taken
                continue
            except OSError as error:  # no more file descriptors, no memory
                _log.error(
                    "http_server.cannot_accept", listener=self._settings.bind, reason=str(error)
                )
                await asyncio.sleep(_PAUSE_S)
                continue
            connection = _Connection(
                link, address[0], self._room, self._find, lambda: not self._listening
            )
            if not self._room.enter(connection, address[0]):
                link.close()
                continue
            task = connection.task = asyncio.create_task(
                connection.run(tls), name=f"post from {address[0]}"
            )
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)


class _Connection:
    """One connection: requests one after the other."""

    task: asyncio.Task[None]
    _writer: asyncio.StreamWriter

    def __init__(
        self,
        link: socket.socket,
        peer_host: str,
        room: Room[_Connection],
        find: Find,
        ends: Callable[[], bool],
    ) -> None:
        self._link = link
        self._peer_host = peer_host
        self._room = room
        self._find = find
        self._ends = ends
        self._http = h11.Connection(h11.SERVER)
        self._reader = asyncio.StreamReader()
        self.is_busy = False

    def make_room(self) -> None:
        """Close the connection for another."""
        self.task.cancel()

    async def run(self, tls: ssl.SSLContext | None) -> None:
        """Serve until either side ends the connection."""
        loop = asyncio.get_running_loop()
        options: dict[str, Any] = (
            {} if tls is None else {"ssl": tls, "ssl_handshake_timeout": _HANDSHAKE_S}
        )
        protocol = asyncio.StreamReaderProtocol(self._reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, self._link, **options
            )
            self._writer = asyncio.StreamWriter(transport, protocol, self._reader, loop)
            try:
                await self._serve()
            finally:
                transport.abort()
        except (OSError, TimeoutError):
            pass  # the client is gone, or too slow
        finally:
            self._room.leave(self)

    async def _serve(self) -> None:
        while not self._ends():
            try:
                async with asyncio.timeout(_HEAD_S):
                    request = await self._event()
                if not isinstance(request, h11.Request):
                    return
                answer = await self._answer(request)
            except h11.RemoteProtocolError as error:
                answer = _problem(
                    error.error_status_hint,
                    "malformed_body",
                    f"expected an HTTP/1.1 request: {error}",
                )
            await self._send(answer)
            self.is_busy = False
            self._room.answered(self)
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                await self._drain()
                return
            self._http.start_next_cycle()

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._writer.write(
                    self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b""
                )
            self._http.receive_data(await self._reader.read(_READ_BYTES))
        return event

    async def _answer(self, request: h11.Request) -> Answer:
        path, _, query = request.target.decode("latin-1").partition("?")
        if not path.startswith(PREFIX) or path == PREFIX:
            return _problem(
                404, "no_such_path", f"there is no path {path}; sources are at {PREFIX}NAME"
            )
        if request.method != b"POST":
            text = f"{path} does not take {request.method.decode('latin-1')}"
            return _problem(405, "method_not_allowed", text, headers={"Allow": "POST"})
        name, _, rest = path[len(PREFIX) :].partition("/")
        receiver = self._find(unquote(name))
        if receiver is None:
            return _problem(
                404,
                "not_found",
                f"there is no source {unquote(name)!r} at this listener, or not now",
            )
        headers = {
            header.decode("latin-1"): value.decode("latin-1") for header, value in request.headers
        }
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        post = Post(
            unquote(rest),
            parameters,
            headers,
            self._peer_host,
            self._read,
            lambda: self._room.authenticated(self),
        )
        try:
            return Answer(200, jsontext.encode(dict(await receiver.receive(post))))
        except PostRefused as error:
            problems = [problem_to_wire(problem) for problem in error.errors]
            return _problem(error.status, error.code, str(error), problems, headers=error.headers)
        except Unavailable as error:
            return _problem(
                503,
                error.code,
                str(error),
                headers={"Retry-After": str(int(error.retry_after_s or 1))},
            )
        except SluiceError as error:
            return _problem(422, error.code, str(error))
        except (h11.RemoteProtocolError, OSError, TimeoutError):
            raise
        except Exception:  # noqa: BLE001 - one request must not end the others
            _log.exception("ingest.failed")
            return _problem(500, "internal", "the server failed; its log has the reason")

    async def _read(self, most_bytes: int) -> bytes:
        chunks = []
        size = 0
        while isinstance(event := await self._event(), h11.Data):
            size += len(event.data)
            if size > most_bytes:
                raise PostRefused(413, "too_large", f"the body is larger than {most_bytes} bytes")
            chunks.append(bytes(event.data))
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError
        self.is_busy = True
        return b"".join(chunks)

    async def _send(self, answer: Answer) -> None:
        headers = [
            ("Content-Type", answer.content_type),
            ("Content-Length", str(len(answer.body))),
            ("X-Content-Type-Options", "nosniff"),
            ("Cache-Control", "no-store"),
            *answer.headers.items(),
        ]
        if self._ends() or self._http.their_state is not h11.DONE:
            headers.append(("Connection", "close"))
        http = self._http
        parts = (
            h11.Response(status_code=answer.status, headers=headers),
            h11.Data(answer.body),
            h11.EndOfMessage(),
        )
        self._writer.write(b"".join(http.send(part) or b"" for part in parts))
        async with asyncio.timeout(_ANSWER_S):
            await self._writer.drain()

    async def _drain(self) -> None:
        """Read on for a moment what is still being sent: a socket that is closed on it would swallow the answer."""
        if self._writer.can_write_eof():
            self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                while await self._reader.read(_READ_BYTES):
                    pass


def _problem(
    status: int,
    code: str,
    detail: str,
    errors: Any = (),
    *,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """A problem document (RFC 9457), like the API's."""
    body = {
        "title": detail,
        "status": status,
        "detail": detail,
        "code": code,
        "errors": list(errors),
    }
    try:
        data = jsontext.encode(body)
    except jsontext.JsonError:  # what was sent may hold half characters
        data = jsontext.encode(
            {**body, "title": ascii(detail), "detail": ascii(detail), "errors": []}
        )
    return Answer(status, data, "application/problem+json", dict(headers or {}))


async def _listening_at(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of a host."""
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    with ExitStack() as opened:
        sockets = []
        for family, _, _, _, address in dict.fromkeys(addresses):
            link = opened.enter_context(
                socket.create_server(address[:2], family=family, backlog=_BACKLOG)
            )
            link.setblocking(False)
            sockets.append(link)
        opened.pop_all()
    return sockets


def _why(error: OSError) -> str:
    number = error.errno or 0
    if number == errno.EADDRINUSE:
        return "the port is in use; stop the program that has it, or choose another"
    if number == errno.EADDRNOTAVAIL:
        return "this machine has no such address; use 127.0.0.1, or 0.0.0.0 for all addresses"
    if number in (errno.EACCES, errno.EPERM):
        return "ports below 1024 are not for ordinary users; choose one above"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return (os.strerror(number) if number > 0 else str(error)).lower()
