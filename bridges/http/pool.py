"""Connections to one service: opened when they are needed, at most so many, kept while they work."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import h11

from bridges.http.connection import Connection, ConnectionCut, Headers
from bridges.resource.errors import BadSettings, ReconnectFirst, TryAgain
from bridges.resource.probe import resolve
from broker.config.ssrf import AddressGuard

_TUNNEL_BYTES: Final = 16 * 1024


class Origin(NamedTuple):
    """Whom requests go to."""

    is_secure: bool
    host: str
    port: int

    def __str__(self) -> str:
        return f"{'https' if self.is_secure else 'http'}://{self.authority}"

    @property
    def authority(self) -> str:
        """``host:port`` as in the header Host; without the port that goes without saying."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_secure else 80) else f"{host}:{self.port}"


class Proxy(NamedTuple):
    """What stands between: its address, and the header that logs in to it."""

    host: str
    port: int
    headers: Headers


class Dialer:
    """Opens connections, to addresses that the guard allows and to no others. ``context`` is for ``host``: others, to
    which redirections lead, are shown no certificate of ours."""

    def __init__(
        self, guard: AddressGuard, host: str, context: ssl.SSLContext | None, proxy: Proxy | None, timeout_s: float
    ) -> None:
        self._guard, self._host, self._context = guard, host, context
        self._proxy, self._timeout_s = proxy, timeout_s

    @property
    def proxy(self) -> Proxy | None:
        """The proxy there is."""
        return self._proxy

    async def dial(self, origin: Origin) -> Connection:
        """A new connection.

        Raises:
            BadSettings: it must not be called; certificates do not fit.
            ReconnectFirst: nobody is there.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._proxy is not None:
                    return await self._through(self._proxy, origin)
                return await self._straight(origin.host, origin.port, self._context_of(origin))
        except TimeoutError:
            raise ReconnectFirst(f"{origin.host}:{origin.port}: no connection within {self._timeout_s:g} s") from None

    def _context_of(self, origin: Origin) -> ssl.SSLContext | None:
        if not origin.is_secure:
            return None
        return self._context if self._context and origin.host == self._host else ssl.create_default_context()

    async def _straight(self, host: str, port: int, context: ssl.SSLContext | None) -> Connection:
        """To each address that the name has, until one takes it."""
        name = host if context is not None else None
        error: OSError | None = None
        for address in await resolve(host, port, self._guard):
            try:
                loop = asyncio.get_running_loop()
                _, made = await loop.create_connection(Connection, address, port, ssl=context, server_hostname=name)
            except ssl.SSLError as refused:
                raise _meant(refused, host, port) from None
            except OSError as refused:
                error = refused
            else:
                return made
        raise ReconnectFirst(f"{host}:{port}: {_reason(error)}")

    async def _through(self, proxy: Proxy, origin: Origin) -> Connection:
        """The proxy looks the name up, so that the guard knows only the name."""
        if why := self._guard.why_not_host(origin.host) or _why_not_literal(self._guard, origin.host):
            raise BadSettings(f"{origin.host} must not be called: {why}")
        context = self._context_of(origin)
        if context is None:
            return await self._straight(proxy.host, proxy.port, None)
        for address in await resolve(proxy.host, proxy.port, self._guard):
            try:
                transport = await _tunnel(address, proxy, origin)
            except OSError as error:
                raise ReconnectFirst(f"the proxy {proxy.host}:{proxy.port}: {_reason(error)}") from None
            made = Connection()
            loop = asyncio.get_running_loop()
            try:
                secured = await loop.start_tls(transport, made, context, server_hostname=origin.host)
            except ssl.SSLError as error:
                raise _meant(error, origin.host, origin.port) from None
            assert secured is not None
            made.connection_made(secured)
            return made
        raise ReconnectFirst(f"the proxy {proxy.host} has no address")


class Pool:
    """Lends connections to one origin, the one used last first."""

    def __init__(self, origin: Origin, dialer: Dialer, size: int, idle_s: float, now_s: Callable[[], float]) -> None:
        self._origin, self._dialer, self._size, self._idle_s, self._now_s = origin, dialer, size, idle_s, now_s
        self._slots = asyncio.Semaphore(size)
        self._idle: deque[Connection] = deque()
        self._lent: set[Connection] = set()

    async def take(self, timeout_s: float) -> Connection:
        """A connection, to be given back.

        Raises:
            TryAgain: all were in use for so long.
            BadSettings, ReconnectFirst: see ``Dialer.dial``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            raise TryAgain(
                f"no connection was free for {timeout_s:g} s: pool_size is {self._size}, all wait for {self._origin}"
            ) from None
        try:
            made = self._fresh() or await self._dialer.dial(self._origin)
        except BaseException:
            self._slots.release()
            raise
        self._lent.add(made)
        return made

    def give_back(self, connection: Connection) -> None:
        """It is not used any more."""
        self._lent.discard(connection)
        if connection.is_open:
            connection.idle_since_s = self._now_s()
            self._idle.append(connection)
        self._slots.release()

    async def renewed(self, connection: Connection) -> Connection:
        """Another one, new, in place of one that was taken."""
        connection.close()
        self._lent.discard(connection)
        made = await self._dialer.dial(self._origin)
        self._lent.add(made)
        return made

    async def check(self) -> None:
        """Open one anew, and keep it for the next request."""
        made = await self._dialer.dial(self._origin)
        if len(self._idle) + len(self._lent) < self._size:
            made.idle_since_s = self._now_s()
            self._idle.append(made)
        else:
            made.close()

    def close(self) -> None:
        """Close them all."""
        for connection in (*self._idle, *self._lent):
            connection.close()
        self._idle.clear()

    def _fresh(self) -> Connection | None:
        while self._idle:
            made = self._idle.pop()
            if made.is_open and self._now_s() - made.idle_since_s <= self._idle_s:
                return made
            made.close()
        return None


