"""One HTTP service: its connections, its credentials, and a request with its answer.

On aiohttp, whose CPU per request is that of a hand-written client on h11, and a twentieth of httpx's
(``benchmarks/http_client.py``).
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, cast
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.connector import Connection
from yarl import URL

from bridges.http.answers import Answer, summary
from bridges.http.request import Headers, one_line, origin_and_base
from bridges.http.settings import (
    BasicAuthentication,
    BearerAuthentication,
    HttpSettings,
    OauthAuthentication,
)
from bridges.resource.contract import Connector, Context, ProbeStep
from bridges.resource.errors import (
    BadSettings,
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TryAgain,
    connection_error,
)
from bridges.resource.probe import connect_step, resolve, resolve_step, tls_step
from bridges.resource.settings.oauth import Tokens
from bridges.resource.settings.tls import client_context
from broker.config.secret_text import MadeOfSecrets
from broker.config.ssrf import AddressGuard, GuardedResolver

_NO_CERTIFICATE: Final = "; it may require a client certificate: ssl.certfile and ssl.keyfile"
_CHECK_S: Final = 10.0
_CHECK_BYTES: Final = 4096
# Maximum size of an answer's status line, and of each header.
_HEAD_BYTES: Final = 64 * 1024
# Headers that aiohttp would add.
_NOT_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_PROXY_LOGIN_REFUSED: Final = 407


class HttpClient(Connector):
    """A pool of connections to one address."""

    def __init__(self, settings: HttpSettings, context: Context) -> None:
        self.settings = settings
        self.context = context
        self.origin, self.base = origin_and_base(settings.url)
        self._session: aiohttp.ClientSession | None = None
        self._answered: WeakSet[Any] = WeakSet()
        """Connections that have answered a request."""
        self._slots = asyncio.Semaphore(settings.pool_size)
        self._tls: ssl.SSLContext | None = None
        self._headers: Callable[[], Headers] = tuple
        self._proxy_login: Callable[[], Headers] = tuple
        self._proxy = None if settings.proxy is None else origin_and_base(settings.proxy.url)[0]
        login = settings.authentication
        self._tokens = (
            Tokens(login, context.guard) if isinstance(login, OauthAuthentication) else None
        )

    async def open(self) -> None:
        """Connect, log in, and request ``health_check_path``."""
        settings = self.settings
        tls = settings.ssl.model_copy(update={"enable": self.origin.scheme == "https"})
        self._tls = await asyncio.to_thread(client_context, tls)
        self._headers = MadeOfSecrets(lambda: _fixed_headers(settings))
        self._proxy_login = MadeOfSecrets(lambda: _proxy_login(settings))
        self._check_allowed(self.origin)
        self._session = aiohttp.ClientSession(
            connector=self._connector(),
            timeout=aiohttp.ClientTimeout(total=None, connect=settings.connect_timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
            auto_decompress=False,
            max_line_size=_HEAD_BYTES,
            max_field_size=_HEAD_BYTES,
        )
        try:
            await self._check(self._session.connector)
        except BaseException:
            await self.close()
            raise

    def _connector(self) -> aiohttp.TCPConnector:
        """Connections to addresses that the guard allows; ``pool_size`` is this class's to keep."""
        guard = self.context.guard
        resolver = cast(
            AbstractResolver, GuardedResolver(lambda host, port: resolve(host, port, guard))
        )
        idle_s = self.settings.max_inactive
        return _TrackingConnector(
            limit=0, resolver=resolver, use_dns_cache=False, keepalive_timeout=idle_s
        )

    async def close(self) -> None:
        """Close all connections."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    async def check(self) -> None:
        """Check that the service accepts connections, gives tokens, and answers at ``health_check_path``."""
        async with self._connector() as fresh:
            await self._check(fresh)

    async def _check(self, connector: aiohttp.BaseConnector | None) -> None:
        """The same, with a connection of a pool."""
        if self.settings.health_check_path is None:
            await self._connect(connector)
            if self._tokens is not None:
                await self._tokens.token()
            return
        target = self._health_target(self.settings.health_check_path.reveal())
        answer = await self.ask("GET", target, _CHECK_S)
        said = summary(
            f"GET {self.origin}{self._health_target(self.settings.health_check_path.address)}",
            answer,
        )
        if answer.status in (401, 403):
            raise BadSettings(said)
        if answer.status >= 500:
            raise ReconnectFirst(said)
        if answer.status >= 400:
            raise BadSettings(f"{said}; health_check_path must exist")

    async def _connect(self, connector: aiohttp.BaseConnector | None) -> None:
        """Make a connection in a pool, and keep it for a request."""
        if self._session is None or connector is None:
            raise ReconnectFirst(f"{self.origin}: not connected")
        request = aiohttp.ClientRequest(
            "GET", self.origin, **self._way_to(self.origin), session=self._session
        )
        try:
            (await connector.connect(request, [], self._session.timeout)).release()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._meant(error, self.origin) from None

    def _health_target(self, path: str) -> str:
        """The path of the check behind the one of the address."""
        return f"{self.base}/{path.lstrip('/')}"

    def probe(self) -> Sequence[ProbeStep]:
        """Name, connection, TLS, login, request."""
        settings = self.settings
        guard = self.context.guard
        host, port = _place(self._proxy or self.origin)
        steps = [resolve_step(host, port, guard), connect_step(host, port, guard)]
        if self.origin.scheme == "https" and self._proxy is None:
            steps.append(tls_step(host, port, guard, settings.ssl))
        if self._tokens is not None:
            steps.append(ProbeStep("authenticate", self._probe_token))
        steps.append(ProbeStep("request", self._probe_request))
        return steps

    async def _probe_token(self) -> str:
        assert self._tokens is not None
        await self._tokens.token()
        return "a token was given"

    async def _probe_request(self) -> str:
        await self.open()
        path = self.settings.health_check_path
        if path is None:
            return "accepts connections; set health_check_path to send it a request"
        return f"answers at {self._health_target(path.address)}"

    # Requests

    async def ask(
        self,
        method: str,
        target: str,
        timeout_s: float,
        headers: Headers = (),
        body: bytes = b"",
        *,
        most_bytes: int = _CHECK_BYTES,
        redirects: int = 0,
    ) -> Answer:
        """Send a request and return its answer, whatever its status. A refused token is replaced once.

        Raises:
            TryAgain: no complete answer in time.
            ReconnectFirst, BadSettings: there is no connection, or no token (``Tokens.token``).
            NeverAgain: the answer is not HTTP, or redirects from https to http or to a forbidden address.
        """
        await self._take_slot(timeout_s * 0.9)
        limit = asyncio.timeout(timeout_s)
        origin = self.origin
        try:
            async with limit:
                answer = await self._authorized(method, target, headers, body, most_bytes)
                for _ in range(redirects):
                    place = _redirected(method, answer, origin, target)
                    if place is None:
                        break
                    origin, target = place
                    if origin == self.origin:
                        answer = await self._authorized(method, target, headers, body, most_bytes)
                    else:
                        answer = await self._elsewhere(
                            origin, method, target, headers, body, most_bytes
                        )
                return answer
        except (aiohttp.ClientError, TimeoutError) as error:
            if limit.expired():
                raise TryAgain(f"{self.origin}: no answer within {timeout_s:g} s") from None
            raise self._meant(error, origin) from None
        except ValueError as error:
            raise NeverAgain(f"the request cannot be written: {error}") from None
        finally:
            self._slots.release()

    async def _take_slot(self, timeout_s: float) -> None:
        """Wait for one of the pool's connections, to be given back by ``self._slots.release``."""
        if not self._slots.locked():
            await self._slots.acquire()
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._slots.acquire()
        except TimeoutError:
            size = self.settings.pool_size
            raise TryAgain(
                f"no connection was free for {timeout_s:g} s: pool_size is {size}, all wait for {self.origin}"
            ) from None

    async def _authorized(
        self, method: str, target: str, headers: Headers, body: bytes, most_bytes: int
    ) -> Answer:
        """With the connector's headers and credentials."""
        own = self._headers()
        if self._tokens is None:
            return await self._exchange(
                self.origin, method, target, (*own, *headers), body, most_bytes
            )
        token = ("Authorization", f"Bearer {await self._tokens.token()}")
        answer = await self._exchange(
            self.origin, method, target, (*own, token, *headers), body, most_bytes
        )
        if answer.status == 401:
            self._tokens.forget()
            token = ("Authorization", f"Bearer {await self._tokens.token()}")
            answer = await self._exchange(
                self.origin, method, target, (*own, token, *headers), body, most_bytes
            )
        return answer

    async def _elsewhere(
        self, origin: URL, method: str, target: str, headers: Headers, body: bytes, most_bytes: int
    ) -> Answer:
        """Follow a redirection to another host, without the connector's headers and credentials.

        A connection to it that fails says nothing about the connector's own, which is not replaced.
        """
        try:
            self._check_allowed(origin)
            return await self._exchange(origin, method, target, headers, body, most_bytes)
        except BridgeError as error:
            failure = error
        except (aiohttp.ClientError, TimeoutError) as error:
            failure = self._meant(error, origin)
        text = f"{self.origin} redirects to {origin}: {failure}"
        if isinstance(failure, (BadSettings, NeverAgain)):
            raise NeverAgain(text)
        raise TryAgain(text)

    async def _exchange(
        self, origin: URL, method: str, target: str, headers: Headers, body: bytes, most_bytes: int
    ) -> Answer:
        """The service may close a kept connection while a request is in flight: the request is then sent once more.

        One that has answered nothing yet was not kept too long; the service may have taken the request.
        """
        try:
            answer = await self._sent(origin, method, target, headers, body, most_bytes)
        except aiohttp.ServerDisconnectedError:
            if _connection_in_use.get() not in self._answered:
                raise
            answer = await self._sent(origin, method, target, headers, body, most_bytes)
        self._answered.add(_connection_in_use.get())
        return answer

    async def _sent(
        self, origin: URL, method: str, target: str, headers: Headers, body: bytes, most_bytes: int
    ) -> Answer:
        if self._session is None:
            raise ReconnectFirst(f"{self.origin}: not connected")
        async with self._session.request(
            method,
            URL(f"{origin}{target}", encoded=True),
            headers=[
                ("User-Agent", "sluice"),
                *(() if origin.scheme == "https" else self._proxy_login()),
                *headers,
            ],
            data=body or (None if method in ("GET", "HEAD", "DELETE", "OPTIONS") else b""),
            allow_redirects=False,
            **self._way_to(origin),
        ) as response:
            received = bytearray()
            while len(received) < most_bytes and (
                chunk := await response.content.read(most_bytes - len(received))
            ):
                received += chunk
            return Answer(response.status, response.headers, bytes(received))

    def _way_to(self, origin: URL) -> dict[str, Any]:
        """TLS and proxy of a connection. Hosts that redirections lead to see no certificate of the connector."""
        options: dict[str, Any] = {}
        if self._tls is not None and origin.host == self.origin.host:
            options["ssl"] = self._tls
        if self._proxy is not None:
            # which aiohttp uses for tunnels only
            options |= {
                "proxy": self._proxy,
                "proxy_headers": self._proxy_login(),
            }
        return options

    def _check_allowed(self, origin: URL) -> None:
        """Refuse addresses that need no name lookup; names are checked by ``GuardedResolver``, but behind a proxy."""
        guard = self.context.guard
        for host in (origin.host, None if self._proxy is None else self._proxy.host):
            if host and (reason := guard.why_not_host(host) or _why_not_literal(guard, host)):
                raise BadSettings(f"{host} must not be called: {reason}")

    def _meant(self, error: Exception, origin: URL) -> BridgeError:
        """An error of aiohttp as one of bridges."""
        host, port = _place(origin)
        where = f"{host}:{port}"
        proxy = self._proxy and f"the proxy {self._proxy.host}:{self._proxy.port}"
        if isinstance(error, aiohttp.InvalidURL):  # 127.1, 2130706433
            return BadSettings(
                f"{origin}: {origin.host!r} is not a valid host. Try: an IPv4 address of four numbers"
            )
        if isinstance(error, aiohttp.ClientHttpProxyError):
            if error.status == _PROXY_LOGIN_REFUSED:
                return BadSettings(f"{proxy} refuses the login")
            return ReconnectFirst(f"{proxy} makes no tunnel to {origin.host}: {error.status}")
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return ReconnectFirst(
                f"{where}: no connection within {self.settings.connect_timeout:g} s"
            )
        if isinstance(error, aiohttp.ClientProxyConnectionError):
            return connection_error(error.os_error, str(proxy))
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            return connection_error(error.certificate_error, where)
        if isinstance(error, aiohttp.ClientConnectorError):
            return connection_error(error.os_error, where)
        if isinstance(error, aiohttp.ClientResponseError):
            return NeverAgain(f"{origin}: the answer is not HTTP: {error.message}")
        is_silent_tls = origin.scheme == "https" and self.settings.ssl.certfile is None
        hint = (
            ""
            if not is_silent_tls or isinstance(error, aiohttp.ClientPayloadError)
            else _NO_CERTIFICATE
        )
        if isinstance(cause := error.__cause__, ssl.SSLError):
            return BadSettings(f"{origin}: TLS was refused: {cause.reason or cause}{hint}")
        return TryAgain(f"{origin}: the connection was closed before the answer was complete{hint}")


