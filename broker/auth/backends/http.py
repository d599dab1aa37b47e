"""Clients decided about by an HTTP service: the authenticator ``http``, and the source of rules ``http``.

::

    POST /auth {"username": "ann", "password": "pencil", "clientid": "c1", "peerhost": "192.0.2.7"}
    200 {"result": "allow", "is_superuser": false, "client_attrs": {"tenant": "acme"}, "expire_at": 1800000000,
         "acl": [{"permission": "allow", "action": "publish", "topic": "meters/${clientid}/#"}]}

``204`` allows. Any other status, and any other answer, is a failure (``on_unavailable``).
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, cast
from urllib.parse import quote, urlencode, urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from broker.auth.backends.authenticator import OutsideAuthenticator, OutsideAuthenticatorSettings
from broker.auth.backends.backend import BackendUnavailable, Outside, Unreachable
from broker.auth.backends.source import Answer, OutsideSourceSettings, RequestSource
from broker.auth.backends.templates import OF_LOGIN, OF_REQUEST, Facts, Template, checked_template
from broker.auth.decision import DENIED, IGNORED, Decision
from broker.auth.jwt_claims import attributes_of, rules_of
from broker.auth.jwt_token import Refused
from broker.config.model import Settings
from broker.config.outgoing import ClientTls, TlsUnusable
from broker.config.secret_text import ADDRESS, SecretText, SecretUnreadable, SecretUrl
from broker.config.ssrf import AddressDenied, GuardedLoop, GuardedResolver
from broker.config.vault import NAMED_SECRETS
from broker.core import jsontext
from broker.core.errors import ConfigError
from broker.core.lazy_module import LazyModule
from broker.core.placeholders import NAMED_SECRET, SECRET_REFERENCE

if TYPE_CHECKING:
    import aiohttp
    import yarl
    from aiohttp.abc import AbstractResolver
else:
    aiohttp = LazyModule("aiohttp")
    yarl = LazyModule("yarl")

_MOST_BYTES: Final = 256 * 1024
# Maximum size of an answer's status line, and of each header.
_HEAD_BYTES: Final = 64 * 1024
# Maximum time that a connection is kept without a request. In seconds.
_KEPT_S: Final = 30.0
# Headers that aiohttp would add.
_NOT_ADDED: Final = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = (
    "connection",
    "content-length",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
)
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f]")
_FORM: Final = "application/x-www-form-urlencoded"
_TRUE: Final = (True, 1, "1", "true")


def _header_name(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(
            f"expected the name of a header, got {name!r}. Try: letters, digits and '-'"
        )
    if name.lower() in _OURS:
        raise ValueError(
            f"expected no header {name!r}, since the broker sets it. Try: leave it out"
        )
    return name


def _whole_reference(value: SecretText) -> SecretText:
    text = value.written
    if NAMED_SECRET.search(text) and not SECRET_REFERENCE.fullmatch(text):
        raise ValueError(
            "expected a reference to a secret alone. Try: the whole value in the secret"
        )
    return value


HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderValue = Annotated[SecretText, AfterValidator(_whole_reference)]


class HttpRequestSettings(Settings):
    """A request to an HTTP service."""

    method: Literal["post", "get"] = Field(
        default="post",
        description="With `post` the values are in the body, with `get` in the query.",
    )
    url: Annotated[SecretUrl, ADDRESS] = Field(
        description="Address of the service; its path and query may have placeholders. Values of the query show as "
        "stars."
    )  # fmt: skip
    headers: dict[HeaderName, HeaderValue] = Field(
        default_factory=dict,
        max_length=64,
        description="Headers, which may have placeholders; shown as stars unless they are `${secret:NAME}`, "
        "`${env:NAME}` or `${file:PATH}`. With `content-type = application/x-www-form-urlencoded` the body is a form, "
        "else JSON.",
    )
    ssl: ClientTls = Field(default_factory=ClientTls, description="TLS of an https address.")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: SecretUrl) -> SecretUrl:
        text = url.reveal()
        try:
            parts = urlsplit(text)
            _ = parts.port
        except ValueError:
            raise ValueError("expected an address. Try: 'http://host:port/path'") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or "${" in parts.netloc:
            raise ValueError("expected an address with a fixed host. Try: 'http://host:port/path'")
        if parts.username is not None:
            raise ValueError("expected an address without a user. Try: a header 'authorization'")
        return url


class HttpAuthenticatorSettings(OutsideAuthenticatorSettings, HttpRequestSettings):
    """Settings of an ``http`` authenticator."""

    mechanism: Literal["http"]
    body: dict[str, str] = Field(
        default_factory=lambda: {
            name: f"${{{name}}}" for name in ("username", "password", "clientid", "peerhost")
        },
        max_length=64,
        description="Members and their templates, with `${username}`, `${password}`, `${clientid}`, `${peerhost}`, "
        "`${peerport}`, `${listener}`, `${zone}`, `${proto_ver}`, `${cert_common_name}`, `${cert_subject}` and "
        "`${client_attrs.NAME}`.",
    )

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        check_request(self, self.body, OF_LOGIN)
        return self


def check_request(
    request: HttpRequestSettings, body: Mapping[str, str], names: tuple[str, ...]
) -> None:
    """Raise ``ValueError`` where a placeholder of a request is unknown."""
    checked_template(request.url.reveal(), names)
    for value in request.headers.values():
        if not SECRET_REFERENCE.fullmatch(value.written):
            checked_template(value.written, names)
    for member, text in body.items():
        if NAMED_SECRET.search(text):
            raise ValueError(f"body.{member}: expected no secret in the body. Try: a header")
        checked_template(text, names)


class HttpSourceSettings(OutsideSourceSettings, HttpRequestSettings):
    """An HTTP service that is asked about each topic of a client."""

    type: Literal["http"]
    body: dict[str, str] = Field(
        default_factory=lambda: {
            name: f"${{{name}}}" for name in ("username", "clientid", "peerhost", "action", "topic")
        },
        max_length=64,
        description="Members and their templates, with `${action}` (`publish`, `subscribe`), `${topic}`, `${qos}`, "
        "`${retain}`, and the names of the client.",
    )

    @model_validator(mode="after")
    def _check_templates(self) -> Self:
        check_request(self, self.body, OF_REQUEST)
        return self


class HttpRequests:
    """Requests about clients to one service."""

    def __init__(
        self, settings: HttpRequestSettings, body: Mapping[str, str], outside: Outside
    ) -> None:
        self._settings = settings
        self._method = settings.method.upper()
        self._url = Template(settings.url.reveal())
        self._body = {member: Template(text) for member, text in body.items()}
        self._secrets_version = -1
        self._headers: list[tuple[str, Template]] = []
        self._is_form = False
        written = [Template(value.written) for value in settings.headers.values()]
        self.templates = (self._url, *self._body.values(), *written)
        self._guard = outside.guard
        self._context = _context(settings)
        self._session: aiohttp.ClientSession | None = None

    async def check(self) -> None:
        """Raise ``Unreachable`` unless the service takes connections."""
        loop = GuardedLoop(asyncio.get_running_loop(), self._guard)
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, *self._place())
        except (AddressDenied, OSError) as error:
            raise _unreachable(error) from None
        transport.close()

    async def close(self) -> None:
        """Close every connection."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()

    def _place(self) -> tuple[str, int]:
        """Host and port of the service."""
        parts = urlsplit(self._url.text)
        return str(parts.hostname), parts.port or (443 if parts.scheme == "https" else 80)

    async def answer(self, facts: Facts) -> Mapping[str, Any]:
        """Members of the answer; that of 204 is ``allow``. Raises ``BackendUnavailable``."""
        status, body = await self._sent(facts)
        if status == HTTPStatus.NO_CONTENT:
            return {"result": "allow"}
        if status != HTTPStatus.OK:
            raise BackendUnavailable(f"expected status 200 or 204, got {status}")
        try:
            answer = jsontext.decode(body)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("result") not in ("allow", "deny", "ignore"):
            raise BackendUnavailable(
                "expected JSON with result allow, deny or ignore, got another answer"
            )
        return answer

    async def _sent(self, facts: Facts) -> tuple[int, bytes]:
        headers = self._filled_headers(facts)
        url = self._url.filled(facts, _in_url)
        values = {member: template.filled(facts) for member, template in self._body.items()}
        content: bytes | None = None
        if self._method == "GET":
            if values:
                url += ("&" if "?" in url else "?") + urlencode(values)
        else:
            content = urlencode(values).encode() if self._is_form else jsontext.encode(values)
        try:
            session = self._session or await self._opened()
            for is_last in (False, True):
                try:
                    return await self._once(session, url, headers, content)
                except (aiohttp.ClientConnectionError, OSError) as error:
                    # The service may have closed an idle connection just now: then a new one is tried.
                    if is_last or isinstance(error, aiohttp.ClientConnectorError):
                        raise
        except (aiohttp.ClientError, AddressDenied, OSError) as error:
            raise _unreachable(error) from None
        raise AssertionError("the second attempt returns or raises")

    async def _opened(self) -> aiohttp.ClientSession:
        """Connections to addresses that the guard allows, without a limit: the requests have one."""
        await self._guard.addresses(
            *self._place()
        )  # the resolver does not see an address, but names
        if self._session is None:
            resolver = cast("AbstractResolver", GuardedResolver(self._guard.addresses))
            connector = aiohttp.TCPConnector(
                limit=0, resolver=resolver, use_dns_cache=False, keepalive_timeout=_KEPT_S
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                skip_auto_headers=_NOT_ADDED,
                auto_decompress=False,
                max_line_size=_HEAD_BYTES,
                max_field_size=_HEAD_BYTES,
            )
        return self._session

    async def _once(
        self,
        session: aiohttp.ClientSession,
        url: str,
        headers: list[tuple[str, str]],
        content: bytes | None,
    ) -> tuple[int, bytes]:
        async with session.request(
            self._method,
            yarl.URL(url, encoded=True),
            headers=headers,
            data=content,
            allow_redirects=False,
            ssl=self._context or True,
            server_hostname=self._settings.ssl.server_name_indication,
        ) as answer:
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise BackendUnavailable(f"the answer is longer than {_MOST_BYTES} bytes")
            return answer.status, bytes(body)

    def _filled_headers(self, facts: Facts) -> list[tuple[str, str]]:
        if self._secrets_version != NAMED_SECRETS.version or not self._headers:
            self._read_headers()
        headers = []
        for name, template in self._headers:
            value = template.filled(facts)
            if _UNPRINTABLE.search(value):
                raise BackendUnavailable(
                    f"header {name}: expected a value without control characters"
                )
            headers.append((name, value))
        return headers

    def _read_headers(self) -> None:
        version = NAMED_SECRETS.version
        parts = urlsplit(self._url.text)
        headers = {"host": parts.netloc, "user-agent": "sluice", "accept": "application/json"}
        if self._method == "POST":
            headers["content-type"] = "application/json"
        try:
            headers |= {
                name.lower(): value.reveal() for name, value in self._settings.headers.items()
            }
        except SecretUnreadable as error:
            raise BackendUnavailable(str(error)) from None
        self._is_form = headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM
        self._headers = [(name, Template(text)) for name, text in headers.items()]
        self._secrets_version = version