class _Tunnel(asyncio.Protocol):
    """Asks a proxy for a tunnel."""

    def __init__(self, request: bytes, http: h11.Connection) -> None:
        self._request, self._http = request, http
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]  # a stream's

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._fail(ConnectionCut(f"what it answers is not HTTP: {error}", was_silent=False))
            return
        if isinstance(event, h11.Response) and not self.answer.done():
            self.answer.set_result(event.status_code)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(ConnectionCut("it closed the connection", was_silent=True))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


async def _tunnel(address: str, proxy: Proxy, origin: Origin) -> asyncio.Transport:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_TUNNEL_BYTES)
    host = f"[{origin.host}]" if ":" in origin.host else origin.host
    target = f"{host}:{origin.port}".encode()
    request = http.send(h11.Request(method="CONNECT", target=target, headers=[(b"Host", target), *proxy.headers]))
    asking = _Tunnel((request or b"") + (http.send(h11.EndOfMessage()) or b""), http)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: asking, address, proxy.port)
    try:
        status = await asking.answer
    except BaseException:
        transport.abort()
        raise
    if status == 407:
        transport.abort()
        raise BadSettings(f"the proxy {proxy.host}:{proxy.port} refuses the login")
    if not 200 <= status < 300:
        transport.abort()
        raise ReconnectFirst(f"the proxy {proxy.host}:{proxy.port} makes no tunnel to {origin.authority}: {status}")
    return transport


def _why_not_literal(guard: AddressGuard, host: str) -> str | None:
    try:
        return guard.why_not_address(host)
    except ValueError:
        return None


def _meant(error: ssl.SSLError, host: str, port: int) -> BadSettings | ReconnectFirst:
    if isinstance(error, ssl.SSLCertVerificationError):
        return BadSettings(f"the certificate of {host}:{port} is not accepted: {error.verify_message}")
    return ReconnectFirst(f"no TLS with {host}:{port}: {(error.reason or str(error)).lower().replace('_', ' ')}")


def _reason(error: OSError | None) -> str:
    if error is None:
        return "it has no address"
    return (error.strerror or str(error)).lower()
