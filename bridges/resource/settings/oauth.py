"""Access tokens by OAuth 2.0's client credentials (RFC 6749, section 4.4), kept until shortly before they end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Any, Final
from urllib.parse import urlencode, urlsplit

from pydantic import AfterValidator, Field

from bridges.resource.errors import BadSettings, ReconnectFirst
from bridges.resource.settings.secret import SecretText
from bridges.resource.settings.tls import TlsOptions, client_context
from broker.config.model import Settings
from broker.config.outgoing import CallFailed, call
from broker.config.secret_text import ADDRESS, SecretUrl
from broker.config.secrets import without_user
from broker.config.ssrf import AddressDenied, AddressGuard
from broker.core import jsontext

# A token is replaced so long before it expires, or when a tenth of its life is left.
_EARLY_S: Final = 30.0
# Lifetime of a token in seconds whose server does not state it.
_LIFE_S: Final = 300.0
_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 1024 * 1024
_HEADERS: Final = (
    ("Accept", "application/json"),
    ("Content-Type", "application/x-www-form-urlencoded"),
)


def _endpoint(url: SecretUrl) -> SecretUrl:
    text = url.reveal()
    if not text.startswith(("http://", "https://")) or "@" in urlsplit(text).netloc:
        shown = without_user(text)
        raise ValueError(f"expected http:// or https:// and a host without a user, got {shown!r}")
    return url


class ClientCredentials(Settings):
    """Endpoint and client of access tokens."""

    endpoint_uri: Annotated[SecretUrl, ADDRESS, AfterValidator(_endpoint)] = Field(
        description="Address of the token endpoint. Values of its query show as stars."
    )
    client_id: str = Field(min_length=1, description="Name of the client.")
    client_secret: SecretText = Field(
        description="Secret of the client, or `${secret:NAME}`, `${env:NAME}`, `${file:PATH}`."
    )
    scope: str | None = Field(default=None, description="Scope of the token.")
    ssl: TlsOptions = Field(
        default_factory=lambda: TlsOptions(enable=True), description="TLS of an https endpoint."
    )


class Tokens:
    """The token of one client, asked for when it is needed."""

    def __init__(
        self,
        settings: ClientCredentials,
        guard: AddressGuard,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._guard = guard
        self._now_s = now_s
        self._token = ""
        self._ends_s = 0.0
        self._asking = asyncio.Lock()

    def forget(self) -> None:
        """The token was refused: ask for another next time."""
        self._token = ""

    async def token(self) -> str:
        """A token that is good for a while.

        Raises:
            BadSettings: the endpoint refuses the client.
            ReconnectFirst: the endpoint cannot be reached or returns no token.
        """
        async with self._asking:
            if not self._token or self._now_s() >= self._ends_s:
                await self._ask()
            return self._token

    async def _ask(self) -> None:
        settings = self._settings
        form = {
            "grant_type": "client_credentials",
            "client_id": settings.client_id,
            "client_secret": settings.client_secret.reveal(),
            **({"scope": settings.scope} if settings.scope else {}),
        }
        context = await asyncio.to_thread(client_context, settings.ssl)
        where = f"the token endpoint {settings.endpoint_uri.address}"
        sent = urlencode(form).encode()
        try:
            status, body = await call(
                "POST",
                settings.endpoint_uri.reveal(),
                self._guard,
                context,
                timeout_s=_TIMEOUT_S,
                most_bytes=_MOST_BYTES,
                headers=_HEADERS,
                content=sent,
            )
        except AddressDenied as error:
            raise BadSettings(f"{where}: {error}") from None
        except CallFailed as error:
            raise ReconnectFirst(f"{where}: {error}") from None
        members = _members(body)
        said = f"{status} {members.get('error_description') or members.get('error') or ''}".strip()
        if status in (400, 401, 403):
            raise BadSettings(f"{where} refuses the client: {said}")
        if status != 200 or not isinstance(members.get("access_token"), str):
            raise ReconnectFirst(f"{where} gives no token: {said}")
        life_s = _number(members.get("expires_in"))
        self._token = members["access_token"]
        self._ends_s = self._now_s() + life_s - min(_EARLY_S, life_s / 10)


def _members(body: bytes) -> dict[str, Any]:
    try:
        value = jsontext.decode(body)
    except jsontext.JsonError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float:
    try:
        return max(float(value), 1.0)
    except (TypeError, ValueError):
        return _LIFE_S