# Connection of the request that the task is sending.
_connection_in_use: Final[ContextVar[Any]] = ContextVar("connection_in_use", default=None)


class _TrackingConnector(aiohttp.TCPConnector):
    """Notes which connection a request gets."""

    async def connect(self, req: Any, traces: Any, timeout: aiohttp.ClientTimeout) -> Connection:
        """See ``TCPConnector``."""
        connection = await super().connect(req, traces, timeout)
        _connection_in_use.set(connection.protocol)
        return connection


def _place(origin: URL) -> tuple[str, int]:
    return origin.host or "", origin.port or 0


def _redirected(method: str, answer: Answer, origin: URL, target: str) -> tuple[URL, str] | None:
    """The target of a redirection; None if the answer is none, or if the method would change."""
    repeats = (301, 302, 303, 307, 308) if method == "GET" else (307, 308)
    place = answer.headers.get("Location")
    if answer.status not in repeats or not place:
        return None
    try:
        url = URL(f"{origin}{target}", encoded=True).join(URL(place))
        # a name with an empty label would be looked up again and again
        (url.host or "").encode("idna")
    except ValueError:
        return None
    if url.scheme not in ("http", "https") or not url.host:
        return None
    if origin.scheme == "https" and url.scheme == "http":
        raise NeverAgain(f"{origin} redirects to {url.origin()}, which is not encrypted")
    return url.origin(), url.raw_path_qs


