"""One HTTP service: its connections, its credentials, and a request with its answer."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Sequence
from typing import Final
from urllib.parse import urljoin

import h11
import httpx

from bridges.http.address import origin_and_base
from bridges.http.answers import told
from bridges.http.connection import Answer, BadAnswer, Connection, ConnectionCut, Headers, Request
from bridges.http.headers import header_value
from bridges.http.pool import Dialer, Origin, Pool, Proxy
from bridges.http.settings import (
    BasicAuthentication,
    BearerAuthentication,
    HttpActionSettings,
    HttpSettings,
    OauthAuthentication,
)
from bridges.resource.contract import Connector, Context, ProbeStep, Sink
from bridges.resource.errors import BadSettings, NeverAgain, ReconnectFirst, TryAgain
from bridges.resource.oauth import Tokens
from bridges.resource.probe import connect_step, resolve_step, tls_step
from bridges.resource.tls import client_context

_NO_CERTIFICATE: Final = "; it may want a client certificate: ssl.certfile and ssl.keyfile"
_CHECK_S: Final = 10.0
_AGENT: Final = (b"User-Agent", b"sluice")
_CHECK_BYTES: Final = 4096


class HttpConnector(Connector):
    """A pool of connections to one address."""

    def __init__(self, settings: HttpSettings, context: Context) -> None:
        self.settings, self.context = settings, context
        self.origin, self.base = origin_and_base(settings.url)
        self._pool: Pool | None = None
        self._dialer: Dialer
        self._headers: list[tuple[bytes, bytes]] = []
        self._has_certificate = settings.ssl.certfile is not None
        login = settings.authentication
        self._tokens = Tokens(login, context.guard) if isinstance(login, OauthAuthentication) else None

    async def open(self) -> None:
        """Connect, log in, and ask what ``health_check_path`` says."""
        settings, clock = self.settings, self.context.services.node.clock
        tls = settings.ssl.model_copy(update={"enable": self.origin.is_secure})
        context = await asyncio.to_thread(client_context, tls)
        self._dialer = Dialer(self.context.guard, self.origin.host, context, _proxy(settings), settings.connect_timeout)
        self._headers = [(b"Host", self.origin.authority.encode()), _AGENT, *_fixed_headers(settings)]
        pool = Pool(self.origin, self._dialer, settings.pool_size, settings.max_inactive, clock.monotonic_s)
        self._pool = pool
        try:
            await self.check()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    async def check(self) -> None:
        """Whether it takes connections, gives tokens, and answers at ``health_check_path``."""
        if self._pool is None:
            raise ReconnectFirst(f"{self.origin}: not connected")
        if self.settings.health_check_path is None:
            await self._pool.check()
            if self._tokens is not None:
                await self._tokens.token()
            return
        answer = await self.ask(b"GET", self.health_target, _CHECK_S)
        said = told(f"GET {self.origin}{self.health_target.decode()}", answer)
        if answer.status in (401, 403):
            raise BadSettings(said)
        if answer.status >= 500:
            raise ReconnectFirst(said)
        if answer.status >= 400:
            raise BadSettings(f"{said}; health_check_path must be there")

    @property
    def health_target(self) -> bytes:
        """The path of the check."""
        path = (self.settings.health_check_path or "").lstrip("/")
        return f"{self.base}/{path}".encode()

    def probe(self) -> Sequence[ProbeStep]:
        """Name, connection, TLS, login, request."""
        settings, guard = self.settings, self.context.guard
        through = _proxy(settings)
        host, port = (self.origin.host, self.origin.port) if through is None else (through.host, through.port)
        steps = [resolve_step(host, port, guard), connect_step(host, port, guard)]
        if self.origin.is_secure and through is None:
            steps.append(ProbeStep("tls", self._probe_tls))
        if self._tokens is not None:
            steps.append(ProbeStep("authenticate", self._probe_token))
        steps.append(ProbeStep("request", self._probe_request))
        return steps

    async def _probe_tls(self) -> str:
        context = await asyncio.to_thread(client_context, self.settings.ssl.model_copy(update={"enable": True}))
        assert context is not None
        return await tls_step(self.origin.host, self.origin.port, context).run()

    async def _probe_token(self) -> str:
        assert self._tokens is not None
        await self._tokens.token()
        return "a token was given"

    async def _probe_request(self) -> str:
        await self.open()
        if self.settings.health_check_path is None:
            return "takes connections; set health_check_path to have it asked for something"
        return f"answers at {self.health_target.decode()}"

    def sink(self, settings: HttpActionSettings, context: Context) -> Sink:
        """Requests of an action."""
        from bridges.http.sink import HttpSink

        return HttpSink(self, settings, context)

    # Requests

    async def ask(
        self,
        method: bytes,
        target: bytes,
        timeout_s: float,
        headers: Headers = (),
        body: bytes = b"",
        *,
        most_bytes: int = _CHECK_BYTES,
        redirects: int = 0,
    ) -> Answer:
        """A request and its answer, whatever that says. A token that is refused is asked for anew, once.

        Raises:
            TryAgain: no answer in time, or none that is complete.
            ReconnectFirst, BadSettings: nobody is there; see ``Dialer.dial`` and ``Tokens.token``.
            NeverAgain: what it answers is not HTTP; a redirection leads to where nobody may call.
        """
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                answer = await self._authorized(method, target, headers, body, most_bytes, timeout_s)
                origin = self.origin
                for _ in range(redirects):
                    place = _redirected(method, answer, origin, target)
                    if place is None:
                        break
                    origin, target = place
                    answer = await self._at(origin, method, target, headers, body, most_bytes, timeout_s)
                return answer
        except TimeoutError:
            if not limit.expired():
                raise
            raise TryAgain(f"{self.origin}: no answer within {timeout_s:g} s") from None
        except BadAnswer as error:
            raise NeverAgain(f"{self.origin}: {error}") from None
        except ConnectionCut as error:
            if error.is_refused:
                raise BadSettings(f"{self.origin}: {error}") from None
            hint = _NO_CERTIFICATE if self.origin.is_secure and error.was_silent and not self._has_certificate else ""
            raise TryAgain(f"{self.origin}: {error}{hint}") from None
        except h11.LocalProtocolError as error:
            raise NeverAgain(f"the request cannot be written: {error}") from None

    async def _at(
        self,
        origin: Origin,
        method: bytes,
        target: bytes,
        headers: Headers,
        body: bytes,
        most_bytes: int,
        timeout_s: float,
    ) -> Answer:
        """Where a redirection leads; to another host without what is ours: credentials and headers of the connector."""
        if origin == self.origin:
            return await self._authorized(method, target, headers, body, most_bytes, timeout_s)
        connection = await self._dialer.dial(origin)
        try:
            own = [(b"Host", origin.authority.encode()), _AGENT]
            return await connection.exchange(self._request(origin, method, target, (*own, *headers), body), most_bytes)
        finally:
            connection.close()

    async def _authorized(
        self, method: bytes, target: bytes, headers: Headers, body: bytes, most_bytes: int, timeout_s: float
    ) -> Answer:
        own = self._headers
        if self._tokens is None:
            return await self._exchange(
                self._request(self.origin, method, target, (*own, *headers), body), most_bytes, timeout_s
            )
        for is_last in (False, True):
            token = (b"Authorization", b"Bearer " + (await self._tokens.token()).encode())
            request = self._request(self.origin, method, target, (*own, token, *headers), body)
            answer = await self._exchange(request, most_bytes, timeout_s)
            if answer.status != 401 or is_last:
                return answer
            self._tokens.forget()
        raise AssertionError("not reached")

    async def _exchange(self, request: Request, most_bytes: int, timeout_s: float) -> Answer:
        """Over a connection of the pool. One that was used before may have been closed by the other side while the
        request was on its way: then it is sent over a new one, as the framework would."""
        pool = self._pool
        if pool is None:
            raise ReconnectFirst(f"{self.origin}: not connected")
        connection: Connection = await pool.take(timeout_s * 0.9)
        try:
            try:
                return await connection.exchange(request, most_bytes)
            except ConnectionCut as error:
                if not error.was_silent or not connection.answers or error.is_refused:
                    raise
            connection = await pool.renewed(connection)
            return await connection.exchange(request, most_bytes)
        finally:
            pool.give_back(connection)

    def _request(self, origin: Origin, method: bytes, target: bytes, headers: Headers, body: bytes) -> Request:
        proxy = self._dialer.proxy
        if proxy is not None and not origin.is_secure:
            target, headers = str(origin).encode() + target, (*headers, *proxy.headers)
        if body or method not in (b"GET", b"HEAD", b"DELETE", b"OPTIONS"):
            headers = (*headers, (b"Content-Length", b"%d" % len(body)))
        return Request(method, target, headers, body)


def _redirected(method: bytes, answer: Answer, origin: Origin, target: bytes) -> tuple[Origin, bytes] | None:
    """Where an answer leads; None when it does not, or when the request would have to become another one."""
    repeats = (301, 302, 303, 307, 308) if method == b"GET" else (307, 308)
    place = answer.header(b"location")
    if answer.status not in repeats or not place:
        return None
    whole = urljoin(f"{origin}{target.decode()}", place)
    try:
        url = httpx.URL(whole)
    except httpx.InvalidURL:
        return None
    if url.scheme not in ("http", "https") or not url.host:
        return None
    is_secure = url.scheme == "https"
    if origin.is_secure and not is_secure:
        raise NeverAgain(f"{origin} redirects to {whole}, which is not encrypted")
    return Origin(is_secure, url.host, url.port or (443 if is_secure else 80)), url.raw_path


def _fixed_headers(settings: HttpSettings) -> list[tuple[bytes, bytes]]:
    """Those of every request. Secrets are read here, each time a connection is made anew."""
    headers = [(name.encode(), header_value(secret.reveal())) for name, secret in settings.headers.items()]
    authentication = settings.authentication
    if isinstance(authentication, BasicAuthentication):
        headers.append((b"Authorization", _basic(authentication.username, authentication.password.reveal())))
    elif isinstance(authentication, BearerAuthentication):
        headers.append((b"Authorization", b"Bearer " + header_value(authentication.token.reveal())))
    return headers


def _proxy(settings: HttpSettings) -> Proxy | None:
    if settings.proxy is None:
        return None
    origin, _ = origin_and_base(settings.proxy.url)
    password = settings.proxy.password.reveal() if settings.proxy.password is not None else ""
    login = [(b"Proxy-Authorization", _basic(settings.proxy.username, password))] if settings.proxy.username else []
    return Proxy(origin.host, origin.port, login)


def _basic(username: str, password: str) -> bytes:
    return b"Basic " + b64encode(f"{username}:{password}".encode())