def _unreachable(error: Exception) -> Unreachable:
    return Unreachable(f"it cannot be reached ({str(error) or type(error).__name__})")


def _in_url(value: str) -> str:
    """A value in the path or query of a request. Raises ``BackendUnavailable`` for one that is a step of a path."""
    if value in (".", ".."):
        raise BackendUnavailable(f"expected a value that may be part of a path, got {value!r}")
    return quote(value, safe="")


def _context(settings: HttpRequestSettings) -> ssl.SSLContext | None:
    if not settings.url.address.startswith("https:"):
        return None
    try:
        return settings.ssl.context()
    except TlsUnusable as error:
        raise ConfigError([f"http: {error}"]) from None


class HttpVerifier(HttpRequests):
    """Asks an HTTP service about clients that connect."""

    needs_password = False

    async def asked(self, facts: Mapping[str, str | None]) -> Decision:
        """Decision by the answer. Raises ``BackendUnavailable``."""
        answer = await self.answer(facts)
        if answer["result"] != "allow":
            return DENIED if answer["result"] == "deny" else IGNORED
        attributes, bad = attributes_of(answer)
        if bad:
            raise BackendUnavailable(
                f"client_attrs: expected short strings by name, got others in {bad[:10]}"
            )
        expires = answer.get("expire_at")
        if expires is not None and (
            not isinstance(expires, (int, float)) or isinstance(expires, bool)
        ):
            raise BackendUnavailable("expire_at: expected seconds since 1970, got another value")
        try:
            rules = rules_of(answer, "acl", None)
        except Refused as error:
            raise BackendUnavailable(f"acl: {error}") from None
        return Decision(
            "allow",
            is_superuser=answer.get("is_superuser") in _TRUE,
            attributes=attributes,
            expires_s=None if expires is None else float(expires),
            rules=rules,
        )

    async def decision(self, answer: Decision, facts: Mapping[str, str | None]) -> Decision:
        """The decision itself: there is nothing else to do."""
        return answer


class HttpAccess(HttpRequests):
    """Asks an HTTP service about topics of clients."""

    async def result(self, facts: Mapping[str, str | None]) -> Answer:
        """Decision of the service. Raises ``BackendUnavailable``."""
        result: Answer = (await self.answer(facts))["result"]
        return result


def http_source(settings: HttpSourceSettings, outside: Outside, max_answers: int) -> RequestSource:
    """The source of rules ``http``."""
    driver = HttpAccess(settings, settings.body, outside)
    return RequestSource("http", settings, driver, outside, max_answers)


def http_authenticator(
    settings: HttpAuthenticatorSettings, outside: Outside
) -> OutsideAuthenticator[Decision]:
    """The authenticator ``http``."""
    verifier = HttpVerifier(settings, settings.body, outside)
    return OutsideAuthenticator("http", settings, verifier, outside)