def _fixed_headers(settings: HttpSettings) -> Headers:
    """Headers of every request. Secrets are read here: as the connector opens, and when a named secret changed."""
    authentication = settings.authentication
    try:
        headers = [
            (name, one_line(name, secret.reveal())) for name, secret in settings.headers.items()
        ]
        if isinstance(authentication, BasicAuthentication):
            headers.append(
                ("Authorization", _basic(authentication.username, authentication.password.reveal()))
            )
        elif isinstance(authentication, BearerAuthentication):
            headers.append(
                (
                    "Authorization",
                    f"Bearer {one_line('Authorization', authentication.token.reveal())}",
                )
            )
    except NeverAgain as error:
        raise BadSettings(str(error)) from None
    return headers


def _proxy_login(settings: HttpSettings) -> Headers:
    proxy = settings.proxy
    if proxy is None or not proxy.username:
        return []
    password = proxy.password.reveal() if proxy.password is not None else ""
    return [("Proxy-Authorization", _basic(proxy.username, password))]


def _basic(username: str, password: str) -> str:
    return "Basic " + b64encode(f"{username}:{password}".encode()).decode()


def _why_not_literal(guard: AddressGuard, host: str) -> str | None:
    try:
        return guard.why_not_address(host)
    except ValueError:
        return None
